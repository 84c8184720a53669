"""Runs yamux under py-libp2p: drives one ``p2p.yamux.Session`` over one encrypted socket, with trio.

Three tasks per connection: a reader, a writer and a clock. The writer sends, a batch at a time, so a cancelled user of
a stream cannot tear a frame. A small message that finds the writer idle is put into the socket at once, without
waiting; the part that the socket does not take is left to the writer. Made by ``YamuxUpgrade`` after the noise
handshake, ends with the socket; no fault of one connection leaves ``start``. Replaces ``libp2p.stream_muxer.yamux``,
which pushes 64 KiB at a time, lets peers exceed their window, gives up on slow readers after 5 s and waits forever for
the 257th stream.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import trio
from libp2p.abc import ConnectionType, IMuxedConn, IMuxedStream
from libp2p.stream_muxer.exceptions import (
    MuxedConnUnavailable,
    MuxedStreamClosed,
    MuxedStreamEOF,
    MuxedStreamError,
    MuxedStreamReset,
)

from p2p.budget.work import STREAM, YAMUX_FRAME, Party, WorkBudget
from p2p.errors import Misbehaviour, PeerFault, StreamBroken
from p2p.host.limits import UnreadBudget
from p2p.host.noise import NoiseStream, Scratch, Unsealer, take_over
from p2p.ip import Ip
from p2p.pace import LineTraffic, Traffic
from p2p.ports import PeerId
from p2p.yamux.frames import GoAwayCode, YamuxLimits
from p2p.yamux.session import StreamLimit, YamuxSession
from p2p.yamux.stream import Readable, ResetReason, StreamOpened, WasReset

log = logging.getLogger(__name__)


FRAMES = 1024
"""Frames that are read at once, 2 ms of work;
then other tasks have their turn, and the sender waits until it has paid."""
BATCH = 256 * 1024
"""Bytes encrypted and sent at once; a small message on another stream waits for no more than this."""
SMALL = 4 * 1024
"""Bytes of a write that is sent without the writer, if that is idle; saves two turns of the event loop."""
SEND_TIMEOUT = 60.0
"""Seconds for one batch to enter the socket; a connection slower than 4 KiB/s counts as dead."""
PROOF = 2.0
"""Seconds in which a connection must prove that it is alive after its peer made another: the peer may have moved."""
FAREWELL = 1.0
"""Seconds to send a go-away before the socket is closed."""
OPEN_TIMEOUT = 10.0
"""Seconds to wait until one of ``max_outbound`` streams ends."""


def _nothing() -> None:
    """Does nothing; the default callback at the end of a connection."""


class MuxedStream(IMuxedStream):  # type: ignore[misc]
    """A stream as py-libp2p expects it: its end and resets are py-libp2p's exceptions."""

    def __init__(self, conn: YamuxConn, stream_id: int) -> None:
        self.muxed_conn = self.conn = conn
        self.stream_id = stream_id
        self.reset_reason: ResetReason | None = None
        self.readers = trio.lowlevel.ParkingLot()
        self.writers = trio.lowlevel.ParkingLot()
        self._sending = trio.Lock()
        self._torn = False
        self._finished = False
        self._done = False

    async def read(self, n: int | None = None) -> bytes:
        """Reads 1 to ``n`` bytes; without ``n`` up to 64 KiB, never until the end, which may never come."""
        await trio.lowlevel.checkpoint_if_cancelled()
        # py-libp2p's read without a number goes on until the end: measured at 4 MiB/s and 200 s of processor time for a
        # GiB.
        size = n if n is not None and n >= 0 else 65_536
        session = self.conn.session
        has_waited = False
        while size:
            data = session.read(self.stream_id, size)
            if data:
                self.conn.kick()
                if not has_waited:
                    await trio.lowlevel.cancel_shielded_checkpoint()
                return data
            if self.reset_reason is not None or self._done:
                raise MuxedStreamReset(self.why())
            if session.at_end(self.stream_id):
                await trio.lowlevel.cancel_shielded_checkpoint()
                raise MuxedStreamEOF("the peer ended the stream")
            if self.conn.fault is not None:
                raise MuxedStreamReset(self.why())
            await self.readers.park()
            has_waited = True
        await trio.lowlevel.cancel_shielded_checkpoint()
        return b""

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Writes data; returns when it is on its way.
        A cancelled write may have sent a part; the stream will end in RST."""
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            self._sending.acquire_nowait()
        except trio.WouldBlock:
            await self._sending.acquire()
        try:
            await self._write(data)
        finally:
            self._sending.release()

    async def _write(self, data: bytes | bytearray | memoryview) -> None:
        self._check_writable()
        is_next = len(data) <= SMALL and self.conn.is_idle
        if data:
            self.conn.session.write(self.stream_id, memoryview(data).cast("B"), trio.current_time())
        if not data or (is_next and self.conn.send_now(self.stream_id)):
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        self.conn.kick()
        sent = False
        try:
            if self.conn.fault is None:
                await self.writers.park()
            sent = True
        finally:
            if not sent:
                # A part may be on its way, and a clean end after it would pass for all
                # (test_a_cancelled_send_tears_no_frame_and_is_never_a_clean_end).
                self._torn = True
                self.conn.session.withdraw(self.stream_id)
        if self.reset_reason is not None or self.conn.fault is not None:
            raise MuxedStreamReset(self.why())

    def _check_writable(self) -> None:
        if self._finished or self._done:
            raise MuxedStreamClosed("the stream is closed for writing")
        if self.reset_reason is not None or self.conn.fault is not None:
            raise MuxedStreamReset(self.why())

    def why(self) -> str:
        if self.reset_reason is not None:
            return self.reset_reason.value
        return str(self.conn.fault or "closed by this node")

    async def close_write(self) -> None:
        if self._torn:
            await self.reset()
        elif not self._finished:
            self._finished = True
            self.conn.session.finish(self.stream_id)
            self.conn.kick()

    async def close(self) -> None:
        """Closes the stream: data written before is still sent, data that arrives is dropped."""
        if self._torn or self.reset_reason is not None:
            await self.reset()
        elif not self._done:
            self._finished = True
            self.conn.session.release(self.stream_id, trio.current_time())
            self._retire()

    async def reset(self) -> None:
        if not self._done:
            self.conn.session.reset(self.stream_id)
            self._retire()

    def _retire(self) -> None:
        self._done = True
        self.conn.forget(self)
        self.wake()

    def wake(self) -> None:
        self.readers.unpark_all()
        self.writers.unpark_all()

    @property
    def is_closed(self) -> bool:
        return self._done or self.reset_reason is not None or self.conn.fault is not None

    def set_deadline(self, ttl: int) -> bool:
        raise NotImplementedError("use a trio cancel scope")

    def get_remote_address(self) -> tuple[str, int] | None:
        return self.conn.get_remote_address()

    async def __aenter__(self) -> MuxedStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Shared:
    def __init__(self, unread: UnreadBudget, work: WorkBudget, traffic: Traffic | None = None) -> None:
        self.unread = unread
        self.work = work
        self.traffic = traffic or Traffic()
        self.scratch = Scratch()


class YamuxConn(IMuxedConn):  # type: ignore[misc]
    """One connection. ``fault`` is the reason why it ended, ``None`` before."""

    def __init__(self, secured_conn: Any, peer_id: Any, limits: YamuxLimits, shared: Shared) -> None:
        self._budget = shared.unread
        self._work = shared.work
        self.secured_conn = secured_conn
        self.peer_id = peer_id
        remote = self.get_remote_address()
        self.party = Party(id(self), PeerId(str(peer_id)), remote[0] if remote else "")
        self._initiator: bool = secured_conn.is_initiator
        self.session = YamuxSession(initiator=self._initiator, limits=limits, now=trio.current_time())
        socket, out, into, self._early = take_over(secured_conn)
        # The bytes of a circuit are counted once, by the connection with its relay.
        is_relayed = secured_conn.get_connection_type() is ConnectionType.RELAYED
        self.traffic = LineTraffic(Traffic() if is_relayed else shared.traffic)
        self._line = NoiseStream(socket, out, Unsealer(into, shared.scratch), self.traffic)
        self._streams: dict[int, MuxedStream] = {}
        self._arrivals = trio.lowlevel.ParkingLot()
        self._slots = trio.lowlevel.ParkingLot()
        self._writer = trio.lowlevel.ParkingLot()
        self._reader = trio.lowlevel.ParkingLot()
        self._ended = trio.Event()
        self.fault: PeerFault | None = None
        self.is_replaced = False
        """Whether it ended because its peer made another and was silent on this one: what was sent here may be lost."""
        self.on_end: Callable[[], None] = _nothing
        self.event_started = trio.Event()
        self.event_closed = trio.Event()

    @property
    def local_ip(self) -> Ip | None:
        """The address of this machine that the connection uses; ``None`` for a circuit, or after it ended."""
        return self._line.local_ip

    # --- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Runs the connection until it ends; its faults end it and go no further."""
        self._budget.join(self)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._guard, self._read_all)
                nursery.start_soon(self._guard, self._write_all)
                nursery.start_soon(self._guard, self._watch_clock)
                self.event_started.set()
                await self._ended.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._budget.leave(self)
            self.event_started.set()
            self.end(StreamBroken(str(self.peer_id), "the connection was stopped"))
            with trio.CancelScope(shield=True):
                await self._send_go_away()
                await self._line.aclose()
            self.event_closed.set()

    async def _guard(self, task: Any) -> None:
        try:
            await task()
        except Misbehaviour as error:
            self.session.go_away(GoAwayCode.PROTOCOL_ERROR)
            self.end(Misbehaviour(str(self.peer_id), error.message, rule=error.rule, hint=error.hint))
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as error:
            self.end(StreamBroken(str(self.peer_id), f"the connection broke: {error or type(error).__name__}"))
        except Exception as error:
            log.exception("muxer of %s failed", self.peer_id)
            self.end(StreamBroken(str(self.peer_id), f"the connection was closed after a fault of ours: {error!r}"))

    async def prove_alive(self) -> None:
        """Pings the peer, and ends the connection unless something comes from it soon."""
        asked = trio.current_time()
        self.session.ping(asked)
        self.kick()
        await trio.sleep(PROOF)
        if self.session.heard < asked:
            self.is_replaced = self.fault is None
            self.end(StreamBroken(str(self.peer_id), "the peer connected again, and is silent here"))

    def end(self, fault: PeerFault) -> None:
        """Ends the connection, and gives waiting tasks the reason."""
        if self.fault is not None:
            return
        self.fault = fault
        self.on_end()
        log.debug("connection ends: %s", fault)
        self._ended.set()
        for stream in list(self._streams.values()):
            stream.wake()
        for lot in (self._arrivals, self._slots, self._writer, self._reader):
            lot.unpark_all()

    async def _send_go_away(self) -> None:
        with trio.move_on_after(FAREWELL):
            try:
                self._send_batch()
                while self._line.has_unsent:
                    await self._line.wait_for_room()
            except (OSError, trio.ClosedResourceError):
                log.debug("no farewell for %s: the socket is closed", self.peer_id)

    # --- tasks ---------------------------------------------------------------------------------------------------

    async def _read_all(self) -> None:
        if self._early:
            await self._receive(self._early)
        while True:
            # A peer that pings and takes no answers would fill the memory with them.
            while not self.session.wants_input:
                await self._reader.park()
            data = await self._line.receive()
            if not data:
                self.end(StreamBroken(str(self.peer_id), "the peer closed the connection"))
                return
            await self._receive(data)

    async def _receive(self, data: bytes | memoryview) -> None:
        """Processes ``data``, whose buffer is reused once this waits.
        A peer that sends many frames is read as it pays."""
        while data:
            now = trio.current_time()
            came = self.session.receive_frames(data, now, FRAMES)
            for event in came.events:
                self._on_event(event)
            # A frame of twelve bytes costs as much as a long one (test_no_flood_of_muxer_frames_holds_the_loop).
            wait = self._work.charge(self.party, came.frames * YAMUX_FRAME, now)
            # Copied before the wait: the buffer belongs to all connections
            # (test_connections_that_share_a_scratch_do_not_hear_each_other).
            data = bytes(data[came.taken :])
            self._budget.grew(self)
            self.kick()
            if wait or data:
                await trio.sleep(wait)

    @property
    def unread(self) -> int:
        return self.session.buffered

    def shed(self) -> None:
        for event in self.session.shed():
            self._on_event(event)
        self.kick()

    def _on_event(self, event: object) -> None:
        if isinstance(event, Readable):
            stream = self._streams.get(event.stream)
            if stream is not None:
                stream.readers.unpark_all()
        elif isinstance(event, StreamOpened):
            self._arrivals.unpark()
        elif isinstance(event, WasReset):
            stream = self._streams.get(event.stream)
            if stream is not None:
                stream.reset_reason = event.reason
                stream.wake()

    def kick(self) -> None:
        if self._writer and (self._line.has_unsent or self.session.has_outgoing):
            self._writer.unpark()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being sent or waits to be sent."""
        return bool(self._writer) and not self._line.has_unsent and not self.session.has_outgoing

    def send_now(self, stream_id: int) -> bool:
        """Encrypts and sends as much as the socket takes on an idle connection, without waiting.

        Returns whether all that ``stream_id`` wrote was taken; it is not while the peer grants no credit.
        """
        try:
            drained = self._send_batch()
        except OSError as error:
            self.end(StreamBroken(str(self.peer_id), f"the connection broke: {error}"))
            return False
        self.kick()
        return stream_id in drained

    def _send_batch(self) -> list[int]:
        """Sends as much as the socket takes; returns the streams whose bytes are all sent."""
        out = self.session.outgoing(BATCH, trio.current_time())
        self._line.send_now(out.messages)
        return out.drained

    async def _write_all(self) -> None:
        while True:
            while not (self._line.has_unsent or self.session.has_outgoing):
                await self._writer.park()
            if self._line.has_unsent:
                with trio.move_on_after(SEND_TIMEOUT) as patience:
                    await self._line.wait_for_room()
                if patience.cancelled_caught:
                    self.end(StreamBroken(str(self.peer_id), f"the peer took nothing for {SEND_TIMEOUT:g} s"))
                    return
            else:
                await trio.lowlevel.checkpoint()
            for stream_id in self._send_batch():
                if stream_id in self._streams:
                    self._streams[stream_id].writers.unpark_all()
            self._slots.unpark_all()
            if self.session.wants_input:
                self._reader.unpark_all()

    async def _watch_clock(self) -> None:
        limits = self.session.limits
        tick = min(limits.stall_timeout, limits.linger_timeout, limits.ping_interval, limits.ping_timeout) / 4
        while True:
            await trio.sleep(tick)
            now = trio.current_time()
            if self.session.next_due() <= now:
                for event in self.session.expire(now):
                    self._on_event(event)
                self.kick()

    # --- interface of py-libp2p ----------------------------------------------------------------------------------

    async def open_stream(self) -> MuxedStream:
        with trio.move_on_after(OPEN_TIMEOUT):
            while self.fault is None:
                try:
                    stream = MuxedStream(self, self.session.open())
                except StreamLimit:
                    await self._slots.park()
                    continue
                self._streams[stream.stream_id] = stream
                self.kick()
                await trio.lowlevel.checkpoint()
                return stream
        raise MuxedStreamError(
            str(
                self.fault
                or f"{self.session.limits.max_outbound} streams are open, none came free in {OPEN_TIMEOUT:g} s"
            )
        )

    async def accept_stream(self) -> MuxedStream:
        while self.fault is None:
            stream_id = self.session.accept()
            if stream_id is not None:
                stream = self._streams[stream_id] = MuxedStream(self, stream_id)
                # Before the negotiation: streams can be opened and reset without end
                # (test_no_flood_of_muxer_frames_holds_the_loop).
                wait = self._work.charge(self.party, STREAM, trio.current_time())
                if wait:
                    await trio.sleep(wait)
                return stream
            await self._arrivals.park()
        raise MuxedConnUnavailable(str(self.fault))

    def forget(self, stream: MuxedStream) -> None:
        self._streams.pop(stream.stream_id, None)
        self._slots.unpark_all()
        self.kick()

    def dismiss(self) -> None:
        """Ends the connection by a decision of this node; the socket is closed a moment later, after a go-away."""
        if self.fault is None:
            self.session.go_away(GoAwayCode.NORMAL)
            self.end(StreamBroken(str(self.peer_id), "closed by this node"))

    async def close(self) -> None:
        """Sends a go-away and closes the socket; idempotent."""
        self.dismiss()
        if self.event_started.is_set():
            await self.event_closed.wait()
        else:
            # `start` never ran, and nobody else closes the socket.
            await trio.aclose_forcefully(self._line)
            self.event_closed.set()

    @property
    def is_initiator(self) -> bool:
        return self._initiator

    @property
    def is_closed(self) -> bool:
        return self.fault is not None

    @property
    def is_established(self) -> bool:
        return self.event_started.is_set() and self.fault is None

    def get_transport_addresses(self) -> Any:
        return self.secured_conn.get_transport_addresses()

    def get_connection_type(self) -> Any:
        return self.secured_conn.get_connection_type()

    def get_remote_address(self) -> tuple[str, int] | None:
        address: tuple[str, int] | None = self.secured_conn.get_remote_address()
        return address
