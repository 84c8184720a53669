"""A publisher on a slow line gives a dataset about once, whoever lies, comes and goes; all honest mirrors get it soon.

``figures.py`` prints figures of swarms. ``sim.kernel`` says how many small worlds are run; of large ones
there are two, which take a second each, and ten with ``ODF_SOAK``.
"""

from __future__ import annotations

import os
from dataclasses import replace
from random import Random

import pytest

from p2p.machines.swarm import AT_ONCE, STRIKES
from sim.kernel import batches, named
from sim.swarms import world as swarms
from sim.swarms.world import PUBLISHER, DividedPlan, Plan, World

SEEDS = 10 if "ODF_SOAK" in os.environ else 2
SMALL = Plan(mirrors=24, blocks=32, links=10)


@pytest.mark.slow
@pytest.mark.parametrize("mirrors", [40, pytest.param(100, marks=pytest.mark.nightly)])
def test_many_mirrors_take_two_copies_at_most(mirrors: int) -> None:
    world = World(1, Plan(mirrors=mirrors, blocks=40)).converge()
    assert world.copies <= 2
    assert world.seconds < world.central / (mirrors / 5), (
        "a server alone takes as long as for all of them one after the other"
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_with_liars_and_churn(seed: int) -> None:
    """A tenth lie, and a fifth leave for others."""
    world = World(seed, replace(SMALL, liars=2, leaving=5)).converge()
    one_copy = world.plan.blocks * world.plan.size / world.plan.publisher_up
    assert world.copies <= 2.5
    assert world.seconds < 10 * one_copy
    assert world.nodes[PUBLISHER].swarm is None


@pytest.mark.slow
@pytest.mark.parametrize("lie", ["boast", "poison", "mute", "hoard"])
def test_a_liar_is_left_and_slows_the_rest_for_a_moment(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-PEER-07: offers of objects that a peer does not have, or false bytes for them, while a dataset is
    fetched together.

    Defence: each piece comes from one peer and is hashed before it counts; after two pieces that were offered and not
    given the peer is left, the others continue.
    """
    monkeypatch.setattr(swarms, "LIES", (lie,))
    honest = World(3, SMALL).converge()
    beset = World(3, replace(SMALL, liars=6)).converge()
    assert beset.seconds < 3 * honest.seconds + 60
    assert beset.copies <= 2.5
    limit = (AT_ONCE + STRIKES) * beset.plan.size * sum(node.lie == "poison" for node in beset.nodes.values())
    assert all(node.spoilt <= limit for node in beset.honest), "what was under way of each liar, and no more"


@pytest.mark.slow
def test_one_large_object_leaves_the_publisher_about_once() -> None:
    """Its pieces go from mirror to mirror while none of them has all."""
    divided = World(1, DividedPlan(mirrors=16)).converge()
    assert divided.copies <= 2
    assert divided.seconds < divided.central / 8
    whole = World(1, Plan(mirrors=16, blocks=1, size=divided.size)).converge()
    assert whole.copies > 4, "undivided, a mirror has something to give once it has all"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_large_object_with_liars_and_leavers(seed: int) -> None:
    """An eighth lie, also about the list, and a quarter leave for others."""
    world = World(seed, DividedPlan(mirrors=16, blocks=16, liars=2, leaving=4)).converge()
    assert world.copies <= 2
    assert world.seconds < 25 * world.size / world.plan.publisher_up
    assert world.nodes[PUBLISHER].swarm is None


@pytest.mark.slow
@pytest.mark.parametrize("batch", batches(8), ids=str)
def test_small_swarms_end_whoever_lies_and_leaves(batch: range) -> None:
    """All honest mirrors get all (``run``); the publisher sends no more than a server alone, and mostly less."""
    copies = []
    for seed in batch:
        lot = Random(seed)
        mirrors = lot.randint(3, 6)
        make = lot.choice((Plan, DividedPlan))
        blocks = 16 if make is DividedPlan else lot.randint(8, 16)
        plan = make(mirrors=mirrors, blocks=blocks, links=4, liars=lot.randint(0, 1), leaving=lot.randint(0, 1))
        with named(seed):
            world = World(seed, plan).converge()
            assert world.copies <= mirrors + plan.leaving + 0.5
            assert world.seconds < 20 * world.size / plan.publisher_up + 60
        copies.append(world.copies)
    assert sum(copies) / len(copies) < 2, f"seeds {batch}"


@pytest.mark.nightly
def test_without_offers_mirrors_alone_cannot_spare_the_publisher() -> None:
    """The property fails where the publisher gives all to everybody."""
    with_offers = World(1, SMALL).converge()
    without = World(1, replace(SMALL, offers=False)).converge()
    assert without.copies > 2 > with_offers.copies


@pytest.mark.slow
def test_it_is_a_function_of_its_seed() -> None:
    one, other = (World(5, replace(SMALL, liars=2, leaving=2)).converge() for _ in range(2))
    assert (one.copies, one.seconds, one.end) == (other.copies, other.seconds, other.end)
