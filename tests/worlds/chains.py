"""Chains of blocks made from events, as a writer without faults appends them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chain.codec.blocks import encode_block
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block, MetadataBlock
from chain.model.events import DatasetKind, MetadataEvent, Seed, SetInfo


def following(last: Block | None, event: MetadataEvent, at: int) -> Block:
    """The block after another, or the first."""
    before, number = (last.hash, last.sequence_number + 1) if last else (None, 0)
    return encode_block(
        MetadataBlock(system_time=Instant(at), prev_block_hash=before, sequence_number=number, event=event)
    )


def linked(events: Iterable[MetadataEvent], at: Instant, step: int = 0) -> list[Block]:
    """One block an event, each naming the hash of the one before; ``step``: nanoseconds from one to the next."""
    blocks: list[Block] = []
    for number, event in enumerate(events):
        blocks.append(following(blocks[-1] if blocks else None, event, at + number * step))
    return blocks


def noted(dataset: DatasetId, notes: Sequence[str], at: Instant) -> list[Block]:
    """A small root chain: its Seed and one block a note."""
    seed = Seed(dataset_id=dataset, dataset_kind=DatasetKind.ROOT)
    return linked([seed, *(SetInfo(description=note) for note in notes)], at)
