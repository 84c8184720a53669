"""Tracks the state of one stream in a session: what may be sent, what may arrive, what is left to do.

Defines the events that a session reports to its driver, too: a closed union of frozen values.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Final, NamedTuple, TypeAlias

import msgspec

from p2p.yamux.frames import INITIAL_WINDOW

LARGE: Final = 16 * 1024
"""Bytes from which a piece is kept by itself; its overhead is then small."""


class ResetReason(enum.Enum):
    """The reason why a stream ended early; the value is for people."""

    BY_PEER = "reset by the peer"
    BY_US = "reset by this node"
    STALLED = "the peer took no data for too long"
    OVERLOAD = "too many unread bytes on this connection"


class StreamOpened(msgspec.Struct, frozen=True):
    """The peer opened a stream: it waits in ``Session.accept``."""

    stream: int


class Readable(msgspec.Struct, frozen=True):
    """Bytes, or the end of the peer's bytes, can be read."""

    stream: int


class WasReset(msgspec.Struct, frozen=True):
    """The stream is gone in both directions; unread and unsent bytes are dropped."""

    stream: int
    reason: ResetReason


class Pong(msgspec.Struct, frozen=True):
    """The peer answered our ping after ``rtt`` seconds."""

    rtt: float


class GoneAway(msgspec.Struct, frozen=True):
    """The peer accepts no new streams; open ones go on."""

    code: int


Event: TypeAlias = StreamOpened | Readable | WasReset | Pong | GoneAway


class Outgoing(msgspec.Struct, frozen=True):
    """The bytes to send now, and the streams whose buffers were emptied by it."""

    messages: list[bytes | memoryview]
    """Whole frames, in messages of at most ``YamuxLimits.max_message`` bytes, to be sent in this order.

    Large bodies still lie in their writers' buffers: they must be encrypted before other tasks may run.
    """
    drained: list[int]
    """Streams whose handed-over bytes are now all in ``messages``."""


class Received(NamedTuple):
    """The result of received bytes: data, how many bytes were consumed, and how many frames."""

    events: list[Event]
    taken: int
    frames: int


class Inbox:
    """A queue of received bytes; ``len`` is their number."""

    __slots__ = ("_pieces", "_read", "_size", "_tail")

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._read = 0
        """Bytes of the first piece that were taken already."""
        self._tail = bytearray()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, piece: memoryview) -> None:
        self._size += len(piece)
        if len(piece) < LARGE:
            self._tail += piece
            return
        self._close_tail()
        self._pieces.append(bytes(piece))

    def take(self, size: int) -> bytes:
        """Removes and returns the first bytes, at most ``size``: all small pieces together,
        or a part of a large one."""
        self._close_tail()
        if not size or not self._pieces:
            return b""
        piece = self._pieces[0]
        part = piece[self._read : self._read + size]
        self._size -= len(part)
        self._read += len(part)
        if self._read == len(piece):
            self._pieces.popleft()
            self._read = 0
        return part

    def clear(self) -> None:
        self._pieces.clear()
        self._tail = bytearray()
        self._read = self._size = 0

    def _close_tail(self) -> None:
        if self._tail:
            self._pieces.append(bytes(self._tail))
            self._tail = bytearray()


class StreamState:
    """The state of a stream. ``YamuxSession`` owns it from the SYN until both sides and the local user are done."""

    __slots__ = (
        "by_peer",
        "consumed",
        "credit_in",
        "credit_out",
        "fin_received",
        "fin_sent",
        "fin_wanted",
        "id",
        "inbox",
        "outbox",
        "queued",
        "released",
        "reset",
        "window",
    )

    def __init__(self, stream_id: int, *, by_peer: bool) -> None:
        self.id = stream_id
        self.by_peer = by_peer
        self.credit_out = INITIAL_WINDOW
        """Bytes that the peer still lets us send."""
        self.credit_in = INITIAL_WINDOW
        """Bytes that we still let the peer send.
        ``credit_in + len(inbox) + consumed == window`` while the stream is open."""
        self.window = INITIAL_WINDOW
        self.consumed = 0
        """Bytes that were read since the last grant of credit."""
        self.inbox = Inbox()
        self.outbox: memoryview | None = None
        self.queued = False
        """Whether it is in the session's queue of streams with something to send."""
        self.fin_wanted = False
        self.fin_sent = False
        self.fin_received = False
        self.released = False
        """Whether the local user has released it: bytes that still arrive are dropped."""
        self.reset: ResetReason | None = None

    @property
    def finished(self) -> bool:
        """Whether nothing more can happen on the wire."""
        return self.reset is not None or (self.fin_sent and self.fin_received)

    @property
    def sendable(self) -> bool:
        """Whether there is a frame to send now."""
        if self.reset is not None:
            return False
        if self.outbox is not None:
            return self.credit_out > 0
        return self.fin_wanted and not self.fin_sent

    @property
    def stalled(self) -> bool:
        return self.outbox is not None and self.credit_out == 0 and self.reset is None

    def take(self, size: int) -> bytes:
        """Removes and returns up to ``size`` unread bytes."""
        data = self.inbox.take(size)
        self.consumed += len(data)
        return data

    def cut(self, size: int) -> memoryview:
        """Removes and returns up to ``size`` bytes of the outbox, within the credit."""
        assert self.outbox is not None
        length = min(size, self.credit_out, len(self.outbox))
        piece = self.outbox[:length]
        self.outbox = self.outbox[length:] if length < len(self.outbox) else None
        self.credit_out -= length
        return piece
