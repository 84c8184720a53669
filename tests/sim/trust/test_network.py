"""Nodes publish, re-run, lie and count on a network that loses, cuts and eclipses: its invariants hold.

``ODFD_SIM_SEEDS`` sets how many worlds are run, ``ODFD_SIM_SEED`` runs one. A failing seed is in the message.
Spec: docs/spec/trust.md#invariants.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

SEEDS = int(os.environ.get("ODFD_SIM_SEEDS", "75"))
ONE = os.environ.get("ODFD_SIM_SEED")
BATCH = 25
SPECIAL = max(SEEDS // 10, 10)
"""Seeds for each of the special plans."""


def run(trustnet: Any, seed: int, **plan: Any) -> Any:
    try:
        return trustnet.network.World(seed, trustnet.network.Plan(**plan)).run()
    except Exception as error:
        raise AssertionError(f"seed {seed} {plan or ''}: {error}; run with ODFD_SIM_SEED={seed}") from error


def seeds(first: int = 0, count: int = SPECIAL) -> Iterable[int]:
    return [int(ONE)] if ONE else range(first, min(first + count, SEEDS))


@pytest.mark.slow
@pytest.mark.parametrize("first", [int(ONE)] if ONE else range(0, SEEDS, BATCH))
def test_promises_hold(trustnet: Any, first: int) -> None:
    for seed in seeds(first, BATCH):
        run(trustnet, seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lie", "forged-state", "fork", "restored", "stray-epoch"])
def test_each_deed_among_honest_ones(trustnet: Any, kind: str) -> None:
    """Scenarios 1, 2, 3, 5 and 6, each with partitions and eclipses by the seed (4)."""
    for seed in seeds():
        run(trustnet, seed, kinds=(kind, "honest"))


@pytest.mark.slow
@pytest.mark.parametrize("plot", ["affirm", "deny", "deny-one", "deny-each", "double", "no-idea", "silent", "mixed"])
def test_each_plot_of_f_groups(trustnet: Any, plot: str) -> None:
    """Scenario 8 within what a policy tolerates."""
    for seed in seeds(count=max(SPECIAL // 4, 5)):
        run(trustnet, seed, plot=plot)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["50", "machine", "platform"])
def test_queries_wrongly_taken_for_repeatable(trustnet: Any, recipe: str) -> None:
    """Scenario 7: nobody honest is suspended, and what never repeats is called so by everybody."""
    for seed in seeds():
        run(trustnet, seed, recipe=recipe)


@pytest.mark.slow
def test_one_faulty_group_too_many(trustnet: Any) -> None:
    """Scenario 8 beyond the bound: promises end exactly there; own runs are still right, a split is called so."""
    seen: Counter[str] = Counter()
    for seed in range(30):
        seen += run(trustnet, seed, faulty=1).promises.seen
    assert seen["lie believed"]
    assert seen["truth refused"]
    assert seen["split"]


@pytest.mark.slow
def test_a_seed_tells_all(trustnet: Any) -> None:
    """The same seed is the same world, to the last message."""
    worlds = [run(trustnet, 11) for _ in range(2)]
    ends = [(world.now, world._count, world.promises.answers) for world in worlds]
    assert ends[0] == ends[1]


@pytest.mark.slow
def test_worlds_hold_what_they_should(trustnet: Any) -> None:
    """A storm that never blows proves nothing."""
    kinds: set[str] = set()
    plots: set[str] = set()
    seen: Counter[str] = Counter()
    eclipsed = 0
    for seed in range(50):
        world = trustnet.network.World(seed)
        kinds |= {source.kind for source in world.sources}
        plots |= {liar.plot for liar in world.liars.values()}
        eclipsed += bool(world._eclipsed)
        if seed < 20:
            seen += world.run().promises.seen
    assert kinds == set(trustnet.network.KINDS)
    assert plots >= set(trustnet.liars.PLOTS) - {"mixed"}
    assert eclipsed
    assert seen["cosigned on both sides"]
    assert seen["a quorum"]
    assert {"pending", "disputed", "attested", "reproduced", "refuted", "own-mismatch", "fork", "double-vote"} <= set(
        +seen
    )
