"""Limits what the network may cost this node. Every bound has a name, a unit and a reason."""

from __future__ import annotations

from typing import Protocol

import msgspec

from p2p.budget.work import WorkShares
from p2p.yamux.frames import YamuxLimits as YamuxLimits


class HostLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one host. Times in seconds, sizes in bytes."""

    max_connections: int = 256
    """Connections at a time, in both directions. One costs about 80 KiB when idle."""
    max_connections_per_peer: int = 2
    """Connections with one peer. Two nodes that dial each other at once get two; more is waste."""
    max_pending_inbound: int = 64
    """Connections in the handshake. The next one replaces the oldest of the address that has most of them."""
    handshake_timeout: float = 10.0
    """For a handshake, which takes three round trips; a silent connection would hold a place for nothing."""
    max_dials: int = 16
    """Our own dials at a time."""
    dial_timeout: float = 15.0
    """For a dial: address, TCP, noise and yamux together."""
    open_timeout: float = 15.0
    """For opening a stream and negotiating its protocol."""
    max_unread: int = 256 << 20
    """Received and unread bytes of all connections together; beyond that the heaviest stream is reset."""
    notices: int = 1024
    """Unread notices of connects and disconnects. The oldest are dropped for new ones."""
    yamux: YamuxLimits = YamuxLimits()
    """Limits of each connection's muxer."""
    work: WorkShares = WorkShares()
    """Shares of the core on which the network runs, for peers, their addresses, and all unknown peers."""


class Holder(Protocol):
    @property
    def unread(self) -> int:
        """Returns the bytes that were received and not read."""

    def shed(self) -> None:
        """Resets the stream that holds most of them."""


class UnreadBudget:
    """Bounds the unread bytes of all connections of one host to ``most``; beyond that the heaviest stream is reset.

    Each connection has its own bound (``p2p.yamux.frames``), but many peers at once have many connections.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._noted: dict[Holder, int] = {}
        self._sum = 0

    def join(self, holder: Holder) -> None:
        self._noted[holder] = 0

    def leave(self, holder: Holder) -> None:
        self._sum -= self._noted.pop(holder, 0)

    def grew(self, holder: Holder) -> None:
        """Notes that bytes came. Checks that connection only, and all of them only if the bound seems exceeded."""
        self._note(holder)
        if self._sum <= self._most:
            return
        for each in self._noted:
            self._note(each)
        while self._sum > self._most:
            heaviest = max(self._noted, key=self._noted.__getitem__)
            heaviest.shed()
            # It had nothing left to free: without this the loop would not end.
            if not self._note(heaviest):
                return

    def _note(self, holder: Holder) -> bool:
        if holder not in self._noted:
            return False
        before, now = self._noted[holder], holder.unread
        self._noted[holder] = now
        self._sum += now - before
        return now != before
