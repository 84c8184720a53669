"""No honest node's score at another falls through anything that others send, but for what a lost answer costs.

Three free keys flood a small network with statements that are valid. The simulator itself fails where an honest node
accuses an honest one (``Node.blame``); here the relays are looked at too. ``ODFD_SIM_SEEDS`` sets how many worlds.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import pytest

from p2p.budget.buckets import Rate, Relaying
from p2p.peers.book import FLOOD

SEEDS = max(2, int(os.environ.get("ODFD_SIM_SEEDS", "200")) // 40)
LOOKS = Rate(per_second=5.0, burst=40.0)


def flooded(swarm: ModuleType, seed: int, **more: Any) -> Any:
    plan = swarm.world.Plan(
        nodes=9, liars=4, floods=3, datasets=1, heads=2, blocks=3, degree=5, things=(10,), looks=LOOKS, **more
    )
    return swarm.world.World(seed, plan)


def honest_overruns(world: Any) -> dict[str, int]:
    return {node.name: world.overruns[node.name] for node in world.honest if world.overruns[node.name]}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_honest_relay_of_a_flood_is_blamed(swarm: ModuleType, seed: int) -> None:
    world = flooded(swarm, seed)
    world.converge()
    assert world.overruns.total() > 1000, "it floods"
    assert not honest_overruns(world), "what one relays is capped at the relay"
    for node in world.honest:
        for other in world.honest:
            assert not node.book.is_shut_out(other.name, node.clock())


@pytest.mark.slow
def test_a_relay_without_a_cap_is_noticed(swarm: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Relaying, "passes", lambda *_: True)
    world = flooded(swarm, 1)
    world.converge()
    assert honest_overruns(world)


def test_blaming_volume_is_noticed(swarm: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Relaying, "passes", lambda *_: True)
    monkeypatch.setattr(swarm.node.Node, "overrun_by", lambda node, sender: node.blame(sender, FLOOD))
    with pytest.raises(AssertionError, match="accuses the honest"):
        flooded(swarm, 1).converge()
