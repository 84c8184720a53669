"""Tables that change for ever: their history is that of the whole query at every tick. Engine semantics, section 3.

The oracle evaluates everything at each tick in Python, from the statements alone.
"""

from __future__ import annotations

import dataclasses
import os

import pytest

import engines.spark.tables as tables
import engines.spark.ticking as ticking
import engines.spark.transform as transform
from engines.contract import InvalidQuery
from engines.spark.facts import SliceReader
from engines.spark.queries import Analyst
from worlds.table_history import history, seen
from worlds.table_history import schedule as schedule_of

pytestmark = pytest.mark.engine
SEEDS = range(int(os.environ.get("ODF_SOAK", "1")))
BLOCKS = 10
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


def schedule(seed, aliases):
    return schedule_of(seed, aliases, BLOCKS)


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
