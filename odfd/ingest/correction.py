"""Corrects a row of a ledger: finds it by its key, and appends records that change or retract it.

The row is looked up by its key among those that stand. It is written once more as it was, operation "correct from", and
directly after it in its new form, "correct to"; a row that is taken back is written once, "retract". The dataset's
first correction also changes the schema, in the same commit before the data, to say that rows can be taken back from
now on (ADR 22). No engine takes part: values come from slices, which are hashed first, and from a person, each in its
column's exact type: a text that would be rounded or cut is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from chain import instant
from chain.data.arrow_schema import to_arrow
from chain.data.evolution import as_in_force
from chain.data.json_values import plain_rows
from chain.data.operations import CORRECT_FROM, CORRECT_TO, RETRACT, Operations
from chain.data.parquet import open_slice, to_instant, write_slice
from chain.errors import Conflict, Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import Instant, to_millis
from chain.libraries import np, pa, pc
from chain.model.changelog import says_changelog, with_changelog
from chain.model.events import AddData, AddPushSource, MetadataEvent, SetDataSchema, SetPollingSource, Vocab
from chain.model.source import MergeAppend, MergeLedger
from chain.multihash import Multihash
from chain.state import ChainState
from chain.store.base import Head, UpperMove
from chain.store.files import ObjectDamaged, check_file
from chain.wording import a, listed
from engines.contract import RowCounts
from engines.footers import bounds_of, footer, may_meet
from engines.spark.ingest.text_columns import Misfit, to_dates, to_instants, type_name
from engines.spark.rows.changelog import cancelled_by, positive, row_codes
from odfd.datasets.commit import TOLERANCE, Commit, CommitPart, block_time
from odfd.ingest.driver import ATTEMPTS, IngestDependencies, load, shards_with
from odfd.ingest.plan import require_root, schema_in_force
from odfd.ingest.slices import keep_slice
from odfd.runtime.filesystem import check_room
from odfd.store.row_counts import NOTHING_READ, with_written

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_NO_NUMBER: Final = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_TIME: Final = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?")
_FRACTION: Final = re.compile(r"[0-9]\.([0-9]+)")
_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_TRUTH: Final = {"true": True, "false": False}


def value_of(text: str, field: pa.Field) -> pa.Array:
    """Parses ``text`` as one element of the column's type. Raises Invalid, Refused for nested types."""
    kind = field.type
    read = _reader(kind)
    if read is None:
        raise Refused(
            f"column {field.name!r} is {type_name(kind)}, which cannot be written as one text",
            rule="correct-type",
            hint="numbers, texts, dates, times and booleans can",
        )
    try:
        return read(text)
    except (pa.ArrowException, ValueError, OverflowError, InvalidOperation, Misfit) as error:
        raise Invalid(
            f"column {field.name!r}: {text[:80]!r} is not {a(type_name(kind))}", rule="correct-value", hint=_hint(kind)
        ) from error


def nothing_of(field: pa.Field) -> pa.Array:
    """Returns null as one element of the column's type. Raises Invalid if the column must have a value."""
    if not field.nullable:
        raise Invalid(
            f"column {field.name!r} cannot be null: the schema says NOT NULL", rule="not-null", hint="give it a value"
        )
    return pa.nulls(1, field.type)


def _reader(kind: pa.DataType) -> Callable[[str], pa.Array] | None:
    t = pa.types
    if t.is_string(kind) or t.is_large_string(kind):
        return lambda text: pa.array([text], kind)
    if t.is_boolean(kind):
        return lambda text: pa.array([_truth(text)], kind)
    if t.is_integer(kind):
        return lambda text: pa.array([_integer(text)], kind)
    if t.is_decimal(kind):
        return lambda text: pa.array([_decimal(text)], kind)
    if t.is_floating(kind):
        return lambda text: _float(text, kind)
    if t.is_timestamp(kind):
        return lambda text: to_instants(_exactly(text, kind), kind).combine_chunks()
    if t.is_date(kind):
        return lambda text: to_dates(pa.chunked_array([[text]], pa.string())).combine_chunks().cast(kind)
    if t.is_time(kind):
        return lambda text: _time(text, kind)
    return None


def _truth(text: str) -> bool:
    if text.lower() not in _TRUTH:
        raise ValueError(text)
    return _TRUTH[text.lower()]


def _integer(text: str) -> int:
    # int() also takes 1_000, blanks, and digits of other scripts.
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _decimal(text: str) -> Decimal:
    if not _DECIMAL.fullmatch(text):
        raise ValueError(text)
    return Decimal(text)


def _float(text: str, kind: pa.DataType) -> pa.Array:
    """Parses a float. Raises ValueError if a number would become infinite."""
    if not (_DECIMAL.fullmatch(text) or _NO_NUMBER.fullmatch(text)):
        raise ValueError(text)
    value = pa.array([float(text)]).cast(kind)
    if _DECIMAL.fullmatch(text) and math.isinf(float(value[0].as_py())):
        raise ValueError(text)
    return value


def _time(text: str, kind: pa.DataType) -> pa.Array:
    """Parses a time of day. Raises ValueError."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(text)
    hour, minute, second = (int(found[place]) for place in (1, 2, 3))
    _exactly(text, kind)
    fraction = int((found[4] or "").ljust(9, "0")[:9])
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(text)
    whole = ((hour * 60 + minute) * 60 + second) * 10**9 + fraction
    width = pa.int32() if pa.types.is_time32(kind) else pa.int64()
    return pa.array([whole // 10 ** (9 - _DIGITS[kind.unit])], width).cast(kind)


def _exactly(text: str, kind: pa.DataType) -> pa.ChunkedArray:
    """Returns the text as an array. Raises ValueError if the column would lose digits of a time."""
    fraction = _FRACTION.search(text)
    if fraction is not None and fraction[1][_DIGITS[kind.unit] :].strip("0"):
        raise ValueError(text)
    return pa.chunked_array([[text]], pa.string())


def _hint(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "write times like 2024-05-01T12:30:00Z (RFC 3339), with no more digits than the column holds"
    if pa.types.is_date(kind):
        return "write dates like 2024-05-01"
    if pa.types.is_boolean(kind):
        return "write true or false"
    return "write it as the column holds it"


_SLICE: Final = 1 << 20
"""Bytes of disk space that are assumed for a slice of two rows."""


class CorrectionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The correction of one row, with values as texts that a person wrote."""

    key: Mapping[str, str]
    """Values of all columns of the primary key, and of other columns if several rows have the key."""
    values: Mapping[str, str | None] = msgspec.field(default_factory=dict)
    """New values by column; ``None`` is null. Empty if the row is retracted."""
    retract: bool = False
    ahead: bool = False
    """Whether the event time may be more than a day later than the clock."""
    dry_run: bool = False


class Correction(msgspec.Struct, frozen=True, kw_only=True):
    """A correction that was made or planned. ``head`` is ``None`` if nothing was written."""

    head: Head | None
    blocks: int
    counts: RowCounts
    rows: int = 0
    """Number of records that were written."""
    before: Mapping[str, Any]
    """The row before the correction, with system columns, as JSON values."""
    after: Mapping[str, Any] | None
    """The row after the correction; ``None``: retracted. Equal to ``before`` if it had these values already."""


async def correct(deps: IngestDependencies, dataset: DatasetId, spec: CorrectionSpec) -> Correction:
    """Corrects one row, exactly once.

    Raises Refused (the dataset is no ledger, or several rows match), NotFound (no row matches), Invalid (a column or
    value), ObjectDamaged, Environment, and the faults of a commit.
    """
    for attempt in range(ATTEMPTS):
        try:
            plan = await trio.to_thread.run_sync(plan_correction, deps, dataset, spec)
        except ObjectDamaged:
            if attempt + 1 < ATTEMPTS and await trio.to_thread.run_sync(deps.index.mend, dataset):
                continue  # the merged file is damaged: the slices themselves have the rows
            raise
        planned = Correction(head=None, blocks=0, counts=NOTHING_READ, before=plan.told[0], after=plan.told[1])
        if spec.dry_run or plan.rows is None:
            return planned
        events, objects = await trio.to_thread.run_sync(_store, deps, plan)
        counts = with_written(NOTHING_READ, _OF_PAIR if plan.rows.num_rows == 2 else _OF_RETRACTION)
        try:
            part = CommitPart.after(plan.state, plan.time, events, objects, UpperMove(plan.upper), (counts,))
            (head,) = await deps.committer.commit(Commit(parts=(part,)))
        except Conflict:
            if attempt + 1 == ATTEMPTS:
                raise
            continue
        return msgspec.structs.replace(planned, head=head, blocks=len(events), rows=plan.rows.num_rows, counts=counts)
    raise AssertionError("the last attempt returns or raises")


_OF_PAIR: Final = Operations(0, 0, 1, 1)
_OF_RETRACTION: Final = Operations(0, 1, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a correction: ``rows`` to write after ``state``, in the schema in force; ``None``: no change."""

    state: ChainState
    upper: int
    """The upper of the dataset, in whole milliseconds."""
    time: Instant
    rows: pa.Table | None
    told: tuple[Mapping[str, Any], Mapping[str, Any] | None]


def plan_correction(deps: IngestDependencies, dataset: DatasetId, spec: CorrectionSpec) -> Plan:
    """Plans a correction. Blocking; reads the slices that may hold the key. Raises as ``correct`` does."""
    upper, state = deps.store.upper(dataset), load(deps, dataset)
    merge = ledger_of(state)
    declared = schema_in_force(state)
    if declared is None or state.head is None:
        raise NotFound("the dataset has no rows yet", rule="correct-row")
    schema, vocab = to_arrow(declared).remove_metadata(), state.vocab
    _check_columns(schema, vocab, merge, spec)
    time = block_time(state, deps.now(), upper)
    key = {name: value_of(text, schema.field(name)) for name, text in spec.key.items()}
    shards = shards_with(deps, state)
    parts = [part for chain, own in shards for part in deps.index.parts(chain, own, deps.objects, merge)]
    row = _the_row(versions_of(parts, key, schema, vocab), vocab, spec)
    changed = None if spec.retract else _correct_row(row, schema, vocab, spec, time)
    same = changed is not None and changed.equals(row)
    stated = row if changed is None or same else pa.concat_tables([row, changed])
    ops = [RETRACT] if changed is None else [CORRECT_FROM, CORRECT_TO]
    rows = None if same else _stamp(stated, ops, vocab, time, state.next_offset)
    after = None if changed is None else _plain(row if same or rows is None else rows.slice(1))
    return Plan(
        state=state,
        upper=upper,
        time=time,
        rows=rows,
        told=(_plain(row), after),
    )


def ledger_of(state: ChainState) -> MergeLedger:
    """Returns the ledger's merge strategy. Raises Refused if no source, or several different ones, declare it."""
    require_root(state)
    sources: list[SetPollingSource | AddPushSource] = list(state.push_sources.values())
    if state.set_polling_source is not None:
        sources.append(state.set_polling_source)
    strategies = {msgspec.json.encode(source.merge): source.merge for source in sources}
    found = next(iter(strategies.values()), None)
    if len(strategies) == 1 and isinstance(found, MergeLedger):
        return found
    if isinstance(found, MergeAppend) or found is None:
        hint = "rows that are appended have no key; declare the source with merge: {kind: Ledger, primaryKey: [...]}"
    elif len(strategies) > 1:
        hint = "its sources merge rows in different ways"
    else:
        hint = "correct the source: its next rows are merged as a correction"
    raise Refused(
        "only rows of a source with the ledger strategy can be corrected by hand", rule="correct-ledger", hint=hint
    )


def _check_columns(schema: pa.Schema, vocab: Vocab, merge: MergeLedger, spec: CorrectionSpec) -> None:
    supplied = {vocab.offset, vocab.operation_type, vocab.system_time}
    columns = dict.fromkeys(name for name in schema.names if name not in supplied)
    for name in (*spec.key, *spec.values):
        if name not in columns:
            raise Invalid(
                f"no column {name!r} to correct by",
                rule="correct-column",
                hint=f"the columns are {listed(list(columns))}",
            )
    if missing := [name for name in merge.primary_key if name not in spec.key]:
        raise Invalid(
            f"the key lacks {', '.join(missing)}",
            rule="correct-key",
            hint=f"name all of the primary key: {' '.join(f'--key {name}=…' for name in merge.primary_key)}",
        )
    if moved := [name for name in merge.primary_key if name in spec.values]:
        raise Refused(
            f"{', '.join(moved)} is of the key, by which the row is known",
            rule="correct-key",
            hint="retract the row, and ingest the other",
        )
    if bool(spec.values) == spec.retract:
        raise Invalid(
            "a row is either given values or retracted", rule="correct-what", hint="--set COLUMN=VALUE, or --retract"
        )


def versions_of(
    parts: Sequence[tuple[Multihash, Path]], key: Mapping[str, pa.Array], schema: pa.Schema, vocab: Vocab
) -> pa.Table:
    """Returns all versions of the rows that have the values of ``key``, oldest first, in the schema in force.

    Only files whose statistics allow such a row are read, after a check of their hashes.
    """
    wanted = pa.table({name: pa.chunked_array([value]) for name, value in key.items()})
    ranges = {name: ends for name in wanted.column_names if (ends := bounds_of(wanted.column(name)))}
    loose = pa.schema([field.with_nullable(True) for field in schema])
    found = [loose.empty_table()]
    for name, path in parts:
        if not may_meet(footer(path), ranges):
            continue
        check_file(path, name)
        with open_slice(path) as file:
            for batch in file.batches():
                rows = pa.Table.from_batches([batch]).replace_schema_metadata(None)
                mask = _equal(rows, key)
                if mask is not None and pc.any(mask).as_py():
                    found.append(as_in_force(rows.filter(mask), loose))
    return pa.concat_tables(found).sort_by(vocab.offset)


def _equal(rows: pa.Table, key: Mapping[str, pa.Array]) -> pa.ChunkedArray | None:
    mask = None
    for name, value in key.items():
        if name not in rows.column_names:
            return None
        same = pc.fill_null(pc.equal(rows.column(name), value[0]), False)
        mask = same if mask is None else pc.and_(mask, same)
    return mask


def _the_row(ledger: pa.Table, vocab: Vocab, spec: CorrectionSpec) -> pa.Table:
    """Returns the one row that stands. Raises NotFound if there is none, Refused if there are several."""
    ops = np.asarray(ledger.column(vocab.operation_type)).astype(np.int64)
    data = ledger.drop_columns([vocab.offset, vocab.operation_type, vocab.system_time])
    canceller, _ = cancelled_by(row_codes(data), ops)
    standing = np.flatnonzero(positive(ops) & (canceller < 0))
    shown = ", ".join(f"{name}={text}" for name, text in spec.key.items())
    if len(standing) == 1:
        return ledger.slice(int(standing[0]), 1)
    if len(standing):
        offsets = np.asarray(ledger.column(vocab.offset))[standing][:5]
        raise Refused(
            f"{len(standing)} rows have {shown}: offsets {', '.join(map(str, offsets))}",
            rule="correct-row",
            hint="name more columns that distinguish them: --key COLUMN=VALUE",
        )
    if ledger.num_rows:
        last = ledger.column(vocab.offset)[-1].as_py()
        raise NotFound(
            f"the row with {shown} was taken back at offset {last}",
            rule="correct-row",
            hint="odfctl tail shows its events; a retracted row stays retracted",
        )
    raise NotFound(f"no row has {shown}", rule="correct-row", hint="odfctl tail shows rows as the dataset holds them")


def _correct_row(row: pa.Table, schema: pa.Schema, vocab: Vocab, spec: CorrectionSpec, now: Instant) -> pa.Table:
    for name, text in spec.values.items():
        field = schema.field(name)
        if text is None and name == vocab.event_time:
            raise Refused("a row has an event time", rule="event-time-missing", hint="give it one")
        value = nothing_of(field) if text is None else value_of(text, field)
        row = row.set_column(row.column_names.index(name), row.schema.field(name), value)
    if vocab.event_time in spec.values and not spec.ahead:
        _check_not_ahead(row.column(vocab.event_time), now)
    return row


def _check_not_ahead(times: pa.ChunkedArray, now: Instant) -> None:
    kind = times.type
    width = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    time = Instant(to_instant(times.cast(width)[0].as_py(), kind))
    if time > now + TOLERANCE:
        raise Refused(
            f"{instant.render(time)} is more than a day ahead of the clock",
            rule="event-time-ahead",
            hint="is it mistyped? if it is meant: --ahead",
        )


def _stamp(rows: pa.Table, ops: Sequence[int], vocab: Vocab, time: Instant, offset: int) -> pa.Table:
    """Returns rows with the system columns of a new block."""
    count = rows.num_rows
    columns = {
        vocab.offset: np.arange(offset, offset + count),
        vocab.operation_type: np.array(ops),
        vocab.system_time: np.full(count, to_millis(time)),
    }
    for name, numbers in columns.items():
        place = rows.column_names.index(name)
        field = rows.schema.field(place)
        values = pa.array(numbers, pa.int64())
        if pa.types.is_timestamp(field.type):
            values = values.cast(pa.timestamp("ms", "UTC"))
        rows = rows.set_column(place, field, values.cast(field.type))
    return rows


def _plain(row: pa.Table) -> Mapping[str, Any]:
    return dict(zip(row.column_names, plain_rows(row.slice(0, 1))[0], strict=True))


def _store(deps: IngestDependencies, plan: Plan) -> tuple[list[MetadataEvent], tuple[Multihash]]:
    """Stores the slice as an object. Returns the events that name it, and the object's hash."""
    state = plan.state
    assert plan.rows is not None
    declared = schema_in_force(state)
    assert declared is not None
    schema = to_arrow(declared).remove_metadata()
    check_room(deps.settings.staging, deps.settings.disk_reserve, _SLICE, "a correction is to be written")
    path = deps.objects.stage()
    try:
        write_slice(plan.rows.cast(schema), path)
        slice_ = keep_slice(deps.objects, path, declared, state.vocab.offset)
    finally:
        path.unlink(missing_ok=True)
    events: list[MetadataEvent] = []
    if says_changelog(declared) is not True:
        events.append(SetDataSchema(schema=with_changelog(declared, True, by_time=True)))
    events.append(
        AddData(
            prev_checkpoint=state.checkpoint.physical_hash if state.checkpoint else None,
            prev_offset=state.last_offset,
            new_data=slice_,
            new_watermark=state.watermark,
            new_source_state=state.source_state,
        )
    )
    return events, (slice_.physical_hash,)
