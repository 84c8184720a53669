"""Encodes and decodes blocks: a FlatBuffers MetadataBlock inside of a Manifest, named by the sha3-256 of the whole.

Versions 2 and 3 are read, 3 is written by default. Bytes received are kept as they are: a Block is never encoded
again to be stored, hashed, signed or sent. Spec: section Metadata, Manifest; multicodec odf-metadata-block.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from chain.codec import flat
from chain.errors import Invalid
from chain.instant import Instant
from chain.model.block import Block, MetadataBlock, UnknownEvent
from chain.model.events import MetadataEvent
from chain.model.wire import I32, I64, U64, Scalar, Time
from chain.multihash import Multihash

MAX_BLOCK: Final = 16 << 20
"""Largest block, in bytes. The largest events embed a licence or a readme; 1,000 columns take a hundredth of it."""
KIND: Final = 0x400000
"""Number of the multicodec odf-metadata-block."""
CURRENT_VERSION: Final = 3
_TIME_ALIGNMENT: Final = {2: flat.PACKED, 3: flat.ALIGNED}


class _Manifest(msgspec.Struct, frozen=True):
    kind: I64
    version: I32
    content: bytes


class _Envelope(msgspec.Struct, frozen=True):
    """A MetadataBlock whose event is of an unknown kind: only the event's type byte is read, where the union begins."""

    system_time: Time
    prev_block_hash: Multihash | None
    sequence_number: U64
    variant: Annotated[int, Scalar("uint8")]


class _Time(msgspec.Struct, frozen=True):
    system_time: Time


class _Place(msgspec.Struct, frozen=True):
    system_time: Time
    prev_block_hash: Multihash | None
    sequence_number: U64


def encode_block(content: MetadataBlock, version: int = CURRENT_VERSION) -> Block:
    """Makes a new block of ``content``. Raises Invalid when it cannot be encoded or exceeds MAX_BLOCK."""
    alignment = _alignment(version)
    inner = flat.encode(content, time_alignment=alignment)
    raw = flat.encode(_Manifest(KIND, version, inner))
    _check_size(raw)
    return _block(raw, version, content, content.event)


def decode_block(raw: bytes) -> Block:
    """Decodes a block. Raises Invalid: too large, not a block, an obsolete or unsupported version, malformed.

    An event of a kind that only a newer schema has becomes an UnknownEvent, and fields that only a newer schema has are
    listed by their place; the bytes stay whole.
    """
    _check_size(raw)
    manifest = flat.decode(_Manifest, raw)
    if manifest.kind != KIND:
        raise Invalid(
            f"not a metadata block: manifest kind {manifest.kind:#x}",
            rule="manifest-kind",
            hint=f"a block's kind is {KIND:#x}",
        )
    _alignment(manifest.version)
    try:
        content, beyond = flat.decode_noting(MetadataBlock, manifest.content)
    except flat.Unknown:
        envelope = flat.decode(_Envelope, manifest.content)
        return _block(raw, manifest.version, envelope, UnknownEvent(variant=envelope.variant))
    return _block(raw, manifest.version, content, content.event, beyond)


class Link(msgspec.Struct, frozen=True):
    """A block's hash, the hash of its predecessor and its sequence number, as its own bytes state them."""

    hash: Multihash
    prev_block_hash: Multihash | None
    sequence_number: int


def read_link(raw: bytes) -> Link:
    """Reads the link of a block without decoding its event, which may be anything. Raises Invalid."""
    _check_size(raw)
    envelope = flat.decode(_Place, flat.decode(_Manifest, raw).content)
    return Link(Multihash.sha3_256(raw), envelope.prev_block_hash, envelope.sequence_number)


def read_time(raw: bytes) -> Instant:
    """Reads the system time of a block, without the checks of its event. Raises Invalid."""
    _check_size(raw)
    return flat.decode(_Time, flat.decode(_Manifest, raw).content).system_time


def content_of(block: Block) -> MetadataBlock:
    """Returns what ``encode_block`` takes, without fields of a newer schema. Raises Invalid for an unknown event."""
    if isinstance(block.event, UnknownEvent):
        raise Invalid(
            f"block #{block.sequence_number} holds an event of a newer schema: variant {block.event.variant}",
            rule="unknown-event",
            hint="a newer version may read it",
        )
    return MetadataBlock(
        system_time=block.system_time,
        prev_block_hash=block.prev_block_hash,
        sequence_number=block.sequence_number,
        event=block.event,
    )


def _block(
    raw: bytes,
    version: int,
    content: MetadataBlock | _Envelope,
    event: MetadataEvent | UnknownEvent,
    beyond: tuple[str, ...] = (),
) -> Block:
    return Block(
        raw=raw,
        hash=Multihash.sha3_256(raw),
        version=version,
        system_time=content.system_time,
        prev_block_hash=content.prev_block_hash,
        sequence_number=content.sequence_number,
        event=event,
        unknown_fields=beyond,
    )


def _check_size(raw: bytes) -> None:
    if len(raw) > MAX_BLOCK:
        raise Invalid(f"a block of {len(raw)} bytes", rule="block-size", hint=f"at most {MAX_BLOCK} bytes")


def _alignment(version: int) -> int:
    if alignment := _TIME_ALIGNMENT.get(version):
        return alignment
    known = " and ".join(str(each) for each in _TIME_ALIGNMENT)
    word = "obsolete" if version == 1 else "unsupported"
    raise Invalid(f"{word} manifest version {version}", rule="manifest-version", hint=f"versions {known} are read")
