"""The result of a query as the rows of a slice: exact types, final order, system columns.

Pure, over Arrow tables that Spark returned. Spark counts time in microseconds; the format in milliseconds, and the
types are part of the logical hash, so everything is cast before it is written. Engine semantics, sections 5.3 and 7.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chain.data.arrow_schema import to_arrow
from chain.errors import Invalid
from chain.instant import Instant, to_millis
from chain.model.schema import DataSchema
from engines.contract import Vocabulary
from engines.spark.ordering import total_order
from engines.spark.plans import HIDDEN_OFFSET, HIDDEN_OP

INSTANT: Final = pa.timestamp("ms", "UTC")
ADDED, RETRACTED, CORRECT_FROM, CORRECT_TO = 0, 1, 2, 3
"""Values of op: +A -R -C +C."""


def output_schema(columns: pa.Schema, vocab: Vocabulary) -> pa.Schema:
    """Schema of slices that hold a query's columns: system columns first, times in milliseconds.

    Raises Invalid for types that the format does not have, and for an event time that is no time.
    """
    name = vocab.event_time_column
    fields = {field.name: pa.field(field.name, _logical(field.type, field.name)) for field in columns}
    time = fields.pop(name)
    if not (pa.types.is_timestamp(time.type) or pa.types.is_date(time.type)):
        raise Invalid(f"{name} is {time.type}", rule="event-time-type", hint="select a TIMESTAMP or DATE under it")
    return pa.schema(
        [
            pa.field(vocab.offset_column, pa.int64(), nullable=False),
            pa.field(vocab.operation_type_column, pa.int32(), nullable=False),
            pa.field(vocab.system_time_column, INSTANT, nullable=False),
            time,
            *fields.values(),
        ]
    )


def schema_in_force(columns: pa.Schema, vocab: Vocabulary, force: DataSchema | None) -> pa.Schema:
    """The schema to write: the dataset's own if it has one, else what the query gives. Raises Invalid on a misfit."""
    made = output_schema(columns, vocab)
    if force is None:
        return made
    wanted = to_arrow(force).remove_metadata()
    for here, there in zip(made, wanted, strict=False):
        if here.name != there.name or not here.type.equals(there.type):
            raise Invalid(
                f"the query gives {here.name} {here.type} where the dataset has {there.name} {there.type}",
                rule="schema-in-force", hint="mend the query, or make a new dataset",
            )  # fmt: skip
    if len(made) != len(wanted):
        raise Invalid(
            f"the query gives {len(made) - 4} columns, the dataset has {len(wanted) - 4}",
            rule="schema-in-force",
            hint="mend the query, or make a new dataset",
        )
    return wanted


def final_rows(result: pa.Table, vocab: Vocabulary, emit_from: int | None, emit_until: int) -> pa.Table:
    """Rows with ``emit_from <= event time < emit_until`` (microseconds), in total order by event time first."""
    times = pc.floor_temporal(result.column(vocab.event_time_column).cast(pa.timestamp("us")), unit="millisecond")
    instants = times.cast(pa.int64())
    inside = pc.less(instants, emit_until)
    if emit_from is not None:
        inside = pc.and_(inside, pc.greater_equal(instants, emit_from))
    rows = as_written(result.filter(inside))
    others = [name for name in rows.column_names if name != vocab.event_time_column]
    return rows.take(total_order(rows, [vocab.event_time_column, *others]))


def log_rows(result: pa.Table) -> tuple[pa.Table, pa.Array]:
    """Rows in the order of those they came from, and the op of each, after mending pairs that the query split.

    A query may drop one half of a correction: ``-C`` alone becomes ``-R``, ``+C`` alone ``+A``. A correction that no
    longer corrects anything is left out.
    """
    rows = as_written(result)
    offsets = np.asarray(rows.column(HIDDEN_OFFSET).combine_chunks())
    if np.any(np.diff(offsets) <= 0):
        visible = [name for name in rows.column_names if name not in (HIDDEN_OFFSET, HIDDEN_OP)]
        rows = rows.take(total_order(rows, [HIDDEN_OFFSET, *visible]))
        offsets = np.asarray(rows.column(HIDDEN_OFFSET).combine_chunks())
    ops = np.asarray(rows.column(HIDDEN_OP).combine_chunks()).copy()
    rows = rows.drop_columns([HIDDEN_OFFSET, HIDDEN_OP])
    if not ops.any():
        return rows, pa.array(ops, pa.int32())
    keep = _mend(rows, offsets, ops)
    return rows.filter(pa.array(keep)), pa.array(ops[keep], pa.int32())


def _mend(rows: pa.Table, offsets: np.ndarray, ops: np.ndarray) -> np.ndarray:
    """Sets ops of halves without their other half, in place; returns which rows stay."""
    single = np.ones(len(offsets), bool)
    if len(offsets) > 1:
        repeated = offsets[1:] == offsets[:-1]
        single[1:] &= ~repeated
        single[:-1] &= ~repeated
    first = np.flatnonzero(
        (ops[:-1] == CORRECT_FROM)
        & (ops[1:] == CORRECT_TO)
        & (offsets[1:] == offsets[:-1] + 1)
        & single[:-1]
        & single[1:]
    )
    paired = np.zeros(len(ops), bool)
    paired[first] = paired[first + 1] = True
    ops[~paired & (ops == CORRECT_FROM)] = RETRACTED
    ops[~paired & (ops == CORRECT_TO)] = ADDED
    keep = np.ones(len(ops), bool)
    if len(first):
        before, after = rows.take(pa.array(first)), rows.take(pa.array(first + 1))
        unchanged = np.fromiter(
            (one == other for one, other in zip(before.to_pylist(), after.to_pylist(), strict=True)), bool, len(first)
        )
        keep[first[unchanged]] = keep[first[unchanged] + 1] = False
    return keep


def slice_of(
    rows: pa.Table, ops: pa.Array, schema: pa.Schema, vocab: Vocabulary, system_time: Instant, next_offset: int
) -> pa.Table:
    """Complete rows of ``schema``. Raises Invalid when a value does not fit it."""
    count = rows.num_rows
    system = {
        vocab.offset_column: pa.array(np.arange(next_offset, next_offset + count, dtype=np.int64)),
        vocab.operation_type_column: ops,
        vocab.system_time_column: pa.repeat(pa.scalar(to_millis(system_time), pa.int64()).cast(INSTANT), count),
    }
    columns = []
    for field in schema:
        values = system[field.name] if field.name in system else rows.column(field.name)
        if not field.nullable and values.null_count:
            raise Invalid(
                f"{field.name} is null in {values.null_count} rows, and the dataset does not allow that",
                rule="schema-in-force",
                hint="use coalesce, or filter them out",
            )
        columns.append(values.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def as_written(table: pa.Table) -> pa.Table:
    """The same rows in the types of the format. Raises Invalid for a type that it does not have."""
    columns = [_converted(column, _logical(column.type, name)) for name, column in zip(
        table.column_names, table.columns, strict=True)]  # fmt: skip
    return pa.table(columns, names=table.column_names)


def _converted(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type.equals(kind):
        return column
    if pa.types.is_timestamp(column.type):
        return pc.floor_temporal(column, unit="millisecond").cast(kind)
    return column.cast(kind, safe=False)


def _logical(kind: pa.DataType, name: str) -> pa.DataType:
    """The type in which a slice holds what Spark returned. Raises Invalid."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ms", None if kind.tz is None else "UTC")
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_logical(kind.value_type, name))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _logical(field.type, name)) for field in kind])
    plain = (
        pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_string,
        pa.types.is_binary, pa.types.is_date,
    )  # fmt: skip
    if any(test(kind) for test in plain):
        return kind
    raise Invalid(f"column {name} is of type {kind}, which a dataset cannot hold", rule="output-type", hint="cast it")
