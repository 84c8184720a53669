"""Tables that change for ever: their history is that of the whole query at every tick.

The oracle evaluates everything at each tick in Python, from the statements alone.
Spec: docs/spec/engine-semantics.md#table-mode.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import os

import pytest

import engines.spark.execution.tables as tables
import engines.spark.execution.transform as transform
import engines.spark.planning.table_transaction as ticking
import engines.spark.state.files as arranged
import engines.spark.state.files as buckets
from worlds.depth import first_now, stride
from worlds.table_history import FAR, history, seen, standing
from worlds.table_history import schedule as schedule_of

pytestmark = pytest.mark.engine
SEEDS = range(int(os.environ.get("ODF_SOAK", "1")))
BLOCKS = 10
DAY = 86_400_000
GROUPED = "select k, max(event_time) as event_time, sum(v) as s, count(*) as c from a group by k"
DISTINCT_COUNT = "select k, max(event_time) as event_time, count(distinct v % 3) as s, count(*) as c from a group by k"
OF_TWO = """select k, max(event_time) as event_time, sum(v) as s, count(*) as c
from (select event_time, k, v from a union all select event_time, k, v from b) group by k"""
COMPUTED = """with t as (select concat('key ', k) as key, v, event_time from a where k is not null)
select key as name, max(event_time) as event_time, sum(v) * 2 + 1 as s, sum(v) div count(*) as share
from t group by key"""
FILTERED = """select k, max(event_time) as event_time, count(*) as c
from (select event_time, k, v from a union all select event_time, k, v from b)
group by k having count(*) > 2 and sum(v) % 2 = 1"""
OF_ALL = "select max(event_time) as event_time, concat(count(*), ' rows') as s from a"
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


def computed(rows):
    return {
        (f"key {key}",): [(time, f"key {key}", v * 2 + 1, v // count if v >= 0 else -(-v // count))]
        for [(time, key, v, count)] in sums([row for row in rows if row[1] is not None]).values()
    }


def filtered(rows):
    return {key: [(time, k, c)] for key, [(time, k, v, c)] in sums(rows).items() if c > 2 and v % 2}


def of_all(rows):
    return {(): [(max(row[0] for row in rows), f"{len(rows)} rows")]} if rows else {}


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
    "computed": (COMPUTED, ("a",), (), computed, ("name", "s", "share")),
    "filtered": (FILTERED, ("a", "b"), (), filtered, ("k", "c")),
    "of all": (OF_ALL, ("a",), (), of_all, ("s",)),
    "changes": (DISTINCT_COUNT, ("a",), ("a",), kinds, ("k", "s", "c")),
    "one of two changes": (OF_TWO, ("a", "b"), ("b",), sums, ("k", "s", "c")),
    "top two of a key": (TOP, ("a",), ("a",), best, ("k", "v")),
}


def streams_of(lab, aliases, changing, seed):
    return {
        alias: lab.changing(f"{alias}{seed}", seed + at, BLOCKS)
        if alias in changing
        else lab.stream(300 * seed + at, days=30, blocks=BLOCKS)
        for at, alias in enumerate(aliases, 1)
    }


def case(lab, name, seed):
    sql, aliases, changing, query, names = CASES[name]
    streams = streams_of(lab, aliases, changing, seed)
    return sql, streams, changing, history(lab, streams, query, name != "top two of a key"), names


@pytest.fixture(autouse=True)
def _small_buckets(monkeypatch):
    """So that keys lie in several, which are split and put together."""
    monkeypatch.setattr(buckets, "BUCKET", 2)


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


@pytest.mark.parametrize(
    ("said", "name"),
    [*itertools.product(["", "set odf.tick = '1 day';"], ["grows, of two", "computed", "of all"])][:: stride()],
)
def test_slices_that_spark_reads_by_itself_make_the_same_history(lab, monkeypatch, name, said):
    """Large ones do; rows of such a slice that do not count yet still wait."""
    sql, streams, _, _, _ = case(lab, name, 0)
    parts, scanned = schedule(1, streams), []
    kept = transform.scan_rows
    monkeypatch.setattr(transform, "scan_rows", lambda *given: scanned.extend(given[1]) or kept(*given))
    read = lab.run(said + sql, streams, parts, restart=True)
    assert not scanned, "all are small"
    monkeypatch.setattr(tables, "SCANNED", 0)
    for ticks in (tables.MAX_TICKS, 1):
        monkeypatch.setattr(tables, "MAX_TICKS", ticks)
        by_spark = lab.run(said + sql, streams, parts, restart=True)
        assert by_spark.rows == read.rows
        assert by_spark.state == read.state
        assert by_spark.watermark == read.watermark
    assert scanned


def month_after(time):
    date = dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=time)
    later = (date.replace(day=1, hour=0, minute=0, second=0, microsecond=0) + dt.timedelta(days=32)).replace(day=1)
    return int((later - dt.datetime(1970, 1, 1)) / dt.timedelta(milliseconds=1))


GRIDS = {
    "event": lambda time: time + 1,
    "1 day": lambda time: (time // DAY + 1) * DAY,
    "2 weeks": lambda time: ((time - 4 * DAY) // (14 * DAY) + 1) * 14 * DAY + 4 * DAY,
    "month": month_after,
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "grid"),
    [
        ("changes", "event"),
        ("grows, of two", "event"),
        ("changes", "1 day"),
        ("grows, of two", "month"),
        ("one of two changes", "2 weeks"),
    ],
)
def test_a_table_is_looked_at_when_its_author_says(lab, name, grid, seed):
    sql, aliases, changing, query, names = CASES[name]
    streams = streams_of(lab, aliases, changing, seed)
    expected = history(lab, streams, query, following=GRIDS[grid])
    assert expected or grid == "month"
    said = f"set odf.tick = '{grid}';\n{sql}"
    pieces = lab.run(said, streams, schedule(seed, streams), restart=True, changelogs=changing)
    whole = lab.run(said, streams, [dict.fromkeys(streams, BLOCKS)], changelogs=changing)
    assert seen(pieces, names) == expected
    assert (whole.rows, whole.state, whole.watermark) == (pieces.rows, pieces.state, pieces.watermark)
    slowest = min(stream.blocks[-1].watermark_after // 10**6 for stream in streams.values())
    place = whole.watermark // 10**6
    assert place <= slowest < GRIDS[grid](place)


@pytest.mark.parametrize("tick", ["watermark", "event"][:: stride()])
def test_a_catch_up_over_a_thousand_ticks_is_bounded(lab, monkeypatch, tick):
    """catch-up-1000-ticks: all at once or one by one, and never many rows in memory."""
    streams = {"a": lab.changing("many", 5, 1000)}
    most, rows = 5_000, []
    monkeypatch.setattr(tables, "MAX_ROUND_ROWS", most)
    kept = transform.Transaction._evaluate

    def counted(transaction, given):
        rows.append(sum(table.num_rows for table in given.values()))
        return kept(transaction, given)

    monkeypatch.setattr(transform.Transaction, "_evaluate", counted)
    following = None if tick == "watermark" else GRIDS[tick]
    expected = history(lab, streams, kinds, following=following)
    got = lab.run(f"set odf.tick = '{tick}';" + DISTINCT_COUNT, streams, [{"a": 1000}], changelogs=["a"])
    assert seen(got, ("k", "s", "c")) == expected
    assert len(expected) > 1000
    standing_rows = sum(until == FAR for *_, until in standing(lab, streams["a"]))
    assert max(rows) < most + 3 * standing_rows, "a stretch, and what stood before it, and one tick more"
    assert sum(rows) > 8 * max(rows)


@pytest.mark.parametrize(
    ("sql", "changelogs"), [(GROUPED, ()), (DISTINCT_COUNT, ("a",)), (TOP, ("a",))], ids=["merged", "anew", "top"]
)
def test_a_transaction_costs_its_keys_and_not_the_table(lab, monkeypatch, sql, changelogs):
    """Rows read of the state, and rows that the query sees, for five rows on a table of 1,000 keys and of 8,000."""
    monkeypatch.setattr(buckets, "BUCKET", 64)
    read, seen_rows = [], []
    table, plan_over = arranged.StoredTable.table, transform.Transaction._plan_over

    def counted(transaction, given, scans):
        seen_rows.append(sum(each.num_rows for each in given.values()))
        assert not any(scans.values())
        return plan_over(transaction, given, scans)

    monkeypatch.setattr(arranged.StoredTable, "table", lambda self: read.append(self.rows) or table(self))
    monkeypatch.setattr(transform.Transaction, "_plan_over", counted)
    for keys in (1_000, 8_000):
        first = [(DAY, f"key {number}", number) for number in range(keys)]
        more = [(2 * DAY, f"key {number * 150}", number) for number in range(5)]
        streams = {"a": lab.given(f"cost-{keys}", [(first, 2 * DAY), (more, 3 * DAY), ([], 4 * DAY)])}
        read.clear()
        seen_rows.clear()
        got = lab.run(sql, streams, [{"a": 1}, {"a": 1}, {"a": 1}], changelogs=changelogs)
        assert got.rows[-1]["k"] == "key 600"
        assert sum(read) <= 5 * 64 + 10, "buckets of five keys, and the five rows while they wait"
        assert sorted(seen_rows)[:-1] in ([5], [15]), "what stands of five keys, before and after"


@pytest.mark.parametrize("sql", [GROUPED, COMPUTED], ids=["values", "parts"])
def test_only_parts_that_meet_are_summed_up(lab, monkeypatch, sql):
    """What is new of 500 keys is their sum; five of them get more, which meets what was kept."""
    met, merged = [], tables._merge_parts
    monkeypatch.setattr(tables, "_merge_parts", lambda *given: met.append(given[-1].num_rows) or merged(*given))
    first = [(DAY, f"key {number}", number) for number in range(500)]
    more = [(2 * DAY, f"key {number * 100}", number) for number in range(5)]
    streams = {"a": lab.given("parts", [(first, 2 * DAY), (more, 3 * DAY), ([], 4 * DAY)])}
    got = lab.run(sql, streams, [{"a": 1}, {"a": 1}, {"a": 1}])
    assert len(got.rows) == 500 + 2 * 5
    assert met == [2 * 5]


def one_tick_per_transaction(monkeypatch):
    planned = ticking.plan_table

    def mutant(*given):
        step, table, waiting = planned(*given)
        return step, dataclasses.replace(table, ticks=table.ticks[-1:]), waiting

    monkeypatch.setattr(transform, "plan_table", mutant)


def nothing_merged(monkeypatch):
    monkeypatch.setattr(tables, "_merge_parts", lambda session, merge, keys, parts: parts)


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
    first_now(
        [
            (one_tick_per_transaction, "grows"),
            (nothing_merged, "grows"),
            (no_cancellation, "changes"),
            (key_before_tick, "grows"),
        ]
    ),
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


@pytest.mark.parametrize(("sql", "changelogs"), [(GROUPED, ()), (DISTINCT_COUNT, ("a",))], ids=["merged", "anew"])
def test_a_transaction_may_bring_rows_of_which_none_passes(lab, sql, changelogs):
    sql = sql.replace("from a", "from a where v > 10")
    first, none, more = ([(at * DAY, "k", v)] for at, v in ((1, 11), (2, 5), (3, 12)))
    streams = {"a": lab.given("none", [(none, 2 * DAY), (first, 3 * DAY), (none, 4 * DAY), (more, 5 * DAY)])}
    got = lab.run(sql, streams, [{"a": 1}] * 4, changelogs=changelogs)
    assert [(row["op"], row["c"]) for row in got.rows] == [(0, 1), (2, 1), (3, 2)]
