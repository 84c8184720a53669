"""The law, on random histories: any grouping, interleaving, lateness, restart, kill or lost checkpoint, one output.

A run a shape, sixty each night, two thousand in ``make soak`` (``ODF_ENGINE_RUNS``). A run is a random history under a
random schedule with random troubles; its rows, in order, must be the oracle's, its state that of other routes to the
same cut.

All runs go through the engine's own code: ``run_transform`` with its judging, planning, ordering, state and files. A
transaction that settles something takes Spark a tenth of a second or more and DuckDB some milliseconds, so most runs
have DuckDB below the engine in place of Spark (``conformance.duck``), and take minutes where Spark would take an hour;
what Spark makes of a text is then not what is tried, it is how the engine feeds the text
and what it does with its answers. The plan is always Spark's own: each text is analysed by the real one. A brief run
of each shape is also done on the real Spark, against the same oracle, which holds the two engines to one meaning.

A run that failed is had again with ``ODF_ENGINE_FIRST_RUN=<number> ODF_ENGINE_RUNS=1``.
Spec: docs/spec/engine-semantics.md#law, #conformance.
"""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from conformance.cases import CASES
from conformance.coordinator import Bed, Killed, Troubles
from conformance.histories import schedule
from conformance.mutants import NAMED, OWN, PAIRS, mutate
from conformance.runs import FIRST, RUNS, USUAL, brief, numbers, run, world
from worlds.depth import first_now, stride

pytestmark = pytest.mark.engine
KINDS = (
    "bucket-day", "overlapping", "sessions", "left-interval-join", "self-join", "versions", "latest-as-of",
    "days-of-changes", "map", "map-of-changes", "union-log", "union-of-changes", "group-grows", "group-of-two",
    "group-changes", "one-of-two-changes", "top-of-a-key",
    "holdings", "last-rows-and-all-rows",
)  # fmt: skip
"""A shape for every kind of state: what is tried here step by step, random runs try on all shapes now and then."""
SENTENCES = (
    "lateness per transaction", "lateness by the minimum of inputs", "bound without the shift", "bound from one input",
    "open rows dropped", "no output filter", "no tau clamp", "retraction at its old time", "versions ranked by time",
    "no cancellation", "one tick per transaction", "key before tick", "no union gate", "no accumulator merge",
    "pairs not mended", "old versions forgotten", "unsorted output",
)  # fmt: skip
"""The faults that docs/spec/engine-semantics.md#mutants lists."""


@pytest.mark.parametrize("name", CASES)
def test_any_history_gives_what_the_oracle_says(name, cheap, duck, troubles, tmp_path):
    case, came = CASES[name], 0
    case.tell(duck)
    rows = 0
    for number in numbers(name, FIRST, RUNS):
        try:
            done = run(case, number, cheap, duck, tmp_path, troubles)
        except AssertionError as fault:
            raise AssertionError(f"{name}, run {number}: {fault}") from fault
        came += done.troubles
        rows += done.rows
    assert rows, "histories without settled rows prove nothing"
    assert came or RUNS < USUAL, "no trouble came"


@pytest.mark.parametrize("name", list(CASES)[:: stride()])
def test_spark_gives_what_the_oracle_says(name, spark_root, analyst, duck, tmp_path):
    case = CASES[name]
    for number in (brief(case, duck), *range(RUNS // 1000)):
        assert run(case, number, Bed(spark_root.newSession, analyst), duck, tmp_path).rows


def test_every_mutant_of_the_specification_is_here():
    assert set(NAMED) == set(SENTENCES)
    assert not set(NAMED) & set(OWN)
    assert all(cases for _, cases in (*NAMED.values(), *OWN.values()))


@pytest.mark.parametrize(("kind", "name"), first_now(PAIRS), ids=[f"{kind}: {name}" for kind, name in PAIRS])
def test_a_broken_engine_is_caught(kind, name, cheap, duck, tmp_path, monkeypatch):
    """By the runs that ``make test`` does."""
    case = CASES[name]
    case.tell(duck)
    mutate(kind, monkeypatch)
    for number in numbers(name):
        try:
            run(case, number, cheap, duck, tmp_path)
        except AssertionError:
            return
    pytest.fail("the broken engine gave the right answers")


@pytest.mark.parametrize("name", KINDS)
def test_from_any_cut_with_a_rebuilt_checkpoint(name, cheap, duck, tmp_path):
    """Property 3: whoever lacks a checkpoint makes it in one step, and goes on as if it had always been there."""
    case = CASES[name]
    case.tell(duck)
    here = world(case, 3, cheap, tmp_path)
    rows, _ = case.expected(duck, here.histories)
    whole = here.at_once()
    reached = dict.fromkeys(here.sizes, 0)
    for number, takes in enumerate(schedule(here.rng, here.sizes)):
        reached = {alias: count + takes[alias] for alias, count in reached.items()}
        anew = here.coordinator(f"cut-{number}")
        anew.transact(reached)
        anew.restart()
        anew.transact({alias: size - reached[alias] for alias, size in here.sizes.items()})
        got = anew.outcome()
        assert (got.rows, got.state, got.late) == (rows, whole.state, whole.late)


@pytest.mark.parametrize("name", KINDS)
def test_killed_at_every_write_and_asked_again(name, cheap, duck, troubles, tmp_path):
    """Property 4: a transaction that was cut off anywhere gives the same files when it is asked for again."""
    case = CASES[name]
    case.tell(duck)
    here = next(found for number in range(100) if (found := world(case, number, cheap, tmp_path)).at_once().rows)
    peaceful, harried = here.coordinator("peaceful"), here.coordinator("harried")
    killed = set()
    for takes in schedule(here.rng, here.sizes):
        for point, manner in Troubles.KINDS:
            troubles.arm(point, manner)
            try:
                harried.ask(harried.request(takes, same_place=harried.attempts > 0))
            except Killed:
                killed.add(point)
                harried.restart()
            finally:
                troubles.disarm()
        peaceful.transact(takes)
        harried.transact(takes, same_place=harried.attempts > 0)
        harried.attempts += 1
        assert harried.previous.read_bytes() == peaceful.previous.read_bytes()
        ours, theirs = (each.steps[-1] for each in (harried, peaceful))
        assert ours[1] == theirs[1]
        assert (ours[0] is None) == (theirs[0] is None)
        if ours[0] is not None:
            assert pq.read_table(ours[0]).equals(pq.read_table(theirs[0]))
    assert killed == {"query", "checkpoint", "data"}
