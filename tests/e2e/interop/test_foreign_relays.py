"""Our relay with go-libp2p 0.49, the one of Kubo 0.43: its peers reserve here and meet by it, and ours by its relay."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from random import Random
from time import time_ns
from types import ModuleType
from typing import Any

import pytest
import trio

from chain.statements.keys import SigningKey
from p2p.driver.network import open_network
from p2p.driver.node_reach import NodeReach, ReachSettings
from p2p.host.host import Host, open_host
from p2p.machines.relay import RelayLimits
from worlds.eventually import PATIENCE, became

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
ANY_PORT = "/ip4/127.0.0.1/tcp/0"
ECHO = "/odf-interop/echo/1"
SIZE = 3 << 20
"""Bytes there and back: more than a window."""


class Town:
    """A network without members."""

    def look_again(self) -> None: ...

    async def is_member(self, _peer: object) -> bool:
        await trio.lowlevel.checkpoint()
        return False

    def addresses_of(self, _peers: Iterable[object]) -> list[str]:
        return []

    def clock_behind(self, _peers: Iterable[object]) -> float:
        return 0.0


async def echo(stream: Any, _peer: Any) -> None:
    async for data in stream:
        await stream.send_all(data)
    await stream.send_eof()


@asynccontextmanager
async def ours(name: bytes, *listen: str, **settings: Any) -> AsyncIterator[Host]:
    town: Any = Town()
    async with (
        open_host(name * 32, listen) as host,
        open_network(host) as network,
        trio.open_nursery() as nursery,
    ):
        wall = Random(1)
        reach = NodeReach(network, ReachSettings(**settings), wall, time_ns, SigningKey(name * 32), lambda: [town])
        host.set_handler(ECHO, echo)
        nursery.start_soon(reach.run)
        yield host
        nursery.cancel_scope.cancel()


def named(address: str) -> Any:
    return address.rpartition("/")[2]


async def test_peers_of_go_reserve_with_us_and_meet_by_us(foreign: ModuleType) -> None:
    """Chosen peers, since they sign no presence; others are refused."""
    with trio.fail_after(PATIENCE):
        async with (
            ours(b"r", ANY_PORT, relay=RelayLimits()) as relay,
            foreign.open_go() as one,
            foreign.open_go() as other,
        ):
            (address,) = relay.addresses()
            with pytest.raises(AssertionError, match="PERMISSION_DENIED"):
                await one.do("reserve", address)
            relay.choose({named(one.address), named(other.address)})
            made = await one.do("reserve", address)
            assert made["voucher"]
            assert made["seconds"] > 60
            by_us = f"{address}/p2p-circuit/p2p/{named(one.address)}"
            assert await other.do("echo", by_us, SIZE) == {"got": SIZE, "wrong": 0, "limited": True}


async def test_we_reserve_with_a_relay_of_go_and_are_met_by_it(foreign: ModuleType) -> None:
    """By a peer of go-libp2p and by one of ours, through noise from end to end."""
    with trio.fail_after(PATIENCE):
        async with (
            foreign.open_go("relay") as relay,
            foreign.open_go() as dialler,
            ours(b"a", relays=(relay.address,)) as alice,
            ours(b"b", ANY_PORT) as bob,
        ):
            await became(lambda: any("/p2p-circuit" in each for each in alice.addresses()))
            (address,) = alice.addresses()
            said = await dialler.do("echo", address, 60_000)
            assert (said["got"], said["wrong"]) == (60_000, 0), "its relay carries 128 KiB"
            peer = await bob.connect(address)
            assert peer == alice.peer_id
            async with await bob.open_stream(peer, ECHO) as stream:
                await stream.send_all(b"by their relay")
                await stream.send_eof()
                assert await stream.receive_some(64) == b"by their relay"
