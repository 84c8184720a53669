"""What judging a query costs, in what is asked of the JVM: many queries are judged over the same inputs."""

from __future__ import annotations

import pyarrow as pa
import pytest
from py4j.java_gateway import GatewayClient

from chain.data.arrow_schema import from_arrow
from chain.ids import DatasetId
from chain.model.source import SqlQueryStep, TransformSql
from engines.contract import EngineIdentity, ValidateInput, ValidateRequest, Vocab
from engines.spark.handler import SparkHandler
from engines.spark.sql import views
from engines.spark.sql.queries import Analyst
from engines.spark.sql.views import QueryInput, view_schema

pytestmark = pytest.mark.engine
VOCAB = Vocab()
TIME = pa.timestamp("ms", "UTC")
COLUMNS = pa.schema([("offset", pa.int64()), ("op", pa.int32()), ("system_time", TIME), ("event_time", TIME),
                     ("k", pa.string()), ("v", pa.int64())])  # fmt: skip
CALLS = 40
"""Round trips to the JVM for a query that is judged over inputs that are known."""


@pytest.fixture
def made(monkeypatch):
    """Of each view without rows that was made, its columns."""
    found = []
    make = views.empty_view

    def counted(session, schema):
        found.append(schema.names)
        return make(session, schema)

    monkeypatch.setattr(views, "empty_view", counted)
    return found


@pytest.fixture
def calls(monkeypatch):
    """Of each command to the JVM its first letter; letting go of an object is none, since it comes when it comes."""
    found = []
    send = GatewayClient.send_command

    def counted(client, command, *given, **named):
        if not command.startswith("m\n"):
            found.append(command[0])
        return send(client, command, *given, **named)

    monkeypatch.setattr(GatewayClient, "send_command", counted)
    return found


def judge(session, sql, *aliases, columns=COLUMNS):
    inputs = [QueryInput(alias, view_schema(columns, VOCAB), "event_time") for alias in aliases]
    return Analyst().analyse(session, (SqlQueryStep(query=sql),), inputs, VOCAB)


def names_of(session):
    found = session._jsparkSession.sessionState().catalog().listLocalTempViews("*")
    return sorted(found.apply(number).table() for number in range(found.size()))


@pytest.mark.parametrize("sql", ["selec k from input", "select (k from input", "execute immediate 'select 1'"])
def test_what_cannot_be_read_or_is_no_query_needs_no_views(spark, sql):
    found = judge(spark, sql, "input")
    assert found.classification is None
    assert len(found.diagnostics) == 1
    assert names_of(spark) == []


def test_a_view_without_rows_is_made_once_for_many_queries(spark_root, made):
    for number in range(3):
        session = spark_root.newSession()
        assert judge(session, f"select event_time, v + {number} as v from judged", "judged").classification
        assert names_of(session) == ["judged"]
    assert made == [list(COLUMNS.names)]


def test_views_are_told_apart_by_name_and_columns(spark_root, made):
    sql = "select a.event_time, b.v from `one.a` a join `one.b` b on a.k = b.k and a.event_time = b.event_time"
    for columns in (COLUMNS, COLUMNS.append(COLUMNS.field("v").with_name("w"))):
        for _ in range(2):
            found = judge(spark_root.newSession(), sql, "one.a", "one.b", columns=columns)
            assert found.classification, found.diagnostics
    assert len(made) == 4
    narrow = judge(spark_root.newSession(), "select event_time, w from `one.a`", "one.a")
    assert narrow.classification is None
    assert "w" in narrow.diagnostics[0].message


def test_a_judged_query_asks_little_of_the_jvm(spark_root, calls):
    sql = "select event_time, k, v * {} as v from input where v > 1 and k like 'a%'"
    for number in range(2):
        calls.clear()
        assert judge(spark_root.newSession(), sql.format(number), "input").classification
    assert len(calls) <= CALLS


WRONG = {
    "selec k from input": "parse-syntax-error",
    "select nope from input": "unresolved-column",
    "select event_time, k + array(1) as x from input": "datatype-mismatch",
    "select event_time, from_json(k, 'a') as x from input": "unsupported-datatype",
    "select event_time, decimal(99, 1) as x from input": "wrong-num-args",
}


@pytest.mark.parametrize("sql", WRONG)
def test_what_spark_says_against_a_query_is_asked_for_once(spark_root, calls, sql):
    """PySpark asked forty times more: for classes, stacks, and what it would log."""
    for text in (sql, sql.replace(" from", "  from")):
        calls.clear()
        found = judge(spark_root.newSession(), text, "input")
    assert [said.code for said in found.diagnostics] == [WRONG[sql]], found.diagnostics
    assert found.diagnostics[0].line == 1
    assert len(calls) <= CALLS


PLACED = (
    "select event_time, k from input where ^repeat(k, v) = 'x' and v > 1",
    "select event_time, v as a from input where v > 1 union all select event_time, length(^repeat(k, v)) from input",
    "with c as (select v from input), d as (select event_time, ^repeat(k, v) as k from input) select * from d",
    "select a.event_time from input a join input b on a.k = b.k and ^repeat(a.k, a.v) = 'x'",
    "select event_time, transform(array(k), x -> ^repeat(x, v)) as y from input",
    "select event_time, k from input where exists (select 1 from input where k = ^repeat(k, v))",
    "select event_time, upper(k) as a,\n upper(^cast(k as timestamp)) as b from input",
    "select event_time, v from input where v > 1 and\n  v ^in (select max(v) from input)",
)
"""What is refused stands behind the mark; the first two texts have it, or what is like it, twice."""


@pytest.mark.parametrize("marked", PLACED)
def test_what_is_refused_is_found_in_the_text_by_where_it_stands_in_the_plan(spark_root, calls, marked):
    before, _, after = marked.partition("^")
    for text in (f"{before}{after}", f"{before}{after} "):
        calls.clear()
        found = judge(spark_root.newSession(), text, "input")
    place = before.count("\n") + 1, len(before.rpartition("\n")[2]) + 1
    assert [(said.line, said.column) for said in found.diagnostics] == [place], found.diagnostics
    assert len(calls) <= CALLS


def test_a_query_that_was_judged_is_not_judged_again(spark_root, calls):
    handler = SparkHandler(spark_root, lambda: EngineIdentity("spark", "0", "sha256:0", "none", "test"))
    given = ValidateInput(query_alias="input", dataset_id=DatasetId.from_public_key(b"i" * 32),
                          schema=from_arrow(COLUMNS), vocab=VOCAB, changelog=False)  # fmt: skip
    transform = TransformSql(engine="spark", queries=(SqlQueryStep(query="select event_time, v from input"),))
    request = ValidateRequest(transform=transform, inputs=(given,), vocab=VOCAB)
    assert handler.validate(request).ok
    calls.clear()
    assert handler.validate(request).ok
    assert not calls
