"""Over real libp2p on loopback: who serves a dataset is found by a node that was told of one peer, three hops away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import pytest
import trio

from chain.errors import NotFound
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from p2p.driver.network import open_network
from p2p.driver.replication import ReplicationDriver
from p2p.driver.settings import ReplicationSettings
from p2p.host.host import open_host
from p2p.ports import Concern, Judgement, PeerId, StatementRef, Topic
from worlds.eventually import PATIENCE

pytestmark = pytest.mark.e2e
DATASET = DatasetId.from_public_key(b"f" * 32)
NOW = 1_700_000_000_000_000_000


class Shelf:
    """A library of one chain or none, and a board with nothing on it."""

    def __init__(self) -> None:
        self.chain: list[bytes] = []

    def datasets(self, limit: int) -> Sequence[DatasetId]:
        return [DATASET] if self.chain else []

    def size(self, dataset: DatasetId) -> int:
        return len(self.chain) if dataset == DATASET else 0

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
async def node(
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
            first, shelf = await stack.enter_async_context(node(1, []))
            shelf.chain = [b"block %d" % number for number in range(7)]
            last = first
            for number in (2, 3, 4):
                last, _ = await stack.enter_async_context(node(number, last.addresses()))
            newcomer, _ = await stack.enter_async_context(node(5, last.addresses()))
            while not await newcomer.seek(DATASET):
                assert first.peer_id not in {view.peer for view in newcomer.peers() if view.connected}
                await trio.sleep(0.1)
            assert await newcomer.chain_size(first.peer_id, DATASET) == 7


async def test_a_handful_grows_together() -> None:
    """Five nodes that know one address each end up with three connections each at least."""
    with trio.fail_after(PATIENCE):
        async with AsyncExitStack() as stack:
            drivers = [(await stack.enter_async_context(node(11, [], 3)))[0]]
            for number in range(12, 16):
                drivers.append((await stack.enter_async_context(node(number, drivers[0].addresses(), 3)))[0])
            while min(sum(view.connected for view in driver.peers()) for driver in drivers) < 3:  # noqa: ASYNC110
                await trio.sleep(0.2)
