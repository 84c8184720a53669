"""Spark says how many tasks of a request are done, and how many rows they read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from engines.contract import EngineProgress
from engines.spark.runtime.task_counts import TaskCounts

pytestmark = pytest.mark.engine


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
