"""Gossip between open hosts: what is accepted arrives, all of it; what is refused does not; garbage hurts nobody."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from chain.errors import Remote
from chain.ids import DatasetId
from chain.instant import Instant
from chain.statements.keys import SigningKey
from p2p.driver.network import open_network
from p2p.driver.replication import ReplicationDriver
from p2p.driver.settings import ReplicationSettings
from p2p.errors import NotJoined, NotTaken, PeerFault
from p2p.host.host import Host, open_host
from p2p.host.pubsub import HEARTBEAT, ID, WORTH_SPARING, Gossip, GossipLimits, SteadyGossipSub, open_gossip, rpc_pb2
from p2p.host.stream import BrokenStream
from p2p.ipfs import record
from p2p.ipfs.record import Pointer
from p2p.kubo.rpc import AddedFile, Kubo
from p2p.ports import GossipVerdict, Judgement, PeerId
from p2p.wire.contact import lookup_key
from p2p.wire.frames import DelimitedReader
from worlds import foreign
from worlds.eventually import PATIENCE, became
from worlds.memory_ipfs import MemoryIpfs

TOPIC = "/odf/1/test/heads"


async def accept(_topic: str, _sender: PeerId, _data: bytes) -> GossipVerdict:
    return GossipVerdict(Judgement.ACCEPT)


async def meet(pair: Any, one: Gossip, other: Gossip) -> None:
    await one.wait_for_peer(TOPIC, pair.bob.peer_id)
    await other.wait_for_peer(TOPIC, pair.alice.peer_id)


@pytest.mark.slow
async def test_a_burst_arrives_whole(pair: Any) -> None:
    """py-libp2p's defaults let 10 of 60 through, and queues of 32 a few more."""
    many = GossipLimits(incoming=300)
    async with (
        open_gossip(pair.alice, [TOPIC], accept, many) as one,
        open_gossip(pair.bob, [TOPIC], accept, many) as other,
    ):
        await meet(pair, one, other)
        for number in range(200):
            await one.publish(TOPIC, b"%d" % number)
        got = [await other.incoming.receive() for _ in range(200)]
    assert sorted(int(one.data) for one in got) == list(range(200))
    assert {one.sender for one in got} == {pair.alice.peer_id}


@pytest.mark.parametrize("verdict", [Judgement.IGNORE, Judgement.REJECT])
async def test_what_the_validator_does_not_accept_goes_no_further(pair: Any, verdict: Judgement) -> None:
    asked: list[tuple[str, PeerId, bytes]] = []

    async def judge(topic: str, sender: PeerId, data: bytes) -> GossipVerdict:
        asked.append((topic, sender, data))
        return GossipVerdict(verdict if data == b"bad" else Judgement.ACCEPT)

    async with open_gossip(pair.alice, [TOPIC], accept) as one, open_gossip(pair.bob, [TOPIC], judge) as other:
        await meet(pair, one, other)
        await one.publish(TOPIC, b"bad")
        await one.publish(TOPIC, b"good")
        assert (await other.incoming.receive()).data == b"good"
        assert (TOPIC, pair.alice.peer_id, b"bad") in asked
        with pytest.raises(trio.WouldBlock):
            other.incoming.receive_nowait()


@pytest.mark.slow
async def test_what_the_mesh_is_not_sent_goes_to_those_who_want_it(pair: Any) -> None:
    """bob tells alice, who passes it on to carol alone; dave, whom alice knows as well, hears what is for all."""
    async with open_host(b"c" * 32) as carol, open_host(b"d" * 32) as dave:

        async def judge(_topic: str, _sender: PeerId, data: bytes) -> GossipVerdict:
            for_all = Judgement.ACCEPT if data == b"for all" else Judgement.IGNORE
            return GossipVerdict(for_all, frozenset([carol.peer_id]))

        for host in (carol, dave):
            await host.connect(pair.alice.addresses()[0])
        async with (
            open_gossip(pair.alice, [TOPIC], judge) as one,
            open_gossip(pair.bob, [TOPIC], accept) as other,
            open_gossip(carol, [TOPIC], accept) as third,
            open_gossip(dave, [TOPIC], accept) as fourth,
        ):
            await meet(pair, one, other)
            for host in (carol, dave):
                await one.wait_for_peer(TOPIC, host.peer_id)
            await other.publish(TOPIC, b"for carol")
            assert (await third.incoming.receive()).data == b"for carol"
            await other.publish(TOPIC, b"for all")
            assert (await third.incoming.receive()).data == b"for all"
            assert (await fourth.incoming.receive()).data == b"for all"


async def test_incoming_is_bounded_and_keeps_the_newest(pair: Any) -> None:
    few = GossipLimits(incoming=4)
    async with open_gossip(pair.alice, [TOPIC], accept) as one, open_gossip(pair.bob, [TOPIC], accept, few) as other:
        await meet(pair, one, other)
        for number in range(20):
            await one.publish(TOPIC, b"%d" % number)
        while other.missed < 16:
            await trio.lowlevel.checkpoint()
        kept = [other.incoming.receive_nowait().data for _ in range(4)]
    assert sorted(kept, key=int) == [b"16", b"17", b"18", b"19"]


async def test_publishing_needs_a_joined_topic_and_a_message_that_fits(pair: Any) -> None:
    async with open_gossip(pair.alice, [TOPIC], accept) as one:
        with pytest.raises(NotJoined, match="/other"):
            await one.publish("/other", b"x")
        with pytest.raises(NotTaken, match="300000 bytes"):
            await one.publish(TOPIC, bytes(300_000))
        await one.leave(TOPIC)
        with pytest.raises(NotJoined):
            await one.publish(TOPIC, b"x")


@pytest.mark.slow
@pytest.mark.parametrize(
    "garbage",
    [b"\xff" * 64, b"\x05hello", b"\xff\xff\xff\xff\x0f" + bytes(100), b"\x80" * 30, b"\x02\x0a\x7f"],
    ids=["ones", "text", "too-long", "varint", "truncated"],
)
async def test_malformed_gossip_costs_its_stream(pair: Any, garbage: bytes) -> None:
    """One such frame ends a stock node."""
    async with open_gossip(pair.alice, [TOPIC], accept) as one, open_host(b"e" * 32) as eve:
        await eve.connect(pair.alice.addresses()[0])
        stream = await eve.open_stream(pair.alice.peer_id, "/meshsub/1.1.0")
        with suppress(BrokenStream):
            await stream.send_all(garbage)
            await stream.send_eof()
            while await stream.receive_some():
                pass
        await stream.aclose()
        async with open_gossip(pair.bob, [TOPIC], accept) as other:
            await meet(pair, one, other)
            await one.publish(TOPIC, b"still here")
            assert (await other.incoming.receive()).data == b"still here"


def test_the_router_has_settings_that_lose_nothing() -> None:
    router = SteadyGossipSub()
    assert router.heartbeat_interval == HEARTBEAT == 1
    assert not router.spam_protection_enabled
    assert not router.adaptive_gossip_enabled
    for _ in range(10_000):
        router.recent_message_deliveries["t"].append(0.0)
    assert len(router.recent_message_deliveries["t"]) == 1


@pytest.mark.slow
async def test_a_message_costs_what_it_says(pair: Any) -> None:
    """py-libp2p adds a signed record of its addresses to every frame, which each reader verifies, and after each small
    message a frame to every neighbour not to send it back: more than half of the CPU of a crowd."""
    frames, heard = DelimitedReader(1 << 20), []
    send, receive = trio.open_memory_channel[Any](100)

    async def listen(stream: Any, _peer: PeerId) -> None:
        while data := await stream.receive_some():
            for body in frames.feed(data):
                await send.send(rpc_pb2.RPC.FromString(body))

    async with open_host(b"e" * 32) as eve, open_gossip(pair.alice, [TOPIC], accept) as one:
        eve.set_handler("/meshsub/1.2.0", listen)
        await eve.connect(pair.alice.addresses()[0])
        stream = await eve.open_stream(pair.alice.peer_id, "/meshsub/1.2.0")
        hello = rpc_pb2.RPC(subscriptions=[rpc_pb2.RPC.SubOpts(subscribe=True, topicid=TOPIC)])
        hello.control.graft.add(topicID=TOPIC)
        raw = hello.SerializeToString()
        await stream.send_all(bytes([len(raw)]) + raw)
        await one.wait_for_peer(TOPIC, eve.peer_id)
        await one.publish(TOPIC, b"small")
        await one.publish(TOPIC, bytes(WORTH_SPARING))
        spared: list[bytes] = []
        while len(heard) < 2 or not spared:
            rpc = await receive.receive()
            heard += [message.data for message in rpc.publish]
            spared += [name for part in rpc.control.idontwant for name in part.messageIDs]
            assert rpc.subscriptions or not rpc.HasField("senderRecord")
    assert heard == [b"small", bytes(WORTH_SPARING)]
    assert len(spared) == 1


@pytest.mark.slow
async def test_where_a_sender_says_it_lives_is_not_kept(pair: Any) -> None:
    """Attack T-PEER-02: a signed address record in every gossip frame, to be verified each time, or forged.

    Defence: ignored.

    A record of addresses in a gossip frame, forged or not, is passed over; the rest of the frame counts.
    """
    async with open_gossip(pair.alice, [TOPIC], accept) as one, open_host(b"e" * 32) as eve:
        await eve.connect(pair.alice.addresses()[0])
        stream = await eve.open_stream(pair.alice.peer_id, "/meshsub/1.2.0")
        hello = rpc_pb2.RPC(subscriptions=[rpc_pb2.RPC.SubOpts(subscribe=True, topicid=TOPIC)], senderRecord=b"forged")
        raw = hello.SerializeToString()
        await stream.send_all(bytes([len(raw)]) + raw)
        while eve.peer_id not in one.peers(TOPIC):
            await trio.lowlevel.checkpoint()


@pytest.mark.slow
async def test_what_was_told_is_forgotten(pair: Any) -> None:
    """py-libp2p keeps a thousand messages to compare, and a hundred more for each peer that joined nothing."""
    many = GossipLimits(incoming=400)
    async with open_host(b"e" * 32) as eve, open_gossip(eve, ["/odf/1/test/other"], accept):
        await eve.connect(pair.alice.addresses()[0])
        async with open_gossip(pair.alice, [TOPIC], accept, many) as one:
            while ID.from_base58(eve.peer_id) not in one._pubsub.peers:
                await trio.lowlevel.checkpoint()
            for number in range(300):
                await one.publish(TOPIC, b"%d" % number)
            router = one._pubsub.router
            assert not router.equivocation_detection
            assert not router._pending_messages


async def test_the_librarys_own_scores_are_off(pair: Any) -> None:
    """Attack T-PEER-05: the library's own scores, which others can lower.

    Defence: switched off.

    They would count against a relay what others make it pass on or ask for, and prune the mesh by that.
    """
    async with open_gossip(pair.alice, [TOPIC], accept) as one, open_gossip(pair.bob, [TOPIC], accept) as other:
        await meet(pair, one, other)
        router = other._pubsub.router
        for _ in range(200):
            router._check_ihave_rate_limit(one._host.peer_id, TOPIC)
            router._check_iwant_rate_limit(one._host.peer_id)
        await one.publish(TOPIC, b"heard")
        assert (await other.incoming.receive()).data == b"heard"
        assert router.scorer is None


@pytest.mark.slow
async def test_what_was_said_on_a_stream_that_stands_outlives_an_older_one(pair: Any) -> None:
    """A peer that came again, before its old connection was known to be dead, says once which topics it joined."""
    async with open_gossip(pair.alice, [TOPIC], accept) as one, open_host(b"e" * 32) as eve:
        await eve.connect(pair.alice.addresses()[0])
        hello = rpc_pb2.RPC(subscriptions=[rpc_pb2.RPC.SubOpts(subscribe=True, topicid=TOPIC)]).SerializeToString()
        streams = [await eve.open_stream(pair.alice.peer_id, "/meshsub/1.1.0") for _ in range(2)]
        for stream in streams:
            await stream.send_all(bytes([len(hello)]) + hello)
        eves = ID.from_base58(eve.peer_id)
        while len(one._pubsub._streams.get(eves, ())) < 2 or not one.is_member(eve.peer_id, TOPIC):
            await trio.lowlevel.checkpoint()
        await streams[0].reset()
        while len(one._pubsub._streams[eves]) > 1 or eve.peer_id not in one.peers(TOPIC):
            await trio.lowlevel.checkpoint()
        assert one.is_member(eve.peer_id, TOPIC)
        await streams[1].reset()
        while one.is_member(eve.peer_id, TOPIC):
            await trio.lowlevel.checkpoint()
        assert one.peers(TOPIC) == []


# What whoever uses IPFS relies on: the same of a real Kubo and of the one in memory.


ROOT_KEY = SigningKey(b"\x61" * 32)
REAL = pytest.param("kubo", marks=[pytest.mark.e2e, pytest.mark.slow])


@pytest.fixture(params=["memory", REAL])
async def ipfs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:
        if request.param == "memory":
            yield await stack.enter_async_context(MemoryIpfs())
        else:
            daemon = await stack.enter_async_context(foreign.open_kubo(tmp_path / "repo"))
            yield await stack.enter_async_context(Kubo(daemon.api))


async def whole(content: Any) -> bytes:
    async with content as parts:
        return b"".join([part async for part in parts])


async def test_files_come_again_and_stay(ipfs: Any, tmp_path: Path) -> None:
    on_disk = tmp_path / "large"
    on_disk.write_bytes(bytes(range(256)) * 4000)
    await ipfs.add("/odfd/d/blocks", [AddedFile("b", b"2"), AddedFile("c", b"")])
    await ipfs.add("/odfd/d/blocks", [AddedFile(name, name.encode()) for name in "abcd"] + [AddedFile("z", on_disk)])
    await ipfs.add("/odfd/d/blocks", [AddedFile("b", b"other")])
    said = [await ipfs.read(f"/odfd/d/blocks/{name}", 10) for name in "abcde"]
    assert said == [b"a", b"2", b"", b"d", None]
    root = await ipfs.root_of("/odfd/d")
    assert await whole(ipfs.open(f"/ipfs/{root}/blocks/z", 100)) == on_disk.read_bytes()[100:]
    assert await ipfs.size_of(f"/ipfs/{root}/blocks/z") == on_disk.stat().st_size
    with tarfile.open(fileobj=io.BytesIO(await whole(ipfs.archive(f"/ipfs/{root}/blocks")))) as archive:
        files = {member.name: member.size for member in archive if member.isfile()}
    assert files == {"blocks/a": 1, "blocks/b": 1, "blocks/c": 0, "blocks/d": 1, "blocks/z": on_disk.stat().st_size}


async def test_a_root_changes_with_what_is_below_it_and_only_then(ipfs: Any) -> None:
    assert await ipfs.root_of("/odfd/e") is None
    roots = []
    for head in (b"one", b"two", b"two", b""):
        await ipfs.replace("/odfd/e/refs/head", head)
        roots.append(await ipfs.root_of("/odfd/e"))
        assert await ipfs.read("/odfd/e/refs/head", 10) == head
    assert len(set(roots)) == 3
    assert roots[1] == roots[2]
    assert [await ipfs.cat(f"/ipfs/{root}/refs/head", 10) for root in roots] == [b"one", b"two", b"two", b""]
    await ipfs.remove("/odfd/e")
    await ipfs.remove("/odfd/e")
    assert await ipfs.root_of("/odfd/e") is None
    assert await ipfs.cat(f"/ipfs/{roots[0]}/refs/head", 10) == b"one"


async def test_what_is_not_there_or_too_large(ipfs: Any) -> None:
    await ipfs.replace("/odfd/f/x", b"12345")
    root = await ipfs.root_of("/odfd/f")
    assert await ipfs.cat(f"/ipfs/{root}/y", 10) is None
    assert await ipfs.size_of(f"/ipfs/{root}/y/z") is None
    for asked in (ipfs.cat(f"/ipfs/{root}/x", 4), ipfs.read("/odfd/f/x", 4), whole(ipfs.open(f"/ipfs/{root}/y"))):
        with pytest.raises(Remote):
            await asked


async def test_names_point_where_their_newest_record_says(ipfs: Any) -> None:
    name = record.name_of(ROOT_KEY.dataset_id)
    assert await ipfs.record(name) is None
    for sequence in (3, 4):
        pointer = Pointer(value="/ipfs/bafkqaaa", sequence=sequence, expires=Instant(4_102_444_800 * 10**9), ttl=10**9)
        await ipfs.put_record(name, record.seal(pointer, ROOT_KEY))
        assert record.unseal(await ipfs.record(name), ROOT_KEY.dataset_id) == pointer


# The lookup over real hosts on loopback: a node finds a holder that neither it nor its peers are connected with.


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
