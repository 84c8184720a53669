"""Plans the compaction of a history: which slices are merged into one, and which events follow.

Plans over a stream of blocks, without I/O; ``store.rewriting`` reads and writes slices, and moves the head. As the
reference does it: AddData events with nothing between them are merged, newest first, up to a limit of bytes and rows;
the merged event carries the newest checkpoint, source state and watermark among them, and the sum of linked objects.
Blocks before the first change stay byte for byte; those after it are made anew. Spec: compaction (RFC-018).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from chain.codec.blocks import encode_block
from chain.errors import Invalid
from chain.instant import Instant
from chain.model.block import Block, MetadataBlock, UnknownEvent
from chain.model.events import AddData, DataSlice, ExecuteTransform, MetadataEvent
from chain.rules.check import check_block
from chain.state import ChainState

MAX_BYTES: Final = 300_000_000
MAX_ROWS: Final = 10_000
LINKED: Final = "opendatafabric.org/linkedObjects"
_SUMS: Final = ("numObjectsNaive", "sizeNaive")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one merged slice, with the reference's defaults."""

    bytes: int = MAX_BYTES
    """Sum of the bytes of the slices that are merged."""
    rows: int = MAX_ROWS


Batch: TypeAlias = range
"""Sequence numbers of the AddData blocks that become one; at least two."""


def plan_compaction(blocks: Iterable[Block], limits: Limits) -> tuple[Batch, ...]:
    """Decides which blocks of a whole chain to merge, in its order; may be empty. Takes 16 bytes of memory a block.

    Raises Invalid for a chain with an event of a newer schema: its effect is unknown.
    """
    sizes, rows = array("q"), array("q")
    for block in blocks:
        if isinstance(block.event, UnknownEvent):
            raise Invalid(
                f"block #{block.sequence_number} holds an event of a newer schema",
                rule="unknown-event",
                hint="a newer version may compact this dataset",
            )
        size, count = _weight(block.event)
        sizes.append(size)
        rows.append(count)
    batches: list[Batch] = []
    stop = len(sizes)
    size = count = 0
    for number in range(len(sizes) - 1, -1, -1):
        if sizes[number] < 0:
            _close(batches, number + 1, stop)
            stop, size, count = number, 0, 0
            continue
        size, count = size + sizes[number], count + rows[number]
        if size > limits.bytes or count > limits.rows:
            _close(batches, number + 1, stop)
            stop, size, count = number + 1, sizes[number], rows[number]
    return tuple(reversed(batches))


def _weight(event: MetadataEvent) -> tuple[int, int]:
    """Returns bytes and rows of an AddData; -1 and 0 for any other event, which ends a batch."""
    if not isinstance(event, AddData):
        return -1, 0
    if event.new_data is None:
        return 0, 0
    return event.new_data.size, event.new_data.offset_interval.end - event.new_data.offset_interval.start + 1


def _close(batches: list[Batch], start: int, stop: int) -> None:
    if stop - start > 1:
        batches.append(range(start, stop))


def merged(events: Sequence[AddData], new_data: DataSlice | None) -> AddData:
    """Makes the one event that replaces several in a row; ``new_data`` holds the rows of all."""
    newest = tuple(reversed(events))
    return AddData(
        prev_checkpoint=events[0].prev_checkpoint,
        prev_offset=events[0].prev_offset,
        new_data=new_data,
        new_checkpoint=next((each.new_checkpoint for each in newest if each.new_checkpoint), None),
        new_watermark=next((each.new_watermark for each in newest if each.new_watermark is not None), None),
        new_source_state=next((each.new_source_state for each in newest if each.new_source_state), None),
        extra=_extras([event.extra for event in events if event.extra]),
    )


def _extras(all_of_them: Sequence[Mapping[str, object]]) -> dict[str, object] | None:
    """Merges attributes, the newest's where they differ; the numbers of linked objects are added up."""
    if not all_of_them:
        return None
    joined: dict[str, object] = {}
    sums = dict.fromkeys(_SUMS, 0)
    for extra in all_of_them:
        joined |= extra
        linked = extra.get(LINKED)
        if isinstance(linked, dict):
            for name in _SUMS:
                value = linked.get(name)
                sums[name] += value if isinstance(value, int) else 0
    if LINKED in joined:
        joined[LINKED] = sums
    return joined


def remade(state: ChainState, events: Iterable[MetadataEvent], system_time: Instant) -> Iterator[Block]:
    """Makes new blocks of ``events`` after a chain in ``state``, at ``system_time``, each checked by the rules.

    The checkpoint and offset that a data event repeats from the one before it are set anew. Raises Invalid when a rule
    is broken.
    """
    for event in events:
        if isinstance(event, AddData | ExecuteTransform):
            checkpoint = state.checkpoint.physical_hash if state.checkpoint else None
            event = msgspec.structs.replace(event, prev_checkpoint=checkpoint, prev_offset=state.last_offset)
        block = encode_block(
            MetadataBlock(system_time=system_time, prev_block_hash=state.head, sequence_number=state.size, event=event)
        )
        for broken in check_block(state, block, as_author=False):
            raise Invalid(
                broken.message, rule=broken.rule, hint=broken.hint, place=f"rewritten block #{block.sequence_number}"
            )
        yield block
        state = state.advance(block)
