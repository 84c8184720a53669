"""The pure parts of provenance: witnesses as numbers, what was missing, rows that reach a time, who ended whom."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from engines.contract import Vocab
from engines.spark.analysis.classify import Path
from engines.spark.analysis.influence import SessionWindow
from engines.spark.analysis.monotone import DAY, MILLISECOND, Floor, Shift
from engines.spark.planning.transaction import SliceRead
from engines.spark.provenance.derive import narrow
from engines.spark.provenance.question import absent
from engines.spark.provenance.row_lineage import DECIDES, PATH, PathOperator, RowWitness, pick, witnesses
from engines.spark.rows.changelog import NEVER
from engines.spark.rows.ticks import dating, entering, lives, of_key

parts = st.tuples(st.integers(0, 5), st.integers(0, 2), st.booleans())
MS = pa.timestamp("ms", "UTC")


@given(st.lists(parts, max_size=30), st.integers(0, 8))
def test_witnesses_are_sorted_counted_and_named_once(given_parts: list[tuple[int, int, bool]], limit: int) -> None:
    sources, offsets = np.array([1, 0, 1, 0, 1, 0]), np.array([9, 4, 2, 7, 5, 1])
    lineage = np.array([row + path * PATH + decides * DECIDES for row, path, decides in given_parts], np.int64)
    expected: dict[tuple[int, int, int], bool] = {}
    for row, path, decides in given_parts:
        key = int(sources[row]), int(offsets[row]), path
        expected[key] = expected.get(key, True) and decides
    told, count = witnesses(lineage, sources, offsets, limit)
    assert count == len(expected)
    assert told == [RowWitness(*key, decides) for key, decides in sorted(expected.items())][:limit]
    assert witnesses(lineage[::-1], sources, offsets, limit) == (told, count)


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=1, max_size=5), st.randoms())
def test_equal_rows_are_told_apart_in_one_way(same: list[list[int]], rng: st.DataObject) -> None:
    order = list(range(len(same)))
    rng.shuffle(order)  # type: ignore[attr-defined]
    mixed = [same[at][::-1] for at in order]
    for place in range(len(same)):
        assert sorted(same[pick(same, place)]) == sorted(mixed[pick(mixed, place)])


def reason(number: int, operator: str) -> PathOperator:
    return PathOperator(number, operator, "", None, None, None)


def test_only_a_join_that_allows_it_makes_an_absence() -> None:
    left, inner, union = reason(1, "left outer join"), reason(2, "inner join"), reason(0, "union all")
    paths = [(left, union), (left, union), (inner, union), (reason(3, "left anti join"), union)]
    assert absent(paths, np.array([5])) == (1,)
    assert absent(paths, np.array([5, PATH])) == ()
    # Another branch of a union is not missing from this one.
    assert absent(paths, np.array([2 * PATH])) == ()
    assert absent([*paths, paths[3]], np.array([3 * PATH])) == (4,)


@given(st.integers(-40 * DAY, 40 * DAY), st.integers(-40, 40), st.integers(0, 3), st.integers(0, 3))
def test_a_time_turned_round_names_the_rows_that_reach_it(time: int, at: int, back: int, on: int) -> None:
    low, high = (Floor(DAY), Shift(-back * DAY), Floor(MILLISECOND)), (Floor(DAY), Shift(on * DAY), Floor(MILLISECOND))
    read = narrow(SliceRead(("x",), -10 * DAY, 10 * DAY), [Path("a", low, high)], at * DAY)
    reaches = time // DAY - back <= at <= time // DAY + on and -10 * DAY <= time < 10 * DAY
    assert (read.low <= time < read.high) == reaches


def test_where_a_session_began_no_time_says() -> None:
    session = Path("a", (), (), SessionWindow(DAY, (), 0))
    read = narrow(SliceRead(("x",), -5 * DAY, 5 * DAY), [session], 0)
    assert (read.low, read.high) == (-5 * DAY, MILLISECOND)


def statements(*said: tuple[int, int, str, int]) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """(offset, op, key, day) of each."""
    offsets, ops, keys, days = (list(column) for column in zip(*said, strict=True))
    times = np.array(days) * DAY
    table = pa.table(
        {
            "offset": pa.array(offsets, pa.int64()), "op": pa.array(ops, pa.int32()),
            "system_time": pa.array([0] * len(ops), MS), "event_time": pa.array(times // 1000, MS), "k": keys,
        }
    )  # fmt: skip
    return table, np.array(ops), times


def test_who_ended_whom() -> None:
    """Watermark 3 before the block, 6 after: a correction and a retraction of old news count from now on."""
    table, ops, times = statements((5, 0, "a", 1), (6, 2, "a", 1), (7, 3, "b", 4), (8, 1, "b", 4), (9, 0, "c", 8))
    enter = entering(ops, times, 3 * DAY, 6 * DAY)
    assert (enter // DAY).tolist() == [3, 4, 4, 6, 8]
    found = lives(table, ops, enter, dating(ops, np.asarray(table["offset"])), Vocab())
    assert found.rows["offset"].to_pylist() == [5, 7, 9]
    assert found.ended_by.tolist() == [6, 8, -1]
    assert found.dated_by.tolist() == [7, 8, -1], "a correction counts from the time of its second half"
    assert [moment // DAY if moment != NEVER else None for moment in found.leave.tolist()] == [4, 6, None]


def test_what_never_counted_is_no_life() -> None:
    table, ops, times = statements((0, 0, "a", 9), (1, 1, "a", 9), (2, 1, "a", 9))
    dated = dating(ops, np.asarray(table["offset"]))
    assert lives(table, ops, entering(ops, times, None, None), dated, Vocab()).rows.num_rows == 0


def test_rows_of_a_key() -> None:
    rows = pa.table({"k": ["x", None, "x", "y"], "n": pa.array([1, 1, 2, 1], pa.int32())})
    assert of_key(rows, {"k": pa.scalar("x"), "n": pa.scalar(1, pa.int64())}).tolist() == [True, False, False, False]
    assert of_key(rows, {"k": pa.scalar(None, pa.string())}).tolist() == [False, True, False, False]
    assert of_key(rows, {}).all()
