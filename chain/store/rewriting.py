"""Rewrites a stored chain: back to an ancestor, slices merged into larger ones, or metadata alone.

A plan describes another history, in enough detail to declare it; ``prepare`` makes all objects that it names durable
and returns the rewrite, which is one atomic change of head: a crash leaves the old history or the new one. Nothing is
signed or announced here: the caller opens an epoch in the same transaction, so that mirrors can tell the rewrite from a
lie. Objects that only the old history named stay until they are collected. Functions; synchronous. Spec: compaction
(RFC-018); trust: forks and rewrites.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec

from chain.compaction import Batch, Limits, merged, plan_compaction, remade
from chain.data import parquet
from chain.data.logical_hash import LogicalHasher
from chain.errors import Invalid, NotFound
from chain.ids import DatasetId
from chain.instant import Instant
from chain.libraries import pa
from chain.model.block import UnknownEvent
from chain.model.events import AddData, DatasetKind, DataSlice, ExecuteTransform, MetadataEvent, OffsetInterval
from chain.multihash import Multihash
from chain.state import load_state
from chain.store.base import ChainReader, Head, ObjectStore, Rewrite
from chain.store.objects import sound_path, staged_in
from chain.walk import newest_first, oldest_first
from chain.wording import plural

_DATA: Final = ("AddData", "ExecuteTransform")
_OTHERS: Final = tuple(
    argument.__name__ for argument in (*get_args(MetadataEvent), UnknownEvent) if argument.__name__ not in _DATA
)


class RewritePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan of another history, before any of it is stored."""

    dataset: DatasetId
    after: Literal["nothing", "metadata", "merged"]
    """The blocks after ``base``: none, all events without data, or all events with merged slices."""
    base: Head
    """The last block that is kept unchanged."""
    last: Head
    """The head of the present history."""
    size: int
    """Number of blocks of the new history."""
    batches: tuple[Batch, ...] = ()
    """Numbers of the data blocks that become one, if slices are merged."""

    def moved(self) -> Callable[[int], int]:
        """Returns a function from a block's number before the merge to that of the block with its rows after."""
        starts = [batch.start for batch in self.batches]
        gone = list(itertools.accumulate((len(batch) - 1 for batch in self.batches), initial=0))

        def number(old: int) -> int:
            place = bisect_right(starts, old)
            if place and old < self.batches[place - 1].stop:
                return starts[place - 1] - gone[place - 1]
            return old - gone[place]

        return number


def plan_reset(chain: ChainReader, dataset: DatasetId, to: Multihash) -> RewritePlan:
    """Plans to make the block ``to`` the head. Raises NotFound if the chain lacks it, Invalid if it is the head."""
    last = _head(chain, dataset)
    target = chain.block_by_hash(to)
    base = Head(target.hash, target.sequence_number)
    if base == last:
        raise Invalid(
            f"block #{base.sequence_number} is the head: there is no later block to drop",
            rule="rewrite-no-op",
            hint="name an earlier block: odfctl log",
        )
    return RewritePlan(dataset=dataset, after="nothing", base=base, last=last, size=base.size)


def plan_metadata(chain: ChainReader, dataset: DatasetId) -> RewritePlan | None:
    """Plans to drop every data event and keep all others; ``None`` when there is none to drop."""
    last = _head(chain, dataset)
    first = next((block for block in oldest_first(chain, 0, last.size) if type(block.event).__name__ in _DATA), None)
    if first is None:
        return None
    base = _at(chain, first.sequence_number - 1)
    others = sum(1 for _ in newest_first(chain, _OTHERS))
    return RewritePlan(dataset=dataset, after="metadata", base=base, last=last, size=others)


def plan_merging(chain: ChainReader, dataset: DatasetId, limits: Limits) -> RewritePlan | None:
    """Plans to merge slices of a root; ``None`` when none can be merged. Raises Invalid for a derivative."""
    last = _head(chain, dataset)
    if load_state(chain).kind is not DatasetKind.ROOT:
        raise Invalid(
            f"{dataset.short} is a derived dataset: its slices are made by its transform",
            rule="compact-root",
            hint="keep its metadata only (--keep-metadata-only), and pull it again",
        )
    batches = plan_compaction(oldest_first(chain, 0, last.size), limits)
    if not batches:
        return None
    return RewritePlan(
        dataset=dataset,
        after="merged",
        base=_at(chain, batches[0].start - 1),
        last=last,
        size=last.size - sum(len(batch) - 1 for batch in batches),
        batches=batches,
    )


def prepare(
    chain: ChainReader,
    objects: ObjectStore,
    plan: RewritePlan,
    system_time: Instant,
    progress: Callable[[int], None] = lambda _: None,
) -> Rewrite:
    """Stores all objects that the new history names, and returns the rewrite that puts it in force.

    Slices are merged row group by row group, so memory does not grow with them. ``progress`` gets the number of batches
    merged, and may raise to stop. Raises Invalid when the new blocks would break a rule, Environment.
    """
    slices = []
    for number, batch in enumerate(plan.batches, start=1):
        slices.append(_merge(chain, objects, batch))
        progress(number)
    keep = plan.base.size
    events: Iterator[MetadataEvent] = iter(())
    if plan.after == "merged":
        events = _events(chain, keep, plan.last.size, plan.batches, slices)
    elif plan.after == "metadata":
        events = _metadata(chain, keep)
    return Rewrite(
        dataset=plan.dataset,
        expected=plan.last,
        keep=keep,
        blocks=remade(load_state(chain, keep), events, system_time),
        objects=[slice_.physical_hash for slice_ in slices if slice_ is not None],
    )


def _metadata(chain: ChainReader, start: int) -> Iterator[MetadataEvent]:
    """Returns the events from ``start`` on that carry no data; they are few."""
    later = [block.event for block in newest_first(chain, _OTHERS) if block.sequence_number >= start]
    return map(_known, reversed(later))


def _events(
    chain: ChainReader, start: int, stop: int, batches: Sequence[Batch], slices: Sequence[DataSlice | None]
) -> Iterator[MetadataEvent]:
    """Yields the events of the new history from ``start`` on, while the old one streams by."""
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
    """Stores one slice with all rows of a batch; returns ``None`` when there are no rows."""
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
            # Without this check a damaged slice would be laundered: its rows would get new, valid hashes.
            with parquet.open_slice(sound_path(objects, part.physical_hash)) as source:
                for one in source.batches():
                    fitted = _fitted(one, schema, part)
                    writer.write(fitted)
                    hasher.update(fitted)
                    rows += one.num_rows
    interval = OffsetInterval(start=parts[0].offset_interval.start, end=parts[-1].offset_interval.end)
    if rows != interval.end - interval.start + 1:
        raise Invalid(
            f"slices #{batch.start} to #{batch[-1]} hold {plural(rows, 'row')}, their blocks say otherwise",
            rule="slice-rows",
            hint="verify the dataset first: odfctl verify",
        )
    size = staged.stat().st_size
    name = objects.add_file(staged)
    return DataSlice(logical_hash=hasher.finish(), physical_hash=name, offset_interval=interval, size=size)


def _fitted(rows: pa.RecordBatch, schema: pa.Schema, part: DataSlice) -> pa.RecordBatch:
    """Casts rows to the first slice's schema: writers may differ in encodings and nullability, not in names."""
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
            "the chain has an event of a newer schema, and cannot be written again",
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
