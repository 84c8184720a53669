"""Keeps us connected: bootstrap peers dialled with backoff, each new connection greeted by a pull of statements, and
rounds of anti-entropy with random peers. Made with the driver; its loops end with it.
"""

from __future__ import annotations

from random import Random
from typing import Final

import structlog
import trio

from chain.errors import Fault
from p2p.driver.containment import contained
from p2p.driver.ports import HostPort
from p2p.driver.settings import ReplicationSettings
from p2p.driver.standing import Standing
from p2p.driver.statements import Statements
from p2p.peers.book import REDIAL
from p2p.ports import PeerId

MAX_GREETINGS: Final = 8
"""Pulls at a time from peers that have just connected; the others wait."""
_LOG = structlog.get_logger("p2p.driver")


class Mesh:
    """Loops over connections."""

    def __init__(
        self, host: HostPort, standing: Standing, statements: Statements, settings: ReplicationSettings, rng: Random
    ) -> None:
        self._host = host
        self._standing = standing
        self._statements = statements
        self._settings = settings
        self._rng = rng
        self._greetings = trio.CapacityLimiter(MAX_GREETINGS)
        self._lost = trio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            for address in dict.fromkeys(self._settings.bootstrap):
                nursery.start_soon(self._keep_connected, address)
            nursery.start_soon(self._rounds)
            while True:
                change = await self._host.next_change()
                if not change.up:
                    self._lose(change.peer)
                    continue
                self._standing.book.connected(change.peer, self._standing.wall())
                if change.address:
                    self._standing.book.learn(change.peer, [change.address])
                if self._standing.is_shut_out(change.peer):
                    nursery.start_soon(contained, self._host.disconnect, change.peer)
                else:
                    nursery.start_soon(contained, self._greet, change.peer)

    def _lose(self, peer: PeerId) -> None:
        self._standing.book.disconnected(peer, self._standing.wall())
        self._lost.set()
        self._lost = trio.Event()

    async def connect(self, address: str) -> PeerId:
        """Dial now. Raises PeerFault or Invalid."""
        peer = await self._host.connect(address)
        self._standing.book.learn(peer, [address])
        self._standing.book.connected(peer, self._standing.wall())
        return peer

    async def _keep_connected(self, address: str) -> None:
        """Dial until there is a connection, watch it, dial again when it is gone."""
        failures = 0
        while True:
            try:
                peer = await self.connect(address)
            except Fault as fault:
                failures += 1
                _LOG.info("bootstrap peer not reached", address=address, fault=str(fault), failures=failures)
                await trio.sleep(REDIAL.wait(failures, self._rng))
                continue
            failures = 0
            self._standing.book.learn(peer, [address], bootstrap=True)
            while self._standing.book.get(peer).connected:
                await self._lost.wait()
            if self._standing.is_shut_out(peer):
                await trio.sleep(REDIAL.most)

    async def _greet(self, peer: PeerId) -> None:
        async with self._greetings:
            if peer in self._standing.book.connected_peers():
                await self._statements.pull(peer)

    async def _rounds(self) -> None:
        while True:
            jitter = 0.75 + 0.5 * self._rng.random()
            await trio.sleep(self._settings.entropy_interval * jitter)
            for peer in set(self._standing.book.connected_peers()) - set(self._host.peers()):
                self._lose(peer)
            await self.round()

    async def round(self) -> None:
        """One round with a few random peers, side by side."""
        connected = self._standing.book.connected_peers()
        chosen = self._rng.sample(connected, min(self._settings.entropy_peers, len(connected)))
        async with trio.open_nursery() as nursery:
            for peer in chosen:
                nursery.start_soon(contained, self._statements.pull, peer)
