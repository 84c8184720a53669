"""The table of functions is the registry of the pinned Spark, and each accepted row gives the same everywhere.

Each accepted function is called with each type that its row names, over values at the edges of those types: as rows
come, in other orders and partitions, in two slices, compiled and interpreted, under another locale and zone of the
JVM, and as recorded on another day by another process. Values are compared by what they show, bit for bit. ``ODF_SOAK``
calls all combinations of types, and composes more functions; ``ODF_RECORD`` writes the recorded digests anew.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import random
import re
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.functions import lit
from pyspark.sql.types import ArrayType, MapType, StringType, StructField, StructType, YearMonthIntervalType

from chain.errors import Invalid
from engines.spark.analysis.determinism import examine
from engines.spark.analysis.functions import FUNCTIONS, TABLE_FUNCTIONS
from engines.spark.analysis.tree import parse_plan
from engines.spark.catalyst.exact import complete_plan
from engines.spark.catalyst.plans import frame_of, items
from engines.spark.sql.parsing import analyse_query, as_json, parse_query
from worlds.depth import stride

pytestmark = pytest.mark.engine
SOAK = "ODF_SOAK" in os.environ
RECORDED = Path(__file__).parents[2] / "golden" / "functions.json"
TYPES = {
    "boolean": ("boolean", "true false true false"),
    "tinyint": ("tinyint", "1 127 -128 0"),
    "smallint": ("smallint", "2 32767 -32768 0"),
    "int": ("int", "1 3 -2 7"),
    "bigint": ("bigint", "4 9223372036854775807 -9223372036854775808 0"),
    "float": ("float", "0.5 -0.0 NaN Infinity 1e-40 -3.25"),
    "double": ("double", "0.1 -0.0 NaN -Infinity 1e300 5e-324 1e16 -7.5"),
    "decimal": ("decimal(20,2)", "1.10 999999999999999999.99 -999999999999999999.99 0.00 -0.01"),
    "text": ("string", "2024|a|İstanbul ı ß|{\"a\": 1}|2024-02-29|12:34|h\u00e9llo 😀 w|http://x.y/p?q=1|-1.5|e\u0301|"),
    "binary": ("string", "a|\u00ff😀||\u0000"),
    "wide": ("decimal(38,2)", f"{7 * 10**35}.99 {7 * 10**35}.99 -{7 * 10**35}.99 0.01"),
    "date": ("date", "2024-02-29 0001-01-01 9999-12-31 1970-01-01 1582-10-04"),
    "timestamp": ("timestamp", "1970-01-01 00:01:00|2024-03-31 01:30:00|0001-01-01|1969-12-31 23:59:59.999999"),
    "local": ("timestamp_ntz", "2024-03-31T01:30:00|0001-01-01T00:00:00|9999-12-31T23:59:59.999999"),
    "days": ("interval day to second", "INTERVAL '1 02:03:04.5' DAY TO SECOND|INTERVAL '-1 00:00:00' DAY TO SECOND"),
    "months": ("interval year to month", "INTERVAL '1-2' YEAR TO MONTH|INTERVAL '-0-1' YEAR TO MONTH"),
    "ints": ("array<int>", "array(3, 1, 2)|array()|array(1, null, 1)"),
    "texts": ("array<string>", "array('b', 'a', 'İ')|array()|array('', null, 'a')"),
    "doubles": ("array<double>", "array(0.5D, double('NaN'))|array(-0.0D, 0.0D, null)|array()"),
    "map": ("map<string,int>", "map('b', 1, 'a', null)|map()|map('', 2)"),
    "struct": ("struct<a:int,b:string>", "named_struct('a', 1, 'b', 'İ')|named_struct('a', null, 'b', '')"),
}  # fmt: skip
"""Of each type its name in SQL and values at its edges."""
SETS = {
    "any": tuple(kind for kind in TYPES if kind != "wide"), "whole": ("tinyint", "smallint", "int", "bigint"),
    "number": ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal"),
}  # fmt: skip
"""``wide`` is of few: its values do not fit into one another's sums."""
NAMED = re.compile(rf"\b({'|'.join((*TYPES, *SETS))})\b(?!\()")
ROWS = 12
PINNED = {
    "lower(`text`)", "lcase(`text`)",
    "time_bucket(INTERVAL '1' MONTH, `timestamp`, TIMESTAMP '2024-06-15 09:00:00')",
}  # fmt: skip
"""Calls that ask the JVM for its locale or its zone, which the engine pins where it starts one."""
TOO_WIDE = {"avg(`wide`)", "mean(`wide`)"}
"""Calls whose results do not fit into their type, decimal(38, 6); test_exact_aggregates has those that do."""
FAILING, COMPOSED = "calls that fail at the edges", "compositions"
ALL, FEWER = "true", ("id = 0", "id = 4")
"""Rows: all, the one of ordinary values, the one of nulls."""
INFIX = {*"+ - * / % & | ^ << >> >>> = == <=> < <= > >= and or div like ilike rlike regexp".split()}  # noqa: SIM905
PREFIX = {"~", "!", "not"}
WINDOWED = ("window", "session_window", "window_time", "grouping", "grouping_id")
GENERATORS = (
    "explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer", "stack", "json_tuple"
)  # fmt: skip
OF_PAIRS = ("corr", "covar", "regr_sx", "regr_sy", "regr_slope", "regr_intercept", "regr_r2")
"""Aggregates whose plans take seconds to compile: test_exact_aggregates compiles them, and asks fractions."""


def value(name, row):
    """SQL of one value; each third is null, the first never."""
    kind, listed = TYPES[name]
    values = listed.split("|") if "|" in listed else listed.split(" ")
    text = values[row % len(values)]
    if row % 5 == 4:
        return f"cast(null as {kind if name != 'binary' else 'binary'})"
    if name == "binary":
        return f"encode({quoted(text)}, 'UTF-8')"
    return f"cast({text if '(' in text or 'INTERVAL' in text else quoted(text)} as {kind})"


def quoted(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def arguments(signature):
    """Top-level arguments of a signature."""
    found, depth, quote, start = [], 0, "", 0
    for at, mark in enumerate(signature):
        if quote:
            quote = "" if mark == quote and signature[at - 1] != "\\" else quote
        elif mark in "'\"":
            quote = mark
        elif mark in "([":
            depth += 1
        elif mark in ")]":
            depth -= 1
        elif mark == "," and not depth:
            found.append(signature[start:at].strip())
            start = at + 1
    return [*found, signature[start:].strip()]


def types_of(part):
    """The types that a part of a signature stands for; none if it is SQL."""
    words = part.split("|")
    if all(word in TYPES or word in SETS for word in words):
        return [kind for word in words for kind in SETS.get(word, (word,))]
    return []


def concrete(signature):
    """Arguments in SQL, one list for each choice of types: all of each argument's come up."""
    body, _, repeated = signature.partition(" for ")
    parts = [] if body == "()" else arguments(body)
    of_t = types_of(repeated)
    choices = [of_t if part == "T" else types_of(part) for part in parts]
    longest = max((len(each) for each in choices), default=0) or 1
    number = longest if SOAK else min(longest, 5)
    for step in range(number):
        at = step * longest // number
        made = []
        for place, (part, kinds) in enumerate(zip(parts, choices, strict=True)):
            if kinds:
                made.append(f"`{kinds[at % len(kinds) if part == 'T' else (at + place) % len(kinds)]}`")
            else:
                made.append(with_columns(part, at))
        yield made


def with_columns(part, at):
    """SQL in which columns stand for names of types, but within quotes."""
    pieces = re.split(r"('(?:[^'\\\\]|\\\\.)*')", part)

    def column(found):
        kinds = SETS.get(found[1], (found[1],))
        return f"`{kinds[at % len(kinds)]}`"

    pieces[::2] = [NAMED.sub(column, piece) for piece in pieces[::2]]
    return "".join(pieces)


def call(name, given):
    if name in INFIX:
        return f"({given[0]} {name} {given[1]})"
    if name in PREFIX:
        return f"({name} {given[0]})"
    if name == "between":
        return f"({given[0]} between {given[1]} and {given[2]})"
    if name == "in":
        return f"({given[0]} in ({', '.join(given[1:])}))"
    if name == "when":
        return f"case when {given[0]} then {given[1]} end"
    if given and " within group " in given[0]:
        return f"{name}({given[0].replace(' within', ') within')}"
    return f"{name}({', '.join(given)})"


def calls(depends):
    """(name, call) of all accepted functions of a kind."""
    return [
        (row.name, call(row.name, given))
        for row in FUNCTIONS.values()
        if row.depends in depends and row.name not in (*WINDOWED, *GENERATORS)
        for signature in row.arguments
        for given in concrete(signature)
    ]


@pytest.fixture(scope="module")
def spark(jvm):
    return jvm.session().newSession()


def shown(scalar):
    """A value, bit for bit: of any year, and with the sign of zero."""
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.TimestampScalar | pa.Date32Scalar | pa.DurationScalar):
        return scalar.value
    if isinstance(scalar, pa.ListScalar):  # maps are lists of entries
        return [shown(each) for each in scalar.values]
    if isinstance(scalar, pa.StructScalar):
        return [shown(each) for each in scalar.values()]
    return scalar.as_py()


def samples(order):
    """SQL of the sample rows in an order."""
    rows = ",\n".join(f"({row}, {row % 3}, {', '.join(value(kind, row) for kind in TYPES)})" for row in order)
    return f"{rows} as t(id, g, {', '.join(f'`{kind}`' for kind in TYPES)})"


class Layout:
    """The sample rows, stored in an order and spread over tasks, and how Spark computes."""

    def __init__(self, spark, folder, order, tasks, compiled=False):
        self.spark, self.tasks, self.compiled = spark, tasks, compiled
        self.path = str(folder / f"{tasks}-{compiled}")
        spark.sql(f"select * from values {samples(order)}").coalesce(1).write.parquet(self.path)

    def rows(self, where="true"):
        frame = self.spark.read.parquet(self.path).where(where)
        return frame.repartition(self.tasks) if self.tasks > 1 else frame

    def run(self, sql, where="true"):
        """Of each column its values as they show themselves."""
        self.rows(where).createOrReplaceTempView("samples")
        return self.values(sql)

    def values(self, sql):
        self.spark.conf.set("spark.sql.codegen.wholeStage", str(self.compiled).lower())
        self.spark.conf.set("spark.sql.codegen.factoryMode", "CODEGEN_ONLY" if self.compiled else "NO_CODEGEN")
        plan = complete_plan(self.spark, analyse_query(self.spark, parse_query(self.spark, sql)))
        frame = frame_of(self.spark, plan)
        texts = {field.name: as_texts(field.dataType) for field in frame.schema}
        changed = {name: frame[name].cast(kind) for name, kind in texts.items() if kind != frame.schema[name].dataType}
        table = frame.withColumns(changed).toArrow()
        return {name: [repr(shown(each)) for each in table[name]] for name in table.column_names}


def as_texts(kind):
    """A type with texts for months, which Arrow has no values for."""
    if isinstance(kind, YearMonthIntervalType):
        return StringType()
    if isinstance(kind, ArrayType):
        return ArrayType(as_texts(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(as_texts(kind.keyType), as_texts(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, StructType):
        return StructType([StructField(each.name, as_texts(each.dataType), each.nullable) for each in kind])
    return kind


@pytest.fixture(scope="module")
def layouts(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples")
    rows = list(range(ROWS))
    plain, compiled = Layout(spark, folder, rows, 1), Layout(spark, folder, rows[::-1], 2, compiled=True)
    orders = [Layout(spark, folder, random.Random(seed).sample(rows, ROWS), 2 + seed) for seed in range(6 * SOAK + 1)]
    return plain, [*orders, compiled]


def batches(made, size=150):
    return [made[at : at + size] for at in range(0, len(made), size)]


def listed(batch):
    return ", ".join(f"{sql} as c{number}" for number, (_, sql) in enumerate(batch))


@pytest.fixture(scope="module")
def places(spark, tmp_path_factory):
    """The sample rows at several places, each file of them for a task of its own: in order, in other orders over two
    tasks, and in two slices."""
    folder = tmp_path_factory.mktemp("places")
    spark.conf.set("spark.sql.files.openCostInBytes", spark.conf.get("spark.sql.files.maxPartitionBytes"))
    rows = list(range(ROWS))
    orders = [random.Random(seed).sample(rows, ROWS) for seed in range(6 * SOAK + 1)]
    spread = [(each[:number], each[number:]) for number, each in zip(itertools.cycle((7, 4)), orders, strict=False)]
    for place, parts in enumerate([(rows,), (rows[: ROWS // 2], rows[ROWS // 2 :]), *spread]):
        for part in parts:
            sql = f"select {place} as place, * from values {samples(part)}"
            spark.sql(sql).coalesce(1).write.mode("append").parquet(str(folder / "samples"))
    return spark.read.parquet(str(folder / "samples"))


def everywhere(places, layouts, columns, where=ALL):
    """What columns give, by name, and the names of those that give something else at another place, or compiled and
    on another machine."""
    plain, (*_, compiled) = layouts[0], layouts[1]
    places.where(where).createOrReplaceTempView("samples")
    values = plain.values(f"select place, id, {columns} from samples")
    found, *others = (
        {name: [all_rows[at] for at in each] for name, all_rows in values.items() if name not in ("place", "id")}
        for each in positions(values["place"], values["id"])
    )
    with other_machine(plain.spark):
        others.append(compiled.run(f"select id, {columns} from samples order by id", where))
    return found, {name for other in others for name in found if other[name] != found[name]}


def positions(labels, ids):
    """Of each label the positions of its rows by their numbers."""
    ordered = sorted(zip(map(int, labels), map(int, ids), range(len(ids)), strict=True))
    return [[at for *_, at in each] for _, each in itertools.groupby(ordered, key=lambda place: place[0])]


@contextlib.contextmanager
def other_machine(spark):
    """A JVM somewhere else: its defaults are not those that the engine is started with."""
    java = spark._jvm.java.util
    zone, locale = java.TimeZone.getDefault(), java.Locale.getDefault()
    java.TimeZone.setDefault(java.TimeZone.getTimeZone("Pacific/Chatham"))
    java.Locale.setDefault(java.Locale.forLanguageTag("tr-TR"))
    try:
        yield
    finally:
        java.TimeZone.setDefault(zone)
        java.Locale.setDefault(locale)


def test_the_table_is_the_registry_of_the_pinned_spark(spark):
    state = spark._jsparkSession.sessionState()
    for registry, table in (
        (state.functionRegistry(), FUNCTIONS), (state.tableFunctionRegistry(), TABLE_FUNCTIONS)
    ):  # fmt: skip
        known = {each.funcName() for each in items(registry.listFunction().toSeq())}
        assert known - set(table) == set(), "a function of Spark without a row: it is refused until it has one"
        assert set(table) - known == set(), "a row without a function"


def test_a_function_without_a_row_runs_nowhere(spark, monkeypatch):
    """Attack T-QUERY-03: a function of a new Spark version, or one that was not reviewed.

    Defence: a function without a row in the table of functions is refused; the table is compared with the registry in
    both directions, and accepted functions of rows and frames are run in other orders, slices, locales and zones, and
    compared with results recorded by another process.
    """
    monkeypatch.setattr("engines.spark.analysis.parsed.FUNCTIONS", {k: v for k, v in FUNCTIONS.items() if k != "upper"})
    with pytest.raises(Invalid) as refused:
        parse_query(spark, "select upper('a') as new_in_the_next_spark")
    assert refused.value.rule == "unknown-function"


def test_each_function_of_a_row_gives_the_same_everywhere(places, layouts):
    plain, others = layouts
    made = sensible_calls(plain)
    shown_by = {}
    wrong = set()
    rows = rows_of(made, [plain, others[-1]])
    for where in (ALL, *FEWER):
        for batch in batches([each for each in made if rows.get(each[1], ALL) == where]):
            found, differing = everywhere(places, layouts, listed(batch), where)
            wrong |= {batch[int(name[1:])][1] for name in differing}
            shown_by.update({sql: found[f"c{number}"] for number, (_, sql) in enumerate(batch)})
    assert wrong - PINNED == set()
    as_recorded({name: [shown_by[sql] for other, sql in made if other == name] for name, _ in made})


def sensible_calls(layout):
    """(name, call) of functions of a row. Of all combinations of types, some make no sense: Spark hashes no maps."""
    made = calls({"arguments"})
    if not SOAK:
        return made
    layout.rows().createOrReplaceTempView("samples")
    found = [each for batch in batches(made) for each in sensible_of(layout, batch)]
    assert {name for name, _ in found} == {name for name, _ in made}
    return found


def sensible_of(layout, batch):
    if sensible(layout, listed(batch)):
        return batch
    half = len(batch) // 2
    return [*sensible_of(layout, batch[:half]), *sensible_of(layout, batch[half:])] if half else []


def rows_of(made, layouts):
    """Of calls that fail for some of the values, by overflow or as no number, the rows that they are tried with."""
    if "ODF_RECORD" not in os.environ and not SOAK:
        return json.loads(RECORDED.read_text())[FAILING]
    found = failing_rows(made, layouts)
    as_recorded({}, {FAILING: found})
    return found


def failing_rows(made, layouts, size=150):
    found = {}
    for where, fewer in zip((ALL, *FEWER), FEWER, strict=False):
        now = [each for each in made if found.get(each[1], ALL) == where]
        found |= {
            sql: fewer for batch in batches(now, size) for layout in layouts for sql in failing_of(layout, batch, where)
        }
    return found


def failing_of(layout, batch, where):
    try:
        layout.run(f"select id, {listed(batch)} from samples order by id", where)
    except (PySparkException, Py4JJavaError):
        half = len(batch) // 2
        if half:
            return [*failing_of(layout, batch[:half], where), *failing_of(layout, batch[half:], where)]
        return [batch[0][1]]
    return []


def test_each_aggregate_gives_the_same_everywhere(layouts):
    """Of all rows and of groups, in all layouts by one query, which merges what each task has made."""
    plain, others = layouts
    made = aggregates()
    side_by_side((plain, *others))
    found = {sql: each for batch in batches(made, 20) for sql, each in by_layout(plain, batch).items()}
    shown_by = {sql: each[0] for sql, each in found.items()}
    assert {sql for sql, each in found.items() if any(one != shown_by[sql] for one in each)} == set()
    as_recorded({name: [shown_by[sql] for other, sql in made if other == name] for name, _ in made})


@pytest.mark.nightly  # compiling takes most of the time
def test_each_aggregate_gives_the_same_compiled_on_another_machine(layouts):
    plain, others = layouts
    side_by_side((plain, *others))
    one = list(
        {FUNCTIONS[name].becomes: (name, sql) for name, sql in aggregates() if not name.startswith(OF_PAIRS)}.values()
    )
    for batch in batches(one, 20):
        found = by_layout(plain, batch)
        with other_machine(plain.spark):
            compiled = by_layout(others[-1], batch)
        assert compiled == {sql: [each[0]] * len(compiled[sql]) for sql, each in found.items()}


def aggregates():
    """(name, call), without other names of the same: ``avg`` and ``mean``."""
    made = [(name, sql) for name, sql in calls({"group", "exact"}) if sql not in TOO_WIDE]
    return list({(FUNCTIONS[name].becomes, sql.removeprefix(name)): (name, sql) for name, sql in made[::-1]}.values())


def side_by_side(layouts):
    """Their rows in one view, by their groups, and all once more as another group."""
    frame = functools.reduce(
        DataFrame.union, (each.rows().withColumn("layout", lit(number)) for number, each in enumerate(layouts))
    )
    frame.union(frame.withColumn("g", lit(-1))).createOrReplaceTempView("samples")


def by_layout(layout, batch):
    """Of each call the values by group, layout by layout."""
    found = layout.values(f"select layout, g, {listed(batch)} from samples group by layout, g")
    places = sorted(zip(found["layout"], found["g"], range(len(found["g"])), strict=True))
    layouts = [[at for *_, at in each] for _, each in itertools.groupby(places, key=lambda place: place[0])]
    return {
        sql: [[found[f"c{number}"][at] for at in each] for each in layouts] for number, (_, sql) in enumerate(batch)
    }


def test_each_function_of_a_frame_gives_the_same_everywhere(layouts):
    plain, others = layouts
    made = [(name, f"{sql} over (partition by g order by id)") for name, sql in calls({"frame"})]
    query = f"select id, {listed(made)} from samples order by id"
    found = plain.run(query)
    with other_machine(plain.spark):
        wrong = {name for other in others for name, values in other.run(query).items() if values != found[name]}
    assert not {made[int(name[1:])][1] for name in wrong}
    as_recorded({name: [found[f"c{n}"] for n, (other, _) in enumerate(made) if other == name] for name, _ in made})


def test_each_function_that_makes_rows_gives_the_same_everywhere(layouts):
    plain, others = layouts
    made = [(name, call(name, given)) for name in GENERATORS for signature in FUNCTIONS[name].arguments
            for given in concrete(signature)]  # fmt: skip
    side_by_side((plain, *others))
    shown_by = {}
    for number, (name, sql) in enumerate(made):
        found, *again = rows_made(plain, sql)
        if number % stride() == 0 or name not in shown_by:  # compiling takes most of the time
            with other_machine(plain.spark):
                again += rows_made(others[-1], sql)
        assert all(each == found for each in again), sql
        shown_by.setdefault(name, []).append(found)
    assert set(shown_by) == set(GENERATORS)
    as_recorded(shown_by)


def rows_made(layout, sql):
    """Layout by layout."""
    rows = sorted(zip(*layout.values(f"select layout, id, {sql} from samples where g >= 0").values(), strict=True))
    return [[row[1:] for row in each] for _, each in itertools.groupby(rows, key=lambda row: row[0])]


def test_compositions_of_functions_give_the_same_everywhere(places, layouts):
    """Functions of what others give, of the types that they have in common."""
    found = compositions([layouts[0]])
    shown_by = {}
    for where in (ALL, FEWER[0]):
        for batch in batches([("", sql) for sql, rows in found.items() if rows == where]):
            values, differing = everywhere(places, layouts, listed(batch), where)
            assert not {batch[int(name[1:])][1] for name in differing}
            shown_by |= {sql: values[f"c{number}"] for number, (_, sql) in enumerate(batch)}
    as_recorded({"all compositions": [shown_by[sql] for sql in sorted(shown_by)]})


def compositions(layouts):
    """Those that Spark makes sense of, and the rows that they do not fail for; recorded."""
    if "ODF_RECORD" not in os.environ and not SOAK:
        return json.loads(RECORDED.read_text())[COMPOSED]
    chance = random.Random(os.environ.get("ODF_SOAK", "1"))
    inner = [(name, sql) for name, sql in calls({"arguments"}) if sql not in PINNED]
    outer = [(name, sql) for name, sql in inner if "`" in sql]
    made = {}
    for _ in range(3_000 if SOAK else 400):
        depth, sql = chance.choice((1, 1, 2)), chance.choice(outer)[1]
        for _ in range(depth):
            sql = re.sub(r"`\w+`", lambda _: chance.choice(inner)[1], sql, count=1)
        made[sql] = ""
    layouts[0].rows().createOrReplaceTempView("samples")
    # Spark's lexer takes ">>" behind "map(" for the end of a type.
    kept = [("", sql) for sql in made if ">>" not in sql and sensible(layouts[0], sql)]
    assert len(kept) > len(made) // 20
    print(f"{len(kept)} of {len(made)} compositions")
    rows = failing_rows(kept, layouts, 1)
    found = {sql: rows.get(sql, ALL) for _, sql in kept if rows.get(sql) != FEWER[-1]}
    as_recorded({}, {COMPOSED: found})
    return found


def sensible(layout, sql):
    """Whether Spark can make sense of it, and the engine lets it through."""
    with contextlib.suppress(PySparkException, Invalid):
        plan = analyse_query(layout.spark, parse_query(layout.spark, f"select {sql} from samples"))
        return not any(map(examine, parse_plan(as_json(plan)).expressions("projectList")))
    return False


def as_recorded(values, more=MappingProxyType({})):
    """Holds what was seen to what another process saw on another day."""
    if SOAK:
        return
    digests = {
        name: hashlib.sha256("\n".join(map(str, each)).encode()).hexdigest()[:16] for name, each in values.items()
    }
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    if "ODF_RECORD" in os.environ:
        RECORDED.write_text(json.dumps(recorded | digests | more, indent=0, sort_keys=True, ensure_ascii=False) + "\n")
    else:
        assert {name: digest for name, digest in digests.items() if recorded.get(name) != digest} == {}
