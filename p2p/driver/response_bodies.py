"""Makes the body of an answer to a request, by asking the ``Library``. Runs in worker threads.

Parts of objects are read into buffers of answers that were sent: to read into fresh memory takes three times as long.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Final, TypeAlias

import structlog

from chain.errors import Environment, Fault, NotFound, Refused
from p2p.machines.serving import Request
from p2p.ports import Library
from p2p.wire.chains import BlockRange, Blocks, encode_blocks, fit
from p2p.wire.frames import PREFIX, frame, prefix
from p2p.wire.limits import MAX_OBJECT_READ, MAX_PACK_BYTES, MAX_PACKED
from p2p.wire.objects import BYTES_HEAD, ObjectRange, bytes_head
from p2p.wire.packs import ObjectPack, ObjectsAsk, encode_pack
from p2p.wire.refusal import Reason, Refusal, encode_refusal

_BEFORE: Final = PREFIX + BYTES_HEAD
ROOM: Final = _BEFORE + MAX_OBJECT_READ
"""Bytes of the largest part of an object, framed."""
LEAST_READ: Final = 16 << 10
"""Bytes of a chain that are read for however few blocks."""
PER_BLOCK: Final = 4 << 10
"""Bytes that are read for each block that is asked for: who asks for one does not make us read a thousand."""
_LOG = structlog.get_logger("p2p.driver")


Spare: TypeAlias = deque[bytearray]
"""Buffers of ``ROOM`` bytes that nobody uses."""


def answer(library: Library, request: Request, spare: Spare) -> bytes | memoryview:
    """The frame of the answer, or of a refusal: a fault of ours is logged here and only its kind is told.

    A buffer of ``spare`` may be what the answer lies in: whoever has sent it may put it back.
    """
    try:
        if isinstance(request, BlockRange):
            return frame(_blocks(library, request))
        if isinstance(request, ObjectsAsk):
            return frame(_pack(library, request))
        return _bytes(library, request, spare)
    except NotFound:
        return frame(_refused(request, Reason.UNKNOWN))
    except Refused as refused:
        return frame(_refused(request, Reason.NOT_SERVED, refused.message))
    except Fault as fault:
        _LOG.warning("cannot read what a peer asks for", fault=str(fault), rule=fault.rule, hint=fault.hint)
        return frame(_refused(request, Reason.BROKEN))


def _refused(request: Request, reason: Reason, text: str = "") -> bytes:
    return encode_refusal(Refusal(request.request, reason, text))


def _blocks(library: Library, ask: BlockRange) -> bytes:
    size = library.size(ask.dataset)
    if size == 0:
        return _refused(ask, Reason.UNKNOWN)
    blocks: tuple[bytes, ...] = ()
    if ask.start < size and ask.max_bytes and ask.max_blocks:
        wanted = min(ask.max_bytes, max(LEAST_READ, ask.max_blocks * PER_BLOCK))
        blocks = fit(library.blocks(ask.dataset, ask.start, wanted), ask.max_blocks, ask.max_bytes)
        size = max(size, ask.start + len(blocks))
    return encode_blocks(Blocks(request=ask.request, size=size, start=ask.start, blocks=blocks))


def _bytes(library: Library, ask: ObjectRange, spare: Spare) -> memoryview:
    """Read where it goes to the wire from: a copy costs as much as reading."""
    whole = memoryview(_buffer(_BEFORE + ask.length, spare))[: _BEFORE + ask.length]
    size, count = library.object_part(ask.name, ask.offset, whole[_BEFORE:])
    due = max(0, min(ask.length, size - ask.offset))
    if count != due:
        raise Environment(f"object {ask.name.short} has {count} bytes where {due} are due", rule="object-cut")
    head = bytes_head(ask.request, size, ask.offset)
    whole[:_BEFORE] = prefix(len(head) + count) + head
    return whole[: _BEFORE + count]


def _buffer(size: int, spare: Spare) -> bytearray:
    if size < ROOM:
        return bytearray(size)
    with suppress(IndexError):
        return spare.pop()
    return bytearray(ROOM)


def _pack(library: Library, ask: ObjectsAsk) -> bytes:
    given: list[bytes] = []
    room = MAX_PACK_BYTES
    for data in library.small_objects(ask.names, MAX_PACKED):
        room -= len(data)
        if room < 0:
            break
        given.append(data)
    if not given:
        return _refused(ask, Reason.UNKNOWN)
    return encode_pack(ObjectPack(request=ask.request, objects=tuple(given)))
