"""Copies rows of one chain into another: those that stand at some block as one slice, and later blocks one by one.

A rendition made from a snapshot begins with the rows that stand, and then has the same blocks as the rendition it was
made from, so that both have the same contents at each time. Rows keep their values, operations and order; offsets and
system time are those of the target chain. Slices are read in batches, so memory does not grow with the history. No
engine takes part. Spec: docs/spec/collections.md#from-snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from chain.codec.blocks import encode_block
from chain.data.arrow_schema import to_arrow
from chain.data.evolution import as_in_force
from chain.data.operations import APPEND
from chain.data.parquet import open_slice
from chain.errors import Conflict, Refused
from chain.instant import Instant, to_millis
from chain.libraries import np, pa
from chain.model.block import Block, MetadataBlock, UnknownEvent
from chain.model.defaults import same
from chain.model.events import AddData, DataSlice, ExecuteTransform, MetadataEvent
from chain.model.schema import DataSchema
from chain.multihash import Multihash
from chain.state import ChainState
from chain.store.base import ChainReader
from chain.store.files import check_file
from odfd.datasets.creation import in_force
from odfd.ingest.driver import IngestDependencies
from odfd.ingest.plan import schema_in_force
from odfd.ingest.sharded_writes import check_columns, written_by_shard
from odfd.runtime.filesystem import check_room

_DATA = ("AddData", "ExecuteTransform")


class Copied(NamedTuple):
    """Events for another chain, and the objects that they name."""

    events: tuple[MetadataEvent, ...]
    objects: tuple[Multihash, ...]


class _Form(NamedTuple):
    """The form in which rows are written: their schema, the names of system columns, and the time of their block."""

    schema: DataSchema
    offset: str
    operation: str
    system_time: str
    time: Instant


def offsets_of(path: Path, column: str) -> np.ndarray:
    """Reads the offsets that a query wrote to a Parquet file. Returns them in ascending order. Raises Invalid."""
    with open_slice(path) as file:
        found = [np.asarray(batch.column(0)) for batch in file.batches(columns=[column])]
    return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)


class Standing(NamedTuple):
    """A chain up to ``state``, with the offsets of the rows that stand, ascending; ``None``: all rows stand."""

    chain: ChainReader
    state: ChainState
    offsets: np.ndarray | None


class Layout(NamedTuple):
    """The number of shards that rows are divided among, and the columns that decide the shard."""

    shards: int = 1
    by: tuple[str, ...] = ()


def snapshot_events(
    deps: IngestDependencies, sources: Sequence[Standing], layout: Layout, time: Instant
) -> list[Copied]:
    """Builds, for each new shard, events at ``time`` with the rows that stand in ``sources``, one source after the
    other.

    Raises Refused for a schema in the legacy form, Invalid for columns that cannot decide the shard, NotFound,
    ObjectDamaged, Environment.
    """
    state = sources[0].state
    declared = schema_in_force(state)
    if declared is None:
        return [Copied((), ())] * layout.shards
    assert state.schema is not None
    if layout.shards > 1:
        check_columns(layout.by, declared)
    form = _form(state, declared, time)
    slices = [list(reversed(list(_slices_back(source.chain, source.state.size)))) for source in sources]
    rows = (
        part for each, own in zip(sources, slices, strict=True) for part in _standing(deps, own, each.offsets, form)
    )
    _check_room(deps, sum(each.size for own in slices for each in own))
    found = written_by_shard(deps.objects, _stamp(rows, form), declared, state.vocab, (layout.by, [0] * layout.shards))
    made = []
    for data in found:
        first = AddData(
            new_data=data,
            new_checkpoint=state.checkpoint,
            new_watermark=state.watermark,
            new_source_state=state.source_state,
        )
        says = data is not None or any((state.checkpoint, state.watermark is not None, state.source_state))
        made.append(_with_objects((state.schema, first) if says else (state.schema,)))
    return made


class BlockGroup(NamedTuple):
    """Blocks that are copied together: all blocks of one time, in order for each shard."""

    blocks: tuple[tuple[Block, ...], ...]

    @property
    def size(self) -> int:
        return sum(map(len, self.blocks))

    @property
    def time(self) -> Instant:
        return next(block.system_time for own in self.blocks for block in own)


def groups_after(chains: Sequence[ChainReader], count: int, *, by_time: bool) -> list[BlockGroup]:
    """Lists the blocks of some shards that follow the first ``count`` blocks of all together, in groups, oldest first.

    With one chain each block is a group by itself, unless ``by_time``. Raises Conflict if ``count`` ends inside of a
    transaction, which no writer leaves so.
    """
    heads = [chain.head() for chain in chains]
    ends = [0 if head is None else head.size for head in heads]
    if len(chains) == 1 and not by_time:
        return [BlockGroup(((chains[0].block_at(number),),)) for number in range(count, ends[0])]
    found: list[BlockGroup] = []
    while sum(ends) > count:
        newest = [chain.block_at(end - 1).system_time if end else None for chain, end in zip(chains, ends, strict=True)]
        time = max(each for each in newest if each is not None)
        least = count if len(chains) == 1 else 0
        blocks = tuple(_of_time(chain, end, time, least) for chain, end in zip(chains, ends, strict=True))
        ends = [end - len(own) for end, own in zip(ends, blocks, strict=True)]
        found.append(BlockGroup(blocks))
    if sum(ends) != count:
        raise Conflict(
            "a rendition has a part of a transaction of another one", rule="rendition-copy", hint="report it"
        )
    return found[::-1]


def copied_group(deps: IngestDependencies, group: BlockGroup, state: ChainState) -> Copied:
    """Builds the events of a group for the chain in ``state``, which represents all shards of its own rendition."""
    if len(group.blocks) == 1:
        return _copied_blocks(deps, group.blocks[0], state)
    metadata = tuple(block for block in group.blocks[0] if not isinstance(block.event, AddData))
    said = _copied_blocks(deps, metadata, state)
    data = [block for own in group.blocks for block in own if isinstance(block.event, AddData)]
    if not data:
        return said
    if any(sum(isinstance(block.event, AddData) for block in own) > 1 for own in group.blocks):
        raise Refused("a transaction of shards has several blocks of rows", rule="rendition-copy", hint="report it")
    for event in said.events:
        state = _advance(state, event, group.time)
    slices = [block.event.new_data for block in data if isinstance(block.event, AddData) and block.event.new_data]
    made = _copied_data(deps, data[0], slices, state)
    return Copied((*said.events, *made.events), (*said.objects, *made.objects))


def _copied_blocks(deps: IngestDependencies, blocks: Sequence[Block], state: ChainState) -> Copied:
    events: list[MetadataEvent] = []
    objects: list[Multihash] = []
    for place, block in enumerate(blocks):
        made = copied_block(deps, block, state)
        events += made.events
        objects += made.objects
        if place + 1 < len(blocks):
            for event in made.events:
                state = _advance(state, event, block.system_time)
    return Copied(tuple(events), tuple(objects))


def _advance(state: ChainState, event: MetadataEvent, time: Instant) -> ChainState:
    content = MetadataBlock(system_time=time, prev_block_hash=state.head, sequence_number=state.size, event=event)
    return state.advance(encode_block(content))


def _of_time(chain: ChainReader, end: int, time: Instant, least: int) -> tuple[Block, ...]:
    """Returns the last blocks before number ``end``, down to number ``least``, that have the system time ``time``."""
    found: list[Block] = []
    while end > least and (block := chain.block_at(end - 1)).system_time == time:
        found.append(block)
        end -= 1
    return tuple(found[::-1])


def copied_block(deps: IngestDependencies, block: Block, state: ChainState) -> Copied:
    """Builds the event of a block for the chain in ``state``, as copied so far; none if it would change nothing.

    Raises Refused for an event that cannot be copied, NotFound, ObjectDamaged, Environment.
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
        return Copied(() if same(in_force(state, event), event) else (event,), ())
    return _copied_data(deps, block, [event.new_data] if event.new_data is not None else [], state)


def _copied_data(deps: IngestDependencies, block: Block, slices: Sequence[DataSlice], state: ChainState) -> Copied:
    """Builds the event of a data block, with the rows of ``slices``."""
    event = block.event
    assert isinstance(event, AddData)
    data = None
    if slices:
        declared = schema_in_force(state)
        assert declared is not None, "data follows its schema"
        form = _form(state, declared, block.system_time)
        rows = (part for slice_ in slices for part in _rows(deps, slice_, form))
        _check_room(deps, sum(slice_.size for slice_ in slices))
        (data,) = written_by_shard(deps.objects, _stamp(rows, form), declared, state.vocab, ((), [state.next_offset]))
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
    """Yields the rows that stand, with the operation "append"."""
    for slice_ in slices:
        for rows in _rows(deps, slice_, form):
            if standing is not None:
                offsets = np.asarray(rows.column(form.offset))
                places = np.minimum(np.searchsorted(standing, offsets), max(0, len(standing) - 1))
                rows = rows.filter(pa.array(standing[places] == offsets)) if len(standing) else rows.slice(0, 0)
            yield _with(rows, form.operation, np.full(rows.num_rows, APPEND))


def _rows(deps: IngestDependencies, named: DataSlice, form: _Form) -> Iterator[pa.Table]:
    """Yields the rows of a slice in the schema in force, after a check of the slice's hash."""
    schema = to_arrow(form.schema).remove_metadata()
    path = deps.objects.path(named.physical_hash)
    check_file(path, named.physical_hash)
    with open_slice(path) as file:
        for batch in file.batches():
            yield as_in_force(pa.Table.from_batches([batch]).replace_schema_metadata(None), schema)


def _check_room(deps: IngestDependencies, size: int) -> None:
    check_room(deps.settings.staging, deps.settings.disk_reserve, size, "a rendition is to be written")


def _stamp(parts: Iterable[pa.Table], form: _Form) -> Iterator[pa.Table]:
    """Yields rows with the time of their new block as system time."""
    for rows in parts:
        yield _with(rows, form.system_time, np.full(rows.num_rows, to_millis(form.time)))


def _with(rows: pa.Table, name: str, numbers: np.ndarray) -> pa.Table:
    """Sets a system column to ``numbers``; a time is in milliseconds."""
    place = rows.column_names.index(name)
    field = rows.schema.field(place)
    values = pa.array(numbers, pa.int64())
    if pa.types.is_timestamp(field.type):
        values = values.cast(pa.timestamp("ms", "UTC"))
    return rows.set_column(place, field, values.cast(field.type))


def _with_objects(events: tuple[MetadataEvent, ...]) -> Copied:
    objects: list[Multihash] = []
    for event in events:
        if isinstance(event, AddData):
            objects += [named.physical_hash for named in (event.new_data, event.new_checkpoint) if named is not None]
    return Copied(events, tuple(objects))
