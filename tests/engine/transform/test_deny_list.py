"""What a transform may not use: each is refused with its code, at its place, with a way out.

``|`` stands before the character whose line and column a diagnostic must name. A way out is SQL that is accepted.
Spec: docs/spec/engine-semantics.md#determinism.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from chain.data.arrow_schema import from_arrow
from chain.ids import DatasetId
from chain.model.source import SqlQueryStep, TransformSql
from engines.contract import EngineIdentity, ValidateInput, ValidateRequest, Vocab
from engines.spark.handler import SparkHandler

pytestmark = pytest.mark.engine
TIME = pa.timestamp("ms", "UTC")
COLUMNS = pa.schema(
    [
        *(("offset", pa.int64()), ("op", pa.int32()), ("system_time", TIME), ("event_time", TIME)),
        *(("k", pa.string()), ("v", pa.int64()), ("d", pa.float64()), ("x", pa.decimal128(20, 2))),
        *(("l", pa.list_(pa.int64())), ("st", pa.struct([("f", pa.float64()), ("g", pa.int64())]))),
    ]
)
DAY = "time_bucket(interval '1' day, event_time)"
ROW = "select event_time,\n  {} as z\nfrom a"
GROUP = f"select {DAY} as event_time,\n  {{}} as z\nfrom a group by 1"
OVER = f"select event_time, v,\n  {{}} over (partition by {DAY} {{}}) as z\nfrom a"
HISTORY = "select event_time, v, {} over (partition by k order by event_time, v {}) as z from a"


def each(template, expressions, code, way_out):
    return [(template.format("|" + expression), code, way_out) for expression in expressions]


def ordered(functions, code, way_out):
    return [(OVER.format("|" + function, "order by v"), code, way_out) for function in functions]


DENIED = {
    "the clock and the configuration": [
        *each(
            ROW,
            ["now()", "current_timestamp", "localtimestamp()", "current_date()", "curdate()", "current_time()",
             "unix_timestamp()", "version()", "current_user()", "user()", "session_user()", "current_database()",
             "current_schema()", "current_catalog()", "current_timezone()", "typeof(v)",
             "date'today'", "timestamp 'now'", "DATE /* the */ \" Yesterday \"", "timestamp_ntz'tomorrow'",
             "date't\\u006fday'", "cast('now' as timestamp)", "cast(concat('to', 'day') as date)", "date('today')",
             "try_cast('now' as date)", "to_date('today')", "to_timestamp(' Now')",
             "date r'today'", "timestamp/* */'12:00'", "timestamp--\n'T12:34'",
             "timestamp'\u0009now'",
             "timestamp '12:34:56 Europe/Kyiv'", "timestamp_ltz'00:00'",
             "cast(k as timestamp)", "try_cast(k as timestamp)",
             "to_timestamp(k)", "try_to_timestamp(k)", "cast(upper(k) as timestamp)", "cast('12:34' as timestamp)",
             "cast(nvl(k, 'x') as timestamp)", "k::timestamp", "hour(k)", "date_trunc('day', k)",
             "from_json(k, 'a timestamp').a", "from_csv(k, 'a int, b timestamp').b",
             "from_json(k, 'a array<struct<b: timestamp>>').a"],
            "not-data", ROW.format("to_timestamp(k, 'yyyy-MM-dd')"),
        ),
        ("select event_time, v from a\nwhere |event_time > k", "not-data",
         "select event_time, v from a where event_time > to_timestamp(k, 'yyyy-MM-dd HH:mm')"),
        ("select event_time, v from a\nwhere |event_time > 'now'", "not-data",
         "select event_time, v from a where event_time > timestamp'2024-05-01'"),
    ],
    "where values lie": [
        *each(ROW, ["format_string('%s', l)", "format_string('%s', st)", "printf('%d %s', v, array(v))",
                    "format_string('%s', unhex(k))", "format_string('%h', k)",
                    "format_string('%-5H', k)"],
              "object-identity", ROW.format("format_string('%s: %d', array_join(array(k), ','), v)")),
        *each(ROW, ["trunc(event_time, 'day')", "trunc(event_time, 'HOUR')"],
              "always-null", ROW.format("trunc(event_time, 'MM')")),
    ],
    "where rows lie": each(
        ROW,
        ["rand()", "randn()", "random()", "rand(7)", "uuid()", "shuffle(l)", "monotonically_increasing_id()",
         "spark_partition_id()", "input_file_name()", "input_file_block_start()", "input_file_block_length()",
         "randstr(3)", "uniform(1, 4)"],
        "layout-dependent", ROW.format("hash(k, v)"),
    ),
    "adding floating point": [
        *each(GROUP, ["sum(distinct d)", "avg(distinct d)"], "float-aggregate",
              GROUP.format("sum(distinct cast(d as decimal(28,12)))")),
        *each(GROUP, ["avg(distinct v)"], "float-aggregate", GROUP.format("avg(distinct cast(v as decimal(20,0)))")),
        *each(GROUP, [f"{name}({argument})" for argument in "dvx" for name in ("skewness", "kurtosis")],
              "float-aggregate", GROUP.format("sum(x * x) as a, sum(x * x * x) as b, sum(x) as c, count(x)")),
    ],
    "sums that leave their type on the way": [
        *each(GROUP, ["sum(distinct v)", "try_sum(distinct v)", "sum(distinct v * v)",
                      "sum(distinct cast(x as decimal(38,2)))", "avg(distinct cast(x as decimal(29,2)))"],
              "overflow-by-order", GROUP.format("sum(distinct cast(v as decimal(28,0))) as a, avg(distinct x) as b, "
                                                "sum(distinct x) as c, sum(v)")),
    ],
    "types that no dataset has": [
        *each(ROW, ["parse_json(k)", "make_interval(1)"], "foreign-type",
              ROW.format("from_json(k, 'a int').a")),
        *each(ROW, ["xpath_string(k, 'a')", "sentences(k)"], "platform-dependent", ROW.format("split(k, ' ')")),
        *each(ROW, ["raise_error('no')"], "always-fails", ROW.format("nullif(v, 0)")),
    ],
    "comparing floating point": [
        *each(GROUP, ["max(struct(d, v))", "min(st)", "min(array(d))"],
              "float-aggregate", GROUP.format("max(cast(d as decimal(38,12)))")),
        (f"select {DAY} as event_time,\n d, count(*) as c from a |group by 1, 2", "float-key",
         f"select {DAY} as event_time, cast(d as decimal(38,12)) as d, count(*) as c from a group by 1, 2"),
        ("|select distinct event_time, st from a", "float-key", "select distinct event_time, st.g from a"),
        *each(GROUP, ["array_sort(|collect_list(d))"], "arbitrary-order",
              GROUP.format("array_sort(collect_list(cast(d as decimal(38,12))))")),
    ],
    "ties": [
        *each(GROUP, ["first(v)", "first_value(v)", "last(v)", "last_value(v) ignore nulls", "any_value(v)", "mode(v)",
                      "mode() within group (order by v)", "max_by(v, k)", "min_by(v, k)"],
              "arbitrary-row", GROUP.format("max(struct(k, v)).v")),
    ],
    "lists": [
        *each(GROUP, ["collect_list(v)", "collect_set(v)", "array_agg(v)", "array_join(|collect_list(k), ',')",
                      "sort_array(|collect_list(v))", "array_sort(|collect_list(v), (l, r) -> 0)"],
              "arbitrary-order", GROUP.format("array_sort(collect_list(v))")),
        *each(GROUP, ["listagg(k)", "string_agg(k, ',')", "listagg(k, ',') within group (order by v)"],
              "arbitrary-order", GROUP.format("listagg(k, ',') within group (order by v desc, k)")),
    ],
    "windows with a partial order": [
        *ordered(["row_number()", "ntile(4)", "first_value(v)", "last_value(v)", "nth_value(v, 2)", "lag(v)",
                  "lead(v)"], "partial-order", OVER.format("first_value(v)", "order by v, event_time")),
        (OVER.format("|sum(v)", "order by k rows 2 preceding"), "partial-order",
         OVER.format("sum(v)", "order by k, v, event_time rows 2 preceding")),
        (OVER.format("|row_number()", "order by d, v, event_time"), "partial-order",
         OVER.format("row_number()", "order by d, v, event_time").replace(
             "from a", "from (select event_time, v, cast(d as decimal(38,12)) as d from a)")),
        (f"select event_time, v from a qualify |row_number() over (partition by {DAY} order by v) = 1",
         "partial-order", OVER.format("rank()", "order by v")),
        (OVER.format("|any_value(v)", ""), "arbitrary-row", OVER.format("dense_rank()", "order by k")),
    ],
    "earlier rows however far back": [
        *each("select event_time, v,\n  {} as z\nfrom a",
              ["lead(v) over (partition by k order by event_time, v)",
               "percentile(v, 0.5) over (partition by k order by event_time)",
               "sum(v) over (order by event_time, v rows between unbounded preceding and 10001 preceding)",
               "sum(v) over (partition by k order by event_time range between unbounded preceding and interval '1' day "
               "preceding)",
               "sum(v) over (order by event_time, v rows 10001 preceding)"],
              "unbounded-frame", HISTORY.format("sum(v)", "rows between 10 preceding and current row")),
        *each("select event_time, v,\n  {} as z\nfrom a", ["sum(v) over (partition by k order by event_time desc)"],
              "unbounded-frame", HISTORY.format("sum(v)", "range between unbounded preceding and current row")),
        ("select date_trunc('day', event_time) as event_time, |sum(v) over (order by event_time) as z from a",
         "unbounded-frame", HISTORY.format("avg(v)", "rows between unbounded preceding and current row")),
        (f"select {DAY} as event_time, max(z) as z from (\n select event_time, |sum(v) over (order by event_time) as z "
         "from a) group by 1",
         "unbounded-frame", HISTORY.format("count(*)", "rows between 10 preceding and current row")),
        ("select event_time, d, v,\n |sum(v) over (partition by d order by event_time) as z from a", "float-key",
         "select event_time, v, sum(v) over (partition by cast(d as decimal(38,12)) order by event_time) as z from a"),
    ],
    "merged sketches and samples": [
        *each(GROUP, ["approx_percentile(v, 0.5)", "percentile_approx(v, 0.5)", "histogram_numeric(v, 5)",
                      "approx_top_k(v)"], "layout-dependent",
              GROUP.format("percentile(v, 0.5) as a, median(v) as b, approx_count_distinct(k)")),
        *each("select event_time, v from {}", ["a |tablesample (10 percent)", "a |tablesample (3 rows)"],
              "limit-on-stream", "select event_time, v from a where hash(v) % 10 = 0"),
        *each("select event_time, v from {}", ["a |limit 3", "a |offset 3"], "limit-on-stream",
              f"select event_time, v from a qualify row_number() over (partition by {DAY} order by v, event_time) < 4"),
    ],
    "windows of the calendar": [
        (f"select event_time, sum(v) as s from (select\n {window}.end as event_time, v from a) group by 1",
         "hop-calendar", way)
        for window, way in (
            ("window(event_time, |'1 month')",
             "select time_bucket(interval '1' month, event_time) as event_time, sum(v) as s from a group by 1"),
            ("window(event_time, |'1 year', '1 day')",
             "select b.event_time, sum(a.v) as s from b join a on a.event_time >= b.event_time - interval '1' month "
             "and a.event_time < b.event_time group by 1"),
            ("window(event_time, '40 days', |'1 month', '1 day')",
             "select date_trunc('year', event_time) as event_time, sum(v) as s from a group by 1"),
        )
    ],
    "foreign code": each(
        ROW,
        ["java_method('java.lang.System', 'nanoTime')", "reflect('java.util.UUID', 'randomUUID')",
         "try_reflect('java.util.UUID', 'randomUUID')"],
        "opaque-function", ROW.format("parse_url(k, 'HOST')"),
    ),
    "texts that compare otherwise": [
        (f"select {DAY} as event_time,\n |k collate UTF8_LCASE as z, count(*) as c from a group by 1, 2", "collation",
         f"select {DAY} as event_time, lower(k) as z, count(*) as c from a group by 1, 2"),
        *each(ROW, ["cast(k as string collate UTF8_LCASE)", "k::string collate UNICODE_CI"],
              "collation", ROW.format("lower(k)")),
        ("select event_time, v from a where |k collate UNICODE_CI = 'x'", "collation",
         "select event_time, v from a where lower(k) = 'x'"),
        *each(GROUP, ["max(|collate(k, 'UNICODE'))"], "collation", GROUP.format("max(k)")),
    ],
    "maps": [
        *each(ROW, ["map(k, v)", "array(map(k, v))"], "output-type", ROW.format("map_entries(map(k, v))")),
        (f"select event_time, map_entries(m) as z from (select {DAY} as event_time,\n |map(k, v) as m from a "
         "group by 1, 2)", "map-key",
         f"select {DAY} as event_time, array_sort(map_entries(map(k, v))) as z from a group by 1, 2"),
    ],
    "functions of the processor": [
        *each(ROW,
              [f"{name}(d)" for name in (
                  "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh",
                  "acosh", "atanh", "exp", "expm1", "ln", "log", "log10", "log1p", "log2", "cbrt", "degrees",
                  "radians")]
              + ["atan2(d, d)", "pow(d, 2)", "power(d, 2)", "hypot(d, d)", "round(|sin(d), 9)"],
              "platform-dependent", ROW.format("sqrt(d * d) + round(d, 2)")),
    ],
}  # fmt: skip


@pytest.fixture
def handler(spark_root):
    return SparkHandler(spark_root, lambda: EngineIdentity("spark", "0", "sha256:0", "none", "test"))


def asked(handler, sql):
    given = tuple(
        ValidateInput(query_alias=alias, dataset_id=DatasetId.from_public_key(alias.encode() * 32),
                      schema=from_arrow(COLUMNS), vocab=Vocab(), changelog=False)
        for alias in "ab"
    )  # fmt: skip
    transform = TransformSql(engine="spark", queries=(SqlQueryStep(query=sql),))
    return handler.validate(ValidateRequest(transform=transform, inputs=given, vocab=Vocab()))


def place(marked):
    """The text without its mark, and where the mark stood; the last one counts, templates bring one of their own."""
    at = marked.rindex("|")
    before = marked[:at].replace("|", "")
    return marked.replace("|", ""), before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


@pytest.mark.parametrize("row", DENIED)
def test_denied_with_code_place_and_rewrite(handler, row):
    """Attack T-QUERY-03: a query that depends on the date, or on the order of rows.

    Defence: refused before it runs, and the error names a replacement.
    """
    wrong = []
    for marked, code, _ in DENIED[row]:
        sql, line, column = place(marked)
        found = asked(handler, sql).diagnostics
        here = [(one.code, one.line, one.column) for one in found if one.replace]
        if code == "output-type":
            # Of a whole query; its message names the column.
            line = column = None
        if here != [(code, line, column)]:
            wrong.append((sql, here))
    assert not wrong


EXACT = ("sum(d)", "avg(d)", "mean(d)", "try_sum(d)", "try_avg(d)", "avg(v)", "sum(st.f)", "sum(v / 2)", "min(d)",
         "max(d)", "try_sum(v)", *(f"{name}({argument})" for argument in "dvx" for name in (
             "stddev", "std", "stddev_pop", "stddev_samp", "variance", "var_pop", "var_samp")),
         *(f"{name}({argument}, d)" for argument in "dvx" for name in (
             "corr", "covar_pop", "covar_samp", "regr_slope", "regr_intercept", "regr_r2", "regr_sxx", "regr_syy",
             "regr_sxy", "regr_avgx", "regr_avgy")))  # fmt: skip
"""What people write, of which the value does not depend on the order of rows here."""


def told(handler, query, over, calls):
    """What is said to a query of all ``calls``."""
    return asked(
        handler, query.format(", ".join(f"{call}{over} as z{at}" for at, call in enumerate(calls)))
    ).diagnostics


def test_aggregates_over_floating_point_are_accepted(handler):
    """In queries of a dozen; where one is refused, each of its calls is asked by itself."""
    refused = {}
    for query, over in (
        (f"select {DAY} as event_time, {{}} from a group by 1", ""),
        ("select event_time, {} from a", f" over (partition by {DAY})"),
    ):
        for first in range(0, len(EXACT), 12):
            dozen = EXACT[first : first + 12]
            if told(handler, query, over, dozen):
                refused |= {call: found[0].code for call in dozen if (found := told(handler, query, over, [call]))}
    assert not refused


@pytest.mark.parametrize("row", DENIED)
def test_the_way_out_is_accepted(handler, row):
    refused = {sql: asked(handler, sql).diagnostics for sql in dict.fromkeys(way for _, _, way in DENIED[row])}
    assert not {sql: found for sql, found in refused.items() if found}


@pytest.mark.parametrize(
    "sql",
    [
        "select event_time, 'date ''now''' as y, \"timestamp 'today'\" as z from a -- date'today'",
        "select event_time, cast(k as date) as z, timestamp'2024-05-01 12:00' as y from a -- date'now'",
        "select event_time, to_timestamp(from_json(k, 'a string').a, 'yyyy') as z from a",
        "select event_time, cast(v as timestamp) as y, to_timestamp(k, 'HH:mm') as z, cast(cast(event_time as date) as "
        "timestamp) as x, timestamp'2024-05-01' as w, date r'2024-05-01' as u from a",
        "select event_time, `date`, z from (select event_time, k as `date`, 'today' as z from a)",
        "select event_time, v from a where event_time > '2024-05-01' and date'2024-05-01' < event_time",
        ROW.format("d * 2 / 3 % 5 + rint(d)"),
        GROUP.format("regr_count(d, d) + count(distinct d) + count_if(d > 0)"),
        GROUP.format("listagg(distinct k, ',') within group (order by k desc)"),
        OVER.format("nth_value(v, 2)", "order by v, event_time"),
        OVER.format("max(v)", ""),
        "select event_time, k, v, lead(v) over (partition by k, time_bucket(interval '1' day, event_time) order by "
        "event_time, v) as z from a",
        "select event_time, k, v, lag(v) ignore nulls over (partition by k order by event_time, v) as y, "
        "nth_value(v, 3) over (partition by k order by event_time, v) as z from a",
        HISTORY.format("sum(v)", "rows between unbounded preceding and 3 preceding"),
    ],
)
def test_what_is_the_same_everywhere_is_left_alone(handler, sql):
    answer = asked(handler, sql)
    assert answer.ok, answer.diagnostics
