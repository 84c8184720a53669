"""Runs small queries like those to be expected, so that the class data archive holds their classes too.

Run once, by the start that records the archive, never by an engine that serves. The results are discarded.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from engines.errors import EngineLost
from engines.spark.rows.tables import frame_of_rows

ROWS: Final = 1_000
_MADE: Final = (
    "timestamp_millis(id * 3600000) as event_time",
    "concat('k', id % 7) as k",
    "cast(id as decimal(20, 2)) as d",
    "id as v",
)
_PARTS: Final = (
    "select event_time, upper(k) as k, v * 2 as v, d + 1 as d from a where v % 3 <> 0 and k is not null",
    "select window.start as event_time, k, count(*) as n, sum(v) as s, avg(d) as m, max(k) as t from a"
    " group by window(event_time, '1 day'), k order by 1, 2",
    "select date_trunc('day', event_time) as event_time, count(distinct k) as n from a group by 1",
    "select a.event_time, a.k, b.v from a left join b on a.k = b.k"
    " and b.event_time between a.event_time - interval '2' day and a.event_time",
    "select event_time, v from a union all select event_time, v from b where not exists (select 1 from a where v = -1)",
    "select event_time, sum(v) over (partition by k order by event_time, v) as s from a",
)


def rehearse(spark: SparkSession, folder: Path) -> None:
    """Runs a rehearsal; ``folder`` must not exist yet. Raises EngineLost, and what Spark raises."""
    session = spark.newSession()
    session.range(ROWS).selectExpr(*_MADE).coalesce(1).write.parquet(str(folder))
    stored = session.read.parquet(str(folder)).schema
    for alias in ("a", "b"):
        session.read.schema(stored).parquet(str(folder)).createOrReplaceTempView(alias)
    for text in _PARTS:
        session.sql(text).toArrow()
    rows = frame_of_rows(session, session.table("a").toArrow()).mapInArrow(_same, stored).toArrow()
    if rows.num_rows != ROWS:
        raise EngineLost(f"of {ROWS} rows of a rehearsal {rows.num_rows} came out", rule="rehearsal")


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
