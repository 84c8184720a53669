"""Encodes and decodes the messages of ``/odf/1/object`` that fetch many small objects in one answer.

Bodies of frames, numbers in network order::

    some    02  u32 request  u8 count  count x 34 multihash
    pack    82  u32 request  u8 count  count x u32 length  the objects, end to end

An answer brings the objects from the first of those asked for on, in their order, as far as they are served, have
``MAX_PACKED`` bytes at most and fit; one that does not bring even the first is a refusal. Whether bytes hash to their
names is checked by who keeps them, not here.
"""

from __future__ import annotations

import struct
from itertools import accumulate, pairwise
from typing import Final

import msgspec

from chain.errors import Invalid
from chain.multihash import Multihash
from chain.wording import plural
from p2p.wire.limits import MAX_PACK, MAX_PACK_BYTES, MAX_PACKED

NAME_SIZE: Final = 34
SOME_KIND: Final = 0x02
PACK_KIND: Final = 0x82
_HEAD: Final = struct.Struct(">BIB")


class ObjectsAsk(msgspec.Struct, frozen=True, kw_only=True):
    """Please send these objects, which are small, as many as fit."""

    request: int
    names: tuple[Multihash, ...]


class ObjectPack(msgspec.Struct, frozen=True, kw_only=True):
    """The first of the objects that were asked for, whole."""

    request: int
    objects: tuple[bytes, ...]


def encode_some(ask: ObjectsAsk) -> bytes:
    return _HEAD.pack(SOME_KIND, ask.request, len(ask.names)) + b"".join(ask.names)


def decode_some(body: bytes) -> ObjectsAsk:
    """Raises Invalid."""
    _, request, count = _HEAD.unpack_from(body) if len(body) >= _HEAD.size else (0, 0, 0)
    if not 0 < count <= MAX_PACK or len(body) != _HEAD.size + count * NAME_SIZE:
        raise Invalid(
            f"not a request for small objects: {body[:8].hex()}…",
            rule="object-request",
            hint=f"1 to {MAX_PACK} names of {NAME_SIZE} bytes",
        )
    names = (body[at : at + NAME_SIZE] for at in range(_HEAD.size, len(body), NAME_SIZE))
    return ObjectsAsk(request=request, names=tuple(map(Multihash.from_bytes, names)))


def encode_pack(answer: ObjectPack) -> bytes:
    count = len(answer.objects)
    lengths = struct.pack(f">{count}I", *map(len, answer.objects))
    return b"".join([_HEAD.pack(PACK_KIND, answer.request, count), lengths, *answer.objects])


def decode_pack(body: bytes) -> ObjectPack:
    """Raises Invalid."""
    _, request, count = _HEAD.unpack_from(body) if len(body) >= _HEAD.size else (0, 0, 0)
    table_end = _HEAD.size + 4 * count
    if not 0 < count <= MAX_PACK or table_end > len(body):
        raise Invalid(f"not a pack of objects: {body[:8].hex()}…", rule="object-reply")
    lengths = struct.unpack_from(f">{count}I", body, _HEAD.size)
    whole = sum(lengths)
    if table_end + whole != len(body) or max(lengths) > MAX_PACKED or whole > MAX_PACK_BYTES:
        raise Invalid(
            f"a pack of {plural(count, 'object')} with {whole} bytes in {len(body) - table_end}",
            rule="object-reply",
            hint=f"at most {MAX_PACKED} bytes each, {MAX_PACK_BYTES} together, and they fill the frame",
        )
    ends = pairwise(accumulate(lengths, initial=table_end))
    return ObjectPack(request=request, objects=tuple(body[start:end] for start, end in ends))


def check_pack(ask: ObjectsAsk, answer: ObjectPack) -> None:
    """Raises Invalid unless ``answer`` is one that ``ask`` allows."""
    if len(answer.objects) > len(ask.names):
        raise Invalid(f"asked for {plural(len(ask.names), 'object')}, got {len(answer.objects)}", rule="object-range")
