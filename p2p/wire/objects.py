"""Encodes and decodes the messages of ``/odf/1/object``: ranges of an object's bytes, and many small objects at once.

Bodies of frames, numbers in network order::

    read    01  u32 request  u64 offset  u32 length  multihash
    bytes   81  u32 request  u64 size  u64 offset  data
    some    02  u32 request  u8 count  count x 34 multihash
    pack    82  u32 request  u8 count  count x u32 length  the objects, end to end
    refusal 7f  u32 request  u8 reason  text

``size`` is the size of the whole object; a request with ``length = 0`` asks for it alone. An answer contains the whole
part of the range that lies within the object. A pack contains the requested objects in order, up to the first that is
not served, has more than ``MAX_PACKED`` bytes or does not fit; if that is the very first, the answer is a refusal. The
code that stores the bytes checks their hashes, not this module.
"""

from __future__ import annotations

import struct
from itertools import accumulate, pairwise
from typing import Final, TypeAlias

import msgspec

from chain.errors import Invalid
from chain.multihash import Multihash
from chain.wording import plural
from p2p.wire import refusal
from p2p.wire.limits import MAX_OBJECT_READ, MAX_PACK, MAX_PACK_BYTES, MAX_PACKED
from p2p.wire.refusal import Refusal

PROTOCOL: Final = "/odf/1/object"
_READ: Final = struct.Struct(">BIQI")
_BYTES: Final = struct.Struct(">BIQQ")
READ_KIND: Final = 0x01
BYTES_KIND: Final = 0x81
BYTES_HEAD: Final = _BYTES.size
MAX_SIZE: Final = 1 << 48
"""Bytes of an object: 256 TiB, so that every tool that reads offsets represents them exactly."""
NAME_SIZE: Final = 34
SOME_KIND: Final = 0x02
PACK_KIND: Final = 0x82
_HEAD: Final = struct.Struct(">BIB")


class ObjectRange(msgspec.Struct, frozen=True, kw_only=True):
    """A request for ``length`` bytes of an object from ``offset`` on."""

    request: int
    name: Multihash
    offset: int
    length: int = MAX_OBJECT_READ


class ObjectBytes(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: bytes ``offset``, ``offset + 1``, … of an object of ``size`` bytes."""

    request: int
    size: int
    offset: int
    data: bytes | memoryview


class ObjectsAsk(msgspec.Struct, frozen=True, kw_only=True):
    """A request for several small objects, as many as fit into an answer."""

    request: int
    names: tuple[Multihash, ...]


class ObjectPack(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: the first of the requested objects, whole."""

    request: int
    objects: tuple[bytes, ...]


ObjectRequest: TypeAlias = ObjectRange | ObjectsAsk
ObjectReply: TypeAlias = ObjectBytes | ObjectPack | Refusal


def encode_read(ask: ObjectRange) -> bytes:
    return _READ.pack(READ_KIND, ask.request, ask.offset, ask.length) + ask.name


def decode_request(body: bytes) -> ObjectRequest:
    """Decodes a request of either kind. Raises Invalid."""
    return decode_some(body) if body[:1] == bytes([SOME_KIND]) else decode_read(body)


def decode_read(body: bytes) -> ObjectRange:
    """Decodes a request for a range of an object. Raises Invalid."""
    if len(body) < _READ.size or body[0] != READ_KIND:
        raise Invalid(f"not a read request: {body[:8].hex()}…", rule="object-request")
    _, request, offset, length = _READ.unpack_from(body)
    if length > MAX_OBJECT_READ or offset > MAX_SIZE:
        raise Invalid(
            f"a request for {length} bytes at {offset}",
            rule="object-range",
            hint=f"at most {MAX_OBJECT_READ} bytes at a time",
        )
    name = Multihash.from_bytes(body[_READ.size :])
    return ObjectRange(request=request, name=name, offset=offset, length=length)


def bytes_head(request: int, size: int, offset: int) -> bytes:
    """Encodes the head of an answer, ``BYTES_HEAD`` bytes; the data follow it."""
    return _BYTES.pack(BYTES_KIND, request, size, offset)


def encode_bytes(answer: ObjectBytes) -> bytes:
    return bytes_head(answer.request, answer.size, answer.offset) + answer.data


def decode_object_reply(body: bytes) -> ObjectReply:
    """Decodes an answer or a refusal. Raises Invalid."""
    if body[:1] == bytes([refusal.KIND]):
        return refusal.decode_refusal(body)
    if body[:1] == bytes([PACK_KIND]):
        return decode_pack(body)
    if not _BYTES.size <= len(body) <= _BYTES.size + MAX_OBJECT_READ or body[0] != BYTES_KIND:
        raise Invalid(f"not an answer of the object protocol: {body[:8].hex()}…", rule="object-reply")
    _, request, size, offset = _BYTES.unpack_from(body)
    length = len(body) - _BYTES.size
    if size > MAX_SIZE or (length and offset + length > size):
        raise Invalid(f"{length} bytes at {offset} of an object of {size}", rule="object-reply")
    return ObjectBytes(request=request, size=size, offset=offset, data=memoryview(body)[_BYTES.size :])


def check_answer(ask: ObjectRange, answer: ObjectBytes) -> None:
    """Raises Invalid unless ``answer`` is what ``ask`` requests: all of the range within the object."""
    due = max(0, min(ask.length, answer.size - ask.offset))
    if answer.offset != ask.offset or len(answer.data) != due:
        raise Invalid(
            f"asked for {due} bytes at {ask.offset}, got {len(answer.data)} at {answer.offset}", rule="object-range"
        )


def encode_some(ask: ObjectsAsk) -> bytes:
    return _HEAD.pack(SOME_KIND, ask.request, len(ask.names)) + b"".join(ask.names)


def decode_some(body: bytes) -> ObjectsAsk:
    """Decodes a request for several objects. Raises Invalid."""
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
    """Decodes an answer of several objects. Raises Invalid."""
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
