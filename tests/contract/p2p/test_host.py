"""What a host promises: connections by identity, streams that behave like trio's, faults that name the peer."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio
from trio.testing import check_half_closeable_stream

from p2p.address import PeerAddress
from p2p.errors import AddressInUse, BadAddress, PeerUnreachable, ProtocolUnsupported, WrongIdentity
from p2p.host import hardening
from p2p.host.host import PeerConnected, PeerDisconnected, open_host
from p2p.host.noise import AES, CHACHA, Suite
from p2p.host.stream import BrokenStream, Stream
from p2p.identity import peer_of_seed
from p2p.ports import PeerId
from worlds.eventually import PATIENCE
from worlds.identified import identified

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
