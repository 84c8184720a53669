"""Nodes in one process: the real driver over streams in memory, virtual time, and threads that run in place."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import takewhile
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from chain.errors import Invalid, NotFound
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from chain.statements.tree import Tree
from p2p.address import PeerAddress
from p2p.driver.ports import ConnectionChange, StreamHandler, Validator
from p2p.driver.replication import ReplicationDriver
from p2p.driver.settings import ReplicationSettings
from p2p.errors import PeerUnreachable, ProtocolUnsupported, StreamBroken
from p2p.identity import peer_of_did
from p2p.ip import Allows
from p2p.ports import Concern, Judgement, PeerId, StatementRef, Tip, Topic

PROTOCOLS = {"chain": "/odf/1/chain", "object": "/odf/1/object", "trust": "/odf/trust/1", "peers": "/odf/1/peers"}


class MemoryStream:
    """One end of a stream. With ``lockstep`` a send waits until it is read, as on a full connection."""

    def __init__(self, stream: Any, peer: PeerId) -> None:
        self._stream = stream
        self.peer = peer
        self.other: MemoryStream | None = None
        self.was_reset = False
        self.closed = False

    async def send_all(self, data: bytes) -> None:
        self._check()
        try:
            await self._stream.send_all(data)
        except trio.BrokenResourceError as error:
            raise StreamBroken(self.peer, "the other side is gone") from error

    async def receive_some(self, max_bytes: int) -> bytes:
        self._check()
        try:
            data = await self._stream.receive_some(max_bytes)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise StreamBroken(self.peer, "reset") from error
        if self.was_reset:
            raise StreamBroken(self.peer, "reset")
        return bytes(data)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        self.closed = True
        await self._stream.aclose()

    async def reset(self) -> None:
        if not self.closed:
            self.closed = True
            if self.other:
                self.other.was_reset = True
            await self._stream.aclose()

    def _check(self) -> None:
        if self.closed:
            raise trio.ClosedResourceError
        if self.was_reset:
            raise StreamBroken(self.peer, "reset")


class MemoryHost:
    """A ``HostPort`` on a fabric."""

    def __init__(self, fabric: Fabric, name: str) -> None:
        self.fabric = fabric
        self.peer_id = PeerId(name)
        self.handlers: dict[str, StreamHandler] = {}
        self.validators: dict[str, Validator] = {}
        self.links: set[PeerId] = set()
        self.dials: list[tuple[float, str]] = []
        self._changes, self._inbox = trio.open_memory_channel[ConnectionChange](math.inf)
        self.address = f"/memory/{name}"
        self.reachable = True
        self.lockstep = False
        self.chosen: frozenset[PeerId] = frozenset()
        self.relays: dict[PeerId, str] = {}
        self.apart: set[PeerId] = set()
        """Chosen peers and publishers: they share with nobody."""

    direct = None
    """Nobody is behind a NAT here."""

    def share_port_with(self, peers: Iterable[PeerId]) -> None:
        """There are no ports."""

    def addresses(self) -> Sequence[str]:
        return [self.address]

    def peers(self) -> Mapping[PeerId, str]:
        return {peer: f"/memory/{peer}" for peer in self.links}

    def is_connected(self, peer: PeerId) -> bool:
        return peer in self.links

    def gave(self, peer: PeerId, amount: int) -> None:
        """Nobody is short of places here."""

    def choose(self, peers: Iterable[PeerId], addresses: Iterable[str] = (), publishers: Iterable[PeerId] = ()) -> None:
        self.chosen = frozenset(peers)
        self.apart = {*self.chosen, *publishers}

    def reached_by(self, relays: Mapping[PeerId, str]) -> None:
        self.relays = dict(relays)

    def charge(self, peer: PeerId, cost: float) -> float:
        """What a peer costs is no matter here."""
        return 0.0

    def network_of(self, peer: PeerId) -> str:
        return "memory" if peer in self.links else ""

    def remote_of(self, peer: PeerId) -> str:
        other = self.fabric.hosts.get(peer)
        return "" if other is None else self.fabric.ip(other)

    @asynccontextmanager
    async def brief(self, address: PeerAddress, peer: PeerId, protocol: str) -> AsyncIterator[MemoryStream]:
        await trio.sleep(0.01)
        other = self.fabric.hosts.get(peer)
        if other is None or not other.reachable or address.transport not in other.address:
            raise PeerUnreachable(peer, "nobody there")
        handler = other.handlers.get(protocol)
        if handler is None:
            raise ProtocolUnsupported(peer, f"does not speak {protocol}")
        self.fabric.briefs.append((self.peer_id, peer))
        stream = self.fabric.streams(handler, self, other)
        try:
            yield stream
        finally:
            await stream.reset()

    def share_of(self, peer: PeerId) -> str:
        return peer if peer in self.apart else self.network_of(peer) or peer

    async def connect(self, multiaddr: str, *others: str, allows: Allows) -> PeerId:
        self.dials.append((trio.current_time(), multiaddr))
        await trio.sleep(0.01)
        other = self.fabric.hosts.get(PeerId(multiaddr.rpartition("/")[2]))
        if other is None or not other.reachable or other.address not in (multiaddr, *others):
            raise PeerUnreachable(multiaddr, "nobody there")
        self.fabric.join(self, other)
        return other.peer_id

    async def disconnect(self, peer: PeerId) -> None:
        await trio.lowlevel.checkpoint()
        self.fabric.part(self, self.fabric.hosts[peer])

    async def open_stream(self, peer: PeerId, protocol: str) -> MemoryStream:
        await trio.lowlevel.checkpoint()
        if peer not in self.links:
            raise PeerUnreachable(peer, "not connected")
        handler = self.fabric.hosts[peer].handlers.get(protocol)
        if handler is None:
            raise ProtocolUnsupported(peer, f"does not speak {protocol}")
        return self.fabric.streams(handler, self, self.fabric.hosts[peer])

    def set_handler(self, protocol: str, handler: StreamHandler) -> None:
        self.handlers[protocol] = handler

    async def next_change(self) -> ConnectionChange:
        return await self._inbox.receive()

    def tell(self, peer: PeerId, up: bool) -> None:
        self._changes.send_nowait(ConnectionChange(peer, up, f"/memory/{peer}" if up else ""))

    async def join(self, topic: str, validator: Validator) -> None:
        self.validators[topic] = validator

    async def publish(self, topic: str, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        for peer in sorted(self.links):
            self.fabric.nursery.start_soon(self.fabric.gossip, self, self.fabric.hosts[peer], topic, data)


class Fabric:
    """Hosts by name, and the tasks that carry things between them."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.hosts: dict[PeerId, MemoryHost] = {}
        self.carried: Counter[PeerId] = Counter()
        """Bytes of gossip that reached each of them."""

        self.briefs: list[tuple[PeerId, PeerId]] = []
        """Who asked whom over a connection of its own."""

    def ip(self, host: MemoryHost) -> str:
        return host.address.split("/")[2] if host.address.startswith("/ip4/") else ""

    def streams(self, handler: StreamHandler, here: MemoryHost, there: MemoryHost) -> MemoryStream:
        """A stream from one host to another, which serves it."""
        lockstep = here.lockstep or there.lockstep
        pair = trio.testing.lockstep_stream_pair() if lockstep else trio.testing.memory_stream_pair()
        mine, theirs = MemoryStream(pair[0], there.peer_id), MemoryStream(pair[1], here.peer_id)
        mine.other, theirs.other = theirs, mine
        self.nursery.start_soon(self.serve, handler, theirs, here.peer_id)
        return mine

    def host(self, name: str) -> MemoryHost:
        host = MemoryHost(self, name)
        self.hosts[host.peer_id] = host
        return host

    def join(self, one: MemoryHost, other: MemoryHost) -> None:
        for here, there in ((one, other), (other, one)):
            if there.peer_id not in here.links:
                here.links.add(there.peer_id)
                here.tell(there.peer_id, up=True)

    def part(self, one: MemoryHost, other: MemoryHost) -> None:
        for here, there in ((one, other), (other, one)):
            if there.peer_id in here.links:
                here.links.discard(there.peer_id)
                here.tell(there.peer_id, up=False)

    async def serve(self, handler: StreamHandler, stream: MemoryStream, peer: PeerId) -> None:
        await handler(stream, peer)

    async def gossip(self, sender: MemoryHost, receiver: MemoryHost, topic: str, data: bytes) -> None:
        validator = receiver.validators.get(topic)
        if validator is None:
            return
        self.carried[receiver.peer_id] += len(data)
        verdict = await validator(sender.peer_id, data)
        to = set(verdict.to) | (receiver.links if verdict.judgement is Judgement.ACCEPT else set())
        for peer in sorted(to - {sender.peer_id}):
            self.nursery.start_soon(self.gossip, receiver, self.hosts[peer], topic, data)


def made_chain(name: str, count: int, size: int = 600) -> tuple[bytes, ...]:
    """Blocks that each begin with the hash of the one before."""
    blocks: list[bytes] = []
    for number in range(count):
        before = hashlib.sha3_256(blocks[-1]).digest() if blocks else bytes(32)
        blocks.append((before + f"{name} {number} ".encode()).ljust(size, b"."))
    return tuple(blocks)


class Shelf:
    """A ``Library`` of chains and objects."""

    def __init__(self) -> None:
        self.chains: dict[DatasetId, tuple[bytes, ...]] = {}
        self.things: dict[Multihash, bytes] = {}
        self.reads = 0

    def to(self, _peer: PeerId) -> Shelf:
        return self

    def datasets(self, limit: int) -> Sequence[DatasetId]:
        return [*self.chains][:limit]

    def size(self, dataset: DatasetId) -> int:
        return len(self.chains.get(dataset, ()))

    def blocks(self, dataset: DatasetId, start: int, max_bytes: int) -> Sequence[bytes]:
        self.reads += 1
        return self.chains[dataset][start : start + 1 + max_bytes // 100]

    def prove(self, dataset: DatasetId, size: int, *, old: int | None = None, index: int | None = None) -> list[bytes]:
        chain = self.chains.get(dataset, ())
        if size > len(chain):
            raise NotFound("no such chain")
        tree = Tree(lambda start, stop: [hashlib.sha3_256(raw).digest() for raw in chain[start:stop]])
        return tree.inclusion(index or 0, size) if old is None else tree.consistency(old, size)

    def object_size(self, name: Multihash) -> int | None:
        return len(self.things[name]) if name in self.things else None

    def read_object(self, name: Multihash, offset: int, length: int) -> bytes:
        self.reads += 1
        if name not in self.things:
            raise NotFound("no such object")
        return self.things[name][offset : offset + length]

    def object_part(self, name: Multihash, offset: int, into: memoryview) -> tuple[int, int]:
        if name not in self.things:
            raise NotFound("no such object")
        data = self.read_object(name, offset, len(into)) if into else b""
        into[: len(data)] = data
        return len(self.things[name]), len(data)

    def parts(self, _ask: object) -> None:
        """Tells nobody."""

    pieces = parts

    def small_objects(self, names: Sequence[Multihash], largest: int) -> Iterator[bytes]:
        self.reads += 1
        held = takewhile(lambda name: len(self.things.get(name, bytes(largest + 1))) <= largest, names)
        return (self.things[name] for name in held)


def about(envelope: bytes) -> DatasetId:
    return DatasetId.from_public_key(envelope[2:3] * 32)


class Board:
    """A ``Noticeboard``: a statement is good when it begins with ``ok``, and speaks of the dataset named after it."""

    def __init__(self) -> None:
        self.held: dict[Multihash, tuple[Topic, bytes, DatasetId]] = {}
        self.judged: list[tuple[Topic, bytes, PeerId]] = []
        self.wanted: set[DatasetId] = set()
        self.wants_all = True

    def to(self, _peer: PeerId) -> Board:
        return self

    def judge(self, topic: Topic, envelope: bytes, sender: PeerId) -> Judgement:
        self.judged.append((topic, envelope, sender))
        if not envelope.startswith(b"ok"):
            return Judgement.REJECT
        sid = Multihash.sha3_256(envelope)
        if sid in self.held:
            return Judgement.IGNORE
        self.held[sid] = (topic, envelope, about(envelope))
        return Judgement.ACCEPT

    def refs(self, datasets: Sequence[DatasetId] | None = None) -> Sequence[StatementRef]:
        return [StatementRef(sid, held[2]) for sid, held in self.held.items() if not datasets or held[2] in datasets]

    def interests(self) -> Sequence[DatasetId]:
        held = {each[2] for each in self.held.values()} if self.wants_all else set()
        return sorted(held | self.wanted)

    def concern(self, topic: Topic, envelope: bytes) -> Concern:
        dataset = about(envelope)
        return Concern((dataset,), self.wants_all or dataset in self.wanted)

    def envelope(self, sid: Multihash) -> tuple[Topic, bytes] | None:
        return self.held[sid][:2] if sid in self.held else None


class ChainBook:
    """A ``ChainSink`` that checks links, and at the end the hash of the last block."""

    def __init__(self, chain: Sequence[bytes]) -> None:
        self.blocks: list[bytes] = []
        self.givers: list[PeerId] = []
        self.tip = Tip(len(chain), hashlib.sha3_256(chain[-1]).digest())

    @property
    def size(self) -> int:
        return len(self.blocks)

    def append(self, peer: PeerId, start: int, blocks: Sequence[bytes]) -> None:
        assert start == len(self.blocks)
        for block in blocks:
            before = hashlib.sha3_256(self.blocks[-1]).digest() if self.blocks else bytes(32)
            if block[:32] != before:
                self.blocks.clear()
                raise Invalid(f"block #{start} does not follow")
            self.blocks.append(block)
            self.givers.append(peer)

    def finish(self) -> None:
        if hashlib.sha3_256(self.blocks[-1]).digest() != self.tip.last:
            self.blocks.clear()
            raise Invalid("not the chain whose head was signed")


class Part:
    """An ``ObjectSink`` in memory."""

    def __init__(self, name: Multihash, begun: bytes = b"") -> None:
        self.name = name
        self.data = bytearray(begun)
        self.visible: bytes | None = None
        self.abandoned = 0

    @property
    def stop(self) -> int | None:
        return None

    @property
    def received(self) -> int:
        return len(self.data)

    def write(self, data: bytes) -> None:
        self.data += data

    def finish(self) -> None:
        if Multihash.sha3_256(self.data) != self.name:
            self.data.clear()
            raise Invalid("the bytes do not hash to the name")
        self.visible = bytes(self.data)

    def abandon(self) -> None:
        self.abandoned += 1
        self.data.clear()


class Pack:
    """A ``PackSink`` in memory."""

    def __init__(self, names: Sequence[Multihash]) -> None:
        self.names = names
        self.here: list[bytes] = []

    @property
    def received(self) -> int:
        return len(self.here)

    def take(self, objects: Sequence[bytes]) -> None:
        for data in objects:
            if Multihash.sha3_256(data) != self.names[self.received]:
                raise Invalid("the bytes do not hash to the name")
            self.here.append(data)


class Node:
    """A driver with what it stands on."""

    def __init__(self, fabric: Fabric, name: str, key: SigningKey | None = None, **settings: Any) -> None:
        self.host = fabric.host(name)
        if key is not None:
            number = len(fabric.hosts)
            self.host.address = f"/ip4/10.0.{number // 250}.{number % 250}/tcp/4150/p2p/{name}"
        self.shelf = Shelf()
        self.board = Board()
        self.driver = ReplicationDriver(
            self.host,
            self.shelf,
            self.board,
            ReplicationSettings(**{"network": "test", "inside": ("10.0.0.0/8",), **settings}),
            Random(name),
            lambda: 1_700_000_000_000_000_000 + int(trio.current_time() * 1e9),
            key,
        )
        self.peer = self.host.peer_id

    def score(self, other: Node | MemoryHost) -> float:
        peer = other.peer if isinstance(other, Node) else other.peer_id
        return {view.peer: view.score for view in self.driver.peers()}.get(peer, 0.0)


class Town:
    """What a test uses: make nodes and bare hosts, and the sinks and chains above."""

    made_chain = staticmethod(made_chain)
    ChainBook = ChainBook
    Part = Part
    Pack = Pack

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.fabric = Fabric(nursery)

    async def node(self, name: str, *, connect: Sequence[Node | MemoryHost] = (), **settings: Any) -> Node:
        node = Node(self.fabric, name, **settings)
        await self.nursery.start(node.driver.run)
        for other in connect:
            peer = other.peer if isinstance(other, Node) else other.peer_id
            await node.driver.connect(self.fabric.hosts[peer].address)
        return node

    async def known(self, seed: int, *, connect: Sequence[Node | MemoryHost] = (), **settings: Any) -> Node:
        """A node with a real key, which says who it is."""
        key = SigningKey(seed.to_bytes(32, "big"))
        return await self.node(str(peer_of_did(key.did)), connect=connect, key=key, **settings)

    def bare(self, name: str, **handlers: StreamHandler) -> MemoryHost:
        host = self.fabric.host(name)
        for protocol, handler in handlers.items():
            host.set_handler(PROTOCOLS[protocol], handler)
        return host


@pytest.fixture
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time does not know that a thread is at work, so here none is."""

    async def run_sync(work: Callable[..., Any], *args: Any, limiter: trio.CapacityLimiter | None = None) -> Any:
        async with limiter or trio.CapacityLimiter(1):
            return work(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


@pytest.fixture
async def town(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, in_place: None) -> Town:
    return Town(nursery)
