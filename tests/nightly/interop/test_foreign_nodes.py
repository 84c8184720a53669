"""Our host with js-libp2p 3.3 and Kubo 0.43: connect, identify, ping, and 16 MiB there and back, dialled by either."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from p2p.host.host import open_host
from worlds import foreign
from worlds.eventually import PATIENCE
from worlds.identified import identified

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
SEED = b"i" * 32
ECHO = "/odf-interop/echo/1"
MOUNT = "/x/odf-interop"
SIZE = 16 << 20
PART = bytes(range(256)) * 4096
"""1 MiB: our frames have up to 256 KiB of it."""
ANY_PORT = "/ip4/127.0.0.1/tcp/0"


async def echo(stream: Any, _peer: Any) -> None:
    async for data in stream:
        await stream.send_all(data)
    await stream.send_eof()


async def there_and_back(stream: Any, *, half_close: bool = True) -> None:
    """Send ``SIZE`` bytes and read the same. Kubo's ``p2p`` ends both directions when one is at its end."""

    async def send() -> None:
        for _ in range(SIZE // len(PART)):
            await stream.send_all(PART)
        if half_close:
            await stream.send_eof()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        at = 0
        while at < SIZE:
            data = await stream.receive_some(1 << 16)
            assert data, f"ended after {at} bytes"
            place = at % len(PART)
            assert data == (PART * 2)[place : place + len(data)]
            at += len(data)


async def test_js_libp2p() -> None:
    async with foreign.open_js() as js, open_host(SEED, [ANY_PORT]) as host:
        with trio.fail_after(PATIENCE):
            host.set_handler(ECHO, echo)
            peer = await host.connect(js.address)
            assert await host.ping(peer) < 5
            await identified(host, peer, ECHO)
            async with await host.open_stream(peer, ECHO) as stream:
                await there_and_back(stream)
            assert await js.do("muxers") == {"muxers": [["/noise", "/yamux/1.0.0"]]}


async def test_js_libp2p_dials() -> None:
    async with foreign.open_js() as js, open_host(SEED, [ANY_PORT]) as host:
        with trio.fail_after(PATIENCE):
            host.set_handler(ECHO, echo)
            (address,) = host.addresses()
            assert (await js.do("ping", address))["ms"] < 5000
            assert await js.do("echo", address, SIZE) == {"got": SIZE, "wrong": 0, "limited": False}
            while not (about := await js.do("identified", host.peer_id)):  # noqa: ASYNC110 - it tells nobody
                await trio.sleep(0.05)
            assert ECHO in about["protocols"]


async def test_kubo(tmp_path: Path) -> None:
    """Its ``p2p listen`` hands streams of a protocol to a TCP server, which echoes."""
    async with foreign.open_kubo(tmp_path) as kubo, open_host(SEED, [ANY_PORT]) as host, trio.open_nursery() as nursery:
        with trio.fail_after(PATIENCE):
            listeners = await nursery.start(trio.serve_tcp, echo_tcp, 0)
            port = listeners[0].socket.getsockname()[1]
            await kubo.do("p2p", "listen", MOUNT, f"/ip4/127.0.0.1/tcp/{port}")
            address = next(one for one in (await kubo.about())["Addresses"] if "/127.0.0.1/tcp/" in one)
            peer = await host.connect(address)
            assert await host.ping(peer) < 5
            await identified(host, peer, "/ipfs/bitswap/1.2.0")
            async with await host.open_stream(peer, MOUNT) as stream:
                await there_and_back(stream, half_close=False)
            nursery.cancel_scope.cancel()


async def test_kubo_dials(tmp_path: Path) -> None:
    """Its ``p2p forward`` makes a stream to us of each TCP connection to it."""
    async with foreign.open_kubo(tmp_path) as kubo, open_host(SEED, [ANY_PORT]) as host:
        with trio.fail_after(PATIENCE):
            host.set_handler(MOUNT, echo)
            (address,) = host.addresses()
            assert "success" in await kubo.do("swarm", "connect", address)
            assert "Average latency" in await kubo.do("ping", "-n", "2", host.peer_id)
            about = await kubo.about(host.peer_id)
            assert MOUNT in about["Protocols"]
            assert "/ipfs/ping/1.0.0" in about["Protocols"]
            await kubo.do("p2p", "forward", MOUNT, "/ip4/127.0.0.1/tcp/0", f"/p2p/{host.peer_id}")
            (mounted,) = (line for line in (await kubo.do("p2p", "ls")).splitlines() if MOUNT in line)
            port = int(mounted.split("/ip4/127.0.0.1/tcp/")[1].split()[0])
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await there_and_back(stream, half_close=False)
            assert json.loads(await kubo.do("swarm", "peers", "--enc=json"))["Peers"][0]["Peer"] == host.peer_id


async def echo_tcp(stream: trio.SocketStream) -> None:
    async for data in stream:
        await stream.send_all(data)
    await stream.send_eof()
