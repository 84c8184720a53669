"""A commit point at another node: two libp2p hosts on loopback, in a thread of their own, for tests that block."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import trio

from chain.errors import NotFound
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.store.database import open_database
from chain.store.objects import DiskObjects
from chain.store.shards import Outcome, Proposal, Shard, ShardStore
from chain.store.sqlite import SqliteChains
from chain.store.sqlite_shards import SqliteShards
from odfd.network.commit_point import MayPropose, ServedCommitPoint
from p2p.driver.proposals import ProposalDesk
from p2p.host.host import open_host
from p2p.ports import PeerId
from worlds.eventually import PATIENCE

LOOPBACK = "/ip4/127.0.0.1/tcp/0"


class PointAfar:
    """As ``CommitPoint``, at another node; from any thread but the hosts'."""

    def __init__(self, house: House, desk: ProposalDesk, peer: PeerId) -> None:
        self._house, self._desk, self._peer = house, desk, peer

    def shard(self, dataset: DatasetId) -> Shard:
        async def ask() -> Shard:
            (found,) = await self._desk.shards(self._peer, [dataset])
            return found

        return trio.from_thread.run(ask, trio_token=self._house.token)

    def append(self, proposals: Sequence[Proposal]) -> list[Outcome]:
        async def ask() -> list[Outcome]:
            return list(await self._desk.append(self._peer, proposals, self._house.read))

        return trio.from_thread.run(ask, trio_token=self._house.token)


class House:
    """The two nodes: one keeps shards in a folder, the other proposes, and has objects in memory."""

    token: trio.lowlevel.TrioToken

    def __init__(self, folder: Path, may: MayPropose) -> None:
        self._folder, self._may = folder, may
        self._objects: dict[Multihash, bytes] = {}
        self._ready, self._stop = threading.Event(), trio.Event()
        self._fault: Exception | None = None

    def read(self, name: Multihash, offset: int, most: int) -> bytes:
        if name not in self._objects:
            raise NotFound("no such object")
        return self._objects[name][offset : offset + most]

    def add(self, data: bytes) -> Multihash:
        name = Multihash.sha3_256(data)
        self._objects[name] = data
        return name

    def opened(self) -> ShardStore:
        return SqliteShards(self.database, self.chains)

    def point(self, store: ShardStore | None = None) -> PointAfar:
        if store is not None:
            self._server.point = ServedCommitPoint(store, self.objects, self._may)
        return PointAfar(self, self._client, self._peer)

    def run(self) -> None:
        try:
            trio.run(self._run)
        except Exception as error:  # noqa: BLE001  told in the test's own thread
            self._fault = error
        finally:
            self._ready.set()

    async def _run(self) -> None:
        self.database = open_database(self._folder / "odfd.sqlite")
        self.objects = DiskObjects(self._folder / "objects", self.database)
        self.chains = SqliteChains(self.database, self.objects)
        async with open_host(b"s" * 32, [LOOPBACK]) as served, open_host(b"p" * 32, []) as proposing:
            self._server, self._client = ProposalDesk(served), ProposalDesk(proposing)
            self._server.join()
            self._peer = served.peer_id
            await proposing.connect(served.addresses()[0])
            self.token = trio.lowlevel.current_trio_token()
            self.point(self.opened())
            self._ready.set()
            await self._stop.wait()
        self.database.close()

    def wait_ready(self) -> None:
        assert self._ready.wait(PATIENCE)
        if self._fault is not None:
            raise self._fault

    def close(self) -> None:
        self.token.run_sync_soon(self._stop.set)


@contextmanager
def commit_point_afar(folder: Path, may: MayPropose = lambda _peer, _dataset: True) -> Iterator[House]:
    house = House(folder, may)
    thread = threading.Thread(target=house.run, name="hosts", daemon=True)
    thread.start()
    house.wait_ready()
    try:
        yield house
    finally:
        house.close()
        thread.join(PATIENCE)
