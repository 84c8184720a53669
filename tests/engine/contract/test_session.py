"""A process runs one Spark, and nobody ends the one that another has started."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import REFL_GET_UNKNOWN_SUB_COMMAND_NAME, REFLECTION_COMMAND_NAME
from pyspark.sql import SparkSession

import engines
from engines.contract import EngineProgress
from engines.errors import EngineLost
from engines.spark.rows.tables import frame_of_rows
from engines.spark.runtime.session import SessionOptions, start_session
from engines.spark.runtime.task_counts import TaskCounts
from engines.spark.runtime.warm_up import rehearse

pytestmark = pytest.mark.engine


LOOK_UP = f"{REFLECTION_COMMAND_NAME}{REFL_GET_UNKNOWN_SUB_COMMAND_NAME}"


def test_a_second_session_is_refused_and_the_first_one_lives(spark_root: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(EngineLost, match="runs Spark already"):
        start_session(SessionOptions(scratch=tmp_path))
    assert spark_root.range(3).count() == 3


def test_names_of_the_jvm_are_looked_up_once(spark_root: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that PySpark asks for."""
    looked_up: list[str] = []

    def command(text: str, *more: Any, **given: Any) -> Any:
        if text.startswith(LOOK_UP):
            looked_up.append(text)
        return send(text, *more, **given)

    client = spark_root.sparkContext._gateway._gateway_client
    send = client.send_command
    monkeypatch.setattr(client, "send_command", command)
    for _ in range(2):
        looked_up.clear()
        session = spark_root.newSession()
        assert session.createDataFrame(pa.table({"x": [1, 2]})).selectExpr("sum(x) as s").toArrow()["s"][0].as_py() == 3
        assert session._jvm.java.lang.System.getProperty("java.version")
    assert not looked_up


@pytest.mark.parametrize("lengths", [(2, 0, 1), (0, 2, 0, 0, 3), ()])
def test_no_row_after_an_empty_batch_is_lost(spark: SparkSession, lengths: tuple[int, ...]) -> None:
    """Spark 4.3 stops reading rows in memory there, without a word."""
    ends = list(itertools.accumulate(lengths, initial=0))
    batches = [pa.record_batch({"x": pa.array(range(*ends[at : at + 2]), pa.int64())}) for at in range(len(lengths))]
    rows = pa.Table.from_batches(batches, pa.schema({"x": pa.int64()}))
    assert [batch.num_rows for batch in rows.to_batches()] == list(lengths)
    frame = frame_of_rows(spark, rows)
    assert frame.columns == ["x"]
    assert frame.toArrow().column("x").to_pylist() == list(range(sum(lengths)))


def test_rows_in_memory_come_into_spark_in_one_place() -> None:
    """The place that takes empty batches out; a session's own ``createDataFrame`` leaves them in."""
    root = Path(engines.__file__).parent
    found = {
        str(path.relative_to(root)) for path in root.rglob("*.py") if "session.createDataFrame" in path.read_text()
    }
    assert found == {"spark/rows/tables.py"}


# Spark says how many tasks of a request are done, and how many rows they read.


def test_tasks_and_rows_of_a_request_are_counted_and_of_no_other(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        pq.write_table(pa.table({"k": pa.array(range(100), pa.int64())}), tmp_path / f"{number}.parquet")
    context = spark.sparkContext
    counts = TaskCounts(context, "one")

    def heard() -> EngineProgress:
        """Spark hears of its own tasks a moment after they ended."""
        context._jsc.sc().listenerBus().waitUntilEmpty()
        return counts()

    assert counts() == EngineProgress()
    context.setJobGroup("other", "request")
    assert spark.read.parquet(str(tmp_path)).count() == 300
    assert heard() == EngineProgress()
    context.setJobGroup("one", "request")
    frame = spark.read.schema("k bigint").parquet(str(tmp_path))
    assert frame.groupBy("k").count().toArrow().num_rows == 100
    first = heard()
    assert first.rows_read == 300
    assert first.tasks_total is not None
    assert first.tasks_total == first.tasks_done > 0
    assert frame.selectExpr("max(k) as m").toArrow().to_pylist() == [{"m": 99}]
    second = heard()
    assert second.rows_read == 600
    assert second.tasks_total == second.tasks_done > first.tasks_total
    assert TaskCounts(context, "one")() == second


# The queries that the class data archive is recorded with work, and leave nothing behind for others to see.


def test_a_rehearsal_works_and_leaves_no_view(spark: SparkSession, tmp_path: Path) -> None:
    rehearse(spark, tmp_path / "rehearsal")
    assert not spark.catalog.listTables()
