"""The shapes that the law is tried on: a text, histories to run it over, and the oracle's own words for what comes out.

``{h}`` in a text is where hidden columns ride along under DuckDB; for Spark it is nothing. A shape whose text DuckDB
does not speak has a second one. ``lows`` say in plain arithmetic what the engine has to find out from the plan: the
least output time that a row of each occurrence of an input can touch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import xor
from typing import Any

from chain.model.source import SqlQueryStep, TemporalTable, TransformSql
from conformance import oracles
from conformance.duck import Duck
from conformance.histories import DAY, HOUR, Histories, Maker, Said, careless, changes, grows, moves
from conformance.oracles import Expected, Fact, Low, day, days, local_day, month, next_month, same

Oracle = Callable[[Duck, "Case", Histories], Expected]


@dataclass(frozen=True)
class Case:
    """A shape."""

    name: str
    text: str
    inputs: Mapping[str, Maker]
    oracle: Oracle
    duck: str = ""
    """Its text in DuckDB's words, if others."""
    head: str = ""
    """Declarations."""
    before: tuple[tuple[str, str], ...] = ()
    """Named queries before the last."""
    changelogs: tuple[str, ...] = ()
    temporal: tuple[str, ...] = ()
    lows: Mapping[str, Sequence[Low]] = field(default_factory=dict)

    @property
    def sql(self) -> TransformSql:
        steps = [SqlQueryStep(alias=alias, query=text) for alias, text in (*self.before, ("", self.text))]
        texts = [step.query.replace("{h}", "") for step in steps]
        queries = tuple(
            SqlQueryStep(alias=step.alias or None, query=text) for step, text in zip(steps, texts, strict=True)
        )
        first = SqlQueryStep(alias=queries[0].alias, query=self.head + queries[0].query)
        tables = tuple(TemporalTable(name=name, primary_key=("k",)) for name in self.temporal)
        return TransformSql(engine="spark", queries=(first, *queries[1:]), temporal_tables=tables or None)

    @property
    def ducks(self) -> list[tuple[str, str]]:
        """(alias, text) of all queries for DuckDB."""
        return [*self.before, ("", self.duck or self.text)]

    @property
    def dialect(self) -> dict[str, str]:
        """DuckDB's text for each of Spark's."""
        last = {self.text.replace("{h}", "").strip(): self.duck or self.text}
        return {**{text.replace("{h}", "").strip(): text for _, text in self.before}, **last}

    def histories(self, rng: random.Random) -> dict[str, tuple[Any, ...]]:
        return {alias: make(rng) for alias, make in self.inputs.items()}

    def expected(self, duck: Duck, histories: Histories) -> Expected:
        return self.oracle(duck, self, histories)


def final_oracle(duck: Duck, case: Case, histories: Histories) -> Expected:
    return oracles.final(duck, case.ducks, histories, case.lows)


def _one(name: str, text: str, low: Low | Sequence[Low], duck: str = "", **more: Any) -> Case:
    """A shape of final mode over one input."""
    lows = {"a": (low,) if callable(low) else tuple(low)}
    return Case(name, text, {"a": grows}, final_oracle, duck, lows=lows, **more)


def _two(name: str, text: str, a: Low, b: Low, duck: str = "", **more: Any) -> Case:
    return Case(name, text, {"a": grows, "b": grows}, final_oracle, duck, lows={"a": (a,), "b": (b,)}, **more)


_DAYS = (
    "select time_bucket(interval '1' day, event_time) as event_time, k, sum(v) as s, count(*) as c from a group by 1, 2"
)
_DAILY = "select time_bucket(interval '1' day, event_time) as event_time, sum(v) as s from {} group by 1"
SESSIONS = """select e{key}, sum(v) as s from (
  select event_time{key}, v, max(event_time) over (partition by n{key}) + interval '{gap}' as e from (
    select *, sum(begins) over (partition by 0{key} order by event_time range unbounded preceding) as n from (
      select *, case when event_time - lag(event_time) over (partition by 0{key} order by event_time)
        <= interval '{gap}' then 0 else 1 end as begins from {rows}))) group by e{key}"""


FINAL = (
    _one(
        "bucket-day",
        _DAYS,
        day,
    ),
    _one(
        "window-day",
        "select window(event_time, '1 day').start as event_time, k, min(v) as low, max(v) as high "
        "from a group by window(event_time, '1 day'), k",
        day,
        "select time_bucket(interval '1' day, event_time) as event_time, k, min(v) as low, max(v) as high "
        "from a group by 1, 2",
    ),
    _one(
        "bucket-month",
        "select time_bucket(interval '1' month, event_time) as event_time, k, count(distinct v) as c "
        "from a group by 1, 2",
        month,
    ),
    _one(
        "quarter",
        "select date_trunc('quarter', event_time) as event_time, sum(cast(v as decimal(20, 2))) as s from a group by 1",
        lambda time: month(time, 3),
    ),
    _one(
        "two-paths",
        "select event_time, sum(v) as s from ("
        "  select time_bucket(interval '1' day, event_time) as event_time, v from a union all"
        "  select time_bucket(interval '1' day, event_time) + interval '2' day, v from a) group by 1",
        day,
    ),
    _one(
        "months-and-days",
        "select event_time, sum(v) as s from ("
        "  select time_bucket(interval '1' month, event_time) as event_time, v from a union all"
        "  select time_bucket(interval '1' day, event_time), v from a) group by 1",
        (month, day),
    ),
    _one(
        "overlapping",
        "select window(event_time, '1 day', '6 hours').end as event_time, k, sum(v) as s "
        "from a group by window(event_time, '1 day', '6 hours'), k",
        lambda time: time // (DAY // 4) * (DAY // 4) + DAY // 4,
        "select w + interval '1' day as event_time, k, sum(v) as s from (select *, unnest(generate_series("
        "time_bucket(interval '6 hours', event_time) - interval '18 hours', "
        "time_bucket(interval '6 hours', event_time), interval '6 hours')) as w from a) group by w, k",
    ),
    _one(
        "next-month",
        "select event_time + interval '1' month as event_time, sum(v) as s, count(*) as c from a group by 1",
        next_month,
    ),
    _one(
        "month-of-weeks",
        "select time_bucket(interval '1' month, d) as event_time, max(s) as m, count(*) as c from ("
        "  select time_bucket(interval '7' day, event_time, timestamp '1970-01-05 00:00:00') as d, k, sum(v) as s"
        "  from a group by 1, 2) group by 1",
        lambda time: month((time - 4 * DAY) // (7 * DAY) * 7 * DAY + 4 * DAY),
    ),
    _one(
        "five-days",
        "select time_bucket(interval '5' day, event_time) as event_time, k, count(*) as c from a group by 1, 2",
        days(5),
        "select time_bucket(interval '5' day, event_time, timestamp '1970-01-01') as event_time, k, count(*) as c "
        "from a group by 1, 2",
    ),
    _one(
        "rank-of-months",
        "select event_time, k, s from (select event_time, k, s,"
        "  row_number() over (partition by event_time order by s desc, k nulls first) as n from ("
        "  select time_bucket(interval '1' month, event_time) as event_time, k, sum(v) as s from a group by 1, 2)) "
        "where n <= 2",
        month,
    ),
    _one(
        "distinct-days",
        "with d as (select time_bucket(interval '1' day, event_time) as day, k from a where v % 3 <> 0) "
        "select distinct day as event_time, k from d",
        day,
    ),
    _one(
        "top-two",
        "select event_time, k, v from (select event_time, k, v, row_number() over "
        "(partition by time_bucket(interval '2' day, event_time), k order by v desc, event_time) as n from a) "
        "where n <= 2",
        days(2),
        "select event_time, k, v from (select event_time, k, v, row_number() over (partition by "
        "time_bucket(interval '2' day, event_time, timestamp '1970-01-01'), k order by v desc, event_time) as n "
        "from a) where n <= 2",
    ),
    _one(
        "running-sum",
        "select event_time, k, sum(v) over (partition by k order by event_time "
        "range between interval '3' day preceding and interval '1' day following) as s from a",
        lambda time: time - DAY,
    ),
    _one(
        "sessions",
        "select session_window(event_time, '30 hours').end as event_time, k, sum(v) as s "
        "from a group by session_window(event_time, '30 hours'), k",
        same,
        "select e as event_time, k, s from (" + SESSIONS.format(key=", k", gap="30 hours", rows="a") + ")",
    ),
    _one(
        "days-of-sessions",
        "select date_trunc('day', e) as event_time, count(*) as c, max(s) as s from ("
        "  select session_window(event_time, '3 days').end as e, sum(v) as s from a"
        "  where v % 5 <> 0 group by session_window(event_time, '3 days')) group by 1",
        day,
        "select date_trunc('day', e) as event_time, count(*) as c, max(s) as s from ("
        + SESSIONS.format(key="", gap="3 days", rows="(select * from a where v % 5 <> 0)")
        + ") group by 1",
    ),
    _one(
        "month-of-sessions",
        "select time_bucket(interval '1' month, e) as event_time, k, count(*) as c, max(s) as m from ("
        "  select session_window(event_time, '30 hours').end as e, k, sum(v) as s from a"
        "  group by session_window(event_time, '30 hours'), k) group by 1, 2",
        month,
        "select time_bucket(interval '1' month, e) as event_time, k, count(*) as c, max(s) as m from ("
        + SESSIONS.format(key=", k", gap="30 hours", rows="a")
        + ") group by 1, 2",
    ),
    _one(
        "local-days",
        "select to_utc_timestamp(date_trunc('day', from_utc_timestamp(event_time, 'America/New_York')), "
        "'America/New_York') as event_time, sum(v) as s from a group by 1",
        local_day,
    ),
    _one(
        "self-join",
        "select x.event_time, x.v, y.v as w from a x join a y on x.k = y.k "
        "and y.event_time between x.event_time and x.event_time + interval '2' day",
        (same, lambda time: time - 2 * DAY),
    ),
    _one(
        "named-queries",
        "select event_time, max(s) as s from weekly group by 1",
        lambda time: month(day(time)),
        before=(
            ("odd", "select event_time, k, v from a where v % 2 = 1"),
            ("daily", "select time_bucket(interval '1' day, event_time) as d, k, sum(v) as s from odd group by 1, 2"),
            (
                "weekly",
                "select time_bucket(interval '1' month, d) as event_time, k, sum(s) as s from daily group by 1, 2",
            ),
        ),
    ),
    _two(
        "union-day",
        "select time_bucket(interval '1' day, event_time) as event_time, source, sum(v) as s "
        "from (select event_time, 'a' as source, v from a union all select event_time, 'b', v from b) group by 1, 2",
        day,
        day,
    ),
    _two(
        "left-interval-join",
        "select a.event_time, a.k, a.v, b.v as w from a left join b on a.k = b.k "
        "and b.event_time between a.event_time - interval '3' day and a.event_time + interval '1' day",
        same,
        lambda time: time - DAY,
    ),
    _two(
        "sum-of-a-join",
        "select date_trunc('day', a.event_time) as event_time, a.k, sum(b.v) as s from a join b on a.k = b.k "
        "and b.event_time >= a.event_time - interval '2' day and b.event_time < a.event_time group by 1, 2",
        day,
        day,
    ),
    _two(
        "not-seen-before",
        "select a.event_time, a.k, a.v from a left anti join b on a.k = b.k "
        "and b.event_time between a.event_time - interval '5' day and a.event_time",
        same,
        same,
        "select a.event_time, a.k, a.v from a anti join b on a.k = b.k "
        "and b.event_time between a.event_time - interval '5' day and a.event_time",
    ),
    _two(
        "seen-soon-after",
        "select a.event_time, a.k, a.v from a left semi join b on a.k = b.k "
        "and b.event_time between a.event_time and a.event_time + interval '36' hour",
        same,
        lambda time: time - 36 * HOUR,
        "select a.event_time, a.k, a.v from a semi join b on a.k = b.k "
        "and b.event_time between a.event_time and a.event_time + interval '36' hour",
    ),
    _two(
        "equal-days",
        "select a.event_time, a.v, b.v as w from a join b on a.k = b.k "
        "and date_trunc('day', a.event_time) = date_trunc('day', b.event_time)",
        same,
        day,
    ),
    _two(
        "full-outer-windows",
        f"select event_time, x.s, y.s as t from ({_DAILY.format('a')}) x full outer join ({_DAILY.format('b')}) y "
        "using (event_time)",
        day,
        day,
    ),
)


def _patient(duck: Duck, case: Case, histories: Histories) -> Expected:
    return oracles.final(duck, case.ducks, histories, case.lows, 5 * DAY)


def _enriched(duck: Duck, case: Case, histories: Histories) -> Expected:
    sides = [oracles.versions(histories[alias], alias in case.changelogs) for alias in case.temporal]
    return oracles.enriched(histories, sides)


def _latest(duck: Duck, case: Case, histories: Histories) -> Expected:
    rows, late = oracles.enriched(histories, [oracles.latest(histories["b"])])
    dropped = [row for row in oracles.said(histories["b"]) if row.time is not None and row.time < row.before]
    return rows, (late or 0) + len(dropped)


def _enriched_late(duck: Duck, case: Case, histories: Histories) -> Expected:
    sides = [oracles.versions(histories[alias], alias in case.changelogs) for alias in case.temporal]
    return oracles.enriched(histories, sides, late_too=True)


def _corrected(within: int | None = None) -> Oracle:
    def tabulate(rows: Sequence[Fact]) -> dict[Any, list[tuple[Any, ...]]]:
        groups: dict[Any, list[int]] = {}
        for time, key, value in rows:
            groups.setdefault((day(time), key), []).append(value)
        return {key: [(*key, sum(values), len(values))] for key, values in groups.items()}

    return lambda duck, case, histories: oracles.corrected(histories, tabulate, within)


_VALID = "{0}.event_time >= {1}.valid_from and {0}.event_time < {1}.valid_to"
_ENRICH = "select a.event_time, a.k, a.v, b.v as w from a left join b on a.k = b.k and " + _VALID.format("a", "b")
_DROP, _APPLY = "set odf.late = 'drop';\n", "set odf.late = 'apply';\n"
_CORRECTED = (
    "select time_bucket(interval '1' day, event_time) as event_time, k, sum(v) as s, count(*) as c{h} "
    "from a group by 1, 2{h}"
)
_WITHIN = "set odf.late = 'apply within 3 days';\n"
_UNSURE = {"a": grows, "b": lambda rng: grows(rng, late=0.25)}
CHANGING = (
    Case("patient-days", _DAYS, {"a": grows}, _patient, head="set odf.lateness = '5 days';\n", lows={"a": (day,)}),
    Case("versions", _ENRICH, {"a": grows, "b": changes}, _enriched, "", _DROP, changelogs=("b",), temporal=("b",)),
    Case(
        "versions-as-of",
        "select a.event_time, a.k, a.v, b.v as w from a left asof join b "
        "match_condition (a.event_time >= b.valid_from) on a.k = b.k and a.event_time < b.valid_to",
        {"a": grows, "b": changes},
        _enriched,
        _ENRICH,
        _DROP,
        changelogs=("b",),
        temporal=("b",),
    ),
    Case(
        "late-facts",
        _ENRICH.replace(" as w ", " as w{h} "),
        {"a": lambda rng: grows(rng, late=0.25), "b": changes},
        _enriched_late,
        head=_APPLY,
        changelogs=("b",),
        temporal=("b",),
    ),
    Case("corrected-days", _CORRECTED, {"a": grows}, _corrected(), head=_APPLY),
    Case("corrected-for-three-days", _CORRECTED, {"a": grows}, _corrected(3 * DAY), head=_WITHIN),
    Case("corrected-days-of-changes", _CORRECTED, {"a": moves}, _corrected(), head=_APPLY, changelogs=("a",)),
    Case("versions-that-only-grow", _ENRICH, _UNSURE, _enriched, "", _DROP, temporal=("b",)),
    Case(
        "two-dimensions",
        "select a.event_time, a.k, a.v, b.v as w, c.v as x from a "
        f"left join b on a.k = b.k and {_VALID.format('a', 'b')} "
        f"left join c on a.k = c.k and {_VALID.format('a', 'c')}",
        {"a": grows, "b": changes, "c": changes},
        _enriched,
        head=_DROP,
        changelogs=("b", "c"),
        temporal=("b", "c"),
    ),
    Case(
        "latest-as-of",
        "select a.event_time, a.k, a.v, b.v as w from a left asof join b "
        "match_condition (a.event_time >= b.event_time) on a.k = b.k",
        _UNSURE,
        _latest,
        "select a.event_time, a.k, a.v, b.v as w from (select *, row_number() over () as n from a) a left join b "
        "on a.k = b.k and a.event_time >= b.event_time "
        "qualify row_number() over (partition by a.n order by b.event_time desc) = 1",
        _DROP,
    ),
    Case(
        "days-of-changes",
        _DAYS,
        {"a": moves},
        final_oracle,
        head=_DROP,
        changelogs=("a",),
        lows={"a": (day,)},
    ),
    Case(
        "days-of-careless-changes",
        _DAYS,
        {"a": careless},
        final_oracle,
        head="set odf.late.a = 'drop';\n",
        changelogs=("a",),
        lows={"a": (day,)},
    ),
)


def _log(**images: oracles.Image) -> Oracle:
    return lambda duck, case, histories: oracles.log(histories, images)


def _whole(row: Said) -> tuple[Any, ...]:
    return row.time, row.k, row.v


_MERGED = "select event_time, k, v{h} from a where v % 7 <> 0 union all select event_time, k, v % 4{h} from b"
_of_a, _of_b = (
    lambda row: _whole(row) if row.v % 7 else None,
    lambda row: (row.time, row.k, row.v % 4),
)
LOG = (
    Case(
        "map",
        "select event_time, upper(k) as k, v * 2 as v{h} from a",
        {"a": grows},
        _log(a=lambda row: (row.time, row.k and row.k.upper(), row.v * 2)),
    ),
    Case(
        "filter",
        "select event_time, v{h} from a where v % 3 <> 0 and k is not null",
        {"a": grows},
        _log(a=lambda row: (row.time, row.v) if row.v % 3 and row.k is not None else None),
    ),
    Case(
        "map-of-changes",
        "select event_time, k, v % 3 as w{h} from a where v % 5 <> 0",
        {"a": moves},
        _log(a=lambda row: (row.time, row.k, row.v % 3) if row.v % 5 else None),
        changelogs=("a",),
    ),
    Case("union-log", _MERGED, {"a": grows, "b": grows}, _log(a=_of_a, b=_of_b)),
    Case("union-of-changes", _MERGED, {"a": moves, "b": moves}, _log(a=_of_a, b=_of_b), changelogs=("a", "b")),
)


def _grouped(
    make: Callable[[list[Fact]], tuple[Any, ...]], key: Callable[[Fact], tuple[Any, ...]] | None = None
) -> Any:
    def tabulate(rows: Sequence[Fact]) -> dict[Any, list[tuple[Any, ...]]]:
        groups: dict[Any, list[Fact]] = {}
        for row in rows:
            groups.setdefault((row[1],) if key is None else key(row), []).append(row)
        return {key: [(max(row[0] for row in group), *make(group))] for key, group in groups.items()}

    return tabulate


def _best(rows: Sequence[Fact]) -> dict[Any, list[tuple[Any, ...]]]:
    groups: dict[Any, list[Fact]] = {}
    for row in rows:
        groups.setdefault((row[1],), []).append(row)
    return {key: sorted(group, key=lambda row: (-row[2], row[0]))[:2] for key, group in groups.items()}


def _table(tabulate: Any, single: bool = True) -> Oracle:
    return lambda duck, case, histories: oracles.table(histories, tabulate, single)


def _values(group: Sequence[Fact]) -> list[int]:
    return [row[2] for row in group]


_sums = _grouped(lambda group: (group[0][1], sum(_values(group)), len(group)))
_GROUPED = "select k, max(event_time) as event_time, sum(v) as s, count(*) as c from {} group by k{{h}}"
_BOTH = "(select event_time, k, v{h} from a union all select event_time, k, v{h} from b)"
_OF_TWO = "select k, max(event_time) as event_time, sum(v) as s, count(*) as c{h} from " + _BOTH + " group by k{h}"
_TOP = (
    "select event_time, k, v{h} from (select event_time, k, v{h}, row_number() over "
    "(partition by k{h} order by v desc, event_time) as n from a) where n <= 2"
)


def _extremes(group: Sequence[Fact]) -> tuple[Any, ...]:
    values = _values(group)
    return group[0][1], min(values), max(values), any(v % 11 == 0 for v in values), reduce(xor, values)


def _aggregate(what: str, keys: str = "k") -> str:
    return f"select {keys}, max(event_time) as event_time, {what}{{h}} from a group by {keys}{{h}}"


_KINDS = _aggregate("count(distinct v % 3) as s, count(*) as c")
_kinds = _grouped(lambda group: (group[0][1], len({v % 3 for v in _values(group)}), len(group)))
TABLE = (
    Case("group-grows", _aggregate("sum(v) as s, count(*) as c"), {"a": grows}, _table(_sums)),
    Case(
        "group-extremes",
        _aggregate("min(v) as low, max(v) as high, bool_or(v % 11 = 0) as any, bit_xor(v) as x"),
        {"a": grows},
        _table(_grouped(_extremes)),
    ),
    Case("group-of-two", _OF_TWO, {"a": grows, "b": grows}, _table(_sums)),
    Case("group-changes", _KINDS, {"a": moves}, _table(_kinds), changelogs=("a",)),
    Case("group-careless-changes", _KINDS, {"a": careless}, _table(_kinds), changelogs=("a",)),
    Case("one-of-two-changes", _OF_TWO, {"a": grows, "b": moves}, _table(_sums), changelogs=("b",)),
    Case("top-of-a-key", _TOP, {"a": moves}, _table(_best, single=False), changelogs=("a",)),
    Case(
        "group-by-expression",
        "select v % 4 as r, max(event_time) as event_time, count(*) as c{h} from a group by v % 4{h}",
        {"a": moves},
        _table(_grouped(lambda group: (group[0][2] % 4, len(group)), lambda row: (row[2] % 4,))),
        changelogs=("a",),
    ),
)


CASES = {case.name: case for case in (*FINAL, *CHANGING, *LOG, *TABLE)}
