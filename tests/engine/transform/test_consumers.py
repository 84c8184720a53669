"""A consumer of our output obeys the law in turn: property 7 of docs/spec/engine-semantics.md#conformance.

The output of final mode is a perfect stream: however it was cut into blocks, a consumer gives the same rows. What comes
out of the other modes is a chain like any other: for one such chain no schedule of the consumer shows.
"""

from __future__ import annotations

import dataclasses
import random

import pytest

from conformance.cases import CASES, FINAL
from conformance.coordinator import as_input, history_of
from conformance.duck import Grouping
from conformance.histories import paced, schedule
from conformance.runs import RUNS, USUAL, World, world

pytestmark = pytest.mark.engine
MAKERS = {
    "daily": ("bucket-day", "s"),
    "sessions": ("sessions", "s"),
    "hops": ("overlapping", "s"),
    "joined": ("left-interval-join", "v"),
    "enriched": ("versions", "v"),
}
"""Of final mode: shape, and which of its columns the consumer knows as v."""
CONSUMERS = ("bucket-day", "bucket-month", "sessions", "running-sum", "self-join", "map", "group-grows", "top-two")
GROUPING = Grouping({"k": "k"}, {"event_time": "max(event_time)", "v": "sum(v)"})
CHANGING = {
    "group-grows": GROUPING.text,
    "group-changes": "select k, max(event_time) as event_time, count(distinct v % 3) as v{h} from a group by k{h}",
    "map-of-changes": "select event_time, k, v % 3 as v{h} from a where v % 5 <> 0",
}
OF_CHANGES = ("days-of-changes", "map-of-changes", "group-changes", "top-of-a-key")


ENOUGH = max(0, RUNS // 50 - 1)
"""The last run, if by then there were rows."""


def renamed(name, column):
    """The same shape with the columns event_time, k and v."""
    case = CASES[name]
    text, duck = (f"select event_time, k, {column} as v from ({each})" for each in (case.text, case.duck or case.text))
    return dataclasses.replace(case, text=text, duck=duck)


def changing(name):
    """The shape with one value, which is named v."""
    return dataclasses.replace(CASES[name], text=CHANGING[name], grouping=CASES[name].grouping and GROUPING)


def made(here, rng, steps=None, alias="a"):
    """The output chain of a random schedule, as an input."""
    coordinator = here.coordinator(f"maker-{rng.random()}")
    coordinator.run(steps or paced(rng, schedule(rng, here.sizes), here.histories), rng, None)
    return as_input(alias, coordinator.steps)


def consume(case, laid, bed, folder, duck, number, more=()):
    """What a consumer gives of a chain in one step; in pieces it must be the same, and the oracle's."""
    case.tell(duck)
    inputs = {"a": laid, **dict(more)}
    histories = {alias: history_of(each) for alias, each in inputs.items()}
    here = World(case, number, histories, inputs, bed, folder)
    folder.mkdir()
    whole = here.at_once()
    rows, late = case.expected(duck, histories)
    assert whole.rows == rows
    assert late in (None, whole.late)
    rng = random.Random(number)
    pieces = here.coordinator("pieces").run(paced(rng, schedule(rng, here.sizes), histories), rng, None)
    assert (pieces.rows, pieces.state) == (whole.rows, whole.state)
    return whole


def at_random(_):
    return None


def at_once(here):
    return [(here.sizes, None)]


class Makers:
    """What the transforms above wrote, for all consumers of it."""

    def __init__(self, folder):
        self._folder, self._made = folder, {}

    def of(self, upstream, number, bed, duck, ways):
        """Chains of one history, each made in one of these ways."""
        key = upstream.name, number
        if key not in self._made:
            upstream.tell(duck)
            here, rng = world(upstream, number, bed, self._folder), random.Random(number)
            self._made[key] = [made(here, rng, way(here)) for way in ways]
        return self._made[key]


@pytest.fixture(scope="module")
def makers(tmp_path_factory):
    return Makers(tmp_path_factory.mktemp("makers"))


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("name", CONSUMERS)
def test_final_output_is_a_perfect_stream(maker, name, makers, cheap, duck, tmp_path):
    upstream, seen = renamed(*MAKERS[maker]), 0
    for number in range(ENOUGH + 20):
        chains = makers.of(upstream, number, cheap, duck, (at_random, at_random, at_once))
        given = [consume(CASES[name], chain, cheap, tmp_path / f"{number}-{at}", duck, at)
                 for at, chain in enumerate(chains)]  # fmt: skip
        if name != "group-grows":  # its ticks are the watermarks of blocks, so it sees how its input was cut
            assert given[0].rows == given[1].rows == given[2].rows
        assert given[0].watermark == given[1].watermark == given[2].watermark
        if CASES[name] in FINAL:
            assert [one.late for one in given] == [0, 0, 0], "never late downstream"
        seen += len(given[0].rows)
        if seen and number >= ENOUGH:
            break
    assert seen


@pytest.mark.parametrize("maker", CHANGING)
@pytest.mark.parametrize("name", OF_CHANGES)
def test_a_chain_of_changes_is_a_chain_like_any_other(maker, name, makers, cheap, duck, tmp_path):
    upstream = changing(maker)
    seen = 0
    for number in range(ENOUGH + 20):
        (chain,) = makers.of(upstream, number, cheap, duck, (at_random,))
        seen += len(consume(CASES[name], chain, cheap, tmp_path / str(number), duck, number).rows)
        if seen and number >= max(ENOUGH, USUAL - 1):
            break
    assert seen


def test_a_table_is_a_dimension_for_a_ledger(cheap, duck, tmp_path):
    """The remedy that ``mixed-mode`` proposes: the inner query as a dataset of its own, joined by its versions."""
    upstream = changing("group-grows")
    seen = 0
    for number in range(ENOUGH + 20):
        upstream.tell(duck)
        table = world(upstream, number, cheap, tmp_path)
        ledger = world(CASES["bucket-day"], number, cheap, tmp_path).inputs["a"]
        chain = made(table, random.Random(number), alias="b")
        done = consume(CASES["versions"], ledger, cheap, tmp_path / str(number), duck, number, [("b", chain)])
        seen += sum(row[-1] is not None for row in done.rows)
        if seen and number >= ENOUGH:
            break
    assert seen
