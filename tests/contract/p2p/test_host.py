"""What a host promises: connections by identity, streams like trio's, dialling, and faults that name the peer."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import check_half_closeable_stream

from p2p.address import PeerAddress
from p2p.errors import AddressInUse, BadAddress, PeerUnreachable, ProtocolUnsupported, StreamBroken, WrongIdentity
from p2p.host import hardening, noise
from p2p.host.host import PeerConnected, PeerDisconnected, open_host
from p2p.host.limits import HostLimits
from p2p.host.noise import AES, CHACHA, Suite
from p2p.host.stream import BrokenStream, Stream
from p2p.identity import peer_of_seed
from p2p.ip import Ip
from p2p.machines.dial_order import HEAD_START, MAX_TRIED
from p2p.ports import PeerId
from worlds.eventually import PATIENCE, became
from worlds.identified import identified

# What a host promises: connections by identity, streams that behave like trio's, faults that name the peer.


LOOPBACK = "/ip4/127.0.0.1/tcp/0"
SEED, OTHER = b"s" * 32, b"o" * 32


@pytest.mark.slow
async def test_bytes_go_to_and_fro_and_end(pair: Any, reading: Any) -> None:
    stream = await pair.stream()
    body = os.urandom(3_000_000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, body)
        assert await reading(stream, len(body)) == body
    (sent,), (received,) = pair.bob.traffic().values(), pair.alice.traffic().values()
    assert sent.sent >= received.received >= len(body)
    assert received.sent >= sent.received >= len(body)
    assert list(pair.alice.traffic()) == [pair.bob.peer_id]
    await stream.send_eof()
    assert await stream.receive_some() == b""
    await stream.aclose()


@pytest.mark.parametrize(
    ("served", "dialled", "agreed"),
    [
        ([AES, CHACHA], [AES, CHACHA], AES),
        ([CHACHA], [AES, CHACHA], CHACHA),
        ([AES, CHACHA], [CHACHA], CHACHA),
        ([CHACHA], [CHACHA], CHACHA),
    ],
)
async def test_the_best_cipher_that_both_have_seals(
    pair_of: Any,
    reading: Any,
    monkeypatch: pytest.MonkeyPatch,
    served: Sequence[Suite],
    dialled: Sequence[Suite],
    agreed: Suite,
) -> None:
    """Attack T-PEER-01: removing the better cipher from a negotiation.

    Defence: the remaining one is libp2p's own, and as strong; a handshake other than the agreed one ends the
    connection.
    """
    has = iter((served, dialled))
    monkeypatch.setattr(hardening, "list_suites", lambda: next(has))
    async with pair_of() as pair:
        assert pair.bobs_muxer.secured_conn.negotiated_security_protocol == agreed.protocol
        body = os.urandom(300_000)
        stream = await pair.stream()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, body)
            assert await reading(stream, len(body)) == body
        await stream.aclose()


async def test_connect_returns_who_answered_and_is_idempotent(pair: Any) -> None:
    address = pair.alice.addresses()[0]
    assert await pair.bob.connect(address) == pair.alice.peer_id
    assert list(pair.bob.peers()) == [pair.alice.peer_id]
    assert list(pair.alice.peers()) == [pair.bob.peer_id]
    assert len(pair.bob._connections(pair.alice.peer_id)) == 1


async def test_peers_come_and_go_as_notices(pair: Any) -> None:
    arrived = await pair.alice.notices.receive()
    assert isinstance(arrived, PeerConnected)
    assert (arrived.peer, arrived.inbound) == (pair.bob.peer_id, True)
    await pair.bob.disconnect(pair.alice.peer_id)
    left = await pair.alice.notices.receive()
    assert isinstance(left, PeerDisconnected)
    assert left.peer == pair.bob.peer_id
    assert not pair.alice.is_connected(pair.bob.peer_id)


async def test_ping_and_identify_work(pair: Any) -> None:
    assert await pair.bob.ping(pair.alice.peer_id) > 0
    await identified(pair.bob, pair.alice.peer_id, "/echo")


@pytest.mark.slow
async def test_the_network_of_a_peer_is_that_of_its_connection(pair: Any) -> None:
    """Whoever dialled, and whatever it says of itself."""
    assert pair.alice.network_of(pair.bob.peer_id) == pair.bob.network_of(pair.alice.peer_id) == "127.0.0.0/16"
    assert pair.bob.network_of(peer_of_seed(OTHER)) == ""
    alice = pair.alice.peer_id
    assert pair.bob.share_of(alice) == "127.0.0.0/16"
    for apart in ({"peers": [alice]}, {"peers": [], "publishers": [alice]}):
        pair.bob.choose(**apart)
        assert pair.bob.share_of(alice) == alice, "no stranger of its network has a part in it"
    async with open_host(OTHER, ["/ip4/127.9.8.7/tcp/0"]) as far:
        await pair.bob.connect(far.addresses()[0])
        assert pair.bob.network_of(far.peer_id) == "127.9.0.0/16"
        await pair.bob.disconnect(far.peer_id)
        assert pair.bob.network_of(far.peer_id) == ""


async def test_somebody_else_at_the_address_is_not_spoken_to() -> None:
    """Attack T-PEER-01: another key at a known address.

    Defence: the peer id is part of the address, and the handshake proves it.
    """
    with trio.fail_after(PATIENCE):
        async with open_host(SEED, [LOOPBACK]) as host, open_host(OTHER) as dialer:
            address = host.addresses()[0].replace(host.peer_id, peer_of_seed(b"v" * 32))
            with pytest.raises(WrongIdentity) as caught:
                await dialer.connect(address)
            assert caught.value.peer == peer_of_seed(b"v" * 32)
            assert not dialer.peers()
            assert not host.peers()


async def test_nobody_at_the_address() -> None:
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    async with open_host(SEED) as host:
        with pytest.raises(PeerUnreachable, match="refused"):
            await host.connect(f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer_of_seed(OTHER)}")


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("nonsense", "expected"),
        ("/ip4/127.0.0.1/tcp/4001", "does not say whose"),
        ("/ip4/300.0.0.1/tcp/4001", "not an ip4 address"),
        ("/ip4/127.0.0.1/tcp/70000", "not a port"),
        ("/ip4/127.0.0.1/udp/4001", "expected"),
        ("/ip4/127.0.0.1/tcp/1/p2p/QmNotAKey", "peer id"),
        (f"/ip4/127.0.0.1/tcp/1/p2p/{peer_of_seed(SEED)}", "this node itself"),
    ],
)
async def test_a_bad_address_is_explained(address: str, reason: str) -> None:
    async with open_host(SEED) as host:
        with pytest.raises(BadAddress, match=reason) as caught:
            await host.connect(address)
        assert caught.value.hint


async def test_an_unknown_protocol_and_a_stranger(pair: Any) -> None:
    with pytest.raises(ProtocolUnsupported, match="/nothing"):
        await pair.stream("/nothing")
    with pytest.raises(PeerUnreachable, match="not connected"):
        await pair.bob.open_stream(peer_of_seed(b"x" * 32), "/echo")
    assert await pair.echoes()


async def test_a_port_in_use_is_said_and_never_shared() -> None:
    async with open_host(SEED, [LOOPBACK]) as first:
        taken = first.addresses()[0].partition("/p2p/")[0]
        with pytest.raises(AddressInUse, match="in use") as caught:
            async with open_host(OTHER, [taken]):
                pytest.fail("two hosts on one port")
        assert "another port" in caught.value.hint


async def test_a_fault_of_the_block_is_not_wrapped() -> None:
    with pytest.raises(KeyError):
        async with open_host(SEED):
            raise KeyError("mine")


@pytest.mark.slow
async def test_a_stream_is_a_trio_stream(pair: Any) -> None:
    """The conformance suite that trio's own streams pass."""
    accepted_send, accepted = trio.open_memory_channel[tuple[Stream, trio.Event]](1)

    async def lend(stream: Stream, _peer: PeerId) -> None:
        done = trio.Event()
        await accepted_send.send((stream, done))
        await done.wait()

    pair.alice.set_handler("/lend", lend)
    lent: list[trio.Event] = []

    async def make() -> tuple[Stream, Stream]:
        mine = await pair.stream("/lend")
        theirs, done = await accepted.receive()
        lent.append(done)
        return mine, theirs

    await check_half_closeable_stream(make, None)
    for done in lent:
        done.set()


async def test_reset_is_seen_as_broken_by_both_families(pair: Any) -> None:
    seen_send, seen = trio.open_memory_channel[Exception](1)

    async def read_on(stream: Stream, _peer: PeerId) -> None:
        try:
            await stream.receive_some()
        except BrokenStream as error:
            await seen_send.send(error)

    pair.alice.set_handler("/read", read_on)
    stream = await pair.stream("/read")
    await stream.reset()
    error = await seen.receive()
    assert isinstance(error, trio.BrokenResourceError)
    assert str(error).startswith(f"peer {pair.bob.peer_id}: /read: reset by the peer")


async def test_leaving_the_block_closes_every_socket() -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count of names

    async def life() -> None:
        async with open_host(SEED, [LOOPBACK]) as host, open_host(OTHER) as dialer:
            await dialer.connect(host.addresses()[0])
            assert open_files() > before

    with trio.fail_after(PATIENCE):
        before = open_files()
        await life()
        await life()
        assert open_files() == before


@pytest.mark.slow
async def test_connecting_waits_for_no_timer(mock_clock: trio.testing.MockClock) -> None:
    """The library's dialler sleeps 250 ms after it succeeded. Virtual time moves only when everybody waits for it."""
    mock_clock.autojump_threshold = 0.5
    async with open_host(SEED, [LOOPBACK]) as host, open_host(OTHER) as dialer:
        before = trio.current_time()
        await dialer.connect(host.addresses()[0])
        assert trio.current_time() == before


@pytest.mark.slow
async def test_places_come_free_when_connections_end(pair_of: Callable[..., Any]) -> None:
    """The library gives each connection ever accepted one of its places until the host ends."""
    from p2p.host.limits import HostLimits

    async with pair_of(HostLimits(max_connections=2)) as pair:
        for _ in range(6):
            await pair.bob.disconnect(pair.alice.peer_id)
            while pair.alice.is_connected(pair.bob.peer_id):
                await trio.lowlevel.checkpoint()
            await pair.bob.connect(pair.alice.addresses()[0])
        assert await pair.echoes()


async def test_nobody_is_dialled_unasked(pair: Any) -> None:
    address = pair.alice.addresses()[0]
    await pair.bob.disconnect(pair.alice.peer_id)
    swarm = pair.bob.base.get_network()
    assert swarm.peerstore.peer_ids()
    swarm._schedule_auto_connect()
    await swarm.auto_connector.maybe_connect()
    for _ in range(100):
        await trio.lowlevel.checkpoint()
    assert not pair.bob.peers()
    assert address


async def test_a_host_dials_its_own_addresses_as_a_stranger_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is greeted where it listens; nobody at all, who hangs up, and who greets otherwise did not answer."""
    async with open_host(SEED, [LOOPBACK, "/ip4/127.0.0.2/tcp/0"]) as host:
        places = host.direct.listening()
        assert len(places) == 2
        assert await host.direct.dial_own() == dict.fromkeys(places, True)
        assert not host.peers()
        async with trio.open_nursery() as nursery:
            others = [await _saying(nursery, said) for said in (None, b"", b"SSH-2.0-OpenSSH_9.2")]
            monkeypatch.setattr(host.direct, "listening", lambda: [*places, *others])
            assert await host.direct.dial_own() == dict.fromkeys(places, True) | dict.fromkeys(others, False)
            nursery.cancel_scope.cancel()


async def _saying(nursery: trio.Nursery, said: bytes | None) -> PeerAddress:
    """The address of who says this to everybody; ``None``: of nobody any more."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    if said is None:
        await listener.aclose()
    else:
        nursery.start_soon(trio.serve_listeners, lambda stream: stream.send_all(said), [listener])
    return PeerAddress("ip4", "127.0.0.1", port)


# Dialling a peer that has several addresses, and peers that a person has blocked, on real sockets.


ANY_PORT = "/ip4/127.0.0.1/tcp/0"
ALICE, BOB, EVE = (bytes([letter]) * 32 for letter in b"abe")


@contextmanager
def silent() -> Iterator[str]:
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"/ip4/127.0.0.1/tcp/{listener.getsockname()[1]}"


def refused() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"/ip4/127.0.0.1/tcp/{listener.getsockname()[1]}"


@pytest.mark.slow
async def test_the_address_that_answers_is_taken(mock_clock: trio.testing.MockClock) -> None:
    """Time goes on only when everybody waits for it."""
    mock_clock.autojump_threshold = 0.2
    with silent() as dead:
        async with open_host(ALICE, [ANY_PORT]) as alice, open_host(BOB) as bob:
            (good,) = alice.addresses()
            others = [f"{refused()}/p2p/{alice.peer_id}", f"{dead}/p2p/{alice.peer_id}"]
            began = trio.current_time()
            assert await bob.connect(*others, good) == alice.peer_id
            took = trio.current_time() - began
            assert took == pytest.approx(HEAD_START), "the refused one cost nothing, the silent one its head start"
            assert len(bob._connections(alice.peer_id)) == 1


@pytest.mark.parametrize("named_by_the_owner", [True, False])
async def test_all_addresses_that_the_owner_named_are_tried_and_few_that_others_did(named_by_the_owner: bool) -> None:
    def others_allow(_ip: Ip) -> bool:
        return True

    with trio.fail_after(PATIENCE):
        async with open_host(ALICE, [ANY_PORT]) as alice, open_host(BOB) as bob:
            bad = [f"{refused()}/p2p/{alice.peer_id}" for _ in range(MAX_TRIED)]
            told = [*bad, *alice.addresses()]
            if named_by_the_owner:
                assert await bob.connect(*told) == alice.peer_id
                return
            with pytest.raises(PeerUnreachable):
                await bob.connect(*told, allows=others_allow)


@pytest.mark.slow
async def test_when_none_answers_the_first_says_why(mock_clock: trio.testing.MockClock) -> None:
    mock_clock.autojump_threshold = 0.2
    with trio.fail_after(PATIENCE), silent() as dead:
        async with open_host(BOB, [], HostLimits(dial_timeout=3.0)) as bob, open_host(ALICE, [ANY_PORT]) as alice:
            async with open_host(EVE, [ANY_PORT]) as eve:
                taken = eve.addresses()[0].replace(eve.peer_id, alice.peer_id)
                with pytest.raises(WrongIdentity):
                    await bob.connect(taken, f"{dead}/p2p/{alice.peer_id}", f"{refused()}/p2p/{alice.peer_id}")
            assert not bob.peers()


async def test_addresses_of_two_peers_are_not_one() -> None:
    async with open_host(BOB) as bob, open_host(ALICE, [ANY_PORT]) as alice, open_host(EVE, [ANY_PORT]) as eve:
        with pytest.raises(BadAddress):
            await bob.connect(*alice.addresses(), *eve.addresses())


@pytest.mark.slow
async def test_who_is_blocked_neither_comes_in_nor_is_dialled() -> None:
    """Attack T-PEER-01: a blocked peer at any address.

    Defence: it is refused when its handshake proves its key.
    """
    with trio.fail_after(PATIENCE):
        async with open_host(ALICE, [ANY_PORT]) as alice, open_host(EVE, [ANY_PORT]) as eve, open_host(BOB) as bob:
            alice.block([eve.peer_id])
            with pytest.raises(PeerUnreachable, match="blocked"):
                await alice.connect(eve.addresses()[0])
            try:
                await eve.connect(alice.addresses()[0])
            except PeerUnreachable:
                pass
            else:
                while eve.peers():
                    await eve.notices.receive()
            assert not alice.peers()
            assert await bob.connect(alice.addresses()[0]) == alice.peer_id
            alice.block([])
            assert await eve.connect(alice.addresses()[0]) == alice.peer_id
            await became(lambda: eve.peer_id in alice.peers())


async def test_what_is_announced_is_what_is_told() -> None:
    async with open_host(ALICE, [ANY_PORT], announce=["/dns4/node.example/tcp/4150"]) as alice:
        assert alice.addresses() == [f"/dns4/node.example/tcp/4150/p2p/{alice.peer_id}"]
        assert alice.listening()[0].startswith("/ip4/127.0.0.1/tcp/")


@pytest.fixture
def ip6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")


@pytest.mark.usefixtures("ip6")
async def test_a_peer_with_both_families_is_dialled_over_ipv6() -> None:
    """At one port, which both families listen on; the addresses are told with those of IPv4 first."""
    with trio.fail_after(PATIENCE):
        async with open_host(ALICE, [ANY_PORT]) as alice, open_host(BOB) as bob:
            (ip4,) = alice.addresses()
            port = ip4.split("/")[4]
            await alice.listen(f"/ip6/::1/tcp/{port}")
            assert set(alice.listening()) == {f"/ip4/127.0.0.1/tcp/{port}", f"/ip6/::1/tcp/{port}"}
            assert await bob.connect(*sorted(alice.addresses())) == alice.peer_id
            while not alice.peers():
                await alice.notices.receive()
            assert (bob.remote_of(alice.peer_id), alice.remote_of(bob.peer_id)) == ("::1", "::1")
            assert bob.peers()[alice.peer_id].startswith("/ip6/::1/")


@pytest.mark.usefixtures("ip6")
async def test_one_port_is_listened_on_by_both_families() -> None:
    """The addresses that a node listens on where nobody said otherwise, and of IPv4 none looks like one of IPv6."""
    with trio.fail_after(PATIENCE):
        async with open_host(ALICE, ["/ip6/::/tcp/0"]) as alice, open_host(BOB) as bob:
            port = alice.listening()[0].split("/")[4]
            await alice.listen(f"/ip4/0.0.0.0/tcp/{port}")
            await bob.connect(f"/ip4/127.0.0.1/tcp/{port}/p2p/{alice.peer_id}")
            while not alice.peers():
                await alice.notices.receive()
            assert alice.remote_of(bob.peer_id) == "127.0.0.1"


@pytest.mark.slow
@pytest.mark.usefixtures("ip6")
async def test_where_ipv6_is_silent_the_other_wins_after_a_head_start(mock_clock: trio.testing.MockClock) -> None:
    """The attempt over IPv6 is then closed: whoever listens there reads its end."""
    mock_clock.autojump_threshold = 0.2
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        dead = f"/ip6/::1/tcp/{listener.getsockname()[1]}"
        async with open_host(ALICE, [ANY_PORT]) as alice, open_host(BOB) as bob:
            (good,) = alice.addresses()
            began = trio.current_time()
            await bob.connect(good, f"{dead}/p2p/{alice.peer_id}")
            assert trio.current_time() - began == pytest.approx(HEAD_START)
            assert bob.remote_of(alice.peer_id) == "127.0.0.1"
            loser, _ = listener.accept()
            with loser:
                loser.settimeout(PATIENCE)
                while loser.recv(4096):  # what it said before; then its end
                    pass
            assert len(bob._connections(alice.peer_id)) == 1


async def test_a_hole_punch_does_not_end_the_connection_that_it_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full machine, the parts of a host hear of a connection when the punch has seen it and ends its dials."""
    seen = trio.Event()
    with trio.fail_after(PATIENCE):
        async with open_host(ALICE, [ANY_PORT]) as alice, open_host(BOB, [ANY_PORT]) as bob:
            is_direct, connected = alice.direct.is_direct, alice._notices.connected

            def looked(peer: PeerId) -> bool:
                if found := is_direct(peer):
                    seen.set()
                return found

            async def heard(network: object, conn: object) -> None:
                await seen.wait()
                await trio.lowlevel.checkpoint()  # here a dial that was ended would end
                await connected(network, conn)

            monkeypatch.setattr(alice.direct, "is_direct", looked)
            monkeypatch.setattr(alice._notices, "connected", heard)
            assert await alice.direct.punch(bob.direct.listening(), bob.peer_id, PATIENCE, as_client=True)
            assert isinstance(await alice.notices.receive(), PeerConnected)
            assert await alice.ping(bob.peer_id) >= 0


# Small messages skip an idle writer: whole and in order whatever the socket takes of them, and told when it breaks.


def every_other() -> Callable[[int, bytes], int]:
    """A socket that takes nothing, and then what it is offered again."""
    answers = itertools.cycle([False, True])

    def write(fd: int, data: bytes) -> int:
        if next(answers):
            return os.write(fd, data)
        raise BlockingIOError

    return write


def seven(fd: int, data: bytes) -> int:
    return os.write(fd, bytes(data)[:7])


def gone(fd: int, data: bytes) -> int:
    raise BrokenPipeError("the other side is gone")


@pytest.fixture
def socket_takes(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[int]]:
    """``socket_takes(write)``: sizes of what was offered to it from then on."""

    def take(write: Any) -> list[int]:
        offered: list[int] = []

        def watched(fd: int, data: bytes) -> int:
            offered.append(len(data))
            taken: int = write(fd, data)
            return taken

        monkeypatch.setattr(noise, "os", SimpleNamespace(write=watched, readv=os.readv))
        return offered

    return take


@pytest.mark.slow
@pytest.mark.parametrize("write", [os.write, seven, every_other()])
async def test_messages_arrive_whole_and_in_order(
    write: Any, pair: Any, reading: Any, socket_takes: Callable[[Any], list[int]]
) -> None:
    streams = [await pair.stream() for _ in range(4)]
    offered = socket_takes(write)

    async def talk(stream: Any, mark: int) -> None:
        for number in range(50):
            message = bytes([mark]) * (1 + number * 41 % 3000) + number.to_bytes(4, "big")
            await stream.send_all(message)
            assert await reading(stream, len(message)) == message

    async with trio.open_nursery() as nursery:
        for mark, stream in enumerate(streams):
            nursery.start_soon(talk, stream, mark)
    assert offered, "no message was small enough"
    for stream in streams:
        await stream.aclose()


async def test_a_message_beyond_the_credit_waits_for_it(pair: Any, reading: Any) -> None:
    stream, message = await pair.stream(), b"m" * 3_000
    count = 2 + 2 * (256 << 10) // len(message)
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            for _ in range(count):
                await stream.send_all(message)

        nursery.start_soon(send)
        assert await reading(stream, count * len(message)) == message * count
    await stream.aclose()


async def test_a_socket_that_broke_is_told_to_the_writer(pair: Any, socket_takes: Callable[[Any], list[int]]) -> None:
    stream = await pair.stream()
    socket_takes(gone)
    with pytest.raises(StreamBroken, match="gone"):
        await stream.send_all(b"anybody?")
    with pytest.raises(StreamBroken):
        await stream.receive_some(1)
    await stream.aclose()
