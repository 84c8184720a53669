"""Late rows and corrections: how they could count, where they come out, and which versions are in force then."""

from __future__ import annotations

import gzip
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as spark

from chain.data.parquet import write_slice
from chain.errors import Invalid
from chain.model.source import TemporalTable, TransformSql
from engines.contract import Vocab
from engines.spark.analysis.classify import Classification, Mode, Passing, Windows, classify
from engines.spark.analysis.classify import Path as Influenced
from engines.spark.analysis.declarations import read_query
from engines.spark.analysis.influence import VersionedInput
from engines.spark.analysis.monotone import DAY, EARLIEST, LATEST, MILLISECOND, Floor, FloorMonths, Shift, apply
from engines.spark.execution.inputs import _UNKNOWN, _eras, advance
from engines.spark.planning.lateness import rule
from engines.spark.planning.transaction import BlockFacts, InputFacts, VersionStep, next_checkpoint, plan_step
from engines.spark.rows.changelog import NEVER, positive
from engines.spark.state.checkpoint import decode_checkpoint, encode_checkpoint
from worlds.depth import share

# Where late rows come out, on plans alone: any grouping and interleaving of two ledgers and the versions they join.

HOUR = DAY // 24
FUNCTIONS = {
    "identity": (Floor(MILLISECOND),),
    "days": (Floor(DAY), Floor(MILLISECOND)),
    "moved": (Shift(3 * DAY), Floor(MILLISECOND)),
}


@st.composite
def chains(draw):
    """Blocks of (times, watermark after); the last has a watermark."""
    blocks, watermark = [], None
    for clock in draw(st.lists(st.integers(0, 40), min_size=1, max_size=7)):
        times = draw(st.lists(st.integers((clock - 30) * 24, (clock + 2) * 24).map(lambda h: h * HOUR), max_size=4))
        if draw(st.booleans()):
            stated = clock * DAY - draw(st.integers(0, 30)) * HOUR
            watermark = stated if watermark is None else max(watermark, stated)
        blocks.append((times, watermark))
    return [*blocks, ([], 45 * DAY if watermark is None else max(watermark, 20 * DAY))]


@st.composite
def histories(draw):
    """Chains of a, b and v, how late rows of a and b may be, and a schedule: which chain gives its next block."""
    given_chains = {alias: draw(chains()) for alias in "abv"}
    reaches = {alias: draw(st.sampled_from([None, 0, 2 * DAY, 9 * DAY])) for alias in "ab"}
    order = draw(st.permutations([alias for alias, blocks in given_chains.items() for _ in blocks]))
    cuts = draw(st.lists(st.booleans(), min_size=len(order), max_size=len(order)))
    return given_chains, reaches, [(alias, cut) for alias, cut in zip(order, [*cuts[:-1], True], strict=True)]


def facts(alias, blocks):
    before, found = None, []
    for position, (times, after) in enumerate(blocks):
        name = f"{alias}{position}"
        ends = (min(times), max(times)) if times else (None, None)
        found.append(BlockFacts(name, name if times else None, before, after, len(times), 0, *ends))
        before = after
    return found


def query(name):
    function = FUNCTIONS[name]
    life = VersionedInput(("k",), clamped=True)
    paths = (
        Influenced("a", function, function),
        Influenced("b", function, function),
        Influenced("v", function, function, life),
    )
    return Classification(Mode.FINAL, paths, ("event_time",))


def run(name, history, schedule):
    """What comes out: (place, output time, alias, time), and the state. Checks that old versions are still there."""
    given_chains, reaches, _ = history
    known = {alias: facts(alias, blocks) for alias, blocks in given_chains.items()}
    taken, start = dict.fromkeys(given_chains, 0), dict.fromkeys(given_chains, 0)
    previous, out, forgotten, raw = None, [], EARLIEST, b""
    for alias, cut in schedule:
        taken[alias] += 1
        if not cut:
            continue
        inputs = []
        for each, blocks in known.items():
            runs = {item.alias: item.open for item in previous.inputs} if previous is not None else {}
            open_now = {block for run in runs.get(each, ()) for block in run}
            again = [replace(block, reopened=True) for block in blocks[: start[each]] if block.name in open_now]
            fresh = blocks[start[each] : taken[each]]
            inputs.append(InputFacts(each, each, (*again, *fresh), reach=reaches.get(each, 0)))
        step = plan_step(query(name), inputs, previous)
        rows = []
        for each, reads in step.reads.items():
            for read in reads:
                for time in (t for path in read.paths for t in given_chains[each][int(path[1:])][0]):
                    place = max(apply(FUNCTIONS[name], time), read.before)
                    first = EARLIEST if step.emit_from is None else step.emit_from
                    if read.low <= time < read.high and first <= place < step.emit_until:
                        rows.append((place, apply(FUNCTIONS[name], time), each, time))
                        assert step.versions["v"].seen_from <= time + 1, "a version in force then must be seen"
                        assert forgotten <= time + 1, "a version in force then must have been kept"
        out += sorted(rows)
        forgotten = max(forgotten, step.versions["v"].kept_from)
        raw = encode_checkpoint(next_checkpoint(query(name), "t", step, {}, previous))
        previous, start = decode_checkpoint(raw), dict(taken)
    return out, raw


def oracle(name, history):
    """Each row on its own: accepted by its own block, placed by its own block."""
    given_chains, reaches, _ = history
    function = FUNCTIONS[name]
    bound = min(
        (LATEST if blocks[-1][1] is None else apply(function, blocks[-1][1])) for blocks in given_chains.values()
    )
    rows = []
    for alias in "ab":
        before = None
        for times, after in given_chains[alias]:
            for time in times:
                output, reach = apply(function, time), reaches[alias]
                early = None if before is None or reach is None else apply(function, before - reach)
                place = output if before is None else max(output, apply(function, before))
                if (early is None or output >= early) and place < bound:
                    rows.append((place, output, alias, time))
            before = after
    return sorted(rows)


@pytest.mark.slow
@settings(max_examples=share(150))
@given(histories(), st.sampled_from(sorted(FUNCTIONS)))
def test_a_row_comes_out_at_a_place_of_its_own_chain(history, name):
    expected = oracle(name, history)
    pieces, state = run(name, history, history[2])
    at_once, same_state = run(
        name, history, [(alias, at == len(history[2]) - 1) for at, (alias, _) in enumerate(history[2])]
    )
    assert pieces == expected
    assert at_once == expected
    assert state == same_state


@pytest.mark.parametrize("reach", [None, 5 * DAY])
def test_without_late_rows_no_old_version_is_read(reach):
    blocks = {"a": [([DAY], DAY), ([9 * DAY], 20 * DAY)], "b": [([], 20 * DAY)], "v": [([2 * DAY], 20 * DAY)]}
    first = {alias: facts(alias, chain) for alias, chain in blocks.items()}
    inputs = [InputFacts(alias, alias, tuple(first[alias]), reach=reach if alias == "a" else 0) for alias in blocks]
    start = plan_step(query("identity"), [replace(each, blocks=each.blocks[:1]) for each in inputs], None)
    previous = next_checkpoint(query("identity"), "t", start, {}, None)
    again = replace(inputs[0], blocks=(replace(inputs[0].blocks[0], reopened=True), inputs[0].blocks[1]))
    step = plan_step(query("identity"), [again, *(replace(each, blocks=()) for each in inputs[1:])], previous)
    assert step.versions["v"].seen_from == start.watermark == DAY
    kept = step.versions["v"].kept_from
    assert kept < EARLIEST + DAY if reach is None else kept == 15 * DAY


# Which version of a key supersedes which, when the coordinator does not say what kind of chain it is.

KEYS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=30)


def ranks(keys, ops, times, cuts=()):
    """As ``advance`` makes them, the rows coming in several transactions; all rows stay in the state."""
    former = [np.empty(0, np.int64), np.empty(0, np.int64)]
    for stop in [*cuts, len(keys)]:
        known = [np.append(one, np.full(stop - len(one), _UNKNOWN)) for one in former]
        former = _eras(keys[:stop], ops[:stop], known)
    placed = np.where(positive(ops), times, -NEVER)
    return np.argsort(np.lexsort((np.arange(len(keys)), placed, former[0])))


@given(KEYS, st.data())
def test_event_time_ranks_what_only_grows(rows, data):
    keys, times = (np.array([row[at] for row in rows], np.int64) for at in (0, 1))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    expected = np.argsort(np.lexsort((np.arange(len(rows)), times)))
    assert np.array_equal(ranks(keys, np.zeros(len(rows), np.int64), times, cuts), expected)


@given(KEYS, st.data())
def test_the_chain_ranks_a_changelog(rows, data):
    """A legal one: a key is taken back before it is said again."""
    standing, keys, ops, times = set(), [], [], []
    for key, time in rows:
        said = data.draw(st.sampled_from([[1], [2, 3]])) if key in standing else [0]
        standing = standing - {key} if said == [1] else standing | {key}
        keys += [key] * len(said)
        ops += said
        times += [time] * len(said)
    keys, ops, times = (np.array(each, np.int64) for each in (keys, ops, times))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(keys)), max_size=3)))
    found = ranks(keys, ops, times, [cut for cut in cuts if not cut or cut == len(ops) or ops[cut - 1] != 2])
    for key in np.unique(keys):
        assert np.all(np.diff(found[keys == key]) > 0)


# How late rows could count, concluded from the recorded plans of tests/golden/plans; and which declarations fit.

PLANS = Path(__file__).parents[3] / "golden" / "plans"
TIMES = {"a": "event_time", "b": "event_time"}
DAILY, MONTHLY = (Floor(DAY),), (FloorMonths(1),)
SUM = {"__odf_part0": "exactly"}
WINDOWS = {
    "bucket-day": (("event_time", "k"), True, {**SUM, "__odf_part1": "sum"}, {"a": DAILY}),
    "bucket-month": (("event_time", "k"), True, None, {"a": MONTHLY}),
    "window-start": (("event_time", "k"), True, SUM, {"a": DAILY}),
    "window-end": (("event_time",), True, SUM, {"a": DAILY}),
    "common-table": (("event_time",), True, SUM, {"a": DAILY}),
    "distinct": (("event_time", "k"), True, {}, {"a": DAILY}),
    "daily-union": (("event_time",), True, SUM, {"a": DAILY, "b": DAILY}),
    "top-n": (("event_time", "k"), False, None, {"a": DAILY}),
}
"""Keys of the table, whether each has one row, how rows are merged, windows by input."""
REFUSED = {
    "join": "late-apply-join", "self-join": "late-apply-join", "equal-windows": "late-apply-join",
    "anti": "late-apply-join", "sum-of-join": "late-apply-join", "hop": "late-apply-shape",
    "session": "late-apply-shape", "months-of-days": "late-apply-shape", "rollup": "late-apply-shape",
    "running-range": "late-apply-shape", "running-sum": "late-apply-shape", "running-of-days": "late-apply-shape",
    "local-days": "late-apply-shape", "greatest-time": "key-not-selected",
}  # fmt: skip


def correction(name):
    found = classify(gzip.decompress((PLANS / f"{name}.json.gz").read_bytes()), TIMES, Vocab()).classification
    return found.correction


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_that_late_rows_can_correct(name):
    found = correction(name)
    assert isinstance(found, Windows)
    assert (found.table.keys, found.table.single, found.table.merge, found.of) == WINDOWS[name]


@pytest.mark.parametrize("name", REFUSED)
def test_shapes_that_late_rows_cannot_correct(name):
    found = correction(name)
    assert (found.code, found.node) == (REFUSED[name], None)
    assert found.message
    assert found.replace


def test_rows_that_pass_by_themselves_have_no_correction():
    assert correction("map") is None


FINAL = Classification(Mode.FINAL, (Influenced("a", (), ()),), ("event_time",), correction=correction("hop"))
LEDGER = replace(
    FINAL, paths=(*FINAL.paths, Influenced("b", (), (), VersionedInput(("k",), clamped=True))), correction=Passing()
)
LATEST_VERSION = replace(LEDGER, paths=(*FINAL.paths, Influenced("b", (), (), VersionedInput(("k",), clamped=False))))
TABLE = replace(FINAL, mode=Mode.TABLE)
TABLES = (TemporalTable(name="b", primary_key=("k",)),)


def ruled(head, shape, **changelogs):
    query = read_query(TransformSql(engine="spark", query=f"{head} select 1", temporal_tables=TABLES))
    return rule(query, shape, {"a": False, "b": False, **changelogs}).reach


def test_what_holds_when_nothing_is_declared():
    assert ruled("", FINAL) == {}
    assert ruled("", LEDGER) == {"a": None}, "a late fact passes, as rows of a map do"
    assert ruled("", LATEST_VERSION) == {"a": None}
    assert ruled("", LEDGER, b=True) == {"a": None}
    assert ruled("", TABLE) == {}


def test_what_is_declared_holds():
    assert ruled("set odf.late = 'drop';", LEDGER) == {}
    assert ruled("set odf.late = 'fail';", LEDGER) == {}
    assert ruled("set odf.late.a = 'apply within 2 days';", LEDGER) == {"a": 2 * DAY}
    assert ruled("set odf.late = 'apply'; set odf.late.a = 'drop';", LEDGER) == {}
    assert ruled("set odf.late.a = 'apply within 0 days';", LEDGER) == {}, "the same as drop"
    assert ruled("set odf.late.a = 'apply'; set odf.late.b = 'drop';", LATEST_VERSION) == {"a": None}


def test_windows_become_the_keys_of_a_table():
    query = read_query(TransformSql(engine="spark", query="set odf.late = 'apply'; select 1"))
    daily, monthly = (replace(FINAL, correction=correction(name)) for name in ("bucket-day", "bucket-month"))
    found = rule(query, daily, {"a": False})
    assert (found.shape.mode, found.shape.table) == (Mode.TABLE, daily.correction.table)
    assert found.shape.paths == daily.paths, "what was settled is still what the watermark says"
    with pytest.raises(Invalid) as caught:
        rule(query, monthly, {"a": False})
    assert caught.value.rule == "history-per-key"
    bounded = read_query(TransformSql(engine="spark", query="set odf.late = 'apply within 1 day'; select 1"))
    assert rule(bounded, monthly, {"a": False}).reach == {"a": DAY}
    dropped = read_query(TransformSql(engine="spark", query="set odf.late = 'drop'; select 1"))
    assert rule(dropped, daily, {"a": True}).shape is daily


@pytest.mark.parametrize(
    ("head", "shape", "changelogs", "expected"),
    [
        ("", FINAL, {"a": True}, "changelog-late"),
        ("", LEDGER, {"a": True}, "changelog-late"),
        ("set odf.late = 'apply';", FINAL, {}, "late-apply-shape"),
        ("set odf.late = 'apply';", LEDGER, {"a": True}, "late-apply-ledger"),
        ("set odf.late.b = 'drop';", LEDGER, {}, "late-versions"),
        ("set odf.late = 'apply';", LATEST_VERSION, {}, "late-apply-as-of"),
        ("set odf.late = 'drop';", TABLE, {}, "late-in-table-mode"),
        ("set odf.late = 'apply within 2 days';", TABLE, {}, "late-in-table-mode"),
        ("set odf.rows = 'late';", FINAL, {}, "late-rows"),
        ("set odf.watermark = 'max - 1 day';", TABLE, {}, "watermark"),
    ],
)
def test_what_does_not_fit_is_refused(head, shape, changelogs, expected):
    with pytest.raises(Invalid) as caught:
        ruled(head, shape, **changelogs)
    assert caught.value.rule == expected
    assert caught.value.hint


# Versions of keys out of a ledger that was corrected: event time ranks them, and slicing does not matter.

SECOND = 1_000_000
STAMP = pa.timestamp("us", "UTC")
SCHEMA = spark.StructType(
    [
        spark.StructField("offset", spark.LongType()),
        spark.StructField("op", spark.IntegerType()),
        spark.StructField("system_time", spark.TimestampType()),
        spark.StructField("event_time", spark.TimestampType()),
        spark.StructField("k", spark.LongType()),
        spark.StructField("v", spark.LongType()),
    ]
)
Statement = tuple[int, int, int, int]
"""Op, event time in seconds, key, value."""


@st.composite
def ledgers(draw):
    """Blocks of statements, each with the watermark after it; what is corrected or retracted stands."""
    standing: list[tuple[int, int, int]] = []
    blocks: list[tuple[list[Statement], int]] = []
    mark = value = 0
    for _ in range(draw(st.integers(1, 6))):
        said: list[Statement] = []
        for _ in range(draw(st.integers(0, 4))):
            value += 1
            what = draw(st.sampled_from("aaaccr")) if standing else "a"
            time, key = draw(st.integers(0, 12)), draw(st.integers(0, 1))
            if what == "a":
                row = (time, key, value)
                said.append((0, *row))
                standing.append(row)
                continue
            old = standing.pop(draw(st.integers(0, len(standing) - 1)))
            if what == "r":
                said.append((1, *old))
                continue
            row = (old[0], old[1], value)
            said += [(2, *old), (3, *row)]
            standing.append(row)
        mark += draw(st.integers(0, 4))
        blocks.append((said, mark))
    return blocks


def written(blocks, folder):
    """Facts of the blocks, their slices in ``folder``; and all statements with when each counts, rank and row."""
    facts, statements, offset, before = [], [], 0, None
    for number, (said, after) in enumerate(blocks):
        path = None
        if said:
            path = str(folder / f"{number}.parquet")
            columns = list(zip(*said, strict=True))
            offsets = np.arange(offset, offset + len(said))
            times = pa.array([time * SECOND for time in columns[1]], pa.int64()).cast(STAMP)
            table = pa.table(
                {
                    "offset": offsets, "op": pa.array(columns[0], pa.int32()), "system_time": times,
                    "event_time": times, "k": pa.array(columns[2], pa.int64()), "v": pa.array(columns[3], pa.int64()),
                }
            )  # fmt: skip
            write_slice(table, Path(path))
        for place, (op, time, key, value) in enumerate(said):
            tau = max(time, -1 if before is None else before, after if op == 1 else -1)
            statements.append((tau, key, (time, offset + place), None if op in (1, 2) else value))
        marks = (None if mark is None else mark * SECOND for mark in (before, after))
        facts.append(BlockFacts(str(number), path, *marks, rows=len(said)))
        offset, before = offset + len(said), after
    return facts, statements


def in_force(statements, key, at):
    """A person with a pencil: of what counts by then the highest in rank, if it asserts a row."""
    known = [(rank, value) for tau, of, rank, value in statements if of == key and tau <= at]
    return max(known)[1] if known else None


def step(blocks, since, until):
    life = VersionedInput(keys=("k",), clamped=True)
    low, high = ((-NEVER if since is None else since * SECOND), until * SECOND)
    return VersionStep(
        blocks=tuple((block, -NEVER) for block in blocks), lateness=0, life=life, seen_until=high, seen_from=low,
        kept_from=high,
    )  # fmt: skip


def valid(view, key, at):
    begins, ends = (view.column(name).cast(pa.int64()).to_pylist() for name in ("valid_from", "valid_to"))
    rows = zip(view.column("k").to_pylist(), view.column("v").to_pylist(), begins, ends, strict=True)
    found = [value for of, value, begin, end in rows if of == key and begin <= at * SECOND < end]
    assert len(found) <= 1, "two versions in force at once"
    return found[0] if found else None


@pytest.mark.slow
@given(ledgers(), st.data())
@settings(deadline=None, max_examples=share(300))
def test_what_is_in_force_is_what_a_person_would_say_in_any_slicing(blocks, data):
    cuts = sorted({*data.draw(st.lists(st.integers(1, len(blocks)), max_size=3)), len(blocks)})
    corrected = next((n for n, (said, _) in enumerate(blocks) if any(row[0] for row in said)), len(blocks))
    with tempfile.TemporaryDirectory() as folder:
        facts, statements = written(blocks, Path(folder))
        start, since, former = 0, None, None
        for cut in cuts:
            until = blocks[cut - 1][1]
            # Until its first correction its chain says that it only grows.
            changed = cut > corrected
            made = advance(step(facts[start:cut], since, until), former, SCHEMA, Vocab(), changed, by_time=changed)
            for at in range(-1 if since is None else since, until):
                for key in (0, 1):
                    assert valid(made.seen, key, at) == in_force(statements, key, at), (cut, key, at)
            start, since, former = cut, until, made.kept


def test_what_only_grows_takes_no_corrections(tmp_path):
    facts, _ = written([([(0, 1, 0, 1), (1, 1, 0, 1)], 5)], tmp_path)
    with pytest.raises(Invalid, match="holds corrections"):
        advance(step(facts, None, 5), None, SCHEMA, Vocab(), False)


def test_a_row_that_was_corrected_to_another_time_is_refused_with_the_way_out(tmp_path):
    facts, _ = written([([(0, 1, 0, 1)], 5), ([(2, 1, 0, 1), (3, 2, 0, 1)], 6)], tmp_path)
    with pytest.raises(Invalid, match="to another event time") as refused:
        advance(step(facts, None, 6), None, SCHEMA, Vocab(), True, by_time=True)
    assert "make a table" in refused.value.hint
