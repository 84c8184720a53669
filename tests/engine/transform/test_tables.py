"""The history of a table is that of the whole query at every tick; of joins, groups of groups, and statements too."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import os
import re
from collections import Counter, defaultdict

import pytest

import engines.spark.catalyst.plans as plans
import engines.spark.execution.tables as tables
import engines.spark.execution.transform as transform
import engines.spark.planning.table_transaction as ticking
import engines.spark.state.files as arranged
import engines.spark.state.files as buckets
from conformance.histories import few_at_a_time
from worlds.depth import caught, first_now, stride
from worlds.table_history import FAR, history, seen, standing

# Tables that change for ever: their history is that of the whole query at every tick. The oracle evaluates everything
# at each tick in Python, from the statements alone. Spec: docs/spec/engine-semantics.md#table-mode.


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
    pieces = lab.run(sql, streams, few_at_a_time(BLOCKS, seed, streams), restart=True, changelogs=changing)
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
    parts, scanned = few_at_a_time(BLOCKS, 1, streams), []
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
    pieces = lab.run(said, streams, few_at_a_time(BLOCKS, seed, streams), restart=True, changelogs=changing)
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

    def wrong(seed):
        sql, streams, changing, expected, names = case(lab, name, seed)
        return seen(lab.run(sql, streams, few_at_a_time(BLOCKS, seed, streams), changelogs=changing), names) != expected

    caught(wrong, range(3))


# Joins of tables, groups of groups, a table of one row: their history is that of the whole query at every tick. The
# oracle evaluates everything at each tick in Python, from the statements alone. Spec:
# docs/spec/engine-semantics.md#table-mode, #shapes, #classification.


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


def kinds_of_kinds(rows):
    by_key = defaultdict(set)
    for _, key, value in rows:
        by_key[key].add(value % 3)
    return {
        (key,): [(max(row[0] for row in rows if row[1] == key), key, len(of), max(of))] for key, of in by_key.items()
    }


def everything(rows):
    return {(): [(max(row[0] for row in rows), len(rows), sum(row[2] for row in rows))]} if rows else {}


JOINED_GROUPS = """select x.t as event_time, x.k, c, s
from (select k, max(event_time) as t, count(*) as c from a group by k) x
left join (select k, sum(v) as s from b group by k) y on x.k = y.k"""
KINDS = """select k, max(t) as event_time, count(*) as c, max(m) as s
from (select k, v % 3 as m, max(event_time) as t from a group by k, v % 3) group by k"""
ALL = "select max(event_time) as event_time, count(*) as c, sum(v) as s from a"
JOINS = {
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
    "of groups": (JOINED_GROUPS, grouped, "ab", ("k", "c", "s"), True),
    "groups of groups": (KINDS, kinds_of_kinds, "a", ("k", "c", "s"), True),
    "all of a changelog": (ALL, everything, "a", ("c", "s"), True),
}  # fmt: skip


def changing_streams(lab, aliases, seed):
    return {alias: lab.changing(f"{alias}{seed}", 40 * seed + at, BLOCKS) for at, alias in enumerate(aliases, 1)}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", JOINS)
def test_a_join_s_history_is_that_of_the_whole_query(lab, name, seed):
    sql, query, aliases, names, single = JOINS[name]
    streams = changing_streams(lab, aliases, seed)
    expected = history(lab, streams, query, single)
    assert {row[0] for row in expected} >= ({0, 2, 3} if single else {0, 1})
    pieces = lab.run(sql, streams, few_at_a_time(BLOCKS, seed, streams), restart=True, changelogs=aliases)
    whole = lab.run(sql, streams, [dict.fromkeys(streams, BLOCKS)], changelogs=aliases)
    assert seen(pieces, names) == expected
    assert (whole.rows, whole.state, whole.watermark) == (pieces.rows, pieces.state, pieces.watermark)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_row_of_all_that_ever_came_is_merged(lab, seed):
    streams = {"a": lab.stream(300 * seed + 1, days=30, blocks=BLOCKS)}
    got = lab.run(ALL, streams, few_at_a_time(BLOCKS, seed, streams), restart=True)
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
    caught(lambda seed: test_a_join_s_history_is_that_of_the_whole_query(lab, "inner", seed), [0])


# Two readings of an input: facts that stand, or every statement an event with its ``op``. Spec:
# docs/spec/engine-semantics.md#readings, #output.


LOG = "set odf.read.a = 'log';\n"
COUNTED = "select k, max(event_time) as event_time, sum(op) as s, count(*) as c from a group by k"


class Events:
    """A laboratory in which nothing is ever taken back."""

    def __init__(self, lab):
        self.lab = lab

    def statements(self, stream):
        for time, key, value, op, before, after in self.lab.statements(stream):
            yield time, key, (value, op), 0, before, after


def ops(rows):
    by_key = {}
    for time, key, (_, op) in rows:
        by_key.setdefault((key,), []).append((time, op))
    return {key: [(max(time for time, _ in found), *key, sum(op for _, op in found), len(found))]
            for key, found in by_key.items()}  # fmt: skip


def said(lab, stream):
    return [(op, time, key, value) for time, key, value, op, *_ in lab.statements(stream)]


def both_ways(lab, sql, streams):
    pieces = lab.run(sql, streams, few_at_a_time(BLOCKS, 3, streams), restart=True, changelogs=["a"])
    whole = lab.run(sql, streams, [{"a": BLOCKS}], changelogs=["a"])
    assert (pieces.rows, pieces.state, pieces.watermark) == (whole.rows, whole.state, whole.watermark)
    return pieces


@pytest.fixture
def streams(lab):
    return {"a": lab.changing("a", 3, BLOCKS)}


def test_events_pass_as_additions_or_with_the_op_that_is_selected(lab, streams):
    statements = said(lab, streams["a"])
    assert {op for op, *_ in statements} == {0, 1, 2, 3}
    plain = both_ways(lab, LOG + "select event_time, k, v from a", streams)
    assert seen(plain, ("k", "v")) == [(0, *row) for _, *row in statements]
    stated = both_ways(lab, LOG + "select * from a where v % 3 <> 0", streams)
    assert seen(stated, ("k", "v")) == [row for row in statements if row[3] % 3], "what is said is not mended"
    assert "op" in stated.slices[0].column_names
    turned = both_ways(lab, LOG + "select event_time, k, v, if(op = 1, 1, 0) as op from a", streams)
    assert seen(turned, ("k", "v")) == [(int(op == 1), *row) for op, *row in statements]


def test_a_table_of_events_is_merged_and_never_taken_back(lab, streams):
    expected = history(Events(lab), streams, ops)
    got = both_ways(lab, LOG + COUNTED, streams)
    assert seen(got, ("k", "s", "c")) == expected
    assert b'"name":"written/' in got.state


def test_windows_of_events_have_ops_as_numbers(lab, streams):
    sql = LOG + "select date_trunc('day', event_time) as event_time, op as what, count(*) as c from a group by 1, 2"
    expected = Counter()
    for time, _, _, op, before, _ in lab.statements(streams["a"]):
        if time // DAY >= before // DAY:
            expected[time // DAY * DAY, op] += 1
    bound = streams["a"].blocks[-1].watermark_after // 10**6 // DAY * DAY
    got = both_ways(lab, sql, streams)
    assert seen(got, ("what", "c")) == [(0, *key, count) for key, count in sorted(expected.items()) if key[0] < bound]
