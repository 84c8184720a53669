"""Registers inputs as views: rows of some slices within bounds of event time, under the query's names.

A view has the columns and types of the input's schema whatever a slice has: if an old slice lacks a column or a field
inside one, it reads as null; unsigned numbers become Spark's wider ones, offset and op Int64 and Int32.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

from chain.data.parquet import open_slice
from chain.errors import Invalid
from engines.contract import Vocab
from engines.spark.analysis.lexical import quote_name
from engines.spark.analysis.monotone import EARLIEST, LATEST
from engines.spark.analysis.relation import InputReadings
from engines.spark.analysis.walk import VALID_FROM, VALID_TO
from engines.spark.catalyst.plans import (
    HIDDEN,
    HIDDEN_BEFORE,
    HIDDEN_OFFSET,
    HIDDEN_OP,
    HIDDEN_SOURCE,
    frame_of,
    jvm_object,
    project,
)
from engines.spark.catalyst.types import struct_type
from engines.spark.planning.transaction import SliceRead
from engines.spark.rows.tables import event_times, frame_of_rows, read_rows

ONE_PARTITION: Final = 4 << 20
"""Bytes of slices up to which a second core gains less than the exchange between two cores costs."""

FEW: Final = 1 << 18
FEW_ROWS: Final = 10_000
"""Most bytes and rows of slices that are read here in Python: setting up a scan of a file takes Spark longer."""
_PLAIN: Final = (
    pa.types.is_boolean, pa.types.is_signed_integer, pa.types.is_float32, pa.types.is_float64, pa.types.is_string,
    pa.types.is_binary, pa.types.is_date32, pa.types.is_decimal128,
)  # fmt: skip

SCHEMAS: Final = 256
"""Most schemas whose view columns are remembered: every transaction needs them, and they hardly ever change."""

_EMPTY: Final[WeakKeyDictionary[Any, OrderedDict[tuple[str, str], Any]]] = WeakKeyDictionary()
"""Spark's plans of views without rows, for each JVM, by alias and columns."""


@functools.lru_cache(maxsize=SCHEMAS)
def view_schema(schema: pa.Schema, vocab: Vocab) -> st.StructType:
    """Returns the columns of the view of an input. Raises Invalid for a type that Spark does not have."""
    _check_event_time(schema, vocab)
    ours = {vocab.offset: st.LongType(), vocab.operation_type: st.IntegerType()}
    return st.StructType(
        [st.StructField(field.name, ours[field.name]) if field.name in ours else field for field in struct_type(schema)]
    )


def _check_event_time(schema: pa.Schema, vocab: Vocab) -> None:
    """Raises Invalid for an event time that Spark would round: other such columns can
    become numbers, event time cannot."""
    name = vocab.event_time
    if name in schema.names and schema.field(name).type in (pa.timestamp("ns"), pa.timestamp("ns", "UTC")):
        raise Invalid(
            f"the event time {name!r} of an input counts nanoseconds, and queries count microseconds",
            rule="event-time-type",
            hint="derive from a dataset whose event time is in milliseconds; nanoseconds are allowed in other columns",
        )


def name_view(frame: DataFrame, alias: str) -> None:
    """Registers a view of this session; aliases may hold dots and hyphens."""
    frame.createOrReplaceTempView(quote_name(alias))


def empty_view(session: SparkSession, schema: st.StructType) -> DataFrame:
    """Makes a DataFrame with columns and no rows, in the JVM alone: rows of Python, even none, go through an RDD."""
    within: Any = session._jsparkSession
    rows = jvm_object(session, "java.util.Collections.emptyList")()
    return DataFrame(within.createDataFrame(rows, within.parseDataType(schema.json())), session)


def name_empty_view(session: SparkSession, schema: st.StructType, alias: str) -> None:
    """Registers a view without rows.

    Spark's plan of it is cached, since it holds nothing of a session: many queries are analysed over the same inputs.
    """
    catalog = session._jsparkSession.sessionState().catalog()
    kept = _EMPTY.setdefault(session.sparkContext._gateway, OrderedDict())
    key = alias, schema.json()
    definition = kept.get(key)
    if definition is not None:
        catalog.createTempView(alias, definition, True)
        return
    name_view(empty_view(session, schema), alias)
    kept[key] = catalog.getRawTempView(alias).get()
    if len(kept) > SCHEMAS:
        kept.popitem(last=False)


def name_input(frame: DataFrame, schema: st.StructType, alias: str) -> None:
    """Registers a view of this session, for an input whose columns are ``schema``.

    Runs no command, as ``name_view`` does: Spark plans, logs and reports a command like a query, and takes longer for
    it than for a small query.
    """
    session = frame.sparkSession
    definition = _EMPTY.get(session.sparkContext._gateway, OrderedDict()).get((alias, schema.json()))
    if definition is None:
        name_view(frame, alias)
        return
    plan = jvm_object(session, "scala.Some")(frame._jdf.queryExecution().analyzed())
    within: Any = session._jsparkSession
    within.sessionState().catalog().createTempView(alias, definition.copy(definition.tableMeta(), plan), True)


def slices_view(
    session: SparkSession, reads: Sequence[SliceRead], schema: st.StructType, vocab: Vocab, number: int | None = 0,
    events: bool = False,
) -> DataFrame:  # fmt: skip
    """Returns the rows of the given slices of input ``number`` within their bounds, with hidden columns.

    ``carried`` finds the hidden columns again; a query does not see them. ``number``: ``None`` for no hidden columns;
    few rows then come as one partition, so that grouping and joining them needs no exchange. ``events``: the hidden
    columns show every row as an addition.
    """
    few = few_rows(reads, schema, vocab, number, events)
    if few is not None:
        frame = frame_of_rows(session, few)
        return frame if number is None else without_hidden(session, frame, len(schema))
    parts = [part for read in reads for part in _scans(session, read, schema, vocab, number)]
    if number is None:
        whole = functools.reduce(DataFrame.unionAll, parts) if parts else empty_view(session, schema)
        few = sum(Path(path).stat().st_size for read in reads for path in read.paths) <= ONE_PARTITION
        return whole.coalesce(1) if few else whole
    if not parts:
        types = ("bigint", "int", "int", "bigint")
        bare = [f"cast(null as {kind}) as {name}" for kind, name in zip(types, HIDDEN, strict=True)]
        parts = [empty_view(session, schema).selectExpr(*(quote_name(name) for name in schema.names), *bare)]
    whole = functools.reduce(DataFrame.unionAll, parts)
    if events:
        whole = whole.selectExpr(f"* except ({HIDDEN_OP})", f"0 as {HIDDEN_OP}")
    return without_hidden(session, whole, len(schema))


def without_hidden(session: SparkSession, frame: DataFrame, count: int) -> DataFrame:
    """Selects the first ``count`` columns, those of the view, without hidden ones."""
    plan = frame._jdf.queryExecution().analyzed()
    return frame_of(session, project(session, plan.output().take(count), plan))


def _are_few(reads: Sequence[SliceRead], schema: st.StructType) -> bool:
    """Whether slices are small, with types that Arrow and Spark read alike."""
    paths = [Path(path) for read in reads for path in read.paths]
    if sum(path.stat().st_size for path in paths) > FEW:
        return False
    rows, wanted = 0, set(schema.names)
    for path in paths:
        with open_slice(path) as source:
            rows += source.rows
            if not all(_is_plain(field.type) for field in source.schema if field.name in wanted):
                return False
    return rows <= FEW_ROWS


def _is_plain(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return kind.unit != "ns" and kind.tz is not None
    return any(each(kind) for each in _PLAIN)


def few_rows(
    reads: Sequence[SliceRead], schema: st.StructType, vocab: Vocab, number: int | None, events: bool
) -> pa.Table | None:
    """Reads the rows of ``slices_view``, with their hidden columns; ``None``: there are
    too many, so Spark must read them."""
    if not _are_few(reads, schema):
        return None
    parts = []
    for read in reads or [SliceRead(())]:
        try:
            rows = read_rows(read.paths, schema, safe=True)
        except pa.ArrowInvalid:  # a time that microseconds cannot hold: Spark reports it
            return None
        if read.low > EARLIEST or read.high < LATEST:
            times, timed = event_times(rows, vocab)
            rows = rows.filter(pa.array(timed & (times >= read.low) & (times < read.high)))
        parts.append(rows if number is None else _with_hidden(rows, read.before, vocab, number, events))
    return pa.concat_tables(parts)


def _with_hidden(rows: pa.Table, before: int, vocab: Vocab, number: int, events: bool) -> pa.Table:
    count = rows.num_rows
    ops = rows.column(vocab.operation_type)
    values = (
        rows.column(vocab.offset),
        pa.repeat(pa.scalar(0, pa.int32()), count) if events else ops,
        pa.repeat(pa.scalar(number, pa.int32()), count),
        pa.repeat(pa.scalar(before, pa.int64()), count),
    )
    for name, column in zip(HIDDEN, values, strict=True):
        rows = rows.append_column(name, column)
    return rows


def _scans(
    session: SparkSession, read: SliceRead, schema: st.StructType, vocab: Vocab, number: int | None
) -> list[DataFrame]:
    """Makes one scan for each physical schema among the files."""
    groups: dict[pa.Schema, list[str]] = {}
    for path in read.paths:
        with open_slice(Path(path)) as source:
            # Files of several writers may differ in metadata alone, and then one scan reads them all.
            groups.setdefault(source.schema.remove_metadata(), []).append(path)
    hidden = () if number is None else (
        f"cast({quote_name(vocab.offset)} as bigint) as {HIDDEN_OFFSET}",
        f"cast({quote_name(vocab.operation_type)} as int) as {HIDDEN_OP}",
        f"{number} as {HIDDEN_SOURCE}",
        f"{read.before}L as {HIDDEN_BEFORE}",
    )  # fmt: skip
    return [_scan(session, read, physical, paths, schema, vocab, hidden) for physical, paths in groups.items()]


def _scan(
    session: SparkSession,
    read: SliceRead,
    physical: pa.Schema,
    paths: Sequence[str],
    schema: st.StructType,
    vocab: Vocab,
    hidden: Sequence[str],
) -> DataFrame:
    _check_event_time(physical, vocab)
    stored = _stored_types(physical, schema)
    # With a schema Spark need not open a footer, 25 ms less. It is the file's own: BIGINT over UINT_64 fails at run
    # time.
    frame = session.read.schema(stored).parquet(*paths)
    # As texts, since every Column object takes several calls into the JVM, longer than a small query. And all at once,
    # since Spark analyses each step anew.
    time = f"cast({quote_name(vocab.event_time)} as timestamp)"
    if read.low > EARLIEST or read.high < LATEST:
        frame = frame.where(f"{time} >= timestamp_micros({read.low}) and {time} < timestamp_micros({read.high})")
    return frame.selectExpr(*(_column(field, stored) for field in schema), *hidden)


def _stored_types(physical: pa.Schema, schema: st.StructType) -> st.StructType:
    """Returns the types with which to read those columns of a file that the view has; nested ones directly as in the
    view.

    Spark's Parquet reader gives null for missing fields, which a cast does not.
    """
    nested = (st.StructType, st.ArrayType)
    wanted = {field.name: field for field in schema}
    present = struct_type(pa.schema([field for field in physical if field.name in wanted]))
    return st.StructType([wanted[field.name] if isinstance(field.dataType, nested) else field for field in present])


def _column(field: st.StructField, stored: st.StructType) -> str:
    name = quote_name(field.name)
    if field.name in stored.names and stored[field.name].dataType == field.dataType:
        return name
    value = name if field.name in stored.names else "null"
    return f"cast({value} as {field.dataType.simpleString()}) as {name}"


@dataclass(frozen=True, slots=True)
class QueryInput:
    """One input as a query sees it."""

    alias: str
    schema: st.StructType
    event_time: str
    primary_key: tuple[str, ...] = ()
    """If not empty, the query sees the versions of each key, with the times at which they were in force."""
    operation: str = "op"
    """Name of the column that says whether a row adds or takes back."""
    changes: bool | None = None
    """Whether rows can be taken back; ``None``: not known."""
    log: bool = False
    """Whether the query sees every statement as an event."""
    offset: str = "offset"
    """Name of the column that numbers the rows of the input's chain."""

    @property
    def columns(self) -> st.StructType:
        if not self.primary_key:
            return self.schema
        times = [st.StructField(name, st.TimestampType()) for name in (VALID_FROM, VALID_TO)]
        return st.StructType([*self.schema, *times])


def readings_of(inputs: Sequence[QueryInput]) -> InputReadings:
    return InputReadings(
        operations={view.alias: view.operation for view in inputs},
        logs=frozenset(view.alias for view in inputs if view.log),
        changes={view.alias: view.changes for view in inputs},
        offsets={view.alias: view.offset for view in inputs},
    )


def check_versions(view: QueryInput) -> None:
    there = set(view.schema.names)
    missing = [name for name in view.primary_key if name not in there]
    if missing:
        raise Invalid(
            f"temporal table {view.alias}: its primary key names {missing[0]}, which the input does not have",
            rule="temporal-table",
            hint=f"columns: {', '.join(view.schema.names)}",
        )
    taken = [name for name in (VALID_FROM, VALID_TO) if name in there]
    if view.primary_key and taken:
        raise Invalid(
            f"temporal table {view.alias} has a column {taken[0]} of its own",
            rule="reserved-name",
            hint="rename it in a dataset between",
        )


def name_inputs(session: SparkSession, inputs: Sequence[QueryInput]) -> None:
    for view in inputs:
        name_empty_view(session, view.columns, view.alias)
