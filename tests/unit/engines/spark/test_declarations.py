"""SET odf.… at the head of a query."""

from __future__ import annotations

import pytest

from chain.errors import Invalid
from chain.model.source import SqlQueryStep, TemporalTable, TransformSql
from engines.spark.analysis.declarations import Late, LatePolicy, Reading, read_query
from engines.spark.analysis.monotone import DAY, Floor, FloorMonths


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
