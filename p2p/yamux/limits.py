"""Limits what one yamux connection may cost this node. Every bound has a name, a unit and a reason."""

from __future__ import annotations

from typing import Final

import msgspec

from p2p.yamux.frames import HEADER_SIZE, INITIAL_WINDOW

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
