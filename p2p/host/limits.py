"""Limits what the network may cost this node. Every bound has a name, a unit and a reason."""

from __future__ import annotations

from typing import Protocol

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
    """Received unread bytes of all connections together; the heaviest stream is reset."""
    notices: int = 1024
    """Connected and disconnected notices not yet read. The oldest make room."""
    yamux: YamuxLimits = YamuxLimits()
    """Of each connection."""
    work: WorkShares = WorkShares()
    """Of the core that the network runs on, for peers, their addresses, and all unknown peers."""


class Holder(Protocol):
    @property
    def unread(self) -> int:
        """Bytes that were received and not read."""

    def shed(self) -> None:
        """Reset the stream that holds most of them."""


class UnreadBudget:
    """The unread bytes of all connections of one host together, ``most``; beyond it the heaviest stream is reset.

    Each connection has a bound of its own (``p2p.yamux.limits``); many peers at once would have many of them.
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
        """Bytes came. Costs one look at that connection, and at all of them only where the bound seems reached."""
        self._note(holder)
        if self._sum <= self._most:
            return
        for each in self._noted:
            self._note(each)
        while self._sum > self._most:
            heaviest = max(self._noted, key=self._noted.__getitem__)
            heaviest.shed()
            if not self._note(heaviest):
                return

    def _note(self, holder: Holder) -> bool:
        if holder not in self._noted:
            return False
        before, now = self._noted[holder], holder.unread
        self._noted[holder] = now
        self._sum += now - before
        return now != before
