# ruff: noqa: E501
"""Each hint is followed by a program, and what comes of it is accepted.

A row has a refused query, words that its hint must hold, and the query as somebody writes it who follows them: ``{}``
stands where the words are put in as they are. So a hint whose words change, or stop to be SQL that is accepted, fails
here. Hints for other dialects, and that they mean the same: ``test_dialects``. Rules in words: ``test_deny_list``.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from chain.data.arrow_schema import from_arrow
from chain.model.source import SqlQueryStep, TemporalTable, TransformSql
from conformance.coordinator import dataset_of
from engines.contract import EngineIdentity, Severity, ValidateInput, ValidateRequest, Vocab
from engines.spark.analysis.functions import DENIALS
from engines.spark.handler import SparkHandler

pytestmark = pytest.mark.engine
ENGINE = Path(__file__).parents[3] / "engines" / "spark"
TIME = pa.timestamp("ms", "UTC")
COLUMNS = pa.schema(
    [
        *(("offset", pa.int64()), ("op", pa.int32()), ("system_time", TIME), ("event_time", TIME)),
        *(("k", pa.string()), ("v", pa.int64()), ("d", pa.float64()), ("l", pa.list_(pa.int64()))),
    ]
)
DAY = "time_bucket(interval '1' day, event_time)"
DAILY = f"select {DAY} as event_time, {{}} as z from a group by 1"
ROW = "select event_time, {} as z from a"
NEAR = "b.event_time between a.event_time - interval '1' day and a.event_time"
TABLE = "select max(event_time) as event_time, k, count(*) as c from a group by k"
HOPS = "select window(event_time, '2 days', '1 day').end as event_time, count(*) as c from a group by window(event_time, '2 days', '1 day')"


@dataclass(frozen=True)
class Row:
    code: str
    sql: str
    words: str
    followed: str
    changes: frozenset[str] = frozenset()
    versions: Mapping[str, str] = field(default_factory=dict)
    declares: Mapping[str, str] = field(default_factory=dict)
    """What following adds to ``versions``."""
    """Of temporal tables their key."""


def row(code, template, wrong, words, right=None, **more):
    """One expression for another."""
    return Row(code, template.format(wrong), words, template.format("{}" if right is None else right), **more)


ROWS = (
    row("not-data", ROW, "to_timestamp(k)", "to_timestamp(k, 'yyyy-MM-dd HH:mm:ss')"),
    row("not-data", ROW, "date'today'", "date'2024-05-01'"),
    row("not-data", ROW, "now()", "event_time"),
    row("not-data", ROW, "current_user()", "write the value itself", "'ann'"),
    Row("not-data", "select timestamp'2024-05-01' as event_time, id from range(3)", "select from",
        "{} a".replace("select from", "select event_time, v from").replace("{}", "select event_time, v from")),
    row("object-identity", ROW, "format_string('%s', l)", "to_json(x)", "format_string('%s', to_json(l))"),
    row("always-null", ROW, "trunc(event_time, 'day')", "date_trunc('day', x)", "date_trunc('day', event_time)"),
    row("always-null", ROW, "trunc(event_time, 'hour')", "date_trunc('hour', x)", "date_trunc('hour', event_time)"),
    row("always-fails", ROW, "raise_error('no')", "where …", "v / 2 as w, v"),
    row("arbitrary-order", DAILY, "collect_list(v)", "array_sort(collect_list(x))", "array_sort(collect_list(v))"),
    row("arbitrary-order", DAILY, "listagg(k, ',')", "listagg(x, ',') within group (order by x)",
        "listagg(k, ',') within group (order by k)"),
    row("arbitrary-row", DAILY, "first(v)", "max(struct(y, x)).x", "max(struct(k, v)).v"),
    row("collation", ROW, "k collate UTF8_LCASE", "lower(x)", "lower(k)"),
    row("float-aggregate", DAILY, "sum(distinct d)", "sum(distinct cast(x as decimal(28,12)))",
        "sum(distinct cast(d as decimal(28,12)))"),
    row("float-aggregate", DAILY, "avg(distinct v)", "avg(distinct cast(x as decimal(20,0)))",
        "avg(distinct cast(v as decimal(20,0)))"),
    row("float-aggregate", DAILY, "kurtosis(d)", "sum(x * x * x), sum(x * x), sum(x) and count(x)",
        "sum(d * d * d) as a, sum(d * d) as b, sum(d) as c, count(d)"),
    row("overflow-by-order", DAILY, "sum(distinct v)", "sum(distinct cast(x as decimal(28,0)))",
        "sum(distinct cast(v as decimal(28,0)))"),
    row("float-key", f"select {DAY} as event_time, {{}} as z, count(*) as c from a group by 1, 2", "d",
        "cast(x as decimal(38,12))", "cast(d as decimal(38,12))"),
    row("float-key", "select event_time, sum(v) over (partition by {} order by event_time) as z from a", "d",
        "partition by cast(x as decimal(38,12))", "cast(d as decimal(38,12))"),
    row("map-key", f"select event_time, map_entries(m) as z from (select {DAY} as event_time, {{}} as m from a group by "
        "1, 2)".replace("map_entries(m)", "m"), "map(k, v)", "array_sort(map_entries(x))",
        "array_sort(map_entries(map(k, v)))"),
    row("foreign-type", ROW, "parse_json(k)", "use texts", "from_json(k, 'a string').a"),
    row("layout-dependent", ROW, "rand()", "hash()", "hash(k, v)"),
    row("layout-dependent", DAILY, "approx_percentile(v, 0.5)", "percentile", "percentile(v, 0.5)"),
    row("opaque-function", ROW, "java_method('a', 'b')", "functions of SQL", "upper(k)"),
    row("opaque-function", ROW, "schema_of_json('[1]')", "write the schema itself", "'ARRAY<BIGINT>'"),
    row("platform-dependent", ROW, "xpath_string(k, 'a')", "regexp_extract", "regexp_extract(k, '<a>(.*)</a>', 1)"),
    row("unknown-function", ROW, "nope(k)", "odfctl docs functions", "upper(k)"),
    row("time-pattern", ROW, "to_timestamp(k, 'yyyy-bb')", "to_timestamp(k, 'yyyy-MM-dd')"),
    row("length-not-bounded", ROW, "repeat(k, v)", "least(", "repeat(k, cast(least(v, 100) as int))"),
    row("length-not-bounded", ROW, "replace(k, 'a', k)", "replace(…, left(j, 100))", "replace(k, 'a', left(k, 100))"),
    row("length-not-bounded", ROW, "format_string(k, v)", "write the format itself", "format_string('%s', v)"),
    row("constant-too-large", ROW, "repeat(k, 70000)", "65536", "length(repeat(left(k, 1), 60))"),
    row("not-a-query", "select event_time, {} as z from a", "identifier('k')", "in backticks", "`k`"),
    Row("not-a-query", "execute immediate 'select 1'", "write SELECT over the inputs", "select event_time, v from a"),
    Row("not-an-input", "select event_time, v from spark_catalog.default.a", "the alias of an input",
        "select event_time, v from `a`"),
    Row("hint", "select /*+ whatever(1) */ event_time, v from a", "leave the hint out", "select event_time, v from a"),
    Row("hint", "select /*+ repartition(3) */ event_time, v from a", "leave the hint out",
        "select event_time, v from a"),
    row("limit-on-stream", "select event_time, v from a {}", "limit 3",
        "row_number() over (partition by <window> order by …) <= n",
        f"qualify row_number() over (partition by {DAY} order by v, event_time) <= 3"),
    row("limit-on-stream", "select event_time, v from a {}", "tablesample (10 percent)", "where hash(columns) % 10 = 0",
        "where hash(k, v) % 10 = 0"),
    row("order-is-fixed", "select event_time, v from a {}", "order by v", "leave ORDER BY out", ""),
    Row("shape-not-supported", "select event_time, k from a except select event_time, k from b", "left anti",
        "select distinct a.event_time, a.k from a {} join b on a.event_time = b.event_time and a.k = b.k"),
    Row("shape-not-supported", "with recursive t as (select event_time, v from a union all select event_time, v + 1 "
        "from t where v < 3) select * from t", "WITH without RECURSIVE",
        "with t as (select event_time, v from a) select * from t union all select event_time, v + 1 from t where v < 3"),
    Row("shape-not-supported", "select a.event_time, x.v from a, lateral (select b.v from b where b.k = a.k) x",
        "LATERAL VIEW", "select event_time, x from a {} explode(l) t as x"),
    Row("shape-not-supported", "select session_window(event_time, '1 hour').end as event_time, count(*) as c from (select"
        f" {DAY} as event_time from a group by 1) group by session_window(event_time, '1 hour')",
        "straight over an input", "select session_window(event_time, '1 hour').end as event_time, count(*) as c from a "
        "group by session_window(event_time, '1 hour')"),
    Row("join-unbounded", "select a.event_time, b.v from a join b on a.k = b.k",
        "and b.event_time between a.event_time - interval '1' day and a.event_time",
        "select a.event_time, b.v from a join b on a.k = b.k {}"),
    row("unbounded-frame", "select event_time, v, sum(v) over (partition by k {}) as z from a", "order by event_time desc",
        "order by event_time range between interval '1' day preceding and current row"),
    row("unbounded-frame", "select event_time, v, sum(v) over (partition by k {}) as z from a", "order by event_time desc",
        "order by event_time range between unbounded preceding and current row"),
    row("unbounded-frame", "select event_time, v, {} as z from a",
        "percentile(v, 0.5) over (partition by k order by event_time, v)", "rows between 10 preceding and current row",
        "sum(v) over (partition by k order by event_time, v {})"),
    row("unbounded-frame", "select event_time, v, {} as z from a",
        "percentile(v, 0.5) over (partition by k order by event_time)",
        "range between interval '1' day preceding and current row",
        "percentile(v, 0.5) over (partition by k order by event_time {})"),
    row("unbounded-frame", "select event_time, v, lead(v) over ({} order by event_time, v) as z from a", "partition by k",
        "partition by time_bucket(interval '1' day, event_time)"),
    row("unbounded-frame", "select event_time, v, {}(v) over (partition by k order by event_time, v) as z from a", "lead",
        "lag"),
    row("partial-order", f"select event_time, v, first_value(v) over (partition by {DAY} order by k{{}}) as z from a", "",
        ", event_time, v"),
    row("hop-calendar", "select {} as event_time, sum(v) as s from a group by 1", "window(event_time, '1 month').end",
        "time_bucket(interval '1' month, event_time)"),
    Row("window-duration", "select window(event_time, 'six hours').end as event_time, count(*) as c from a group by "
        "window(event_time, 'six hours')", "'6 hours'",
        "select window(event_time, {0}).end as event_time, count(*) as c from a group by window(event_time, {0})"),
    row("grouping-set-time", f"select {DAY} as event_time, k, sum(v) as s from a group by {{}}", f"rollup ({DAY}, k)",
        "time_bucket(interval '1' day, event_time), rollup (k)"),
    Row("history-per-key", "select max(event_time) as event_time, k, percentile(v, 0.5) as m from a group by k", "avg",
        "select max(event_time) as event_time, k, {}(v) as m from a group by k"),
    Row("history-per-key", "select event_time, k, v from a qualify row_number() over (partition by k order by v, event_time) "
        "= 2", "qualify row_number() over (partition by k order by v) <= 10",
        "select event_time, k, v from a qualify row_number() over (partition by k order by v, event_time) <= 10"),
    Row("key-not-selected", "select max(event_time) as event_time, sum(v) as s from a group by k",
        "select the grouping columns too", "select max(event_time) as event_time, k, sum(v) as s from a group by k"),
    Row("not-key-local", "select a.event_time, a.k, b.v from a join b on upper(a.k) = b.k", "on a.k = b.k",
        "select a.event_time, a.k, b.v from a join b {}", frozenset("ab")),
    Row("outer-null-time", "select a.event_time, b.v from a full join b on a.k = b.k and a.event_time = b.event_time",
        "coalesce(a.event_time, b.event_time) as event_time",
        "select {}, b.v from a full join b on a.k = b.k and a.event_time = b.event_time"),
    Row("event-time-missing", "select k from a", "as event_time", "select event_time {}, k from a"),
    Row("event-time-unbounded", "select timestamp_seconds(max(v)) as event_time, count(*) as c from a group by "
        "window(event_time, '1 day')", "window.start",
        "select {} as event_time, count(*) as c from a group by window(event_time, '1 day')"),
    Row("event-time-unbounded", "select session_window(event_time, '1 hour').start as event_time, count(*) as c from a "
        "group by session_window(event_time, '1 hour')", "session_window.end",
        "select {} as event_time, count(*) as c from a group by session_window(event_time, '1 hour')"),
    Row("event-time-type", "select k as event_time, v from a", "a TIMESTAMP or DATE", "select event_time, v from a"),
    Row("reserved-name", "select event_time, k, v as offset from a group by all",
        "select * except (offset)", "{} from (select event_time, k, v as offset from a)"),
    Row("column-twice", "select event_time, k, v as k from a", "a name of its own", "select event_time, k, v as w from a"),
    row("output-type", ROW, "map(k, v)", "array_sort(map_entries(z))", "array_sort(map_entries(map(k, v)))"),
    row("output-type", ROW, "cast(event_time as timestamp_ntz)", "cast(z as timestamp)",
        "cast(cast(event_time as timestamp_ntz) as timestamp)"),
    Row("as-of-changelog", "select a.event_time, b.v from a left asof join b match_condition (a.event_time >= "
        "b.event_time) on a.k = b.k", "temporalTables: [{name: b, primaryKey: [k]}], and match by b.valid_from",
        "select a.event_time, b.v from a left asof join b match_condition (a.event_time >= b.valid_from) on a.k = b.k "
        "and a.event_time < b.valid_to", frozenset("b"), declares={"b": "k"}),
    Row("op-not-available", DAILY.format("sum(op)"), "SET odf.read = 'log'", f"{{}}; {DAILY.format('sum(op)')}"),
    Row("valid-to-used", "select a.event_time, b.valid_to as v from a join b on a.k = b.k and a.event_time >= "
        "b.valid_from", "on a.k = b.k and a.event_time >= b.valid_from and a.event_time < b.valid_to",
        "select a.event_time, b.v from a join b {}", versions={"b": "k"}),
    Row("subquery-expression", "select event_time, v from a where exists (select 1 from b where b.k = a.k)",
        "a join with bounds on event time", f"select a.event_time, a.v from a left semi join b on a.k = b.k and {NEAR}"),
    Row("plan-too-large", "select event_time, " + "(" * 300 + "v" + ")" * 300 + " as z from a", "split the query",
        "select event_time, v as z from a"),
    Row("declaration", "SET odf.nope = '1'; select event_time, v from a", "odf.lateness",
        "SET {} = '2 days'; select event_time, v from a"),
    Row("lateness", "SET odf.lateness = 'long'; select event_time, v from a", "2 days",
        "SET odf.lateness = '{}'; select event_time, v from a"),
    Row("late", f"SET odf.late = 'never'; {DAILY.format('sum(v)')}", "apply within 90 days",
        f"SET odf.late = '{{}}'; {DAILY.format('sum(v)')}"),
    Row("late-rows", "SET odf.rows = 'x'; select event_time, v from a", "late",
        "SET odf.rows = '{}'; select event_time, v from a"),
    Row("late-rows", f"SET odf.rows = 'late'; {DAILY.format('sum(v)')}", "select the late rows one by one",
        "SET odf.rows = 'late'; select event_time, v from a"),
    Row("read", "SET odf.read = 'x'; select event_time, v from a", "table",
        "SET odf.read = '{}'; select event_time, v from a"),
    Row("tick", f"SET odf.tick = 'x'; {TABLE}", "1 day", f"SET odf.tick = '{{}}'; {TABLE}"),
    Row("tick", "SET odf.tick = '1 day'; select event_time, v from a", "leave it out", "select event_time, v from a"),
    Row("watermark", "SET odf.watermark = 'x'; select event_time + interval '1' day * v as event_time from a",
        "max - 1 day", "SET odf.watermark = '{}'; select event_time + interval '1' day * v as event_time from a"),
    Row("watermark", f"SET odf.watermark = 'max - 1 day'; {DAILY.format('sum(v)')}", "leave it out",
        DAILY.format("sum(v)")),
    Row("changelog-late", DAILY.format("sum(v)"), "SET odf.late.a = 'drop';", f"{{}} {DAILY.format('sum(v)')}",
        frozenset("a")),
    Row("late-apply-shape", f"SET odf.late = 'apply'; {HOPS}", "SET odf.late = 'drop'", f"{{}}; {HOPS}"),
    Row("late-apply-join", f"SET odf.late = 'apply'; select a.event_time, b.v from a join b on a.k = b.k and {NEAR}",
        "SET odf.late = 'drop'", f"{{}}; select a.event_time, b.v from a join b on a.k = b.k and {NEAR}"),
    Row("late-in-table-mode", f"SET odf.late = 'drop'; {TABLE}", "leave it out", TABLE),
    Row("late-in-log-mode", "SET odf.late = 'drop'; select event_time, v from a", "leave it out",
        "select event_time, v from a"),
)  # fmt: skip
ELSEWHERE = {
    "quoted-name": "test_dialects", "window-dialect": "test_dialects", "temporal-dialect": "test_dialects",
    "as-of-unsaid": "below, as a warning",
    "late-apply-as-of": "test_late", "late-apply-ledger": "test_late", "late-versions": "test_late",
    "mixed-mode": "the inner query is made a dataset of its own: test_nexmark, q4",
    "table-shape": "test_classify, and q4 of test_nexmark",
    "temporal-table": "the transform's YAML, and no SQL", "query-alias": "the same", "no-query": "the same",
    "query-count": "the same", "query-size": "the same",
    "append-only": "a fault of data", "ahead": "of sources",
    "unknown-operator": "what Spark may add", "not-deterministic": "what Spark may add",
    "functions": "of no query", "plan": "of no query", "parse": "of no query",
}  # fmt: skip
"""Codes whose hints are followed in another place, or are about no SQL."""


@pytest.fixture(scope="module")
def handler(jvm) -> SparkHandler:
    return SparkHandler(jvm, lambda: EngineIdentity("spark", "0", "sha256:0", "none", "test"))


def asked(handler, sql, changes, versions, unsaid=None):
    given = tuple(
        ValidateInput(query_alias=alias, dataset_id=dataset_of(alias), schema=from_arrow(COLUMNS), vocab=Vocab(),
                      changelog=alias in changes, unsaid=unsaid)
        for alias in "ab"
    )  # fmt: skip
    tables = tuple(TemporalTable(name=name, primary_key=(key,)) for name, key in versions.items())
    transform = TransformSql(engine="spark", queries=(SqlQueryStep(query=sql),), temporal_tables=tables or None)
    return handler.validate(ValidateRequest(transform=transform, inputs=given, vocab=Vocab()))


@pytest.mark.parametrize("each", ROWS, ids=[f"{at}-{each.code}" for at, each in enumerate(ROWS)])
def test_a_hint_that_is_followed_is_accepted(each, handler):
    said = asked(handler, each.sql, each.changes, each.versions)
    assert not said.ok
    found = [one for one in said.diagnostics if one.code == each.code]
    assert found, said.diagnostics
    assert each.words in (found[0].replace or ""), found
    followed = each.followed.replace("{0}", each.words).replace("{}", each.words)
    then = asked(handler, followed, each.changes, {**each.versions, **each.declares})
    assert then.ok, (followed, then.diagnostics)


def codes():
    """All that a query can be refused with, as they stand in the source."""
    found = {denial.code for _, denial in DENIALS.values() if denial is not None}
    for part in ("analysis/*.py", "sql/*.py", "planning/lateness.py", "execution/transform.py"):
        for path in ENGINE.glob(part):
            for call in ast.walk(ast.parse(path.read_text())):
                name = call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""
                named = (
                    [each.value for each in call.keywords if each.arg == "rule"] if isinstance(call, ast.Call) else []
                )
                given = (
                    call.args[:1]
                    if name in ("QueryFinding", "OperatorRefusal")
                    else named
                    if name in ("QueryRefused", "Invalid")
                    else []
                )
                found |= {each.value for each in given if isinstance(each, ast.Constant)}
    return found


def test_every_code_has_a_hint_that_is_followed():
    assert codes() - {each.code for each in ROWS} - set(ELSEWHERE) == set()


def test_an_as_of_join_onto_a_chain_that_does_not_say_enough_is_warned_of(handler):
    (row,) = (each for each in ROWS if each.code == "as-of-changelog")
    said = asked(handler, row.sql, (), {}, unsaid=True)
    assert (said.ok, [(one.code, one.severity) for one in said.diagnostics]) == (
        True, [("as-of-unsaid", Severity.WARNING)],
    )  # fmt: skip
    assert row.words in said.diagnostics[0].replace
    then = asked(handler, row.followed, (), row.declares, unsaid=True)
    assert (then.ok, then.diagnostics) == (True, ())
    assert not asked(handler, row.sql, (), {}).diagnostics
