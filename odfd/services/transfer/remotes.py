"""Reads and publishes datasets in other places: on web servers, at nodes, and on IPFS through the node's Kubo."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from functools import partial

import trio

from chain.errors import Invalid
from chain.ids import DatasetId, parse_own_name
from chain.multihash import Multihash
from config.model import Settings
from odfd.ipfs import transport as ipfs_transport
from odfd.ipfs.publishing import Publisher, RepositoryPublisher
from odfd.ipfs.transport import IpfsTransport
from odfd.published.replication import Networks, Replication
from odfd.published.signed import COLLECTION, MAX_COLLECTION, beside, collection_in
from odfd.published.source import PublishedSource
from odfd.published.staging import StagingQuota
from odfd.published.web import WebTransport
from odfd.repositories.catalog import Repositories, is_target
from odfd.repositories.files import PublishedFiles
from odfd.repositories.manifest import IPFS, IPNS, NODE, node_place
from odfd.runtime.hanging_calls import run_abandonable
from odfd.runtime.supervision import Life
from odfd.smart.files import SmartFiles
from odfd.smart.transport import SmartTransport
from odfd.smart.upload import SmartPusher
from odfd.store.directory import STAGED, StateDirectory
from p2p.kubo.rpc import IpfsDaemon, Kubo
from p2p.pace import Bandwidth
from p2p.ports import Judgement, PeerId, StatementStore, Topic
from p2p.web import folder_url as web_place
from p2p.web.site import Web
from p2p.web.transfer import WebTransfers


class Remotes:
    """The connections of one node to the web and to its Kubo, which are open while ``run`` runs."""

    def __init__(
        self,
        settings: Settings,
        bandwidth: Bandwidth,
        home: StateDirectory,
        networks: Networks,
        statements: StatementStore,
        ipfs: IpfsDaemon | None,
        askable: Callable[[DatasetId], Collection[str] | None],
        staging: StagingQuota,
        log: Callable[[str], object],
    ) -> None:
        """Makes the clients. ``ipfs`` replaces the Kubo of the settings; with neither there is no IPFS.

        ``log``: logs a text when blocks of a node must be fetched one by one.
        ``askable`` returns the only peers that may be asked for a dataset, such as one that is private here; ``None``:
        all.
        """
        kubo = settings.ipfs
        self._ipfs = Kubo(kubo.api, kubo.token, pace=bandwidth.down) if ipfs is None and kubo.api else ipfs
        self._web = Web(pace=bandwidth.down)
        self._clock, self._statements = home.clock, statements
        self.staging = staging
        staged = home.folder(STAGED)
        self.repositories = Repositories(home.database, home.secrets)
        buckets = WebTransport(PublishedFiles(self.repositories.files), home.chains.raw_of)
        self._from_buckets = PublishedSource(buckets, staged / "buckets", self.staging)
        self._from_web = PublishedSource(WebTransport(self._web, home.chains.raw_of), staged / "web", self.staging)
        ours = None if self._ipfs is None else IpfsTransport(self._ipfs)
        self._transfers = WebTransfers()
        files = SmartFiles(self._web, self.repositories.node, home.clock.now)
        nodes = SmartTransport(
            files, self._transfers, home.chains.raw_of, home.objects.missing, partial(held_head, home), log,
        )  # fmt: skip
        self._from_nodes = PublishedSource(nodes, staged / "nodes", self.staging)
        self.pusher = SmartPusher(files, self._transfers)
        self._from_ipfs = None if ours is None else PublishedSource(ours, staged / "ipfs", self.staging)
        self.replication = Replication(networks, self._source_of, statements, home.clock.now, askable)
        self.publisher = None if self._ipfs is None else Publisher(self._ipfs, home)
        self._shelves = (
            None
            if self._ipfs is None or self.publisher is None
            else RepositoryPublisher(self._ipfs, self.publisher, home.keys)
        )

    async def run(self, life: Life) -> None:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._web)
            await stack.enter_async_context(self._transfers)
            if self._ipfs is not None:
                await stack.enter_async_context(self._ipfs)
            stack.push_async_callback(self._end_connections)
            life.ready()
            await life.stopping.wait()

    async def _end_connections(self) -> None:
        with trio.CancelScope(shield=True):  # nobody else ends them, also not of a node that is cancelled
            await trio.to_thread.run_sync(self.repositories.close)

    @property
    def own_shelves(self) -> RepositoryPublisher | None:
        """The publisher of repositories on IPFS; ``None`` without a Kubo."""
        return self._shelves

    @property
    def shelves(self) -> RepositoryPublisher:
        """The publisher of repositories on IPFS. Raises Refused without a Kubo."""
        if self._shelves is None:
            raise ipfs_transport.no_ipfs()
        return self._shelves

    async def find(self, place: str) -> tuple[DatasetId, str]:
        """Returns the id of the dataset at a place, as the place states it, and where it is.

        Of a collection of several shards that is the first, whose card is taken to the statements. Raises Remote,
        Invalid, Refused.
        """
        if web_place.place_of(place) is None:
            return await self._source_of(place).dataset_at(place, self._clock.now()), place
        raw = await self.file_at(place, COLLECTION, MAX_COLLECTION)
        if raw is None:
            return await self._source_of(place).dataset_at(place, self._clock.now()), place
        collection = collection_in(raw, place)
        for each in collection.raws:
            judged = await trio.to_thread.run_sync(self._statements.judge, Topic.HEADS, each, PeerId(place))
            if judged is Judgement.REJECT:
                raise Invalid(f"a statement under {place} does not hold", rule="published-statement")
        return collection.ids[0], beside(place, collection.ids[0])

    async def file_at(self, place: str, file: str, limit: int) -> bytes | None:
        """Reads a small file of the layout at a place; ``None``: there is none. Raises Remote, Refused."""
        source = self._source_of(place)
        return await source.file(await source.resolve(place, self._clock.now()), file, limit)

    @property
    def has_ipfs(self) -> bool:
        """Whether this node has a Kubo."""
        return self._ipfs is not None

    async def ipfs_version(self) -> str:
        """Asks the Kubo for its version. Raises Remote, Refused."""
        if self._ipfs is None:
            raise ipfs_transport.no_ipfs()
        return await self._ipfs.version()

    async def ask_repository(self, name: str) -> None:
        """Asks a declared repository for a file that it may not have. Raises Fault if nobody answers, or refuses."""
        kind, url = await trio.to_thread.run_sync(self._kind_of, name)
        match kind:
            case "bucket" | "sftp":
                await run_abandonable(partial(self._look, name))
            case "folder":
                await run_abandonable(partial(self.repositories.check_folder, name))
            case "ipfs":
                await self.ipfs_version()
            case _:
                await self._web.ask(url)

    def _kind_of(self, name: str) -> tuple[str, str]:
        """Returns the kind of a declared repository, and its address if it is one of the web. Raises Fault."""
        kind = self.repositories.kind(name)
        return kind, "" if kind in ("bucket", "sftp", "folder", "ipfs") else self.repositories.url(name)

    def _look(self, name: str) -> None:
        self.repositories.files(name).size(".odfd-probe")

    def check(self, place: str) -> None:
        """Raises Refused for a place that this node cannot read."""
        self._source_of(place)

    def _source_of(self, place: str) -> PublishedSource:
        if web_place.place_of(place) is not None:
            return self._from_web
        if is_target(place):
            is_node = place.startswith(NODE) or self.repositories.kind(place.partition("/")[0]) == "node"
            return self._from_nodes if is_node else self._from_buckets
        if self._from_ipfs is None:
            raise ipfs_transport.no_ipfs()
        return self._from_ipfs


def place_of(source: str) -> str | None:
    """Parses a place; ``None`` for other text, such as a folder or a did. Raises Invalid."""
    return node_place(source) or web_place.place_of(source) or ipfs_transport.place_of(source)


def held_head(home: StateDirectory, root: str) -> Multihash | None:
    """Returns the head of the local dataset named like the last part of a place, if any. Blocking."""
    name = name_in(root)
    with home.catalog() as catalog:
        entry = catalog.look(name) if name else None
    head = None if entry is None else home.chains.chain(entry.id).head()
    return None if head is None else head.hash


def name_in(place: str) -> str:
    """Returns the dataset's name in the place; empty if it is not a valid name."""
    if is_target(place) and not place.startswith(NODE):
        return place.rpartition("/")[2]
    if place.startswith((IPFS, IPNS)):
        return place.rpartition("/")[2] if place.count("/") > 2 else ""
    place = place.removeprefix(NODE)
    name = "" if web_place.place_of(place) is None else web_place.name_in(place)
    try:
        return parse_own_name(name)
    except Invalid:
        return ""
