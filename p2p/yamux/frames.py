"""Encodes and decodes yamux frames: a header of twelve bytes, and for data frames a body (hashicorp/yamux spec.md).

``version u8 · type u8 · flags u16 · stream u32 · length u32``, all big-endian. ``length`` is the size of the body of a
data frame, the credit of a window update, the opaque value of a ping, the reason of a go-away. Small frames are joined
into one message of the layer below, and large bodies are cut without a copy.
"""

from __future__ import annotations

import enum
import struct
from typing import Final, NamedTuple

import msgspec

from p2p.errors import Misbehaviour

HEADER: Final = struct.Struct("!BBHII")
HEADER_SIZE: Final = HEADER.size
VERSION: Final = 0
INITIAL_WINDOW: Final = 256 * 1024
"""Bytes that either side may send on a new stream before any credit is granted; fixed by the specification."""
DATA: Final = 0
WINDOW_UPDATE: Final = 1
PING: Final = 2
GO_AWAY: Final = 3
SYN: Final = 1
ACK: Final = 2
FIN: Final = 4
RST: Final = 8
ALL_FLAGS: Final = SYN | ACK | FIN | RST
SMALL: Final = 4 * 1024
"""Bytes up to which copying a frame into a larger message is cheaper than encrypting it alone."""


class GoAwayCode(enum.IntEnum):
    NORMAL = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2


class YamuxHeader(NamedTuple):
    """One parsed header; its ``kind`` and ``flags`` are defined ones."""

    kind: int
    flags: int
    stream: int
    length: int


def pack(kind: int, flags: int, stream: int, length: int) -> bytes:
    return HEADER.pack(VERSION, kind, flags, stream, length)


def parse(raw: bytes | bytearray | memoryview, offset: int = 0) -> YamuxHeader:
    """Parses the header at ``offset``, where at least twelve bytes are.
    Raises Misbehaviour if the specification forbids it."""
    version, kind, flags, stream, length = HEADER.unpack_from(raw, offset)
    if version != VERSION:
        raise violation("yamux-version", f"yamux frame of version {version}, not {VERSION}")
    if kind > GO_AWAY:
        raise violation("yamux-type", f"yamux frame of unknown type {kind}")
    if flags & ~ALL_FLAGS:
        raise violation("yamux-flags", f"yamux frame with unknown flags {flags:#06x}")
    if (stream == 0) != (kind in (PING, GO_AWAY)):
        raise violation("yamux-stream-id", f"yamux frame of type {kind} on stream {stream}")
    return YamuxHeader(kind, flags, stream, length)


def violation(rule: str, message: str) -> Misbehaviour:
    """Makes a violation; the caller, which knows the connection, adds the peer."""
    return Misbehaviour(
        "", message, rule=rule, hint="the connection is closed; the peer runs a broken or hostile muxer"
    )


class Packing:
    """Packs pieces of frames, in order, into messages of at most ``room`` bytes each. Made for one batch."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._messages: list[bytes | memoryview] = []
        self._open: list[bytes | memoryview] = []
        self._size = 0

    def add(self, piece: bytes | memoryview) -> None:
        if len(piece) > min(SMALL, self._room) and isinstance(piece, memoryview):
            self._close()
            self._messages += [piece[at : at + self._room] for at in range(0, len(piece), self._room)]
        elif piece:
            if self._size + len(piece) > self._room:
                self._close()
            self._open.append(piece)
            self._size += len(piece)

    def messages(self) -> list[bytes | memoryview]:
        self._close()
        return self._messages

    def _close(self) -> None:
        if self._open:
            self._messages.append(b"".join(self._open))
            self._open, self._size = [], 0


MAX_MESSAGE: Final = 65_535 - 16
"""Bytes of plaintext in one noise message: its length field is 16 bits and its tag takes 16 bytes."""


class YamuxLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one session. Sizes in bytes, times in seconds."""

    max_inbound: int = 256
    """Streams that the peer may have open with us; the next gets RST. go-yamux and js-yamux use 256 too."""
    max_outbound: int = 256
    """Streams that we open at a time; more would exceed the accept backlog of the other side."""
    backlog: int = 64
    """Streams that the peer opened and our side has not accepted; bounds the cost of a burst of opens and resets."""
    max_window: int = 4 << 20
    """A stream's window grows up to this while its reader keeps up: 4 MiB fill 100 ms at 40 MiB/s."""
    extra_credit: int = 16 << 20
    """Credit granted on all streams of a connection together, beyond the initial windows."""
    max_buffered: int = 32 << 20
    """Unread bytes of one connection. Beyond that the stream with most of them is reset."""
    max_control: int = 64 << 10
    """Bytes of answers (RST, pong, ACK) that the peer has not taken. Beyond that we stop reading from it."""
    max_message: int = MAX_MESSAGE
    """Bytes of a message into which frames are packed; each message is encrypted once."""
    max_frame: int = INITIAL_WINDOW
    """Bytes of a frame's body: as many as any peer has to accept at once."""
    stall_timeout: float = 60.0
    """A stream with bytes to send and no credit for so long is reset. Verifying a slice may take the peer a while."""
    linger_timeout: float = 30.0
    """A stream that our side has released, and the peer has not ended, is reset after so long."""
    ping_interval: float = 30.0
    """A connection that is silent for so long gets a ping."""
    ping_timeout: float = 20.0
    """A connection whose ping is unanswered for so long is dead."""

    def __post_init__(self) -> None:
        assert self.max_window >= INITIAL_WINDOW, "a window never shrinks below the initial one"
        assert self.max_message > HEADER_SIZE
