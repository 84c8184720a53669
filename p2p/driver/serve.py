"""Serves the chain and object protocols: reads requests, and writes answers in the order of ``RequestQueue``.

Made with the driver. Each inbound stream is one task that reads requests; each turn is one task that reads from disk in
a worker thread and writes. A peer costs at most two streams of each protocol, on each of them 64 small requests that
wait and two answers in memory; and two more streams that wait unread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Final, TypeAlias

import structlog
import trio

from chain.errors import Environment, Fault, Invalid, NotFound, Refused
from p2p.budget.work import RANGE, SMALL_OBJECT
from p2p.driver.framing import FramedStream
from p2p.driver.inbound import StreamSlots, contain
from p2p.driver.peer_penalties import PeerPenalties
from p2p.driver.ports import HostPort, StreamHandler, StreamPort
from p2p.errors import Misbehaviour
from p2p.machines.request_queue import (
    READERS,
    AnswerWritten,
    Asked,
    Gone,
    Input,
    ReadDone,
    ReadRequest,
    RefuseRequest,
    Request,
    RequestQueue,
    RequestStream,
)
from p2p.pace import Pace
from p2p.peers.book import FLOOD, GARBAGE
from p2p.ports import Library, PeerId
from p2p.wire import chains, objects, refusal
from p2p.wire.chains import BlockRange, Blocks, encode_blocks, fit
from p2p.wire.frames import PREFIX, frame, prefix
from p2p.wire.limits import MAX_OBJECT_READ, MAX_PACK_BYTES, MAX_PACKED, MAX_REQUEST
from p2p.wire.objects import BYTES_HEAD, ObjectPack, ObjectRange, ObjectsAsk, bytes_head, encode_pack
from p2p.wire.refusal import PeerRefusal, RefusalReason, encode_refusal

MAX_STREAMS: Final = 2
"""Inbound streams of one peer and protocol:
one in use, and one that replaces it before the old one is known to be dead."""
MAX_WAIT: Final = 10.0
"""Seconds that an answer may wait for the upload cap; askers wait for at least 15 s."""
Decode: TypeAlias = Callable[[bytes], Request]
_PROTOCOLS: Final[Mapping[str, Decode]] = MappingProxyType(
    {chains.PROTOCOL: chains.decode_range, objects.PROTOCOL: objects.decode_request}
)
_BEFORE: Final = PREFIX + BYTES_HEAD
ROOM: Final = _BEFORE + MAX_OBJECT_READ
"""Bytes of the largest framed answer with a part of an object."""
LEAST_READ: Final = 16 << 10
"""Bytes of a chain that are read even for very few blocks."""
PER_BLOCK: Final = 4 << 10
"""Bytes that are read for each requested block, so that a request for one block does not read a thousand."""
_LOG = structlog.get_logger("p2p.driver")
Spare: TypeAlias = deque[bytearray]
"""Free buffers of ``ROOM`` bytes for reuse."""


class RequestServer:
    def __init__(self, host: HostPort, library: Library, standing: PeerPenalties, pace: Pace | None = None) -> None:
        self._host = host
        self._library = library
        self._standing = standing
        self._pace = pace or Pace(0)
        self._serving = RequestQueue()
        self._spare: Spare = deque(maxlen=READERS)
        self._streams: dict[RequestStream, FramedStream] = {}
        self._count = 0
        self._nursery: trio.Nursery | None = None
        self._answers = 0
        self._idle = trio.Event()

    def start(self, nursery: trio.Nursery) -> None:
        """Starts serving; answers run in ``nursery``."""
        self._nursery = nursery

    def stop(self) -> None:
        """Stops taking new streams and starting new answers."""
        self._nursery = None

    @property
    def answering(self) -> int:
        return self._answers

    async def drain(self) -> None:
        """Starts no new answers, and waits for those under way."""
        self.stop()
        if self._answers:
            self._idle = trio.Event()
            await self._idle.wait()

    def handlers(self) -> dict[str, StreamHandler]:
        return {
            protocol: partial(self._accept, StreamSlots(self._standing, MAX_STREAMS), decode)
            for protocol, decode in _PROTOCOLS.items()
        }

    async def _accept(self, places: StreamSlots, decode: Decode, stream: StreamPort, peer: PeerId) -> None:
        framed = self._standing.frame(stream, peer, MAX_REQUEST)
        await places.attend(framed, self._serve, framed, decode)

    async def _serve(self, stream: FramedStream, decode: Decode) -> None:
        if self._nursery is None:
            return
        self._count += 1
        asker = RequestStream(stream.peer, self._count, self._host.share_of(stream.peer))
        self._streams[asker] = stream
        try:
            await self._listen(asker, stream, decode)
        finally:
            del self._streams[asker]
            self._feed(Gone(asker))

    async def _listen(self, asker: RequestStream, stream: FramedStream, decode: Decode) -> None:
        while not self._standing.is_shut_out(asker.peer):
            try:
                body = await stream.read()
                if body is None:
                    return
                request = decode(body)
            except Invalid as error:
                self._standing.penalise(asker.peer, error.message, GARBAGE)
                await stream.write(refusal.encode_refusal(PeerRefusal(0, RefusalReason.MALFORMED, error.message)))
                return
            except Misbehaviour as fault:
                self._standing.blame(fault)
                raise
            # Short questions can be expensive (test_each_question_is_paid_for_before_anything_is_read).
            if (wait := self._host.charge(asker.peer, _cost(request))) > 0:
                await trio.sleep(wait)
            for refused in self._feed(Asked(asker, request)):
                self._standing.penalise(asker.peer, refused.text, FLOOD)
                await stream.write(refusal.encode_refusal(refused))

    def _feed(self, event: Input) -> list[PeerRefusal]:
        """Passes an event to the machine and starts the answers that follow;
        returns refusals, which the caller sends."""
        refusals = []
        for effect in self._serving.handle(event):
            match effect:
                case ReadRequest(asker, request):
                    if self._nursery is not None:
                        self._nursery.start_soon(contain, self._answer, asker, request)
                case RefuseRequest(_, refused):
                    refusals.append(refused)
        return refusals

    async def _answer(self, asker: RequestStream, request: Request) -> None:
        """Answers one request: reads it, keeps to the upload cap and sends it. The machine is told however it ends."""
        size = 0
        self._answers += 1
        try:
            try:
                is_late = self._pace.due(trio.current_time()) - trio.current_time() > MAX_WAIT
                if is_late:
                    body: bytes | memoryview = frame(_busy(request))
                else:
                    body = await trio.to_thread.run_sync(answer, self._library.to(asker.peer), request, self._spare)
                size = len(body)
            finally:
                self._feed(ReadDone(asker, size))
            if stream := self._streams.get(asker):
                if not is_late and (due := self._pace.take(size, trio.current_time())) > trio.current_time():
                    await trio.sleep_until(due)
                await stream.send(body)
                self._put_back(body)
        finally:
            self._answers -= 1
            if not self._answers:
                self._idle.set()
            self._feed(AnswerWritten(asker))

    def _put_back(self, sent: bytes | memoryview) -> None:
        """Returns the buffer of a sent answer for reuse."""
        if isinstance(sent, memoryview) and isinstance(sent.obj, bytearray) and len(sent.obj) == ROOM:
            self._spare.append(sent.obj)


def _cost(request: Request) -> float:
    """Returns the cost of a request, which its peer pays before the request waits for its turn."""
    return RANGE + SMALL_OBJECT * len(request.names) if isinstance(request, ObjectsAsk) else RANGE


def _busy(request: Request) -> bytes:
    """Makes the refusal that is sent at once if an answer would take long: the asker turns to others, or asks again."""
    return refusal.encode_refusal(PeerRefusal(request.request, RefusalReason.BUSY, "its upload is used up"))


def answer(library: Library, request: Request, spare: Spare) -> bytes | memoryview:
    """Returns the frame of the answer or refusal. A fault of ours is logged, and only its kind is sent.

    Called in worker threads. The answer may lie in a buffer of ``spare``, which is put back after sending: reading into
    fresh memory takes three times as long.
    """
    try:
        if isinstance(request, BlockRange):
            return frame(_blocks(library, request))
        if isinstance(request, ObjectsAsk):
            return frame(_pack(library, request))
        return _bytes(library, request, spare)
    except NotFound:
        return frame(_refuse(request, RefusalReason.UNKNOWN))
    except Refused as refused:
        return frame(_refuse(request, RefusalReason.NOT_SERVED, refused.message))
    except Fault as fault:
        _LOG.warning("cannot read what a peer asks for", fault=str(fault), rule=fault.rule, hint=fault.hint)
        return frame(_refuse(request, RefusalReason.BROKEN))


def _refuse(request: Request, reason: RefusalReason, text: str = "") -> bytes:
    return encode_refusal(PeerRefusal(request.request, reason, text))


def _blocks(library: Library, ask: BlockRange) -> bytes:
    size = library.size(ask.dataset)
    if size == 0:
        return _refuse(ask, RefusalReason.UNKNOWN)
    blocks: tuple[bytes, ...] = ()
    if ask.start < size and ask.max_bytes and ask.max_blocks:
        # Else a question for one block would read a MiB (test_a_question_for_one_block_reads_no_thousand).
        wanted = min(ask.max_bytes, max(LEAST_READ, ask.max_blocks * PER_BLOCK))
        blocks = fit(library.blocks(ask.dataset, ask.start, wanted), ask.max_blocks, ask.max_bytes)
        # The chain may have grown between the two reads, and an answer beyond its own size is a violation.
        size = max(size, ask.start + len(blocks))
    return encode_blocks(Blocks(request=ask.request, size=size, start=ask.start, blocks=blocks))


def _bytes(library: Library, ask: ObjectRange, spare: Spare) -> memoryview:
    """Reads a part of an object directly into the frame that is sent: a copy would cost as much as reading."""
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
        return _refuse(ask, RefusalReason.UNKNOWN)
    return encode_pack(ObjectPack(request=ask.request, objects=tuple(given)))
