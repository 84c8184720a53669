"""What queries declare: hints, functions, types, patterns; and words of other dialects."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from chain.data.arrow_schema import to_arrow
from chain.errors import Invalid
from chain.model.schema import DataSchema
from chain.model.source import SqlQueryStep, TemporalTable, TransformSql
from engines.spark.analysis import functions
from engines.spark.analysis.declarations import Late, LatePolicy, Reading, read_query
from engines.spark.analysis.dialects import MAX_PHRASES, QUOTED, TEMPORAL, WINDOW, foreign, may_be_foreign
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
from engines.spark.analysis.lexical import MAX_SAID, Word
from engines.spark.analysis.monotone import DAY, Floor, FloorMonths
from engines.spark.analysis.tree import build
from engines.spark.catalyst.types import as_written, slice_types, struct_type
from engines.spark.sql.diagnostics import hint_of, hint_of_data
from engines.spark.sql.time_patterns import patterns, zones
from worlds.dialect_rewrite import translated
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


# Words of other dialects, over words cut by a small lexer: ``tests/engine`` tries the same texts with Spark's own.

COLUMN_NAMES = ("event_time", "v", "from", "a`b")
KEYWORDS = {"SELECT", "FROM", "JOIN", "AS", "ON", "FOR", "OF", "SYSTEM_TIME", "TABLE", "INTERVAL", "DATE", "TIMESTAMP",
            "WHERE", "GROUP", "BY", "LEFT", "OR", "AND", "IN", "LIKE", "MINUTE", "SECOND", "PARTITION"}  # fmt: skip
CUT = re.compile(r"""(?P<gap>\s+|--[^\n]*|/\*.*?\*/)|(?P<name>[A-Za-z_]\w*)|(?P<quoted>"(?:[^"\\]|\\.)*")"""
                 r"""|(?P<text>'(?:[^'\\]|\\.)*')|(?P<ticks>`(?:[^`]|``)*`)|(?P<number>\d+)|(?P<sign>=>|>=|<=|.)""",
                 re.DOTALL)  # fmt: skip
KINDS = {"quoted": "DOUBLEQUOTED_STRING", "text": "STRING_LITERAL", "ticks": "BACKQUOTED_IDENTIFIER",
         "number": "INTEGER_VALUE", "sign": "SIGN"}  # fmt: skip


def cut(sql):
    words = []
    for match in CUT.finditer(sql):
        if match.lastgroup == "gap":
            continue
        line, column = sql.count("\n", 0, match.start()) + 1, match.start() - sql.rfind("\n", 0, match.start())
        name = match.lastgroup == "name"
        keyword = name and match[0].upper() in KEYWORDS
        kind = KINDS.get(match.lastgroup) or (match[0].upper() if keyword else "IDENTIFIER")
        words.append(Word(kind, match[0], line, column))
    return words


def in_spark(sql):
    words = cut(sql)
    return translated(sql, words, foreign(words, COLUMN_NAMES))


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("select k from a group by TUMBLE(ts, INTERVAL '10' MINUTE), k",
         "select k from a group by window(ts, '10 minutes'), k"),
        ("select tumble_start(a.ts, interval '1' day) as s", "select window(a.ts, '1 day').start as s"),
        ("select TUMBLE_END ( ts , INTERVAL 2 HOURS ), x", "select window(ts, '2 hours').end, x"),
        ("select TUMBLE_ROWTIME(ts, INTERVAL '5' SECOND) as t",
         "select (window(ts, '5 seconds').end - interval '0.001' second) as t"),
        ("group by HOP(ts, INTERVAL '5' SECOND, INTERVAL '1' MINUTE)", "group by window(ts, '1 minute', '5 seconds')"),
        ("HOP_START(ts, INTERVAL '5' SECOND, INTERVAL '1' MINUTE)", "window(ts, '1 minute', '5 seconds').start"),
        ("group by k, SESSION(ts, INTERVAL '10' SECOND)", "group by k, session_window(ts, '10 seconds')"),
        ("SESSION_END(\"ts\", INTERVAL '0.5' SECOND)", "session_window(`ts`, '0.5 seconds').end"),
        ("select 'é', TUMBLE_END(ts, -- till then\n INTERVAL '1' DAY)\n, v",
         "select 'é', window(ts, '1 day').end\n, v"),
    ],
)  # fmt: skip
def test_group_windows_are_translated(sql, wanted):
    assert in_spark(sql) == wanted


ROWS = ("(select *, {0}.start as window_start, {0}.end as window_end, {0}.end - interval '0.001' second as window_time "
        "from bid)")  # fmt: skip


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("from TABLE(TUMBLE(TABLE bid, DESCRIPTOR(ts), INTERVAL '10' MINUTE)) t", "window(ts, '10 minutes')"),
        ("from TUMBLE(TABLE bid, DESCRIPTOR(ts), INTERVAL '10' MINUTE) t", "window(ts, '10 minutes')"),
        ("from TABLE(HOP(TABLE bid, DESCRIPTOR(ts), INTERVAL '5' MINUTES, INTERVAL '1' HOUR)) t",
         "window(ts, '1 hour', '5 minutes')"),
        ("from table(hop(DATA => TABLE bid, TIMECOL => DESCRIPTOR(ts), SIZE => INTERVAL '1' HOUR,"
         " SLIDE => INTERVAL '5' MINUTES)) t", "window(ts, '1 hour', '5 minutes')"),
    ],
)  # fmt: skip
def test_table_windows_are_translated(sql, wanted):
    assert in_spark(sql) == f"from {ROWS.format(wanted)} t"


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        ("TUMBLE(ts, INTERVAL '1' MONTH)", "window(event_time, '10 minutes')"),
        ("TUMBLE(ts, INTERVAL '1:30' HOUR TO MINUTE)", "window(event_time, '10 minutes')"),
        ("TUMBLE(f(ts), INTERVAL '1' DAY)", "window(event_time, '10 minutes')"),
        ("HOP(ts, INTERVAL '1' DAY)", "window(event_time, '10 minutes')"),
        ("TUMBLE_PROCTIME(ts, INTERVAL '1' DAY)", "window(event_time, '10 minutes').end"),
        ("TABLE(SESSION(TABLE bid PARTITION BY bidder, x, DESCRIPTOR(ts), INTERVAL '1' DAY))", "group by "),
        ("TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(ts), INTERVAL '1' DAY))",
         "group by bidder, session_window(ts, '1 day')"),
        ("TABLE(CUMULATE(TABLE bid, DESCRIPTOR(ts), INTERVAL '1' HOUR, INTERVAL '1' DAY))", "window(event_time, step)"),
        ("TABLE(TUMBLE(TABLE bid, DESCRIPTOR(ts), INTERVAL '1' DAY, INTERVAL '1' HOUR))", "window(event_time, "),
    ],
)  # fmt: skip
def test_what_has_no_translation_is_named_and_left_as_it_is(call, advice):
    sql = f"select {call} from bid"
    (phrase,) = foreign(cut(sql), COLUMN_NAMES)
    assert (phrase.code, phrase.exact, phrase.place) == (WINDOW, False, (1, 8))
    assert advice in phrase.replace
    assert in_spark(sql) == sql


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("from o join rates for system_time as of o.ts as r on o.k = r.k",
         "from o join rates as r on o.k = r.k and o.ts >= r.valid_from and o.ts < r.valid_to"),
        ("from o join rates for system_time as of o.ts r on o.k = r.k where r.x > 1 or o.y",
         "from o join rates r on o.k = r.k and o.ts >= r.valid_from and o.ts < r.valid_to where r.x > 1 or o.y"),
        ("(select * from o join r FOR SYSTEM_TIME AS OF ts on f(o.k, (1)) = r.k or (o.z)) z",
         "(select * from o join r on (f(o.k, (1)) = r.k or (o.z)) and ts >= r.valid_from and ts < r.valid_to) z"),
        ("from o left join r for system_time as of o.\"ts\" on left(o.k, 1) = r.\"from\" left join q on q.k = o.k",
         "from o left join r on left(o.k, 1) = r.`from` and o.`ts` >= r.valid_from and o.`ts` < r.valid_to "
         "left join q on q.k = o.k"),
    ],
)  # fmt: skip
def test_temporal_joins_are_translated(sql, wanted):
    assert in_spark(sql) == wanted
    assert any(phrase.code == TEMPORAL for phrase in foreign(cut(sql)))


@pytest.mark.parametrize(
    "sql",
    [
        "select * from r for system_time as of timestamp '2024-05-01'",
        "from o join r for system_time as of PROCTIME() on o.k = r.k",
        "from o join r for system_time as of o.ts using (k)",
        "from o join r for system_time as of",
        "from o join r for system_time as of o.ts on",
        "from o join r for system_time as of o.ts on where x",
    ],
)
def test_a_temporal_join_that_is_not_understood_is_named_with_the_form(sql):
    (phrase,) = foreign(cut(sql))
    assert (phrase.code, phrase.exact) == (TEMPORAL, False)
    assert phrase.replace == "a.event_time >= b.valid_from and a.event_time < b.valid_to"
    assert "temporalTables" in phrase.message
    assert in_spark(sql) == sql


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ('select a."x y" from "a" join "b`c" on "a".k = 1', "select a.`x y` from `a` join `b``c` on `a`.k = 1"),
        ('select v as "V", count(*) "c", v "d" from a', "select v as `V`, count(*) `c`, v `d` from a"),
    ],
)
def test_names_in_double_quotes_that_can_be_nothing_else(sql, wanted):
    phrases = foreign(cut(sql))
    assert {(phrase.code, phrase.certain) for phrase in phrases} == {(QUOTED, True)}
    assert in_spark(sql) == wanted


def test_a_text_called_like_a_column_may_be_meant_as_one():
    (phrase,) = foreign(cut('select event_time,\n "From" from a'), COLUMN_NAMES)
    assert (phrase.code, phrase.certain, phrase.replace, phrase.place) == (QUOTED, False, "`From`", (2, 2))
    assert "the text 'From'" in phrase.message


@pytest.mark.parametrize(
    "sql",
    [
        "select \"nothing\" as x, 'from' as y, `from`, x'1F' from a",
        'select date "v", interval "v" day, trim("nothing" from k), extract(day from "2024-05-01"), "v" \'w\' from a',
        "select hop, a.session, tumble.x, session_user(), `session`(1), a.hop(1) from a",
        'select "\\u0076", "" from a',
    ],
)
def test_what_is_sparks_own_is_left_alone(sql):
    assert foreign(cut(sql), COLUMN_NAMES) == []


def test_most_queries_need_no_words():
    assert not may_be_foreign("select event_time, window(event_time, '1 day') from a")
    assert not may_be_foreign("select system_time, shop(k), session_window(event_time, '1 day') from session")
    for sign in ('select "v"', "select HOP(x)", "FOR System_Time as of", "TUMBLE_start(", "from CUMULATE("):
        assert may_be_foreign(sign)


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", ["TUMBLE(", "TABLE(HOP(TABLE a, ", 'a."v"', "j for system_time as of t on ", "SESSION(t)"]
)
def test_of_thousands_a_few_are_looked_at(part):
    looks = []

    class Counted(list):
        def __getitem__(self, at):
            looks.append(at)
            return super().__getitem__(at)

    phrases = foreign(Counted(cut(part * 2000)), COLUMN_NAMES)
    assert len(phrases) <= 2 * MAX_PHRASES
    assert len(looks) < 30 * MAX_PHRASES * MAX_SAID


@pytest.mark.slow
def test_of_a_long_one_nothing_is_said():
    assert foreign(cut(f'select a."{"x" * MAX_SAID}"')) == []
    long = " and ".join(["o.k = r.k"] * MAX_SAID)
    (phrase,) = foreign(cut(f"from o join r for system_time as of o.t r on {long}"))
    assert (phrase.exact, len(phrase.replace) < 100) == (False, True)


PIECES = ["TUMBLE", "HOP", "SESSION_END", "CUMULATE", "TABLE", "DESCRIPTOR", "(", ")", ",", ".", "=>", "INTERVAL", "a",
          "'1'", "MINUTE", "for", "system_time", "as", "of", "on", "join", "from", "select", '"v"', '"', "or", "left",
          "partition", "by", "\n", "1"]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=25))
def test_any_words_at_all_have_an_answer_and_phrases_are_theirs(pieces):
    words = cut(" ".join(pieces))
    phrases = foreign(words, COLUMN_NAMES)
    assert [phrase.first for phrase in phrases] == sorted({phrase.first for phrase in phrases})
    for phrase in phrases:
        assert 0 <= phrase.first <= phrase.last < len(words)
        assert phrase.message
        assert phrase.replace
    translated(" ".join(pieces), words, phrases)
