"""Writes a transaction that was planned for one chain to the shards of a rendition: rows by hash, all else to each.

Whoever plans (an ingest, a watermark, a declaration) sees the first shard, whose metadata, source state and watermark
are those of all. Here its events become events of each shard, which are committed together: so what a rendition
contains does not depend on the number of its shards. Rows keep their order within a shard; offsets are the shard's own.
Slices are read in batches, and memory does not grow with them. Spec: docs/spec/collections.md#shards; ADR 42.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Final

import msgspec

from chain.codec.arrow_schema import schema_of
from chain.data.arrow_schema import to_arrow
from chain.data.operations import CORRECT_FROM, CORRECT_TO
from chain.data.parquet import SliceWriter, open_slice
from chain.data.partition import hashable, shards_of
from chain.errors import Invalid, Refused
from chain.ids import DatasetId
from chain.instant import from_millis, to_millis
from chain.libraries import np, pa
from chain.model.events import (
    AddData,
    AddPushSource,
    DataSlice,
    MetadataEvent,
    SetDataSchema,
    SetPollingSource,
    Vocab,
)
from chain.model.schema import DataSchema
from chain.model.source import MergeStrategy, primary_key
from chain.multihash import Multihash
from chain.state import ChainState, load_state
from chain.store.base import ChainStore, Head, UpperMove
from chain.store.database import Database
from chain.store.files import check_file
from chain.store.objects import DiskObjects
from odfd.datasets.commit import CommitPart, check_head
from odfd.ingest.plan import schema_in_force
from odfd.ingest.slices import SliceStore, keep_slice
from odfd.store import collections

_COLUMN: Final = "shard-column"


class ShardedWrites:
    """The writes to sharded renditions of one node, from worker threads, one at a time."""

    def __init__(self, database: Database, chains: ChainStore, objects: DiskObjects) -> None:
        self._database, self._chains, self._objects = database, chains, objects

    def __call__(self, part: CommitPart) -> Sequence[CommitPart] | None:
        """What a part of a commit is for its shards; ``None``: it is of a chain by itself.

        A shard without events moves its frontier alone. Raises Refused for a shard that is not the first, and for what
        would part rows that belong together; Conflict if the head moved; Invalid.
        """
        with self._database.read() as connection:
            member = collections.member_of(connection, part.dataset)
            if member is None:
                return None
            collections.check_member(collections.of(connection, part.dataset), part.dataset)
        states = [load_state(self._chains.chain(shard)) for shard in member.shards]
        uppers = [self._chains.upper(shard) for shard in member.shards]
        time = part.time
        if not any(isinstance(event, AddData) and event.new_data is not None for event in part.events):
            time = max(time, from_millis(max(uppers)))  # rows say their time already, and are planned again if late
        made = divide(self._objects, states, member.row.by, part.events)
        named = {event.new_data.physical_hash for event in part.events if isinstance(event, AddData) and event.new_data}
        self._objects.holds.named(named)  # no block will: the next collection frees what was divided
        linked = tuple(object_ for object_ in part.objects if object_ not in named)
        parts = []
        for each, state, upper, (own, slices) in zip(member.shards, states, uppers, made, strict=True):
            assert state.head is not None
            if each == part.dataset:
                check_head(each, part.expected, state.head, state.sequence_number)
                upper = upper if part.upper is None else part.upper.expected
            parts.append(
                CommitPart(
                    dataset=each,
                    expected=Head(state.head, state.sequence_number),
                    events=own,
                    objects=(*slices, *linked) if own else (),
                    time=time,
                    # Of a shard without rows too: a collection is read up to the least frontier of its shards (ADR 42).
                    upper=UpperMove(upper, to_millis(time) + 1),
                )
            )
        return parts

    def check_single(self, dataset: DatasetId) -> None:
        """Raises Refused for a shard of several: what is done to one chain alone would part it from the others."""
        with self._database.read() as connection:
            collections.check_single(connection, dataset)


def divide(
    objects: SliceStore, states: Sequence[ChainState], by: Sequence[str] | int, events: Sequence[MetadataEvent]
) -> list[tuple[tuple[MetadataEvent, ...], tuple[Multihash, ...]]]:
    """Returns for each shard its events and the slices that they name. Raises Refused, Invalid, ObjectDamaged.

    ``by``: the columns whose hash decides the shard of a row; a number is the shard of all rows.
    """
    found: list[list[MetadataEvent]] = [[] for _ in states]
    named: list[list[Multihash]] = [[] for _ in states]
    offsets = [state.last_offset for state in states]
    said = [(state.watermark, state.source_state) for state in states]
    schema = schema_in_force(states[0])
    for event in events:
        if not isinstance(by, int):
            check_source(by, event)
        if isinstance(event, SetDataSchema):
            schema = schema_of(event)
            check_columns(() if isinstance(by, int) else by, schema)
        if not isinstance(event, AddData):
            for each in found:
                each.append(event)
            continue
        slices: Sequence[DataSlice | None] = [None] * len(states)
        if event.new_data is not None:
            assert schema is not None, "data follows its schema"
            nexts = [0 if last is None else last + 1 for last in offsets]
            slices = _divided_rows(objects, event.new_data, states[0], schema, (by, nexts))
        for place, data in enumerate(slices):
            checkpoint = states[place].checkpoint
            own = msgspec.structs.replace(
                event,
                prev_checkpoint=checkpoint.physical_hash if checkpoint else None,
                prev_offset=offsets[place],
                new_data=data,
            )
            now = (own.new_watermark, own.new_source_state)
            if data is None and now == said[place]:
                continue  # it says nothing of this shard
            said[place] = now
            found[place].append(own)
            if data is not None:
                offsets[place] = data.offset_interval.end
                named[place].append(data.physical_hash)
    return [(tuple(each), tuple(slices)) for each, slices in zip(found, named, strict=True)]


def check_source(by: Sequence[str], event: MetadataEvent) -> None:
    """Raises Refused for a source that merges rows by columns which do not keep them in one shard."""
    if isinstance(event, SetPollingSource | AddPushSource):
        check_merge(by, event.merge)


def check_merge(by: Sequence[str], merge: MergeStrategy) -> None:
    """Raises Refused unless rows of one key are always in one shard."""
    key = primary_key(merge)
    if key and not set(by) <= set(key):
        raise Refused(
            f"rows are merged by {', '.join(key)}, and {', '.join(by)} decides their shard: rows of one key would be"
            " in several",
            rule="shard-key",
            hint="shard by columns of the primary key",
        )


def check_columns(by: Sequence[str], schema: DataSchema) -> None:
    """Raises Invalid for columns that are not there, or whose equal values may differ in bytes."""
    kinds = {field.name: field.type for field in to_arrow(schema)}
    for name in by:
        if name not in kinds:
            raise Invalid(f"no column {name} decides the shard of a row", rule=_COLUMN, hint=f"one of {list(kinds)}")
        if not hashable(kinds[name]):
            raise Invalid(
                f"column {name} is {kinds[name]}, whose equal values may differ in bytes",
                rule=_COLUMN,
                hint="shard by integers, texts, bytes, booleans, dates, times or decimals of at most 18 digits",
            )


def _divided_rows(
    objects: SliceStore,
    data: DataSlice,
    state: ChainState,
    schema: DataSchema,
    how: tuple[Sequence[str] | int, Sequence[int]],
) -> list[DataSlice | None]:
    """Slices for each shard, ``None`` where it gets no row. ``how``: the columns that decide, and next offsets."""
    path = objects.path(data.physical_hash)
    check_file(path, data.physical_hash)
    with open_slice(path) as file:
        parts = (pa.Table.from_batches([batch]).replace_schema_metadata(None) for batch in file.batches())
        return written_by_shard(objects, parts, schema, state.vocab, how)


def written_by_shard(
    objects: SliceStore,
    parts: Iterable[pa.Table],
    schema: DataSchema,
    vocab: Vocab,
    how: tuple[Sequence[str] | int, Sequence[int]],
) -> list[DataSlice | None]:
    """Writes rows to a slice for each shard, in their order. Raises Refused, Environment."""
    by, nexts = how
    arrow = to_arrow(schema).remove_metadata()
    staged = [objects.stage() for _ in nexts]
    waiting = -1
    try:
        with ExitStack() as files:
            writers = [files.enter_context(SliceWriter(path, arrow)) for path in staged]
            for rows in parts:
                shards = np.full(rows.num_rows, by) if isinstance(by, int) else shards_of(rows, by, len(nexts))
                waiting = _check_pairs(np.asarray(rows.column(vocab.operation_type)), shards, waiting)
                for place, writer in enumerate(writers):
                    own = rows if len(writers) == 1 else rows.filter(pa.array(shards == place))
                    start = nexts[place] + writer.rows
                    writer.write(_number(own, vocab.offset, start).cast(arrow))
        return [
            keep_slice(objects, path, schema, vocab.offset) if writer.rows else None
            for path, writer in zip(staged, writers, strict=True)
        ]
    finally:
        for path in staged:
            path.unlink(missing_ok=True)


def _check_pairs(operations: np.ndarray, shards: np.ndarray, waiting: int) -> int:
    """The two rows of a correction stay beside each other. ``waiting``: the shard of an old row that was the last.

    Returns that of these rows, -1: none. Raises Refused.
    """
    if not len(shards):
        return waiting
    before = np.concatenate([[waiting], np.where(operations == CORRECT_FROM, shards, -1)[:-1]])
    parted = (operations == CORRECT_TO) & (before >= 0) & (before != shards)
    if parted.any():
        raise Refused(
            "a correction moves a row to another shard, where its old row is not",
            rule="shard-correction",
            hint="retract the row, and add it again",
        )
    return int(shards[-1]) if operations[-1] == CORRECT_FROM else -1


def _number(rows: pa.Table, offset: str, start: int) -> pa.Table:
    place = rows.column_names.index(offset)
    field = rows.schema.field(place)
    numbers = pa.array(np.arange(start, start + rows.num_rows), pa.int64())
    return rows.set_column(place, field, numbers.cast(field.type))
