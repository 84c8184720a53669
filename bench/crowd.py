"""Runs a crowd of real hosts in one process: ``python -m bench.crowd ours|stock|visit COUNT WHAT``.

``ours`` and ``stock`` gossip: one publishes, ``COUNT`` hear it, ``WHAT`` times; prints one line of JSON. ``stock`` is
py-libp2p as it comes: no cure of ours is in that process. ``visit`` connects ``COUNT`` nodes with the address ``WHAT``,
prints ``up``, and stays until its standard input ends.
"""

from __future__ import annotations

import json
import logging
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any, Final

import structlog
import trio

from bench.trust import head_of, owner
from chain.errors import NotFound
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements import envelope, statement
from p2p.ports import Concern, Judgement, PeerId, StatementRef, Topic

LINKS: Final = 4
"""Connections that each node makes, to nodes that came before it: the same graph for both."""
_GAP: Final = 0.3
"""Seconds between two messages: within what the stock's spam protection lets through."""
_MESHED: Final = 2.5
"""Seconds for everybody's subscriptions to be told, and a heartbeat or two."""
_LOST: Final = 10.0
"""Seconds after which a message that did not come is lost."""
_TOPIC: Final = "/odf/1/bench/heads"


class Heard:
    """Records when each of ``count`` nodes received the message of this round, in seconds since it was published."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.known: dict[int, float] = {}
        self.verified: dict[int, float] = {}
        self._begun = 0.0
        self._all = trio.Event()

    def begin(self) -> None:
        self.known, self.verified, self._all = {}, {}, trio.Event()
        self._begun = time.perf_counter()

    def know(self, number: int) -> None:
        """Records a receipt. From any thread, since a hop to the loop would be measured too."""
        self.known.setdefault(number, time.perf_counter() - self._begun)

    def verify(self, number: int) -> bool:
        """Records a receipt; returns whether it was the last, for ``finish`` in the loop. From any thread."""
        self.verified.setdefault(number, time.perf_counter() - self._begun)
        return len(self.verified) == self._count

    def finish(self) -> None:
        self._all.set()

    async def all(self) -> None:
        with trio.move_on_after(_LOST):
            await self._all.wait()


async def tell(heard: Heard, rounds: int, publish: Callable[[int], Awaitable[None]]) -> dict[str, list[float]]:
    """Medians by round, one more round before them to warm up; and the share that arrived."""
    told: dict[str, list[float]] = {"known": [], "verified": [], "worst": [], "arrived": []}
    for number in range(rounds + 1):
        await trio.sleep(_GAP)
        heard.begin()
        await publish(number)
        await heard.all()
        if number and heard.verified:
            told["known"].append(statistics.median(heard.known.values()))
            told["verified"].append(statistics.median(heard.verified.values()))
            told["worst"].append(max(heard.verified.values()))
            told["arrived"].append(len(heard.verified))
    return told


class Listener:
    """The library and statement store of an empty node: a head is recorded on receipt, verified after that."""

    def __init__(self, number: int, heard: Heard | None) -> None:
        self._number, self._heard = number, heard

    def to(self, peer: PeerId) -> Listener:
        return self

    def judge(self, topic: Topic, raw: bytes, sender: PeerId) -> Judgement:
        if self._heard is None:
            return Judgement.IGNORE
        self._heard.know(self._number)
        statement.decode_any(envelope.unseal(raw, statement.MAX_ANY).payload)
        if self._heard.verify(self._number):
            trio.from_thread.run_sync(self._heard.finish)
        return Judgement.ACCEPT

    def refs(self, datasets: Sequence[DatasetId] | None = None) -> Sequence[StatementRef]:
        return ()

    def interests(self) -> Sequence[DatasetId]:
        return ()

    def concern(self, topic: Topic, raw: bytes) -> Concern:
        return Concern((), is_wanted=True)

    def envelope(self, sid: Multihash) -> tuple[Topic, bytes] | None:
        return None

    def datasets(self, limit: int) -> Sequence[DatasetId]:
        return ()

    def size(self, dataset: DatasetId) -> int:
        return 0

    def blocks(self, dataset: DatasetId, start: int, max_bytes: int) -> Sequence[bytes]:
        return ()

    def prove(self, dataset: DatasetId, size: int, *, old: int | None = None, index: int | None = None) -> list[bytes]:
        raise NotFound("nothing is proven here")

    def parts(self, _ask: object) -> None:
        """Tells nobody."""

    pieces = parts

    def piece_list(self, dataset: DatasetId, name: Multihash, size: int) -> None:
        """Tells nobody."""

    def small_objects(self, names: Sequence[Multihash], largest: int) -> Sequence[bytes]:
        return ()

    def object_part(self, name: Multihash, offset: int, into: memoryview) -> tuple[int, int]:
        raise NotFound("nothing is here")


@asynccontextmanager
async def our_node(number: int, heard: Heard | None = None) -> AsyncIterator[Any]:
    """Runs a replication driver that dials nobody."""
    from chain.statements.keys import SigningKey
    from p2p.driver.network import open_network
    from p2p.driver.replication import ReplicationDriver
    from p2p.driver.settings import ReplicationSettings
    from p2p.host.host import open_host

    seed = number.to_bytes(32, "big")
    async with (
        open_host(seed, ["/ip4/127.0.0.1/tcp/0"]) as host,
        open_network(host) as network,
        trio.open_nursery() as nursery,
    ):
        listener = Listener(number, heard)
        settings = ReplicationSettings(network="bench", degree=0)
        driver = ReplicationDriver(network, listener, listener, settings, Random(number), lambda: 0, SigningKey(seed))
        await nursery.start(driver.run)  # type: ignore[arg-type]  # trio cannot name what it passes
        yield driver
        nursery.cancel_scope.cancel()


async def ours(count: int, rounds: int) -> None:
    heard, lot = Heard(count), Random(1)
    async with AsyncExitStack() as stack:
        drivers: list[Any] = [await stack.enter_async_context(our_node(1000, None))]
        for number in range(count):
            driver = await stack.enter_async_context(our_node(number + 1, heard))
            for other in lot.sample(drivers, min(LINKS, len(drivers))):
                await driver.connect(other.addresses()[0])
            drivers.append(driver)
        await trio.sleep(_MESHED)
        told = await tell(heard, rounds, lambda number: drivers[0].announce(Topic.HEADS, _head(number)))
    print(json.dumps(told), flush=True)


async def stock(count: int, rounds: int) -> None:
    """Runs hosts with all defaults except the keys, which would be RSA."""
    from p2p.host import library  # which lets a host load a part of it only

    library.restore()
    assert "p2p.host.hardening" not in sys.modules, "cures of ours are here"
    import libp2p
    import multiaddr
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.peer.peerinfo import PeerInfo
    from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11, PROTOCOL_ID_V12, GossipSub
    from libp2p.pubsub.pubsub import Pubsub
    from libp2p.tools.anyio_service import background_trio_service

    heard, lot = Heard(count), Random(1)
    hosts: list[Any] = []
    publisher: Any = None
    async with AsyncExitStack() as stack:
        nursery = await stack.enter_async_context(trio.open_nursery())
        for number in range(count + 1):
            host = libp2p.new_host(key_pair=create_new_key_pair(number.to_bytes(32, "big")))
            listen = [multiaddr.Multiaddr("/ip4/127.0.0.1/tcp/0")]
            await stack.enter_async_context(host.run(listen_addrs=listen))
            router = GossipSub([PROTOCOL_ID_V12, PROTOCOL_ID_V11], 6, 4, 12)
            pubsub = Pubsub(host, router, strict_signing=True)
            await stack.enter_async_context(background_trio_service(pubsub))
            await stack.enter_async_context(background_trio_service(router))
            await pubsub.wait_until_ready()
            arriving = await pubsub.subscribe(_TOPIC)
            if number:
                nursery.start_soon(_listen, arriving, number, heard)
            for other in lot.sample(hosts, min(LINKS, len(hosts))):
                await host.connect(PeerInfo(other.get_id(), other.get_addrs()))
            hosts.append(host)
            publisher = publisher or pubsub
        await trio.sleep(_MESHED)
        told = await tell(heard, rounds, lambda number: publisher.publish(_TOPIC, _head(number)))
        print(json.dumps(told), flush=True)
        nursery.cancel_scope.cancel()


async def _listen(arriving: Any, number: int, heard: Heard) -> None:
    while True:
        await arriving.get()
        heard.know(number)
        if heard.verify(number):
            heard.finish()


async def visit(count: int, address: str) -> None:
    async with AsyncExitStack() as stack:
        for number in range(count):
            driver = await stack.enter_async_context(our_node(number + 1))
            await driver.connect(address)
        print("up", flush=True)
        await trio.lowlevel.FdStream(0).receive_some(1)


def _head(number: int) -> bytes:
    return head_of(owner(1), number + 1, bytes(32), Multihash.sha3_256(bytes([number])))


def main(mode: str, count: int, what: str) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # it would write to stdout
    if mode == "visit":
        trio.run(visit, count, what)
    elif mode == "ours":
        trio.run(ours, count, int(what))
    else:
        trio.run(stock, count, int(what))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
