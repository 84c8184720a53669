"""The lookup over real hosts on loopback: a node finds a holder that neither it nor its peers are connected with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from random import Random
from typing import Any

import pytest
import trio

from chain.ids import DatasetId
from chain.statements.keys import SigningKey
from p2p.driver.network import open_network
from p2p.driver.replication import ReplicationDriver
from p2p.driver.settings import ReplicationSettings
from p2p.errors import PeerFault
from p2p.host.host import Host, open_host
from p2p.wire.contact import lookup_key
from worlds.eventually import PATIENCE, became

DATASET = DatasetId.from_public_key(b"d" * 32)
KEY = lookup_key("test", DATASET)
TRIES = 20


class Shelf:
    """Library and statements of a node that serves some datasets."""

    def __init__(self, *held: DatasetId) -> None:
        self.held = held

    def datasets(self, limit: int) -> Sequence[DatasetId]:
        return self.held[:limit]

    def size(self, dataset: DatasetId) -> int:
        return int(dataset in self.held)

    def interests(self) -> Sequence[DatasetId]:
        return []

    def to(self, _peer: Any) -> Shelf:
        return self

    def refs(self, datasets: Any = None) -> Sequence[Any]:
        return []

    def envelope(self, sid: Any) -> None:
        return None


@asynccontextmanager
async def node(number: int, *held: DatasetId, bootstrap: Sequence[str] = ()) -> AsyncIterator[tuple[Host, Any]]:
    seed = bytes(31) + bytes([number])
    shelf: Any = Shelf(*held)
    async with (
        open_host(seed, ["/ip4/127.0.0.1/tcp/0"]) as host,
        open_network(host) as network,
        trio.open_nursery() as nursery,
    ):
        settings = ReplicationSettings(
            network="test", degree=0, lookup="on", bootstrap=tuple(bootstrap), inside=("127.0.0.0/8",)
        )

        def wall() -> int:
            return 1_700_000_000_000_000_000 + int(trio.current_time() * 1e9)

        driver = ReplicationDriver(network, shelf, shelf, settings, Random(number), wall, SigningKey(seed))
        await nursery.start(driver.run)
        yield host, driver
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_node_finds_a_holder_that_it_never_met() -> None:
    with trio.fail_after(PATIENCE):
        async with AsyncExitStack() as stack:
            nodes: list[tuple[Host, Any]] = []
            for number in (2, 3, 4):
                before = [host.addresses()[0] for host, _ in nodes[-1:]]
                nodes.append(await stack.enter_async_context(node(number, bootstrap=before)))
            seeker, driver = nodes[-1]
            kept = [each for _, each in nodes]
            await became(lambda: all(len(each._lookups.node.table) == 2 for each in kept))
            first = nodes[0][0].addresses()[0]
            holder, _ = await stack.enter_async_context(node(1, DATASET, bootstrap=[first]))
            await became(lambda: sum(len(each._lookups.node.records) for each in kept) == 3)
            for each in kept:
                each._discovery.directory.forget(holder.peer_id)
            # What brought the record was a connection for one question.
            await became(lambda: not seeker.is_connected(holder.peer_id))
            found = await driver._lookups.holders(DATASET)
            assert [one.peer for one in found] == [holder.peer_id]
            for _ in range(TRIES):
                driver._lookups._seeks._levels.clear()
                for each in kept:
                    each._discovery.directory.forget(holder.peer_id)
                await driver.seek(DATASET)
                # The holder may be connected for a question of its own just now: then that is taken for the connection.
                with suppress(PeerFault):
                    assert await driver.chain_size(holder.peer_id, DATASET) == 1
                    return
                await became(lambda: not seeker.is_connected(holder.peer_id))
            raise AssertionError("the holder was never reached")
