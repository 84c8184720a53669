"""Runs the services of a node that do not belong to a single network: how others reach its host, and through whom.

Dial-backs (AutoNAT v2), hole punches, reservations at relays, this node's own relay, and the watch of its interfaces
belong to the host: a peer of any joined network is asked, answered and relayed. Made over the undivided host, lives as
long as the host does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Protocol

import msgspec
import trio

from chain.statements.keys import SigningKey
from p2p.address import parse_address
from p2p.driver.autonat import AutoNat
from p2p.driver.hole_punching import HolePunching
from p2p.driver.invites import InvitationDesk, Redeem
from p2p.driver.net_facts import NetFacts, dial_back_results, dialable, mapping
from p2p.driver.network_change import NetworkChanges
from p2p.driver.ports import ReachHost
from p2p.driver.relay_server import RelayServer
from p2p.driver.reservations import Reservations
from p2p.machines.dial_back import DialBackLimits, DialBacks
from p2p.machines.reachability import Reached
from p2p.machines.relay import CircuitRelay, RelayLimits
from p2p.pace import Pace
from p2p.ports import PeerId
from p2p.wire.invite import Redemption


class JoinedNetwork(Protocol):
    """The parts of a joined network that are used here."""

    def addresses_of(self, peers: Iterable[PeerId]) -> list[str]:
        """Returns the addresses of peers from their signed presences."""

    def clock_behind(self, peers: Iterable[PeerId]) -> float: ...

    async def is_member(self, peer: PeerId) -> bool:
        """Whether a peer signed that it is in the network; asks the peer if that is not known."""

    def look_again(self) -> None:
        """Notes that other addresses are to be announced."""

    def redial(self) -> None:
        """Notes that the machine is in another network, and connections were lost."""


class ReachSettings(msgspec.Struct, frozen=True, kw_only=True):
    relays: tuple[str, ...] = ()
    """Multiaddrs of relays through which others reach this node; each is dialled again with backoff for ever."""
    relay: RelayLimits | None = None
    """Limits of this node as a relay; ``None``: it is no relay."""
    carried: Pace = msgspec.field(default_factory=Pace)
    """Caps the bytes of carried circuits."""
    redeem: Redeem = lambda _peer, _token: Redemption.UNKNOWN
    """Decides about a peer that shows the token of an invitation."""


class ReachFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of ``p2p.ports.ReplicationFigures`` that belong to the node as a whole."""

    relays: int = 0
    reserved: int = 0
    circuits: int = 0
    dial_backs_refused: int = 0
    punched: int = 0
    unpunched: int = 0
    not_dialled: int = 0


class NodeReach:
    """Makes one host reachable. ``networks`` returns the joined ones; ``wall`` returns nanoseconds since the epoch."""

    def __init__(
        self,
        host: ReachHost,
        settings: ReachSettings,
        rng: Random,
        wall: Callable[[], int],
        key: SigningKey,
        networks: Callable[[], Iterable[JoinedNetwork]],
    ) -> None:
        self._host, self._settings, self._networks = host, settings, networks
        direct = host.direct
        self.autonat = AutoNat(host, direct, DialBacks(DialBackLimits(), rng), rng, self.look_again)
        self.holes = HolePunching(host, direct, self.autonat.seen_at, self._addresses_of)
        self.moves = NetworkChanges(direct, (self.autonat.forget, self.holes.forget, self.look_again, self._tell_moved))
        host.share_port_with(peer for each in settings.relays if (peer := parse_address(each).peer))
        self.invites = InvitationDesk(host, settings.redeem)
        self._reservations = Reservations(host, settings.relays, rng, wall, self.look_again, self._needs_relay)
        self.relay_server: RelayServer | None = None
        if settings.relay is not None:
            relay, carried = CircuitRelay(settings.relay), settings.carried
            self.relay_server = RelayServer(host, relay, key, self._is_member, carried, wall, self._is_hidden)

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                if self.relay_server is not None:
                    self.relay_server.join()
                self.autonat.join()
                self.holes.join()
                self.invites.join()
                for part in (self._reservations, self.autonat, self.holes, self.moves):
                    nursery.start_soon(part.run)
        finally:
            if self.relay_server is not None:
                self.relay_server.leave()

    def look_again(self) -> None:
        for network in self._networks():
            network.look_again()

    def _tell_moved(self) -> None:
        for network in self._networks():
            network.redial()

    def _addresses_of(self, peers: Iterable[PeerId]) -> Sequence[str]:
        asked = tuple(peers)
        found = (address for network in self._networks() for address in network.addresses_of(asked))
        return list(dict.fromkeys(found))

    async def _is_member(self, peer: PeerId) -> bool:
        """Whether a peer is in any network of this node."""
        for network in list(self._networks()):
            if await network.is_member(peer):
                return True
        return False

    def _needs_relay(self) -> bool:
        return any(True for _ in self._networks()) and not self.autonat.is_reached_by_all()

    def _is_hidden(self) -> bool:
        return self.autonat.whole() is Reached.NO

    async def dial_own(self) -> dict[str, bool]:
        """Dials the addresses at which this node listens, as a stranger; returns which answered."""
        return {each.transport: answered for each, answered in (await self._host.direct.dial_own()).items()}

    def figures(self) -> ReachFigures:
        reserved, circuits = (0, 0) if self.relay_server is None else self.relay_server.counts
        return ReachFigures(
            relays=self._reservations.count,
            reserved=reserved,
            circuits=circuits,
            dial_backs_refused=self.autonat.refused,
            punched=self.holes.succeeded,
            unpunched=self.holes.failed,
            not_dialled=self.holes.refused,
        )

    async def net_facts(self, named: Sequence[str]) -> NetFacts:
        """Reports how others reach this node. ``named``: addresses that its owner gave, as bootstrap peers."""
        direct, connected = self._host.direct, self._host.peers()
        told = [f"{address}/p2p/{peer}" for peer in connected for address in self._addresses_of([peer])]
        mapped = await mapping(direct, dialable((*named, *self._settings.relays, *told)))
        seen = {one.address.transport for one in self.autonat.sightings.values()}
        return NetFacts(
            listening=tuple(each.transport for each in direct.listening()),
            interfaces=tuple(map(str, direct.interfaces())),
            seen=tuple(sorted(seen)),
            reached=dial_back_results(self.autonat),
            mapped=tuple(each.transport for each in mapped),
            relays_named=len(self._settings.relays),
            relays_used=self._reservations.count,
            peers=len(connected),
            by_ip6=sum(address.startswith("/ip6/") for address in connected.values()),
            by_relay=sum(not direct.is_direct(peer) for peer in connected),
            direct=self.holes.succeeded,
            failed=self.holes.failed,
            clock_behind=max((each.clock_behind(connected) for each in self._networks()), default=0.0),
        )
