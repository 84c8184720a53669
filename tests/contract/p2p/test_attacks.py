"""What peers can do to a host with the limits of the daemon: the stream or the connection pays, the host goes on."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from random import Random
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.rsa import RSA, RSAPublicKey
from libp2p.io.exceptions import IOException
from libp2p.stream_muxer.exceptions import MuxedStreamError

from chain.ids import DatasetId
from chain.statements.keys import SigningKey
from p2p.address import parse_address
from p2p.budget.buckets import Rate
from p2p.budget.work import HANDSHAKE, STREAM, WorkBudget, WorkShares
from p2p.driver.network import open_network
from p2p.driver.replication import ReplicationDriver
from p2p.driver.settings import ReplicationSettings
from p2p.errors import AddressInUse, PeerFault, ProtocolUnsupported, StreamBroken, TooManyStreams
from p2p.host import muxer, pubsub
from p2p.host.host import Host, open_host
from p2p.host.limits import HostLimits
from p2p.host.noise import Suite, list_suites
from p2p.host.pubsub import ID, Gossip, GossipLimits, open_gossip, rpc_pb2
from p2p.host.stream import BrokenStream, Stream
from p2p.identity import peer_of_did, peer_of_seed
from p2p.ports import GossipVerdict, Judgement, PeerId
from p2p.wire import presence as wire
from p2p.wire.presence import Presence
from p2p.yamux.frames import DATA, INITIAL_WINDOW, RST, SYN, WINDOW_UPDATE, pack
from worlds.eventually import PATIENCE
from worlds.hostile import delimited, dials, framed, from_address, joins, messages, sockets_at, subscriptions
from worlds.internet import Internet
from worlds.watchdog import watched

# Every trap of py-libp2p that a peer can spring, sprung: the stream or the connection pays, the host goes on.


EVE = b"e" * 32


@asynccontextmanager
async def honest(host: Host) -> AsyncIterator[Stream]:
    """Another peer that comes now and uses the echo."""
    async with open_host(b"h" * 32) as visitor:
        await visitor.connect(host.addresses()[0])
        async with await visitor.open_stream(host.peer_id, "/echo") as stream:
            await stream.send_all(b"x")
            assert await stream.receive_some() == b"x"
            yield stream


async def raw(host: Host) -> trio.SocketStream:
    port = int(host.addresses()[0].split("/")[4])
    return await trio.open_tcp_stream("127.0.0.1", port)


async def closed_by_peer(stream: trio.abc.Stream) -> None:
    """Until the other side has closed, by a good-bye or by a reset."""
    with suppress(trio.BrokenResourceError):
        while await stream.receive_some():
            pass
    await stream.aclose()


def line(text: str) -> bytes:
    message = text.encode() + b"\n"
    return bytes([len(message)]) + message


@pytest.mark.slow
@pytest.mark.parametrize("security", ["/plaintext/2.0.0", "/secio/1.0.0", "/tls/1.0.0"])
async def test_only_noise_is_spoken(pair: Any, reading: Any, security: str) -> None:
    """Attack T-PEER-01: impersonating a peer.

    Defence: noise is the only security protocol: plaintext, TLS and secio are not offered.

    Through plaintext anyone is whom they say they are.
    """
    stream = await raw(pair.alice)
    await stream.send_all(line("/multistream/1.0.0") + line(security))
    answer = line("/multistream/1.0.0") + line("na")
    assert await reading(stream, len(answer)) == answer
    await stream.aclose()


@pytest.mark.parametrize("role", ["hop", "stop"])
async def test_no_relay_is_spoken_unasked(pair: Any, role: str) -> None:
    """Attack T-REACH-02: a relay open to everybody.

    Defence: no relay protocol is offered unless a setting enables it.

    Not as one that carries circuits, nor as their end, until the settings say so.
    """
    with pytest.raises(ProtocolUnsupported):
        await pair.stream(f"/libp2p/circuit/relay/0.2.0/{role}")
    with pytest.raises(ProtocolUnsupported):
        await pair.bob.connect(f"{pair.alice.addresses()[0]}/p2p-circuit/p2p/{peer_of_seed(EVE)}")


async def test_a_negotiation_without_end_is_cut_off(pair: Any) -> None:
    """Attack T-PEER-02: a negotiation without end.

    Defence: 1 KiB a message before the peer is authenticated.

    A length of 2**40, before anybody is authenticated.
    """
    stream = await raw(pair.alice)
    await stream.send_all(b"\x80\x80\x80\x80\x80\x20" + bytes(1000))
    await closed_by_peer(stream)
    assert await pair.echoes()


@pytest.mark.parametrize("suite", list_suites(), ids=lambda suite: suite.protocol)
async def test_garbage_in_the_handshake_costs_its_connection(pair: Any, suite: Suite) -> None:
    stream = await raw(pair.alice)
    await stream.send_all(
        line("/multistream/1.0.0") + line(suite.protocol) + b"\x00\x20" + bytes(32) + b"\xff" * 70_000
    )
    await closed_by_peer(stream)
    assert await pair.echoes()


@pytest.mark.slow
async def test_silent_connections_keep_nobody_out(pair_of: Any) -> None:
    """Attack T-PEER-03: hundreds of silent connections.

    Defence: 64 connections may be before their handshake; the oldest is closed, of the address with most of them in the
    block with most of them.
    """
    async with pair_of(HostLimits(max_pending_inbound=8)) as pair:
        silent = [await raw(pair.alice) for _ in range(40)]
        async with honest(pair.alice):
            assert await pair.echoes()
        for stream in silent[:20]:
            await closed_by_peer(stream)
        for stream in silent[20:]:
            await stream.aclose()


async def test_a_handler_that_raises_costs_its_stream(pair: Any) -> None:
    """Attack T-PEER-02: a message that makes a handler raise.

    Defence: its stream is reset; the connection and the host continue.
    """

    async def faulty(stream: Stream, _peer: PeerId) -> None:
        await stream.receive_some()
        raise ValueError("a bug in a protocol")

    pair.alice.set_handler("/faulty", faulty)
    stream = await pair.stream("/faulty")
    await stream.send_all(b"x")
    with pytest.raises(BrokenStream, match="reset by the peer"):
        await stream.receive_some()
    assert await pair.echoes()


@pytest.mark.parametrize("protocol", ["/ipfs/ping/1.0.0", "/ipfs/id/1.0.0", "/ipfs/id/push/1.0.0"])
@pytest.mark.parametrize("body", [b"", b"\xff" * 64, b"\x80" * 30, b"\xff\xff\xff\xff\x0fgarbage", b"\x05hello"])
async def test_garbage_for_the_librarys_own_protocols(pair: Any, protocol: str, body: bytes) -> None:
    """Attack T-PEER-02: malformed gossip, identify, ping.

    Defence: parsed under limits, and contained.
    """
    stream = await pair.stream(protocol)
    with suppress(BrokenStream):
        await stream.send_all(body)
        await stream.send_eof()
    await closed_by_peer(stream)
    assert await pair.echoes()


async def test_a_read_without_a_number_is_bounded(pair: Any) -> None:
    sizes_send, sizes = trio.open_memory_channel[int](1)

    async def unlimited(net: Any) -> None:
        await sizes_send.send(len(await net.read()))

    pair.alice.base.set_stream_handler("/unlimited", unlimited)
    stream = await pair.stream("/unlimited")
    with suppress(BrokenStream):
        await stream.send_all(bytes(INITIAL_WINDOW))
    assert 0 < await sizes.receive() <= 65_536


async def test_a_sender_beyond_its_window_loses_the_connection(pair: Any) -> None:
    """Attack T-PEER-02: more bytes than the window.

    Defence: flow control is enforced: the connection ends.
    """

    async def never_reads(_stream: Stream, _peer: PeerId) -> None:
        await trio.sleep_forever()

    pair.alice.set_handler("/sink", never_reads)
    stream = await pair.stream("/sink")
    eve = pair.bobs_muxer
    number = stream._muxed.stream_id
    for _ in range(5):
        eve.session._send(pack(DATA, 0, number, 65_000) + bytes(65_000))
        eve.kick()
    with pytest.raises(BrokenStream):
        await stream.receive_some()
    async with honest(pair.alice):
        assert not pair.alice.is_connected(pair.bob.peer_id)


@pytest.mark.slow
async def test_one_peer_takes_two_places_and_no_more(pair_of: Any) -> None:
    """Attack T-PEER-03: one peer that takes all connections.

    Defence: two connections a key: older ones are closed at once.

    Whoever comes again and again under one key loses its older connections, and keeps nobody out.
    """
    async with pair_of(HostLimits(max_connections=4)) as pair, AsyncExitStack() as stack:
        where, greedy = pair.alice.addresses()[0], bytes([8]) * 32
        for _ in range(8):
            host = await stack.enter_async_context(open_host(greedy, []))
            await host.connect(where)
            while len(pair.alice._connections(host.peer_id)) > 2:  # noqa: ASYNC110  those of before are on their way out
                await trio.sleep(0.01)
        async with await host.open_stream(pair.alice.peer_id, "/echo") as stream:
            await stream.send_all(b"the last one is alive")
            assert await stream.receive_some(4)
        assert await pair.echoes()
        async with open_host(bytes([9]) * 32, []) as another:
            await another.connect(where)


@pytest.mark.slow
async def test_many_who_fill_memory_together_pay_and_others_do_not(pair_of: Any) -> None:
    """Attack T-PEER-04: many peers, each within its limits, that send bytes which are not read.

    Defence: 256 MiB of unread bytes of all connections together; the stream with most of them is reset.

    Each keeps to the windows that it was granted; together they are more than may lie unread.
    """
    most = 1 << 20
    async with pair_of(HostLimits(max_unread=most)) as pair, open_host(bytes([9]) * 32, []) as carol:
        heard = 0

        async def never_reads(_stream: Stream, _peer: PeerId) -> None:
            nonlocal heard
            heard += 1
            await trio.sleep_forever()

        def unread() -> int:
            peers = (pair.bob.peer_id, carol.peer_id)
            return sum(each.muxed_conn.unread for peer in peers for each in pair.alice._connections(peer))

        pair.alice.set_handler("/sink", never_reads)
        await carol.connect(f"{pair.alice.addresses()[0]}")

        def resets() -> int:
            muxers = [host._connections(pair.alice.peer_id)[0].muxed_conn for host in (pair.bob, carol)]
            return sum(each.reset_reason is not None for one in muxers for each in one._streams.values())

        for _ in range(4):
            for host in (pair.bob, carol):
                stream = await host.open_stream(pair.alice.peer_id, "/sink")
                with suppress(BrokenStream):
                    await stream.send_all(bytes(200_000))
                assert unread() <= most
        assert await pair.echoes()
        assert unread() <= most
        while resets() < 3:  # noqa: ASYNC110  the news of it are on their way
            await trio.sleep(0.01)
        assert heard == 8


@pytest.mark.slow
async def test_ten_thousand_opens_keep_nobody_out(pair: Any) -> None:
    """Attack T-PEER-04: ten thousand opened streams.

    Defence: streams above the limit are reset; a backlog of 64.
    """
    eve = pair.bobs_muxer
    number = eve.session._next_id
    eve.session._next_id += 20_000
    for n in range(10_000):
        eve.session._send(pack(WINDOW_UPDATE, SYN, number + 2 * n, 0))
    eve.kick()
    async with honest(pair.alice):
        (conn,) = pair.alice._connections(pair.bob.peer_id)
        assert conn.muxed_conn.session._inbound <= 256


@pytest.mark.slow
async def test_one_stream_too_many_is_told_not_waited_for_without_end(
    pair_of: Any, yamux: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair_of(bob=yamux(max_outbound=3)) as pair:
        while pair.bobs_muxer.session.open_streams:
            await trio.lowlevel.checkpoint()
        streams = [await pair.stream() for _ in range(3)]
        with monkeypatch.context() as impatient:
            impatient.setattr(muxer, "OPEN_TIMEOUT", 0.2)
            with pytest.raises(TooManyStreams, match="3 streams are open"):
                await pair.stream()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(streams[0].reset)
            late = await pair.stream()
        await late.aclose()


async def test_a_slow_reader_gets_everything(pair: Any) -> None:
    """py-libp2p resets the sender after five seconds and tells the reader nothing."""
    go, total = trio.Event(), 4 << 20
    counted_send, counted = trio.open_memory_channel[int](1)

    async def slow(stream: Stream, _peer: PeerId) -> None:
        await go.wait()
        size = 0
        async for data in stream:
            size += len(data)
        await counted_send.send(size)

    async def send_all(stream: Stream) -> None:
        await stream.send_all(bytes(total))
        await stream.send_eof()

    pair.alice.set_handler("/slow", slow)
    stream = await pair.stream("/slow")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_all, stream)
        while pair.bobs_muxer.session._stalled == {}:
            await trio.lowlevel.checkpoint()
        (conn,) = pair.alice._connections(pair.bob.peer_id)
        held = conn.muxed_conn.session._streams[stream._muxed.stream_id]
        while len(held.inbox) + held.consumed < INITIAL_WINDOW:
            await trio.lowlevel.checkpoint()
        assert held.credit_in == 0
        assert await pair.echoes(), "others on the connection go on"
        go.set()
        assert await counted.receive() == total


@pytest.mark.slow
async def test_a_reader_who_never_reads_costs_its_stream_only(pair_of: Any, yamux: Any) -> None:
    """Attack T-PEER-04: a peer that never reads.

    Defence: a stalled stream is reset after a minute; the connection stays open.
    """

    async def never(_stream: Stream, _peer: PeerId) -> None:
        await trio.sleep_forever()

    async with pair_of(bob=yamux(stall_timeout=0.2)) as pair:
        pair.alice.set_handler("/never", never)
        stream = await pair.stream("/never")
        with pytest.raises(BrokenStream, match="took no data for too long"):
            await stream.send_all(bytes(INITIAL_WINDOW + 1))
        assert await pair.echoes()


async def test_a_cancelled_send_tears_no_frame_and_is_never_a_clean_end(pair: Any) -> None:
    """Attack T-PEER-02: a frame cut by a cancelled send.

    Defence: a frame is sent whole, or its stream is reset.

    In py-libp2p it corrupts the connection: later streams hang.
    """
    ends_send, ends = trio.open_memory_channel[Exception | None](1)
    go = trio.Event()

    async def slow(stream: Stream, _peer: PeerId) -> None:
        await go.wait()
        try:
            async for _ in stream:
                pass
            await ends_send.send(None)
        except StreamBroken as error:
            await ends_send.send(error)

    pair.alice.set_handler("/slow", slow)
    stream = await pair.stream("/slow")
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:

            async def cancel_when_stalled() -> None:
                while not pair.bobs_muxer.session._stalled:
                    await trio.lowlevel.checkpoint()
                scope.cancel()

            nursery.start_soon(cancel_when_stalled)
            await stream.send_all(bytes(1 << 20))
    assert scope.cancelled_caught
    await stream.aclose()
    go.set()
    assert isinstance(await ends.receive(), StreamBroken)
    assert await pair.echoes()


# Garbage at every stage of a connection: a line that spoils what passes at any byte, and a peer that does so inside
# of its own encryption. Nothing false arrives, whoever spoils pays with the connection or the stream, the host serves
# on.


IDLE = 0.2
"""Seconds in which nobody here does anything until time goes on to the next bound: both ends are in this process."""
HASTY = HostLimits(dial_timeout=3.0, handshake_timeout=3.0, open_timeout=3.0)
SAID = bytes(range(256)) * 4
PLACES = 1500
"""Bytes that pass in each direction of a connection with one echo, about."""
LINES = 12
SPOILT: dict[str, Callable[[bytearray, int], None]] = {
    "flip": lambda data, at: data.__setitem__(at, data[at] ^ 0x10),
    "insert": lambda data, at: data.__setitem__(slice(at, at), b"\xff" * 300),
    "swallow": lambda data, at: data.__delitem__(slice(at, at + 40)),
}


class Line:
    """Carries the bytes of one connection, and spoils those of one direction at a place."""

    def __init__(self, port: int, direction: int, place: int, spoil: Callable[[bytearray, int], None]) -> None:
        self._port, self._direction, self._place, self._spoil = port, direction, place, spoil
        self.has_spoilt = False

    async def carry(self, dialer: trio.SocketStream) -> None:
        async with await trio.open_tcp_stream("127.0.0.1", self._port) as host, trio.open_nursery() as nursery:
            nursery.start_soon(self._pass, dialer, host, 0)
            nursery.start_soon(self._pass, host, dialer, 1)

    async def _pass(self, whence: trio.SocketStream, whither: trio.SocketStream, direction: int) -> None:
        passed = 0
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while part := await whence.receive_some():
                data = bytearray(part)
                if direction == self._direction and passed <= self._place < passed + len(data):
                    self._spoil(data, self._place - passed)
                    self.has_spoilt = True
                passed += len(part)
                await whither.send_all(data)
            await whither.send_eof()


@asynccontextmanager
async def through(line: Line) -> AsyncIterator[int]:
    """The port at which the line begins."""
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, line.carry, 0, host="127.0.0.1"))
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


def port_of(host: Host) -> int:
    return int(host.addresses()[0].split("/")[4])


async def heard(visitor: Host, host: Host, port: int) -> bytes:
    """What the echo gives back, as far as it comes."""
    got = bytearray()
    with suppress(PeerFault, trio.BrokenResourceError), trio.move_on_after(4):
        await visitor.connect(f"/ip4/127.0.0.1/tcp/{port}/p2p/{host.peer_id}")
        async with await visitor.open_stream(host.peer_id, "/echo") as stream:
            await stream.send_all(SAID)
            while len(got) < len(SAID) and (part := await stream.receive_some()):
                got += part
    return bytes(got)


@pytest.mark.slow
@pytest.mark.parametrize("how", sorted(SPOILT))
async def test_a_line_that_spoils_any_byte_makes_nobody_hear_another(
    mock_clock: trio.testing.MockClock, pair_of: Any, how: str
) -> None:
    """Attack T-PEER-01: a line that flips, inserts or removes bytes.

    Defence: messages are authenticated: the connection ends, and no false message is delivered.
    """
    mock_clock.autojump_threshold = IDLE
    lot, whole, spoilt, begun = Random(7), 0, 0, 0
    async with pair_of(HASTY) as pair:

        async def call(number: int) -> None:
            nonlocal whole, spoilt, begun
            line = Line(port_of(pair.alice), number % 2, lot.randrange(PLACES), SPOILT[how])
            async with through(line) as port, open_host(bytes([number + 1]) * 32, [], HASTY) as visitor:
                got = await heard(visitor, pair.alice, port)
                assert SAID.startswith(got)
                whole += got == SAID
                spoilt += line.has_spoilt
                begun += line.has_spoilt or got == SAID

        async with trio.open_nursery() as nursery:
            for number in range(LINES):
                nursery.start_soon(call, number)
        assert spoilt, "no line spoilt anything"
        assert begun > LINES // 2, "most connections came to nothing by themselves"
        assert whole < LINES
        assert await pair.echoes()


@pytest.mark.slow
@pytest.mark.parametrize("garbage", [b"\xff" * 300, b"\0" * 300, b"\x13/multistream/1.0.0\n" + b"\x80" * 300])
@pytest.mark.parametrize("stage", ["muxer", "frames", "stream"])
async def test_garbage_inside_of_the_encryption_costs_who_speaks_it(
    mock_clock: trio.testing.MockClock, pair: Any, stage: str, garbage: bytes
) -> None:
    """Attack T-PEER-02: garbage within the encryption: in the choice of a muxer, in frames, in the choice of a
    protocol.

    Defence: parsed under limits; the connection or the stream ends.

    In place of choosing a muxer, of its frames, of choosing a protocol.
    """
    mock_clock.autojump_threshold = IDLE
    async with open_host(b"e" * 32, [], HASTY) as eve:
        upgrade = eve.base.get_network().upgrader.muxer_multistream
        rightly = upgrade.new_conn

        async def spoken(conn: Any, peer: Any) -> Any:
            if stage == "frames":
                await upgrade._selector.select(conn, conn.is_initiator, 1)
            await conn.write(garbage)
            with suppress(IOException):
                while await conn.read(1024):
                    pass
            return await rightly(conn, peer)

        if stage != "stream":
            upgrade.new_conn = spoken
        with suppress(PeerFault):
            await eve.connect(pair.alice.addresses()[0])
            if stage == "stream":
                stream = await eve._connections(pair.alice.peer_id)[0].muxed_conn.open_stream()
                await stream.write(garbage)
                with suppress(MuxedStreamError):
                    while await stream.read(1024):
                        pass
        if stage != "stream":
            assert not pair.alice.is_connected(eve.peer_id)
    assert await pair.echoes()


# No peer holds the event loop: attacks on a host with the limits that the daemon gives it, under a watchdog. What
# each costs is bounded in steps of the loop and in what is kept, never in time on the wall.


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
    """Attack T-PEER-04: thousands of costly gossip entries in a few KB: joins and leaves of topics, requests for
    messages, signatures of slow keys.

    Defence: entries of a frame are counted and charged before they are processed; only their net effect is applied;
    Ed25519 alone; a message is sent three times at most; a watchdog in the tests detects code that occupies the loop
    for 20 ms.

    Two frames of 92 KB, of joining and leaving, froze a node for 25 seconds.
    """
    frames = FLOODS[name]()
    async with attack() as eve:
        with watched():
            await eve.send(*frames)


@pytest.mark.slow
async def test_what_is_asked_for_a_thousand_times_is_given_thrice() -> None:
    """Attack T-PEER-05: a gossip frame that names one message a thousand times, to receive it as often.

    Defence: duplicates are removed, and a message is sent to a peer three times at most.
    """
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
    """Attack T-PEER-04: a peer that does not read its gossip.

    Defence: at most one MiB of frames is queued for it.
    """
    async with attack() as eve:
        peer = ID.from_base58(eve.eve.peer_id)
        queue = eve.gossip._pubsub.peer_queues[peer]
        before = len(queue)
        for _ in range(30):
            message = rpc_pb2.RPC(publish=[rpc_pb2.Message(data=bytes(MESSAGE), topicIDs=[TOPIC])])
            eve.gossip._pubsub.router.send_rpc(peer, message)
        assert 0 < (len(queue) - before) * MESSAGE <= pubsub.MAX_QUEUE


async def test_what_a_peer_says_of_other_topics_and_of_where_others_live_leaves_no_trace() -> None:
    """Attack T-PEER-02: subscriptions to topics that this node did not join; addresses of peers to dial in PRUNE
    messages.

    Defence: ignored.

    The library notes each topic that a PRUNE names for ever, and dials whom it names.
    """
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
    """Attack T-PEER-04: many gossip streams of one peer, each with an unfinished frame.

    Defence: two streams; the oldest is reset.
    """
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
    """Attack T-PEER-04: muxer frames of twelve bytes, streams opened and reset without end.

    Defence: after a thousand frames other tasks run, and the sender waits until its budget allows more; a stream is
    charged before it is negotiated.

    Frames of twelve bytes: 21,000 of them fit into what is read at once, 50 ms of work.
    """
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


# Strangers on hosts with the limits that the daemon gives them: who is silent or shows many keys keeps nobody out.
# Addresses are those of 127.0.0.0/8, which all of them reach this machine.


DAEMONS = HostLimits(max_connections=64)
"""As ``odfd.services.peers.host_options`` makes them of the settings that nobody touched."""


@asynccontextmanager
async def attacked(limits: HostLimits = DAEMONS) -> AsyncIterator[Host]:
    with trio.fail_after(PATIENCE):
        async with open_host(b"a" * 32, ["/ip4/0.0.0.0/tcp/0"], limits) as alice:
            yield alice


def listening_port(host: Host) -> int:
    return int(host.listening()[0].split("/")[4])


def address_of(host: Host) -> str:
    return f"/ip4/127.0.0.1/tcp/{listening_port(host)}/p2p/{host.peer_id}"


async def meets(host: Host, seed: bytes = b"h" * 32, address: str = "127.0.9.9") -> bool:
    async with open_host(seed) as honest:
        with from_address(address):
            await honest.connect(address_of(host))
        return await honest.ping(host.peer_id) >= 0


@pytest.mark.slow
async def test_sixty_three_silent_connections_keep_nobody_out() -> None:
    """Attack T-PEER-03: silent connections of many addresses, against a host with the daemon's settings.

    Defence: the limit before the handshake applies before that of the library, which refuses newcomers.

    The library refuses the sixty-fifth before our doorway makes room.
    """
    async with attacked() as alice, AsyncExitStack() as stack:
        for number in range(160):
            stream = await trio.open_tcp_stream(
                "127.0.0.1", listening_port(alice), local_address=f"127.0.{number % 5}.{1 + number // 5}"
            )
            stack.push_async_callback(stream.aclose)
        assert await meets(alice)


@pytest.mark.slow
async def test_keys_that_cost_nothing_take_no_more_places_than_their_addresses() -> None:
    """Attack T-PEER-03: a key for each connection.

    Defence: one address has a quarter of the connections of unlisted peers, a /24 half of them.
    """
    async with attacked() as alice, AsyncExitStack() as stack:
        alice.base.get_network().work.chosen_hosts = frozenset({"127.0.1.1"})  # their handshakes are paid for here
        for number in range(20):
            eve = await stack.enter_async_context(open_host(bytes([number + 1]) * 32))
            with from_address("127.0.1.1"):
                await eve.connect(address_of(alice))
        while len(alice.peers()) > 12:  # noqa: ASYNC110
            await trio.sleep(0.01)
        assert len(alice.base.get_network().slots) == 12
        assert await meets(alice)


async def test_handshakes_are_paid_for_by_their_address_before_they_begin() -> None:
    """Attack T-PEER-04: handshakes, twenty a second.

    Defence: they are charged to address and block before they begin: a /24 has 8% of a core, which is eight a second.

    Twenty a second took most of a core. Here an address may have five, and hours later the next.
    """
    five = WorkShares(host=Rate(per_second=1.0, burst=5 * HANDSHAKE))
    async with attacked(HostLimits(max_connections=64, work=five)) as alice:
        swarm = alice.base.get_network()
        for _ in range(20):
            stream = await trio.open_tcp_stream("127.0.0.1", listening_port(alice), local_address="127.0.1.1")
            await stream.aclose()
        while swarm.turned_away < 15:  # noqa: ASYNC110
            await trio.sleep(0.01)
        with pytest.raises(PeerFault):
            await meets(alice, address="127.0.1.1")
        assert await meets(alice), "others are let in"


async def test_over_ipv6_too_each_address_has_limits_of_its_own() -> None:
    """Attack T-PEER-03: an unlisted peer over IPv6 that uses up the limits of all others there, since the library does
    not report the addresses of these connections.

    Defence: the host reads it from the socket; a socket takes one family, so that no address has two forms.

    The library tells no address of a connection over IPv6: all strangers there would share the limits of one.
    """
    two = WorkShares(host=Rate(per_second=1.0, burst=2 * HANDSHAKE))
    async with attacked(HostLimits(max_connections=64, work=two)) as alice:
        try:
            await alice.listen(f"/ip6/::1/tcp/{listening_port(alice)}")
        except AddressInUse:
            pytest.skip("this machine has no IPv6")
        swarm = alice.base.get_network()
        for _ in range(20):
            await (await trio.open_tcp_stream("::1", listening_port(alice))).aclose()
        while swarm.turned_away < 18:  # noqa: ASYNC110
            await trio.sleep(0.01)
        now = trio.current_time()
        assert swarm.work.admit("::1", HANDSHAKE, now, patience=0.0) is None
        assert swarm.work.admit("2001:db8::1", HANDSHAKE, now, patience=0.0) == 0.0
        assert swarm.work.admit("", HANDSHAKE, now, patience=0.0) == 0.0, "nobody is without an address"


@pytest.mark.slow
async def test_chosen_peers_are_let_in_whoever_else_comes() -> None:
    """Attack T-PEER-03: all connections or handshakes taken from the peers that the operator chose, or that the node
    dials.

    Defence: an eighth of the connections is reserved for each; chosen peers are accepted from their addresses whatever
    budget others used.
    """
    async with attacked(HostLimits(max_connections=8)) as alice, AsyncExitStack() as stack:
        async with open_host(b"h" * 32) as friend:
            alice.choose([friend.peer_id], ["/ip4/127.0.9.9/tcp/1"])
        for number in range(12):
            eve = await stack.enter_async_context(open_host(bytes([number + 1]) * 32))
            with from_address(f"127.0.{number}.1"), suppress(PeerFault):
                await eve.connect(address_of(alice))
        assert await meets(alice)


@pytest.mark.slow
async def test_a_burst_of_strangers_never_has_more_than_the_slots_and_those_in_handshake() -> None:
    """Attack T-PEER-03: a burst of keys from many subnets, so that connections are displaced while they start, before
    the library knows them.

    Defence: the slots hold the connection itself: a displaced connection ends at once, and the newcomer is in its
    handshake until that socket is closed. There are never more than `p2p.max-peers` and those in handshake.

    A hundred and fifty keys from twenty blocks, eight at once and without a pause: the newest are displaced while
    they start, which is before the library knows them.
    """
    most = 0
    async with attacked() as alice, AsyncExitStack() as stack:
        swarm = alice.base.get_network()
        registered = swarm.notify_connected

        async def counted(conn: Any) -> None:
            nonlocal most
            most = max(most, sum(map(len, swarm.connections.values())))
            await registered(conn)

        swarm.notify_connected = counted
        dialled = 0
        for block in range(20):
            eves = [await stack.enter_async_context(open_host(bytes([block + 1, n + 1]) * 16)) for n in range(8)]
            with from_address(f"127.0.{block}.9"):
                async with trio.open_nursery() as nursery:
                    for eve in eves:
                        nursery.start_soon(dials, eve, address_of(alice))
            dialled += len(eves)
            assert len(swarm.slots) <= DAEMONS.max_connections
            assert sockets_at(listening_port(alice)) <= DAEMONS.max_connections + len(swarm._door)
        assert dialled == 160
        assert swarm.turned_away >= 160 - 64, "more came than there is room for"
        assert 24 <= most <= 48, "strangers have three quarters of the slots"
        assert len(alice.peers()) == len(swarm.slots) == sum(map(len, swarm.connections.values()))
        assert await meets(alice, address="127.9.9.9"), "and another is let in"


@pytest.mark.slow
async def test_one_key_that_dials_many_times_at_once_has_one_connection() -> None:
    """Each of its hosts has the key; the older connections are ended while they start."""
    async with attacked() as alice, AsyncExitStack() as stack:
        swarm = alice.base.get_network()
        eves = [await stack.enter_async_context(open_host(b"e" * 32)) for _ in range(12)]
        async with trio.open_nursery() as nursery:
            for eve in eves:
                nursery.start_soon(dials, eve, address_of(alice))
        (peer,) = {eve.peer_id for eve in eves}
        while len(swarm.slots) > DAEMONS.max_connections_per_peer:  # noqa: ASYNC110
            await trio.sleep(0.01)
        held = [conn for conns in swarm.connections.values() for conn in conns if not conn.is_closed]
        assert {str(conn.muxed_conn.peer_id) for conn in held} <= {peer}
        assert len(held) <= DAEMONS.max_connections_per_peer


# What a stranger says of a peer's address leads a node to the Internet, and not to a service of its own machine. A
# whole driver over a real host; a peer that it is connected with tells of another, which is nowhere but where the
# stranger wants a connection to go.


WANTED = DatasetId.from_public_key(b"w" * 32)
ALICE, SEED = bytes(31) + b"a", bytes(31) + b"l"
LIAR = SigningKey(SEED)
WALL = 1_700_000_000_000
LAN = ("/ip4/10.1.2.3/tcp/4150",)
"""Where a node behind a router says that it is, having asked its interfaces."""


class Nothing:
    """Library and statements of a node that has none."""

    def datasets(self, limit: int) -> Sequence[DatasetId]:
        return []

    def size(self, dataset: DatasetId) -> int:
        return 0

    def interests(self) -> Sequence[DatasetId]:
        return []

    def to(self, _peer: Any) -> Nothing:
        return self

    def refs(self, datasets: Any = None) -> Sequence[Any]:
        return []


@asynccontextmanager
async def node(announce: Sequence[str], **settings: Any) -> AsyncIterator[ReplicationDriver]:
    nothing: Any = Nothing()
    async with (
        open_host(ALICE, ["/ip4/127.0.0.1/tcp/0"], HostLimits(dial_timeout=PATIENCE), announce) as host,
        open_network(host) as network,
        trio.open_nursery() as nursery,
    ):
        chosen = ReplicationSettings(network="test", degree=0, **settings)
        rng = Random(1)
        driver = ReplicationDriver(network, nothing, nothing, chosen, rng, lambda: WALL * 1_000_000, SigningKey(ALICE))
        await nursery.start(driver.run)
        yield driver
        nursery.cancel_scope.cancel()


async def led(driver: ReplicationDriver, address: str) -> None:
    """A stranger told of one that serves what this node looks for; it is sought."""
    spelled, tag = str(parse_address(address)), wire.tag_of(WANTED)
    whole = Presence(key=LIAR.public, issued=WALL, lifetime=3600, addresses=(spelled,), tags=(tag,))
    sender = peer_of_did(LIAR.did)
    assert driver._discovery.directory.admit(wire.seal(whole, "test", LIAR), sender, WALL) is Judgement.ACCEPT
    assert await driver.seek(WANTED) == 0


class Service:
    """Of this machine, that no stranger may reach. It counts who calls, and then hangs up."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._calls = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):  # it was shut down
            while True:
                called, _ = self._listener.accept()
                self._calls += 1
                called.close()

    def was_called(self) -> bool:
        """Who was let down after it called was counted."""
        return self._calls > 0

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def service() -> Iterator[Service]:
    opened = Service()
    yield opened
    opened.close()


@pytest.fixture
def far() -> Iterator[Service]:
    """Elsewhere on the Internet."""
    opened = Service()
    yield opened
    opened.close()


@pytest.mark.parametrize(
    "where",
    [
        "/dns4/localhost/tcp/{}",
        "/dns/inside.example/tcp/{}",
        "/dns6/mapped.example/tcp/{}",
        "/ip6/::ffff:127.0.0.1/tcp/{}",
        "/ip4/127.0.0.1/tcp/{}",
        "/ip4/0.0.0.0/tcp/{}",
        "/ip4/127.0.0.1/tcp/{}/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN/p2p-circuit",
        "/dns4/localhost/tcp/{}/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN/p2p-circuit",
    ],
)
@pytest.mark.parametrize("announce", [LAN, ("/ip4/8.8.8.8/tcp/4150",)], ids=["lan", "internet"])
async def test_no_address_that_others_tell_leads_to_this_machine(
    service: Service, where: str, announce: tuple[str, ...]
) -> None:
    """Attack T-REACH-01: a name or a mapped address in a presence that leads to this machine.

    Defence: the resolved address is checked; mapped, 6to4, Teredo and NAT64 addresses by the one that they contain.
    """
    internet = Internet()
    internet.names = {
        "localhost": [["127.0.0.1"]],
        "inside.example": [["127.0.0.1"]],
        "mapped.example": [["::ffff:127.0.0.1"]],
    }
    with trio.fail_after(PATIENCE), internet.open():
        async with node(announce) as driver:
            await led(driver, where.format(service.port))
    assert not service.was_called()
    assert internet.dialled == []


async def test_a_name_is_resolved_once_and_what_was_judged_is_dialled(service: Service, far: Service) -> None:
    """Attack T-REACH-01: a name that resolves differently the second time.

    Defence: it is resolved once, and the checked address is dialled.

    The second answer, and every later one, would be this machine.
    """
    internet = Internet()
    internet.names = {"rebinding.example": [["93.184.216.34"], ["127.0.0.1"]]}
    internet.servers["93.184.216.34"] = far.port
    with trio.fail_after(PATIENCE), internet.open():
        async with node(LAN) as driver:
            await led(driver, f"/dns4/rebinding.example/tcp/{service.port}")
    assert far.was_called()
    assert not service.was_called()
    assert internet.dialled == ["93.184.216.34"]
    assert internet.asked["rebinding.example"] == 1


@pytest.mark.parametrize(
    "announce, settings",
    [(LAN, {"inside": ("127.0.0.0/8",)}), ((), {})],
    ids=["a setting names it", "nothing else is named"],
)
async def test_the_owner_may_allow_it(service: Service, announce: tuple[str, ...], settings: Any) -> None:
    with trio.fail_after(PATIENCE):
        async with node(announce, **settings) as driver:
            await led(driver, f"/dns4/localhost/tcp/{service.port}")
            assert service.was_called()


async def test_what_the_owner_names_is_dialled_wherever_it_is() -> None:
    with trio.fail_after(PATIENCE):
        async with node(LAN) as driver, open_host(SEED, ["/ip4/127.0.0.1/tcp/0"]) as other:
            address = other.addresses()[0].replace("/ip4/127.0.0.1/", "/dns4/localhost/")
            assert await driver.connect(address) == other.peer_id
