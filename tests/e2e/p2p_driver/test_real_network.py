"""Whole replication layers over real networks: what they give each other, and how they find and reach each other."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from random import Random
from typing import Any

import pytest
import trio

from chain.errors import Invalid, NotFound
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from p2p.address import parse_address
from p2p.driver.lan import Group4, Group6
from p2p.driver.network import open_network
from p2p.driver.replication import ReplicationDriver
from p2p.driver.settings import ReplicationSettings
from p2p.errors import PeerFault
from p2p.host.host import open_host
from p2p.machines.reachability import Reached
from p2p.machines.relay import RelayLimits
from p2p.ports import Concern, Judgement, PeerId, StatementRef, Tip, Topic
from p2p.wire.lan import encode_presence, encode_question
from worlds.eventually import PATIENCE, until
from worlds.lan import NoLan, open_lan
from worlds.nat_nodes import NatNode
from worlds.nat_world import NATS, Internet, NoNat, Place, open_internet

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


# Nodes find and reach each other: by multicast on the loopback, and behind NATs of the kernel's own.

LIAR = PeerId("12D3KooWM57jXdhtZT4ZEcdNbTo5JiKUxMZHg143ugaEYH8CNUMh")
IPV6 = "fd00::7"


class Nothing:
    """A library and a board with nothing in them."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_more: [] if name in ("datasets", "refs") else 0


@pytest.fixture
def port() -> int:
    """That nobody on this machine uses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@asynccontextmanager
async def lan_node(
    number: int, port: int | None, network: str = "home", listen: str = "/ip4/127.0.0.1/tcp/0"
) -> AsyncIterator[ReplicationDriver]:
    seed = bytes([number]) * 32
    settings = ReplicationSettings(network=network, lan=port, degree=0)
    async with open_host(seed, [listen]) as host, open_network(host) as opened:
        board: Any = Nothing()
        driver = ReplicationDriver(opened, board, board, settings, Random(number), lambda: NOW, SigningKey(seed))
        async with trio.open_nursery() as nursery:
            await nursery.start(driver.run)
            yield driver
            nursery.cancel_scope.cancel()


def connected(driver: ReplicationDriver) -> set[PeerId]:
    return {view.peer for view in driver.peers() if view.connected}


def say(port: int, *packets: bytes) -> None:
    """From the loopback, as somebody on the LAN."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as speaker:
        speaker.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        for packet in packets:
            speaker.sendto(packet, (Group4.address, port))


async def keep_until(come_true: Callable[[], bool], again: Callable[[], None] = lambda: None) -> None:
    while not come_true():
        again()
        await trio.sleep(0.05)


async def test_peers_of_one_network_meet_and_those_of_another_do_not(port: int) -> None:
    with trio.fail_after(PATIENCE):
        async with (
            lan_node(31, port) as first, lan_node(32, port, "office") as other, lan_node(33, None) as silent,
            lan_node(34, port) as second,
        ):  # fmt: skip
            await keep_until(lambda: second.peer_id in connected(first))
            assert connected(second) == {first.peer_id}
            assert connected(other) == connected(silent) == set()


async def test_noise_floods_and_lies_lead_to_nobody(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-REACH-01: false data and floods by multicast on the LAN.

    Defence: off by default; an address counts only if it is the packet's source; ten packets a second of one address,
    four dials at a time.

    The liar names a third, then the listener itself, then a place where nobody is, hundreds of times.
    """
    dialled: list[str] = []
    with trio.fail_after(PATIENCE):
        async with lan_node(41, port) as first:
            assert first._lan is not None
            visit = first._lan._visit

            async def watched(peer: PeerId, addresses: Any) -> object:
                dialled.extend(addresses)
                return await visit(peer, addresses)

            monkeypatch.setattr(first._lan, "_visit", watched)
            own = [parse_address(each) for each in first.addresses()]
            third, closed = (parse_address(text) for text in ("/ip4/192.168.7.7/tcp/9", "/ip4/127.0.0.1/tcp/1"))
            lies = [encode_presence(LIAR, "home", [third]), encode_presence(first.peer_id, "home", own)]
            noise = [b"", b"\xff" * 300, bytes(8999), encode_question()]
            last = encode_presence(LIAR, "home", [closed])
            await keep_until(lambda: bool(dialled), lambda: say(port, *noise, *lies, last))
            say(port, *[last] * 300)
            async with lan_node(42, port) as second:
                await keep_until(lambda: second.peer_id in connected(first))
                ours = {f"{one.transport}/p2p/{second.peer_id}" for one in map(parse_address, second.addresses())}
            assert set(dialled) - ours == {f"{closed.transport}/p2p/{LIAR}"}


async def test_a_machine_without_multicast_does_without(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Group4, "address", "203.0.113.1")
    monkeypatch.setattr(Group6, "address", "2001:db8::1")
    with trio.fail_after(PATIENCE):
        async with lan_node(51, port) as first, lan_node(52, None) as second:
            await first.connect(second.addresses()[0])
            assert connected(first) == {second.peer_id}


def test_peers_that_have_ipv6_alone_meet() -> None:
    """Attack T-REACH-01: unicast mDNS over IPv6 from outside of the link.

    Defence: only packets to the group of the link count.

    In a namespace with a device that carries multicast: the loopback does not, with IPv6.
    """
    try:
        with open_lan(1, seed=1) as switch:
            (place,) = switch.places
            words = f"ip -6 addr add {IPV6}/64 dev lan0 nodad".split()
            if subprocess.run([*place.entering, *words], capture_output=True, check=False).returncode:
                pytest.skip("no IPv6 here")
            inside = [*place.entering, sys.executable, __file__]
            met = subprocess.run(inside, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, timeout=PATIENCE)
            assert met.returncode == 0
    except NoLan as reason:
        pytest.skip(f"no network namespaces here: {reason}")


async def meet_by_ipv6() -> None:
    """What a liar says to this machine alone, or of a third, leads nowhere; what it says of itself to all does."""
    listen, dialled = f"/ip6/{IPV6}/tcp/0", list[str]()
    alone, third, itself = (
        encode_presence(LIAR, "home", [parse_address(text)])
        for text in (f"/ip6/{IPV6}/tcp/1", "/ip6/fd00::9/tcp/9", f"/ip6/{IPV6}/tcp/2")
    )

    def lie() -> None:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as speaker:
            speaker.bind((IPV6, 0))
            speaker.sendto(alone, (IPV6, 5353))
            for packet in (third, itself):
                speaker.sendto(packet, (Group6.address, 5353, 0, socket.if_nametoindex("lan0")))

    with trio.fail_after(PATIENCE):
        async with lan_node(61, 5353, listen=listen) as first:
            assert first._lan is not None
            visit = first._lan._visit

            async def watched(peer: PeerId, addresses: Any) -> object:
                dialled.extend(addresses)
                return await visit(peer, addresses)

            first._lan._visit = watched
            await keep_until(lambda: bool(dialled), lie)
            assert set(dialled) == {f"/ip6/{IPV6}/tcp/2/p2p/{LIAR}"}
            async with lan_node(62, 5353, listen=listen) as second, lan_node(63, 5353, "office", listen) as other:
                await keep_until(lambda: second.peer_id in connected(first))
                assert connected(second) == {first.peer_id}
                assert connected(other) == set()


if __name__ == "__main__":
    trio.run(meet_by_ipv6)


# Nodes behind NATs of the kernel's own: which pairs connect directly, and what they find out about themselves.

FAILING = {
    ("port restricted", "symmetric"), ("symmetric", "port restricted"), ("symmetric", "symmetric"),
}  # fmt: skip
"""Pairs that stay with the relay: docs/how-to/reach.md has the table."""
Start = Callable[..., NatNode]


@pytest.fixture
def internet() -> Iterator[Internet]:
    try:
        with open_internet() as net:
            yield net
    except NoNat as reason:
        pytest.skip(f"no NATs can be made here: {reason}")


@pytest.fixture
def start(internet: Internet) -> Iterator[Start]:
    with ExitStack() as stack:

        def run(place: Place, name: str, **settings: object) -> NatNode:
            lan_node = NatNode(place, name, **settings)
            stack.callback(lan_node.close)
            return lan_node

        yield run


def address_of(lan_node: NatNode) -> str:
    return next(each for each in lan_node.addresses() if each.startswith("/ip4/20.") and "p2p-circuit" not in each)


@pytest.mark.slow
def test_pairs_of_nats_connect_directly_where_one_of_them_allows_it(internet: Internet, start: Start) -> None:
    relay = start(internet.public(), "relay", relay=RelayLimits(of_peer=64))
    there = address_of(relay)

    def home(nat: str, side: str) -> NatNode:
        return start(internet.home(nat), f"{side} {nat}", relays=(there,), bootstrap=(there,))

    lefts, rights = ({nat: home(nat, side) for nat in NATS} for side in ("left", "right"))
    nodes = [*lefts.values(), *rights.values()]
    until(lambda: all(lan_node.circuit() and lan_node.call(lan_node.reach.autonat.seen_at) for lan_node in nodes))
    direct: set[tuple[str, str]] = set()
    for left in lefts.values():
        for right in rights.values():
            left.call(left.driver.connect, right.circuit())

    def missing() -> set[tuple[str, str]]:
        for one, left in lefts.items():
            for other, right in rights.items():
                if left.call(left.host.direct.is_direct, right.host.peer_id):
                    direct.add((one, other))
        return {(one, other) for one in NATS for other in NATS} - direct

    def all_tried() -> bool:
        tried = sum(lan_node.reach.holes.succeeded + lan_node.reach.holes.failed for lan_node in nodes)
        return tried >= len(lefts) * len(rights)

    until(lambda: missing() <= FAILING and all_tried())
    assert missing() == FAILING
    for one, other in FAILING:
        assert rights[other].host.peer_id in lefts[one].call(lefts[one].host.peers), "the relay carries on"


@pytest.mark.slow
def test_a_node_that_moves_is_back_and_what_it_opened_goes_both_ways(internet: Internet, start: Start) -> None:
    relay = start(internet.public(), "relay", relay=RelayLimits())
    there = address_of(relay)
    place = internet.home("port restricted")
    laptop = start(place, "laptop", relays=(there,), bootstrap=(there,))
    until(lambda: bool(laptop.circuit()))
    me = laptop.host.peer_id

    def is_served() -> bool:
        """The relay opens a stream on the connection that the laptop made, which nobody could dial."""
        try:
            relay.call(relay.host.ping, me)
        except PeerFault:
            return False
        return True

    assert is_served()
    internet.readdress(place, "192.168.1.77")
    until(lambda: laptop.reach.moves.count > 0)
    until(lambda: bool(laptop.circuit()) and is_served())
    assert "192.168.1.77" in str(laptop.addresses())


@pytest.mark.slow
def test_dial_backs_tell_a_public_node_from_one_behind_a_nat(internet: Internet, start: Start) -> None:
    """Also behind a NAT that lets in whoever was spoken to: those who are asked were not, from that port."""
    servers = [start(internet.public(), f"server {number}") for number in range(3)]
    told = tuple(address_of(server) for server in servers)
    relay = start(internet.public(), "relay", relay=RelayLimits())
    public = start(internet.public(), "public", bootstrap=told, relays=(address_of(relay),))
    hidden = start(internet.home("address restricted"), "hidden", bootstrap=told, relays=(address_of(relay),))

    def whole(lan_node: NatNode) -> Reached:
        return lan_node.call(lambda: lan_node.reach.autonat.whole())

    until(lambda: whole(public) is Reached.YES and whole(hidden) is Reached.NO)
    assert any(each.startswith("/ip4/20.") for each in public.addresses())
    outer = hidden.reach.autonat.reachability.addresses
    assert outer
    assert not any(each.transport in own for each in outer for own in hidden.addresses())
    until(lambda: not public.circuit() and bool(hidden.circuit()))
