"""Limits what one yamux connection may cost this node. Every bound has a name, a unit and a reason."""

from __future__ import annotations

from typing import Final

import msgspec

from p2p.yamux.frames import HEADER_SIZE, INITIAL_WINDOW

MAX_MESSAGE: Final = 65_535 - 16
"""Bytes of plaintext in one noise message: its length field is 16 bits and its tag takes 16 bytes."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one session. Sizes in bytes, times in seconds."""

    max_inbound: int = 256
    """Streams the peer may have open with us; the next is answered with RST. go-yamux and js-yamux use 256 too."""
    max_outbound: int = 256
    """Streams we open at a time: more would meet the accept backlog of the other side."""
    backlog: int = 64
    """Opened by the peer, not yet taken by our side. A burst of opens and resets costs no more than this."""
    max_window: int = 4 << 20
    """A stream's window grows up to this while its reader keeps up: 4 MiB fill 100 ms at 40 MiB/s."""
    extra_credit: int = 16 << 20
    """Credit granted on all streams of a connection beyond the initial windows."""
    max_buffered: int = 32 << 20
    """Unread bytes of one connection. Beyond it the stream with most of them is reset."""
    max_control: int = 64 << 10
    """Bytes of answers (RST, pong, ACK) not yet taken by the peer. Beyond it we stop reading from it."""
    max_message: int = MAX_MESSAGE
    """Frames are packed into messages of at most this size, one seal for each."""
    max_frame: int = INITIAL_WINDOW
    """Bytes of a frame's body: what any peer has to take in one."""
    stall_timeout: float = 60.0
    """A stream with bytes to send and no credit for this long is reset. Verifying a slice may take the peer a while."""
    linger_timeout: float = 30.0
    """A stream that our side is done with, and the peer is not, is reset after this long."""
    ping_interval: float = 30.0
    """How often a silent connection is asked whether it is alive."""
    ping_timeout: float = 20.0
    """No answer to a ping for this long: the connection is dead."""

    def __post_init__(self) -> None:
        assert self.max_window >= INITIAL_WINDOW, "a window never shrinks below the initial one"
        assert self.max_message > HEADER_SIZE
