"""Defines a block: its bytes as first written are the truth; everything else here was read from them."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from chain.instant import Instant
from chain.model.events import AddData, ExecuteTransform, MetadataEvent
from chain.model.wire import U64, Time
from chain.multihash import Multihash

NamedObject: TypeAlias = tuple[Multihash, int]
"""Name and size of an object."""


class UnknownEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a newer schema: its bytes are kept and shown; it is unusable only where its meaning is needed."""

    variant: int
    """Number of the variant in the union MetadataEvent."""


class MetadataBlock(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    system_time: Time
    prev_block_hash: Multihash | None = None
    sequence_number: U64
    event: MetadataEvent


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A block with its identity. ``raw`` is stored, hashed, signed and forwarded as received, never encoded again."""

    raw: bytes
    hash: Multihash
    version: int
    """Manifest version: 2 and 3 are read, 3 is written."""
    system_time: Instant
    prev_block_hash: Multihash | None
    sequence_number: int
    event: MetadataEvent | UnknownEvent
    unknown_fields: tuple[str, ...] = ()
    """Unknown fields of the bytes, such as ``AddData[7]``: a table, and the slot in it."""


class SealedBlock(msgspec.Struct, frozen=True, gc=False):
    """A block that was checked in a run and not decoded: what is needed to store it, and what it adds.

    Thousands are held at once, and none can be part of a cycle: the collector need not look at them.
    """

    raw: bytes
    hash: Multihash
    prev_block_hash: Multihash | None
    sequence_number: int
    variant: int
    """Number of the event in the union MetadataEvent."""
    objects: tuple[NamedObject, ...]
    """The slice and the checkpoint that the event brings."""


def objects_of(block: Block | SealedBlock) -> tuple[NamedObject, ...]:
    """The slice and the checkpoint that a block brings."""
    if isinstance(block, SealedBlock):
        return block.objects
    event = block.event
    if not isinstance(event, AddData | ExecuteTransform):
        return ()
    return tuple((each.physical_hash, each.size) for each in (event.new_data, event.new_checkpoint) if each is not None)
