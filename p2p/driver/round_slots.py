"""Runs rounds with peers side by side, so that one who is slow holds nobody else's place.

Few rounds begin at a time. One that lasts longer than ``HASTE`` gives its place to the next and goes on beside it; of
those that are so slow there are ``SLOW`` at most, and the oldest of them ends for one more. One round of a peer at a
time. Made with the mesh.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, TypeVarTuple

import trio

from p2p.driver.containment import contained
from p2p.ports import PeerId

Args = TypeVarTuple("Args")
QUICK: Final = 8
"""Rounds at a time that have just begun; the others wait."""
HASTE: Final = 5.0
"""Seconds in which a round usually ends; beyond them it holds no place that another waits for."""
SLOW: Final = 32
"""Rounds that last longer, at a time."""


class RoundSlots:
    """The rounds under way."""

    def __init__(self) -> None:
        self._quick = trio.CapacityLimiter(QUICK)
        self._slow: OrderedDict[PeerId, trio.CancelScope] = OrderedDict()
        self._peers: set[PeerId] = set()

    def __contains__(self, peer: object) -> bool:
        return peer in self._peers

    async def attend(self, peer: PeerId, work: Callable[[*Args], Awaitable[object]], *args: *Args) -> None:
        """Do ``work`` with a peer, contained, once it has a place. Nothing while a round with it is under way."""
        if peer in self._peers:
            return
        self._peers.add(peer)
        try:
            await self._quick.acquire_on_behalf_of(peer)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._give_way, peer, nursery.cancel_scope)
                    await contained(work, *args)
                    nursery.cancel_scope.cancel()
            finally:
                self._slow.pop(peer, None)
                if peer in self._quick.statistics().borrowers:
                    self._quick.release_on_behalf_of(peer)
        finally:
            self._peers.discard(peer)

    async def _give_way(self, peer: PeerId, round_with_it: trio.CancelScope) -> None:
        await trio.sleep(HASTE)
        self._quick.release_on_behalf_of(peer)
        self._slow[peer] = round_with_it
        if len(self._slow) > SLOW:
            self._slow.popitem(last=False)[1].cancel()
