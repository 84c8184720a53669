"""Columns against a person with a pencil: each rule of changelogs once more, statement by statement."""

from __future__ import annotations

from collections import defaultdict, deque

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from chain.data.operations import APPEND, CORRECT_FROM, CORRECT_TO, RETRACT
from engines.spark.rows.changelog import LONG_AGO, NEVER, cancelled_by, effective_times, row_codes, valid_until

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
