"""Rows that are taken back: running totals over them, how long each counts, and what provenance tells of them."""

from __future__ import annotations

from collections import defaultdict, deque

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.data.operations import APPEND, CORRECT_FROM, CORRECT_TO, RETRACT
from conformance.duck import Duck, Frame
from engines.contract import Vocab
from engines.spark.analysis.classify import Path
from engines.spark.analysis.influence import SessionWindow
from engines.spark.analysis.monotone import DAY, MILLISECOND, Floor, Shift
from engines.spark.catalyst.running_windows import Stage, WindowPart
from engines.spark.execution import running_aggregates
from engines.spark.execution.running_aggregates import run_over_history
from engines.spark.planning.transaction import SliceRead
from engines.spark.provenance.derive import narrow
from engines.spark.provenance.question import absent
from engines.spark.provenance.row_lineage import DECIDES, PATH, PathOperator, RowWitness, pick, witnesses
from engines.spark.rows.changelog import (
    LONG_AGO,
    NEVER,
    cancelled_by,
    distinct,
    effective_times,
    row_codes,
    valid_until,
)
from engines.spark.rows.ticks import dating, entering, lives, of_key
from engines.spark.state.files import StoredTable, pack, unpack

# Columns against a person with a pencil: each rule of changelogs once more, statement by statement.

STATEMENTS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 1, 2, 3])), max_size=40)


@given(STATEMENTS)
def test_each_row_is_taken_back_once_and_the_first_goes_first(statements):
    groups, ops = np.array([s[0] for s in statements], np.int64), np.array([s[1] for s in statements], np.int64)
    standing, expected, nothing = defaultdict(deque), [-1] * len(statements), [False] * len(statements)
    for position, (group, op) in enumerate(statements):
        if op in (APPEND, CORRECT_TO):
            standing[group].append(position)
        elif standing[group]:
            expected[standing[group].popleft()] = position
        else:
            nothing[position] = True
    canceller, idle = cancelled_by(groups, ops)
    assert canceller.tolist() == expected
    assert idle.tolist() == nothing


@st.composite
def changelogs(draw):
    """Legal ones: (op, time, key, before, after); a correction is two statements of one block."""
    rows, current, mark = [], {}, 0
    for _ in range(draw(st.integers(0, 12))):
        after = mark + draw(st.integers(0, 5))
        for _ in range(draw(st.integers(0, 3))):
            key, time = draw(st.integers(0, 2)), draw(st.integers(-5, 40))
            if key not in current:
                rows.append((APPEND, time, key, mark, after))
                current[key] = time
            elif draw(st.booleans()):
                rows.append((CORRECT_FROM, current[key], key, mark, after))
                rows.append((CORRECT_TO, time, key, mark, after))
                current[key] = time
            else:
                rows.append((RETRACT, draw(st.sampled_from([current.pop(key), time])), key, mark, after))
        mark = after
    return rows


def by_hand(rows):
    taus, current = [], {}
    for position, (op, time, key, before, after) in enumerate(rows):
        if op in (APPEND, CORRECT_TO):
            tau = max(time, before)
            current[key] = (time, tau)
        elif op == CORRECT_FROM:
            tau = max(rows[position + 1][1], before)
        else:
            known, since = current.pop(key, (LONG_AGO, LONG_AGO))
            tau = max(max(time, before) if time > known else max(time, before, after), since)
        taus.append(tau)
    return taus


def columns(rows):
    return [np.array([row[at] for row in rows], np.int64) for at in range(5)]


@given(changelogs())
def test_when_statements_begin_to_count(rows):
    ops, times, keys, before, after = columns(rows)
    found = effective_times(ops, times, before, after, keys, np.full(len(rows), NEVER))
    assert found.tolist() == by_hand(rows)


@given(changelogs())
def test_versions_end_when_superseded(rows):
    taus = by_hand(rows)
    speaks = [at for at, row in enumerate(rows) if row[0] != CORRECT_FROM]
    expected = [
        max(taus[at], min((taus[j] for j in speaks if rows[j][2] == rows[at][2] and j > at), default=NEVER))
        for at in speaks
    ]
    keys = np.array([rows[at][2] for at in speaks], np.int64)
    got = valid_until(keys, np.array(speaks, np.int64), np.array([taus[at] for at in speaks], np.int64),
                      np.full(len(speaks), NEVER))  # fmt: skip
    assert got.tolist() == expected


@given(st.lists(st.tuples(st.sampled_from([None, 0.0, -0.0, 2.5]), st.sampled_from([None, "", "x"]),
                          st.none() | st.lists(st.integers(0, 1), max_size=2)), max_size=12))  # fmt: skip
def test_codes_are_equal_for_equal_rows_alone(rows):
    number, text, numbers = zip(*rows, strict=True) if rows else ((), (), ())
    table = pa.table({"n": pa.array(number, pa.float64()), "s": pa.array(text, pa.string()),
                      "l": pa.array(numbers, pa.list_(pa.int64()))})  # fmt: skip
    codes = row_codes(table)
    values = [repr(row) for row in rows]
    assert [[a == b for b in codes] for a in codes] == [[a == b for b in values] for a in values]


# What is kept of rows that running aggregates have seen, with DuckDB in place of Spark for the one query over them.

KEYS = 20_000
TOTAL, LAST = WindowPart("sum", "bigint"), WindowPart("sum", "bigint", False, 3)


class Rows:
    """A query of one window right over some rows."""

    def __init__(self, keys, times, values, parts):
        columns = {"__odf_key0": keys, "__odf_order0": pa.array(times, pa.timestamp("us", "UTC"))}
        columns |= {f"__odf_part{at}": pa.array(values, pa.int64()) for at in range(len(parts))}
        self._stage = Stage(pa.table({**columns, "__odf_column0": values}), tuple(parts), ("asc nulls first",))

    def stage(self):
        return self._stage

    def fill(self, rows):
        self._rows = rows
        return self

    def result(self):
        return self._rows


@pytest.fixture
def advance(monkeypatch):
    """State and the values of rows, after rows (key, time, value) from one time on and before another."""
    monkeypatch.setattr(running_aggregates, "frame_of_rows", Frame)

    def run(state, rows, since, until, parts=(TOTAL, LAST)):
        keys, times, values = (list(each) for each in zip(*rows, strict=True))
        described, body = pack(state)
        former = unpack(described, memoryview(b"".join(body))).stored
        result, kept = run_over_history(Duck(), Rows(keys, times, values, parts), 1, former, since, until)
        rows = (tuple(row.values()) for row in result.to_pylist())
        return kept, sorted(rows, key=lambda row: [(value is not None, value) for value in row])

    return run


def rows_of(state):
    return sum(each.rows if isinstance(each, StoredTable) else each.num_rows for each in state.values())


def test_rows_go_on_from_what_was_kept(advance):
    state, first = advance({}, [("a", 1, 1), ("a", 2, 2), ("b", 2, 5), ("a", 9, 100)], None, 5)
    assert first == [(1, 1, 1), (2, 3, 3), (5, 5, 5)]
    state, second = advance(state, [("a", 2, 2), ("a", 9, 100), ("a", 10, 3), ("a", 11, 4)], 5, 20)
    assert second == [(3, 106, 106), (4, 110, 109), (100, 103, 103)]
    assert rows_of(state) == 4, "three of a, whose last rows alone count, and one of b"


def test_rows_at_one_time_count_for_each_other(advance):
    state, _ = advance({}, [("a", 1, 1)], None, 2, [TOTAL])
    _, rows = advance(state, [("a", 3, 10), ("a", 3, 20)], 2, 4, [TOTAL])
    assert rows == [(10, 31), (20, 31)]


def test_a_row_looks_back_to_one_that_an_earlier_transaction_wrote(advance):
    parts = [WindowPart("lag", "bigint", False, 2, 2), WindowPart("sum", "bigint", False, 3, 2, counts=True)]
    state, first = advance({}, [("a", 1, 1), ("a", 2, 2), ("a", 3, 3)], None, 4, parts)
    assert first == [(1, None, 0), (2, None, 0), (3, 1, 1)]
    _, second = advance(state, [("a", 5, 5), ("b", 6, 6)], 4, 9, parts)
    assert second == [(5, 2, 3), (6, None, 0)]


@pytest.mark.slow
@pytest.mark.parametrize("beside", [(), (LAST,)])
def test_the_first_value_of_a_key_stays_even_if_it_is_null(advance, beside):
    parts = [WindowPart("first_value", "bigint"), WindowPart("last_value", "bigint"), *beside]
    state = {}
    for time, value in enumerate((None, 7, 8, 9, 10, None)):
        state, rows = advance(state, [("a", time, value)], time, time + 1, parts)
        assert [row[1:3] for row in rows] == [(None, value)]


@pytest.mark.slow
def test_the_last_value_that_is_one_is_carried_on(advance):
    state, found = {}, []
    for time, value in enumerate((None, 7, None, None, 9, None)):
        parts = [
            WindowPart("last_value", "bigint", passes_nulls=True),
            WindowPart("first_value", "bigint", passes_nulls=True),
        ]
        state, ((*_, last, first),) = advance(state, [("a", time, value)], time, time + 1, parts)
        found.append((last, first))
    assert found == [(None, None), (7, 7), (7, 7), (7, 7), (9, 7), (9, 7)]


NULLS = (None, 7, None, None, 9, None, 4, None, None, 2)


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [range(1, 11), (1, 4, 5, 10), (10,)])
@pytest.mark.parametrize("beside", [(), (WindowPart("sum", "bigint", False, 5),)])
def test_the_last_and_the_first_values_that_are_none_null(advance, cuts, beside):
    """Two before its own, and the third of all, with nulls and without."""
    parts = [
        WindowPart("lag", "bigint", False, 2, 2, passes_nulls=True),
        WindowPart("nth_value", "bigint", place=3),
        WindowPart("nth_value", "bigint", passes_nulls=True, place=3),
        WindowPart("nth_value", "bigint", False, 3, place=2),
        *beside,
    ]
    state, found, since = {}, [], 0
    for until in cuts:
        rows = [("a", at, NULLS[at]) for at in range(since, until)] + [("b", since, 5)]
        state, got = advance(state, rows, since, until, parts)
        found += [row[1:5] for row in got if row[0] != 5]
        since = until
    expected = []
    for at in range(len(NULLS)):
        values = [[value for value in NULLS[:end] if value is not None] for end in (at, at + 1)]
        near = NULLS[max(0, at - 3) : at + 1]
        expected.append((
            values[0][-2] if len(values[0]) > 1 else None, NULLS[2] if at > 1 else None,
            values[1][2] if len(values[1]) > 2 else None, near[1] if len(near) > 1 else None,
        ))  # fmt: skip
    assert sorted(found, key=str) == sorted(expected, key=str)


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [range(1, 11), (1, 4, 5, 10), (2, 10), (10,)])
@pytest.mark.parametrize("until", [1, 2, 4])
@pytest.mark.parametrize("beside", [(), (WindowPart("sum", "bigint", False, 6),)])
def test_frames_of_all_rows_but_the_last(advance, cuts, until, beside):
    made = {"sum": {}, "count": {}, "max": {}, "first_value": {}, "last_value": {}, "nth_value": {"place": 3}}
    parts = [
        WindowPart("sum" if name == "count" else name, "bigint", False, None, until, counts=name == "count",
             passes_nulls=passes, **more)
        for name, more in made.items() for passes in ([False, True] if "value" in name else [False])
    ]  # fmt: skip
    state, found, since = {}, [], 0
    for number, until_row in enumerate(cuts):
        rows = [("a", at, NULLS[at]) for at in range(since, until_row)] + [("b", since, 5)]
        state, got = advance(state, rows, since, until_row, [*parts, *beside])
        found += [row[1:10] for row in got if row[0] != 5]
        assert rows_of(state) <= 2 * max(until + 3, 6), number
        since = until_row
    expected = []
    for at in range(len(NULLS)):
        seen = NULLS[: max(0, at + 1 - until)]
        told = [value for value in seen if value is not None]
        expected.append((
            sum(told) if told else None, sum(told), max(told, default=None),
            seen[0] if seen else None, told[0] if told else None, seen[-1] if seen else None,
            told[-1] if told else None, seen[2] if len(seen) > 2 else None, told[2] if len(told) > 2 else None,
        ))  # fmt: skip
    assert sorted(found, key=str) == sorted(expected, key=str)


@pytest.mark.slow
def test_state_does_not_grow_with_history(advance):
    state = {}
    for begin in range(0, 3000, 1000):
        rows = [("a", begin + at, at) for at in range(1000)]
        state, _ = advance(state, rows, begin, begin + 1000)
        assert rows_of(state) == 3


@pytest.mark.slow
def test_only_keys_at_hand_are_looked_at(advance, monkeypatch):
    keys = [f"k{number}" for number in range(KEYS)]
    state, _ = advance({}, list(zip(keys, range(KEYS), range(KEYS), strict=True)), None, KEYS, [TOTAL])
    opened, table = [], StoredTable.table
    monkeypatch.setattr(StoredTable, "table", lambda self: opened.append(self) or table(self))
    after, rows = advance(state, [("k7", KEYS, 1)], KEYS, KEYS + 1, [TOTAL])
    assert rows == [(1, 8)]
    assert len(opened) == 1 < len(state)
    assert rows_of(after) == KEYS


@pytest.mark.slow
def test_the_state_is_the_same_however_rows_came(advance):
    rng = np.random.default_rng(1)
    rows = [(f"k{key}", at, int(value)) for at, (key, value) in enumerate(rng.integers(0, 40, (500, 2)))]
    whole, together = advance({}, rows, None, 500)
    state, apart, since = {}, [], None
    for until in (3, 100, 101, 350, 500):
        state, some = advance(state, rows, since, until)
        since, apart = until, apart + some
    assert sorted(apart) == together
    assert pack(whole)[0] == pack(state)[0]


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_distinct_numbers(numbers: list[int]) -> None:
    assert distinct(np.array(numbers, np.int64)).tolist() == sorted(set(numbers))


# The pure parts of provenance: witnesses as numbers, what was missing, rows that reach a time, who ended whom.

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
