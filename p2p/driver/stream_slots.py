"""Limits the inbound streams of one peer for each protocol; a further stream waits a moment before it is reset.

If a peer ends one stream and opens the next, we may see the new one before the end of the old one. So a further stream
waits a moment, unread, before it is reset. One ``StreamSlots`` for each protocol, made with its server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVarTuple

import trio

from p2p.driver.containment import contain
from p2p.driver.framing import FramedStream
from p2p.driver.peer_penalties import PeerPenalties
from p2p.ports import PeerId

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
