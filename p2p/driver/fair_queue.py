"""Serialises work fairly between senders, with a bounded number of waiting items."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from p2p.machines.lanes import Lanes
from p2p.ports import PeerId


class _Waiter:
    def __init__(self) -> None:
        self.called = trio.Event()
        self.has_turn = False


class SenderTurns:
    """Grants one turn at a time. Waiters queue in their sender's lane, among those of its block of addresses."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._lanes = Lanes[PeerId, _Waiter](most, most_bytes)
        self._is_busy = False

    def __len__(self) -> int:
        return len(self._lanes)

    @asynccontextmanager
    async def turn(self, block: str, sender: PeerId, size: int) -> AsyncIterator[bool]:
        """Waits for a turn; yields ``False`` if the work was dropped for that of others.
        ``block``: the sender's addresses."""
        has_turn = await self._wait(block, sender, size)
        try:
            yield has_turn
        finally:
            if has_turn:
                self._pass_on()

    async def _wait(self, block: str, sender: PeerId, size: int) -> bool:
        if not self._is_busy:
            self._is_busy = True
            return True
        waiter = _Waiter()
        for dropped in self._lanes.put(block, sender, waiter, size):
            dropped.called.set()
        try:
            await waiter.called.wait()
        except trio.Cancelled:
            if waiter.has_turn:
                self._pass_on()
            else:
                self._lanes.remove(block, sender, waiter)
            raise
        return waiter.has_turn

    def _pass_on(self) -> None:
        waiter = self._lanes.take()
        self._is_busy = waiter is not None
        if waiter is not None:
            waiter.has_turn = True
            waiter.called.set()
