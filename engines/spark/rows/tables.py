"""Reads rows of slices as Arrow tables with the columns of their input, for work outside of Spark.

The columns and types are those of the input's view in a query, whatever a slice has. Synchronous; reads files, keeps
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_schema

from chain.data.parquet import open_slice
from chain.errors import Invalid
from engines.contract import Vocab
from engines.spark.analysis.monotone import EARLIEST, LATEST

_MICROSECONDS: Final = {"us": 1, "ms": 1_000, "s": 1_000_000}


def arrow_columns(schema: st.StructType) -> pa.Schema:
    """Returns the columns of a view as Arrow types; times in microseconds."""
    return to_arrow_schema(schema, timezone="UTC").remove_metadata()


def read_rows(paths: Iterable[str], schema: st.StructType, safe: bool = False) -> pa.Table:
    """Reads all rows of slices, in the given order; columns that a slice lacks are null.

    Raises Invalid, Environment; with ``safe`` ArrowInvalid for a value out of the range of the view's type.
    """
    wanted = arrow_columns(schema)
    parts = [wanted.empty_table()]
    for path in paths:
        with open_slice(Path(path)) as source:
            there = set(source.schema.names)
            present = [name for name in wanted.names if name in there]
            stored = pa.schema([source.schema.field(name) for name in present])
            table = pa.Table.from_batches(list(source.batches(columns=present)), schema=stored)
        parts.append(pa.table(
            [_as(table.column(f.name), f.type, safe) if f.name in there else pa.nulls(table.num_rows, f.type)
             for f in wanted], schema=wanted,
        ))  # fmt: skip
    return pa.concat_tables(parts)


def _as(column: pa.ChunkedArray, kind: pa.DataType, safe: bool) -> pa.ChunkedArray:
    return column if column.type == kind else column.cast(kind, safe=safe)


def frame_of_rows(session: SparkSession, rows: pa.Table) -> DataFrame:
    """Makes a DataFrame over rows in memory; an empty one keeps its columns.

    The only way from Arrow into Spark: given an empty batch among others, Spark 4.3 stops there, and later rows are
    lost; given a nested column without any chunk, it fails.
    """
    batches = rows.to_batches()
    held = [batch for batch in batches if batch.num_rows]
    if not held:
        return session.createDataFrame(rows.schema.empty_table())
    whole = rows if len(held) == len(batches) else pa.Table.from_batches(held, rows.schema)
    return session.createDataFrame(whole)


def microseconds(times: pa.Array) -> pa.Array:
    """Converts dates or timestamps to int64 microseconds; rounds nanoseconds towards the past, as
    Spark does. A time further away than ``LATEST`` has no place, as if it were null. Raises Invalid."""
    if pa.types.is_date(times.type):
        times = times.cast(pa.timestamp("ms"))
    if not pa.types.is_timestamp(times.type):
        raise Invalid(f"an event time is a date or a timestamp, not {times.type}", rule="event-time-type")
    if times.type.unit == "ns":
        # A plain cast would round towards zero, and before 1970 that is the future.
        times = pc.floor_temporal(times, unit="microsecond").cast(pa.timestamp("us", times.type.tz))
    scale = _MICROSECONDS[times.type.unit]
    found, first, last = times.cast(pa.int64()), -(-EARLIEST // scale), (LATEST - 1) // scale
    ends = pc.min_max(found)
    if ends["min"].is_valid and (ends["min"].as_py() < first or ends["max"].as_py() > last):
        inside = pc.and_(pc.greater_equal(found, first), pc.less_equal(found, last))
        found = pc.if_else(inside, found, pa.scalar(None, pa.int64()))
    return found if scale == 1 else pc.multiply(found, scale)


def event_times(rows: pa.Table, vocab: Vocab) -> tuple[np.ndarray, np.ndarray]:
    """Returns event times in microseconds, and a mask of the rows that have one."""
    times = microseconds(rows.column(vocab.event_time).combine_chunks())
    return np.asarray(pc.fill_null(times, 0)), np.asarray(times.is_valid())
