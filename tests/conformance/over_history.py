"""Shapes with OVER over all history in the order of event time, in final mode."""

from __future__ import annotations

from conformance.case import Case, final_oracle
from conformance.duck import Running
from conformance.histories import DAY, grows, moves
from conformance.oracles import same
from engines.spark.catalyst.running_windows import WindowPart

_ALL = WindowPart("sum", "bigint")
_HOLDINGS = "select event_time, k, v, sum(v) over (partition by k order by event_time) as s from a"
_OF_A = (
    "select k as __odf_key0, event_time as __odf_order0, v as __odf_part0, event_time as __odf_column0, "
    "k as __odf_column1, v as __odf_column2 from a"
)
_SHOWN = "select __odf_column0 as event_time, __odf_column1 as k, __odf_column2 as v, __odf_value0 as s from these"


OVER_HISTORY = (
    Case(
        "holdings",
        _HOLDINGS,
        {"a": grows},
        final_oracle,
        lows={"a": (same,)},
        running=Running(_OF_A, _SHOWN, (_ALL,)),
    ),
    Case(
        "holdings-of-changes",
        _HOLDINGS,
        {"a": moves},
        final_oracle,
        head="SET odf.late = 'drop'; ",
        changelogs=("a",),
        lows={"a": (same,)},
        running=Running(_OF_A, _SHOWN, (_ALL,)),
    ),
    Case(
        "last-rows-and-all-rows",
        "select event_time, k, s, high, c, b, n, f from (select event_time, k, v, "
        "sum(v) over (partition by k order by event_time, v desc nulls last rows between 3 preceding and current row) "
        "as s, max(v) over (partition by k order by event_time, v desc nulls last rows 1 preceding) as high, "
        "count(v) over (partition by k order by event_time, v desc nulls last rows unbounded preceding) as c, "
        "sum(v) over (partition by k order by event_time, v desc nulls last rows between unbounded preceding and 2 "
        "preceding) as b, count(v) over (partition by k order by event_time, v desc nulls last rows between unbounded "
        "preceding and 1 preceding) as n, first_value(v) over (partition by k order by event_time, v desc nulls last "
        "rows between unbounded preceding and 2 preceding) as f from a) where v % 4 <> 0",
        {"a": grows},
        final_oracle,
        lows={"a": (same,)},
        running=Running(
            "select k as __odf_key0, event_time as __odf_order0, v as __odf_order1, v as __odf_part0, "
            "v as __odf_part1, if(v is null, 0, 1) as __odf_part2, v as __odf_part3, if(v is null, 0, 1) as "
            "__odf_part4, v as __odf_part5, event_time as __odf_column0, k as __odf_column1, v as __odf_column2 from a",
            "select __odf_column0 as event_time, __odf_column1 as k, __odf_value0 as s, __odf_value1 as high, "
            "__odf_value2 as c, __odf_value3 as b, __odf_value4 as n, __odf_value5 as f from these "
            "where __odf_column2 % 4 <> 0",
            (
                WindowPart("sum", "bigint", False, 3),
                WindowPart("max", "bigint", False, 1),
                WindowPart("sum", "bigint", False),
                WindowPart("sum", "bigint", False, None, 2),
                WindowPart("sum", "bigint", False, None, 1, counts=True),
                WindowPart("first_value", "bigint", False, None, 2),
            ),
            ("asc nulls first", "desc nulls last"),
        ),
    ),
    Case(
        "rows-before",
        "select event_time, k, v, lag(v, 2, -1) over (partition by k order by event_time, v nulls first) as l, "
        "first_value(v) over (partition by k order by event_time, v nulls first) as f, "
        "count(v) over (partition by k order by event_time, v nulls first rows between 3 preceding and 2 preceding) "
        "as c, "
        "last_value(v) ignore nulls over (partition by k order by event_time, v nulls first) as g, "
        "lag(v, 3, -1) ignore nulls over (partition by k order by event_time, v nulls first) as m, "
        "nth_value(v, 3) over (partition by k order by event_time, v nulls first) as n, "
        "nth_value(v, 2) ignore nulls over (partition by k order by event_time, v nulls first) as o, "
        "nth_value(v, 2) ignore nulls over (partition by k order by event_time, v nulls first rows between unbounded "
        "preceding and 3 preceding) as p from a",
        {"a": grows},
        final_oracle,
        "select event_time, k, v, lag(v, 2, -1) over w as l, first_value(v) over w as f, count(v) over (w rows between "
        "3 preceding and 2 preceding) as c, last_value(v ignore nulls) over w as g, "
        "lag(v, 3, -1 ignore nulls) over w as m, "
        "nth_value(v, 3) over w as n, nth_value(v, 2 ignore nulls) over w as o, nth_value(v, 2 ignore nulls) over (w "
        "rows between unbounded preceding and 3 preceding) as p from a "
        "window w as (partition by k order by event_time, v nulls first)",
        lows={"a": (same,)},
        running=Running(
            "select k as __odf_key0, event_time as __odf_order0, v as __odf_order1, v as __odf_part0, "
            "v as __odf_part1, if(v is null, 0, 1) as __odf_part2, v as __odf_part3, v as __odf_part4, "
            "v as __odf_part5, v as __odf_part6, v as __odf_part7, -1 as __odf_default0, -1 as __odf_default4, "
            "event_time as __odf_column0, k as __odf_column1, v as __odf_column2 from a",
            "select __odf_column0 as event_time, __odf_column1 as k, __odf_column2 as v, __odf_value0 as l, "
            "__odf_value1 as f, __odf_value2 as c, __odf_value3 as g, __odf_value4 as m, __odf_value5 as n, "
            "__odf_value6 as o, __odf_value7 as p from these",
            (
                WindowPart("lag", "bigint", False, 2, 2),
                WindowPart("first_value", "bigint"),
                WindowPart("sum", "bigint", False, 3, 2, counts=True),
                WindowPart("last_value", "bigint", passes_nulls=True),
                WindowPart("lag", "bigint", False, 3, 3, passes_nulls=True),
                WindowPart("nth_value", "bigint", place=3),
                WindowPart("nth_value", "bigint", passes_nulls=True, place=2),
                WindowPart("nth_value", "bigint", False, None, 3, passes_nulls=True, place=2),
            ),
            ("asc nulls first", "asc nulls first"),
        ),
    ),
    Case(
        "in-the-order-of-the-chain",
        "select event_time, k, v, lag(v) over (partition by k order by event_time, o) as l, sum(v) over (partition by "
        "k order by event_time, o rows 2 preceding) as s from (select event_time, k, v, a.offset as o from a)",
        {"a": grows},
        final_oracle,
        lows={"a": (same,)},
        running=Running(
            "select k as __odf_key0, event_time as __odf_order0, a.offset as __odf_order1, v as __odf_part0, "
            "v as __odf_part1, event_time as __odf_column0, k as __odf_column1, v as __odf_column2 from a",
            "select __odf_column0 as event_time, __odf_column1 as k, __odf_column2 as v, __odf_value0 as l, "
            "__odf_value1 as s from these",
            (WindowPart("lag", "bigint", False, 1, 1), WindowPart("sum", "bigint", False, 2)),
            ("asc nulls first", "asc nulls first"),
        ),
    ),
    Case(
        "total-of-a-join",
        "select event_time, k, sum(w) over (order by event_time) as s from (select a.event_time, a.k, b.v as w from a "
        "left join b on a.k = b.k and b.event_time between a.event_time and a.event_time + interval '2' day)",
        {"a": grows, "b": grows},
        final_oracle,
        lows={"a": (same,), "b": (lambda time: time - 2 * DAY,)},
        running=Running(
            "select event_time as __odf_order0, w as __odf_part0, event_time as __odf_column0, k as __odf_column1 "
            "from (select a.event_time, a.k, b.v as w from a left join b on a.k = b.k "
            "and b.event_time between a.event_time and a.event_time + interval '2' day)",
            "select __odf_column0 as event_time, __odf_column1 as k, __odf_value0 as s from these",
            (_ALL,),
        ),
    ),
)
