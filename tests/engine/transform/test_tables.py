"""Tables that change for ever: their history is that of the whole query at every tick. Engine semantics, section 3.

The oracle evaluates everything at each tick in Python, from the statements alone.
"""

from __future__ import annotations

import dataclasses
import os
import random

import pytest

import engines.spark.tables as tables
import engines.spark.ticking as ticking
import engines.spark.transform as transform
from engines.contract import InvalidQuery
from engines.spark.facts import SliceReader
from engines.spark.queries import Analyst

pytestmark = pytest.mark.engine
SEEDS = range(int(os.environ.get("ODF_SOAK", "1")))
BLOCKS = 10
FAR = 2**62
GROUPED = "select k, max(event_time) as event_time, sum(v) as s, count(*) as c from a group by k"
DISTINCT_COUNT = "select k, max(event_time) as event_time, count(distinct v % 3) as s, count(*) as c from a group by k"
OF_TWO = """select k, max(event_time) as event_time, sum(v) as s, count(*) as c
from (select event_time, k, v from a union all select event_time, k, v from b) group by k"""
TOP = """select event_time, k, v from (
  select event_time, k, v, row_number() over (partition by k order by v desc, event_time) as n from a) where n <= 2"""


def sums(rows, value=sum):
    by_key = {}
    for time, key, number in rows:
        by_key.setdefault(key, []).append((time, number))
    return {
        (key,): [(max(time for time, _ in found), key, value([v for _, v in found]), len(found))]
        for key, found in by_key.items()
    }


def kinds(rows):
    return sums(rows, lambda numbers: len({number % 3 for number in numbers}))


def best(rows):
    by_key = {}
    for row in rows:
        by_key.setdefault((row[1],), []).append(row)
    return {key: sorted(sorted(found, key=lambda row: (-row[2], row[0]))[:2], key=lambda row: (row[0], row[2]))
            for key, found in by_key.items()}  # fmt: skip


def standing(lab, stream):
    """(row, from, until) by the rules of 5.1 and 5.2, statement by statement."""
    said = [each for each in lab.statements(stream) if each[0] is not None]
    found, open_rows = [], {}
    for position, (time, key, value, op, before, after) in enumerate(said):
        row = (time, key, value)
        if op in (0, 3):
            found.append([row, max(time, before), FAR])
            open_rows.setdefault(row, []).append(found[-1])
        elif open_rows.get(row):
            gone = open_rows[row].pop(0)
            tau = max(said[position + 1][0], before) if op == 2 else max(time, before, after)
            gone[2] = max(gone[1], tau)
    return found


def history(lab, streams, query, single=True):
    """(op, *row) in order."""
    rows = [each for stream in streams.values() for each in standing(lab, stream)]
    marks = {b.watermark_after // 10**6 for s in streams.values() for b in s.blocks if b.watermark_after is not None}
    reached = min(stream.blocks[-1].watermark_after // 10**6 for stream in streams.values())
    known, out = {}, []
    for tick in sorted(mark for mark in marks if mark <= reached):
        now = query([row for row, since, until in rows if since < tick <= until])
        for key in sorted(set(known) | set(now), key=lambda key: tuple((part is not None, part or "") for part in key)):
            old, new = list(known.get(key, [])), list(now.get(key, []))
            same = [row for row in old if row in new and not new.remove(row)]
            for row in same:
                old.remove(row)
            paired = single and old and new
            out += [(2 if paired else 1, *row) for row in old] + [(3 if paired else 0, *row) for row in new]
        known = now
    return out


def schedule(seed, aliases):
    rng, left, takes = random.Random(seed), dict.fromkeys(aliases, BLOCKS), []
    while any(left.values()):
        step = {alias: min(count, rng.choice([0, 1, 2, 5])) for alias, count in left.items()}
        left = {alias: count - step[alias] for alias, count in left.items()}
        takes.append(step)
    return takes


def seen(got, names):
    got.data()
    return [(row["op"], int(row["event_time"].timestamp() * 1000), *(row[name] for name in names)) for row in got.rows]


CASES = {
    "grows": (GROUPED, ("a",), (), sums, ("k", "s", "c")),
    "grows, of two": (OF_TWO, ("a", "b"), (), sums, ("k", "s", "c")),
    "changes": (DISTINCT_COUNT, ("a",), ("a",), kinds, ("k", "s", "c")),
    "one of two changes": (OF_TWO, ("a", "b"), ("b",), sums, ("k", "s", "c")),
    "top two of a key": (TOP, ("a",), ("a",), best, ("k", "v")),
}


def case(lab, name, seed):
    sql, aliases, changing, query, names = CASES[name]
    streams = {
        alias: lab.changing(f"{alias}{seed}", seed + at, BLOCKS)
        if alias in changing
        else lab.stream(300 * seed + at, days=30, blocks=BLOCKS)
        for at, alias in enumerate(aliases, 1)
    }
    return sql, streams, changing, history(lab, streams, query, name != "top two of a key"), names


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_a_table_s_history_is_that_of_the_whole_query(lab, name, seed):
    sql, streams, changing, expected, names = case(lab, name, seed)
    assert expected
    pieces = lab.run(sql, streams, schedule(seed, streams), restart=True, changelogs=changing)
    whole = lab.run(sql, streams, [dict.fromkeys(streams, BLOCKS)], changelogs=changing)
    assert seen(pieces, names) == expected
    assert whole.rows == pieces.rows
    assert whole.state == pieces.state, "state must be a function of the cut"
    assert pieces.watermark == whole.watermark


def one_tick_per_transaction(monkeypatch):
    planned = ticking.plan_table

    def mutant(inputs, previous):
        step, table, waiting = planned(inputs, previous)
        return step, dataclasses.replace(table, ticks=table.ticks[-1:]), waiting

    monkeypatch.setattr(transform, "plan_table", mutant)


def nothing_merged(monkeypatch):
    monkeypatch.setattr(tables, "_merged", lambda session, shape, parts: parts)


def no_cancellation(monkeypatch):
    monkeypatch.setattr(tables, "cancelled_by", lambda codes, ops: (tables.np.full(len(ops), -1), None))


def key_before_tick(monkeypatch):
    kept = tables.differences

    def mutant(rows, of, rounds, keys, single):
        changed, ops = kept(rows, of, rounds, keys, single)
        order = sorted(range(changed.num_rows), key=lambda at: str(changed.column("k")[at]))
        return changed.take(order), ops[order]

    monkeypatch.setattr(tables, "differences", mutant)


@pytest.mark.parametrize(
    ("mutate", "name"),
    [
        (one_tick_per_transaction, "grows"),
        (nothing_merged, "grows"),
        (no_cancellation, "changes"),
        (key_before_tick, "grows"),
    ],
)
def test_a_broken_engine_is_caught(lab, monkeypatch, mutate, name):
    mutate(monkeypatch)
    for seed in range(3):
        sql, streams, changing, expected, names = case(lab, name, seed)
        try:
            if seen(lab.run(sql, streams, schedule(seed, streams), changelogs=changing), names) != expected:
                return
        except AssertionError:
            return
    raise AssertionError("the broken engine gave the right answers")


def test_what_would_need_all_history_is_refused(lab):
    stream = lab.stream(1, days=3, blocks=1)
    answer, _, _ = lab.transact(DISTINCT_COUNT, stream.blocks, None, 0, transform.Workbench(Analyst(), SliceReader()))
    assert isinstance(answer, InvalidQuery)
    assert "history-per-key" in answer.message
