"""Plans that are kept: what a small transaction writes is what it writes where each is planned anew."""

from __future__ import annotations

import threading
from pathlib import Path
from weakref import WeakKeyDictionary

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from chain.model.source import SqlQueryStep, TemporalTable, TransformSql
from conformance.histories import START
from engines.spark.execution.inputs import Inputs
from engines.spark.runtime.settings import CONFINEMENT, MEANING
from engines.spark.sql import queries as plans
from engines.spark.sql.queries import prepare_query
from engines.spark.sql.views import FEW, FEW_ROWS
from worlds.depth import stride
from worlds.eventually import PATIENCE, until

pytestmark = pytest.mark.engine
DAILY = "time_bucket(interval '1' day, event_time)"
QUERIES = {
    "map": ("select event_time, upper(k) as k, v * 2 as v from a where v % 3 <> 0", "a"),
    "mean": (f"select {DAILY} as event_time, k, avg(cast(v as double)) as m, sum(v) as s from a group by 1, 2", "a"),
    "paths": ("select event_time, k, v from a union all select event_time, k, -v from a where v % 2 = 0", "a"),
    "join": (
        "select a.event_time, a.k, a.v, b.v as w from a join b on a.k = b.k and b.event_time between a.event_time - "
        "interval 1 day and a.event_time",
        "ab",
    ),
    "with itself": (
        "select x.event_time, x.v, y.v as w from a x join a y on x.k = y.k and y.event_time between x.event_time and "
        "x.event_time + interval 1 day",
        "a",
    ),
    "as of": (
        "select a.event_time, a.k, a.v, b.v as w from a left asof join b "
        "match_condition (a.event_time >= b.event_time) on a.k = b.k",
        "ab",
    ),
    "named twice": (
        f"with d as (select {DAILY} as event_time, sum(v) as v from a group by 1) "
        "select event_time, v from d union all select event_time, v from d where v > 0",
        "a",
    ),
}


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch):
    """Other tests of the process may have asked the same queries of the same JVM."""
    monkeypatch.setattr(plans, "_KEPT", WeakKeyDictionary())


@pytest.mark.parametrize("name", list(QUERIES)[:: stride()])
def test_a_kept_plan_gives_what_a_new_one_gives(lab, monkeypatch, name):
    query, aliases = QUERIES[name]
    streams = lab.streams(name, aliases, "", blocks=9, days=40)
    schedule = [dict.fromkeys(aliases, 3)] * 3
    made, make = [], plans.run_queries
    monkeypatch.setattr(plans, "run_queries", lambda *given: made.append("the first") or make(*given))
    kept = lab.run(query, streams, schedule)
    assert made == ["the first"]
    monkeypatch.setattr(Inputs, "few", lambda *_: None)
    anew = lab.run(query, streams, schedule)
    assert kept.rows
    assert (kept.rows, kept.state, kept.late) == (anew.rows, anew.state, anew.late)


def test_versions_are_put_into_a_kept_plan_too(lab, monkeypatch):
    query = TransformSql(
        engine="spark",
        query="select a.event_time, a.v, b.v as w, b.valid_from as since from a join b on a.k = b.k "
        "and a.event_time >= b.valid_from and a.event_time < b.valid_to",
        temporal_tables=(TemporalTable(name="b", primary_key=("k",)),),
    )
    streams = lab.streams("versions", "ab", "b", blocks=9, days=40)
    schedule = [{"a": 3, "b": 3}] * 3
    kept = lab.run(query, streams, schedule, changelogs="b")
    monkeypatch.setattr(Inputs, "few", lambda *_: None)
    anew = lab.run(query, streams, schedule, changelogs="b")
    assert kept.rows
    assert (kept.rows, kept.state) == (anew.rows, anew.state)


def test_corrected_rows_come_without_those_taken_back(lab, monkeypatch):
    query = f"set odf.late = 'drop'; select {DAILY} as event_time, k, sum(v) as s from a group by 1, 2"
    streams = {"a": lab.changing("taken", 5, 6)}
    kept = lab.run(query, streams, [{"a": 2}] * 3, changelogs="a")
    monkeypatch.setattr(Inputs, "few", lambda *_: None)
    assert kept.rows == lab.run(query, streams, [{"a": 2}] * 3, changelogs="a").rows


def test_a_small_slice_of_large_rows_is_taken_as_well(lab):
    long = "x" * 2_000_000
    stream = lab.given("long", [([(START + number, long, number) for number in range(30)], START + 100)])
    assert Path(stream.blocks[0].data_path).stat().st_size < FEW
    assert len(lab.run("select event_time, length(k) as v from a", {"a": stream}, [{"a": 1}]).rows) == 30


def test_a_sum_that_leaves_its_type_on_its_way_is_exact(spark):
    """The kept plan fails of it; the complete one, made for these rows, does not."""
    steps = (SqlQueryStep(query="select sum(v) as s from a"),)
    rows = {"a": pa.table({"v": pa.array([2**62, 2**62, -(2**62), -(2**62) + 7], pa.int64())})}
    for _ in range(2):
        query = prepare_query(spark, steps, rows, {"a": 1}, (), exact=False)
        assert query.run(rows).to_pylist() == [{"s": 7}]


def test_a_plan_is_not_optimised_for_the_rows_that_it_was_made_with(spark):
    """Of one row there is nothing to group, as Spark knows; and an input without rows gives none."""
    steps = (SqlQueryStep(query="select v, count(*) as n from a group by v"),)
    for given, wanted in ([1], {1: 1}), ([1, 1, 2], {1: 2, 2: 1}), ([], {}), ([7] * FEW_ROWS, {7: FEW_ROWS}):
        rows = {"a": pa.table({"v": pa.array(given, pa.int64())})}
        found = prepare_query(spark, steps, rows, {"a": 1}, (), exact=False).run(rows)
        assert {row["v"]: row["n"] for row in found.to_pylist()} == wanted
    assert [len(kept.queries) for kept in plans._KEPT.values()] == [1]


def test_kept_plans_run_where_nothing_is_named_and_tasks_know_every_setting(spark):
    rows = {"a": pa.table({"v": pa.array([3], pa.int64())})}
    query = prepare_query(spark, (SqlQueryStep(query="select v from a"),), rows, {"a": 1}, (), exact=False)
    told = spark._jsparkSession.sharedState().statusStore()
    before = told.executionsCount()
    assert query.run(rows).to_pylist() == [{"v": 3}]
    assert told.executionsCount() == before
    assert [row.name for row in query.kept.session.catalog.listTables()] == []
    said = {name: query.kept.properties.get(name) for name, _, _ in (*MEANING, *CONFINEMENT)}
    assert said == {name: value for name, value, _ in (*MEANING, *CONFINEMENT)}


def test_a_kept_plan_that_is_cancelled_ends_as_spark_says(spark):
    text = (
        "select v from a lateral view explode(sequence(1, 1000)) t as x lateral view explode(sequence(1, 300)) u as y"
    )
    steps = (SqlQueryStep(query=f"{text} where x * y = -1"),)
    rows = {"a": pa.table({"v": pa.array([3] * FEW_ROWS, pa.int64())})}
    query = prepare_query(spark, steps, rows, {"a": 1}, (), exact=False)
    ended = []

    def work():
        spark.sparkContext.setJobGroup("kept", "cancelled", interruptOnCancel=True)
        try:
            query.run(rows)
        except PySparkException as fault:
            ended.append(fault)

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: spark.sparkContext.statusTracker().getJobIdsForGroup("kept") or not thread.is_alive())
    spark.sparkContext.cancelJobGroup("kept")
    thread.join(PATIENCE)
    assert ended


def test_columns_of_other_types_have_plans_of_their_own(spark):
    steps = (SqlQueryStep(query="select v + v as w from a"),)
    for kind in (pa.int32(), pa.int64(), pa.decimal128(5, 2)):
        rows = {"a": pa.table({"v": pa.array([3], kind)})}
        query = prepare_query(spark, steps, rows, {"a": 1}, (), exact=False)
        found = query.run(rows)
        assert found.column("w").to_pylist() == [6]
        assert pa.types.is_decimal(found.schema.field("w").type) == pa.types.is_decimal(kind)


def test_of_many_queries_the_newest_are_kept(spark, monkeypatch):
    monkeypatch.setattr(plans, "REMEMBERED", 2)
    rows = {"a": pa.table({"v": pa.array([3], pa.int64())})}
    for number in range(4):
        prepare_query(spark, (SqlQueryStep(query=f"select v + {number} as w from a"),), rows, {"a": 1}, (), exact=False)
    assert [len(kept.queries) for kept in plans._KEPT.values()] == [2]
