"""Measures exact aggregates over floating point against Spark's own, which depend on the order of rows."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from bench.engine import bare_spark
from bench.measure import Row, Side, Size, in_turns
from engines.spark.catalyst.exact import run_exactly
from engines.spark.catalyst.plans import frame_of
from engines.spark.sql.parsing import analyse_query, parse_query

KEYS: Final = 1_000
GOALS: Final = {"avg": "≤ 1.5", "sum": "≤ 1.6", "stddev": "≤ 2.5"}
"""By call. Each sum that is kept costs Spark 4 ns a row: its own ``sum`` keeps one, an exact one five. Eight plain sums
cost over 1.5 times its own ``stddev``, and an exact one has eleven.
"""


def measure_exact(size: Size, folder: Path) -> list[Row]:
    """Measures scan, aggregation by key and result, both sides in one session, warm."""
    rows = size.pick(10_000, 5_000_000)
    path = folder / "numbers.parquet"
    rng = np.random.default_rng(1)
    pq.write_table(pa.table({"k": rng.integers(0, KEYS, rows), "x": np.round(rng.normal(100, 30, rows), 4)}), path)
    with bare_spark(size, folder / "spark") as spark:
        spark.read.parquet(str(path)).createOrReplaceTempView("x")
        return [_row(size, spark, call, rows) for call in GOALS]


def _row(size: Size, spark: SparkSession, call: str, rows: int) -> Row:
    plan = analyse_query(spark, parse_query(spark, f"select k, {call}(x) as v from x group by k"))
    run = partial(_collected, spark)
    ours, peer = in_turns(
        partial(run_exactly, spark, plan, run), partial(run, plan), size.pick(1, 9), warm=size.pick(0, 5)
    )
    return Row(
        name=f"exact {call}",
        measures=f"{call} of {rows:,} doubles by {KEYS:,} keys, from Parquet, warm",
        ours=Side(name="exact, rounded once", costs=ours, amount=rows, unit="rows"),
        peer=Side(name=f"Spark's own {call}", costs=peer, amount=rows, unit="rows"),
        goal=GOALS[call],
    )


def _collected(spark: SparkSession, plan: Any) -> pa.Table:
    return frame_of(spark, plan).toArrow()
