"""What a transaction reads and writes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as spark

from chain.data.arrow_schema import from_arrow
from chain.data.parquet import write_slice
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from engines.contract import Vocab
from engines.spark.analysis.classify import Classification, Mode
from engines.spark.analysis.classify import Path as Influenced
from engines.spark.analysis.monotone import DAY, EARLIEST, LATEST, MILLISECOND, Floor, FloorMonths, Shift, apply
from engines.spark.catalyst.plans import HIDDEN, HIDDEN_BEFORE, HIDDEN_OFFSET, HIDDEN_OP, HIDDEN_SOURCE
from engines.spark.execution.tables import SCANNED, scan_of
from engines.spark.output.slice import final_rows, log_rows, output_schema, same_rows, schema_in_force, slice_of
from engines.spark.planning.slice_facts import only_adds
from engines.spark.planning.table_transaction import plan_table
from engines.spark.planning.transaction import BlockFacts, InputFacts, next_checkpoint, plan_step
from engines.spark.state.checkpoint import (
    MAX_CHECKPOINT,
    MAX_RANGES,
    OpenInput,
    StateCheckpoint,
    decode_checkpoint,
    encode_checkpoint,
    open_blocks,
    runs_of,
)
from worlds.depth import share

# The law of slicing on plans alone: ten lines stand for Spark, so many histories can be tried.

HOUR = DAY // 24
END = Floor(MILLISECOND)
FUNCTIONS = {
    "hours": ((Floor(6 * HOUR), END), (Floor(6 * HOUR), END)),
    "month": ((FloorMonths(1), END), (FloorMonths(1), END)),
    "ends": ((Floor(DAY), Shift(DAY), END), (Floor(DAY), Shift(DAY), END)),
    "overlapping": ((Shift(-2 * DAY), Floor(DAY), Shift(DAY), END), (Floor(DAY), END)),
    "hours of days": ((Floor(DAY), END), (Floor(DAY), Shift(DAY - 1), END)),
}
"""Least and greatest output time of a row; the greatest may only enclose what the query really does."""


@st.composite
def histories(draw):
    """Blocks of (times, watermark after), and a schedule."""
    blocks, watermark = [], None
    for clock in draw(st.lists(st.integers(0, 90), min_size=1, max_size=14)):
        times = draw(st.lists(st.integers((clock - 20) * 24, (clock + 2) * 24).map(lambda h: h * HOUR), max_size=5))
        if draw(st.booleans()):
            stated = clock * DAY - draw(st.integers(0, 30)) * HOUR
            watermark = stated if watermark is None else max(watermark, stated)
        blocks.append((times, watermark))
    cuts = draw(st.lists(st.booleans(), min_size=len(blocks), max_size=len(blocks)))
    return blocks, [position + 1 for position, cut in enumerate(cuts[:-1]) if cut] + [len(blocks)]


def facts(blocks):
    before, found = None, []
    for position, (times, after) in enumerate(blocks):
        name = f"b{position}"
        ends = (min(times), max(times)) if times else (None, None)
        found.append(BlockFacts(name, name if times else None, before, after, len(times), 0, *ends))
        before = after
    return found


def influenced(paths, time):
    """Output of the imaginary query: each path gives one row at every 6 hours of its interval."""
    for path in paths:
        output = apply(path.low, time)
        while output <= apply(path.high, time):
            yield output, time
            output += 6 * HOUR


def paced(cuts, limits):
    """Each cut with the limits given for it, and once more without one; the blocks are taken the first time."""
    for cut, several in zip(cuts, limits, strict=True):
        for limit in (*several, None):
            yield cut, limit


def run(query, blocks, cuts, limits=None):
    known, previous, out, start = facts(blocks), None, [], 0
    for cut, limit in paced(cuts, limits or [()] * len(cuts)):
        open_now = {name for run in previous.inputs[0].open for name in run} if previous is not None else set()
        again = [replace(b, reopened=True) for b in known[:start] if b.name in open_now]
        step = plan_step(query, [InputFacts("did", "a", (*again, *known[start:cut]))], previous, limit=limit)
        mounted = {b.path for b in (*again, *known[start:cut])}
        rows = []
        for read in step.reads["a"]:
            assert set(read.paths) <= mounted
            for path in read.paths:
                times = blocks[int(path[1:])][0]
                rows += [time for time in times if read.low <= time < read.high]
        first = EARLIEST if step.emit_from is None else step.emit_from
        until = LATEST if step.emit_until is None else step.emit_until
        assert step.idle or step.emit_until is not None
        out += sorted(one for time in rows for one in influenced(query.paths, time) if first <= one[0] < until)
        late = {c.alias: 0 for c in step.late_checks}
        for check in step.late_checks:
            late[check.alias] += sum(time < check.threshold for time in blocks[int(check.path[1:])][0])
        raw = encode_checkpoint(next_checkpoint(query, "t", step, late, previous))
        previous, start = decode_checkpoint(raw), cut
    return out, raw


def whole(query, blocks):
    """One query over all accepted rows."""
    watermark, rows, late = None, [], 0
    for times, after in blocks:
        for time in times:
            lost = watermark is not None and any(apply(p.low, time) < apply(p.low, watermark) for p in query.paths)
            late += lost
            rows += [] if lost else [time]
        watermark = after
    if watermark is None:
        return [], late
    bound = min(apply(path.low, watermark) for path in query.paths)
    return sorted(one for time in rows for one in influenced(query.paths, time) if one[0] < bound), late


@pytest.mark.slow
@settings(max_examples=share(300))
@given(histories(), st.lists(st.sampled_from(sorted(FUNCTIONS)), min_size=1, max_size=2))
def test_grouping_does_not_show(history, names):
    blocks, cuts = history
    query = Classification(Mode.FINAL, tuple(Influenced("a", *FUNCTIONS[name]) for name in names), ("event_time",))
    expected, late = whole(query, blocks)
    got, state = run(query, blocks, cuts)
    at_once, same_state = run(query, blocks, [len(blocks)])
    assert got == expected
    assert at_once == expected
    assert state == same_state
    assert decode_checkpoint(state).late.get("a", 0) == late


@pytest.mark.slow
@settings(max_examples=share(200))
@given(histories(), st.lists(st.sampled_from(sorted(FUNCTIONS)), min_size=1, max_size=2), st.data())
def test_emission_limits_do_not_show(history, names, data):
    blocks, cuts = history
    query = Classification(Mode.FINAL, tuple(Influenced("a", *FUNCTIONS[name]) for name in names), ("event_time",))
    times = st.lists(st.integers(-30 * 24, 95 * 24).map(lambda hour: hour * HOUR), max_size=4)
    limits = data.draw(st.lists(times, min_size=len(cuts), max_size=len(cuts)))
    assert run(query, blocks, cuts, limits) == run(query, blocks, cuts)


@pytest.mark.parametrize(("occurrence", "thresholds"), [(0, []), (None, [4 * DAY])])
def test_a_row_is_late_for_all_of_an_occurrence_or_for_none(occurrence, thresholds):
    """Two ways into windows of two days: by the second those that the row is in are not settled yet."""
    ways = ((Floor(2 * DAY), END), (Floor(DAY), Shift(-DAY), Floor(2 * DAY), END))
    paths = tuple(Influenced("a", way, way, occurrence=occurrence) for way in ways)
    query = Classification(Mode.FINAL, paths, ("event_time",))
    step = plan_step(query, (InputFacts("a", "a", facts([([], 4 * DAY), ([7 * DAY // 2], 5 * DAY)])),), None)
    assert [check.threshold for check in step.late_checks] == thresholds


def test_what_a_limit_holds_back_is_told_until_it_is_out():
    query = Classification(Mode.FINAL, (Influenced("a", *FUNCTIONS["hours"]),), ("event_time",))
    known = facts([([3 * DAY, 8 * DAY], 4 * DAY), ([5 * DAY], 9 * DAY)])
    first = plan_step(query, [InputFacts("did", "a", tuple(known))], None, limit=4 * DAY)
    state = next_checkpoint(query, "t", first, {}, None)
    assert (first.watermark, state.settled) == (4 * DAY, 9 * DAY // MILLISECOND)
    assert first.inputs[0].open == (("b0", "b0"), ("b1", "b1"))
    again = [InputFacts("did", "a", tuple(replace(each, reopened=True) for each in known))]
    second = plan_step(query, again, state, limit=9 * DAY)
    assert (second.emit_from, second.emit_until) == (4 * DAY, 9 * DAY)
    assert b"settled" not in encode_checkpoint(next_checkpoint(query, "t", second, {}, state))
    assert plan_step(query, again, state, limit=2 * DAY).idle


def test_nothing_settled_reads_nothing():
    query = Classification(Mode.FINAL, (Influenced("a", *FUNCTIONS["month"]),), ("event_time",))
    blocks = [([3 * DAY], 4 * DAY), ([5 * DAY], 6 * DAY)]
    first = plan_step(query, [InputFacts("did", "a", tuple(facts(blocks)[:1]))], None)
    state = next_checkpoint(query, "t", first, {}, None)
    second = plan_step(
        query, [InputFacts("did", "a", tuple(replace(b, reopened=b.name == "b0") for b in facts(blocks)))], state
    )
    assert second.idle
    assert second.inputs[0].open == (("b0", "b0"), ("b1", "b1"))


def test_log_mode_reads_every_new_slice_and_keeps_none():
    query = Classification(Mode.LOG, (Influenced("a", (END,), (END,)),), ("event_time",))
    step = plan_step(query, [InputFacts("did", "a", tuple(facts([([1], None), ([], 7 * DAY), ([2], 7 * DAY)])))], None)
    assert [read.paths for read in step.reads["a"]] == [("b0", "b2")]
    assert step.watermark == 7 * DAY
    assert step.inputs[0].open == ()


def test_a_missing_open_block_is_refused():
    query = Classification(Mode.FINAL, (Influenced("a", *FUNCTIONS["month"]),), ("event_time",))
    known = facts([([3 * DAY], 4 * DAY), ([5 * DAY], 6 * DAY)])
    state = next_checkpoint(query, "t", plan_step(query, [InputFacts("did", "a", tuple(known[:1]))], None), {}, None)
    with pytest.raises(Invalid, match="needs block b0 again"):
        plan_step(query, [InputFacts("did", "a", tuple(known[1:]))], state)


def test_blocks_from_before_the_checkpoint_are_refused():
    query = Classification(Mode.LOG, (Influenced("a", (END,), (END,)),), ("event_time",))
    known = facts([([3 * DAY], 4 * DAY), ([5 * DAY], 6 * DAY)])
    state = next_checkpoint(query, "t", plan_step(query, [InputFacts("did", "a", tuple(known))], None), {}, None)
    with pytest.raises(Invalid, match="before the watermark"):
        plan_step(query, [InputFacts("did", "a", tuple(known[:1]))], state)


# Ticks of a table: however many are taken at a time, the same are taken in all.

TABLE = Classification(Mode.TABLE, (), ("event_time",))
streams = st.lists(st.integers(0, 6), min_size=1, max_size=10)


def blocks(name, steps):
    found, clock = [], None
    for position, step in enumerate(steps):
        after = (clock or 0) + step * DAY if step or clock else clock
        found.append(BlockFacts(f"{name}{position}", None, clock, after))
        clock = after
    return tuple(found)


@given(streams, streams, st.integers(0, 3), st.lists(st.integers(-1, 70), max_size=6))
def test_limits_do_not_show(one, other, lateness, limits):
    given_inputs = [InputFacts("did", name, blocks(name, steps), lateness * DAY)
                    for name, steps in (("a", one), ("b", other))]  # fmt: skip
    whole, expected, waiting = plan_table(given_inputs, None)
    state, ticks, now = None, [], given_inputs
    for limit in (*limits, None):
        step, table, waits = plan_table(now, state, limit=None if limit is None else limit * DAY)
        assert table.since == (None if state is None or state.g is None else state.g * MILLISECOND)
        assert table.ticks or expected.ticks == tuple(ticks), "a tick that is due is always reached"
        assert (step.settled is not None) == (tuple(ticks) + table.ticks != expected.ticks)
        ticks += table.ticks
        state = decode_checkpoint(encode_checkpoint(next_checkpoint(TABLE, "t", step, {}, state, waits)))
        now = [replace(each, blocks=()) for each in given_inputs]
    assert tuple(ticks) == expected.ticks
    assert state == next_checkpoint(TABLE, "t", whole, {}, None, waiting)


@given(
    streams, st.sampled_from([Floor(DAY), Floor(3 * DAY), FloorMonths(1)]), st.lists(st.integers(-1, 70), max_size=6)
)
def test_limits_do_not_show_on_a_grid(steps, grid, limits):
    given_input = InputFacts("did", "a", blocks("a", steps))
    whole, _, waiting = plan_table([given_input], None, grid)
    state, now, until = None, [given_input], None
    for limit in (*limits, None):
        step, table, waits = plan_table(now, state, grid, None if limit is None else limit * DAY)
        assert table.since == until
        assert step.settled in (None, whole.watermark)
        # What is due moves on with each step.
        assert until is None or table.until > until or until == whole.watermark
        until = table.until
        state = decode_checkpoint(encode_checkpoint(next_checkpoint(TABLE, "t", step, {}, state, waits)))
        now = [replace(given_input, blocks=())]
    assert state == next_checkpoint(TABLE, "t", whole, {}, None, waiting)


# Checkpoints: one text for one state, read under limits, and runs that depend on the blocks alone.

ID = DatasetId.from_public_key(b"k" * 32)
NAMES = [str(Multihash.sha3_256(bytes([n]))) for n in range(4)]


def checkpoint(**changes):
    item = OpenInput(id=str(ID), alias="a", block=NAMES[3], w=5, open=((NAMES[0], NAMES[1]), (NAMES[2], NAMES[2])))
    facts = {
        "v": 1,
        "transform": NAMES[0],
        "mode": "final",
        "g": -7,
        "inputs": (item,),
        "late": {"a": 3},
        "untimed": {},
    }
    return StateCheckpoint(**(facts | changes))


def test_canonical_and_back():
    raw = encode_checkpoint(checkpoint())
    assert raw.startswith(b'{"g":-7,"inputs":[{"alias":"a","block":"f1620')
    assert b" " not in raw
    assert decode_checkpoint(raw) == checkpoint()


def test_open_blocks_by_dataset():
    runs = open_blocks(encode_checkpoint(checkpoint()))
    assert runs == {ID: [(Multihash.parse(NAMES[0]), Multihash.parse(NAMES[1])), (Multihash.parse(NAMES[2]),) * 2]}
    nothing = checkpoint(inputs=(OpenInput(id=str(ID), alias="a"),))
    assert open_blocks(encode_checkpoint(nothing)) == {}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        encode_checkpoint(checkpoint(v=2)),
        encode_checkpoint(checkpoint()).replace(b'"mode"', b'"made"'),
        encode_checkpoint(checkpoint(g=2**63)),
        b" " * (MAX_CHECKPOINT + 1),
    ],
)
def test_what_is_no_checkpoint_is_refused(raw):
    with pytest.raises(Invalid):
        decode_checkpoint(raw)


def test_names_that_are_no_hashes_are_refused():
    with pytest.raises(Invalid):
        open_blocks(encode_checkpoint(checkpoint(inputs=(OpenInput(id=str(ID), alias="a", open=(("x", "y"),)),))))


@given(st.lists(st.integers(0, 10**6), unique=True, max_size=400).map(sorted))
def test_runs_cover_all_in_order_and_are_few(numbers):
    names = [str(number) for number in numbers]
    runs = runs_of(names)
    assert len(runs) <= MAX_RANGES
    covered = [name for first, last in runs for name in names[names.index(first) : names.index(last) + 1]]
    assert covered == names


# From Spark's result to the rows of a slice: pairs mended, types held to, nothing rounded.

MICROS, MILLIS = pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC")
KEPT = pa.schema([("event_time", MICROS)])
"""A slice whose event times are in microseconds."""
VOCAB = Vocab()


def result(rows):
    """(offset, op, event time in microseconds, v), and perhaps (source, watermark before)"""
    offset, op, time, v, source, before = zip(*((*row, 0, 0)[:6] for row in rows), strict=True)
    return pa.table(
        {
            "event_time": pa.array(time).cast(MICROS),
            "v": v,
            HIDDEN_OFFSET: pa.array(offset, pa.int64()),
            HIDDEN_OP: pa.array(op, pa.int32()),
            HIDDEN_SOURCE: pa.array(source, pa.int32()),
            HIDDEN_BEFORE: pa.array(before, pa.int64()),
        }
    )


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(0, 0, 5, 1), (1, 0, 5, 2)], [(0, 1), (0, 2)]),
        ([(1, 0, 5, 2), (0, 0, 5, 1)], [(0, 1), (0, 2)]),
        ([(0, 2, 5, 1), (1, 3, 5, 2)], [(2, 1), (3, 2)]),
        ([(0, 2, 5, 1), (1, 3, 5, 1)], []),
        ([(0, 2, 5, 1)], [(1, 1)]),
        ([(1, 3, 5, 1)], [(0, 1)]),
        ([(0, 2, 5, 1), (3, 3, 5, 2)], [(1, 1), (0, 2)]),
        ([(0, 1, 5, 1), (1, 0, 5, 1)], [(1, 1), (0, 1)]),
        ([(0, 2, 5, 1), (0, 2, 5, 2), (1, 3, 5, 3)], [(1, 1), (1, 2), (0, 3)]),
        ([(0, 2, 5, 1), (1, 3, 5, 2), (2, 2, 5, 2), (3, 3, 5, 2)], [(2, 1), (3, 2)]),
    ],
    ids=[
        "additions", "sorted", "pair", "pair made equal", "-C alone", "+C alone", "not neighbours", "retraction",
        "exploded", "two pairs",
    ],
)  # fmt: skip
def test_ops_pass_and_split_pairs_are_mended(rows, expected):
    out, ops = log_rows(result(rows), KEPT)
    assert list(zip(ops.to_pylist(), out["v"].to_pylist(), strict=True)) == expected
    assert out.column_names == ["event_time", "v"]


def test_rows_of_one_row_are_in_total_order():
    out, _ = log_rows(result([(1, 0, 5, 3), (0, 0, 9, 2), (0, 0, 9, 1), (1, 0, 5, 1)]), KEPT)
    assert out["v"].to_pylist() == [1, 2, 1, 3]


@given(st.permutations(range(6)))
def test_where_all_are_additions_nothing_has_to_say_so(offsets):
    rows = result([(offset, 0, 5, 10 * offset) for offset in offsets])
    with_ops, without = (log_rows(each, KEPT) for each in (rows, rows.select(["event_time", "v", HIDDEN_OFFSET])))
    assert with_ops[0].equals(without[0])
    assert with_ops[1].equals(without[1])
    assert without[0]["v"].to_pylist() == [0, 10, 20, 30, 40, 50]


def test_rows_of_several_inputs_are_in_the_order_of_what_their_chains_had_promised():
    rows = [(7, 0, 5, 1, 1, 10), (9, 0, 5, 2, 0, 20), (8, 0, 5, 3, 0, 10), (3, 0, 5, 4, 1, 10), (0, 0, 5, 5, 1, -5)]
    out, _ = log_rows(result(rows), KEPT)
    assert out["v"].to_pylist() == [5, 3, 4, 1, 2]


def test_a_pair_is_of_one_input():
    _, ops = log_rows(result([(0, 2, 5, 1, 0, 0), (1, 3, 5, 2, 1, 0)]), KEPT)
    assert ops.to_pylist() == [1, 0]


@pytest.mark.slow
@given(st.data())
def test_same_rows_is_equality_of_values(data):
    numbers = st.sampled_from([None, 0.0, -0.0, 1.5, float("nan")])
    kinds = {
        "n": (pa.int64(), st.sampled_from([None, 0, 1])),
        "f": (pa.float64(), numbers),
        "s": (pa.string(), st.sampled_from([None, "", "x"])),
        "l": (pa.list_(pa.float32()), st.none() | st.lists(numbers, max_size=3)),
        "t": (pa.struct({"a": pa.int64(), "b": pa.list_(pa.int64())}),
              st.none() | st.fixed_dictionaries({"a": st.sampled_from([None, 1]),
                                                 "b": st.none() | st.lists(st.integers(0, 1), max_size=2)})),
        "ll": (pa.list_(pa.list_(pa.string())), st.none() | st.lists(st.none() | st.lists(st.sampled_from("xy")))),
    }  # fmt: skip
    name = data.draw(st.sampled_from(sorted(kinds)))
    kind, values = kinds[name]
    pairs = data.draw(st.lists(st.tuples(values, values), min_size=1, max_size=8))
    one, other = (pa.table({name: pa.array(list(side), kind)}) for side in zip(*pairs, strict=True))
    expected = [repr(a) == repr(b) for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True)]
    assert same_rows(one, other).tolist() == expected


def test_final_rows_are_within_bounds_of_milliseconds_sorted_and_not_rounded():
    table = result([(0, 0, time, v) for time, v in [(3999, 1), (3000, 2), (-1, 3), (2999, 4), (4000, 5)]])
    table = table.drop_columns(list(HIDDEN))
    out = final_rows(table, KEPT, VOCAB, 2000, 4000)
    assert out["event_time"].cast(pa.int64()).to_pylist() == [2999, 3000, 3999]
    assert out["v"].to_pylist() == [4, 2, 1]
    everything = final_rows(table, KEPT, VOCAB, None, 4000)
    assert everything["event_time"].cast(pa.int64()).to_pylist() == [-1, 2999, 3000, 3999]
    with pytest.raises(Invalid, match="'event_time' holds times with digits") as caught:
        final_rows(table, pa.schema([("event_time", MILLIS)]), VOCAB, 2000, 4000)
    assert "date_trunc" in caught.value.hint


def test_slices_begin_with_system_columns():
    schema = output_schema(pa.schema([("v", pa.int64()), ("event_time", MICROS)]), VOCAB)
    assert schema.names == ["offset", "op", "system_time", "event_time", "v"]
    rows = pa.table({"event_time": pa.array([1], pa.timestamp("ms", "UTC")), "v": [7]})
    made = slice_of(rows, pa.array([0], pa.int32()), schema, VOCAB, Instant(9_999_999), 40)
    assert made.schema.equals(schema)
    assert [value for value in made.to_pylist()[0].values() if isinstance(value, int)] == [40, 0, 7]
    assert made["system_time"].cast(pa.int64()).to_pylist() == [9]


def test_the_schema_in_force_is_held_to():
    columns = pa.schema([("event_time", MICROS), ("v", pa.int64())])
    force = from_arrow(output_schema(columns, VOCAB))
    assert schema_in_force(columns, VOCAB, force).names[-1] == "v"
    for other, why in (
        ([("event_time", MICROS), ("v", pa.int32())], "has v int32 where the dataset has v int64"),
        ([("event_time", MICROS)], "missing v"),
        ([("event_time", MICROS), ("w", pa.int64())], "extra w and missing v"),
        ([("event_time", MICROS), ("v", pa.int64()), ("new", pa.int64())], "extra new"),
    ):
        with pytest.raises(Invalid, match=why) as caught:
            schema_in_force(pa.schema(other), VOCAB, force)
        assert caught.value.rule == "schema-in-force"


def test_a_column_may_have_the_wider_type_that_spark_has():
    wide = pa.schema([("event_time", MILLIS), ("n", pa.decimal128(20, 0)), ("at", pa.int64())])
    exact = pa.schema([("event_time", MILLIS), ("n", pa.uint64()), ("at", pa.timestamp("ns", "UTC"))])
    assert schema_in_force(exact, VOCAB, from_arrow(output_schema(wide, VOCAB))).types[-2:] == wide.types[-2:]
    with pytest.raises(Invalid, match="has n decimal128"):
        schema_in_force(wide, VOCAB, from_arrow(output_schema(exact, VOCAB)))


def test_event_time_must_be_a_time():
    with pytest.raises(Invalid, match="event_time is string"):
        output_schema(pa.schema([("event_time", pa.string())]), VOCAB)


# What is read of slices before Spark reads them.


@given(ops=st.lists(st.sampled_from([0, 0, 0, 0, 1, 2, 3, None]), max_size=12))
def test_only_additions_are_told_from_the_rows(tmp_path_factory, ops):
    path = tmp_path_factory.mktemp("slice") / "slice"
    write_slice(pa.table({"op": pa.array(ops, pa.int32()), "v": pa.array(range(len(ops)))}), path)
    assert only_adds(path, Vocab()) == all(op == 0 for op in ops)


@pytest.mark.parametrize("kind", [pa.uint8(), pa.int64()])
def test_the_vocabulary_names_the_column(tmp_path, kind):
    write_slice(pa.table({"what": pa.array([0, 0], kind), "op": pa.array([1, 1], kind)}), tmp_path / "slice")
    assert only_adds(tmp_path / "slice", Vocab(operation_type="what"))
    assert not only_adds(tmp_path / "slice", Vocab())
    assert not only_adds(tmp_path / "slice", Vocab(operation_type="nowhere"))


# Which slices of a changing table's inputs Spark reads by itself: decided by what planning knows, without a look.


@dataclass(frozen=True)
class Source:
    log: bool = False

    @property
    def schema(self) -> spark.StructType:
        return spark.StructType()

    @property
    def vocab(self) -> Vocab:
        return Vocab()


@pytest.fixture
def block(tmp_path: Path) -> BlockFacts:
    """Of a file that nobody can read."""
    path = tmp_path / "slice"
    path.write_bytes(bytes(SCANNED))
    return BlockFacts("b", str(path), None, None, rows=9, first=10, last=20, changes=False)


def test_what_planning_read_is_not_read_again(block: BlockFacts) -> None:
    found = scan_of(block, 15, 21, Source(), every=False)
    assert found is not None
    assert found.moments.tolist() == [15, 20]
    with pytest.raises(Exception, match="slice"):
        scan_of(block, 15, 21, Source(), every=True)


def test_slices_of_which_rows_are_looked_at(block: BlockFacts) -> None:
    assert scan_of(block, 15, 20, Source(), every=False) is None  # a row waits
    assert scan_of(replace(block, changes=True), 0, 21, Source(), every=False) is None
    assert scan_of(replace(block, changes=True), 0, 21, Source(log=True), every=False) is not None
    assert scan_of(replace(block, first=None, last=None), 0, 21, Source(), every=False) is None
    assert scan_of(replace(block, path=None), 0, 21, Source(), every=False) is None
    assert block.path is not None
    Path(block.path).write_bytes(b"")
    assert scan_of(block, 0, 21, Source(), every=False) is None  # small
