"""All shapes that the law is tried on, by name; here are those of final mode over inputs that grow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conformance.case import DAYS, Case, final_oracle
from conformance.changing import CHANGING, LOG, TABLE
from conformance.histories import DAY, HOUR, grows
from conformance.oracles import Low, day, days, local_day, month, next_month, same
from conformance.over_history import OVER_HISTORY


def _one(name: str, text: str, low: Low | Sequence[Low], duck: str = "", **more: Any) -> Case:
    """A shape of final mode over one input."""
    lows = {"a": (low,) if callable(low) else tuple(low)}
    return Case(name, text, {"a": grows}, final_oracle, duck, lows=lows, **more)


def _two(name: str, text: str, a: Low, b: Low, duck: str = "", **more: Any) -> Case:
    return Case(name, text, {"a": grows, "b": grows}, final_oracle, duck, lows={"a": (a,), "b": (b,)}, **more)


_DAILY = "select time_bucket(interval '1' day, event_time) as event_time, sum(v) as s from {} group by 1"
SESSIONS = """select e{key}, sum(v) as s from (
  select event_time{key}, v, max(event_time) over (partition by n{key}) + interval '{gap}' as e from (
    select *, sum(begins) over (partition by 0{key} order by event_time range unbounded preceding) as n from (
      select *, case when event_time - lag(event_time) over (partition by 0{key} order by event_time)
        <= interval '{gap}' then 0 else 1 end as begins from {rows}))) group by e{key}"""


FINAL = (
    _one(
        "bucket-day",
        DAYS,
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
    _two(
        "sessions-of-a-union",
        "select session_window(event_time, '30 hours').end as event_time, k, sum(v) as s from ("
        "  select event_time, k, v from a union all select event_time, k, -v from b where v % 5 <> 0)"
        " group by session_window(event_time, '30 hours'), k",
        same,
        same,
        "select e as event_time, k, s from ("
        + SESSIONS.format(
            key=", k",
            gap="30 hours",
            rows="(select event_time, k, v from a union all select event_time, k, -v from b where v % 5 <> 0)",
        )
        + ")",
    ),
    _one(
        "sessions-with-their-own-shift",
        "select session_window(event_time, '2 days').end as event_time, sum(v) as s, count(*) as c from ("
        "  select event_time, v from a union all select event_time - interval '100' hour, v from a)"
        " group by session_window(event_time, '2 days')",
        (same, lambda time: time - 100 * HOUR),
        "select e as event_time, s, c from ("
        + SESSIONS.replace("sum(v) as s", "sum(v) as s, count(*) as c").format(
            key="",
            gap="2 days",
            rows="(select event_time, v from a union all select event_time - interval '100' hour, v from a)",
        )
        + ")",
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
        "bounds-in-where",
        "select t as event_time, k, v, w from (select a.event_time as t, a.k, a.v, b.v as w, b.event_time as u "
        "from a, b where a.k = b.k) where u between t - interval '3' day and t + interval '1' day",
        same,
        lambda time: time - DAY,
    ),
    _one(
        "last-of-a-day-by-another-name",
        "select event_time, late, k, twice from (select event_time, event_time as late, k, v * 2 as twice, "
        "row_number() over (partition by time_bucket(interval '1' day, event_time) "
        "order by event_time desc, k nulls first, v) as n from a) where n = 1",
        day,
    ),
    _two(
        "hinted-join",
        "select /*+ broadcast(b) */ a.event_time, a.k, a.v, b.v as w from a join b on a.k = b.k "
        "and b.event_time between a.event_time - interval '1' day and a.event_time",
        same,
        same,
    ),
    _one(
        "pivot",
        "select * from (select time_bucket(interval '1' day, event_time) as event_time, k, v from a) "
        "pivot (sum(v) as s, count(*) as c for k in ('k1' as one, 'k2' as two))",
        day,
        "select time_bucket(interval '1' day, event_time) as event_time, sum(v) filter (where k = 'k1') as one_s, "
        "nullif(count(*) filter (where k = 'k1'), 0) as one_c, sum(v) filter (where k = 'k2') as two_s, "
        "nullif(count(*) filter (where k = 'k2'), 0) as two_c from a group by 1",
    ),
    _one(
        "pipe",
        "from a |> where v % 3 <> 0 |> aggregate sum(v) as s "
        "group by time_bucket(interval '1' day, event_time) as event_time, k",
        day,
        "select time_bucket(interval '1' day, event_time) as event_time, k, sum(v) as s from a where v % 3 <> 0 "
        "group by 1, 2",
    ),
    _one(
        "json-key",
        "select time_bucket(interval '1' day, event_time) as event_time, j.double_x as x, count(*) as c from ("
        "select event_time, from_json(concat('{\"double_x\": ', v % 3, '}'), 'double_x bigint') as j from a) "
        "group by 1, 2 having max(event_time) between min(event_time) and max(event_time)",
        day,
        "select time_bucket(interval '1' day, event_time) as event_time, v % 3 as x, count(*) as c from a "
        "group by 1, 2",
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


CASES = {case.name: case for case in (*FINAL, *OVER_HISTORY, *CHANGING, *LOG, *TABLE)}
