"""No peer holds the event loop: attacks on a host with the limits that the daemon gives it, under a watchdog.

What each costs is bounded in steps of the loop and in what is kept, never in time on the wall.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
import trio.lowlevel
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.rsa import RSA, RSAPublicKey

from p2p.budget.work import STREAM, WorkBudget
from p2p.host import pubsub
from p2p.host.host import Host, open_host
from p2p.host.pubsub import ID, Gossip, GossipLimits, open_gossip, rpc_pb2
from p2p.host.stream import BrokenStream, Stream
from p2p.ports import GossipVerdict, Judgement, PeerId
from p2p.yamux.frames import RST, SYN, WINDOW_UPDATE, pack
from worlds.hostile import delimited, framed, joins, messages, subscriptions
from worlds.watchdog import watched

TOPIC, LAST = "/odf/1/test/heads", "/odf/1/test/proofs"
MESSAGE = 90_000


async def accept(_topic: str, _sender: PeerId, _data: bytes) -> GossipVerdict:
    return GossipVerdict(Judgement.ACCEPT)


class Attack:
    """Eve gossips to Alice on one stream, and keeps what comes back."""

    stream: Stream

    def __init__(self, alice: Host, gossip: Gossip, eve: Host) -> None:
        self.alice, self.gossip, self.eve = alice, gossip, eve
        self.came = 0

    async def begin(self) -> None:
        """Eve listens before she dials: Alice asks a new connection for gossip at once, and once."""
        for version in ("1.1.0", "1.2.0"):
            self.eve.set_handler(f"/meshsub/{version}", self.swallow)
        await self.eve.connect(self.alice.addresses()[0])
        self.stream = await self.eve.open_stream(self.alice.peer_id, "/meshsub/1.2.0")
        await self.stream.send_all(joins(TOPIC, graft=True))
        await self.gossip.wait_for_peer(TOPIC, self.eve.peer_id)

    async def swallow(self, stream: Stream, _peer: PeerId) -> None:
        async for data in stream:
            self.came += len(data)

    async def send(self, *frames: bytes) -> None:
        """Until Alice has acted on all of them, or has had enough of the stream."""
        with suppress(BrokenStream):
            for frame in (*frames, joins(LAST)):
                await self.stream.send_all(frame)
        while self.eve.peer_id not in self.gossip.peers(LAST) and not self.stream._muxed.is_closed:  # noqa: ASYNC110
            await trio.sleep(0.01)


@asynccontextmanager
async def attack() -> AsyncIterator[Attack]:
    limits = GossipLimits(incoming=400)
    async with (
        open_host(b"a" * 32, ["/ip4/127.0.0.1/tcp/0"]) as alice,
        open_host(b"e" * 32) as eve,
        open_gossip(alice, [TOPIC, LAST], accept, limits) as gossip,
    ):
        mounted = Attack(alice, gossip, eve)
        await mounted.begin()
        yield mounted


def by_rsa() -> list[bytes]:
    """An exponent as long as the modulus: 31 ms to verify each."""
    pair = RSA.generate(3072)
    key = RSAPublicKey(RSA.construct((pair.n, pair.n - 2), consistency_check=False))
    return [messages(TOPIC, 50, ID.from_pubkey(key).to_bytes(), key.serialize(), b"s" * 384)]


def unsigned() -> list[bytes]:
    author = ID.from_pubkey(create_new_key_pair(b"z" * 32).public_key).to_bytes()
    return [messages(TOPIC, 256, author)] * 2


FLOODS: dict[str, Callable[[], list[bytes]]] = {
    "two frames of subscriptions": lambda: [subscriptions(TOPIC, 2600)] * 2,
    "subscriptions in many frames": lambda: [subscriptions(TOPIC, 64)] * 40,
    "keys that are slow to verify": by_rsa,
    "false signatures": unsigned,
    "a frame of nothing": lambda: [delimited(b"\x0a\x00" * 120_000)],
    "a control part of nothing": lambda: [delimited(b"\x1a" + delimited(b"\x12\x02\x0a\x00" * 60_000))],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FLOODS)
async def test_no_frame_of_gossip_holds_the_loop(name: str) -> None:
    """Two frames of 92 KB, of joining and leaving, froze a node for 25 seconds."""
    frames = FLOODS[name]()
    async with attack() as eve:
        with watched():
            await eve.send(*frames)


@pytest.mark.slow
async def test_what_is_asked_for_a_thousand_times_is_given_thrice() -> None:
    async with attack() as eve:
        for number in range(8):
            await eve.gossip.publish(TOPIC, bytes([number]) * MESSAGE)
        while eve.came < 8 * MESSAGE:  # noqa: ASYNC110
            await trio.sleep(0.01)
        before = eve.came
        names = eve.gossip._pubsub.router.mcache.window(TOPIC)
        rpc = rpc_pb2.RPC()
        rpc.control.iwant.add().messageIDs.extend((names * 128)[:1020])
        with watched():
            await eve.send(*[framed(rpc)] * 5)
            await trio.sleep(0.1)
        assert eve.came - before <= pubsub.MAX_AGAIN * 8 * (MESSAGE + 1000)


async def test_a_peer_that_reads_nothing_is_kept_a_mebibyte_of_gossip() -> None:
    async with attack() as eve:
        peer = ID.from_base58(eve.eve.peer_id)
        queue = eve.gossip._pubsub.peer_queues[peer]
        before = len(queue)
        for _ in range(30):
            message = rpc_pb2.RPC(publish=[rpc_pb2.Message(data=bytes(MESSAGE), topicIDs=[TOPIC])])
            eve.gossip._pubsub.router.send_rpc(peer, message)
        assert 0 < (len(queue) - before) * MESSAGE <= pubsub.MAX_QUEUE


async def test_what_a_peer_says_of_other_topics_and_of_where_others_live_leaves_no_trace() -> None:
    """The library notes each topic that a PRUNE names for ever, and dials whom it names."""
    dialled: list[Any] = []

    async def note(info: Any) -> None:
        dialled.append(info)

    async with attack() as eve:
        router = eve.gossip._pubsub.router
        eve.alice.base.connect = note
        rpc = rpc_pb2.RPC()
        for number in range(300):
            rpc.control.prune.add(topicID=f"/odf/1/other/{number}")
            rpc.control.ihave.add(topicID=f"/odf/1/other/{number}", messageIDs=[b"x"])
        prune = rpc.control.prune.add(topicID=TOPIC)
        prune.peers.add(peerID=ID.from_base58(eve.alice.peer_id).to_bytes()[:-1] + b"x")
        await eve.send(framed(rpc))
        assert set(router.back_off) <= {TOPIC, LAST}
        assert all(set(noted) <= {TOPIC, LAST} for noted in router.ihave_message_limits.values())
        assert not dialled


async def test_a_peer_gossips_on_two_streams_at_most() -> None:
    async with attack() as eve:
        streams = [await eve.eve.open_stream(eve.alice.peer_id, "/meshsub/1.2.0") for _ in range(6)]
        while sum(stream._muxed.is_closed for stream in (eve.stream, *streams)) < 5:  # noqa: ASYNC110
            await trio.sleep(0.01)
        assert not streams[-1]._muxed.is_closed


@pytest.mark.slow
async def test_a_stream_is_paid_for_before_anybody_speaks_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams opened and reset at once: without a word on them, their negotiation would cost the most of all."""
    async with attack() as eve:
        costs, charge = list[float](), WorkBudget.charge

        def noted(self: WorkBudget, party: Any, cost: float, now: float) -> float:
            costs.append(cost)
            return charge(self, party, cost, now)

        monkeypatch.setattr(WorkBudget, "charge", noted)
        for _ in range(20):
            await (await eve.eve.open_stream(eve.alice.peer_id, "/meshsub/1.2.0")).reset()
        assert costs.count(STREAM) >= 20


@pytest.mark.slow
async def test_no_flood_of_muxer_frames_holds_the_loop() -> None:
    """Frames of twelve bytes: 21,000 of them fit into what is read at once, 50 ms of work."""
    async with attack() as eve:
        muxer = eve.eve._connections(eve.alice.peer_id)[0].muxed_conn
        number = muxer.session._next_id
        muxer.session._next_id += 2 * 4000
        with watched():
            for _ in range(40):
                muxer.session._send(pack(WINDOW_UPDATE, 0, eve.stream._muxed.stream_id, 0) * 5000)
                muxer.kick()
                await trio.lowlevel.checkpoint()
            for at in range(0, 4000, 500):
                ids = range(number + 2 * at, number + 2 * (at + 500), 2)
                muxer.session._send(
                    b"".join(pack(WINDOW_UPDATE, SYN, one, 0) + pack(WINDOW_UPDATE, RST, one, 0) for one in ids)
                )
                muxer.kick()
            await eve.eve.ping(eve.alice.peer_id)
