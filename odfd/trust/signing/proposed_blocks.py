"""Holds blocks that another node made for a shard of this one. Spec: docs/spec/collections.md#propose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.model.block import Block, UnknownEvent
from chain.model.events import MetadataEvent
from chain.multihash import Multihash
from chain.store.shards import Shard


class ProposedBlocks(NamedTuple):
    """A proposed transaction: the shard with which it was compared, its blocks, and the frontier (upper) after it."""

    dataset: DatasetId
    before: Shard
    upper: int
    blocks: Sequence[Block]
    objects: Sequence[Multihash]


def known_event(block: Block) -> MetadataEvent:
    """Returns a block's event. Raises Invalid if it is one of a newer version."""
    if isinstance(block.event, UnknownEvent):
        raise Invalid(f"block #{block.sequence_number} holds an event of a newer version", rule="unknown-event")
    return block.event
