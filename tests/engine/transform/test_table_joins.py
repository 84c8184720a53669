"""Joins of tables, groups of groups, a table of one row: their history is that of the whole query at every tick.

The oracle evaluates everything at each tick in Python, from the statements alone.
Spec: docs/spec/engine-semantics.md#table-mode, #shapes, #classification.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict

import pytest

import engines.spark.catalyst.plans as plans
import engines.spark.execution.tables as tables
import engines.spark.state.files as buckets
from worlds.depth import first_now
from worlds.table_history import history, schedule, seen

pytestmark = pytest.mark.engine
SEEDS = range(int(os.environ.get("ODF_SOAK", "1")))
BLOCKS = 10


def by_input(query):
    query.by_input = True
    return query


def in_order(found):
    """Rows of each key by all columns, as they are written."""
    return {
        key: sorted(rows, key=lambda row: [(part is not None, part) for part in row]) for key, rows in found.items()
    }


@by_input
def inner(rows):
    found = defaultdict(list)
    for time, key, value in rows["a"]:
        found[(key,)] += [(time, key, value, other) for _, also, other in rows["b"] if also == key]
    return in_order(found)


@by_input
def left(rows):
    found = defaultdict(list)
    for time, key, value in rows["a"]:
        met = [other for _, also, other in rows["b"] if also == key and other > value]
        found[(key,)] += [(time, key, value, other) for other in met or [None]]
    return in_order(found)


@by_input
def right(rows):
    found = defaultdict(list)
    for time, key, value in rows["b"]:
        met = [other for _, also, other in rows["a"] if also == key]
        found[(key,)] += [(time, key, value, other) for other in met or [None]]
    return in_order(found)


@by_input
def semi(rows):
    known = {key for _, key, _ in rows["b"]}
    found = defaultdict(list)
    for row in rows["a"]:
        found[(row[1],)] += [row] if row[1] in known else []
    return in_order(found)


@by_input
def anti(rows):
    known = {key for _, key, _ in rows["b"]}
    found = defaultdict(list)
    for row in rows["a"]:
        found[(row[1],)] += [row] if row[1] not in known else []
    return in_order(found)


@by_input
def pairs(rows):
    return inner({"a": rows["a"], "b": rows["a"]})


@by_input
def grouped(rows):
    sides = [defaultdict(list), defaultdict(list)]
    for side, alias in zip(sides, "ab", strict=True):
        for row in rows[alias]:
            side[row[1]].append(row)
    return {
        (key,): [
            (max(row[0] for row in of), key, len(of), sum(row[2] for row in sides[1][key]) if sides[1][key] else None)
        ]
        for key, of in sides[0].items()
    }


def kinds(rows):
    by_key = defaultdict(set)
    for _, key, value in rows:
        by_key[key].add(value % 3)
    return {
        (key,): [(max(row[0] for row in rows if row[1] == key), key, len(of), max(of))] for key, of in by_key.items()
    }


def everything(rows):
    return {(): [(max(row[0] for row in rows), len(rows), sum(row[2] for row in rows))]} if rows else {}


GROUPED = """select x.t as event_time, x.k, c, s
from (select k, max(event_time) as t, count(*) as c from a group by k) x
left join (select k, sum(v) as s from b group by k) y on x.k = y.k"""
KINDS = """select k, max(t) as event_time, count(*) as c, max(m) as s
from (select k, v % 3 as m, max(event_time) as t from a group by k, v % 3) group by k"""

ALL = "select max(event_time) as event_time, count(*) as c, sum(v) as s from a"
CASES = {
    "inner": ("select a.event_time, a.k, a.v, b.v as w from a join b on a.k = b.k", inner, "ab",
              ("k", "v", "w"), False),
    "left": ("select a.event_time, a.k, a.v, b.v as w from a left join b on a.k = b.k and b.v > a.v", left, "ab",
             ("k", "v", "w"), False),
    "right": ("select b.event_time, b.k, b.v, a.v as w from a right join b on a.k = b.k", right, "ab",
              ("k", "v", "w"), False),
    "semi": ("select event_time, k, v from a left semi join b on a.k = b.k", semi, "ab", ("k", "v"), False),
    "anti": ("select event_time, k, v from a left anti join b on a.k = b.k", anti, "ab", ("k", "v"), False),
    "with itself": ("select x.event_time, x.k, x.v, y.v as w from a x join a y on x.k = y.k", pairs, "a",
                    ("k", "v", "w"), False),
    "of groups": (GROUPED, grouped, "ab", ("k", "c", "s"), True),
    "groups of groups": (KINDS, kinds, "a", ("k", "c", "s"), True),
    "all of a changelog": (ALL, everything, "a", ("c", "s"), True),
}  # fmt: skip


def streams_of(lab, aliases, seed):
    return {alias: lab.changing(f"{alias}{seed}", 40 * seed + at, BLOCKS) for at, alias in enumerate(aliases, 1)}


@pytest.fixture(autouse=True)
def _small_buckets(monkeypatch):
    """So that keys lie in several, which are split and put together."""
    monkeypatch.setattr(buckets, "BUCKET", 2)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_a_join_s_history_is_that_of_the_whole_query(lab, name, seed):
    sql, query, aliases, names, single = CASES[name]
    streams = streams_of(lab, aliases, seed)
    expected = history(lab, streams, query, single)
    assert {row[0] for row in expected} >= ({0, 2, 3} if single else {0, 1})
    pieces = lab.run(sql, streams, schedule(seed, streams, BLOCKS), restart=True, changelogs=aliases)
    whole = lab.run(sql, streams, [dict.fromkeys(streams, BLOCKS)], changelogs=aliases)
    assert seen(pieces, names) == expected
    assert (whole.rows, whole.state, whole.watermark) == (pieces.rows, pieces.state, pieces.watermark)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_row_of_all_that_ever_came_is_merged(lab, seed):
    streams = {"a": lab.stream(300 * seed + 1, days=30, blocks=BLOCKS)}
    got = lab.run(ALL, streams, schedule(seed, streams, BLOCKS), restart=True)
    assert seen(got, ("c", "s")) == history(lab, streams, everything)
    assert re.search(rb'"name":"written/\w+/","rows":1,', got.state)


def rounds_mixed(monkeypatch):
    """Rows of one tick meet those of others."""
    kept = plans._join

    def mutant(session, plan, children, names):
        _, hidden = kept(session, plan, children, names)
        return plan.withNewChildren(children), hidden

    monkeypatch.setattr(plans, "_join", mutant)


def one_side_unseen(monkeypatch):
    """A key is affected only by what happens in the first input."""
    kept = tables._common_codes
    monkeypatch.setattr(tables, "_common_codes", lambda keys: [
        codes if not at else codes + 10**6 for at, codes in enumerate(kept(keys))])  # fmt: skip


@pytest.mark.parametrize("mutate", first_now([rounds_mixed, one_side_unseen]))
def test_a_broken_join_is_caught(lab, monkeypatch, mutate):
    mutate(monkeypatch)
    try:
        test_a_join_s_history_is_that_of_the_whole_query(lab, "inner", 0)
    except AssertionError:
        return
    raise AssertionError("the broken engine gave the right answers")
