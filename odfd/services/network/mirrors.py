"""Adds, pauses and removes mirrors, and lists and blocks peers."""

from __future__ import annotations

import itertools
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec
import trio

from chain import instant
from chain.errors import Invalid, NotFound, Refused, Remote
from chain.ids import DID_ODF, DatasetId
from chain.instant import Instant
from chain.store import former_epochs
from odfd.control import wire
from odfd.control.board import task_ref
from odfd.control.operations import MIRROR_PATH, NODE_PATH, Owner, operation
from odfd.mirrors.first_contact import rung_of
from odfd.mirrors.mirror_state import Mirror, MirrorProgress, MirrorVisibility, SchedulerState
from odfd.mirrors.scheduler import MirrorScheduler
from odfd.network.joined_networks import Network
from odfd.network.membership import Membership
from odfd.network.node_names import NodeNames, peer_named
from odfd.runtime.subjects import NODE, Sees, about
from odfd.runtime.tasks import Report, TaskBoard, outside
from odfd.services.datasets.service import known_dataset
from odfd.services.network import netcheck
from odfd.services.network.contact_views import dataset_contact
from odfd.services.network.mirror_wait import MirrorWait
from odfd.services.network.network_types import via_place
from odfd.services.network.search import SearchService
from odfd.services.resources.views import GetResource, manifest_of, with_state
from odfd.services.transfer.remotes import Remotes, place_of
from odfd.services.views.holder_counts import HolderCounts
from odfd.services.views.withdrawals import withdrawn_at
from odfd.store import mirror_specs
from odfd.store.catalog import default_name
from odfd.store.directory import StateDirectory
from odfd.store.holdings import Holdings
from odfd.store.mirror_specs import MirrorSpec
from odfd.store.retention import ALL, UNCAPPED
from odfd.trust.judgement.trust_evaluator import DatasetFacts, TrustEvaluator
from p2p.pace import PeerTraffic
from p2p.ports import PeerView

_WORST: Final = (
    SchedulerState.CURRENT, SchedulerState.SYNCING, SchedulerState.WAITING, SchedulerState.PAUSED,
    SchedulerState.STALLED, SchedulerState.REFUSED, SchedulerState.FAILED,
)  # fmt: skip
"""From the best to the worst."""
MAX_HOLDS: Final = 1000
"""Most names of datasets that are shown of one peer."""


class PreparedMirror(NamedTuple):
    """A mirror that can be recorded."""

    spec: MirrorSpec
    shown: MirrorVisibility
    is_kept: bool
    """Whether the dataset was deleted and its data is kept; it is taken back first."""


class MirrorLinks(NamedTuple):
    """The work of other features for mirrors."""

    network_named: Callable[[str], Network | None]
    """Returns the joined network of a name."""
    get: GetResource
    """Returns a resource."""
    adopt: Callable[[DatasetId, str], object]
    """Takes back a deleted dataset whose data is kept."""
    follow_shards: Callable[[DatasetId], Awaitable[Sequence[DatasetId]]]
    """Mirrors the other shards of a mirrored collection, and returns them."""


class MirrorService:
    """The API service for mirrors."""

    def __init__(
        self,
        home: StateDirectory,
        scheduler: MirrorScheduler,
        evaluator: TrustEvaluator,
        board: TaskBoard,
        remotes: Remotes,
        holders: HolderCounts,
        search: SearchService,
        links: MirrorLinks,
    ) -> None:
        self._evaluator, self._visibility = evaluator, home.visibility
        self._remotes = remotes
        self._holders = holders
        self._search, self.links = search, links
        self._home = home
        self._scheduler = scheduler
        self._board = board

    @operation("POST", NODE_PATH + "/mirrors", needs=Owner.NETWORK)
    async def add(self, request: wire.MirrorRequest) -> wire.TaskRef:
        """Adds a mirror, which is kept until it is removed. Result: ResourceManifest, once what is announced is here.

        For a place, the task asks which dataset is published there, since a server may take its time.
        """
        place = None if request.source.startswith(DID_ODF) else self._place(request.source)
        if request.peers and (place is not None or request.via is not None):
            raise Invalid(
                "peers share what is named by its did alone", rule="mirror-from", hint="did:odf:…, and no URL"
            )
        named = await self._begin(request, DatasetId.parse(request.source), None) if place is None else None

        async def work(report: Report) -> wire.ResourceManifest:
            mirror = named
            if mirror is None:
                assert place is not None
                report.begin(f"asking {place}", None, "bytes")
                async with outside(place):
                    dataset, at = await self._remotes.find(place)
                mirror = await self._begin(request, dataset, at)
            report.begin(f"mirroring {mirror.spec.name}", None, "bytes")
            wait = self._wait(mirror)
            async with outside(f"peers of {mirror.spec.name}"):
                await wait.settled(report)
                await self._all_shards(mirror, report)
            now = self._scheduler.find(mirror.spec.id)
            if now is None:
                raise NotFound(f"{mirror.spec.name} is a mirror no longer", rule="mirror", hint="odfctl mirror list")
            if now.fault is not None:
                raise now.fault
            return await self._show(now.spec.id, wait.lack())

        target, told = (request.source, NODE) if named is None else (named.spec.name, about(named.spec.id))
        return task_ref(self._board.submit("mirror", target, work, told))

    def _wait(self, mirror: Mirror) -> MirrorWait:
        return MirrorWait(self._scheduler, mirror, self._remotes.replication.peers)

    async def _all_shards(self, mirror: Mirror, report: Report) -> None:
        """Waits until the other shards of a collection are here too, as far as they can come."""
        via = mirror.spec.via
        if not (via is None or via.endswith(f"/{mirror.spec.id.multibase}")):
            return  # cards come from peers, or with a collection on a web server
        others = await self.links.follow_shards(mirror.spec.id)
        for each in others:
            other = self._scheduler.find(each)
            if other is not None:
                await self._wait(other).settled(report)
        if others:
            await self.links.follow_shards(mirror.spec.id)  # what each of them says came with it

    def chains_of(self, dataset: DatasetId) -> Sequence[DatasetId]:
        """Lists the chains that are mirrored as a dataset is: those of a collection, or itself. Blocking."""
        with self._home.catalog() as catalog:
            entry = catalog.find(dataset)
            return [dataset] if entry is None else catalog.chains_of(entry)

    def prepare(self, spec: MirrorSpec, *, is_new: bool = True) -> PreparedMirror:
        """Prepares a declared mirror, and changes nothing. Raises Invalid, Refused.

        ``is_new``: whether its name is to be checked, as a plan checks those of others.
        """
        spec = self._find_whole(spec)
        if is_new:
            with self._home.catalog() as catalog:
                catalog.check(spec.name, spec.id)
        return self._prepare(spec)

    def whole_of(self, dataset: DatasetId) -> DatasetId:
        """Returns the dataset that a chain is inside of, or is. Blocking."""
        with self._home.catalog() as catalog:
            entry = catalog.find(dataset)
            whole = catalog.resource_of(dataset) if entry is not None and entry.is_inner else None
        return dataset if whole is None or whole.did is None else DatasetId.parse(whole.did)

    def record(self, connection: sqlite3.Connection, prepared: PreparedMirror) -> None:
        """Records a mirror in the transaction of others; ``take_up`` follows. Raises Invalid, Environment."""
        self._scheduler.record(connection, prepared.spec, prepared.shown)

    async def take_up(self, prepared: PreparedMirror) -> None:
        """Begins a recorded mirror."""
        await self._scheduler.take_up(prepared.spec)

    def _prepare(self, spec: MirrorSpec, private: bool | None = None) -> PreparedMirror:
        spec.check()
        if spec.via is not None:
            self._remotes.check(spec.via)
        is_held = self._home.chains.chain(spec.id).head() is not None
        # The key alone does not tell: a dataset whose data was lost here may be taken back from a mirror.
        if is_held and self._home.keys.has_dataset_key(spec.id):
            raise Refused(f"{spec.id.short} is this node's own", rule="mirror-own", hint="others mirror it from here")
        return PreparedMirror(spec, MirrorVisibility(private=private, held=is_held), self._is_kept(spec.id))

    async def _begin(self, request: wire.MirrorRequest, dataset: DatasetId, found_at: str | None) -> Mirror:
        """Adds a mirror. ``found_at``: the place where the dataset was found.

        Data kept from a deletion is taken back.
        """
        network = None if request.network is None else self._find_network(request.network)
        views = self._remotes.replication.peers()
        peers = tuple(dict.fromkeys(peer_named(views, peer) for peer in request.peers))

        def prepared() -> PreparedMirror:
            given = {key: getattr(request, key) for key in ("want", "priority", "use", "serve", "expect")}
            spec = MirrorSpec(
                dataset=str(dataset),
                name=request.as_name or self._name(dataset),
                network=network,
                via=found_at or via_place(request.via, dataset),
                peers=peers,
                keep=None if request.keep == ALL else request.keep,
                rate=None if request.rate == UNCAPPED else request.rate,
                **given,
            )
            made = self._prepare(spec if found_at else self._find_whole(spec), request.private)
            if made.is_kept:
                self.links.adopt(made.spec.id, made.spec.name)
            return made

        spec, shown, _ = await trio.to_thread.run_sync(prepared)
        return await self._scheduler.add(spec, shown)

    def _find_whole(self, spec: MirrorSpec) -> MirrorSpec:
        """Returns the mirror of a collection for that of a chain inside: all its chains have the same terms."""
        whole = self.whole_of(spec.id)
        if whole == spec.id:
            return spec
        name = self._home.name_of(whole) if spec.name == self._home.name_of(spec.id) else spec.name
        return msgspec.structs.replace(spec, dataset=str(whole), name=name)

    def _find_network(self, name: str) -> str:
        """Returns the name of a joined network. Raises NotFound; a manifest may name one that is joined with it."""
        known = self.links.network_named(name)
        if known is None:
            raise NotFound(f"this node is not in the network {name}", rule="network", hint="odfctl network list")
        return known.name

    def states(self, datasets: Iterable[DatasetId], sees: Sees | None) -> Mapping[DatasetId, wire.MirrorState]:
        """Returns the states of mirrors. Blocking.

        ``sees``: the rights of an account, which is told of what it may read.
        """
        told = _filter_seen(datasets, sees)
        peers = self._holders.of(told)
        return {each: self._state(each, peers[each]) for each in told}

    def counts(self, sees: Sees | None = None) -> dict[str, int]:
        """Counts the mirrors that are resources, by state. Blocking. ``sees`` as of ``states``."""
        chains = self._list_declared()
        told = _filter_seen(chains, sees)
        found = [[mirror.state for chain in chains[id_] if (mirror := self._scheduler.find(chain))] for id_ in told]
        return dict(Counter(max(states, key=_WORST.index).value for states in found if states))

    def _list_declared(self) -> Mapping[DatasetId, Sequence[DatasetId]]:
        """Returns the shards of each mirror that is a resource."""
        with self._home.database.read() as connection:
            declared = mirror_specs.list_declared(connection)
        return {spec.id: self._home.shards_of(spec.id) for spec in declared}

    @operation("PUT", MIRROR_PATH + "/pause", needs=Owner.NETWORK)
    async def pause(self, ref: str) -> wire.ResourceManifest:
        """Stops fetching data for a mirror until it is resumed; stored data stays and is served."""
        return await self._pause(ref, paused=True)

    @operation("DELETE", MIRROR_PATH + "/pause", needs=Owner.NETWORK)
    async def resume(self, ref: str) -> wire.ResourceManifest:
        """Resumes a paused mirror. Raises NotFound, Invalid."""
        return await self._pause(ref, paused=False)

    async def _pause(self, ref: str, *, paused: bool) -> wire.ResourceManifest:
        dataset, chains = await trio.to_thread.run_sync(self._find_chains, ref)
        await self._scheduler.pause(dataset, paused=paused)
        for chain in chains:
            if self._scheduler.find(chain) is not None:
                await self._scheduler.pause(chain, paused=paused)
        return await self._show(dataset)

    def _find_chains(self, ref: str) -> tuple[DatasetId, Sequence[DatasetId]]:
        dataset = known_dataset(self._home, ref)
        return dataset, self.chains_of(dataset)

    def _is_kept(self, dataset: DatasetId) -> bool:
        with self._home.database.read() as connection:
            return former_epochs.is_set_aside(connection, dataset)

    def _place(self, source: str) -> str:
        """Returns the URL of a published dataset in its canonical form. Raises Refused and Invalid for other texts."""
        place = place_of(source)
        if place is None:
            raise Refused(
                f"cannot mirror {source!r}",
                rule="mirror-source",
                hint="name the dataset by its did:odf:…, or by https://…, ipns://… or ipfs://… where it is"
                " published; odfctl search WORDS shows the ids of what is announced",
            )
        self._remotes.check(place)
        return place

    def _name(self, dataset: DatasetId) -> str:
        """Returns the first of the publisher's names that is valid and free here; a held dataset keeps its own."""
        said = self._search.suggested_names(dataset)
        with self._home.catalog() as catalog:
            held = catalog.find(dataset)
            if held is not None:
                return held.name
            for each in said:
                with suppress(Invalid):
                    catalog.check(each, dataset)
                    return each
        return default_name(dataset)

    async def _show(self, dataset: DatasetId, lack: Remote | None = None) -> wire.ResourceManifest:
        """Returns the resource that mirrors a chain, with the state of the chain now. Raises NotFound."""
        states, whole = await trio.to_thread.run_sync(lambda: (self.states([dataset], None), self.whole_of(dataset)))
        state, problem = states[dataset], None if lack is None else wire.Problem.of(lack)
        while True:
            try:
                view = await self.links.get(mirror_specs.TYPE, str(whole))
            except NotFound:
                # A handover followed between the two reads, in one transaction, lets another chain's mirror be the one
                # that is declared.
                before, whole = whole, await trio.to_thread.run_sync(self.whole_of, dataset)
                if whole == before:
                    raise
            else:
                return manifest_of(with_state(view, msgspec.structs.replace(state, lack=problem)))

    def _state(self, dataset: DatasetId, peers: int) -> wire.MirrorState:
        """Returns the state of a mirror: of several shards, what they have together, and the worst of their states."""
        states = [self._chain_state(each, peers) for each in self._home.shards_of(dataset)]
        worst = max(states, key=lambda each: _WORST.index(SchedulerState(each.state)))
        return msgspec.structs.replace(
            states[0],
            state=worst.state,
            message=worst.message,
            held=sum(state.held for state in states),
            serving=all(state.serving for state in states),
            blocks=_sum(state.blocks for state in states),
            slices=_sum(state.slices for state in states),
            bytes=_sum(state.bytes for state in states),
        )

    def _chain_state(self, dataset: DatasetId, peers: int) -> wire.MirrorState:
        mirror = self._scheduler.find(dataset)
        if mirror is None:  # the scheduler begins a declared mirror shortly after its commit
            return wire.MirrorState()
        tally, known = mirror.tally, self._evaluator.known(dataset)
        serve = self._evaluator.serve(dataset)
        reach = self._evaluator.reach_of(self._home.chains.chain(dataset), known, serve)
        with self._home.database.read() as connection:
            holdings = Holdings(connection)
            extent, held, objects = holdings.extent(dataset), holdings.bytes(dataset), holdings.objects(dataset)
            contact = dataset_contact(rung_of(connection, dataset))
        return wire.MirrorState(
            state=mirror.state.value,
            held_from=extent.first,
            held=held,
            use=str(self._evaluator.use(dataset)),
            serve=str(serve),
            serving=known.size > 0 and reach.blocks == known.size and self._visibility.is_told(dataset),
            blocks=_blocks(tally, known),
            slices=slices_of(tally, objects),
            bytes=wire.Share(have=tally.bytes_here, want=tally.bytes_wanted),
            peers=peers,
            message=_message(mirror),
            contact=contact,
            node=self._search.node_of(dataset),
            withdrawn_at=withdrawn_at(self._home, dataset),
        )


def _filter_seen(datasets: Iterable[DatasetId], sees: Sees | None) -> Sequence[DatasetId]:
    """Returns those of ``datasets`` of which an account with the rights ``sees`` is told."""
    every = list(datasets)
    return every if sees is None else list(itertools.compress(every, sees([about(each) for each in every])))


def _sum(shares: Iterable[wire.Share | None]) -> wire.Share | None:
    """Adds up shares; ``None`` if nothing is known of any."""
    known = [share for share in shares if share is not None]
    return wire.Share(have=sum(each.have for each in known), want=sum(each.want for each in known)) if known else None


def _message(mirror: Mirror) -> str:
    """Returns the message of a mirror, with what a person can do about it."""
    hint = mirror.fault.hint if mirror.fault is not None else None
    return f"{mirror.message}; {hint}" if hint else mirror.message


def _blocks(tally: MirrorProgress, known: DatasetFacts) -> wire.Share:
    """Counts blocks that are here and that are wanted, also of a mirror not looked at since the start."""
    signed = 0 if known.head is None else known.head.size
    return wire.Share(have=max(tally.blocks, known.size), want=max(tally.blocks_wanted, known.size, signed))


def slices_of(tally: MirrorProgress, held: int) -> wire.Share:
    """Counts the slices that are held, and those that the present or last pass has still to fetch."""
    have = held + tally.slices_uncounted
    return wire.Share(have=have, want=have + max(0, tally.slices_wanted - tally.slices))


class PeerService:
    """The API service for peers."""

    def __init__(
        self, membership: Membership, home: StateDirectory, holders: HolderCounts, names: Callable[[], NodeNames]
    ) -> None:
        """``names``: returns what nodes call themselves; called in a worker thread."""
        self._membership, self._home, self._holders, self.names = membership, home, holders, names

    async def states(self) -> Mapping[str, wire.PeerState]:
        """Returns the state of each known peer, by its id."""
        names = await trio.to_thread.run_sync(self.names)
        traffic = self._membership.peer_traffic()
        return {view.peer: _state(view, traffic.get(view.peer), names) for view in self._membership.peers()}

    @operation("GET", NODE_PATH + "/holders", needs=Owner.MACHINE)
    def holders(self) -> Sequence[wire.PeerHoldings]:
        """Lists the names of the local datasets that each connected peer holds."""
        local = {entry.id: entry.name for entry in self._home.entries()}
        held: dict[str, list[str]] = {}
        for dataset, found in self._holders.peers(local).items():
            for peer in found:
                held.setdefault(peer, []).append(local[dataset])
        return [wire.PeerHoldings(peer_id=peer, names=tuple(sorted(names)[:MAX_HOLDS])) for peer, names in held.items()]

    @operation("GET", NODE_PATH + "/netcheck", needs=Owner.MACHINE)
    async def netcheck(self) -> Sequence[wire.Probe]:
        """Checks how others reach this node, and says what to do. Raises Remote while no network is joined."""
        return netcheck.probes(await self._membership.net_facts())

    @operation(needs=Owner.NETWORK)
    async def connect(self, multiaddr: str) -> str:
        """Connects to a peer at a multiaddress, and returns its id. Raises Remote."""
        return await self._membership.connect(multiaddr)


def _state(view: PeerView, line: PeerTraffic | None, names: NodeNames) -> wire.PeerState:
    """Returns the state of a peer, with what its node card says."""
    seen = None if view.last_seen is None else instant.render(Instant(view.last_seen))
    said = names.of_peer(view.peer)
    card = {} if said is None else {key: getattr(said, key) for key in ("name", "contact", "about", "alike")}
    return wire.PeerState(
        **card,
        addresses=view.addresses,
        connected=view.connected,
        score=view.score,
        last_seen=seen,
        datasets=view.datasets,
        received=line.received if line is not None else None,
        sent=line.sent if line is not None else None,
        received_rate=round(line.down, 1) if line is not None else None,
        sent_rate=round(line.up, 1) if line is not None else None,
    )
