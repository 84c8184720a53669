"""The engine behind its service: validation, raw queries, cancellation, and the process itself."""

from __future__ import annotations

import re
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chain.data.arrow_schema import from_arrow
from chain.data.parquet import write_slice
from chain.ids import DatasetId
from chain.model.source import SqlQueryStep, TransformSql
from engines.contract import (
    EngineIdentity,
    InvalidQuery,
    RawQueryRequest,
    RawQuerySuccess,
    ValidateInput,
    ValidateRequest,
    Vocab,
)
from engines.request_control import RequestCancelled, RequestControl
from engines.spark.handler import SparkHandler
from worlds.eventually import PATIENCE, until

pytestmark = pytest.mark.engine
TIME = pa.timestamp("ms", "UTC")
SCHEMA = pa.schema(
    [("offset", pa.int64()), ("op", pa.int32()), ("system_time", TIME), ("event_time", TIME), ("v", pa.int64())]
)
IDENTITY = EngineIdentity(name="spark", version="0", digest="sha256:0", sandbox="none", platform="test")


def validation(*queries, changelog=False):
    steps = tuple(SqlQueryStep(alias=f"q{n}" if n < len(queries) - 1 else None, query=q) for n, q in enumerate(queries))
    given = ValidateInput(
        query_alias="nyc.flights",
        dataset_id=DatasetId.from_public_key(b"f" * 32),
        schema=from_arrow(SCHEMA),
        vocab=Vocab(),
        changelog=changelog,
    )
    return ValidateRequest(transform=TransformSql(engine="spark", queries=steps), inputs=(given,), vocab=Vocab())


@pytest.fixture
def handler(spark_root):
    return SparkHandler(spark_root, lambda: IDENTITY)


def test_validate_says_mode_and_schema(handler):
    answer = handler.validate(validation("select event_time, v * 2 as w from `nyc.flights`"))
    assert (answer.ok, answer.mode, answer.determinism) == (True, "log", "strict")
    assert [field.name for field in answer.schema.fields] == ["offset", "op", "system_time", "event_time", "w"]
    window = "select window(event_time, '1 day').start as event_time, sum(v) as s from `nyc.flights` group by 1"
    assert handler.validate(validation(window)).mode == "final"
    refused = handler.validate(validation(window, changelog=True))
    assert [one.code for one in refused.diagnostics] == ["changelog-late"]
    stated = handler.validate(validation("set odf.late = 'drop'; " + window, changelog=True))
    assert (stated.ok, stated.changelog) == (True, False)
    applied = handler.validate(validation("set odf.late = 'apply'; " + window, changelog=True))
    assert (applied.ok, applied.mode, applied.changelog) == (True, "table", True)
    history = window.replace("sum(v)", "percentile(v, 0.5)")
    forever = handler.validate(validation("set odf.late = 'apply'; " + history))
    assert [one.code for one in forever.diagnostics] == ["history-per-key"]
    assert "within" in forever.diagnostics[0].replace
    assert handler.validate(validation("set odf.late = 'apply within 9 days'; " + history)).ok
    late = handler.validate(validation("set odf.rows = 'late'; select event_time, v from `nyc.flights`"))
    assert (late.ok, late.mode) == (True, "log")
    table = handler.validate(validation("select v, max(event_time) as event_time from `nyc.flights` group by v"))
    assert (table.ok, table.mode, table.changelog) == (True, "table", True)


def test_a_table_that_needs_all_of_a_key_is_told_of_rankings(handler):
    """The hint, word for word but for the columns, is accepted."""
    everything = "select event_time, v, rank() over (partition by v order by event_time) as n from `nyc.flights`"
    [refused] = handler.validate(validation(everything)).diagnostics
    assert refused.code == "history-per-key"
    hinted = re.search(r"qualify row_number.*?<= 10", refused.replace)[0]
    hinted = hinted.replace("by v)", "by event_time)").replace("by k ", "by v ")
    accepted = handler.validate(validation(f"select event_time, v from `nyc.flights` {hinted}"))
    assert (accepted.ok, accepted.mode, accepted.diagnostics) == (True, "table", ())


def test_diagnostics_name_query_and_place(handler):
    first = "select event_time,\n v + rand() as v from `nyc.flights`"
    answer = handler.validate(validation(first, "select event_time, v from q0"))
    assert not answer.ok
    only = answer.diagnostics[0]
    assert (only.code, only.query, only.line, only.column) == ("layout-dependent", 0, 2, 6)
    second = handler.validate(
        validation("select * from `nyc.flights`", "select event_time, sum(v) over () as s from q0")
    )
    assert [(one.code, one.query) for one in second.diagnostics] == [("unbounded-frame", 1)]


@pytest.mark.parametrize(
    ("sql", "changelog", "code", "place"),
    [
        ("select v, max(event_time) as event_time, count(distinct op2) as c from\n"
         " (select *, v % 7 as op2 from `nyc.flights`)\n group by v", False, "history-per-key", (3, 2)),
        ("select x.event_time, x.v\n from `nyc.flights` x join `nyc.flights` y on x.v < y.v", True,
         "not-key-local", (2, 23)),
        ("select c, max(t) as event_time, sum(v) as s from (\n  select v, max(event_time) as t, count(*) as c\n"
         "  from `nyc.flights` group by v) group by c", True, "mixed-mode", (3, 22)),
        ("select v, max(event_time) as event_time,\n  count(*) as c from `nyc.flights` group by rollup (v)", True,
         "grouping-set-time", (2, 36)),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_kept_up_are_refused_with_place_and_rewrite(handler, sql, changelog, code, place):
    only, *rest = handler.validate(validation(sql, changelog=changelog)).diagnostics
    assert not rest
    assert (only.code, (only.line, only.column)) == (code, place)
    assert only.replace


def test_the_right_one_of_two_is_pointed_at(handler):
    sql = "select window(event_time, '1 day').start as event_time, sum(v) as a,\n sum(distinct cast(v as double)) as b"
    sql += " from `nyc.flights` group by 1"
    only, *rest = handler.validate(validation(sql)).diagnostics
    assert not rest
    assert (only.code, only.line) == ("float-aggregate", 2)


COLUMNS = pa.schema([("event_time", TIME), ("n", pa.int64()), ("ratio", pa.float64()), ("day", pa.string())])


def preprocess_validation(*queries):
    steps = tuple(SqlQueryStep(alias=f"q{n}" if n < len(queries) - 1 else None, query=q) for n, q in enumerate(queries))
    given = ValidateInput(
        query_alias="input", dataset_id=DatasetId(), schema=from_arrow(COLUMNS), vocab=Vocab(), changelog=False
    )
    transform = TransformSql(engine="spark", queries=steps)
    return ValidateRequest(transform=transform, inputs=(given,), vocab=Vocab(), preprocess=True)


def test_preprocess_is_judged_by_its_own_rules(handler):
    """Floats may be added up and rows put in order: nobody computes an ingest again."""
    queries = ("select *, ratio * 2 as twice from input", "select n, sum(twice) as s from q0 group by n order by n")
    answer = handler.validate(preprocess_validation(*queries))
    assert (answer.ok, answer.mode, answer.diagnostics) == (True, None, ())
    assert [field.name for field in answer.schema.fields] == ["n", "s"]


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("select n, rand() as r from input", "preprocess-deterministic"),
        ("select nobody from input", "unresolved-column"),
        ("select n form input wher", "parse-syntax-error"),
        ("select to_date(day, 'yyyy-bb') as d from input", "time-pattern"),
        ("select to_utc_timestamp(event_time, 'Mars/Base') as t from input", "time-zone"),
        ("select to_timestamp(day) as t from input", "preprocess-deterministic"),
    ],
)
def test_preprocess_that_every_pull_would_refuse_is_refused(handler, sql, code):
    answer = handler.validate(preprocess_validation(sql))
    assert not answer.ok
    assert [one.code for one in answer.diagnostics] == [code]
    assert answer.diagnostics[0].replace


@pytest.fixture
def slices(tmp_path):
    times = pa.array([0] * 3).cast(TIME)
    columns = [pa.array([0, 1, 2]), pa.array([0] * 3, pa.int32()), times, times, pa.array([3, 1, 2])]
    table = pa.table(columns, schema=SCHEMA)
    write_slice(table, tmp_path / "in")
    return (str(tmp_path / "in"),)


def raw(slices, tmp_path, sql):
    return RawQueryRequest(
        input_data_paths=slices,
        transform=TransformSql(engine="spark", query=sql),
        output_data_path=str(tmp_path / "out"),
    )


def test_raw_queries_are_free_but_may_not_act(handler, slices, tmp_path):
    answer = handler.raw_query(
        raw(slices, tmp_path, "select v, now() as n from input order by v limit 2"), RequestControl()
    )
    assert answer == RawQuerySuccess(num_records=2)
    assert pq.read_table(tmp_path / "out")["v"].to_pylist() == [1, 2]
    for sql in (
        "create table t as select 1",
        "select java_method('java.lang.System', 'exit', 1)",
        "select v from input where reflect('java.util.UUID', 'randomUUID') = 'x'",
        "select nope from input",
        "select 1 / 0",
    ):
        answer = handler.raw_query(raw(slices, tmp_path, sql), RequestControl())
        assert isinstance(answer, InvalidQuery), sql
        assert answer.rule, sql
        assert answer.hint, sql
        assert answer.hint not in answer.message


def test_a_request_that_nobody_waits_for_ends(handler, slices, tmp_path):
    """Spark looks up between files: one row that becomes billions would keep its core until all tests are done."""
    files = [tmp_path / f"in-{number}" for number in range(200)]
    for file in files:
        file.hardlink_to(slices[0])
    long = "select count(*) from input lateral view explode(sequence(1, 1000)) t as x"
    long += " lateral view explode(sequence(1, 300)) u as y where x * y = -1"
    control = RequestControl()
    ended = []

    def work():
        try:
            handler.raw_query(raw(tuple(map(str, files)), tmp_path, long), control)
        except RequestCancelled as fault:
            ended.append(fault)

    thread = threading.Thread(target=work)
    thread.start()
    tracker = handler._spark.sparkContext.statusTracker()
    until(lambda: tracker.getActiveJobsIds() or not thread.is_alive())
    control.cancel()
    thread.join(PATIENCE)
    assert ended
    tasks = handler._spark.sparkContext._jsc.sc().statusStore()
    until(lambda: not tasks.executorList(True).apply(0).activeTasks())
