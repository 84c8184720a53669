"""What queries declare: hints, functions, types, patterns."""

from __future__ import annotations

import ast
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from chain.data.arrow_schema import to_arrow
from chain.errors import Invalid
from chain.model.schema import DataSchema
from chain.model.source import SqlQueryStep, TemporalTable, TransformSql
from engines.spark.analysis import functions
from engines.spark.analysis.declarations import Late, LatePolicy, Reading, read_query
from engines.spark.analysis.functions import (
    ALLOWED,
    COLUMNS,
    DENIALS,
    DEPENDENCES,
    FUNCTIONS,
    MAX_TABLE,
    NEVER_FLOAT,
    NOT_TEXT,
    TABLE,
    Use,
    read_table,
)  # fmt: skip
from engines.spark.analysis.monotone import DAY, Floor, FloorMonths
from engines.spark.analysis.tree import build
from engines.spark.catalyst.types import as_written, slice_types, struct_type
from engines.spark.sql.diagnostics import hint_of, hint_of_data
from engines.spark.sql.time_patterns import patterns, zones
from worlds.every_type import every_type
from worlds.schemas import SCHEMAS

# SET odf.… at the head of a query.


def of(*queries, **other):
    steps = tuple(SqlQueryStep(alias=alias, query=text) for alias, text in queries)
    return read_query(TransformSql(engine="spark", queries=steps, **other))


def test_declarations_at_the_head_of_the_text():
    text = "-- why\nSET odf.late.a = fail;\nset odf.lateness = '2 days' ;\n\nselect 1"
    query = of((None, text))
    assert [step.query for step in query.steps] == ["\n\n\n\nselect 1"]
    assert query.declarations.late_of("a") == LatePolicy(Late.FAIL)
    assert query.declarations.late_of("b") is None
    assert query.declarations.lateness_of("b") == 2 * DAY


def test_declarations_as_steps_of_their_own():
    query = of(("head", "set odf.late = 'fail'"), ("x", "select 1"), (None, "select * from x"))
    assert [step.alias for step in query.steps] == ["x", None]
    assert query.declarations.late_of("a") == LatePolicy(Late.FAIL)


def test_how_far_back_late_rows_count_and_where_a_watermark_stands():
    said = of((None, "set odf.late.a = 'apply within 90 days'; set odf.late = apply; set odf.rows.b = late; select 1"))
    assert said.declarations.late_of("a") == LatePolicy(Late.APPLY, 90 * DAY)
    assert said.declarations.late_of("b") == LatePolicy(Late.APPLY)
    assert [said.declarations.sees_only_late(alias) for alias in "ab"] == [False, True]
    assert said.declarations.behind is None
    assert of((None, "set odf.watermark = 'max - 2 hours'; select 1")).declarations.behind == DAY // 12


def test_a_shorthand_is_one_query():
    assert [step.query for step in read_query(TransformSql(engine="spark", query="select 1")).steps] == ["select 1"]


@pytest.mark.parametrize(
    ("queries", "rule"),
    [
        ([], "no-query"),
        ([(None, "  ")], "no-query"),
        ([(None, "set odf.late = drop")], "no-query"),
        ([(None, "set odf.late = 'sometimes'; select 1")], "late"),
        ([(None, "set odf.late = 'apply within reason'; select 1")], "late"),
        ([(None, "set odf.rows = 'early'; select 1")], "late-rows"),
        ([(None, "set odf.watermark = 'min - 1 day'; select 1")], "watermark"),
        ([(None, "set odf.watermark.a = 'max - 1 day'; select 1")], "declaration"),
        ([(None, "set odf.lateness = '2 moons'; select 1")], "lateness"),
        ([(None, "set odf.colour = blue; select 1")], "declaration"),
        ([(None, "set odf.read.a = 'backwards'; select 1")], "read"),
        ([(None, "set odf.tick = 'often'; select 1")], "tick"),
        ([(None, "set odf.tick = '0 days'; select 1")], "tick"),
        ([(None, "set odf.tick.a = '1 day'; select 1")], "declaration"),
        ([(None, "select 1"), (None, "select 2")], "query-alias"),
        ([("x", "select 1")] * 65, "query-count"),
        ([(None, "x" * (2**20 + 1))], "query-size"),
    ],
)
def test_what_is_refused(queries, rule):
    with pytest.raises(Invalid) as caught:
        of(*queries)
    assert caught.value.rule == rule


def test_other_settings_are_not_declarations():
    assert of((None, "set spark.sql.shuffle.partitions = 7; select 1")).steps[0].query.startswith("set spark")


def test_temporal_tables_and_their_faults():
    table = TemporalTable(name="b", primary_key=("k",))
    assert of((None, "select 1"), temporal_tables=(table,)).temporal == {"b": ("k",)}
    for wrong in ((table, table), (TemporalTable(name="b", primary_key=()),)):
        with pytest.raises(Invalid) as caught:
            of((None, "select 1"), temporal_tables=wrong)
        assert caught.value.rule == "temporal-table"


@pytest.mark.parametrize(
    ("said", "tick"),
    [
        ("watermark", None),
        ("event", Floor(1000)),
        ("1 day", Floor(DAY)),
        ("day", Floor(DAY)),
        ("2 weeks", Floor(14 * DAY, 4 * DAY)),
        ("3 months", FloorMonths(3)),
        ("1 Quarter", FloorMonths(3)),
        ("10 years", FloorMonths(120)),
    ],
)
def test_a_grid_is_the_calendar_s(said, tick):
    assert of((None, f"set odf.tick = '{said}'; select 1")).declarations.tick == tick


def test_readings_are_of_one_input_or_of_all():
    declared = of((None, "set odf.read = log; set odf.read.b = 'table'; select 1")).declarations
    assert [declared.reading_of(alias) for alias in "ab"] == [Reading.LOG, Reading.TABLE]
    assert of((None, "select 1")).declarations.reading_of("a") is Reading.TABLE


@pytest.mark.parametrize(
    "statement", ["set odf.read.c = 'log'", "set odf.late.c = 'drop'", "set odf.lateness.c = '1 day'"]
)
def test_what_is_said_of_no_input_is_told(statement):
    query = of((None, f"{statement}; select 1"))
    query.check_inputs(["a", "c"])
    with pytest.raises(Invalid, match="c is not an input"):
        query.check_inputs(["a", "b"])


def test_versions_are_no_statements():
    with pytest.raises(Invalid, match="temporal table"):
        of((None, "set odf.read.b = 'log'; select 1"), temporal_tables=(TemporalTable(name="b", primary_key=("k",)),))


# Whatever is found wrong with a query comes with what to do about it.

ENGINE = Path(__file__).parents[4] / "engines" / "spark"
PARTS = ("analysis/*.py", "sql/*.py", "planning/lateness.py", "execution/transform.py")
FILES = sorted(path for part in PARTS for path in ENGINE.glob(part))
PLACES = {
    "QueryFinding": (2, "replace"),
    "OperatorRefusal": (2, "replace"),
    "QueryRefused": (9, "hint"),
    "Invalid": (9, "hint"),
}
"""Where the remedy stands among the arguments."""
OF_NO_QUERY = {
    ("functions.py", "functions"): "the table that belongs to the program",
    ("tree.py", "plan"): "what Spark shows of its own plan",
    ("lexical.py", "parse"): "what Spark's lexer shows of its own words",
}


def without_a_hint():
    for path in FILES:
        for call in ast.walk(ast.parse(path.read_text())):
            name = call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else None
            if name not in PLACES:
                continue
            place, keyword = PLACES[name]
            named = {each.arg: each.value for each in call.keywords}
            spread = any(isinstance(each, ast.Starred) for each in call.args)
            rule = named.get("rule")
            told = named.get(keyword) or (call.args[place] if len(call.args) > place else None)
            empty = told is None or (isinstance(told, ast.Constant) and not told.value)
            if empty and not spread:
                yield path.name, rule.value if isinstance(rule, ast.Constant) else None, call.lineno


@pytest.mark.slow
def test_every_finding_and_refusal_has_one():
    assert [found for found in without_a_hint() if found[:2] not in OF_NO_QUERY] == []


@pytest.mark.parametrize(
    ("condition", "part"),
    [
        ("UNRESOLVED_COLUMN.WITH_SUGGESTION", "column that the input has"),
        ("DATATYPE_MISMATCH.BINARY_OP_DIFF_TYPES", "cast"),
        ("PARSE_SYNTAX_ERROR", "correct the query"),
        ("NOBODY_KNOWS.THIS", "Spark's message"),
        (None, "Spark's message"),
    ],
)
def test_conditions_of_spark_have_one(condition, part):
    assert part in hint_of(condition)


@pytest.mark.parametrize(
    ("condition", "part"),
    [
        ("DIVIDE_BY_ZERO", "try_divide(a, b)"),
        ("CAST_INVALID_INPUT", "try_cast(x as"),
        ("NUMERIC_VALUE_OUT_OF_RANGE.WITHOUT_SUGGESTION", "more digits"),
        ("NOBODY_KNOWS.THIS", "case when"),
        (None, "case when"),
    ],
)
def test_conditions_that_a_value_meets_have_one(condition, part):
    assert part in hint_of_data(condition)


# The table of functions by itself: what is read, and what follows from it.

HEAD = "\t".join(COLUMNS)


def test_each_row_says_why_and_each_accepted_one_what_it_was_tried_with():
    assert not [row.name for row in TABLE if not row.why]
    assert not [row.name for row in FUNCTIONS.values() if row.denial is None and not row.arguments]
    assert len({(row.registry, row.name) for row in TABLE}) == len(TABLE)


def test_rows_that_become_one_class_are_judged_alike():
    judged = {}
    for row in TABLE:
        for kind in row.becomes:
            judged.setdefault(kind, set()).add(row.depends)
    assert not {kind: depends for kind, depends in judged.items() if len(depends) > 1}
    assert not ALLOWED[Use.TRANSFORM] & set(DENIALS)
    assert ALLOWED[Use.TRANSFORM] < ALLOWED[Use.PREPROCESS]


def test_what_follows_from_the_results():
    assert {"Length", "Upper", "EqualTo", "DateAdd"} <= NEVER_FLOAT
    assert not {"Add", "If", "ArrayMax", "JsonToStructs", "Sum", "ZeroIfNull"} & NEVER_FLOAT
    assert {"Add", "DateAdd", "Length"} <= NOT_TEXT
    assert not {"If", "Upper", "JsonToStructs", "GetJsonObject", "ArrayMax"} & NOT_TEXT


@pytest.mark.parametrize(
    "text",
    ["", "name\n", f"{HEAD}\nfunction\tx\n", f"{HEAD}\n" + "\t".join(["function", "x", "moon", *[""] * 5]),
     f"{HEAD}\n" + "\t".join(["function", "x", "clock", "X", "colour", *[""] * 3]), "x" * (MAX_TABLE + 1)],
)  # fmt: skip
def test_what_is_no_table_is_refused(text):
    with pytest.raises(Invalid):
        read_table(text + "\n")


def test_a_row_is_read_whole():
    (row,) = read_table(f"{HEAD}\nfunction\tx\tclock\tA B\ttext list\theavy\tint, int ; 'a;b'\tbecause\n")
    assert row.becomes == {"A", "B"}
    assert row.results == {"text", "list"}
    assert row.arguments == ("int, int", "'a;b'")
    assert row.uses is Use.QUERY
    assert row.denial is DEPENDENCES["clock"].denial
    assert functions.TABLE_FUNCTIONS["python_worker_logs"].uses is Use.NOWHERE


# Constant patterns of times in a plan.


def node(kind, *children, **fields):
    return [
        {"class": f"org.{kind}", "num-children": len(children), **fields},
        *(part for one in children for part in one),
    ]


def literal(value):
    return node("Literal", value=value, dataType="string")


COLUMN = node("AttributeReference", name="k")


def test_they_are_found_in_every_operator_and_depth():
    deep = node("Alias", node("Upper", node("DateFormatClass", COLUMN, literal("yyyy"))))
    filtered = node("Filter", node("Relation"), condition=node("GetTimestamp", COLUMN, literal("HH")))
    found = list(patterns(build(node("Project", filtered, projectList=[deep]))))
    assert sorted((one.kind, pattern, reads) for one, pattern, reads in found) == [
        ("DateFormatClass", "yyyy", False), ("GetTimestamp", "HH", True),
    ]  # fmt: skip


def test_of_a_time_no_pattern_is_read():
    made = [
        node("ParseToTimestamp", node("Cast", COLUMN, dataType="timestamp"), literal("b")),
        node("ParseToDate", COLUMN),
    ]
    assert list(patterns(build(node("Project", node("Relation"), projectList=made)))) == []


def test_computed_and_missing_ones_are_not():
    made = [node("UnixTimestamp", COLUMN, COLUMN), node("FromUnixTime", COLUMN, literal(None)), literal("yyyy")]
    assert list(patterns(build(node("Project", node("Relation"), projectList=made)))) == []


def test_constant_zones_are_found():
    made = [
        node("Upper", node("FromUTCTimestamp", COLUMN, literal("Mars/Base"))),
        node("ToUTCTimestamp", COLUMN, COLUMN),
        node("ToUTCTimestamp", COLUMN, literal(None)),
    ]
    found = zones(build(node("Project", node("Relation"), projectList=made)))
    assert [(one.kind, name) for one, name in found] == [("FromUTCTimestamp", "Mars/Base")]


# Types of the format to Spark's and back: a column that is passed on is what it was, or Spark never gets it.


@pytest.mark.slow
@given(SCHEMAS)
def test_every_column_comes_back_as_it_was_or_is_refused_by_name(schema: DataSchema) -> None:
    for field in to_arrow(schema):
        column = pa.schema([field])
        refused: list[Invalid] = []
        try:
            held = struct_type(column)
        except Invalid as fault:
            refused.append(fault)
        if refused:
            assert repr(field.name) in refused[0].message
            assert refused[0].hint
            continue
        assert slice_types(held).types == column.types
        renamed = [spark.StructField("other", each.dataType, metadata=each.metadata) for each in held]
        assert slice_types(renamed).types == column.types


def test_values_come_back_as_they_were() -> None:
    rows = every_type()
    held = struct_type(rows.schema)
    there = rows.cast(to_arrow_schema(held, timezone="UTC").remove_metadata())
    assert as_written(there, slice_types(held)).equals(rows)


def test_what_a_query_computes_is_in_milliseconds_and_says_what_it_would_lose() -> None:
    computed = [
        spark.StructField("at", spark.TimestampType()),
        spark.StructField("several", spark.ArrayType(spark.TimestampType())),
    ]
    types = slice_types(computed)
    millis = pa.timestamp("ms", "UTC")
    assert types.types == [millis, pa.list_(millis)]
    micros = pa.timestamp("us", "UTC")
    whole = pa.table({"at": pa.array([5000], micros), "several": pa.array([[1000, None]], pa.list_(micros))})
    assert as_written(whole, types).column("at").cast(pa.int64()).to_pylist() == [5]
    for name, column in (("at", pa.array([5001], micros)), ("several", pa.array([[1]], pa.list_(micros)))):
        with pytest.raises(Invalid, match=f"column '{name}' holds times with digits") as caught:
            as_written(pa.table({name: column}), types)
        assert "date_trunc" in caught.value.hint


def test_a_column_that_was_made_anew_under_an_old_memory_is_what_spark_says() -> None:
    """Spark keeps metadata where a type changes beneath it, as in unions of unlike columns."""
    (was,) = struct_type(pa.schema([("n", pa.uint8())]))
    assert slice_types([spark.StructField("n", spark.LongType(), metadata=was.metadata)]).types == [pa.int64()]


@pytest.mark.parametrize("kind", [spark.MapType(spark.StringType(), spark.LongType()), spark.NullType()])
def test_types_that_a_dataset_cannot_hold(kind: spark.DataType) -> None:
    with pytest.raises(Invalid, match="column x"):
        slice_types([spark.StructField("x", kind)])


@pytest.mark.parametrize(
    "kind",
    [
        spark.YearMonthIntervalType(),
        spark.DayTimeIntervalType(),
        spark.ArrayType(spark.YearMonthIntervalType()),
        spark.ArrayType(spark.StructType([spark.StructField("key", spark.NullType(), False)])),
    ],
)
def test_a_computed_type_that_no_dataset_holds_is_refused_by_name(kind: spark.DataType) -> None:
    with pytest.raises(Invalid, match=r"column span is of type .*, which a dataset cannot hold") as fault:
        slice_types([spark.StructField("span", kind)])
    assert (fault.value.rule, bool(fault.value.hint)) == ("output-type", True)
