"""Every trap of py-libp2p that a peer can spring, sprung: the stream or the connection pays, the host goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
import trio

from p2p.errors import ProtocolUnsupported, StreamBroken, TooManyStreams
from p2p.host import muxer
from p2p.host.host import Host, open_host
from p2p.host.limits import HostLimits
from p2p.host.noise import Suite, list_suites
from p2p.host.stream import BrokenStream, Stream
from p2p.identity import peer_of_seed
from p2p.ports import PeerId
from p2p.yamux.frames import DATA, INITIAL_WINDOW, SYN, WINDOW_UPDATE, pack

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
    """Through plaintext anyone is whom they say they are."""
    stream = await raw(pair.alice)
    await stream.send_all(line("/multistream/1.0.0") + line(security))
    answer = line("/multistream/1.0.0") + line("na")
    assert await reading(stream, len(answer)) == answer
    await stream.aclose()


@pytest.mark.parametrize("role", ["hop", "stop"])
async def test_no_relay_is_spoken_unasked(pair: Any, role: str) -> None:
    """Not as one that carries circuits, nor as their end, until the settings say so."""
    with pytest.raises(ProtocolUnsupported):
        await pair.stream(f"/libp2p/circuit/relay/0.2.0/{role}")
    with pytest.raises(ProtocolUnsupported):
        await pair.bob.connect(f"{pair.alice.addresses()[0]}/p2p-circuit/p2p/{peer_of_seed(EVE)}")


async def test_a_negotiation_without_end_is_cut_off(pair: Any) -> None:
    """A length of 2**40, before anybody is authenticated."""
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
    async with pair_of(HostLimits(max_pending_inbound=8)) as pair:
        silent = [await raw(pair.alice) for _ in range(40)]
        async with honest(pair.alice):
            assert await pair.echoes()
        for stream in silent[:20]:
            await closed_by_peer(stream)
        for stream in silent[20:]:
            await stream.aclose()


async def test_a_handler_that_raises_costs_its_stream(pair: Any) -> None:
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
    """Whoever comes again and again under one key loses its older connections, and keeps nobody out."""
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
    """Each keeps to the windows that it was granted; together they are more than may lie unread."""
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
    async def never(_stream: Stream, _peer: PeerId) -> None:
        await trio.sleep_forever()

    async with pair_of(bob=yamux(stall_timeout=0.2)) as pair:
        pair.alice.set_handler("/never", never)
        stream = await pair.stream("/never")
        with pytest.raises(BrokenStream, match="took no data for too long"):
            await stream.send_all(bytes(INITIAL_WINDOW + 1))
        assert await pair.echoes()


async def test_a_cancelled_send_tears_no_frame_and_is_never_a_clean_end(pair: Any) -> None:
    """In py-libp2p it corrupts the connection: later streams hang."""
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
