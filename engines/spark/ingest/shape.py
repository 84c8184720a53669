"""Shapes rows of a batch as rows of a dataset: reserved names, event time, exact types, order, offsets.

Pure over Arrow tables; the rules are those of the reference, in its order (format notes: write pipeline). Columns that
differ from the schema in force are refused here, by name, before anything is written.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chain.errors import Invalid
from chain.instant import Instant, to_millis
from chain.model.source import MergeStrategy, traits
from chain.wording import a
from engines.contract import Vocab
from engines.spark.ingest.merge import Merged
from engines.spark.ingest.text_columns import Misfit, instant_type, millis_type, misfit_fault, to_instants, type_name

OFFSET_TYPE: Final = pa.int64()
OP_TYPE: Final = pa.int32()
_DAY_MS: Final = 86_400_000


def coerce_guessed(batch: pa.Table, vocab: Vocab, strategy: MergeStrategy) -> pa.Table:
    """Adapts data without a declared schema: renames around system columns, and finds the event time.

    ``op`` becomes ``_op`` (as the last column); an event time in seconds or as text becomes an instant.
    """
    reserved = [vocab.offset, vocab.system_time]
    reserved += [] if traits(strategy).carries_op else [vocab.operation_type]
    kept = [name for name in batch.column_names if name not in reserved]
    moved = [name for name in batch.column_names if name in reserved]
    batch = batch.select([*kept, *moved]).rename_columns([*kept, *(f"_{name}" for name in moved)])
    name = vocab.event_time
    if name not in kept:
        return batch
    column = batch.column(name)
    if pa.types.is_integer(column.type):
        times = column.cast(pa.int64()).cast(pa.timestamp("s", "UTC")).cast(millis_type())
    elif pa.types.is_string(column.type):
        try:
            times = to_instants(column)
        except Misfit as misfit:
            raise misfit_fault("", name, millis_type(), misfit.value) from misfit
    else:
        return batch
    return batch.set_column(kept.index(name), name, times)


def prepare_batch(batch: pa.Table, vocab: Vocab, strategy: MergeStrategy, force: pa.Schema | None) -> pa.Table:
    """Returns the batch with logical types and an event time column (null if the source has none). Raises Invalid."""
    reserved = [vocab.offset, vocab.system_time]
    reserved += [] if traits(strategy).carries_op else [vocab.operation_type]
    for name in reserved:
        if name in batch.column_names:
            raise Invalid(
                f"the data has a column {name!r}, which is the name of a system column",
                rule="reserved-column",
                hint="rename it in preprocess, or choose another name for the system column with SetVocab",
            )
    known = {} if force is None else {field.name: field.type for field in force}
    name = vocab.event_time
    kind = known.setdefault(name, millis_type())
    if name not in batch.column_names:
        batch = batch.append_column(pa.field(name, kind), pa.nulls(batch.num_rows, kind))
    columns = [
        _in_unit(_logical(column), known.get(field.name), field.name)
        for field, column in zip(batch.schema, batch.columns, strict=True)
    ]
    times = columns[batch.column_names.index(name)].type
    if not (pa.types.is_timestamp(times) or pa.types.is_date(times)):
        raise Invalid(
            f"event time column {name!r} should be a Date or a Timestamp, and is {type_name(times)}",
            rule="event-time-type",
            hint="declare it so in the read schema, or cast it in preprocess",
        )
    fields = [field.with_type(column.type) for field, column in zip(batch.schema, columns, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _in_unit(column: pa.ChunkedArray, kind: pa.DataType | None, name: str) -> pa.ChunkedArray:
    """Converts times to the dataset's unit; event times to milliseconds by default. Raises Invalid for lost digits."""
    if kind is None or not (pa.types.is_timestamp(kind) and pa.types.is_timestamp(column.type)):
        return column
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        whole = (
            f"timestamp_millis({name} div 1000000)"
            if column.type.unit == "ns"
            else f"date_trunc('MILLISECOND', {name})"
        )
        raise Invalid(
            f"column {name!r} of the dataset is {a(type_name(kind))}, and its times here are finer: "
            f"{str(error).splitlines()[0]}",
            rule="exact-times",
            hint=f"in preprocess cut them, and keep all digits beside: select {whole} as {name}, {name} as exact, …",
        ) from error


def _logical(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_timestamp(kind):
        return column.cast(instant_type(kind))
    if pa.types.is_date64(kind):
        return column.cast(pa.date32())
    if pa.types.is_dictionary(kind):
        return _logical(column.cast(kind.value_type))
    if pa.types.is_large_string(kind):
        return column.cast(pa.string())
    if pa.types.is_null(kind):
        return column.cast(pa.string())
    return column.cast(pa.binary()) if pa.types.is_large_binary(kind) else column


def no_rows(vocab: Vocab, strategy: MergeStrategy, force: pa.Schema) -> pa.Table:
    """Returns an empty batch of a dataset with schema ``force``."""
    system = {vocab.offset, vocab.system_time}
    system |= set() if traits(strategy).carries_op else {vocab.operation_type}
    return pa.schema([field for field in force if field.name not in system]).empty_table()


def check_columns(batch: pa.Schema, vocab: Vocab, force: pa.Schema | None) -> None:
    """Raises Invalid unless the data columns are those of the schema in force: names, order and types."""
    if force is None:
        return
    system = {vocab.offset, vocab.operation_type, vocab.system_time}
    have = {field.name: field.type for field in batch if field.name not in system}
    want = {field.name: field.type for field in force if field.name not in system}
    problems = [f"{name!r} is missing" for name in want if name not in have]
    problems += [f"{name!r} is new" for name in have if name not in want]
    problems += [
        f"{name!r} is {type_name(have[name])} and should be {type_name(want[name])}"
        for name in want
        if name in have and have[name] != want[name]
    ]
    data = vocab.event_time
    if not problems and [n for n in have if n != data] != [n for n in want if n != data]:
        problems.append(f"the order is {', '.join(have)} and should be {', '.join(want)}")
    if problems:
        raise Invalid(
            f"the data does not fit the dataset's schema: {'; '.join(problems)}",
            rule="schema-in-force",
            hint="correct the read schema or preprocess; a column is added by: odfctl schema alter NAME add '…'",
        )


def finish_rows(
    merged: Merged, vocab: Vocab, system_time: Instant, source_time: Instant | None, next_offset: int
) -> pa.Table:
    """Adds system columns, sorts rows to their final order, and counts offsets from ``next_offset``.

    Column order: offset, op, system_time, event_time, then data columns as they came.
    """
    rows, name = merged.rows, vocab.event_time
    count = rows.num_rows
    kind = rows.schema.field(name).type
    times = rows.column(name)
    if times.null_count:
        times = _fill_source_time(
            times, merged.fresh, _instant_as(system_time if source_time is None else source_time, kind)
        )
    stamp = pa.scalar(to_millis(system_time), pa.int64()).cast(millis_type())
    data = [field for field in rows.schema if field.name != name]
    columns = [merged.op, pa.repeat(stamp, count), times, *(rows.column(field.name) for field in data)]
    fields = [
        pa.field(vocab.operation_type, OP_TYPE, False),
        pa.field(vocab.system_time, millis_type(), False),
        pa.field(name, kind, times.null_count > 0),
        *data,
    ]
    table = sort_rows(pa.Table.from_arrays(columns, schema=pa.schema(fields)), merged.order)
    offsets = pa.array(np.arange(next_offset, next_offset + count, dtype=np.int64))
    return table.add_column(0, pa.field(vocab.offset, OFFSET_TYPE, False), offsets)


def fill_times(batch: pa.Table, name: str, given: Instant) -> pa.Table:
    """Gives rows without event time (column ``name``) the time ``given``."""
    place, times = batch.schema.get_field_index(name), batch.column(name)
    if not times.null_count:
        return batch
    return batch.set_column(place, batch.schema.field(place), pc.coalesce(times, _instant_as(given, times.type)))


def _fill_source_time(times: pa.ChunkedArray, fresh: pa.Array, value: pa.Scalar) -> pa.ChunkedArray:
    """Gives the source's time to rows of the batch only; a retraction keeps that of its old row."""
    return pc.if_else(pc.and_(pc.is_null(times), fresh), value, times)


def _instant_as(instant: Instant, kind: pa.DataType) -> pa.Scalar:
    millis = to_millis(instant)
    if pa.types.is_date32(kind):
        return pa.scalar(millis // _DAY_MS, pa.int32()).cast(kind)
    return pa.scalar(millis, pa.int64()).cast(millis_type()).cast(kind)


def sort_rows(table: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    """Sorts ascending by ``keys``, nulls first; rows with equal keys stay in input order."""
    if len(keys) == 1 and ascending(table.column(keys[0])):
        return table
    order = pc.sort_indices(table, sort_keys=[(key, "ascending", "at_start") for key in keys])
    return table.take(order)


def ascending(column: pa.ChunkedArray) -> bool:
    """Whether a column of times is sorted already, as in most sources."""
    if column.null_count or not pa.types.is_temporal(column.type):
        return False
    values = time_values(column)
    return bool(np.all(values[:-1] <= values[1:]))


def time_values(column: pa.ChunkedArray) -> np.ndarray:
    """Returns dates or times as numbers in their own unit; the column has no nulls."""
    width = pa.int32() if pa.types.is_date32(column.type) else pa.int64()
    values: np.ndarray = column.cast(width).to_numpy()
    return values


def fit_schema(table: pa.Table, force: pa.Schema | None) -> pa.Table:
    """Casts the table to the schema in force, or its own if there is none. Raises Invalid for forbidden nulls."""
    schema = table.schema if force is None else pa.schema([force.field(name) for name in force.names])
    columns = []
    for field in schema:
        column = table.column(field.name)
        if column.null_count and not field.nullable:
            raise Invalid(
                f"column {field.name!r} contains {column.null_count} null values while none were expected",
                rule="not-null",
                hint="the schema says NOT NULL; filter such rows in preprocess or make the column optional",
            )
        columns.append(column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema.remove_metadata())
