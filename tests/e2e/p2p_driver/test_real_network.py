"""Whole replication layers over real libp2p on loopback: what they give each other, and how they are found."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import pytest
import trio

from chain.errors import Invalid, NotFound
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from p2p.driver.network import open_network
from p2p.driver.replication import ReplicationDriver
from p2p.driver.settings import ReplicationSettings
from p2p.host.host import open_host
from p2p.ports import Concern, Judgement, PeerId, StatementRef, Tip, Topic
from worlds.eventually import PATIENCE

# Two and three whole replication layers over real libp2p on loopback: chain, object, gossip, anti-entropy, a cut.


pytestmark = pytest.mark.e2e
DATASET = DatasetId.from_public_key(b"d" * 32)
BLOCKS = tuple(b"block %d " % number * 50 for number in range(20_000))
OBJECT = bytes(range(256)) * 4 * 16 * 1024
NAME = Multihash.sha3_256(OBJECT)


class Holdings:
    """Library and noticeboard of one node."""

    def __init__(self, blocks: Sequence[bytes] = (), things: dict[Multihash, bytes] | None = None) -> None:
        self.chain = blocks
        self.things = things or {}
        self.held: dict[Multihash, tuple[Topic, bytes]] = {}

    def datasets(self, limit: int) -> Sequence[DatasetId]:
        return [DATASET] if self.chain else []

    def to(self, _peer: PeerId) -> Holdings:
        return self

    def size(self, dataset: DatasetId) -> int:
        return len(self.chain) if dataset == DATASET else 0

    def blocks(self, dataset: DatasetId, start: int, max_bytes: int) -> Sequence[bytes]:
        return self.chain[start : start + 4000]

    def object_size(self, name: Multihash) -> int | None:
        return len(self.things[name]) if name in self.things else None

    def read_object(self, name: Multihash, offset: int, length: int) -> bytes:
        return self.things[name][offset : offset + length]

    def object_part(self, name: Multihash, offset: int, into: memoryview) -> tuple[int, int]:
        data = self.read_object(name, offset, len(into))
        into[: len(data)] = data
        return len(self.things[name]), len(data)

    def parts(self, _ask: object) -> None:
        """Tells nobody."""

    def small_objects(self, names: Sequence[Multihash], largest: int) -> Sequence[bytes]:
        return [self.things[name] for name in names]

    def judge(self, topic: Topic, envelope: bytes, sender: PeerId) -> Judgement:
        sid = Multihash.sha3_256(envelope)
        if sid in self.held:
            return Judgement.IGNORE
        self.held[sid] = (topic, envelope)
        return Judgement.ACCEPT

    def refs(self, datasets: Sequence[DatasetId] | None = None) -> Sequence[StatementRef]:
        return [StatementRef(sid, DATASET) for sid in self.held]

    def interests(self) -> Sequence[DatasetId]:
        return [DATASET]

    def concern(self, topic: Topic, envelope: bytes) -> Concern:
        return Concern((DATASET,), is_wanted=True)

    def envelope(self, sid: Multihash) -> tuple[Topic, bytes] | None:
        return self.held.get(sid)


class Sink:
    """Keeps a chain or an object."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []
        self.data = bytearray()
        self.good = False
        self.tip = Tip(len(BLOCKS), bytes(32))

    @property
    def size(self) -> int:
        return len(self.kept)

    @property
    def stop(self) -> int | None:
        return None

    @property
    def received(self) -> int:
        return len(self.data)

    def append(self, peer: PeerId, start: int, blocks: Sequence[bytes]) -> None:
        self.kept += blocks

    def write(self, data: bytes) -> None:
        self.data += data

    def abandon(self) -> None:
        self.data.clear()

    def finish(self) -> None:
        if self.data and hashlib.sha3_256(self.data).digest() != NAME.digest:
            self.data.clear()
            raise Invalid("not the object")
        self.good = True


@asynccontextmanager
async def node(seed: int, holdings: Holdings, bootstrap: Sequence[str] = ()) -> AsyncIterator[ReplicationDriver]:
    async with (
        open_host(bytes([seed]) * 32, ["/ip4/127.0.0.1/tcp/0"]) as host,
        open_network(host) as network,
        trio.open_nursery() as nursery,
    ):
        settings = ReplicationSettings(network="e2e", bootstrap=tuple(bootstrap))
        driver = ReplicationDriver(network, holdings, holdings, settings, Random(seed), lambda: 0)
        await nursery.start(driver.run)
        yield driver
        nursery.cancel_scope.cancel()


async def test_bytes_come_over_a_real_network() -> None:
    with trio.fail_after(PATIENCE):
        async with node(1, Holdings(BLOCKS, {NAME: OBJECT})) as giver, node(2, Holdings()) as puller:
            peer = await puller.connect(giver.addresses()[0])
            assert peer == giver.peer_id
            chain, part = Sink(), Sink()
            await puller.pull_chain([peer], DATASET, len(BLOCKS), chain)
            assert await puller.object_size(peer, NAME) == len(OBJECT)
            await puller.fetch_object([peer], NAME, len(OBJECT), part)
            assert tuple(chain.kept) == BLOCKS
            assert part.good
            assert part.data == OBJECT


async def test_statements_reach_a_third_node() -> None:
    """a <- b <- c: gossip goes through b, and what was said before is pulled."""
    one, two, three = Holdings(), Holdings(), Holdings()
    with trio.fail_after(PATIENCE):
        async with (
            node(3, one) as a,
            node(4, two, [a.addresses()[0]]) as b,
            node(5, three, [b.addresses()[0]]) as c,
        ):
            one.judge(Topic.HEADS, b"said before", a.peer_id)
            while not three.held:
                await trio.sleep(0.02)
                if a.peer_id in [view.peer for view in b.peers() if view.connected]:
                    await b.pull_statements(a.peer_id)
                if b.peer_id in [view.peer for view in c.peers() if view.connected]:
                    await c.pull_statements(b.peer_id)
            number = 0
            while len(three.held) < 2:
                # Gossip is a hint: the mesh forms with its heartbeat, so it is said until it is heard.
                number += 1
                await a.announce(Topic.HEADS, b"said now %d" % number)
                await trio.sleep(0.1)
    assert any(envelope.startswith(b"said now") for _, envelope in three.held.values())


async def test_a_giver_that_dies_in_the_middle() -> None:
    with trio.fail_after(PATIENCE):
        async with node(7, Holdings(BLOCKS, {NAME: OBJECT})) as staying, node(8, Holdings()) as puller:
            part = Sink()
            async with trio.open_nursery() as nursery, node(6, Holdings(BLOCKS, {NAME: OBJECT})) as dying:
                peers = [await puller.connect(each.addresses()[0]) for each in (dying, staying)]
                nursery.start_soon(puller.fetch_object, peers, NAME, len(OBJECT), part)
                while not part.data:  # noqa: ASYNC110 - it is filled by a worker thread
                    await trio.sleep(0.001)
            assert part.good
            assert part.data == OBJECT


# Over real libp2p on loopback: who serves a dataset is found by a node that was told of one peer, three hops away.


SOUGHT = DatasetId.from_public_key(b"f" * 32)
NOW = 1_700_000_000_000_000_000


class Shelf:
    """A library of one chain or none, and a board with nothing on it."""

    def __init__(self) -> None:
        self.chain: list[bytes] = []

    def datasets(self, limit: int) -> Sequence[DatasetId]:
        return [SOUGHT] if self.chain else []

    def size(self, dataset: DatasetId) -> int:
        return len(self.chain) if dataset == SOUGHT else 0

    def blocks(self, dataset: DatasetId, start: int, max_bytes: int) -> Sequence[bytes]:
        return self.chain[start:]

    def to(self, _peer: PeerId) -> Shelf:
        return self

    def prove(self, dataset: DatasetId, size: int, *, old: int | None = None, index: int | None = None) -> list[bytes]:
        raise NotFound("nothing is proven here")

    def object_part(self, name: Multihash, offset: int, into: memoryview) -> tuple[int, int]:
        raise NotFound("no such object")

    def parts(self, _ask: object) -> None:
        """Tells nobody."""

    def small_objects(self, names: Sequence[Multihash], largest: int) -> Sequence[bytes]:
        return ()

    def judge(self, topic: Topic, envelope: bytes, sender: PeerId) -> Judgement:
        return Judgement.IGNORE

    def refs(self, datasets: Sequence[DatasetId] | None = None) -> Sequence[StatementRef]:
        return []

    def interests(self) -> Sequence[DatasetId]:
        return []

    def concern(self, topic: Topic, envelope: bytes) -> Concern:
        return Concern((), is_wanted=False)

    def envelope(self, sid: Multihash) -> tuple[Topic, bytes] | None:
        return None


@asynccontextmanager
async def finder(
    number: int, bootstrap: Sequence[str], degree: int = 0
) -> AsyncIterator[tuple[ReplicationDriver, Shelf]]:
    seed, shelf = bytes([number]) * 32, Shelf()
    settings = ReplicationSettings(network="finding", bootstrap=tuple(bootstrap), degree=degree)
    async with open_host(seed, ["/ip4/127.0.0.1/tcp/0"]) as host, open_network(host) as network:
        driver = ReplicationDriver(
            network, shelf, shelf, settings, Random(number), lambda: NOW, SigningKey(seed)
        )  # fmt: skip
        async with trio.open_nursery() as nursery:
            await nursery.start(driver.run)
            yield driver, shelf
            nursery.cancel_scope.cancel()


async def test_found_three_hops_away() -> None:
    with trio.fail_after(PATIENCE):
        async with AsyncExitStack() as stack:
            first, shelf = await stack.enter_async_context(finder(1, []))
            shelf.chain = [b"block %d" % number for number in range(7)]
            last = first
            for number in (2, 3, 4):
                last, _ = await stack.enter_async_context(finder(number, last.addresses()))
            newcomer, _ = await stack.enter_async_context(finder(5, last.addresses()))
            while not await newcomer.seek(SOUGHT):
                assert first.peer_id not in {view.peer for view in newcomer.peers() if view.connected}
                await trio.sleep(0.1)
            assert await newcomer.chain_size(first.peer_id, SOUGHT) == 7


async def test_a_handful_grows_together() -> None:
    """Five nodes that know one address each end up with three connections each at least."""
    with trio.fail_after(PATIENCE):
        async with AsyncExitStack() as stack:
            drivers = [(await stack.enter_async_context(finder(11, [], 3)))[0]]
            for number in range(12, 16):
                drivers.append((await stack.enter_async_context(finder(number, drivers[0].addresses(), 3)))[0])
            while min(sum(view.connected for view in driver.peers()) for driver in drivers) < 3:  # noqa: ASYNC110
                await trio.sleep(0.2)
