"""Inputs as views: what a query calls by name, over the rows of some slices within bounds of event time.

A view has the columns and types of the input's schema whatever a slice has: old slices read as null where a column is
missing, unsigned numbers as Spark's wider ones, offset and op as Int64 and Int32.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from chain.data.parquet import open_slice
from engines.contract import Vocabulary
from engines.spark.analysis.monotone import EARLIEST, LATEST
from engines.spark.incremental import Read
from engines.spark.ingest.spark_types import struct_type
from engines.spark.plans import HIDDEN_OFFSET, HIDDEN_OP


def view_schema(schema: pa.Schema, vocab: Vocabulary) -> st.StructType:
    """Columns of the view of an input. Raises Invalid for a type that Spark does not have."""
    ours = {vocab.offset_column: st.LongType(), vocab.operation_type_column: st.IntegerType()}
    return st.StructType(
        [st.StructField(field.name, ours.get(field.name, field.dataType)) for field in struct_type(schema)]
    )


def name_view(frame: DataFrame, alias: str) -> None:
    """Name a view of this session; aliases may hold dots and hyphens."""
    frame.createOrReplaceTempView("`" + alias.replace("`", "``") + "`")


def empty_view(session: SparkSession, schema: st.StructType) -> DataFrame:
    return session.createDataFrame([], schema)


def slices_view(session: SparkSession, reads: Sequence[Read], schema: st.StructType, vocab: Vocabulary) -> DataFrame:
    """Rows of the given slices within their bounds, with hidden columns below the visible ones.

    ``carried`` finds the hidden columns again; a query does not see them.
    """
    parts = [part for read in reads for part in _scans(session, read, schema, vocab)]
    if not parts:
        return empty_view(session, schema)
    return reduce(DataFrame.unionAll, parts).select(*(sf.col(_quoted(name)) for name in schema.names))


def _scans(session: SparkSession, read: Read, schema: st.StructType, vocab: Vocabulary) -> list[DataFrame]:
    """One scan for each physical schema among the files."""
    groups: dict[pa.Schema, list[str]] = {}
    for path in read.paths:
        with open_slice(Path(path)) as source:
            groups.setdefault(source.schema.remove_metadata(), []).append(path)
    return [_scan(session, read, physical, paths, schema, vocab) for physical, paths in groups.items()]


def _scan(
    session: SparkSession,
    read: Read,
    physical: pa.Schema,
    paths: Sequence[str],
    schema: st.StructType,
    vocab: Vocabulary,
) -> DataFrame:
    wanted = pa.schema([field for field in physical if field.name in set(schema.names)])
    frame = session.read.schema(struct_type(wanted)).parquet(*paths)
    time = sf.col(_quoted(vocab.event_time_column)).cast("timestamp")
    if read.low > EARLIEST:
        frame = frame.where(time >= sf.timestamp_micros(sf.lit(read.low)))
    if read.high < LATEST:
        frame = frame.where(time < sf.timestamp_micros(sf.lit(read.high)))
    hidden = [
        sf.col(_quoted(vocab.offset_column)).cast("bigint").alias(HIDDEN_OFFSET),
        sf.col(_quoted(vocab.operation_type_column)).cast("int").alias(HIDDEN_OP),
    ]
    return frame.select(*(_column(field, wanted) for field in schema), *hidden)


def _column(field: st.StructField, physical: pa.Schema) -> Column:
    if field.name not in physical.names:
        return sf.lit(None).cast(field.dataType).alias(field.name)
    return sf.col(_quoted(field.name)).cast(field.dataType).alias(field.name)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
