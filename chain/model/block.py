"""Defines a block: its bytes as first written are authoritative, and all other fields are read from them."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from chain.instant import Instant
from chain.model.events import AddData, ExecuteTransform, MetadataEvent
from chain.model.wire import U64, Time
from chain.multihash import Multihash

NamedObject: TypeAlias = tuple[Multihash, int]
"""Name and size in bytes of an object."""


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
    """Manifest version of the block: 2 and 3 are read, 3 is written."""
    system_time: Instant
    prev_block_hash: Multihash | None
    sequence_number: int
    event: MetadataEvent | UnknownEvent
    unknown_fields: tuple[str, ...] = ()
    """Slots of the bytes that only a newer schema has a name for, as table and slot: ``AddData[7]``."""


class SealedBlock(msgspec.Struct, frozen=True, gc=False):
    """A block that was checked without being decoded: the fields needed to store it, and the objects it names.

    Thousands are held at once. They can be part of no cycle, so the garbage collector does not track them.
    """

    raw: bytes
    hash: Multihash
    prev_block_hash: Multihash | None
    sequence_number: int
    variant: int
    """Number of the event in the union MetadataEvent."""
    objects: tuple[NamedObject, ...]
    """Name and size of the slice and the checkpoint that the event adds."""


def objects_of(block: Block | SealedBlock) -> tuple[NamedObject, ...]:
    """Returns name and size of the slice and the checkpoint that a block adds."""
    if isinstance(block, SealedBlock):
        return block.objects
    event = block.event
    if not isinstance(event, AddData | ExecuteTransform):
        return ()
    return tuple((each.physical_hash, each.size) for each in (event.new_data, event.new_checkpoint) if each is not None)
