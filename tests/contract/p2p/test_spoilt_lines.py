"""Garbage at every stage of a connection: a line that spoils what passes at any byte, and a peer that does so inside of
its own encryption. Nothing false arrives, whoever spoils pays with the connection or the stream, the host serves on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random
from typing import Any

import pytest
import trio
import trio.testing
from libp2p.io.exceptions import IOException
from libp2p.stream_muxer.exceptions import MuxedStreamError

from p2p.errors import PeerFault
from p2p.host.host import Host, open_host
from p2p.host.limits import HostLimits

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
    """In place of choosing a muxer, of its frames, of choosing a protocol."""
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
