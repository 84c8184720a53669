"""Keeps the node connected: dials bootstrap peers and a few others with backoff, and runs rounds of anti-entropy.

At each new connection the two nodes exchange presences and statements. Rounds run concurrently, so that a slow peer
takes nobody else's place. Made with the driver, ends with it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from random import Random
from typing import Final, TypeVarTuple

import structlog
import trio

from chain.errors import Fault
from chain.ids import DatasetId
from p2p.address import by_peer, parse_address
from p2p.budget.work import MEETING
from p2p.driver.discovery import SOUGHT, Discovery
from p2p.driver.inbound import contain
from p2p.driver.lookups import Lookups
from p2p.driver.peer_penalties import PeerPenalties
from p2p.driver.ports import HostPort
from p2p.driver.settings import ReplicationSettings
from p2p.driver.statements import StatementServer
from p2p.ip import Allows, anywhere
from p2p.machines.dial_order import in_order
from p2p.machines.holder_connections import HolderConnections
from p2p.peers.book import REDIAL
from p2p.ports import PeerId
from p2p.wire.presence import Presence

GROW: Final = 5.0
"""Seconds between dials by which the node gains connections of its own choice."""
GROW_ALONE: Final = 0.5
"""The same for a node that has no connection at all."""
AFTER_A_MOVE: Final = 5.0
"""Seconds in which a node whose machine moved dials as often as one that is alone: it lost all that it had dialled."""
STEADY: Final = 1.0
"""Seconds that a connection to a bootstrap peer must last; one that ends earlier counts as a failed dial."""
_LOG = structlog.get_logger("p2p.driver")
Args = TypeVarTuple("Args")
QUICK: Final = 8
"""Rounds in their first ``HASTE`` seconds at a time; others wait."""
HASTE: Final = 5.0
"""Seconds in which a round usually ends; after them it no longer takes the place of a waiting round."""
SLOW: Final = 32
"""Rounds beyond ``HASTE`` at a time."""


class Mesh:
    def __init__(
        self,
        host: HostPort,
        standing: PeerPenalties,
        statements: StatementServer,
        discovery: Discovery,
        settings: ReplicationSettings,
        rng: Random,
        lookups: Lookups,
    ) -> None:
        self._host = host
        self._lookups = lookups
        self._standing = standing
        self._statements = statements
        self._discovery = discovery
        self._settings = settings
        self._rng = rng
        self._under_way = RoundSlots()
        self._lost = trio.Event()
        self._moved = trio.Event()
        self._moved_at = -math.inf
        self._holders = HolderConnections()

    async def run(self) -> None:
        """Keeps connections and runs rounds, until cancelled."""
        async with trio.open_nursery() as nursery:
            for addresses in by_peer(self._settings.bootstrap):
                nursery.start_soon(self._keep_connected, addresses)
            nursery.start_soon(self._rounds, nursery)
            nursery.start_soon(self._grow)
            nursery.start_soon(self._keep_holders)
            while True:
                change = await self._host.next_change()
                if not change.up:
                    self._lose(change.peer)
                    continue
                self._standing.book.note_connected(change.peer, self._standing.wall())
                if change.address:
                    self._standing.book.learn(change.peer, [change.address])
                if self._standing.is_shut_out(change.peer):
                    nursery.start_soon(contain, self._host.disconnect, change.peer)
                else:
                    nursery.start_soon(self._greet, change.peer)

    def _lose(self, peer: PeerId) -> None:
        self._standing.book.note_disconnected(peer, self._standing.wall())
        self._tell_lost()

    def _tell_lost(self) -> None:
        self._lost.set()
        self._lost = trio.Event()

    def redial(self) -> None:
        """Notes that the machine moved to another network: peers are dialled again at once."""
        self._moved_at = trio.current_time()
        self._moved.set()
        self._moved = trio.Event()

    async def connect(self, *addresses: str) -> PeerId:
        """Dials a peer by addresses that the owner named, at once. Raises PeerFault or Invalid."""
        for address in addresses:
            self._discovery.reach.name(address)
        return await self._connect(addresses, anywhere)

    async def _connect(self, addresses: Sequence[str], allows: Allows) -> PeerId:
        """Dials a peer, and remembers its addresses: the owner's as written, others' only as the peer was reached."""
        peer = await self._host.connect(*addresses, allows=allows)
        reached = self._host.peers().get(peer)
        met = [f"{reached}/p2p/{peer}"] if reached else []
        self._standing.book.learn(peer, addresses if allows is anywhere else met)
        if reached is not None:  # else it has not said yet that it is in this network, and may not be
            self._standing.book.note_connected(peer, self._standing.wall())
        return peer

    async def _keep_connected(self, addresses: Sequence[str]) -> None:
        """Keeps a connection to a bootstrap peer: dials until there is one, waits until it is gone, and dials again."""
        failures = 0
        while True:
            try:
                peer = await self.connect(*addresses)
            except Fault as fault:
                failures += 1
                _LOG.info("bootstrap peer not reached", addresses=addresses, fault=str(fault), failures=failures)
                await trio.sleep(REDIAL.wait(failures, self._rng))
                continue
            began = trio.current_time()
            self._standing.book.learn(peer, addresses, bootstrap=True)
            while self._host.is_connected(peer):
                await self._lost.wait()
            failures = failures + 1 if trio.current_time() - began < STEADY else 0
            if self._standing.is_shut_out(peer):
                await trio.sleep(REDIAL.most)
            elif failures:
                await trio.sleep(REDIAL.wait(failures, self._rng))

    async def _greet(self, peer: PeerId) -> None:
        """Exchanges presences with a new peer, after the wait that its work budget demands."""
        await trio.sleep(self._host.charge(peer, MEETING))
        await self._under_way.attend(peer, self._exchange_presences, peer)

    async def _exchange_presences(self, peer: PeerId) -> None:
        if peer in self._standing.book.connected_peers():
            await contain(self._discovery.meet, peer)
            self._remember(peer)
            await self._statements.run_round(peer)

    def _remember(self, peer: PeerId) -> None:
        """Adds the addresses that a peer signed to the book, also if it dialled us:
        they help when all bootstrap peers are gone."""
        told = map(str, in_order(map(parse_address, self._discovery.dialable(peer))))
        self._standing.book.learn(peer, [*self._standing.book.get(peer).addresses, *told])

    async def seek(self, dataset: DatasetId, beyond: Collection[str] = (), most: int = SOUGHT) -> int:
        """Connects to peers that claim to serve a dataset, and returns the number of new connections.

        In a large network the lookup is used if no peer known for the dataset could be reached.
        """
        met = await self._call_on((await self._discovery.holders(dataset, beyond))[:most])
        if not met:
            found = self._discovery.apart(await self._lookups.holders(dataset), beyond)
            met = await self._call_on(found[:most])
        return met

    async def _call_on(self, found: Sequence[Presence]) -> int:
        met: list[PeerId] = []

        async def call_on(presence: Presence) -> None:
            if await self.visit(presence.peer, self._discovery.addresses(presence), self._discovery.allows()):
                met.append(presence.peer)

        async with trio.open_nursery() as nursery:
            for presence in found:
                nursery.start_soon(call_on, presence)
        return len(met)

    async def visit(self, peer: PeerId, addresses: Sequence[str], allows: Allows) -> bool:
        """Dials a peer that others named, unless it is blocked or backs off; returns whether it is connected.

        Failures are recorded, not raised.
        """
        book, now = self._standing.book, trio.current_time()
        if not addresses or self._standing.is_shut_out(peer) or book.get(peer).dial_after > now:
            return False
        try:
            await self._connect(addresses, allows)
        except Fault as fault:
            _LOG.debug("peer not reached", peer=peer, fault=str(fault))
            book.dial_failed(peer, trio.current_time())
            return False
        return True

    async def _grow(self) -> None:
        """Keeps up ``degree`` connections: dials peers met before or heard of, one at a time.

        A node without any connection dials more often, since its bootstrap peers may be gone for good; so does one that
        moved.
        """
        while True:
            connected = self._standing.book.connected_peers()
            has_moved = trio.current_time() - self._moved_at < AFTER_A_MOVE
            with trio.move_on_after((GROW if connected and not has_moved else GROW_ALONE) * (0.5 + self._rng.random())):
                await self._moved.wait()
            if len(self._standing.book.connected_peers()) >= self._settings.degree:
                continue
            met_before = self._standing.book.acquaintances(trio.current_time())
            known = [each for each in met_before if not self._host.is_connected(each.peer)]
            stranger = self._discovery.stranger()
            if known and (stranger is None or self._rng.random() < 0.5):
                met = known[0].addresses
                await self.visit(known[0].peer, met, self._discovery.reach.again(met, self._host.addresses()))
            elif stranger is not None:
                await self.visit(stranger.peer, self._discovery.addresses(stranger), self._discovery.allows())
            elif connected:
                await contain(self._discovery.meet, self._rng.choice(connected))

    async def _keep_holders(self) -> None:
        """Stays connected to some holders of the needed datasets, in a network that is too large for full gossip."""
        while True:
            await trio.sleep(GROW)
            meet = self._holders.step(self._statements.wanted, self._serving, trio.current_time())
            if meet is not None and await self.seek(meet.dataset, most=meet.most):
                for peer in self._discovery.naming([meet.dataset]):
                    await contain(self._statements.pull, peer, [meet.dataset])
                self._holders.note_met(meet.dataset, self._serving(meet.dataset))

    def _serving(self, dataset: DatasetId) -> int:
        return len(self._discovery.naming([dataset]))

    async def _rounds(self, nursery: trio.Nursery) -> None:
        while True:
            jitter = 0.75 + 0.5 * self._rng.random()
            await trio.sleep(self._settings.entropy_interval * jitter)
            # Notices are bounded, and some may be lost: the host's own list decides.
            for peer in set(self._standing.book.connected_peers()) - set(self._host.peers()):
                self._lose(peer)
            self._tell_lost()  # also of those who never said where they are: a notice of them may have been lost
            self._begin_round(nursery)

    def _begin_round(self, nursery: trio.Nursery) -> None:
        """Starts a round with each of a few peers that have none under way: one that serves a dataset of interest, and
        random ones. The next rounds start on time even if these are not over."""
        self._statements.tell_dropped()
        connected = self._standing.book.connected_peers()
        if connected:
            nursery.start_soon(contain, self._discovery.meet, self._rng.choice(connected))
        free = [peer for peer in connected if peer not in self._under_way]
        chosen = self._rng.sample(free, min(self._settings.entropy_peers, len(free)))
        if tellers := self._statements.peers_of_interest(free):
            chosen = list(dict.fromkeys([self._rng.choice(tellers), *chosen]))[: len(chosen)]
        for peer in chosen:
            nursery.start_soon(self._under_way.attend, peer, self._statements.run_round, peer)


class RoundSlots:
    """Limits the rounds under way: one for each peer, and few that have just begun.

    A round that lasts longer than ``HASTE`` gives its place to the next one and goes on; there are at most ``SLOW``
    such rounds, and the oldest of them is ended for one more.
    """

    def __init__(self) -> None:
        self._quick = trio.CapacityLimiter(QUICK)
        self._slow: OrderedDict[PeerId, trio.CancelScope] = OrderedDict()
        self._peers: set[PeerId] = set()

    def __contains__(self, peer: object) -> bool:
        return peer in self._peers

    async def attend(self, peer: PeerId, work: Callable[[*Args], Awaitable[object]], *args: *Args) -> None:
        """Runs ``work`` with a peer, contained, once there is a place; does nothing if a round with it is under way."""
        if peer in self._peers:
            return
        self._peers.add(peer)
        try:
            await self._quick.acquire_on_behalf_of(peer)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._give_way, peer, nursery.cancel_scope)
                    await contain(work, *args)
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
            # Rounds whose answers drip would add up without end (test_those_who_drip_delay_no_others_meeting).
            self._slow.popitem(last=False)[1].cancel()
