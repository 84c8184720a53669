"""Limits what the network may cost this node. Every bound has a name, a unit and a reason."""

from __future__ import annotations

import msgspec

from p2p.budget.work import WorkShares
from p2p.yamux.limits import Limits as YamuxLimits


class HostLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one host. Times in seconds, sizes in bytes."""

    max_connections: int = 256
    """Open at a time, both directions. A connection costs about 80 KiB idle."""
    max_connections_per_peer: int = 2
    """Two nodes that dial each other at once get two; more is waste."""
    max_pending_inbound: int = 64
    """Connections in the handshake. The next one drops the oldest of whichever address has most of them."""
    handshake_timeout: float = 10.0
    """A handshake takes three round trips; silence for longer holds a place for nothing."""
    max_dials: int = 16
    """Dials of ours at a time."""
    dial_timeout: float = 15.0
    """For address, TCP, noise and yamux together."""
    open_timeout: float = 15.0
    """For a stream and the choice of its protocol."""
    max_unread: int = 256 << 20
    """Bytes that came and that nobody has read, of all connections together; the heaviest stream is reset."""
    notices: int = 1024
    """Connected and disconnected notices not yet read. The oldest make room."""
    yamux: YamuxLimits = YamuxLimits()
    """Of each connection."""
    work: WorkShares = WorkShares()
    """Of the core that the network runs on, for peers, their addresses, and all strangers."""
