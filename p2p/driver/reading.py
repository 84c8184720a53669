"""From a request to the body of its answer, by asking the ``Library``. Runs in worker threads; keeps nothing."""

from __future__ import annotations

import structlog

from chain.errors import Fault, NotFound, Refused
from p2p.machines.serving import Request
from p2p.ports import Library
from p2p.wire.chains import BlockRange, Blocks, encode_blocks, fit
from p2p.wire.limits import MAX_PACK_BYTES, MAX_PACKED
from p2p.wire.objects import ObjectBytes, ObjectRange, encode_bytes
from p2p.wire.packs import ObjectPack, ObjectsAsk, encode_pack
from p2p.wire.refusal import Reason, Refusal, encode_refusal

_LOG = structlog.get_logger("p2p.driver")


def answer(library: Library, request: Request) -> bytes:
    """The encoded answer, or an encoded refusal: a fault of ours is logged here and only its kind is told."""
    try:
        if isinstance(request, BlockRange):
            return _blocks(library, request)
        if isinstance(request, ObjectsAsk):
            return _pack(library, request)
        return _bytes(library, request)
    except NotFound:
        return _refused(request, Reason.UNKNOWN)
    except Refused as refused:
        return _refused(request, Reason.NOT_SERVED, refused.message)
    except Fault as fault:
        _LOG.warning("cannot read what a peer asks for", fault=str(fault), rule=fault.rule, hint=fault.hint)
        return _refused(request, Reason.BROKEN)


def _refused(request: Request, reason: Reason, text: str = "") -> bytes:
    return encode_refusal(Refusal(request.request, reason, text))


def _blocks(library: Library, ask: BlockRange) -> bytes:
    size = library.size(ask.dataset)
    if size == 0:
        return _refused(ask, Reason.UNKNOWN)
    blocks: tuple[bytes, ...] = ()
    if ask.start < size and ask.max_bytes and ask.max_blocks:
        blocks = fit(library.blocks(ask.dataset, ask.start, ask.max_bytes), ask.max_blocks, ask.max_bytes)
        size = max(size, ask.start + len(blocks))
    return encode_blocks(Blocks(request=ask.request, size=size, start=ask.start, blocks=blocks))


def _bytes(library: Library, ask: ObjectRange) -> bytes:
    size = library.object_size(ask.name)
    if size is None:
        return _refused(ask, Reason.UNKNOWN)
    due = max(0, min(ask.length, size - ask.offset))
    data = library.read_object(ask.name, ask.offset, due) if due else b""
    if len(data) != due:
        _LOG.warning("an object is shorter than its size says", object=str(ask.name), due=due, read=len(data))
        return _refused(ask, Reason.BROKEN)
    return encode_bytes(ObjectBytes(request=ask.request, size=size, offset=ask.offset, data=data))


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
