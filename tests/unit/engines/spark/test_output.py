"""From Spark's result to the rows of a slice: pairs mended, types held to, nothing rounded."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.data.arrow_schema import from_arrow
from chain.errors import Invalid
from chain.instant import Instant
from engines.contract import Vocab
from engines.spark.catalyst.plans import HIDDEN, HIDDEN_BEFORE, HIDDEN_OFFSET, HIDDEN_OP, HIDDEN_SOURCE
from engines.spark.output.slice import final_rows, log_rows, output_schema, same_rows, schema_in_force, slice_of

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
        ([("event_time", MICROS), ("v", pa.int32())], "gives v int32 where the dataset has v int64"),
        ([("event_time", MICROS)], "but no v"),
        ([("event_time", MICROS), ("w", pa.int64())], "but w besides and no v"),
        ([("event_time", MICROS), ("v", pa.int64()), ("new", pa.int64())], "but new besides"),
    ):
        with pytest.raises(Invalid, match=why) as caught:
            schema_in_force(pa.schema(other), VOCAB, force)
        assert caught.value.rule == "schema-in-force"


def test_a_column_may_have_the_wider_type_that_spark_has():
    wide = pa.schema([("event_time", MILLIS), ("n", pa.decimal128(20, 0)), ("at", pa.int64())])
    exact = pa.schema([("event_time", MILLIS), ("n", pa.uint64()), ("at", pa.timestamp("ns", "UTC"))])
    assert schema_in_force(exact, VOCAB, from_arrow(output_schema(wide, VOCAB))).types[-2:] == wide.types[-2:]
    with pytest.raises(Invalid, match="gives n decimal128"):
        schema_in_force(wide, VOCAB, from_arrow(output_schema(exact, VOCAB)))


def test_event_time_must_be_a_time():
    with pytest.raises(Invalid, match="event_time is string"):
        output_schema(pa.schema([("event_time", pa.string())]), VOCAB)
