"""Sends many questions to one peer over one long-lived stream, and receives the answers in any order.

An exchange is opened at the first question and ends when the stream breaks or the peer misbehaves; all callers that
wait then get the reason. A caller may stop waiting at any time: its answer is dropped when it comes, and no frame is
cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, Protocol, TypeVar

import trio

from chain.errors import Invalid
from p2p.driver.framing import FramedStream
from p2p.driver.inbound import contain
from p2p.driver.peer_penalties import PeerPenalties
from p2p.driver.ports import HostPort, StreamPort
from p2p.errors import Misbehaviour, PeerFault, PeerUnreachable, StreamBroken, TooSlow
from p2p.peers.directory import AddressFilter
from p2p.ports import PeerId
from p2p.wire.frames import frame
from p2p.wire.limits import MAX_REPLY

MAX_LINKS: Final = 256
"""Exchanges open at once; each may hold one unfinished frame."""


class Numbered(Protocol):
    """An answer with the number of its question."""

    @property
    def request(self) -> int: ...


Reply = TypeVar("Reply", bound=Numbered)
MAX_UNDER_WAY: Final = 48
"""Open questions on one stream: fewer than the other side queues, so that it never has to refuse one."""
OWED: Final = 60.0
"""Seconds without any answer to open questions after which the stream is closed; longer than any caller waits."""
MAX_ABANDONED: Final = 64
"""Questions that callers gave up and that are still unanswered; with more the stream is closed."""


class _Slot(Generic[Reply]):
    def __init__(self) -> None:
        self.done = trio.Event()
        self.reply: Reply | None = None


class PeerExchange(Generic[Reply]):
    """The exchange with one peer: callers use ``ask`` while ``run`` is running."""

    def __init__(self, stream: FramedStream, decode: Callable[[bytes], Reply]) -> None:
        self._stream = stream
        self._decode = decode
        self._slots: dict[int, _Slot[Reply]] = {}
        self._abandoned: set[int] = set()
        self._next = 0
        self._limit = trio.CapacityLimiter(MAX_UNDER_WAY)
        self._out, self._outbox = trio.open_memory_channel[bytes](MAX_UNDER_WAY)
        self._scope = trio.CancelScope()
        self._owed = 0
        self._waiting = trio.CancelScope()
        """Cancelled when an answer is overdue."""
        self.fault: PeerFault | None = None
        """The reason why it ended; ``None`` while it is open."""

    @property
    def arriving(self) -> int:
        """Returns how many bytes of an incomplete answer have arrived."""
        return self._stream.arriving

    async def ask(self, encode: Callable[[int], bytes]) -> Reply:
        """Sends a question and waits for its answer; ``encode`` makes its bytes from a new number. Raises PeerFault."""
        try:
            self._limit.acquire_nowait()
        except trio.WouldBlock:
            await self._limit.acquire()
        try:
            return await self._ask(encode)
        finally:
            self._limit.release()

    async def _ask(self, encode: Callable[[int], bytes]) -> Reply:
        if self.fault is not None:
            raise self._make_fault()
        number, slot = self._next, _Slot[Reply]()
        self._next = (self._next + 1) & 0xFFFF_FFFF
        self._slots[number] = slot
        self._owed += 1
        if self._owed == 1:
            self._waiting.deadline = trio.current_time() + OWED
        try:
            await self._put(encode(number))
            await slot.done.wait()
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            raise self._make_fault() from None
        finally:
            self._leave(number, slot)
        if slot.reply is None:
            raise self._make_fault()
        return slot.reply

    async def _put(self, body: bytes) -> None:
        try:
            self._out.send_nowait(body)
        except trio.WouldBlock:
            await self._out.send(body)

    def _leave(self, number: int, slot: _Slot[Reply]) -> None:
        self._slots.pop(number, None)
        if slot.reply is None and self.fault is None:
            self._abandoned.add(number)
            if len(self._abandoned) > MAX_ABANDONED:
                self._end(StreamBroken(self._stream.peer, f"{MAX_ABANDONED} questions were never answered"))

    def _make_fault(self) -> PeerFault:
        """Makes a new fault of the same kind: one exception raised in many tasks would mix their tracebacks."""
        fault = self.fault or StreamBroken(self._stream.peer, "the stream ended")
        fresh = type(fault).__new__(type(fault))
        fresh.__dict__.update(fault.__dict__)
        fresh.args = fault.args
        return fresh

    async def run(self) -> None:
        """Runs until the stream ends. Raises nothing; ``fault`` then has the reason."""
        fault: PeerFault = StreamBroken(self._stream.peer, "we closed the stream")
        try:
            async with trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                nursery.start_soon(self._write)
                with self._waiting:
                    await self._read()
                if self._waiting.cancelled_caught:
                    text = f"owes answers and gave none in {OWED:.0f} s"
                    raise TooSlow(self._stream.peer, text, rule="owed")
                self._scope.cancel()
            fault = StreamBroken(self._stream.peer, "the peer closed the stream")
        except* PeerFault as group:
            fault = next(one for one in _leaves(group) if isinstance(one, PeerFault))
        finally:
            self._end(fault)
            await self._stream.reset()

    def _end(self, fault: PeerFault) -> None:
        self.fault = self.fault or fault
        self._scope.cancel()
        self._out.close()
        for slot in self._slots.values():
            slot.done.set()

    async def _write(self) -> None:
        """Sends the waiting questions, all in one write: an answer of 4 MiB makes room for four questions at once."""
        async for body in self._outbox:
            frames = [frame(body)]
            with suppress(trio.WouldBlock):
                while True:
                    frames.append(frame(self._outbox.receive_nowait()))
            await self._stream.send(b"".join(frames))

    async def _read(self) -> None:
        while (body := await self._stream.read()) is not None:
            try:
                reply = self._decode(body)
            except Invalid as error:
                raise Misbehaviour(self._stream.peer, error.message, rule=error.rule, hint=error.hint) from error
            slot = self._slots.get(reply.request)
            if slot is not None and slot.reply is None:
                self._settle_one()
                slot.reply = reply
                slot.done.set()
            elif reply.request in self._abandoned:
                self._settle_one()
                self._abandoned.discard(reply.request)
            else:
                # It would be read and parsed for nothing (test_an_answer_nobody_asked_for).
                raise Misbehaviour(self._stream.peer, f"an answer to question {reply.request}, which is none of ours")

    def _settle_one(self) -> None:
        self._owed -= 1
        self._waiting.deadline = trio.current_time() + OWED if self._owed else math.inf


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    return [
        leaf for one in group.exceptions for leaf in (_leaves(one) if isinstance(one, BaseExceptionGroup) else [one])
    ]


class Exchanges(Generic[Reply]):
    """Keeps the outgoing exchanges of one protocol: at most one for each peer, opened at the first question."""

    def __init__(
        self,
        host: HostPort,
        standing: PeerPenalties,
        reach: AddressFilter,
        protocol: str,
        decode: Callable[[bytes], Reply],
    ) -> None:
        self._host = host
        self._standing = standing
        self._reach = reach
        self._protocol = protocol
        self._decode = decode
        self._exchanges: dict[PeerId, PeerExchange[Reply]] = {}
        self._opening: dict[PeerId, trio.Lock] = {}

    async def to(self, peer: PeerId, nursery: trio.Nursery) -> PeerExchange[Reply]:
        """Returns the exchange with ``peer``; opens it to run in ``nursery`` if there is none. Raises PeerFault."""
        if (exchange := self._open_to(peer)) is not None:
            return exchange
        lock = self._opening.setdefault(peer, trio.Lock())
        try:
            async with lock:
                return self._open_to(peer) or await self._open(peer, nursery)
        finally:
            if not lock.statistics().tasks_waiting and not lock.locked():
                self._opening.pop(peer, None)

    def arriving(self, peer: PeerId) -> int:
        """Returns how many bytes of an incomplete answer of ``peer`` have arrived."""
        return exchange.arriving if (exchange := self._open_to(peer)) is not None else 0

    def _open_to(self, peer: PeerId) -> PeerExchange[Reply] | None:
        exchange = self._exchanges.get(peer)
        return exchange if exchange is not None and exchange.fault is None else None

    async def _open(self, peer: PeerId, nursery: trio.Nursery) -> PeerExchange[Reply]:
        if self._standing.is_shut_out(peer):
            raise PeerUnreachable(peer, "it misbehaved and is shut out for a while", rule="peer-score")
        if len(self._exchanges) >= MAX_LINKS:
            raise PeerUnreachable(peer, f"{MAX_LINKS} streams of {self._protocol} are open already", rule="links")
        stream = await self._stream(peer)
        exchange = PeerExchange(self._standing.frame(stream, peer, MAX_REPLY), self._decode)
        self._exchanges[peer] = exchange
        nursery.start_soon(contain, self._run, peer, exchange)
        return exchange

    async def _stream(self, peer: PeerId) -> StreamPort:
        """Opens a stream over the present connection, or dials an address that we know."""
        if peer not in self._host.peers():
            addresses = self._standing.book.get(peer).addresses
            with suppress(PeerFault):
                if addresses:
                    # A name that others told may lead elsewhere by now
                    # (test_a_peer_is_dialled_again_where_it_was_met_and_nowhere_else).
                    allows = self._reach.again(addresses, self._host.addresses())
                    await self._host.connect(*addresses, allows=allows)
        return await self._host.open_stream(peer, self._protocol)

    async def _run(self, peer: PeerId, exchange: PeerExchange[Reply]) -> None:
        try:
            await exchange.run()
        finally:
            if self._exchanges.get(peer) is exchange:
                del self._exchanges[peer]
        fault: PeerFault | None = exchange.fault
        if isinstance(fault, Misbehaviour):
            self._standing.blame(fault)
