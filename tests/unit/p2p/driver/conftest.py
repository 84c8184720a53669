"""Nodes in one process: the real driver over streams in memory, virtual time, and threads that run in place."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
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
from p2p.driver.ports import StreamHandler
from p2p.driver.replication import ReplicationDriver
from p2p.driver.settings import ReplicationSettings
from p2p.identity import peer_of_did
from p2p.ports import Concern, Judgement, PeerId, StatementRef, Tip, Topic
from worlds.memory_network import Fabric, MemoryHost

PROTOCOLS = {"chain": "/odf/1/chain", "object": "/odf/1/object", "trust": "/odf/trust/1", "peers": "/odf/1/peers"}


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
