"""Limits the unread bytes of all connections together, and decides which connection is closed beyond the limit.

Each connection has a bound of its own (``p2p.yamux.limits``); many peers at once would have many of them. Made with the
host; connections join when they begin and leave when they end.
"""

from __future__ import annotations

from typing import Protocol


class Holder(Protocol):
    @property
    def unread(self) -> int:
        """Bytes that came and that nobody has read."""

    def shed(self) -> None:
        """Reset the stream that holds most of them."""


class UnreadBudget:
    """The budget of one host. ``most`` in bytes."""

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
