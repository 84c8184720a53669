"""Rewriting a stored chain: back to an ancestor, slices merged into larger ones, or metadata alone.

Each is one atomic change of head; before it everything that the new history names is durable, after a crash there is
the old history or the new one. Nothing is signed or announced here: callers open an epoch first, or write it with
``also``, so that mirrors can tell a rewrite from a lie. Objects that only the old history named stay until they are
collected. Functions; synchronous. Spec: compaction (RFC-018); trust: forks and rewrites.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias, get_args

import msgspec
import pyarrow as pa

from chain.compaction import Batch, Limits, merged, plan_compaction, remade
from chain.data import parquet
from chain.data.logical_hash import LogicalHasher
from chain.errors import Invalid, NotFound
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import UnknownEvent
from chain.model.events import AddData, DatasetKind, DataSlice, ExecuteTransform, MetadataEvent, OffsetInterval
from chain.multihash import Multihash
from chain.state import load_state
from chain.store.base import ChainReader, ChainStore, Head, ObjectStore, Rewrite
from chain.store.objects import sound_path, staged_in
from chain.walk import newest_first, oldest_first

Also: TypeAlias = Callable[[sqlite3.Connection], None]
_DATA: Final = ("AddData", "ExecuteTransform")
_OTHERS: Final = tuple(each.__name__ for each in (*get_args(MetadataEvent), UnknownEvent) if each.__name__ not in _DATA)


class Rewritten(msgspec.Struct, frozen=True, kw_only=True):
    """What was done: enough to declare it (``base`` and ``last`` of an epoch)."""

    base: Head
    """The last block kept as it was."""
    last: Head
    """Where the old history ended."""
    head: Head
    merged_slices: int = 0
    new_slices: int = 0


def reset(chains: ChainStore, dataset: DatasetId, to: Multihash, also: Also | None = None) -> Rewritten:
    """Makes an ancestor the head. Raises NotFound when ``to`` is no block of the chain, Invalid when it is the head."""
    chain = chains.chain(dataset)
    last = _head(chain, dataset)
    target = chain.block_by_hash(to)
    keep = target.sequence_number + 1
    head = chains.rewrite(Rewrite(dataset=dataset, expected=last, keep=keep), also)
    return Rewritten(base=head, last=last, head=head)


def keep_metadata(
    chains: ChainStore, dataset: DatasetId, system_time: Instant, also: Also | None = None
) -> Rewritten | None:
    """Drops every data event and keeps all others; ``None`` when there is none to drop. Raises Conflict, Invalid."""
    chain = chains.chain(dataset)
    last = _head(chain, dataset)
    first = next((block for block in oldest_first(chain, 0, last.size) if type(block.event).__name__ in _DATA), None)
    if first is None:
        return None
    keep = first.sequence_number
    later = [block.event for block in newest_first(chain, _OTHERS) if block.sequence_number > keep]
    kept = [_known(event) for event in reversed(later)]
    blocks = remade(load_state(chain, keep), kept, system_time)
    head = chains.rewrite(Rewrite(dataset=dataset, expected=last, keep=keep, blocks=blocks), also)
    return Rewritten(base=_at(chain, keep - 1), last=last, head=head)


def compact(
    chains: ChainStore,
    objects: ObjectStore,
    dataset: DatasetId,
    system_time: Instant,
    limits: Limits | None = None,
    also: Also | None = None,
) -> Rewritten | None:
    """Merges slices of a root; ``None`` when none can be. Raises Invalid for a derivative, Conflict, Environment.

    Slices are merged row group by row group, so memory does not grow with them.
    """
    chain = chains.chain(dataset)
    last = _head(chain, dataset)
    if load_state(chain).kind is not DatasetKind.ROOT:
        raise Invalid(
            f"{dataset.short} is a derivative: its slices are made by its transform",
            rule="compact-root",
            hint="keep its metadata only, and pull it again",
        )
    batches = plan_compaction(oldest_first(chain, 0, last.size), limits or Limits())
    if not batches:
        return None
    slices = [_merge(chain, objects, batch) for batch in batches]
    keep = batches[0].start
    blocks = remade(load_state(chain, keep), _events(chain, keep, last.size, batches, slices), system_time)
    names = [each.physical_hash for each in slices if each is not None]
    rewrite = Rewrite(dataset=dataset, expected=last, keep=keep, blocks=blocks, objects=names)
    base = _at(chain, keep - 1)
    head = chains.rewrite(rewrite, also)
    return Rewritten(base=base, last=last, head=head, merged_slices=sum(map(len, batches)), new_slices=len(names))


def _events(
    chain: ChainReader, start: int, stop: int, batches: Sequence[Batch], slices: Sequence[DataSlice | None]
) -> Iterator[MetadataEvent]:
    """Events of the new history from ``start`` on, as the old one streams by."""
    waiting = list(zip(batches, slices, strict=True))
    gathered: list[AddData] = []
    for block in oldest_first(chain, start, stop):
        event = _known(block.event)
        if not waiting or block.sequence_number not in waiting[0][0]:
            yield event
            continue
        assert isinstance(event, AddData), "batches are of AddData"
        gathered.append(event)
        batch, new_data = waiting[0]
        if block.sequence_number == batch[-1]:
            yield merged(gathered, new_data)
            gathered = []
            waiting.pop(0)


def _merge(chain: ChainReader, objects: ObjectStore, batch: Batch) -> DataSlice | None:
    """One slice with the rows of all of a batch, in the store; ``None`` when there are no rows."""
    parts = [each for block in oldest_first(chain, batch.start, batch.stop) if (each := _slice(block.event))]
    if len(parts) < 2:
        return parts[0] if parts else None
    with staged_in(objects) as staged:
        return _merge_into(staged, objects, batch, parts)


def _merge_into(staged: Path, objects: ObjectStore, batch: Batch, parts: Sequence[DataSlice]) -> DataSlice:
    with parquet.open_slice(objects.path(parts[0].physical_hash)) as first:
        schema: pa.Schema = first.schema.remove_metadata()
    rows = 0
    hasher = LogicalHasher(schema)
    with parquet.SliceWriter(staged, schema) as writer:
        for part in parts:
            # A damaged slice would be laundered: its rows would get hashes of their own.
            with parquet.open_slice(sound_path(objects, part.physical_hash)) as source:
                for one in source.batches():
                    fitted = _fitted(one, schema, part)
                    writer.write(fitted)
                    hasher.update(fitted)
                    rows += one.num_rows
    interval = OffsetInterval(start=parts[0].offset_interval.start, end=parts[-1].offset_interval.end)
    if rows != interval.end - interval.start + 1:
        raise Invalid(
            f"slices #{batch.start} to #{batch[-1]} hold {rows:,} rows, their blocks say otherwise",
            rule="slice-rows",
            hint="verify the dataset first: odfctl verify",
        )
    size = staged.stat().st_size
    name = objects.add_file(staged)
    return DataSlice(logical_hash=hasher.finish(), physical_hash=name, offset_interval=interval, size=size)


def _fitted(rows: pa.RecordBatch, schema: pa.Schema, part: DataSlice) -> pa.RecordBatch:
    """Rows under the first slice's schema: writers may differ in encodings and nullability, never in names or order."""
    if rows.schema.names != schema.names:
        raise Invalid(
            f"slice {part.physical_hash.short} has other columns than the one before it",
            rule="slice-schema",
            hint="verify the dataset first: odfctl verify",
        )
    try:
        return pa.RecordBatch.from_arrays(
            [a.cast(f.type) for a, f in zip(rows.columns, schema, strict=True)], schema=schema
        )
    except pa.ArrowInvalid as error:
        raise Invalid(
            f"slice {part.physical_hash.short} does not fit the one before it: {error}", rule="slice-schema"
        ) from error


def _slice(event: MetadataEvent | UnknownEvent) -> DataSlice | None:
    return event.new_data if isinstance(event, AddData | ExecuteTransform) else None


def _known(event: MetadataEvent | UnknownEvent) -> MetadataEvent:
    if isinstance(event, UnknownEvent):
        raise Invalid(
            "the chain holds an event of a newer schema, and cannot be made anew",
            rule="unknown-event",
            hint="a newer version may rewrite this dataset",
        )
    return event


def _head(chain: ChainReader, dataset: DatasetId) -> Head:
    head = chain.head()
    if head is None:
        raise NotFound(f"no dataset {dataset.short}", rule="dataset-unknown", hint="odfctl get datasets")
    return head


def _at(chain: ChainReader, number: int) -> Head:
    block = chain.block_at(number)
    return Head(block.hash, block.sequence_number)
