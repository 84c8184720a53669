"""Two open hosts on loopback sockets, each on a port of its own, and the same two connected."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio

from p2p.host.host import Host, open_host
from p2p.host.limits import HostLimits
from p2p.host.stream import Stream
from p2p.ports import PeerId
from p2p.yamux.frames import YamuxLimits
from worlds.eventually import PATIENCE

ANY_PORT = "/ip4/127.0.0.1/tcp/0"
ALICE, BOB, EVE = (bytes([letter]) * 32 for letter in b"abe")


async def echo(stream: Stream, _peer: PeerId) -> None:
    async for data in stream:
        await stream.send_all(data)


@dataclass
class Pair:
    """Bob has dialled Alice, who serves ``/echo``."""

    alice: Host
    bob: Host

    async def stream(self, protocol: str = "/echo") -> Stream:
        return await self.bob.open_stream(self.alice.peer_id, protocol)

    async def echoes(self) -> bool:
        """A new stream works."""
        async with await self.stream() as stream:
            await stream.send_all(b"are you there?")
            return await read_exactly(stream, 14) == b"are you there?"

    @property
    def bobs_muxer(self) -> Any:
        return self.bob._connections(self.alice.peer_id)[0].muxed_conn


async def read_exactly(stream: trio.abc.ReceiveStream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = await stream.receive_some(size - len(data))
        assert part, f"ended after {len(data)} of {size} bytes"
        data += part
    return bytes(data)


@asynccontextmanager
async def _pair(alice: HostLimits | None = None, bob: HostLimits | None = None) -> AsyncIterator[Pair]:
    with trio.fail_after(PATIENCE):
        async with open_host(ALICE, [ANY_PORT], alice) as one, open_host(BOB, [], bob) as other:
            one.set_handler("/echo", echo)
            await other.connect(one.addresses()[0])
            yield Pair(one, other)


PairOf = Callable[..., AbstractAsyncContextManager[Pair]]


@pytest.fixture
def pair_of() -> PairOf:
    """``pair_of(alice=limits, bob=limits)``"""
    return _pair


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with _pair() as made:
        yield made


@pytest.fixture
def reading() -> Callable[..., Any]:
    return read_exactly


@pytest.fixture
def yamux() -> Callable[..., HostLimits]:
    """``yamux(stall_timeout=…)``: host limits with these of the muxer."""
    return lambda **limits: HostLimits(yamux=YamuxLimits(**limits))
