"""Manages this node's membership of networks: replication in each, and the host that all of them speak through.

Each network has its own topics, directory of peers, statements and rounds (``NetworkDrivers``), over one host (ADR 47).
Without one the host runs only where the settings say where to listen, and until it runs libp2p is not imported.

``NetworkDrivers`` holds the drivers of replication in all networks that a node has joined. A peer is asked within a
network that both nodes are in. A dataset limited to some networks is requested in those only, so that peers elsewhere
do not learn of it. While no network is joined, each request raises Remote with the remedy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import trio
from msgspec.structs import asdict

from chain.errors import Environment, Fault, Remote
from chain.ids import DatasetId, KeyDid
from chain.libraries import kept_out
from chain.statements.keys import SigningKey
from chain.store.database import Database
from odfd.errors import sole_fault
from odfd.network import joined_networks, peer_book_file
from odfd.network.joined_networks import Network, list_joined
from odfd.runtime.clock import Clock
from odfd.runtime.hanging_calls import in_loop
from odfd.runtime.replaceable import Replaceable
from odfd.runtime.supervision import Life, Logger
from p2p.address import parse_address
from p2p.driver.invites import Redeem
from p2p.driver.namespaces import DividedHost, Namespaces
from p2p.driver.net_facts import NetFacts
from p2p.driver.node_reach import NodeReach, ReachSettings
from p2p.driver.ports import HostPort, ReachHost
from p2p.driver.replication import ReplicationDriver
from p2p.driver.settings import LookupMode, ReplicationSettings
from p2p.host.interfaces import can_listen, is_free
from p2p.host.limits import HostLimits
from p2p.identity import peer_of_did, peer_of_seed
from p2p.machines.relay import RelayLimits
from p2p.pace import Bandwidth, PeerTraffic, Traffic
from p2p.ports import (
    Library,
    PeerId,
    PeerView,
    ReplicationFigures,
    StatementStore,
    Topic,
)
from p2p.wire.invite import Redemption


def load_libp2p() -> None:
    """Imports libp2p. Its crypto library parses C by ``cffi`` if that can be imported, by ctypes otherwise."""
    with kept_out(("cffi",)):
        import p2p.driver.network  # noqa: F401


_SUMMED: Final = tuple(name for name in ReplicationFigures.__struct_fields__ if name != "connected")


class NetworkDrivers:
    """The drivers of one node, by network. ``Membership`` adds and removes them."""

    def __init__(self, scope: Callable[[DatasetId], Collection[str] | None]) -> None:
        """``scope``: returns the networks that a dataset is limited to; called in a worker thread."""
        self._scope = scope
        self._drivers: dict[str, ReplicationDriver] = {}
        """Drivers by network, in the order of joining."""
        self._reach: NodeReach | None = None
        """Reachability of the open host; ``None`` without one."""

    def _first_joined(self) -> ReplicationDriver:
        """Returns the driver of the network that was joined first. Raises Remote without any."""
        if not self._drivers:
            raise Remote(
                "this node has joined no network",
                rule="no-network",
                hint="odfctl network join NAME --bootstrap MULTIADDR",
            )
        return next(iter(self._drivers.values()))

    async def in_scope(self, dataset: DatasetId | None = None) -> list[ReplicationDriver]:
        """Returns the drivers of the networks in which a dataset may be mentioned; all drivers for ``None``."""
        if dataset is None or len(self._drivers) < 2:
            return list(self._drivers.values())
        scope = await trio.to_thread.run_sync(self._scope, dataset)
        return [driver for name, driver in self._drivers.items() if scope is None or name in scope]

    async def choose(self, peers: Collection[PeerId], dataset: DatasetId | None = None) -> ReplicationDriver:
        """Returns the driver in which most of these peers are. Raises Remote if none may hear of the dataset."""
        first = self._first_joined()
        if len(self._drivers) < 2:
            return first
        asked = set(peers)
        found = [(len(asked.intersection(each.list_connected())), each) for each in await self.in_scope(dataset)]
        most = max((count for count, _ in found), default=0)
        if not most and dataset is not None:
            raise Remote(
                f"{dataset.short} is limited to networks to which these peers do not belong",
                rule="other-network",
                hint="odfctl describe shows where it is; odfctl peer list who is connected",
            )
        return next((each for count, each in found if count == most), first)

    async def connect(self, *multiaddrs: str) -> PeerId:
        return await self._first_joined().connect(*multiaddrs)

    async def redeem_at(self, inviter: PeerId, token: bytes) -> Redemption:
        """Redeems an invitation's token at its issuer, which is connected. Raises Remote."""
        if self._reach is None:
            raise Remote("this node is in no network", rule="no-network", hint="odfctl network join NAME")
        return await self._reach.invites.ask(inviter, token)

    def views(self) -> list[PeerView]:
        """Lists the peers of all networks, each once."""
        found: dict[PeerId, PeerView] = {}
        for name, driver in self._drivers.items():
            for view in driver.peers():
                named = msgspec.structs.replace(view, networks=(name,) if view.connected else ())
                before = found.get(view.peer)
                found[view.peer] = named if before is None else _joint(before, named)
        return list(found.values())

    def figures(self) -> ReplicationFigures:
        """Returns the figures of all joined networks; a peer of two counts once among the connected ones."""
        each = [driver.figures() for driver in self._drivers.values()]
        connected = len({peer for driver in self._drivers.values() for peer in driver.list_connected()})
        figures = ReplicationFigures(
            connected=connected, **{name: sum(getattr(one, name) for one in each) for name in _SUMMED}
        )
        return figures if self._reach is None else msgspec.structs.replace(figures, **asdict(self._reach.figures()))

    async def announce(self, topic: Topic, envelope: bytes) -> None:
        """Announces a statement in all networks; peers that join later request it."""
        for driver in list(self._drivers.values()):
            await driver.announce(topic, envelope)

    async def announce_in(self, networks: Collection[str], topic: Topic, envelope: bytes) -> None:
        for name, driver in list(self._drivers.items()):
            if name in networks:
                await driver.announce(topic, envelope)

    def look_again(self) -> None:
        """Announces a change of what is served."""
        for driver in self._drivers.values():
            driver.look_again()

    async def pull_statements(
        self, peer: PeerId, datasets: Sequence[DatasetId] | None = None, *, private: bool = False
    ) -> int:
        """Pulls statements on datasets, each in the networks where it may be mentioned; ``None``: on all, in all."""
        self._first_joined()
        if len(self._drivers) < 2:
            return await self._first_joined().pull_statements(peer, datasets, private=private)
        new = 0
        for driver in await self.in_scope():
            if peer not in driver.list_connected():
                continue
            # A dataset of other networks is not named in this one (test_each_way_out_is_open_in_one_network_alone).
            asked = (
                None
                if datasets is None
                else [dataset for dataset in datasets if driver in await self.in_scope(dataset)]
            )
            if asked is None or asked:
                new += await driver.pull_statements(peer, asked, private=private)
        return new

    async def seek(self, dataset: DatasetId, beyond: Collection[str] = ()) -> int:
        return sum([await driver.seek(dataset, beyond) for driver in await self.in_scope(dataset)])

    def serving(self, datasets: Iterable[DatasetId]) -> dict[DatasetId, set[PeerId]]:
        """Returns the connected peers that claim to serve each of ``datasets``."""
        found: dict[DatasetId, set[PeerId]] = {}
        asked = tuple(datasets)
        for driver in self._drivers.values():
            for dataset, peers in driver.serving(asked).items():
                found.setdefault(dataset, set()).update(peers)
        return found

    def penalise(self, peer: PeerId, reason: str, weight: float) -> None:
        """Penalises a peer in each network that it is in, since it is the same peer everywhere."""
        self._first_joined()
        for driver in self._drivers.values():
            driver.penalise(peer, reason, weight)


def _joint(one: PeerView, other: PeerView) -> PeerView:
    """Merges the views of one peer in two networks."""
    seen = [at for at in (one.last_seen, other.last_seen) if at is not None]
    said = [count for count in (one.datasets, other.datasets) if count is not None]
    return msgspec.structs.replace(
        one,
        addresses=tuple(dict.fromkeys((*one.addresses, *other.addresses))),
        connected=one.connected or other.connected,
        score=min(one.score, other.score),
        last_seen=max(seen, default=None),
        proven=one.proven or other.proven,
        datasets=max(said, default=None),
        network=one.network or other.network,
        networks=(*one.networks, *other.networks),
    )


EVERYWHERE: Final = ("/ip6/::/tcp/4150", "/ip4/0.0.0.0/tcp/4150")
"""Multiaddrs to listen at if no setting names any; without the first on a machine without IPv6."""
PORTS_TRIED: Final = 16
"""Ports from that one on that are tried in turn if no setting names one: nodes of one machine share its ports."""


class Known(NamedTuple):
    """Node keys for which connection slots are reserved."""

    chosen: frozenset[KeyDid] = frozenset()
    """Keys of listed validators and witnesses."""
    publishers: frozenset[KeyDid] = frozenset()
    """Keys of the publishers of mirrored datasets."""


class HostOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of this node's host, for all networks."""

    seed: bytes
    listen: tuple[str, ...] | None
    """Multiaddrs to listen at; ``None``: EVERYWHERE while a network is joined, else nowhere."""
    limits: HostLimits
    announce: tuple[str, ...] = ()
    folder: Path | None = None
    """The folder of the peer book; ``None``: the book is not saved."""
    network: Network | None = None
    """The network of the settings: joined at start if no other is; its bootstrap peers are added to those of a join."""
    patience: float = 15.0
    """Seconds without a byte after which a transfer moves to another peer."""
    entropy_interval: float = 60.0
    inside: tuple[str, ...] | None = None
    """Private networks in which addresses learnt from others are dialled (``ReplicationSettings.inside``)."""
    lan: int | None = None
    """The port of multicast DNS; ``None``: no discovery on the LAN."""
    lookup: LookupMode = "auto"
    bandwidth: Bandwidth = msgspec.field(default_factory=Bandwidth)
    relays: tuple[str, ...] = ()
    """Multiaddrs of relays through which others reach this node."""
    relay: RelayLimits | None = None
    """The limits of this node as a relay; ``None``: it is none."""


class Shelf(Library, Protocol):
    """Returns the library of what is public in a network."""

    def within(self, network: str) -> Library: ...


class Board(StatementStore, Protocol):
    def within(self, network: str) -> StatementStore: ...


class _Running(NamedTuple):
    """A network in which this node takes part."""

    terms: tuple[Network, bool]
    """The joined network, and whether it is the first one."""
    scope: trio.CancelScope
    ended: trio.Event


class NodeHost(DividedHost, ReachHost, Protocol):
    """A host that is divided among networks, and that finds out how it is reached."""


class OpenHost(NamedTuple):
    """A host that is open, and what is done with it besides speaking through it."""

    host: NodeHost
    block: Callable[[Iterable[PeerId]], None]
    """Sets the peers that are neither dialled nor let in."""
    traffic: Callable[[], Mapping[PeerId, PeerTraffic]]
    """Returns the traffic with each connected peer."""


class MembershipTerms(NamedTuple):
    """The node's terms for peers, and its answer when some were met."""

    networks: Replaceable[tuple[Network, ...]]
    """The joined networks in order; the first one runs discovery on the LAN."""
    known: Callable[[], Known]
    """Returns the keys with reserved slots; called now and then in a worker thread."""
    scope: Callable[[DatasetId], Collection[str] | None]
    """Returns the networks that a dataset is limited to; called in a worker thread."""
    redeem: Redeem
    """Admits a node that shows an invitation's token; called in a worker thread."""
    on_connect: Callable[[], None]


class Membership(NetworkDrivers):
    """The memberships of one node in networks."""

    def __init__(
        self,
        options: HostOptions,
        shelves: tuple[Shelf, Board],
        database: Database,
        clock: Clock,
        logger: Logger,
        terms: MembershipTerms,
    ) -> None:
        super().__init__(terms.scope)
        self._joined_networks = terms.networks
        self._known, self._redeem, self._on_connect = terms.known, terms.redeem, terms.on_connect
        self._options = options
        self._library, self._board = shelves
        self._database = database
        self._clock = clock
        self._logger = logger
        self._host: HostPort | None = None
        self.peer_traffic: Callable[[], Mapping[PeerId, PeerTraffic]] = dict
        self._running = False
        self._blocked: frozenset[PeerId] = frozenset()
        self._shut_out: Callable[[Iterable[PeerId]], None] = lambda _: None
        self._changed = trio.Event()
        self._settled = trio.Event()
        # Held from reading what is recorded to the change: a network that is left in between would be joined again.
        self._recording = trio.Lock()
        self.failure: Fault | None = None
        """Why the host failed last, as when it could not listen; ``None`` while it runs."""

        self.note = ""
        """What a person should know of the addresses at which the host listens."""

    async def run(self, life: Life) -> None:
        """Runs until asked to stop. Raises Environment when it cannot listen."""
        networks, self._blocked = await trio.to_thread.run_sync(self._read_kept)
        self._joined_networks.put(networks)
        self._running = True
        try:
            while not life.stopping.is_set():
                listen = self._listen()
                await (self._alone(life) if listen is None else self._open(life, listen))
        except BaseException as error:
            self.failure = sole_fault(error)
            raise
        finally:
            self._running = False
            self._settled.set()  # nobody waits for what will not be

    def _listen(self) -> tuple[str, ...] | None:
        """Returns the listen addresses; ``None`` if no host is needed before a network is joined."""
        listen = self._options.listen
        if not self.networks:
            return listen or None
        return listen if listen is not None else EVERYWHERE

    async def _alone(self, life: Life) -> None:
        """Runs without a host until stopped or until a host is needed."""
        async with trio.open_nursery() as nursery:

            async def end() -> None:
                await life.stopping.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(end)
            self._changed = trio.Event()
            await self._until_changed(life)
            nursery.cancel_scope.cancel()

    async def _open(self, life: Life, listen: tuple[str, ...]) -> None:
        """Runs the host until stopped or until it has to listen elsewhere."""
        async with (
            self._open_host(listen) as (network, self._shut_out, self.peer_traffic),
            trio.open_nursery() as nursery,
        ):
            self._host = network
            self._reach = self._reach_of(network)
            nursery.start_soon(self._reach.run)
            self._shut_out(self._blocked)

            async def end() -> None:
                await life.stopping.wait()
                async with trio.open_nursery() as draining:
                    for driver in self._drivers.values():
                        draining.start_soon(driver.drain)
                nursery.cancel_scope.cancel()

            try:
                nursery.start_soon(end)
                await self._memberships(network, life, listen)
                nursery.cancel_scope.cancel()
            finally:
                self._host, self._reach, self.peer_traffic = None, None, dict

    @asynccontextmanager
    async def _open_host(self, listen: tuple[str, ...]) -> AsyncIterator[OpenHost]:
        """Opens the host for as long as the block lasts. Raises Environment when it cannot listen."""
        options = self._options
        # libp2p takes as long to import as half of the daemon: a node that needs no host starts without it.
        await trio.to_thread.run_sync(load_libp2p)
        from p2p.driver.network import open_network
        from p2p.host.host import open_host

        places = listen if listen == options.listen else await trio.to_thread.run_sync(self._free_places)
        opening = open_host(options.seed, places, options.limits, options.announce, options.bandwidth.traffic)
        async with opening as host, open_network(host) as network:
            yield OpenHost(network, host.block, host.traffic)

    def _free_places(self) -> tuple[str, ...]:
        """Returns the default addresses at the first port that no other program has; at the first one if all are taken.

        Whoever takes the port in the next moment makes the host fail, and the next start finds another one.
        """
        wanted = [parse_address(each) for each in EVERYWHERE if can_listen(each)]
        for further in range(PORTS_TRIED):
            places = [msgspec.structs.replace(each, port=each.port + further) for each in wanted]
            if all(map(is_free, places)):
                self.note = ""
                if further:
                    self.note = (
                        f"port {wanted[0].port} is in use on this machine, so it listens at port {places[0].port}; "
                        "p2p.listen in the settings gives it one of its own"
                    )
                    self._logger.info("another port", note=self.note)
                return tuple(map(str, places))
        return tuple(map(str, wanted))

    def _reach_of(self, host: ReachHost) -> NodeReach:
        """Builds the reachability checks that a node needs once, whatever networks it is in."""
        options = self._options
        carried = options.bandwidth.carried
        settings = ReachSettings(relays=options.relays, relay=options.relay, carried=carried, redeem=self._redeem)
        key, now = SigningKey(options.seed), lambda: int(self._clock.now())
        return NodeReach(host, settings, self._rng(), now, key, self._drivers.values)

    def _rng(self) -> Random:
        return Random(int.from_bytes(self._options.seed) ^ self._clock.monotonic())  # noqa: S311 - jitter, no secret

    async def _memberships(self, network: DividedHost, life: Life, listen: tuple[str, ...]) -> None:
        """Runs the joined networks, and follows changes of the memberships."""
        spaces = Namespaces(network)
        running: dict[str, _Running] = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(spaces.run)
            while self._listen() == listen:
                self._changed = trio.Event()
                wanted = {each.name: (each, number == 0) for number, each in enumerate(self.networks)}
                for name in [name for name, one in running.items() if wanted.get(name) != one.terms]:
                    one = running.pop(name)
                    one.scope.cancel()
                    await one.ended.wait()
                for name, terms in wanted.items():
                    if name not in running:
                        ended = trio.Event()
                        scope = await nursery.start(self._take_part, spaces, terms, ended)
                        running[name] = _Running(terms, scope, ended)
                await self._until_changed(life)
            nursery.cancel_scope.cancel()

    async def _take_part(
        self,
        spaces: Namespaces,
        terms: tuple[Network, bool],
        ended: trio.Event,
        task_status: Any,
    ) -> None:
        """Runs replication in one network until it is left."""
        network, leads = terms
        host = spaces.open(network.name)
        try:
            async with trio.open_nursery() as nursery:
                driver = self._replication(host, network, leads=leads)
                self._choose(host, network)
                await self._remember(driver, nursery, network)
                await nursery.start(driver.run)  # type: ignore[arg-type]  # trio cannot name what it passes
                self._drivers[network.name] = driver
                nursery.start_soon(self._watch, driver)
                nursery.start_soon(self._keep_chosen, host, driver, network)
                self._logger.info("network joined", network=network.name)
                self._on_connect()
                task_status.started(nursery.cancel_scope)
        finally:
            self._drivers.pop(network.name, None)
            with trio.CancelScope(shield=True), trio.move_on_after(LEAVING_SECONDS):
                await spaces.close(network.name)
            ended.set()

    async def _until_changed(self, life: Life) -> None:
        """Waits until a change of the memberships is requested; the requested one is in force meanwhile."""
        if not self._changed.is_set():
            self._settled.set()
        self.failure = None
        life.ready()
        await self._changed.wait()

    def _choose(self, host: HostPort, network: Network) -> None:
        """Reserves slots for bootstrap peers and relays, so that no other peer takes them."""
        host.choose(self._named_peers(network), self._bootstrap(network))

    def _named_peers(self, network: Network) -> frozenset[PeerId]:
        addresses = (*self._bootstrap(network), *self._options.relays)
        return frozenset(peer for address in addresses if (peer := parse_address(address).peer))

    async def _keep_chosen(self, host: HostPort, driver: ReplicationDriver, network: Network) -> None:
        """Keeps slots reserved for listed keys and publishers of mirrors, at the addresses that they state."""
        named = self._bootstrap(network)
        friends = self._named_peers(network)
        while True:
            try:
                known = await trio.to_thread.run_sync(self._known)
            except Fault as fault:
                self._logger.error("listed peers cannot be looked up", fault=str(fault), rule=fault.rule)
            else:
                chosen = friends | {peer_of_did(key) for key in known.chosen}
                publishers = {peer_of_did(key) for key in sorted(known.publishers)[:MAX_PUBLISHERS]}
                host.choose(chosen, [*named, *driver.addresses_of(chosen | publishers)], publishers)
            await trio.sleep(CHOSEN_SECONDS)

    def _bootstrap(self, network: Network) -> tuple[str, ...]:
        """Returns the bootstrap peers of the join and those of the settings."""
        set_up = self._options.network
        known = set_up.bootstrap if set_up is not None and set_up.name == network.name else ()
        return tuple(dict.fromkeys([*network.bootstrap, *known]))

    def _replication(self, host: HostPort, network: Network, *, leads: bool) -> ReplicationDriver:
        options = self._options
        settings = ReplicationSettings(
            network=network.name,
            bootstrap=self._bootstrap(network),
            entropy_interval=options.entropy_interval,
            transfer_patience=options.patience,
            inside=options.inside,
            lan=options.lan if leads else None,
            lookup=options.lookup,
            line=options.bandwidth,
            relays=options.relays,
        )
        key = SigningKey(self._options.seed)
        shelves = self._library.within(network.name), self._board.within(network.name)
        return ReplicationDriver(host, *shelves, settings, self._rng(), lambda: int(self._clock.now()), key)

    async def _remember(self, driver: ReplicationDriver, nursery: trio.Nursery, network: Network) -> None:
        """Loads the peers met in this network before, and saves those met from now on."""
        if self._options.folder is None:
            return
        path = self._options.folder / f"{network.name}.json"
        now = trio.current_time()
        await trio.to_thread.run_sync(peer_book_file.recall, driver.book, path, now, self._logger)
        nursery.start_soon(peer_book_file.keep_saved, driver.book, path, self._logger)

    async def _watch(self, driver: ReplicationDriver) -> None:
        """Reports new connections, so that mirrors need not wait for their next round."""
        known: frozenset[PeerId] = frozenset()
        while True:
            now = frozenset(view.peer for view in driver.peers() if view.connected)
            for peer in now & self._blocked:
                await driver.disconnect(peer)
            if now - known:
                self._on_connect()
            known = now
            await trio.sleep(WATCH_SECONDS)

    @property
    def networks(self) -> tuple[Network, ...]:
        """The joined networks, in the order of joining."""
        return self._joined_networks()

    def find(self, name: str) -> Network | None:
        return joined_networks.find_joined(self.networks, name)

    async def join(self, network: Network) -> None:
        """Joins a network. Raises Invalid for a bad name or address, Refused for one too many; then nothing changes."""
        joined_networks.check_network(network)
        async with self._recording:
            before = self.check_room(network.name)
            await trio.to_thread.run_sync(self._keep, network)
            if before is None:
                self._change((*self.networks, network))
            else:
                self._change(tuple(network if each is before else each for each in self.networks))
        await self._settle()

    def check_room(self, name: str) -> Network | None:
        """Returns the joined network of this name, if any. Raises Refused for one too many, or a look-alike name."""
        return joined_networks.check_room(self.networks, name)

    async def reload(self) -> None:
        """Joins the networks and blocks the peers that were recorded since. Raises Environment as ``join``."""
        async with self._recording:
            recorded = {each.name: each for each in await self._reread()}
            networks = {network.name: recorded.get(network.name, network) for network in self.networks} | recorded
            if tuple(networks.values()) == self.networks:
                return
            self._change(tuple(networks.values()))
        await self._settle()

    async def unblock(self) -> None:
        """Blocks none but the peers that are recorded."""
        await self._reread()

    async def _reread(self) -> tuple[Network, ...]:
        kept, self._blocked = await trio.to_thread.run_sync(self._read_kept)
        self._shut_out(self._blocked)
        return kept

    async def leave(self, name: str) -> Network | None:
        """Leaves a network that is recorded no longer; returns it, if this node was in it. Raises as ``join``."""
        async with self._recording:
            left = self.find(name)
            recorded = () if left is None else await trio.to_thread.run_sync(self._read_recorded)
            if left is None or joined_networks.find_joined(recorded, name) is not None:
                return None
            if not self._running:
                return left
            self._change(tuple(network for network in self.networks if network is not left))
        await self._settle()
        return left

    def _change(self, networks: tuple[Network, ...]) -> None:
        if not self._running:
            raise self.failure or Environment(
                "the network is not running: the daemon is stopping, or it has failed and is started again",
                rule="network-down", hint="try again in a moment; odfctl doctor lists failures",
            )  # fmt: skip
        self._joined_networks.put(networks)
        if self._settled.is_set():
            self._settled = trio.Event()
        # Else another change is under way, and whoever waits for it waits on this event: one of its own would leave it.
        self.failure = None
        self._changed.set()

    async def _settle(self) -> None:
        """Waits until the network is as ``_change`` wants it. Raises what made it fail."""
        await self._settled.wait()
        if self.failure is not None:
            raise self.failure

    @in_loop
    def bootstrap(self, network: Network) -> tuple[str, ...]:
        """Returns the peers by which an invited node begins, this node first."""
        ours = [each for each in map(parse_address, self.addresses()) if each.peer is not None]
        beyond = [each for each in ours if each.ip is None or not each.ip.is_loopback]
        return tuple(dict.fromkeys([*map(str, beyond or ours), *self._bootstrap(network)]))

    def _read_kept(self) -> tuple[tuple[Network, ...], frozenset[PeerId]]:
        with self._database.read() as connection:
            networks, blocked = list_joined(connection), joined_networks.list_blocked(connection)
        set_up = () if self._options.network is None else (self._options.network,)
        return networks or set_up, blocked

    def _read_recorded(self) -> tuple[Network, ...]:
        with self._database.read() as connection:
            return list_joined(connection)

    def _keep(self, network: Network) -> None:
        with self._database.write() as connection:
            joined_networks.keep(connection, network, self._clock.now())

    def share_of(self, peer: PeerId) -> str:
        """Returns the address block whose limits a connected peer shares; the peer itself for others. Any thread."""
        return self._host.share_of(peer) if self._host else peer

    @property
    def peer_id(self) -> PeerId:
        return peer_of_seed(self._options.seed)

    def addresses(self) -> Sequence[str]:
        return self._host.addresses() if self._host is not None else ()

    @in_loop
    def peers(self) -> Sequence[PeerView]:
        shown = [msgspec.structs.replace(one, blocked=one.blocked or one.peer in self._blocked) for one in self.views()]
        unseen = sorted(self._blocked - {view.peer for view in shown})
        return [*shown, *(PeerView(peer=peer, blocked=True) for peer in unseen)]

    async def net_facts(self) -> NetFacts:
        """Returns the facts for ``netcheck``. Raises Remote while no network is joined."""
        self._first_joined()
        named = [address for network in self.networks for address in self._bootstrap(network)]
        return await self._reach.net_facts(named) if self._reach is not None else NetFacts()

    async def dial_own(self) -> Mapping[str, bool]:
        """Dials the addresses at which this node listens, as a stranger; returns which answered."""
        return await self._reach.dial_own() if self._reach is not None else {}

    @property
    def traffic(self) -> Traffic:
        """Returns the traffic with all peers, of all networks."""
        return self._options.bandwidth.traffic

    @property
    def blocked(self) -> int:
        """Returns how many peers a person blocked."""
        return len(self._blocked)


CHOSEN_SECONDS: Final = 60.0
"""Interval at which reserved slots are computed anew, as lists, mirrors and addresses change."""
MAX_PUBLISHERS: Final = 256
"""Publishers of mirrored datasets that get reserved slots, at most."""
LEAVING_SECONDS: Final = 2.0
"""Limit for goodbyes to the members of a network that is left."""
WATCH_SECONDS: Final = 0.25
"""Interval of looks at the set of connected peers, which is small and in memory."""
