"""Reconnects a node when its machine moves to another network:
drops dead connections, forgets its old public addresses.

Made with the host (``node_reach``). The tasks that keep connections up (bootstrap peers, relays) then make them again
at once, from the new address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog
import trio

from p2p.driver.ports import DirectPort
from p2p.machines.address_watch import LOOK, AddressWatch

_LOG = structlog.get_logger("p2p.driver")


class NetworkChanges:
    """Detects that one node's machine moved. Each of ``moved`` is called after dead connections were dropped."""

    def __init__(self, direct: DirectPort, moved: Sequence[Callable[[], None]]) -> None:
        self._direct = direct
        self._moved = moved
        self.count = 0

    async def run(self) -> None:
        """Compares the addresses of the interfaces whenever they may have changed, until cancelled."""
        known = self._direct.interfaces()
        watch = AddressWatch(known)
        while True:
            if watch.is_settled:
                await self._direct.interfaces_changed(known)
            else:
                await trio.sleep(LOOK)
            known = self._direct.interfaces()
            move = watch.look(known)
            if move is None:
                continue
            self.count += 1
            dropped = await self._direct.drop_from(move.gone)
            came, gone = (sorted(map(str, each)) for each in move)
            _LOG.info("network changed", came=came, gone=gone, dropped=dropped)
            for each in self._moved:
                each()
