"""Replicates statements, chains and objects within one network, with trio, over any ``HostPort``.

Made by the wiring of the node, works while ``run`` runs; all its tasks are in one nursery there. To stop in order, call
``drain`` and then cancel. It moves bytes; the ports decide whether they are true.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Protocol

import msgspec
import trio

from chain.errors import Invalid, NotFound, Remote
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from chain.wording import agree
from p2p.driver.discovery import Discovery
from p2p.driver.exchange import Exchanges
from p2p.driver.fetch_jobs import (
    CHAIN_SHAPE,
    OBJECT_SHAPE,
    PACK_SHAPE,
    Answer,
    ChainFetch,
    ObjectFetch,
    PackFetch,
    ask_range,
    ask_read,
    describe,
)
from p2p.driver.forwarding import Forwarding
from p2p.driver.lookups import Lookups
from p2p.driver.mesh import Mesh
from p2p.driver.peer_penalties import Histories, PeerPenalties
from p2p.driver.ports import HostPort
from p2p.driver.serve import RequestServer
from p2p.driver.settings import ReplicationSettings
from p2p.driver.statements import GOSSIP_RATE, StatementServer
from p2p.driver.swarms import Swarms
from p2p.driver.transfers import TransferRun, fit_to_rate
from p2p.errors import Misbehaviour, PeerFault, TooSlow
from p2p.ip import anywhere
from p2p.machines.providers import TrackRecords
from p2p.machines.transfer import PartTransfer, TransferShape
from p2p.pace import Pace
from p2p.peers.book import PeerBook
from p2p.peers.directory import AddressFilter
from p2p.ports import (
    ChainSink,
    HeldParts,
    Library,
    ObjectSink,
    PackSink,
    PartsAsk,
    PeerId,
    PeerView,
    PiecesAsk,
    ReplicationFigures,
    StatementStore,
    Tip,
    Topic,
    TreeRoot,
)
from p2p.wire import chains, objects
from p2p.wire.chains import BlockRange, Blocks
from p2p.wire.limits import MAX_RANGE_BLOCKS, MAX_RANGE_BYTES
from p2p.wire.objects import ObjectRange
from p2p.wire.presence import Presence
from p2p.wire.refusal import PeerRefusal, RefusalReason
from p2p.wire.swarm import PieceListAsk

if TYPE_CHECKING:
    from p2p.driver.lan import Lan


class TaskStatus(Protocol):
    """The part of the object from ``nursery.start`` that is used here."""

    def started(self) -> None: ...


class ReplicationDriver:
    """The replication of one node in one network. ``key`` is the node's; it signs the node's presence."""

    def __init__(
        self,
        host: HostPort,
        library: Library,
        board: StatementStore,
        settings: ReplicationSettings,
        rng: Random,
        wall: Callable[[], int],
        key: SigningKey | None = None,
    ) -> None:
        self._host = host
        self._settings = settings
        self._rng = rng
        self._standing = PeerPenalties(host, PeerBook(rng), wall)
        self._records = TrackRecords(host.network_of)
        self._histories = Histories(self.fetch_blocks, self._standing)
        self._server = RequestServer(host, library, self._standing, settings.line.up)
        self._pace = settings.line.down
        reach = AddressFilter(settings.inside, (*settings.bootstrap, *settings.relays))
        self._discovery = Discovery(host, library, self._standing, settings.network, rng, key, reach)
        self._lookups = Lookups(host, self._standing, self._discovery, settings.lookup, rng, key)
        forwarding = Forwarding(host, self._discovery.naming, GOSSIP_RATE)
        self._statements = StatementServer(host, board, library, self._standing, settings.network, forwarding)
        self._mesh = Mesh(host, self._standing, self._statements, self._discovery, settings, rng, self._lookups)
        self._swarms = Swarms(host, library, self._standing, self._discovery, self._visit, rng)
        self._lan: Lan | None = None
        if settings.lan is not None:
            from p2p.driver.lan import Lan  # with zeroconf, which a node without multicast never needs

            visit = partial(self._mesh.visit, allows=anywhere)  # where it was heard from
            self._lan = Lan(host, self._standing, settings.network, visit, settings.lan)
        self._chains = Exchanges(host, self._standing, reach, chains.PROTOCOL, chains.decode_chain_reply)
        self._objects = Exchanges(host, self._standing, reach, objects.PROTOCOL, objects.decode_object_reply)
        self._nursery: trio.Nursery | None = None

    @property
    def peer_id(self) -> PeerId:
        return self._host.peer_id

    @property
    def book(self) -> PeerBook:
        """The peer book; the node keeps a snapshot of it between runs."""
        return self._standing.book

    async def run(self, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Runs until cancelled; reports that it started once it serves, listens to gossip and takes calls."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._server.start(nursery)
                for protocol, handler in self._server.handlers().items():
                    self._host.set_handler(protocol, handler)
                await self._statements.join()
                await self._discovery.join()
                self._lookups.join()
                self._swarms.join()
                nursery.start_soon(self._discovery.run)
                nursery.start_soon(self._lookups.run)
                nursery.start_soon(self._standing.run)
                nursery.start_soon(self._mesh.run)
                if self._lan is not None:
                    nursery.start_soon(self._lan.run)
                task_status.started()
        finally:
            self._nursery = None
            self._server.stop()

    async def drain(self) -> None:
        """Stops answering new requests, and waits some seconds for answers under way."""
        with trio.move_on_after(self._settings.drain):
            await self._server.drain()

    def addresses(self) -> Sequence[str]:
        return self._host.addresses()

    def peers(self) -> Sequence[PeerView]:
        now = trio.current_time()
        return [
            msgspec.structs.replace(
                view,
                proven=view.connected and self._records.is_proven(view.peer, now),
                network=self._host.network_of(view.peer) if view.connected else "",
                datasets=self._discovery.told_by(view.peer),
            )
            for view in self.book.views(now)
        ]

    def list_connected(self) -> Collection[PeerId]:
        """Returns the connected peers of this network."""
        return self._host.peers().keys()

    def figures(self) -> ReplicationFigures:
        """Returns the present load and counts; equally cheap however much is kept."""
        return ReplicationFigures(
            connected=len(self._host.peers()),
            known=len(self.book),
            unread=self._statements.dropped,
            kept_back=self._statements.forwarding.kept_back,
            unwanted=self._statements.forwarding.unwanted,
            peers_unread=self._discovery.dropped,
            judging=self._statements.waiting,
            answering=self._server.answering,
            lookup_nodes=len(self._lookups.node.table),
            lookup_records=len(self._lookups.node.records),
            lookup_refused=self._lookups.node.refused,
            lookup_forged=self._lookups.forged,
        )

    async def connect(self, *multiaddrs: str) -> PeerId:
        """Connects to a peer at one of its multiaddresses: IPv6 first, others soon after. Raises Remote."""
        return await self._mesh.connect(*multiaddrs)

    async def disconnect(self, peer: PeerId) -> None:
        """Closes every connection to a peer; the peer may connect again."""
        await self._host.disconnect(peer)

    def redial(self) -> None:
        """Dials peers again, as the machine moved to another network."""
        self._mesh.redial()

    def look_again(self) -> None:
        """Updates our presence after a change of what the library serves."""
        self._discovery.look_again()

    async def announce(self, topic: Topic, envelope: bytes) -> None:
        self._discovery.look_again()
        await self._statements.announce(topic, envelope)

    async def pull_statements(
        self, peer: PeerId, datasets: Sequence[DatasetId] | None = None, *, private: bool = False
    ) -> int:
        """Runs anti-entropy with one peer: compares sums, fetches missing statements, stores them,
        and returns their number.

        ``private``: this node passes on nothing of these datasets, so the peer may send what it shares with this node
        alone.
        """
        return await self._statements.pull(peer, datasets, private=private)

    async def ask_parts(self, peer: PeerId, ask: PartsAsk) -> HeldParts | None:
        """Asks a peer which objects it has; ``None`` if it tells of none. Raises Remote, also if it lacks the protocol.

        Connects to other peers that it names as fetching the same objects.
        """
        return await self._swarms.ask(peer, ask, self._alive())

    async def ask_pieces(self, peer: PeerId, ask: PiecesAsk) -> HeldParts | None:
        """Asks a peer which pieces of an object it has. As ``ask_parts``."""
        return await self._swarms.ask_pieces(peer, ask, self._alive())

    async def piece_list(
        self, peer: PeerId, dataset: DatasetId, name: Multihash, size: int
    ) -> tuple[bytes, bytes] | None:
        """The hashes that a peer tells of an object's pieces, and a signature, unchecked. Raises Remote."""
        found = await self._swarms.piece_list(peer, PieceListAsk(dataset, name, size))
        return None if found is None else (found.hashes, found.signature)

    async def _visit(self, presence: Presence) -> None:
        """Dials a peer that another peer named."""
        await self._mesh.visit(presence.peer, self._discovery.addresses(presence), self._discovery.allows())

    async def seek(self, dataset: DatasetId, beyond: Collection[str] = ()) -> int:
        """Connects to some peers that claim to serve ``dataset``, and returns the number of new connections.

        ``beyond``: networks (as in ``PeerView``) from which enough peers are known; then only one peer of each of some
        other networks is connected. The caller checks with ``chain_size`` whether they do serve it. Makes a few dials
        at most, and never raises Remote.
        """
        return await self._mesh.seek(dataset, beyond)

    def addresses_of(self, peers: Iterable[PeerId]) -> list[str]:
        """Returns the addresses of peers from their signed presences."""
        return self._discovery.addresses_of(peers)

    def clock_behind(self, peers: Iterable[PeerId]) -> float:
        """Returns the seconds by which the clock of one of these peers is at least ahead of ours."""
        return self._discovery.clock_behind(peers)

    async def is_member(self, peer: PeerId) -> bool:
        """Whether the directory has a presence that the connected peer signed for this network;
        asks a peer that it lacks."""
        return await self._discovery.is_member(peer)

    def serving(self, datasets: Iterable[DatasetId]) -> dict[DatasetId, set[PeerId]]:
        """Returns the connected peers that claim to serve each of ``datasets``, unchecked."""
        return self._discovery.serving(datasets)

    def penalise(self, peer: PeerId, reason: str, weight: float) -> None:
        self._standing.penalise(peer, reason, weight)

    async def chain_size(self, peer: PeerId, dataset: DatasetId) -> int:
        ask = BlockRange(request=0, dataset=dataset, start=0, max_blocks=0, max_bytes=0)
        answer = await self._ask_range(peer, ask)
        return 0 if answer is None else answer.size

    async def object_size(self, peer: PeerId, name: Multihash) -> int | None:
        """Asks ``peer`` for an object's size in bytes; ``None`` when it does not serve it. Raises Remote."""
        ask = ObjectRange(request=0, name=name, offset=0, length=0)
        answer = await self._answer(peer, f"object {name.short}", partial(ask_read, self._objects, ask=ask))
        return None if answer is None else answer.size

    async def fetch_blocks(self, peer: PeerId, dataset: DatasetId, start: int, max_bytes: int) -> Sequence[bytes]:
        """Returns one answer to a request for a range of blocks, within limits, split into raw,
        unchecked blocks. Raises Remote."""
        size = max(1, min(max_bytes, MAX_RANGE_BYTES))
        ask = BlockRange(request=0, dataset=dataset, start=start, max_blocks=MAX_RANGE_BLOCKS, max_bytes=size)
        answer = await self._ask_range(peer, ask)
        if answer is None:
            raise PeerFault(peer, f"chain {dataset.short}: does not have it", rule="refused")
        return answer.blocks

    async def _ask_range(self, peer: PeerId, ask: BlockRange) -> Blocks | None:
        return await self._answer(peer, f"chain {ask.dataset.short}", partial(ask_range, self._chains, ask=ask))

    async def _answer(
        self, peer: PeerId, what: str, ask: Callable[[trio.Nursery, PeerId], Awaitable[Answer | PeerRefusal]]
    ) -> Answer | None:
        """Asks a peer one question; ``None``: it does not have the thing.
        Raises PeerFault, TooSlow after a time limit."""
        patience = self._settings.question_patience
        with trio.move_on_after(patience):
            try:
                answer = await ask(self._alive(), peer)
            except Misbehaviour as fault:
                self._standing.blame(fault)
                raise
            if not isinstance(answer, PeerRefusal):
                return answer
            if answer.reason is RefusalReason.UNKNOWN:
                return None
            raise PeerFault(peer, f"{what}: {describe(answer)}", rule="refused")
        raise TooSlow(peer, f"no answer in {patience:.0f} s", rule="question-patience")

    async def pull_chain(
        self, peers: Sequence[PeerId], dataset: DatasetId, size: int, sink: ChainSink, pace: Pace | None = None
    ) -> None:
        """Fills ``sink`` up to ``size`` blocks from any of ``peers``, many ranges at a time, then finishes it.

        ``pace`` is the caller's own rate limit, under that of the node; likewise below for objects.

        Raises Remote, naming peers and reasons, if they give no blocks that the sink accepts; accepted blocks stay. A
        peer is blamed for wrong blocks only if it shows that it holds the right ones: it may hold another history.
        """
        errand = ChainFetch(self._chains, self._alive(), dataset, sink, self._histories)
        start = await trio.to_thread.run_sync(errand.resume_at)
        machine = self._transfer(start, size, CHAIN_SHAPE, pace)
        usable = self._usable(peers)
        fit = await self._histories.fit(usable, dataset, sink.tip, self._alive())
        if usable and not fit:
            raise Remote(
                f"{errand.what}: {_all_that_have(len(usable))} another history of it",
                rule="no-peer",
                hint="its owner may have rewritten it; others may have this one, or they may follow yet",
            )
        await TransferRun(errand, machine, self._standing, self._paces(pace)).run(fit)

    async def holds(self, peer: PeerId, dataset: DatasetId, tip: Tip) -> bool:
        """Whether ``peer`` shows that it holds exactly this chain; ``False`` also if it does not answer."""
        return await self._histories.holds(peer, dataset, tip)

    async def prove_prefix(self, peers: Sequence[PeerId], dataset: DatasetId, old: TreeRoot, signed: TreeRoot) -> bool:
        """Whether any of ``peers`` proves that the tree ``old`` is the beginning of the tree ``signed``.

        ``False`` if the answers prove nothing: then ``old`` is doubtful. Raises Remote if no peer answered.
        """
        return await self._statements.prove_prefix(self._usable(peers), dataset, old, signed)

    async def fetch_object(
        self, peers: Sequence[PeerId], name: Multihash, size: int, sink: ObjectSink, pace: Pace | None = None
    ) -> None:
        """Fills ``sink`` from any of ``peers``, starting at ``sink.received``; checks the hash before it returns.

        A sink with a ``stop`` takes the bytes up to it.

        Raises Remote, naming the peer, when no peer could give the right bytes.
        """
        errand = ObjectFetch(self._objects, self._alive(), name, size, sink, self._standing)
        start = await trio.to_thread.run_sync(errand.resume_at)
        # The part that is here was taken by another peer's larger size: one of the two lied.
        if start > size:
            await trio.to_thread.run_sync(sink.abandon)
            raise Invalid(f"{errand.what}: {start} bytes are here already, of {size}", rule="object-size")
        stop = size if sink.stop is None else sink.stop
        machine = self._transfer(start, stop, OBJECT_SHAPE, pace, inherited=start > 0 and sink.stop is None)
        await TransferRun(errand, machine, self._standing, self._paces(pace)).run(self._usable(peers))

    async def fetch_small(
        self, peers: Sequence[PeerId], names: Sequence[Multihash], sink: PackSink, pace: Pace | None = None
    ) -> None:
        """Fills ``sink`` with small objects from any of ``peers``, in the order of ``names``, many in each answer.

        Starts at ``sink.received``. Raises Remote, naming the peers, if they did not give all; objects received stay.
        """
        errand = PackFetch(self._objects, self._alive(), names, sink, self._standing)
        start = await trio.to_thread.run_sync(errand.resume_at)
        machine = self._transfer(start, len(names), PACK_SHAPE, pace)
        await TransferRun(errand, machine, self._standing, self._paces(pace)).run(self._usable(peers))

    def _transfer(
        self, start: int, target: int, shape: TransferShape, own: Pace | None, *, inherited: bool = False
    ) -> PartTransfer:
        rate = min((pace.rate for pace in self._paces(own) if pace.rate), default=0)
        shaped = msgspec.structs.replace(fit_to_rate(shape, rate), patience=self._settings.transfer_patience)
        return PartTransfer(start, target, shaped, self._rng, self._records, inherited=inherited)

    def _paces(self, own: Pace | None) -> Sequence[Pace]:
        return (self._pace,) if own is None else (self._pace, own)

    def _usable(self, peers: Sequence[PeerId]) -> list[PeerId]:
        return [peer for peer in dict.fromkeys(peers) if not self._standing.is_shut_out(peer)]

    def _alive(self) -> trio.Nursery:
        if self._nursery is None:
            raise NotFound("replication is not running", rule="not-running")
        return self._nursery


def _all_that_have(peers: int) -> str:
    return agree(peers, "the one peer that has it holds", f"all {peers} peers that have it hold")
