"""Texts that act, or that end an engine, while somebody only looks at them: refused before they are analysed.

Each form goes every way that a stranger's text comes: as a transform, as a preprocess query, as a raw query; texts that
are only huge go two of them each time. Refused is not enough, since Spark acts first: nothing may have been written,
and the JVM is the same.
"""

from __future__ import annotations

import collections
import os
import random
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import ParseException

from chain.data.arrow_schema import from_arrow
from chain.data.parquet import write_slice
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.model.source import SqlQueryStep, TransformSql
from engines.contract import (
    EngineIdentity,
    InvalidQuery,
    RawQueryRequest,
    ValidateInput,
    ValidateRequest,
    Vocab,
)
from engines.request_control import RequestControl
from engines.spark.analysis.functions import FUNCTIONS
from engines.spark.handler import SparkHandler
from engines.spark.ingest.preprocess import preprocess
from worlds.depth import share, stride

pytestmark = pytest.mark.engine
TIME = pa.timestamp("ms", "UTC")
COLUMNS = pa.schema(
    [
        *(("offset", pa.int64()), ("op", pa.int32()), ("system_time", TIME), ("event_time", TIME)),
        *(("k", pa.string()), ("v", pa.int64())),
    ]
)
MUTANTS = int(os.environ.get("ODF_FUZZ", "0")) or share(300)
FIRST_MUTANT = int(os.environ.get("ODF_FUZZ_FIRST", "0"))
"""Mutated queries, and the seed of the first; a long run sets ODF_FUZZ, and goes on from ODF_FUZZ_FIRST."""

ACTS = {
    "execute immediate": "execute immediate 'insert overwrite directory \"{marker}\" using parquet select 1'",
    "execute immediate of a query": "execute immediate 'select * from input'",
    "execute immediate into a variable": "execute immediate 'select 1' into x",
    "a program in the stream": "select transform(k) using '/bin/sh -c \"touch {marker}\"' as (k) from input",
    "a program inside": "select k from (select transform(k) using '/bin/touch {marker}' as (k) from input)",
    "a program in WITH": "with c as (from input map k using '/bin/touch {marker}' as k) select * from c",
    "a program in an expression": "select * from input where exists (from input reduce k using '/bin/touch {marker}')",
    "insert overwrite directory": "insert overwrite directory '{marker}' using parquet select 1",
    "from … insert": "from input insert overwrite directory '{marker}' using parquet select *",
    "with … insert": "with c as (select 1) insert overwrite directory '{marker}' using parquet select * from c",
    "insert": "insert into input select 1",
    "create table": "create table t using parquet location '{marker}' as select 1",
    "create view": "create or replace temporary view input as select 1",
    "create function": "create temporary function f as 'x.Y' using jar '{marker}'",
    "a function of SQL": "create temporary function f(x int) returns int return x",
    "set": "set spark.sql.session.timeZone = Asia/Tokyo",
    "set of a catalog": "set catalog other",
    "add jar": "add jar '{marker}'",
    "add file": "add file '/etc/passwd'",
    "cache": "cache table input",
    "cache of a query": "cache table t as select 1",
    "a variable": "declare or replace variable x int default 1",
    "set variable": "set variable x = 1",
    "call": "call system.run('x')",
    "a script": "begin declare x int default 1; select x; end",
    "explain": "explain analyze select 1",
    "describe": "describe query select 1",
    "show": "show tables",
    "load": "load data inpath '/etc/passwd' into table t",
    "merge": "merge into a using b on a.k = b.k when matched then delete",
    "a file as a table": "select * from parquet.`/etc/passwd`",
    "a file as text": "select * from text.`/etc/passwd`",
    "a file as binary": "select * from binaryFile.`/etc/passwd`",
    "another catalog": "select * from spark_catalog.default.input",
    "read_files": "select * from read_files('/etc/passwd')",
    "a worker's log": "select * from python_worker_logs()",
    "a table function": "select * from sql_keywords()",
    "a function over a table": "select * from f(table(input))",
    "a name that is computed": "select * from identifier('inp' || 'ut')",
    "a column that is computed": "select identifier('k') from input",
    "a function that is computed": "select identifier('now')() from input",
    "java": "select java_method('java.lang.System', 'nanoTime') from input",
    "reflect": "select reflect('java.lang.Runtime', 'getRuntime') from input",
    "try_reflect": "select try_reflect('java.util.UUID', 'randomUUID') from input",
    "java in a lateral view": "select * from input lateral view explode(array(reflect('a', 'b'))) t as x",
    "java in a pivot": "select * from input pivot (max(java_method('a', 'b')) for k in ('x'))",
    "java in VALUES": "select * from values (reflect('java.lang.System', 'exit', 0))",
    "java in a named window": "select sum(v) over w from input window w as (partition by reflect('a', 'b'))",
    "java in a hint": "select /*+ broadcast(reflect('a', 'b')) */ * from input",
    "java in a pipe": "from input |> extend reflect('a', 'b') as x",
    "java in EXCEPT": "select * except (k), reflect('a', 'b') from input",
    "a function of a catalog": "select spark_catalog.default.f(k) from input",
    "a descriptor from a file": "select from_protobuf(k, 'M', '/etc/passwd') from input",
    "the past of a table": "select * from input version as of 1",
    "a stream": "select * from stream input",
    "an unknown hint": "select /*+ whatever(1) */ * from input",
}  # fmt: skip
CTE = "with c0 as (select * from input){} select * from c{}"


def _chain(length, make):
    return CTE.format("".join(f", c{n + 1} as ({make(f'c{n}')})" for n in range(length)), length)


def _nested(count, before, after, around="select {} from input"):
    return around.format(before * count + "v" + after * count)


HUGE = {
    "a name of 1.5 GB": "select * from identifier(repeat('a', 1500000000))",
    "a constant of 1.5 GB": "select named_struct(repeat('a', 1500000000), 1) as x from input",
    "a constant in steps": "select named_struct(repeat(repeat('a', 60000), 60000), 1) as x from input",
    "a computed length": "select named_struct(repeat('a', 40000 * 40000), 1) as x from input",
    "padding": "select lpad(k, 2000000000) from input",
    "spaces": "select space(2000000000) from input",
    "a list": "select array_repeat(1, 2000000000) from input",
    "a sequence": "select percentile(v, sequence(0, 2000000000)) from input",
    "a sequence of times": "select * from values (sequence(date'0001-01-01', date'9999-01-01', interval '1' second))",
    "a width": "select format_string('%1999999999d', 1) from input",
    "a regular expression": "select named_struct(cast('" + "a" * 40 + "!' rlike '(a+)+$' as string), 1) from input",
    "LIKE": "select * from values ('" + "a" * 400 + "' like '" + "%a" * 100 + "b')",
    "distance": "select * from values (levenshtein('" + "a" * 9999 + "', '" + "b" * 9999 + "'))",
    "a table of its own": "select * from values (repeat('a', 1999999999))",
    "a pivot": "select * from input pivot (sum(v) for k in (repeat('a', 1999999999)))",
    "a schema": "select from_json(k, 'x " + "array<" * 1000 + "int" + ">" * 1000 + "') as x from input",
    "a computed schema": "select from_json(k, repeat('array<', 1000)) as x from input",
    "a schema of JSON": "select schema_of_json('" + "[" * 500 + "]" * 500 + "') from input",
    "doubled joins": _chain(15, lambda c: f"select x.* from {c} x join {c} y on x.k = y.k"),
    "doubled unions": _chain(15, lambda c: f"select * from {c} union all select * from {c}"),
    "doubled columns": _chain(40, lambda c: f"select *, * from {c}"),
    "doubled products": _chain(40, lambda c: f"select x.*, y.* from {c} x, {c} y"),
    "doubled types": _chain(60, lambda c: f"select struct(k, k) as k from {c}"),
    "doubled lists": _chain(60, lambda c: f"select named_struct('a', k, 'b', k) as k from {c}"),
    "doubled subqueries": _chain(15, lambda c: f"select * from {c} where v in (select v from {c})"),
    "a cube": "select count(*) from input group by cube(" + ", ".join(f"k || {n}" for n in range(40)) + ")",
    "rollups": "select count(*) from input group by " + ", ".join(["rollup(k, v, op)"] * 9),
    "windows without end": "select window(event_time, '100000 days', '1 second').end from input group by 1",
    "windows of intervals": "select window(event_time, interval '99999' day, interval '1' second).end from input",
    "brackets": _nested(2000, "(", ")"),
    "brackets around a table": f"select * from {'(' * 2000}input{')' * 2000}",
    "calls": _nested(1000, "upper(", ")"),
    "calls that are written out": _nested(60, "nullif(", ", 1)"),
    "between": _nested(60, "(", " between 1 and 2)"),
    "signs": _nested(10000, "- ", ""),
    "pluses": _nested(10000, "+ ", ""),
    "NOT": _nested(10000, "not ", ""),
    "CASE": _nested(1000, "case when true then ", " end"),
    "subqueries": f"select * from {'(select * from ' * 500}input{')' * 500}",
    "sums": "select " + "v + " * 10000 + "v from input",
    "concatenations": "select " + "k || " * 5000 + "k from input",
    "unions": "select * from input union all " * 3000 + "select * from input",
    "pipes": "from input " + "|> where v > 1 " * 3000,
    "lambdas": "select transform(array(1), " + "x -> " * 5000 + "1) from input",
    "types": f"select cast(v as {'array<' * 1000}int{'>' * 1000}) from input",
    "subscripts": _nested(2000, "v[", "]"),
    "words": "select " + ", ".join("v" for _ in range(60_000)) + " from input",
    "WITH in WITH": "with a as (" * 500 + "select 1" + ") select * from a" * 500,
    "a loop": "with recursive c as (select 1 as x union all select x + 1 from c) select * from c",
}


@pytest.fixture
def handler(spark_root):
    return SparkHandler(spark_root, lambda: EngineIdentity("spark", "0", "sha256:0", "none", "test"))


def as_transform(handler, sql, schema=COLUMNS):
    given = ValidateInput(query_alias="input", dataset_id=DatasetId.from_public_key(b"i" * 32),
                          schema=from_arrow(schema), vocab=Vocab(), changelog=False)  # fmt: skip
    transform = TransformSql(engine="spark", queries=(SqlQueryStep(query=sql),))
    return handler.validate(ValidateRequest(transform=transform, inputs=(given,), vocab=Vocab()))


def as_raw_query(handler, sql, folder):
    path = folder / "input"
    if not path.exists():
        write_slice(COLUMNS.empty_table(), path)
    transform = TransformSql(engine="spark", queries=(SqlQueryStep(query=sql),))
    request = RawQueryRequest(input_data_paths=(str(path),), transform=transform, output_data_path=str(folder / "out"))
    return handler.raw_query(request, RequestControl())


def as_preprocess(spark, sql):
    """What was said against it."""
    with pytest.raises((Invalid, ParseException)) as refused:
        preprocess(spark, [], COLUMNS, TransformSql(engine="spark", queries=(SqlQueryStep(query=sql),)))
    return refused.value


_PROGRAMS = ("a program", "java", "reflect", "try_reflect", "a function of a")
_NAMES = ("a file", "another catalog", "read_files", "a worker", "a table function", "a function over", "a descriptor")
PROGRAMS = [form for form in ACTS if form.startswith(_PROGRAMS)]
NAMES = [form for form in ACTS if "comput" in form or form.startswith(_NAMES)]


@pytest.mark.parametrize("form", [form for form in ACTS if form not in (*PROGRAMS, *NAMES)])
def test_nothing_acts_while_it_is_judged(form, handler, spark, tmp_path):
    """Attack T-QUERY-01: a statement with effects during analysis: EXECUTE IMMEDIATE, INSERT … DIRECTORY, CREATE, SET,
    ADD JAR, CACHE, DECLARE, CALL, a script.

    Defence: operators are allowed by name, as parsed, before analysis; the same for transforms, preprocess and raw
    queries.
    """
    refused_every_way(form, handler, spark, tmp_path)


@pytest.mark.parametrize("form", PROGRAMS)
def test_no_program_is_run_by_a_query(form, handler, spark, tmp_path):
    """Attack T-QUERY-01: a program in a query: TRANSFORM … USING, MAP, REDUCE; `java_method`, `reflect`, functions of
    catalogs and jars.

    Defence: refused as parsed, at every place: in WITH, VALUES, PIVOT, hints, named windows, pipes.
    """
    refused_every_way(form, handler, spark, tmp_path)


@pytest.mark.parametrize("form", NAMES)
def test_a_query_names_its_inputs_alone(form, handler, spark, tmp_path):
    """Attack T-QUERY-01: files and catalogs by name: ``parquet.`/etc/passwd` ``, `read_files`, `identifier(…)`,
    `from_protobuf`, table functions.

    Defence: a query may name its inputs only, by one part each; computed names are refused.
    """
    refused_every_way(form, handler, spark, tmp_path)


def refused_every_way(form, handler, spark, tmp_path):
    marker = tmp_path / "marker"
    sql = ACTS[form].format(marker=marker)
    answer = as_transform(handler, sql)
    assert not answer.ok
    assert len(answer.diagnostics) == 1
    assert len(answer.diagnostics[0].message) < 1500
    raw = as_raw_query(handler, sql, tmp_path)
    assert isinstance(raw, InvalidQuery), raw
    as_preprocess(spark, sql)
    assert not marker.exists()
    assert not (tmp_path / "out").exists()


def ways_of(form):
    """Besides a transform: one each time, since all texts come to Spark through one gate, and both each night."""
    step = min(stride(), 2)
    return ("raw", "preprocess")[list(HUGE).index(form) % step :: step]


@pytest.mark.parametrize("form", HUGE)
def test_no_text_ends_an_engine(form, handler, spark, tmp_path):
    """Attack T-QUERY-02: a text that ends or occupies the engine when it is parsed: a constant of 1.5 GB, fifteen
    doubled WITHs, a cube of forty columns, windows a second apart, brackets by the thousand.

    Defence: Spark's own lexer counts words, brackets and types; operators, columns and grouping sets are counted after
    expansion; long values are not computed from constants.
    """
    answer = as_transform(handler, HUGE[form])
    assert not answer.ok
    assert len(answer.diagnostics) == 1
    said = answer.diagnostics[0]
    assert said.code in ("plan-too-large", "constant-too-large", "not-a-query", "opaque-function",
                         "shape-not-supported", "failed-to-parse-too-complex"), said  # fmt: skip
    assert len(said.message) < 1500
    if "raw" in ways_of(form):
        raw = as_raw_query(handler, HUGE[form], tmp_path)
        assert isinstance(raw, InvalidQuery), raw
        assert len(raw.message) < 1500
    if "preprocess" in ways_of(form):
        as_preprocess(spark, HUGE[form])
    assert not spark.sparkContext._jsc.sc().isStopped()


@pytest.mark.parametrize(
    "sql",
    [
        "with c as (select * from input), d as (select * from c union all select * from c) select event_time, v from d",
        "select event_time, sum(v) over w as s from input window w as (partition by k, time_bucket(interval '1' day, "
        "event_time))",
        "select event_time, "
        + ", ".join(f"cast(v + {n} as decimal(10, 2)) as c{n}" for n in range(300))
        + " from input",
        "select event_time, repeat('*', 5) as x, rpad(k, 12) as y, repeat('-', least(v, 9)::int) as z from input",
        "select window(event_time, '1 day', '30 minutes').end as event_time, count(*) as c "
        "from input group by window(event_time, '1 day', '30 minutes')",
        "select event_time, transform(array(v, v + 1), x -> x + 1)[0] as x from input",
        "select event_time, x from input lateral view explode(array(1, 2)) t as x",
        "select event_time, from_json(k, 'a int, b array<struct<c: string>>').a as x from input",
        "select event_time, struct(k, v).v + 1 as x, v between 1 and 9 as y, k ilike 'A%' as z from input",
    ],
)
def test_what_is_honest_is_let_through(sql, handler):
    answer = as_transform(handler, sql)
    assert answer.ok, answer.diagnostics


LONG = (
    "repeat(k, v)", "lpad(k, v, 'x')", "rpad(k, cast(v as int))", "space(v)", "array_repeat(k, v)", "sequence(1, v)",
    "sequence(v, v + 9, v)", "repeat(str => k, n => v)", "repeat(repeat(k, 4000), 4000)", "repeat(k, 60000)",
    "transform(sequence(1, 2000000), x -> k)", "aggregate(sequence(1, 60), k, (acc, x) -> concat(acc, acc))",
    "aggregate(sequence(1, 60), k, (acc, x) -> acc || acc)", "reduce(array(1, 2), k, (a, x) -> repeat(a, 2))",
    "replace(k, 'a', '" + "b" * 9999 + "')", "format_string('%999999d', v)", "repeat(lpad(k, 60000), 4000)",
    "sequence(date'2024-01-01', cast(k as date))", "sequence(event_time, event_time + interval '9' day, interval '1' "
    "second / 1000000)", "repeat(k, greatest(v, 9))", "repeat(k, -v)",
    "replace(k, 'a', k)", "replace(k, 'a', left(k, 5000))", "array_join(split(k, ''), k)", "concat_ws(k, split(k, ''))",
    "array_join(split(k, ''), ',', k)", "regexp_replace(k, 'a', k)", "regexp_replace(k, '(?=(.*))', '$1')",
    "regexp_extract_all(k, '(?s)(?<=(.*))', 1)", "regexp_extract_all(k, k, 1)", "format_number(v, cast(v as int))",
    "array_insert(array(v), cast(v as int), v)", "array_insert(array(v), least(cast(v as int), 9), v)",
    "transform(split(k, ''), x -> k)", "transform(split(k, ''), x -> transform(split(k, ''), y -> x))",
    "zip_with(split(k, ''), split(k, ''), (x, y) -> concat(x, k))", "transform_values(str_to_map(k), (a, b) -> k)",
    "aggregate(split(k, ''), '', (acc, x) -> concat(acc, k))", "format_string('" + "%1$s" * 5000 + "', k)",
    "hex(" * 13 + "k" + ")" * 13, "to_json(struct(" * 5 + "k" + "))" * 5,
)  # fmt: skip


@pytest.mark.parametrize("call", LONG)
def test_no_row_decides_how_much_memory_a_query_takes(call, handler, spark, tmp_path):
    """Attack T-QUERY-02: a row that decides how much memory a query takes: `repeat(k, v)`, `sequence(a, b)`,
    `replace(k, 'a', j)`, a value doubled step by step.

    Defence: lengths, and inserted values, need a constant bound in the text, and growth is multiplied through all
    steps.

    For transforms, raw queries and preprocess queries; with what to write instead.
    """
    answer = as_transform(handler, f"select event_time, {call} as x from input")
    assert [one.code for one in answer.diagnostics] == ["length-not-bounded"], answer.diagnostics
    assert answer.diagnostics[0].replace
    assert isinstance(as_raw_query(handler, f"select {call} as x from input", tmp_path), InvalidQuery)
    assert as_preprocess(spark, f"select {call} as x from input").rule == "length-not-bounded"


@pytest.mark.parametrize(
    "call", ["cast(k as timestamp)", "to_timestamp(k)", "hour(k)", "from_json(k, 'a timestamp').a", "uuid()",
             "collect_list(k)", "first(k)", "kll_sketch_agg_bigint(v)"]
)  # fmt: skip
def test_a_preprocess_query_makes_the_same_rows_on_every_day_and_in_every_order(call, spark):
    refused = as_preprocess(spark, f"select {call} as x from input")
    assert refused.rule == "preprocess-deterministic"
    assert refused.hint


def test_a_preprocess_query_reads_times_by_a_pattern(spark):
    sql = "select to_timestamp(k, 'yyyy-MM-dd') as event_time, sin(v) as x, cast(v as timestamp) as y from input"
    made = preprocess(spark, [], COLUMNS, TransformSql(engine="spark", queries=(SqlQueryStep(query=sql),)))
    assert made.column_names == ["event_time", "x", "y"]


def test_growth_is_counted_through_the_steps_of_a_query(handler):
    doubled = _chain(14, lambda c: f"select concat(k, k) as k from {c}")
    answer = as_transform(handler, doubled)
    assert [one.code for one in answer.diagnostics] == ["length-not-bounded"], answer.diagnostics
    bounded = ("repeat(k, least(cast(v as int), 100))", "lpad(k, 12, '0')", "array_repeat(v, 3)", "sequence(v, v + 9)",
               "sequence(cast(event_time as date), least(date'2024-05-01', date_add(cast(event_time as date), 99)))",
               "aggregate(array(k, k), '', (acc, x) -> concat(acc, x))", "replace(k, 'a', 'bb')", "space(3)",
               "sequence(event_time, event_time + interval '1' day, interval '1' hour)",
               "replace(k, 'a', left(k, 100))", "array_join(split(k, ','), left(k, 9), '-')", "hex(k)", "concat(k, k)",
               "concat_ws(left(k, 3), k, k)", "concat_ws('-', k, k)", "regexp_replace(k, '(a)(b)', '$2$1')",
               "regexp_replace(k, '(?=a)', '-')", "regexp_extract_all(k, '(a)', 1)", "format_string('%s-%s', k, k)",
               "array_insert(array(v), greatest(-9, least(cast(v as int), 9)), v)", "format_number(v, 2)",
               "format_number(v, '#,##0')", "transform(split(k, ','), x -> concat(x, left(k, 100)))",
               "transform(split(k, ','), x -> if(x = k, 1, v + 1))", "transform(array(v, v + 1), x -> k)",
               "transform(split(k, ','), x -> named_struct('x', x, 'v', cast(v as bigint)))", "substr(k, 2, 3)",
               "aggregate(split(k, ','), 0L, (acc, x) -> acc + v)", "overlay(k placing k from 2)")  # fmt: skip
    for call in bounded:
        answer = as_transform(handler, f"select event_time, {call} as x from input")
        assert answer.ok, (call, answer.diagnostics)


def test_a_query_of_many_steps_is_measured_whole(handler):
    steps = tuple(
        SqlQueryStep(query=f"select * from {source} union all select * from {source}", alias=f"s{number}")
        for number, source in enumerate(["input", *(f"s{n}" for n in range(20))])
    )
    given = ValidateInput(query_alias="input", dataset_id=DatasetId.from_public_key(b"i" * 32),
                          schema=from_arrow(COLUMNS), vocab=Vocab(), changelog=False)  # fmt: skip
    transform = TransformSql(engine="spark", queries=(*steps[:-1], SqlQueryStep(query=steps[-1].query)))
    answer = handler.validate(ValidateRequest(transform=transform, inputs=(given,), vocab=Vocab()))
    assert [one.code for one in answer.diagnostics] == ["plan-too-large"]


TYPED = pa.schema([*COLUMNS, ("tags", pa.list_(pa.string())), ("d", pa.float64())])
SAID = {
    "select event_time, coalesce(tags, array()) as t from input": "",
    "select event_time, cast(tags as array<int>) as x from input": "",
    "select event_time, map_keys(cast(map(k, v) as map<string, string>)) as x from input": "",
    "select event_time, cast(struct(v) as struct<a: string>) as x from input": "",
    "select window(event_time, '1 day').end as event_time, percentile(v, array(0.1, 0.9)) as p from input "
    "group by window(event_time, '1 day')": "",
    "select window(event_time, '2 days', '1 day').end as event_time, count(*) as c from (select event_time from input "
    "union all select event_time from input) group by window(event_time, '2 days', '1 day')": "",
    "select cast(event_time as timestamp_ntz) as event_time from input": "output-type",
    "select event_time, timestamp_ntz'2024-01-01' as x from input": "output-type",
    "select event_time, cast(k as timestamp(3)) as x from input": "invalid-timestamp-precision",
    "select event_time, array() as x from input": "output-type",
    "select event_time, struct(array()) as x from input": "output-type",
}


@pytest.mark.parametrize("sql", SAID)
def test_no_exception_reaches_a_person(sql, handler):
    """Accepted, or refused in words, by the rule that is said."""
    answer = as_transform(handler, sql, TYPED)
    assert ("" if answer.ok else answer.diagnostics[0].code) == SAID[sql], answer.diagnostics
    assert all("Exception" not in one.message for one in answer.diagnostics)


@pytest.mark.parametrize(
    "sql",
    [
        "{0} union all ({0} except {0})",
        "({0} intersect {0}) union all {0}",
    ],
)
def test_what_is_refused_below_a_union_is_said_alone(sql, handler):
    answer = as_transform(handler, sql.format("select event_time, k from input"))
    assert [one.code for one in answer.diagnostics] == ["shape-not-supported"]


_WORDS = {"and", "or", "not", "in", "like", "ilike", "rlike", "regexp", "between", "when", "div", "cast", "extract"}
CALLED = sorted(name for name in FUNCTIONS if name.isidentifier() and name not in _WORDS)
SEEDS = (
    "select event_time, k, v * 2 as v from input where v > 1 and k like 'a%'",
    "select window(event_time, '1 day', '6 hours').end as event_time, k, sum(v) as s from input "
    "group by window(event_time, '1 day', '6 hours'), k having count(*) > 1",
    "with c as (select event_time, k, v from input) select c.event_time, c.k from c join input b on c.k = b.k and "
    "c.event_time between b.event_time - interval '1' day and b.event_time",
    "select event_time, coalesce(k, 'x') as t, hash(k, v) as h, v % 7 as b from input",
    "select time_bucket(interval '1' day, event_time) as event_time, percentile(v, 0.5) as p, max(k) as e from input "
    "group by 1",
    "select event_time, v, row_number() over (partition by time_bucket(interval '1' day, event_time) order by v, "
    "event_time) as n from input",
    "select event_time, to_timestamp(k, 'yyyy-MM-dd') as t, map_entries(map(k, v)) as x from input",
    "select event_time, from_json(k, 'a int').a as x, transform(array(v), e -> e + 1) as y from input union all "
    "select event_time, 1, array(2) from input",
    "select event_time, case when v > 1 then 'x' else date_format(event_time, 'y') end as x, v from input "
    "lateral view explode(sequence(1, 3)) t as e",
    "select k, count(*) as c, sum(v) as s, max(event_time) as e from input group by k",
)
PIECES = (
    "select", "from", "where", "group by", "(", ")", ",", "input", "k", "v", "*", "event_time", "'a'", "1", "null",
    "->", "union all", "join", "on", "lateral view explode(array(1)) t as x", "with c as (select 1)",
    "cast(k as array<int>)", "cast(v as struct<a: int>)", "cast(k as map<int, int>)", "coalesce(k, array())",
    "repeat('a', 1500000000)", "identifier('k')", "over (order by v)", "window(event_time, '1 day', '1 second')",
    "execute immediate 'select 1'", "transform(k) using 'sh'", "interval '1' day", "timestamp'now'", "::", "[0]", ".",
    "/*", "--", "'", "`", ";", "|>", "order by", "limit 1", "cube(k, v)", "try_cast(k as date)", "array()",
    "struct()", "0.1e400", "-", "not", "case", "end", "1500000000", "percentile(v, array(2.0))", "lag(v, -1)",
    "timestamp_ntz'2024-01-01'", "decimal(99, 1)", "%", "{}", "\\", "x'0g'", "stack(1000000, 1)", "from_json(k, 'a')",
    "date_trunc('x', event_time)", "time_bucket(interval '0' day, event_time)",
)  # fmt: skip


TOKEN = re.compile(r"'(?:[^'\\\\]|\\\\.)*'|->|<=|>=|<>|::|\w+|\s+|.", re.DOTALL)
NAMES = frozenset("event_time k v c b x e input".split())  # noqa: SIM905
OPERATORS = ("+", "-", "*", "/", "%", "=", "<", ">", "<=", ">=", "<>", "and", "or", "like", "||", "div")
WRAPPED = (
    "cast({} as string)",
    "cast({} as bigint)",
    "cast({} as decimal(38,10))",
    "try_cast({} as timestamp)",
    "({} + v)",
    "case when {} is null then k else 'x' end",
    "{}::date",
    "array({0}, {0})",
    "struct({} as a).a",
    "map({0}, {0})[{0}]",
    "transform(array({0}), e -> e)",
    "({0} between {0} and {0})",
    "({0} in ({0}, {0}))",
    "-{}",
    "not {}",
    "sum({}) over (partition by k order by event_time)",
    "lag({}) over (order by event_time)",
    "max({})",
    "count(distinct {})",
    "repeat(k, least({}, 9))",
    "(select max({}) from input)",
    "aggregate(array({0}), {0}, (a, e) -> a)",
)
ATOMS = (
    "k", "v", "op", "event_time", "'a'", "''", "null", "1", "0", "-1", "9223372036854775807", "1e308D", "true",
    "array()",
    "x'00'", "date'2024-02-29'", "timestamp'2024-01-01'", "timestamp'now'", "interval '1' day", "interval '1' month",
    "0.1", "count(*)", "'2024-01-01 00:00:00'", "time_bucket(interval '1' day, event_time)", "current_date",
    "window(event_time, '1 day')", "repeat(k, v)", "sequence(1, v)", "1.0BD", "named_struct('a', 1)", "map(k, v)",
)  # fmt: skip
WHOLE = (
    "select * from ({}) as x",
    "with c as ({}) select * from c",
    "{0} union all {0}",
    "select distinct * from ({}) as x",
    "select event_time, count(*) as n from ({}) as x group by event_time",
    "select * from ({}) as x where v > 1",
    "select * from ({}) as x limit 3",
    "select * from ({}) as x order by 1",
    "select x.* from ({0}) as x join ({0}) as y on x.event_time = y.event_time",
    "select event_time, explode(array(1, 2)) as n from ({}) as x",
    "select * from ({0}) as x left anti join input on x.event_time = input.event_time",
    "({}) except ({})",
)


def spans(tokens):
    """Where the atoms of a query are: names of columns, constants and calls, so that another may stand there."""
    for at, token in enumerate(tokens):
        called = at + 1 < len(tokens) and tokens[at + 1] == "("
        if called and token.isidentifier() and token not in ("in", "as", "from", "over", "by", "and", "on", "join"):
            depth = 0
            for end in range(at + 1, len(tokens)):
                depth += (tokens[end] == "(") - (tokens[end] == ")")
                if not depth:
                    yield at, end + 1
                    break
        elif not called and (token in NAMES or token[0] in "'0123456789") and "as" not in tokens[max(0, at - 2) : at]:
            yield at, at + 1


def mutated(rng):
    """A query that most often still is one: its parts stand for others of their kind."""
    sql = rng.choice(SEEDS)
    for _ in range(rng.randint(1, 4)):
        tokens = TOKEN.findall(sql)
        start, end = rng.choice(list(spans(tokens)) or [(0, 0)])
        here = "".join(tokens[start:end])
        match rng.randrange(16):
            case 0 | 1 | 9 | 10:
                tokens[start:end] = [rng.choice(ATOMS)]
            case 2 | 3 | 11:
                tokens[start:end] = [rng.choice(WRAPPED).replace("{0}", here).replace("{}", here)]
            case 4 | 5 | 12:
                given = [rng.choice((here, *ATOMS)) for _ in range(rng.randint(1, 3))]
                tokens[start:end] = [f"{rng.choice(CALLED)}({', '.join(given)})"]
            case 6 | 13 | 14:
                other = TOKEN.findall(rng.choice(SEEDS))
                tokens[start:end] = ["".join(other[slice(*rng.choice(list(spans(other))))])]
            case 7:
                places = [at for at, token in enumerate(tokens) if token in OPERATORS]
                if places:
                    tokens[rng.choice(places)] = rng.choice(OPERATORS)
            case 8 if len(sql) < 4000:
                tokens = [rng.choice(WHOLE).replace("{0}", sql).replace("{}", sql)]
            case _:
                words = sql.split(" ")
                at = rng.randrange(len(words) + 1)
                words[at : at + rng.randint(0, 2)] = [rng.choice(PIECES)]
                tokens = [" ".join(words)]
        sql = "".join(tokens)
    return sql


def judged(handler, seed):
    """How a mutated query was answered, and what of that nobody should see."""
    sql = mutated(random.Random(seed))
    try:
        answer = as_transform(handler, sql)
    except Exception as fault:  # noqa: BLE001 - whatever it is, a person would have seen it
        return "exception", [(seed, sql[:300], repr(fault)[:300])]
    said = [one.message for one in answer.diagnostics]
    bad = answer.ok == bool(said) or any("Exception" in text or "\tat " in text or len(text) > 1500 for text in said)
    faults = [one for one in answer.diagnostics if one.code == "spark-fault"]
    verdict = "accepted" if answer.ok else answer.diagnostics[0].code
    return verdict, [(seed, sql[:300], faults or said)] if bad or faults else []


def test_mutated_queries_are_answered_and_the_engine_stays(handler, spark_root):
    """Attack T-QUERY-02: arbitrary query text.

    Defence: mutated queries: each gets an answer, and the JVM stays the same; ODF_FUZZ sets how many.

    Each has a verdict; what is wrong is said in words: nobody sees an exception. Several at a time, as they come: a
    judgement waits for its JVM most of the time.
    """
    jvm = spark_root._jvm.java.lang.ProcessHandle.current().pid()
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(partial(judged, handler), range(FIRST_MUTANT, FIRST_MUTANT + MUTANTS)))
    assert not [each for _, wrong in answers for each in wrong]
    assert spark_root._jvm.java.lang.ProcessHandle.current().pid() == jvm
    verdicts = collections.Counter(verdict for verdict, _ in answers)
    unread = sum(number for code, number in verdicts.items() if "parse" in code)
    assert unread < MUTANTS // 3, verdicts
    assert verdicts["accepted"] > MUTANTS // 20, verdicts
    print(verdicts)


def test_texts_go_to_spark_through_one_gate():
    """Attack T-QUERY-01: a code change that passes query text to Spark past the checks.

    Defence: text is passed to Spark in one module only.

    Nothing else in the engine gives Spark a text that somebody else wrote.
    """
    here = Path(__file__).parents[3] / "engines" / "spark"
    gives = re.compile(r"\.sql\((?!\))|\.parsePlan\(|\.executePlan\(")  # `.sql()` asks an expression for its text
    found = {path.name for path in here.rglob("*.py") if gives.search(path.read_text())}
    ours = {"cluster.py", "warm_up.py", "parsing.py"}
    assert found - ours == {"expressions.py"}  # expressions that the engine itself makes
