"""Runs the services of a node that do not belong to a single network: how others reach its host, and through whom.

Dial-backs (AutoNAT v2), hole punches, reservations at relays, this node's own relay, and the watch of its interfaces
belong to the host: a peer of any joined network is asked, answered and relayed. Made over the undivided host, lives as
long as the host does.

``NetworkChanges`` reconnects a node when its machine moves to another network: drops dead connections, forgets its old
public addresses. Made with the host (``node_reach``). The tasks that keep connections up (bootstrap peers, relays) then
make them again at once, from the new address.

``Reservations`` keeps reservations at relays, so that others reach a node that they cannot dial (circuit relay v2).
Made with the host (``node_reach``) if the settings name relays. A relay that refuses, lies or is gone is not announced
until it has given a reservation again; if more relays are named than are used at a time, another takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Final, Protocol

import msgspec
import structlog
import trio

from chain.errors import Fault, Invalid
from chain.statements.keys import SigningKey
from p2p.address import parse_address
from p2p.driver.autonat import AutoNat
from p2p.driver.hole_punching import HolePunching
from p2p.driver.invites import InvitationDesk, Redeem
from p2p.driver.net_facts import NetFacts, dial_back_results, dialable, mapping
from p2p.driver.ports import DirectPort, ReachHost
from p2p.driver.relay_server import RelayServer
from p2p.errors import Misbehaviour, PeerUnreachable, TooSlow
from p2p.host.messages import read_message
from p2p.ip import anywhere
from p2p.machines.dial_back import DialBackLimits, DialBacks
from p2p.machines.reachability import LOOK, AddressWatch, Reached
from p2p.machines.relay import CircuitRelay, RelayLimits
from p2p.pace import Pace
from p2p.peers.book import REDIAL
from p2p.ports import PeerId
from p2p.wire.circuit import HOP, MAX_MESSAGE, CircuitStatus, HopKind, HopMessage, check_voucher, decode_hop, encode_hop
from p2p.wire.invite import Redemption

MOST_USED: Final = 3
"""Relays used at a time: one may fail, and one may be far away."""
PATIENCE: Final = 10.0
"""Seconds for one question."""
SHORTEST, LONGEST = 60.0, 3600.0
"""Seconds for which a reservation counts, at least and at most, whatever the relay's clock says."""
WATCH: Final = 1.0
"""Seconds between checks whether the relay is still connected."""


class Reservations:
    """Keeps one node's reservations. ``changed`` is called when its relays change; ``wall`` returns nanoseconds.

    A node that others reach directly needs none (``is_needed``) and reserves nothing.
    """

    def __init__(
        self,
        host: ReachHost,
        relays: tuple[str, ...],
        rng: Random,
        wall: Callable[[], int],
        changed: Callable[[], None],
        is_needed: Callable[[], bool],
    ) -> None:
        self._host = host
        self._relays = tuple(map(parse_address, relays))
        self._rng = rng
        self._wall = wall
        self._changed = changed
        self._is_needed = is_needed
        self._held: dict[PeerId, str] = {}
        self._places = trio.CapacityLimiter(MOST_USED)

    @property
    def count(self) -> int:
        return len(self._held)

    async def run(self) -> None:
        """Runs until cancelled."""
        async with trio.open_nursery() as nursery:
            for address in self._relays:
                assert address.peer is not None, "checked with the settings"
                nursery.start_soon(self._keep, address.peer, str(address))

    async def _keep(self, relay: PeerId, address: str) -> None:
        failures = 0
        while True:
            while not self._is_needed():  # noqa: ASYNC110 - dial-backs decide it, now and then
                await trio.sleep(WATCH)
            async with self._places:
                try:
                    await self._host.connect(address, allows=anywhere)
                    while self._is_needed():
                        seconds = await self._reserve(relay)
                        self._set(relay, address)
                        failures = 0
                        await self._hold_connection(relay, seconds / 2)
                except Fault as fault:
                    failures += 1
                    _LOG.info("relay not used", relay=address, fault=str(fault), rule=fault.rule, failures=failures)
                finally:
                    self._set(relay, None)
            await trio.sleep(REDIAL.wait(failures, self._rng))

    def _set(self, relay: PeerId, address: str | None) -> None:
        held = {peer: each for peer, each in self._held.items() if peer != relay}
        if address is not None:
            held[relay] = address
        if held != self._held:
            self._held = held
            self._host.reached_by(held)
            self._changed()

    async def _hold_connection(self, relay: PeerId, seconds: float) -> None:
        """Waits for ``seconds``, or until no relay is needed. Raises PeerUnreachable if the connection is gone."""
        until = trio.current_time() + seconds
        while trio.current_time() < until and self._is_needed():
            await trio.sleep(WATCH)
            if relay not in self._host.peers():
                raise PeerUnreachable(relay, "the connection with the relay is gone", rule="relay-gone")

    async def _reserve(self, relay: PeerId) -> float:
        """Makes a reservation; returns the seconds for which it counts. Raises PeerFault."""
        with trio.move_on_after(PATIENCE):
            stream = await self._host.open_stream(relay, HOP)
            try:
                await stream.send_all(encode_hop(HopMessage(kind=HopKind.RESERVE)))
                said = decode_hop(await read_message(stream, relay, MAX_MESSAGE))
                if said.kind is not HopKind.STATUS or said.status != CircuitStatus.OK or said.reservation is None:
                    raise PeerUnreachable(relay, f"it gives no reservation: status {said.status}", rule="relay-refused")
                # Circuit relay v2 leaves the voucher to the relay.
                if said.reservation.voucher:
                    check_voucher(said.reservation.voucher, relay, self._host.peer_id)
                left = said.reservation.expires - self._wall() / 1e9
                return min(max(left, SHORTEST), LONGEST)
            except Invalid as error:
                raise Misbehaviour(relay, error.message, rule=error.rule, hint=error.hint) from error
            finally:
                with trio.CancelScope(shield=True), trio.move_on_after(1.0):
                    await stream.reset()
        raise TooSlow(relay, f"no reservation within {PATIENCE:g} s", rule="relay-patience")


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
        host.share_port_with(peer for relay in settings.relays if (peer := parse_address(relay).peer))
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
            clock_behind=max((network.clock_behind(connected) for network in self._networks()), default=0.0),
        )
