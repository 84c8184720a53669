"""Writes rows of one chain into another: what stands at a block as one slice, and later blocks one by one.

A rendition from a snapshot begins with what stands, and then has the same blocks as the one that it was made of, so
that both have the same contents at each time. Rows keep their values, operations and order; offsets and system time
are those of the chain that they come into. Slices are read in batches, so memory does not grow with the history. No
engine takes part. Spec: docs/spec/collections.md#from-snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from chain.data.arrow_schema import to_arrow
from chain.data.evolution import as_in_force
from chain.data.operations import APPEND
from chain.data.parquet import SliceWriter, open_slice
from chain.errors import Refused
from chain.instant import Instant, to_millis
from chain.libraries import np, pa
from chain.model.block import Block, UnknownEvent
from chain.model.events import AddData, DataSlice, ExecuteTransform, MetadataEvent
from chain.model.schema import DataSchema
from chain.multihash import Multihash
from chain.state import ChainState
from chain.store.base import ChainReader
from chain.store.files import check_file
from odfd.datasets.creation import in_force
from odfd.ingest.driver import IngestDependencies
from odfd.ingest.plan import schema_in_force
from odfd.ingest.slices import keep_slice
from odfd.runtime.filesystem import check_room

_DATA = ("AddData", "ExecuteTransform")


class Copied(NamedTuple):
    """Events for another chain, and the objects that they name."""

    events: tuple[MetadataEvent, ...]
    objects: tuple[Multihash, ...]


class _Form(NamedTuple):
    """How rows are written: their schema, the names of system columns, and the time of their block."""

    schema: DataSchema
    offset: str
    operation: str
    system_time: str
    time: Instant


def offsets_of(path: Path, column: str) -> np.ndarray:
    """Returns the offsets that a query wrote to a Parquet file, ascending. Raises Invalid."""
    with open_slice(path) as file:
        found = [np.asarray(batch.column(0)) for batch in file.batches(columns=[column])]
    return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)


def snapshot_events(
    deps: IngestDependencies, chain: ChainReader, state: ChainState, standing: np.ndarray | None, time: Instant
) -> Copied:
    """Builds the events that say, at ``time``, what stands in a chain up to ``state``.

    ``standing``: offsets of the rows that do, ascending; ``None``: all of them. Raises Refused for a schema in the
    legacy form, NotFound, ObjectDamaged, Environment.
    """
    declared = schema_in_force(state)
    if declared is None:
        return Copied((), ())
    assert state.schema is not None
    form = _form(state, declared, time)
    slices = list(reversed(list(_slices_back(chain, state.size))))
    data = _written(deps, form, _standing(deps, slices, standing, form), 0, sum(each.size for each in slices))
    first = AddData(
        new_data=data,
        new_checkpoint=state.checkpoint,
        new_watermark=state.watermark,
        new_source_state=state.source_state,
    )
    says = data is not None or any((state.checkpoint, state.watermark is not None, state.source_state))
    return _with_objects((state.schema, first) if says else (state.schema,))


def copied_block(deps: IngestDependencies, block: Block, state: ChainState) -> Copied:
    """Builds the event of a block for the chain in ``state``, which has what stood before it; none if it is in force.

    Raises Refused for an event that cannot be said again, NotFound, ObjectDamaged, Environment.
    """
    event = block.event
    if isinstance(event, UnknownEvent | ExecuteTransform):
        what = "an event of a newer version" if isinstance(event, UnknownEvent) else "derived rows"
        raise Refused(
            f"block #{block.sequence_number} cannot be copied: it holds {what}",
            rule="rendition-copy",
            hint="make the rendition from raw, or with a newer version",
        )
    if not isinstance(event, AddData):
        return Copied(() if in_force(state, event) == event else (event,), ())
    data = event.new_data
    if data is not None:
        declared = schema_in_force(state)
        assert declared is not None, "data follows its schema"
        form = _form(state, declared, block.system_time)
        data = _written(deps, form, _rows(deps, data, form), state.next_offset, data.size)
    said = msgspec.structs.replace(
        event,
        prev_checkpoint=state.checkpoint.physical_hash if state.checkpoint else None,
        prev_offset=state.last_offset,
        new_data=data,
    )
    return _with_objects((said,))


def _form(state: ChainState, declared: DataSchema, time: Instant) -> _Form:
    vocab = state.vocab
    return _Form(declared, vocab.offset, vocab.operation_type, vocab.system_time, time)


def _slices_back(chain: ChainReader, size: int) -> Iterator[DataSlice]:
    before = size
    while (block := chain.last_of(_DATA, before)) is not None:
        before = block.sequence_number
        if isinstance(block.event, AddData | ExecuteTransform) and block.event.new_data is not None:
            yield block.event.new_data


def _standing(
    deps: IngestDependencies, slices: Sequence[DataSlice], standing: np.ndarray | None, form: _Form
) -> Iterator[pa.Table]:
    """The rows that stand, as appended ones."""
    for each in slices:
        for rows in _rows(deps, each, form):
            if standing is not None:
                offsets = np.asarray(rows.column(form.offset))
                places = np.minimum(np.searchsorted(standing, offsets), max(0, len(standing) - 1))
                rows = rows.filter(pa.array(standing[places] == offsets)) if len(standing) else rows.slice(0, 0)
            yield _with(rows, form.operation, np.full(rows.num_rows, APPEND))


def _rows(deps: IngestDependencies, named: DataSlice, form: _Form) -> Iterator[pa.Table]:
    """The rows of a slice, which is hashed before, in the schema in force."""
    schema = to_arrow(form.schema).remove_metadata()
    path = deps.objects.path(named.physical_hash)
    check_file(path, named.physical_hash)
    with open_slice(path) as file:
        for batch in file.batches():
            yield as_in_force(pa.Table.from_batches([batch]).replace_schema_metadata(None), schema)


def _written(
    deps: IngestDependencies, form: _Form, parts: Iterable[pa.Table], offset: int, size: int
) -> DataSlice | None:
    """One slice of all rows, as an object; ``None``: there are none. ``size``: bytes that it may take."""
    check_room(deps.settings.staging, deps.settings.disk_reserve, size, "a rendition is to be written")
    path, schema = deps.objects.stage(), to_arrow(form.schema).remove_metadata()
    try:
        with SliceWriter(path, schema) as writer:
            for rows in parts:
                count = rows.num_rows
                start = offset + writer.rows
                rows = _with(rows, form.offset, np.arange(start, start + count))
                writer.write(_with(rows, form.system_time, np.full(count, to_millis(form.time))).cast(schema))
        return keep_slice(deps.objects, path, form.schema, form.offset) if writer.rows else None
    finally:
        path.unlink(missing_ok=True)


def _with(rows: pa.Table, name: str, numbers: np.ndarray) -> pa.Table:
    """With a system column of these numbers; a time is in milliseconds."""
    place = rows.column_names.index(name)
    field = rows.schema.field(place)
    values = pa.array(numbers, pa.int64())
    if pa.types.is_timestamp(field.type):
        values = values.cast(pa.timestamp("ms", "UTC"))
    return rows.set_column(place, field, values.cast(field.type))


def _with_objects(events: tuple[MetadataEvent, ...]) -> Copied:
    objects: list[Multihash] = []
    for each in events:
        if isinstance(each, AddData):
            objects += [named.physical_hash for named in (each.new_data, each.new_checkpoint) if named is not None]
    return Copied(events, tuple(objects))
