"""Applies merge strategies: finds which rows of a batch are new, and how they change existing rows.

What is looked up and compared is positions only: ordinals of new rows, offsets of old ones, found in this process
(``key_match``), or by joins on Spark for nested columns, keys of floating point and what memory does not hold; both
find the same. Rows are then taken from the batch and from the slices themselves, so no value passes through Spark's
types. Equal keys keep input order, therefore equal input gives equal bytes.

This differs from the reference where that is odd: whether a key appears or vanishes is decided by its presence, not by
its values being null (so rows whose other columns are all null are new too); two rows of one key in one snapshot are an
error; operation codes of a changelog must exist. Rows with a null in their key come here only from earlier slices, and
for observers (``row_checks`` refuses others): null is a key like any other in Snapshot and UpsertStream, but never
matches in Ledger, as in the reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from chain.data.operations import APPEND, CORRECT_FROM, CORRECT_TO, RETRACT
from chain.errors import Invalid
from chain.model.source import (
    MergeAppend,
    MergeChangelogStream,
    MergeLedger,
    MergeSnapshot,
    MergeStrategy,
    MergeUpsertStream,
)
from chain.wording import listed
from engines.contract import Vocab
from engines.spark.analysis.lexical import quote_name
from engines.spark.catalyst.types import struct_type
from engines.spark.ingest.history import History, ranges_of
from engines.spark.ingest.key_match import ChangedRows, Sought, changed_rows, repeating_rows, rising, unseen_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from engines.spark.runtime.session import OpenSession

_ORDINAL: Final = "n"
_NOT_A_KEY: Final = "a key column holds numbers, texts, dates, times or booleans"


class PassedOver(NamedTuple):
    """Counts the rows of the batch that are not written, by reason, with the names of ``contract.RowCounts``."""

    unchanged: int = 0
    conflicting: int = 0
    superseded: int = 0


class Merged(NamedTuple):
    """The rows to write: columns of the batch, each row with its operation, to be sorted by ``order``."""

    rows: pa.Table
    op: pa.Array
    fresh: pa.Array
    """True: a row of the batch; False: an old row that is taken back."""
    order: tuple[str, ...]
    passed_over: PassedOver


class MergeContext(NamedTuple):
    """The resources of a merge: how to open a Spark session, a scratch directory for Spark's files,
    names of system columns."""

    session: OpenSession
    scratch: Path
    vocab: Vocab


def merge(context: MergeContext, batch: pa.Table, history: History, strategy: MergeStrategy) -> Merged:
    """Merges a batch by a strategy. Raises Invalid, naming the column or key at fault."""
    vocab = context.vocab
    by_time = (vocab.event_time,)
    match strategy:
        case MergeAppend():
            return all_new(batch, by_time)
        case MergeLedger(primary_key=keys):
            check_primary_key(batch, keys)
            unseen, passed_over = _unseen(context, batch, history, keys)
            return all_new(unseen, by_time, passed_over)
        case MergeChangelogStream(primary_key=keys):
            check_primary_key(batch, [*keys, vocab.operation_type])
            op = _operations(batch, vocab.operation_type)
            rows = batch.drop_columns([vocab.operation_type])
            return Merged(rows, op, _repeat(True, len(op)), (*keys, vocab.operation_type), PassedOver())
        case MergeSnapshot(primary_key=keys, compare_columns=compare):
            check_primary_key(batch, keys)
            _check_columns(batch, compare or ())
            _refuse_doubles(batch, keys)
            return _snapshot(context, batch, history, strategy)
        case MergeUpsertStream(primary_key=keys):
            check_primary_key(batch, keys)
            return _upsert(context, batch, history, keys)


def all_new(rows: pa.Table, order: tuple[str, ...], passed_over: PassedOver = PassedOver()) -> Merged:  # noqa: B008
    """All rows are new."""
    count = rows.num_rows
    return Merged(rows, pa.array(np.zeros(count, np.int32)), _repeat(True, count), order, passed_over)


def _unseen(
    context: MergeContext, batch: pa.Table, history: History, keys: Sequence[str]
) -> tuple[pa.Table, PassedOver]:
    """Returns the rows whose key is in no earlier slice, in input order, and counts of the others: a
    key's first row stays."""
    slices = history.overlapping(ranges_of(batch.select(list(dict.fromkeys(keys))))) if batch.num_rows else ()
    if not slices:
        return batch, PassedOver()
    unseen = unseen_rows(batch, _distinct(keys), history, context.vocab, slices)
    if unseen is None:
        unseen = _unseen_on_spark(context, batch, history, keys, slices)
    if len(unseen) == batch.num_rows:
        return batch, PassedOver()
    seen = batch.take(pa.array(np.setdiff1d(np.arange(batch.num_rows), unseen, assume_unique=True)))
    unchanged = _repeating(context, seen, history, keys, slices)
    return batch.take(pa.array(unseen)), PassedOver(unchanged, seen.num_rows - unchanged)


def _unseen_on_spark(
    context: MergeContext, batch: pa.Table, history: History, keys: Sequence[str], slices: Sequence[Path]
) -> np.ndarray:
    names = _aliases(keys)
    new = _stage(context, batch, names)
    old = _rename(history.frame(context.session(), list(names.values()), slices), names)
    same = [new[alias] == old[alias] for alias in names]
    found = new.join(old, same, "left_anti").select(_ORDINAL).toArrow().column(_ORDINAL)
    return np.sort(found.to_numpy())


def _repeating(
    context: MergeContext, seen: pa.Table, history: History, keys: Sequence[str], slices: Sequence[Path]
) -> int:
    """Counts the rows, all with known keys, that equal in every column a standing row of their key.

    A missing event time equals any: the row would get that of the source.
    """
    if not history.has_changes(context.vocab.operation_type):
        others = tuple(name for name in seen.column_names if name not in keys)
        found = repeating_rows(Sought(seen, _distinct(keys), others), history, context.vocab, slices)
        if found is not None:
            return found
    names = _aliases(keys)
    values = _values(name for name in seen.column_names if name not in keys)
    new = _stage(context, seen, {**names, **values})
    if history.has_changes(context.vocab.operation_type):
        old = _standing(context, history, names, values, slices)
    else:
        old = _rename(
            history.frame(context.session(), [*names.values(), *values.values()], slices), {**names, **values}
        )
    same = [new[alias] == old[alias] for alias in names]
    for alias, name in values.items():
        equal = new[alias].eqNullSafe(old[alias])
        same.append(new[alias].isNull() | equal if name == context.vocab.event_time else equal)
    return int(new.join(old, same, "left_semi").count())


def _standing(
    context: MergeContext, history: History, names: dict[str, str], values: dict[str, str], slices: Sequence[Path]
) -> DataFrame:
    """Returns the standing rows of a ledger that was corrected: if a row of a key was taken back,
    only the last statement counts."""
    from pyspark.sql import functions as f

    vocab = context.vocab
    beside = {"o": vocab.offset, "p": vocab.operation_type}
    columns = {**names, **values, **beside}
    rows = _rename(history.frame(context.session(), list(dict.fromkeys(columns.values())), slices), columns)
    last = rows.filter(f.col("p") != APPEND).groupBy(*names).agg(f.max("o").alias("l"))
    last = last.select(*(last[alias].alias(f"l{alias}") for alias in names), "l")
    same = [rows[alias] == last[f"l{alias}"] for alias in names]
    told = rows.join(last, same, "left")
    stands = told["l"].isNull() | ((told["o"] >= told["l"]) & told["p"].isin(APPEND, CORRECT_TO))
    return told.filter(stands).select(*names, *values)


def _snapshot(context: MergeContext, batch: pa.Table, history: History, strategy: MergeSnapshot) -> Merged:
    keys, vocab = strategy.primary_key, context.vocab
    order = (*keys, vocab.operation_type)
    if not history.paths:
        return all_new(batch, order)
    compared = strategy.compare_columns or tuple(name for name in batch.column_names if name not in keys)
    found = _find_changes(context, Sought(batch, _distinct(keys), _distinct(compared)), history, whole=True)
    passed_over = PassedOver(unchanged=batch.num_rows - found.taken)
    return _assemble(context, batch, history, found, order, passed_over)


def _upsert(context: MergeContext, batch: pa.Table, history: History, keys: Sequence[str]) -> Merged:
    op_column = context.vocab.operation_type
    order = (*keys, op_column)
    last = _last_of_each(batch, keys)
    op = _operations(last, op_column) if op_column in last.column_names else None
    rows = last.drop_columns([op_column]) if op is not None else last
    gone = np.zeros(rows.num_rows, bool) if op is None else op.to_numpy() == RETRACT
    superseded = batch.num_rows - rows.num_rows
    if not history.paths:
        unknown = int(np.count_nonzero(gone))
        return all_new(rows.filter(pa.array(~gone)), order, PassedOver(unknown, 0, superseded))
    compared = [name for name in rows.column_names if name not in keys]
    found = _find_changes(context, Sought(rows, _distinct(keys), _distinct(compared)), history, gone, whole=False)
    passed_over = PassedOver(rows.num_rows - len(found.old), 0, superseded)
    return _assemble(context, rows, history, found, order, passed_over)


def _find_changes(
    context: MergeContext,
    sought: Sought,
    history: History,
    gone: np.ndarray | None = None,
    *,
    whole: bool,
) -> ChangedRows:
    """Compares the batch with the latest state: here if possible, else on Spark."""
    found = changed_rows(sought, history, context.vocab, gone, whole=whole)
    if found is not None:
        return found
    return _join(context, sought, history, "full_outer" if whole else "left_outer", gone)


def _join(
    context: MergeContext,
    sought: Sought,
    history: History,
    how: str,
    gone: np.ndarray | None = None,
) -> ChangedRows:
    """Joins the latest state with the batch; returns only pairs that differ. ``gone`` marks new rows
    that retract their key."""
    from pyspark.sql import functions as f

    batch, time = sought.batch, context.vocab.event_time
    names = _aliases(sought.keys)
    values = _values(sought.compared)
    marked = batch if gone is None else batch.append_column("\0gone", pa.array(gone))
    extra = {} if gone is None else {"g": "\0gone"}
    new = _stage(context, marked, {**names, **values, **extra})
    state = _state(context, history, names, values)
    differs = f.lit(False)
    for alias, name in values.items():
        distinct = ~new[alias].eqNullSafe(state[alias])
        differs = differs | ((new[alias].isNotNull() & distinct) if name == time else distinct)
    news = state["old"].isNull() | new[_ORDINAL].isNull() | differs
    if gone is not None:
        news = f.when(new["g"], state["old"].isNotNull()).otherwise(news)
    joined = state.join(new, [state[alias].eqNullSafe(new[alias]) for alias in names], _outer(how))
    ordinal = f.when(new["g"], f.lit(None)).otherwise(new[_ORDINAL]) if gone is not None else new[_ORDINAL]
    places = joined.where(news).select(
        f.coalesce(state["old"], f.lit(-1)).alias("old"), f.coalesce(ordinal, f.lit(-1)).alias("new")
    )
    table = places.toArrow()
    return ChangedRows(table.column("old").to_numpy(), table.column("new").to_numpy())


def _outer(how: str) -> str:
    """Returns the kind of join with the batch on the right side."""
    return {"full_outer": "full_outer", "left_outer": "right_outer"}[how]


def _state(context: MergeContext, history: History, names: dict[str, str], values: dict[str, str]) -> DataFrame:
    """Returns the latest row of each key that is not retracted, with its place as ``old``: offset and run."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    vocab = context.vocab
    system = {"old": vocab.offset, "op": vocab.operation_type}
    columns = list(dict.fromkeys([*names.values(), *values.values(), *system.values()]))
    runs, parts = history.runs(vocab.offset), []
    for place, paths in enumerate(runs):
        part = _rename(history.frame(context.session(), columns, paths), {**names, **values, **system})
        offset = part["old"].cast("long")
        parts.append(part.withColumn("old", offset if len(runs) == 1 else offset * len(runs) + place))
    old = reduce(lambda one, other: one.unionByName(other), parts)  # a key is in one run, so its newest row is too
    newest = Window.partitionBy(*names).orderBy(f.desc("old"))
    ranked = old.withColumn("rank", f.row_number().over(newest))
    stands = f.coalesce(ranked["op"], f.lit(APPEND)) != RETRACT  # a slice without operations only appends
    return ranked.where((ranked["rank"] == 1) & stands).drop("rank", "op")


def _assemble(
    context: MergeContext,
    batch: pa.Table,
    history: History,
    places: ChangedRows,
    order: tuple[str, ...],
    passed_over: PassedOver,
) -> Merged:
    """Takes the old and new rows at the places found, each with its operation."""
    had, has = places.old >= 0, places.new >= 0
    offsets = np.sort(places.old[had])
    corrected = np.isin(offsets, places.old[had & has])
    old = history.rows_of_runs(offsets, context.vocab.offset, batch.column_names)
    pairs = places.new[has]
    placed = np.argsort(pairs)
    added = ~(had[has][placed])
    new = batch.take(pa.array(pairs[placed]))
    op = np.concatenate([np.where(corrected, CORRECT_FROM, RETRACT), np.where(added, APPEND, CORRECT_TO)])
    loose = pa.schema([field.with_nullable(True) for field in batch.schema])
    rows = pa.concat_tables([old.cast(loose), new.cast(loose)])
    fresh = np.concatenate([np.zeros(len(offsets), bool), np.ones(len(pairs), bool)])
    return Merged(rows, pa.array(op.astype(np.int32)), pa.array(fresh), order, passed_over)


def _stage(context: MergeContext, batch: pa.Table, names: dict[str, str]) -> DataFrame:
    """Writes columns of the batch under ``names`` (alias to column), with ordinals, for Spark to read."""
    columns = [batch.column(name) for name in names.values()]
    ordinals = pa.array(np.arange(batch.num_rows, dtype=np.int64))
    table = pa.Table.from_arrays([*columns, ordinals], names=[*names, _ORDINAL])
    schema = struct_type(table.schema)
    path = context.scratch / "batch.parquet"
    pq.write_table(table, path, compression="none")
    return context.session().read.schema(schema).parquet(str(path))


def _rename(frame: DataFrame, names: dict[str, str]) -> DataFrame:
    return frame.select(*(frame[quote_name(column)].alias(alias) for alias, column in names.items()))


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _aliases(keys: Sequence[str]) -> dict[str, str]:
    """Maps names of our own to columns, so that no column name can clash or needs quoting in Spark."""
    return {f"k{index}": name for index, name in enumerate(dict.fromkeys(keys))}


def _values(columns: Iterable[str]) -> dict[str, str]:
    return {f"c{index}": name for index, name in enumerate(dict.fromkeys(columns))}


def _last_of_each(batch: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Returns the last row of every key, in input order."""
    names = list(_aliases(keys))
    table = batch.select(list(dict.fromkeys(keys))).rename_columns(names)
    table = table.append_column(_ORDINAL, pa.array(np.arange(batch.num_rows, dtype=np.int64)))
    last = table.group_by(names, use_threads=False).aggregate([(_ORDINAL, "max")])
    return batch.take(pa.array(np.sort(last.column(f"{_ORDINAL}_max").to_numpy())))


def _refuse_doubles(batch: pa.Table, keys: Sequence[str]) -> None:
    if any(rising(batch.column(name)) for name in keys):
        return
    names = list(_aliases(keys))
    table = batch.select(list(dict.fromkeys(keys))).rename_columns(names)
    counts = table.group_by(names, use_threads=False).aggregate([([], "count_all")])
    doubled = counts.filter(pc.greater(counts.column("count_all"), 1)).slice(0, 1)
    if doubled.num_rows:
        key = ", ".join(f"{name}={_show_first(doubled.column(alias))}" for alias, name in _aliases(keys).items())
        raise Invalid(
            f"{doubled.column('count_all')[0]} rows of the snapshot have the key {key}",
            rule="snapshot-key-unique",
            hint="a snapshot has one row per key: widen primaryKey, or choose one row in preprocess",
        )


def _show_first(column: pa.ChunkedArray) -> str:
    """Formats the first value for messages; Python has no dates before the year 1, and no nanoseconds."""
    kind = column.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        column = column.cast(pa.string())
    return repr(column[0].as_py())


def _operations(batch: pa.Table, column: str) -> pa.Array:
    """Returns the operation column as int32. Raises Invalid for codes that do not exist."""
    codes = batch.column(column)
    if not pa.types.is_integer(codes.type):
        raise Invalid(f"column {column!r} should hold operation codes, and is {codes.type}", rule="operation-code")
    wrong = pc.filter(codes, pc.fill_null(pc.or_(pc.less(codes, APPEND), pc.greater(codes, CORRECT_TO)), True))
    if len(wrong):
        raise Invalid(
            f"column {column!r} holds {wrong[0].as_py()!r}, which is no operation",
            rule="operation-code",
            hint="0 append, 1 retract, 2 correct from, 3 correct to",
        )
    return pc.cast(codes, pa.int32()).combine_chunks()


def check_primary_key(batch: pa.Table, keys: Sequence[str]) -> None:
    """Raises Invalid for columns that are not there, or that no row can be found by."""
    if not keys:
        raise Invalid("primaryKey is empty", rule="primary-key", hint="name the columns that identify a row")
    _check_columns(batch, keys)
    for name in keys:
        if pa.types.is_nested(batch.schema.field(name).type):
            raise Invalid(f"column {name!r} cannot be a key", rule="primary-key", hint=_NOT_A_KEY)


def _check_columns(batch: pa.Table, names: Sequence[str]) -> None:
    there = set(batch.column_names)
    for name in names:
        if name not in there:
            raise Invalid(
                f"no column {name!r} to merge by",
                rule="merge-column",
                hint=f"the columns are {listed(batch.column_names)}",
            )


def _repeat(value: bool, count: int) -> pa.Array:
    return pa.array(np.full(count, value))
