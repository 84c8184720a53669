"""Nodes publish, re-run, lie and count on a network that loses, cuts and eclipses: its invariants hold.

Spec: docs/spec/trust.md#invariants.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from sim.kernel import batches, hold, share
from sim.trust.liars import PLOTS
from sim.trust.network import KINDS, Plan, World


@pytest.mark.slow
@pytest.mark.parametrize("batch", batches(75), ids=str)
def test_promises_hold(batch: range) -> None:
    hold(batch, World)


def keep(seeds: range, plan: Plan) -> None:
    hold(seeds, partial(World, plan=plan))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lie", "forged-state", "fork", "restored", "stray-epoch"])
def test_each_deed_among_honest_ones(kind: str) -> None:
    """Scenarios 1, 2, 3, 5 and 6, each with partitions and eclipses by the seed (4)."""
    keep(share(10, 1 / 10), Plan(kinds=(kind, "honest")))


@pytest.mark.slow
@pytest.mark.parametrize("plot", PLOTS)
def test_each_plot_of_f_groups(plot: str) -> None:
    """Scenario 8 within what a policy tolerates."""
    keep(share(5, 1 / 40), Plan(plot=plot))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["50", "machine", "platform"])
def test_queries_wrongly_taken_for_repeatable(recipe: str) -> None:
    """Scenario 7: nobody honest is suspended, and what never repeats is called so by everybody."""
    keep(share(10, 1 / 10), Plan(recipe=recipe))


@pytest.mark.slow
def test_one_faulty_group_too_many() -> None:
    """Scenario 8 beyond the bound: promises end exactly there; own runs are still right, a split is called so."""
    seen: Counter[str] = Counter()
    for seed in range(30):
        seen += World(seed, Plan(faulty=1)).converge().seen
    assert seen["lie believed"]
    assert seen["truth refused"]
    assert seen["split"]


@pytest.mark.slow
def test_a_seed_tells_all() -> None:
    """The same seed is the same world, to the last message."""
    one, other = (World(11).converge() for _ in range(2))
    assert (one.end, one.promises.answers) == (other.end, other.promises.answers)


@pytest.mark.slow
def test_worlds_hold_what_they_should() -> None:
    """A storm that never blows proves nothing."""
    kinds: set[str] = set()
    plots: set[str] = set()
    seen: Counter[str] = Counter()
    for seed in range(50):
        world = World(seed)
        kinds |= {source.kind for source in world.sources}
        plots |= {liar.plot for liar in world.liars.values()}
        seen += (world.converge() if seed < 20 else world).seen
    assert kinds == set(KINDS)
    assert plots >= set(PLOTS) - {"mixed"}
    assert {"eclipsed", "cosigned on both sides", "a quorum"} <= set(seen)
    assert {"pending", "disputed", "attested", "reproduced", "refuted", "own-mismatch", "fork", "double-vote"} <= set(
        seen
    )
