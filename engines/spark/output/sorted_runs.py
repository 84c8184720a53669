"""Writes results that are too large for memory: Spark sorts runs in the total order, which become parts of one slice.

A run is a range of the order and bounded in size. Within it Arrow orders rows as it orders small results, so Spark only
decides in which run a row is. Spec: docs/spec/engine-semantics.md#clusters. Used in final mode alone: the rows of a log
follow their inputs' offsets and those of a table its keys, and both are ordered by Arrow.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

from chain.data.parquet import SliceWriter
from engines.spark.analysis.lexical import quote_name
from engines.spark.rows.tables import arrow_columns

LARGE: Final = 512 << 20
"""Bytes of slices read by a transaction from which on its result is not held in memory at once: a heap of 2 GB easily
holds the rows of three times as much Parquet. Results larger than their inputs are left to the limits of a request."""
RUN: Final = 64 << 20
"""Target size of one run, as bytes of Parquet."""
_PLAIN: Final = (
    st.StringType, st.BinaryType, st.BooleanType, st.IntegralType, st.DecimalType, st.DateType, st.TimestampType,
    st.TimestampNTZType,
)  # fmt: skip


def is_large(paths: Iterable[str]) -> bool:
    """Whether the result over these slices is to be written in runs."""
    return sum(Path(path).stat().st_size for path in paths) > LARGE


def write_in_runs(
    session: SparkSession, frame: DataFrame, target: Path, schema: pa.Schema, event_time: str,
    settle: Callable[[pa.Table, int], pa.Table],
) -> int:  # fmt: skip
    """Writes all rows of ``frame`` to a slice of ``schema``, or no file if there are none. Returns their number.

    ``settle`` takes the rows of a run and the number of rows before it, and returns complete, ordered rows. Runs are
    written beside the slice, where executors of a cluster can write too, and deleted at the end.
    """
    folder = target.with_name(target.name + ".runs")
    session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    try:
        # Written unsorted first: to find ranges Spark reads all keys beforehand, which would run the query twice.
        frame.write.parquet(str(folder / "rows"))
        size = sum(file.stat().st_size for file in (folder / "rows").glob("part-*"))
        again = session.read.schema(frame.schema).parquet(str(folder / "rows"))
        keys = list(_keys(frame.schema, event_time))
        ranged = again.selectExpr("*", *(f"{key} as __key_{at}" for at, key in enumerate(keys)))
        names = [f"__key_{at}" for at in range(len(keys))]
        ranged.repartitionByRange(size // RUN + 1, *names).drop(*names).write.parquet(str(folder / "runs"))
        return _join(sorted((folder / "runs").glob("part-*")), target, schema, frame.schema, settle)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _join(
    runs: Iterable[Path], target: Path, schema: pa.Schema, columns: st.StructType,
    settle: Callable[[pa.Table, int], pa.Table],
) -> int:  # fmt: skip
    """Joins runs to a slice, with one run in memory at a time. Names of Spark's files sort by partition."""
    count, wanted = 0, arrow_columns(columns)
    with SliceWriter(target, schema) as writer:
        for run in runs:
            rows = settle(pq.read_table(run, partitioning=None).cast(wanted), count)
            writer.write(rows)
            count += rows.num_rows
    if not count:
        target.unlink()
    return count


def _keys(columns: st.StructType, event_time: str) -> Iterator[str]:
    """Yields expressions that sort as the total order does, up to the first nested column, where Spark's order differs.

    Rows that are equal so far are in one run. A float has a second expression, since to Spark -0.0 equals 0.0.
    """
    yield f"unix_millis(cast({quote_name(event_time)} as timestamp))"
    for column in columns:
        if column.name == event_time:
            continue
        kind, quoted = column.dataType, quote_name(column.name)
        if isinstance(kind, (st.FloatType, st.DoubleType)):
            yield quoted
            yield f"case when {quoted} = 0 then not startswith(cast({quoted} as string), '-') end"
        elif isinstance(kind, _PLAIN):
            yield quoted
        else:
            return
