"""Runs work for inbound streams: contains its errors, limits the streams of one peer, and lets senders take turns.

If a peer ends one stream and opens the next, we may see the new one before the end of the old one. So a further stream
waits a moment, unread, before it is reset. One ``StreamSlots`` for each protocol, made with its server.

``contain`` takes unexpected errors that a peer provokes: one stream is lost and logged, and other peers are not
affected. This is the only place in the driver that catches unknown exceptions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVarTuple

import structlog
import trio

from chain.errors import Fault
from p2p.driver.framing import FramedStream
from p2p.driver.peer_penalties import PeerPenalties
from p2p.errors import PeerFault
from p2p.machines.lanes import Lanes
from p2p.ports import PeerId

_LOG = structlog.get_logger("p2p.driver")


async def contain(work: Callable[[*Args], Awaitable[object]], *args: *Args) -> None:
    """Runs ``work`` to its end. Logs faults of the peer as debug, other faults as warnings, bugs as errors."""
    try:
        await work(*args)
    except PeerFault as fault:
        _LOG.debug("peer fault", peer=fault.peer, fault=str(fault), rule=fault.rule)
    except Fault as fault:
        _LOG.warning("fault while serving a peer", fault=str(fault), rule=fault.rule, hint=fault.hint)
    except Exception:  # noqa: BLE001 - a supervisor: the reason is in the module's docstring
        _LOG.exception("a bug ended work for a peer", work=getattr(work, "__qualname__", str(work)))


Args = TypeVarTuple("Args")
PATIENCE: Final = 2.0
"""Seconds that a further stream waits."""


class StreamSlots:
    """Gives ``most`` streams of each peer a place; as many more may wait for one."""

    def __init__(self, standing: PeerPenalties, most: int) -> None:
        self._standing = standing
        self._most = most
        self._peers: dict[PeerId, trio.CapacityLimiter] = {}

    async def attend(self, stream: FramedStream, work: Callable[[*Args], Awaitable[object]], *args: *Args) -> None:
        """Runs ``work`` for an inbound stream, contained, once it has a place.
        The stream is reset however that ends."""
        try:
            if not self._standing.is_shut_out(stream.peer) and await self._place(stream):
                try:
                    await contain(work, *args)
                finally:
                    self._leave(stream)
        finally:
            await stream.reset()

    async def _place(self, stream: FramedStream) -> bool:
        places = self._peers.setdefault(stream.peer, trio.CapacityLimiter(self._most))
        if places.statistics().tasks_waiting >= self._most:
            return False
        with trio.move_on_after(PATIENCE):
            await places.acquire_on_behalf_of(stream)
            return True
        return False

    def _leave(self, stream: FramedStream) -> None:
        places = self._peers[stream.peer]
        places.release_on_behalf_of(stream)
        if not places.borrowed_tokens and not places.statistics().tasks_waiting:
            del self._peers[stream.peer]


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
