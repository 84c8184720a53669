"""Our relay with go-libp2p 0.49, js-libp2p 3.3 and Kubo 0.43: their peers reserve here, and meet each other and ours.

Ours reserve at the relays of go-libp2p and js-libp2p, and are reached there by theirs and ours.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from time import time_ns
from typing import Any

import pytest
import trio

from chain.statements.keys import SigningKey
from p2p.driver.network import open_network
from p2p.driver.node_reach import NodeReach, ReachSettings
from p2p.host.host import Host, open_host
from p2p.identity import peer_of_did
from p2p.machines.relay import RelayLimits
from worlds import foreign
from worlds.eventually import PATIENCE, became

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
ANY_PORT = "/ip4/127.0.0.1/tcp/0"
ECHO = "/odf-interop/echo/1"
SIZE = 3 << 20
"""Bytes there and back: more than a window."""
LITTLE = 50_000
"""Bytes there and back by a foreign relay: js-libp2p's carries 128 KiB of a circuit in both directions together."""


class Town:
    """A network without members."""

    def look_again(self) -> None: ...

    def moved(self) -> None: ...

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
    async with reached(name, *listen, **settings) as (host, _):
        yield host


@asynccontextmanager
async def reached(name: bytes, *listen: str, **settings: Any) -> AsyncIterator[tuple[Host, NodeReach]]:
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
        yield host, reach
        nursery.cancel_scope.cancel()


async def said_again(host: Host, peer: Any) -> None:
    async with await host.open_stream(peer, ECHO) as stream:
        await stream.send_all(b"by a relay")
        await stream.send_eof()
        assert await stream.receive_some(64) == b"by a relay"


def named(address: str) -> Any:
    return address.rpartition("/")[2]


async def test_peers_of_go_reserve_with_us_and_meet_by_us() -> None:
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


async def test_we_reserve_with_a_relay_of_go_and_are_met_by_it() -> None:
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
            said = await dialler.do("echo", address, LITTLE)
            assert (said["got"], said["wrong"]) == (LITTLE, 0)
            assert await bob.connect(address) == alice.peer_id
            await said_again(bob, alice.peer_id)


async def test_peers_of_js_reserve_with_us_and_meet_by_us() -> None:
    """As peers of go-libp2p do, and a peer of ours meets one too."""
    with trio.fail_after(PATIENCE):
        async with (
            ours(b"r", ANY_PORT, relay=RelayLimits()) as relay,
            ours(b"b", ANY_PORT) as bob,
            foreign.open_js() as one,
            foreign.open_js() as other,
        ):
            (address,) = relay.addresses()
            with pytest.raises(AssertionError, match="PERMISSION_DENIED"):
                await one.do("reserve", address)
            relay.choose({named(one.address), named(other.address), bob.peer_id})
            by_us = f"{address}/p2p-circuit/p2p/{named(one.address)}"
            assert await one.do("reserve", address) == {"addresses": [by_us]}
            assert await other.do("echo", by_us, SIZE) == {"got": SIZE, "wrong": 0, "limited": True}
            assert await bob.connect(by_us) == named(one.address)
            await said_again(bob, named(one.address))


async def test_we_reserve_with_a_relay_of_js_and_are_met_by_it() -> None:
    with trio.fail_after(PATIENCE):
        async with (
            foreign.open_js("relay") as relay,
            foreign.open_js() as dialler,
            ours(b"a", relays=(relay.address,)) as alice,
            ours(b"b", ANY_PORT) as bob,
        ):
            await became(lambda: any("/p2p-circuit" in each for each in alice.addresses()))
            (address,) = alice.addresses()
            assert await dialler.do("echo", address, LITTLE) == {"got": LITTLE, "wrong": 0, "limited": True}
            assert await bob.connect(address) == alice.peer_id
            await said_again(bob, alice.peer_id)


async def test_kubo_reserves_with_us_and_meets_by_us(tmp_path: Path) -> None:
    """A Kubo that thinks that nobody can dial it takes our relay from its settings, and dials by it."""
    alice_name = peer_of_did(SigningKey(b"a" * 32).did)
    kubos: list[Any] = []
    with trio.fail_after(PATIENCE):
        async with reached(b"r", ANY_PORT, relay=RelayLimits()) as (relay, reach), ours(b"b", ANY_PORT) as bob:
            (address,) = relay.addresses()
            settings = {
                "Internal.Libp2pForceReachability": "private",
                "Swarm.RelayClient": {"Enabled": True, "StaticRelays": [address]},
            }

            def made(peer: Any) -> None:
                """Before it runs, since it asks a relay that refuses again much later."""
                kubos.append(peer)
                relay.choose({peer, bob.peer_id, alice_name})

            async with foreign.open_kubo(tmp_path, settings, made) as kubo:
                (name,) = kubos
                await became(lambda: reach.figures().reserved == 1)
                assert await bob.connect(f"{address}/p2p-circuit/p2p/{name}") == name
                assert await bob.ping(name) < 5
                async with ours(b"a", relays=(address,)) as alice:
                    await became(alice.addresses)
                    assert "success" in await kubo.do("swarm", "connect", *alice.addresses())
                    assert "/p2p-circuit" in await kubo.do("swarm", "peers")
