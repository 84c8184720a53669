"""Writes the result of a query as the rows of a slice: exact types, final order, system columns.

Pure, over Arrow tables that Spark returned. Types are part of the logical hash, so everything is cast to those of the
slice before it is ordered and written, and refused where that would change a value. Spec:
docs/spec/engine-semantics.md#operations, #output.

Of a result that is too large for memory Spark sorts runs in the total order, which become parts of one slice. A run is
a range of the order and bounded in size. Within it Arrow orders rows as it orders small results, so Spark only decides
in which run a row is. Used in final mode alone: the rows of a log follow their inputs' offsets and those of a table its
keys, and both are ordered by Arrow. Spec: docs/spec/engine-semantics.md#clusters.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

from chain.data.arrow_schema import to_arrow
from chain.data.operations import APPEND, CORRECT_FROM, CORRECT_TO, RETRACT
from chain.data.parquet import SliceWriter
from chain.errors import Invalid
from chain.instant import Instant, to_millis
from chain.model.schema import DataSchema
from chain.wording import plural, some
from engines.contract import Vocab
from engines.spark.analysis.lexical import quote_name
from engines.spark.analysis.monotone import MILLISECOND
from engines.spark.catalyst.plans import HIDDEN, HIDDEN_BEFORE, HIDDEN_OFFSET, HIDDEN_OP, HIDDEN_SOURCE
from engines.spark.catalyst.types import as_written, computed_type, spark_type
from engines.spark.rows.changelog import total_order
from engines.spark.rows.tables import arrow_columns, microseconds

INSTANT: Final = pa.timestamp("ms", "UTC")


def output_schema(columns: pa.Schema, vocab: Vocab) -> pa.Schema:
    """Returns the schema of slices with a query's columns: system columns first.

    ``columns``: as ``slice_types`` gives them. Raises Invalid for an event time that is no time.
    """
    name = vocab.event_time
    fields = {field.name: field.with_nullable(True) for field in columns}
    time = fields.pop(name)
    if not (pa.types.is_timestamp(time.type) or pa.types.is_date(time.type)):
        raise Invalid(f"{name} is {time.type}", rule="event-time-type", hint="select a TIMESTAMP or DATE under it")
    return pa.schema(
        [
            pa.field(vocab.offset, pa.int64(), nullable=False),
            pa.field(vocab.operation_type, pa.int32(), nullable=False),
            pa.field(vocab.system_time, INSTANT, nullable=False),
            time,
            *fields.values(),
        ]
    )


def schema_in_force(columns: pa.Schema, vocab: Vocab, force: DataSchema | None) -> pa.Schema:
    """Returns the schema to write: the dataset's own, or else the query's. Raises Invalid on a misfit."""
    made = output_schema(columns, vocab)
    if force is None:
        return made
    wanted = to_arrow(force).remove_metadata()
    names = dict.fromkeys(made.names), dict.fromkeys(wanted.names)
    more, fewer = ([name for name in one if name not in other] for one, other in itertools.permutations(names))
    if more or fewer:
        told = [f"extra {some(more)}" if more else "", f"missing {some(fewer)}" if fewer else ""]
        raise Invalid(
            f"the query's columns differ from the dataset's: {' and '.join(filter(None, told))}",
            rule="schema-in-force",
            hint="select those of the dataset; where an input has grown, * grows with each declaration of the query",
        )
    for here, there in zip(made, wanted, strict=True):
        if here.name != there.name or not _holds(there.type, here):
            raise Invalid(
                f"the query has {here.name} {here.type} where the dataset has {there.name} {there.type}",
                rule="schema-in-force",
                hint="correct the query, or make a new dataset",
            )
    return wanted


def _holds(kind: pa.DataType, made: pa.Field) -> bool:
    """Whether a dataset's column type is the query's own, or the wider one that Spark computes it in."""
    return bool(kind.equals(made.type) or kind.equals(computed_type(spark_type(made.type, made.name), made.name)))


def final_rows(result: pa.Table, schema: pa.Schema, vocab: Vocab, emit_from: int | None, emit_until: int) -> pa.Table:
    """Returns rows with ``emit_from <= event time < emit_until`` (microseconds), in total order, by event time first.

    If the rows have the hidden columns of their inputs, late rows are placed and sorted first by the watermark before
    their block. Rows are cast to the types of ``schema``; raises Invalid for values that these cannot hold.
    """
    times = pc.floor_temporal(result.column(vocab.event_time).cast(pa.timestamp("us")), unit="millisecond")
    instants = times.cast(pa.int64())
    placed = HIDDEN_BEFORE in result.column_names
    if placed:
        instants = pc.max_element_wise(instants, result.column(HIDDEN_BEFORE), skip_nulls=False)
        result = result.drop_columns(list(HIDDEN))
    inside = pc.less(instants, emit_until)
    if emit_from is not None:
        inside = pc.and_(inside, pc.greater_equal(instants, emit_from))
    rows = as_written(result.filter(inside), schema)
    others = [name for name in rows.column_names if name != vocab.event_time]
    # By all columns: rows that tie are then equal, so bytes depend on no layout of tasks (engine-semantics.md#output).
    order = [vocab.event_time, *others]
    if not placed:
        return rows.take(total_order(rows, order))
    return rows.take(total_order(rows.append_column(HIDDEN_BEFORE, instants.filter(inside)), [HIDDEN_BEFORE, *order]))


def log_rows(result: pa.Table, schema: pa.Schema) -> tuple[pa.Table, pa.Array]:
    """Returns rows in the order of the input rows they came from, with the op of each, after mending split corrections.

    The order is by the watermark before a row's block, then input, then offset. For a single input only the hidden
    offset is needed, and the op unless all are additions. A query may drop one half of a correction: ``-C`` alone
    becomes ``-R``, ``+C`` alone ``+A``. A correction without a difference is left out. Rows are cast to the types of
    ``schema``; raises Invalid for values that these cannot hold.
    """
    rows, ops, _, _ = _in_log_order(result, schema)
    return rows, ops


def placed_log_rows(result: pa.Table, schema: pa.Schema) -> tuple[pa.Table, pa.Array, np.ndarray]:
    """Returns ``log_rows``, and for each row the number of its input and the offset there, as two rows of an array."""
    rows, ops, sources, offsets = _in_log_order(result, schema)
    return rows, ops, np.stack([sources, offsets]).astype(np.int64)


def _in_log_order(result: pa.Table, schema: pa.Schema) -> tuple[pa.Table, pa.Array, np.ndarray, np.ndarray]:
    """Returns rows in log order, their ops, and of each row the number of its input and the offset there."""
    rows = as_written(result, schema)
    hidden = [name for name in HIDDEN if name in rows.column_names]
    if rows.num_rows and not _in_order(rows):
        visible = [name for name in rows.column_names if name not in HIDDEN]
        ranks = [name for name in (HIDDEN_BEFORE, HIDDEN_SOURCE, HIDDEN_OFFSET) if name in hidden]
        rows = rows.take(total_order(rows, [*ranks, *visible]))
    offsets = _numbers(rows, HIDDEN_OFFSET)
    ops = _numbers(rows, HIDDEN_OP) if HIDDEN_OP in hidden else np.zeros(len(offsets), np.int32)
    sources = _numbers(rows, HIDDEN_SOURCE) if HIDDEN_SOURCE in hidden else np.zeros(len(ops), np.int32)
    rows = rows.drop_columns(hidden)
    if not ops.any():
        return rows, pa.array(ops, pa.int32()), sources, offsets
    ops = ops.copy()
    keep = _mend(rows, offsets, sources, ops)
    return rows.filter(pa.array(keep)), pa.array(ops[keep], pa.int32()), sources[keep], offsets[keep]


def stated_ops(rows: pa.Table, name: str) -> pa.Array:
    """Returns the operations in a query's rows. Raises Invalid for an unknown one."""
    said = rows.column(name).combine_chunks()
    known = pc.fill_null(pc.and_(pc.greater_equal(said, APPEND), pc.less_equal(said, CORRECT_TO)), False)
    if not pc.all(known, min_count=0).as_py():
        wrong = said.filter(pc.invert(known))[0].as_py()
        raise Invalid(
            f"{name} is {'null' if wrong is None else wrong} in a row",
            rule="op-value",
            hint="0 adds, 1 retracts, 2 and 3 are what a correction takes back and puts in its place",
        )
    return said.cast(pa.int32())


def behind(rows: pa.Table | None, vocab: Vocab, span: int, reached: int | None) -> int | None:
    """Returns the watermark, microseconds: the greatest event time emitted so far less ``span``.

    ``reached``: the same before these rows, ``None`` if there were none. A watermark is in whole milliseconds.
    """
    if rows is None:
        return reached
    latest = pc.max(microseconds(rows.column(vocab.event_time).combine_chunks())).as_py()
    if latest is None:
        return reached
    mark: int = (latest - span) // MILLISECOND * MILLISECOND
    return mark if reached is None else max(mark, reached)


def _numbers(rows: pa.Table, name: str) -> np.ndarray:
    return np.asarray(rows.column(name).combine_chunks())


def _in_order(rows: pa.Table) -> bool:
    """Whether the rows are in order already: of a single block, or blocks with one
    watermark, with ascending offsets."""
    for name in (HIDDEN_BEFORE, HIDDEN_SOURCE):
        if name in rows.column_names:
            ends = pc.min_max(rows.column(name))
            if ends["min"] != ends["max"]:
                return False
    last = None
    for chunk in rows.column(HIDDEN_OFFSET).chunks:
        offsets = np.asarray(chunk)
        if len(offsets):
            if (last is not None and offsets[0] <= last) or not (offsets[1:] > offsets[:-1]).all():
                return False
            last = offsets[-1]
    return True


def _mend(rows: pa.Table, offsets: np.ndarray, sources: np.ndarray, ops: np.ndarray) -> np.ndarray:
    """Corrects in place the ops of corrections of which one half is missing; returns a mask of the rows that stay."""
    single = np.ones(len(offsets), bool)
    repeated = (offsets[1:] == offsets[:-1]) & (sources[1:] == sources[:-1])
    single[1:] &= ~repeated
    single[:-1] &= ~repeated
    first = np.flatnonzero(
        (ops[:-1] == CORRECT_FROM)
        & (ops[1:] == CORRECT_TO)
        & (offsets[1:] == offsets[:-1] + 1)
        & (sources[1:] == sources[:-1])
        & single[:-1]
        & single[1:]
    )
    paired = np.zeros(len(ops), bool)
    paired[first] = paired[first + 1] = True
    ops[~paired & (ops == CORRECT_FROM)] = RETRACT
    ops[~paired & (ops == CORRECT_TO)] = APPEND
    keep = np.ones(len(ops), bool)
    if len(first):
        unchanged = first[same_rows(rows.take(pa.array(first)), rows.take(pa.array(first + 1)))]
        keep[unchanged] = keep[unchanged + 1] = False
    return keep


def same_rows(one: pa.Table, other: pa.Table) -> np.ndarray:
    """Marks the positions where two rows have the same value in every column; null is null and NaN is NaN."""
    same = np.ones(one.num_rows, bool)
    for name in one.column_names:
        same &= _same(one.column(name).combine_chunks(), other.column(name).combine_chunks())
    return same


def _same(one: pa.Array, other: pa.Array) -> np.ndarray:
    valid, others = np.asarray(one.is_valid()), np.asarray(other.is_valid())
    if pa.types.is_struct(one.type):
        inner = np.ones(len(one), bool)
        for position in range(one.type.num_fields):
            inner &= _same(pc.struct_field(one, position), pc.struct_field(other, position))
    elif pa.types.is_floating(one.type):
        # By bits: 0.0 and -0.0 are different rows. All NaN count as one.
        left, right = (np.asarray(pc.fill_null(side, 0.0)) for side in (one, other))
        bits = np.int32 if one.type.bit_width == 32 else np.int64
        inner = (left.view(bits) == right.view(bits)) | (np.isnan(left) & np.isnan(right))
    elif pa.types.is_nested(one.type):
        inner = _same_lists(one, other)
    else:
        inner = np.asarray(pc.fill_null(pc.equal(one, other), False))
    same: np.ndarray = (valid == others) & (inner | ~valid)
    return same


def _same_lists(one: pa.Array, other: pa.Array) -> np.ndarray:
    """Marks the positions where two lists have the same length and elements; compares all elements at once."""
    lengths, others = (np.asarray(pc.fill_null(pc.list_value_length(side), 0)) for side in (one, other))
    alike: np.ndarray = lengths == others
    kept = pa.array(alike)
    left, right = one.filter(kept), other.filter(kept)
    elements = _same(left.flatten(), right.flatten())
    owners = np.repeat(np.arange(len(left)), lengths[alike])
    wrong = np.bincount(owners[~elements], minlength=len(left)) > 0
    alike[alike] = ~wrong
    return alike


def slice_of(
    rows: pa.Table, ops: pa.Array, schema: pa.Schema, vocab: Vocab, system_time: Instant, next_offset: int
) -> pa.Table:
    """Adds system columns to rows and casts them to ``schema``. Raises Invalid when a value does not fit it."""
    count = rows.num_rows
    system = {
        vocab.offset: pa.array(np.arange(next_offset, next_offset + count, dtype=np.int64)),
        vocab.operation_type: ops,
        vocab.system_time: pa.repeat(pa.scalar(to_millis(system_time), pa.int64()).cast(INSTANT), count),
    }
    columns = []
    for field in schema:
        values = system[field.name] if field.name in system else rows.column(field.name)
        if not field.nullable and values.null_count:
            raise Invalid(
                f"{field.name} is null in {plural(values.null_count, 'row')}, and the dataset does not allow that",
                rule="schema-in-force",
                hint="use coalesce, or filter them out",
            )
        columns.append(values.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


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
    runs: Iterable[Path],
    target: Path,
    schema: pa.Schema,
    columns: st.StructType,
    settle: Callable[[pa.Table, int], pa.Table],
) -> int:
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
