"""Implements a yamux session: takes received bytes and calls, returns events and messages to send.

Strategy. ``receive`` parses headers in place and passes bodies on as they come, so that only unread stream data is ever
buffered. Answers (RST, ACK, pong) wait in one bounded queue, credit grants in one number per stream, payload in the
writer's own buffer, one per stream. ``outgoing`` cuts frames only when the driver can send: answers first, then one
frame from each stream in turn. So a frame is either whole or not begun, whatever is cancelled.

Made when a connection is secured, ends with it. It never reads a clock (``now`` is seconds of any monotonic clock) and
never sends. Illegal calls of ours are assertions; rules broken by the peer raise ``Misbehaviour`` and end the session.
"""

from __future__ import annotations

from collections import deque

from p2p.yamux import frames
from p2p.yamux.frames import (
    ACK,
    DATA,
    FIN,
    HEADER_SIZE,
    INITIAL_WINDOW,
    PING,
    RST,
    SYN,
    WINDOW_UPDATE,
    Packing,
    YamuxHeader,
    YamuxLimits,
)
from p2p.yamux.stream import (
    Event,
    GoneAway,
    Outgoing,
    Pong,
    Readable,
    Received,
    ResetReason,
    StreamOpened,
    StreamState,
    WasReset,
)


class StreamLimit(Exception):
    """No stream can be opened: ``max_outbound`` are open, or the peer has gone away. The caller waits or gives up."""


class YamuxSession:
    def __init__(self, *, initiator: bool, limits: YamuxLimits, now: float) -> None:
        self.limits = limits
        self._next_id = 1 if initiator else 2
        self._peer_parity = 0 if initiator else 1
        self._last_peer_id = 0
        self._streams: dict[int, StreamState] = {}
        self._outbound = 0
        self._inbound = 0
        self._unaccepted: deque[int] = deque()
        self._buffered = 0
        self._extra_credit = limits.extra_credit
        # parser
        self._header = bytearray()
        self._body: StreamState | None = None
        self._body_left = 0
        self._body_flags = 0
        # to send
        self._control: deque[bytes] = deque()
        self._control_size = 0
        self._grants: dict[int, int] = {}
        self._turns: deque[StreamState] = deque()
        # clocks: insertion order is time order, so the first entry is the next due
        self._stalled: dict[int, float] = {}
        self._lingering: dict[int, float] = {}
        self._heard = now
        self._pinged: float | None = None
        self._ping_value = 0
        self._gone = False

    # --- input from the peer -------------------------------------------------------------------------------------

    def receive(self, data: bytes | bytearray | memoryview, now: float) -> list[Event]:
        """Takes received bytes, split anywhere. Raises Misbehaviour; the session is then dead."""
        return self.receive_frames(data, now, len(data)).events

    def receive_frames(self, data: bytes | bytearray | memoryview, now: float, most: int) -> Received:
        """Receives like ``receive``, until ``most`` frames have begun: each frame costs work, however small."""
        self._heard = now
        events: list[Event] = []
        view = memoryview(data)
        at, end, count = 0, len(view), 0
        while at < end and (self._body_left or count < most):
            if self._body_left:
                at += self._receive_body(view[at : at + self._body_left], events)
            elif not self._header and end - at >= HEADER_SIZE:
                count += 1
                self._receive_header(frames.parse(view, at), events, now)
                at += HEADER_SIZE
            else:
                piece = view[at : at + HEADER_SIZE - len(self._header)]
                self._header += piece
                at += len(piece)
                if len(self._header) == HEADER_SIZE:
                    count += 1
                    header = frames.parse(self._header)
                    self._header.clear()
                    self._receive_header(header, events, now)
        return Received(events, at, count)

    def _receive_body(self, piece: memoryview, events: list[Event]) -> int:
        stream = self._body
        self._body_left -= len(piece)
        if stream is not None and stream.reset is None:
            if not stream.released:
                self._buffered += len(piece)
                stream.inbox.add(piece)
                events.append(Readable(stream.id))
            if not self._body_left:
                self._apply_end(stream, self._body_flags, events)
        if not self._body_left:
            self._body = None
        return len(piece)

    def _receive_header(self, header: YamuxHeader, events: list[Event], now: float) -> None:
        if header.kind == PING:
            self._receive_ping(header, events, now)
        elif header.kind == frames.GO_AWAY:
            self._gone = True
            events.append(GoneAway(header.length))
        else:
            stream = self._find_stream(header, events)
            if header.kind == DATA:
                self._receive_data(stream, header, events)
            elif stream is not None:
                stream.credit_out += header.length
                self._wake(stream)
                self._apply_end(stream, header.flags, events)

    def _receive_ping(self, header: YamuxHeader, events: list[Event], now: float) -> None:
        if header.flags & SYN:
            self._send(frames.pack(PING, ACK, 0, header.length))
        elif self._pinged is not None and header.length == self._ping_value:
            events.append(Pong(now - self._pinged))
            self._pinged = None

    def _receive_data(self, stream: StreamState | None, header: YamuxHeader, events: list[Event]) -> None:
        length = header.length
        # Frames for a stream that we just reset may be on their way: up to a window of them is dropped
        # (test_a_sender_beyond_its_window_loses_the_connection).
        if length > (self.limits.max_window if stream is None else stream.credit_in):
            raise frames.violation("yamux-window", f"{length} bytes on stream {header.stream}, more than was granted")
        if stream is not None:
            if stream.fin_received and length:
                raise frames.violation("yamux-fin", f"data after the end of stream {header.stream}")
            stream.credit_in -= length
            if stream.released and not stream.credit_in:
                # Nobody will read this or grant credit: the sender is told now, not only when it has stalled too long.
                self._send(frames.pack(WINDOW_UPDATE, RST, stream.id, 0))
                self._end(stream, ResetReason.BY_US, events)
            elif self._buffered + length > self.limits.max_buffered:
                self._shed(stream, length, events)
        self._body, self._body_left, self._body_flags = stream, length, header.flags
        if stream is not None and not length:
            self._apply_end(stream, header.flags, events)

    def _find_stream(self, header: YamuxHeader, events: list[Event]) -> StreamState | None:
        """Returns the stream of a frame; ``None`` if it is gone or was refused, and the frame is to be dropped."""
        number, stream = header.stream, self._streams.get(header.stream)
        by_peer = number % 2 == self._peer_parity
        if header.flags & SYN:
            if not by_peer or number <= self._last_peer_id:
                raise frames.violation("yamux-syn", f"stream {number} cannot be opened by the peer now")
            self._last_peer_id = number
            return self._open_for_peer(number, events)
        if stream is None and (number > self._last_peer_id if by_peer else number >= self._next_id):
            raise frames.violation("yamux-stream-id", f"a frame for stream {number}, which was not opened")
        return stream

    def _open_for_peer(self, number: int, events: list[Event]) -> StreamState | None:
        # Only this stream is refused, so that a burst costs no other one (test_ten_thousand_opens_keep_nobody_out).
        if self._inbound >= self.limits.max_inbound or len(self._unaccepted) >= self.limits.backlog:
            self._send(frames.pack(WINDOW_UPDATE, RST, number, 0))
            return None
        stream = self._streams[number] = StreamState(number, by_peer=True)
        self._inbound += 1
        self._unaccepted.append(number)
        self._send(frames.pack(WINDOW_UPDATE, ACK, number, 0))
        events.append(StreamOpened(number))
        return stream

    def _apply_end(self, stream: StreamState, flags: int, events: list[Event]) -> None:
        if flags & RST:
            self._end(stream, ResetReason.BY_PEER, events)
        elif flags & FIN and not stream.fin_received:
            stream.fin_received = True
            events.append(Readable(stream.id))
            self._forget_if_done(stream)

    def _shed(self, arriving: StreamState, length: int, events: list[Event]) -> None:
        """Resets the stream with most unread bytes, because the connection has too many of them."""
        heaviest = self._heaviest()
        self._overload(heaviest if len(heaviest.inbox) >= length else arriving, events)

    def _heaviest(self) -> StreamState:
        return max(self._streams.values(), key=lambda one: len(one.inbox))

    def _overload(self, victim: StreamState, events: list[Event]) -> None:
        self._send(frames.pack(WINDOW_UPDATE, RST, victim.id, 0))
        self._end(victim, ResetReason.OVERLOAD, events)

    def shed(self) -> list[Event]:
        """Resets the stream with most unread bytes; does nothing if there are none."""
        events: list[Event] = []
        if self._buffered:
            self._overload(self._heaviest(), events)
        return events

    # --- calls of our side ---------------------------------------------------------------------------------------

    @property
    def can_open(self) -> bool:
        return self._outbound < self.limits.max_outbound and not self._gone

    def open(self) -> int:
        """Opens a stream, which may be written to at once. Raises StreamLimit."""
        if not self.can_open:
            raise StreamLimit("the peer has gone away" if self._gone else f"{self._outbound} streams are open")
        number = self._next_id
        self._next_id += 2
        self._streams[number] = StreamState(number, by_peer=False)
        self._outbound += 1
        self._send(frames.pack(WINDOW_UPDATE, SYN, number, 0))
        return number

    def accept(self) -> int | None:
        """Returns the next stream that the peer opened; ``None`` if there is none."""
        return self._unaccepted.popleft() if self._unaccepted else None

    def write(self, stream_id: int, data: memoryview, now: float) -> None:
        """Hands over bytes, one buffer at a time; it must not change until ``Outgoing.drained`` names the stream."""
        stream = self._streams[stream_id]
        assert stream.outbox is None, "the bytes before these are not sent yet"
        assert not stream.fin_wanted, "written after the end"
        if data and stream.reset is None:
            stream.outbox = data
            self._wake(stream)
            if stream.stalled:
                self._stalled.setdefault(stream_id, now)

    def withdraw(self, stream_id: int) -> None:
        """Withdraws unsent data of a cancelled writer."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.outbox = None
            self._stalled.pop(stream_id, None)

    def read(self, stream_id: int, size: int) -> bytes:
        """Returns up to ``size`` unread bytes, empty if there are none; grants credit for them."""
        stream = self._streams.get(stream_id)
        if stream is None or not stream.inbox:
            return b""
        data = stream.take(size)
        self._buffered -= len(data)
        # Not for each read: window updates took 18 % of a receiver's time in py-libp2p (measured).
        if not (stream.fin_received or stream.released) and stream.consumed * 2 >= stream.window:
            growth = min(stream.window, self.limits.max_window - stream.window, self._extra_credit)
            self._extra_credit -= growth
            stream.window += growth
            self._grants[stream_id] = self._grants.get(stream_id, 0) + stream.consumed + growth
            stream.credit_in += stream.consumed + growth
            stream.consumed = 0
        return data

    def at_end(self, stream_id: int) -> bool:
        """Whether the peer has ended its side, and all of its bytes were read."""
        stream = self._streams.get(stream_id)
        return stream is None or (stream.fin_received and not stream.inbox)

    def finish(self, stream_id: int) -> None:
        """Ends our sending side; bytes handed over before are still sent."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.fin_wanted:
            stream.fin_wanted = True
            self._wake(stream)

    def release(self, stream_id: int, now: float) -> None:
        """Ends our side: finishes, and drops what still comes. The peer gets ``linger_timeout`` to finish too."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.released:
            return
        stream.released = True
        self._buffered -= len(stream.inbox)
        stream.inbox.clear()
        self.finish(stream_id)
        self._lingering[stream_id] = now
        self._forget_if_done(stream)

    def reset(self, stream_id: int) -> None:
        """Ends both directions at once, and forgets the stream."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if not stream.finished:
            self._send(frames.pack(WINDOW_UPDATE, RST, stream_id, 0))
            self._end(stream, ResetReason.BY_US, [])
        stream.released = True
        self._buffered -= len(stream.inbox)  # of a stream that both sides had finished
        stream.inbox.clear()
        self._forget_if_done(stream)

    def go_away(self, code: frames.GoAwayCode) -> None:
        """Tells the peer that we accept no more streams."""
        self._send(frames.pack(frames.GO_AWAY, 0, 0, code))

    # --- output to the peer --------------------------------------------------------------------------------------

    @property
    def has_outgoing(self) -> bool:
        return bool(self._control or self._grants or self._turns)

    @property
    def wants_input(self) -> bool:
        """Whether to read more from the peer: not while it does not take our answers."""
        return self._control_size < self.limits.max_control

    def outgoing(self, limit: int, now: float) -> Outgoing:
        """Cuts about ``limit`` bytes of frames (at most one message more); waiting streams get equal shares."""
        drained: list[int] = []
        packing = Packing(self.limits.max_message)
        total, share = 0, min(self.limits.max_frame, limit // max(1, len(self._turns)))
        while total < limit:
            room = max(min(share, limit - total), self.limits.max_message) - HEADER_SIZE
            header, body = self._next_frame(room, drained, now)
            if not header:
                break
            packing.add(header)
            packing.add(body)
            total += len(header) + len(body)
        return Outgoing(packing.messages(), drained)

    def _next_frame(self, max_body: int, drained: list[int], now: float) -> tuple[bytes, bytes | memoryview]:
        if self._control:
            frame = self._control.popleft()
            self._control_size -= len(frame)
            return frame, b""
        if self._grants:
            number = next(iter(self._grants))
            return frames.pack(WINDOW_UPDATE, 0, number, self._grants.pop(number)), b""
        while self._turns:
            stream = self._turns.popleft()
            stream.queued = False
            if stream.sendable:
                return self._cut(stream, max_body, drained, now)
        return b"", b""

    def _cut(
        self, stream: StreamState, max_body: int, drained: list[int], now: float
    ) -> tuple[bytes, bytes | memoryview]:
        if stream.outbox is None:
            stream.fin_sent = True
            self._forget_if_done(stream)
            return frames.pack(WINDOW_UPDATE, FIN, stream.id, 0), b""
        body = stream.cut(max_body)
        if stream.outbox is None:
            drained.append(stream.id)
        elif stream.stalled:
            self._stalled[stream.id] = now
        self._wake(stream)
        return frames.pack(DATA, 0, stream.id, len(body)), body

    # --- time ----------------------------------------------------------------------------------------------------

    def next_due(self) -> float:
        """Returns the earliest time at which ``expire`` has something to do."""
        due = self._heard + self.limits.ping_interval
        if self._pinged is not None:
            due = max(self._heard, self._pinged) + self.limits.ping_timeout
        for clock, patience in self._clocks():
            due = min(due, next(iter(clock.values()), due) + patience if clock else due)
        return due

    def expire(self, now: float) -> list[Event]:
        """Resets streams that waited too long, and pings a silent peer. Raises Misbehaviour if it does not answer."""
        events: list[Event] = []
        for clock, patience in self._clocks():
            while clock and next(iter(clock.values())) + patience <= now:
                stream = self._streams[next(iter(clock))]
                self._send(frames.pack(WINDOW_UPDATE, RST, stream.id, 0))
                self._end(stream, ResetReason.STALLED, events)
        if self._pinged is not None and max(self._heard, self._pinged) + self.limits.ping_timeout <= now:
            raise frames.violation("yamux-ping", f"no answer to a ping for {self.limits.ping_timeout:g} s")
        if self._pinged is None and self._heard + self.limits.ping_interval <= now:
            self.ping(now)
        return events

    def _clocks(self) -> tuple[tuple[dict[int, float], float], ...]:
        return (self._stalled, self.limits.stall_timeout), (self._lingering, self.limits.linger_timeout)

    @property
    def heard(self) -> float:
        """Returns when the last bytes of the peer came."""
        return self._heard

    def ping(self, now: float) -> None:
        """Sends a ping, unless one is open."""
        if self._pinged is None:
            self._pinged = now
            self._ping_value = (self._ping_value + 1) & 0xFFFF_FFFF
            self._send(frames.pack(PING, SYN, 0, self._ping_value))

    # --- bookkeeping ---------------------------------------------------------------------------------------------

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    @property
    def buffered(self) -> int:
        return self._buffered

    def reset_reason(self, stream_id: int) -> ResetReason | None:
        stream = self._streams.get(stream_id)
        return stream.reset if stream is not None else None

    def _send(self, frame: bytes) -> None:
        self._control.append(frame)
        self._control_size += len(frame)

    def _wake(self, stream: StreamState) -> None:
        if stream.credit_out:
            self._stalled.pop(stream.id, None)
        if not stream.queued and stream.sendable:
            stream.queued = True
            self._turns.append(stream)

    def _end(self, stream: StreamState, reason: ResetReason, events: list[Event]) -> None:
        if stream.reset is not None:
            return
        stream.reset = reason
        self._buffered -= len(stream.inbox)
        stream.inbox.clear()
        stream.outbox = None
        self._grants.pop(stream.id, None)
        self._stalled.pop(stream.id, None)
        # Reset before our side accepted it: nobody else would release it, and its place would stay taken.
        if stream.by_peer and stream.id in self._unaccepted:
            self._unaccepted.remove(stream.id)
            stream.released = True
        events.append(WasReset(stream.id, reason))
        self._forget_if_done(stream)

    def _forget_if_done(self, stream: StreamState) -> None:
        if not (stream.finished and stream.released) or self._streams.pop(stream.id, None) is None:
            return
        self._lingering.pop(stream.id, None)
        self._grants.pop(stream.id, None)
        self._extra_credit += stream.window - INITIAL_WINDOW
        if stream.by_peer:
            self._inbound -= 1
        else:
            self._outbound -= 1
