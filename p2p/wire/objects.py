"""Lays out the messages of ``/odf/1/object``: ranges of an object's bytes, and many small objects at once.

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

from typing import Annotated, Final, TypeAlias

import msgspec

from chain.errors import Invalid
from chain.multihash import Multihash
from chain.wording import plural
from p2p.wire.layout import HASH, U32, U64, Blobs, Many, MessageKinds, MessageLayout, Name, RestBytes, u8, u32, u64
from p2p.wire.limits import MAX_OBJECT_READ, MAX_PACK, MAX_PACK_BYTES, MAX_PACKED
from p2p.wire.refusal import REFUSAL, PeerRefusal

PROTOCOL: Final = "/odf/1/object"
MAX_SIZE: Final = 1 << 48
"""Bytes of an object: 256 TiB, so that every tool that reads offsets represents them exactly."""


class ObjectRange(msgspec.Struct, frozen=True, kw_only=True):
    """A request for ``length`` bytes of an object from ``offset`` on."""

    request: U32
    offset: Annotated[int, u64(MAX_SIZE)]
    length: Annotated[int, u32(MAX_OBJECT_READ)] = MAX_OBJECT_READ
    name: Name


class ObjectBytes(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: bytes ``offset``, ``offset + 1``, … of an object of ``size`` bytes."""

    request: U32
    size: Annotated[int, u64(MAX_SIZE)]
    offset: U64
    data: Annotated[bytes | memoryview, RestBytes(MAX_OBJECT_READ, load=memoryview)]  # a MiB is not copied


class ObjectsAsk(msgspec.Struct, frozen=True, kw_only=True):
    """A request for several small objects, as many as fit into an answer."""

    request: U32
    names: Annotated[tuple[Multihash, ...], Many(u8(MAX_PACK, 1), HASH)]


class ObjectPack(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: the first of the requested objects, whole."""

    request: U32
    objects: Annotated[tuple[bytes, ...], Blobs(u8(MAX_PACK, 1), MAX_PACKED, total=MAX_PACK_BYTES)]


ObjectRequest: TypeAlias = ObjectRange | ObjectsAsk
ObjectReply: TypeAlias = ObjectBytes | ObjectPack | PeerRefusal


_READ: Final = MessageLayout("object-request", 0x01, ObjectRange)
_SOME: Final = MessageLayout("object-request", 0x02, ObjectsAsk)
encode_read, encode_some = _READ.encode, _SOME.encode
decode_request = MessageKinds[ObjectRequest](_READ, _SOME).decode


def _beyond_end(answer: ObjectBytes) -> str | None:
    stop = answer.offset + len(answer.data)
    return "bytes beyond the end" if len(answer.data) and stop > answer.size else None


_BYTES: Final = MessageLayout("object-reply", 0x81, ObjectBytes, _beyond_end)
_PACK: Final = MessageLayout("object-reply", 0x82, ObjectPack)
encode_bytes, encode_pack = _BYTES.encode, _PACK.encode
decode_object_reply = MessageKinds[ObjectReply](_BYTES, _PACK, REFUSAL).decode


def bytes_head(request: int, size: int, offset: int) -> bytes:
    """Encodes the head of an answer, ``BYTES_HEAD`` bytes; the data follow it."""
    return encode_bytes(ObjectBytes(request=request, size=size, offset=offset, data=b""))


BYTES_HEAD: Final = len(bytes_head(0, 0, 0))


def check_answer(ask: ObjectRange, answer: ObjectBytes) -> None:
    """Raises Invalid unless ``answer`` is what ``ask`` requests: all of the range within the object."""
    due = max(0, min(ask.length, answer.size - ask.offset))
    if answer.offset != ask.offset or len(answer.data) != due:
        raise Invalid(
            f"asked for {due} bytes at {ask.offset}, got {len(answer.data)} at {answer.offset}", rule="object-range"
        )


def check_pack(ask: ObjectsAsk, answer: ObjectPack) -> None:
    """Raises Invalid unless ``answer`` is one that ``ask`` allows."""
    if len(answer.objects) > len(ask.names):
        raise Invalid(f"asked for {plural(len(ask.names), 'object')}, got {len(answer.objects)}", rule="object-range")
