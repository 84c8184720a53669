"""Strangers on hosts with the limits that the daemon gives them: who is silent or shows many keys keeps nobody out.

Addresses are those of 127.0.0.0/8, which all of them reach this machine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
import trio

from p2p.budget.buckets import Rate
from p2p.budget.work import HANDSHAKE, WorkShares
from p2p.errors import AddressInUse, PeerFault
from p2p.host.host import Host, open_host
from p2p.host.limits import HostLimits
from worlds.eventually import PATIENCE
from worlds.hostile import dials, from_address, sockets_at

DAEMONS = HostLimits(max_connections=64)
"""As ``odfd.services.peers.host_options`` makes them of the settings that nobody touched."""


@asynccontextmanager
async def attacked(limits: HostLimits = DAEMONS) -> AsyncIterator[Host]:
    with trio.fail_after(PATIENCE):
        async with open_host(b"a" * 32, ["/ip4/0.0.0.0/tcp/0"], limits) as alice:
            yield alice


def port_of(host: Host) -> int:
    return int(host.listening()[0].split("/")[4])


def address_of(host: Host) -> str:
    return f"/ip4/127.0.0.1/tcp/{port_of(host)}/p2p/{host.peer_id}"


async def meets(host: Host, seed: bytes = b"h" * 32, address: str = "127.0.9.9") -> bool:
    async with open_host(seed) as honest:
        with from_address(address):
            await honest.connect(address_of(host))
        return await honest.ping(host.peer_id) >= 0


@pytest.mark.slow
async def test_sixty_three_silent_connections_keep_nobody_out() -> None:
    """The library refuses the sixty-fifth before our doorway makes room."""
    async with attacked() as alice, AsyncExitStack() as stack:
        for number in range(160):
            stream = await trio.open_tcp_stream(
                "127.0.0.1", port_of(alice), local_address=f"127.0.{number % 5}.{1 + number // 5}"
            )
            stack.push_async_callback(stream.aclose)
        assert await meets(alice)


@pytest.mark.slow
async def test_keys_that_cost_nothing_take_no_more_places_than_their_addresses() -> None:
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
    """Twenty a second took most of a core. Here an address may have five, and hours later the next."""
    five = WorkShares(host=Rate(per_second=1.0, burst=5 * HANDSHAKE))
    async with attacked(HostLimits(max_connections=64, work=five)) as alice:
        swarm = alice.base.get_network()
        for _ in range(20):
            stream = await trio.open_tcp_stream("127.0.0.1", port_of(alice), local_address="127.0.1.1")
            await stream.aclose()
        while swarm.turned_away < 15:  # noqa: ASYNC110
            await trio.sleep(0.01)
        with pytest.raises(PeerFault):
            await meets(alice, address="127.0.1.1")
        assert await meets(alice), "others are let in"


async def test_over_ipv6_too_each_address_has_limits_of_its_own() -> None:
    """The library tells no address of a connection over IPv6: all strangers there would share the limits of one."""
    two = WorkShares(host=Rate(per_second=1.0, burst=2 * HANDSHAKE))
    async with attacked(HostLimits(max_connections=64, work=two)) as alice:
        try:
            await alice.listen(f"/ip6/::1/tcp/{port_of(alice)}")
        except AddressInUse:
            pytest.skip("this machine has no IPv6")
        swarm = alice.base.get_network()
        for _ in range(20):
            await (await trio.open_tcp_stream("::1", port_of(alice))).aclose()
        while swarm.turned_away < 18:  # noqa: ASYNC110
            await trio.sleep(0.01)
        now = trio.current_time()
        assert swarm.work.admit("::1", HANDSHAKE, now, patience=0.0) is None
        assert swarm.work.admit("2001:db8::1", HANDSHAKE, now, patience=0.0) == 0.0
        assert swarm.work.admit("", HANDSHAKE, now, patience=0.0) == 0.0, "nobody is without an address"


@pytest.mark.slow
async def test_chosen_peers_are_let_in_whoever_else_comes() -> None:
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
    """A hundred and fifty keys from twenty blocks, eight at once and without a pause: the newest are displaced while
    they start, which is before the library knows them."""
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
            assert sockets_at(port_of(alice)) <= DAEMONS.max_connections + len(swarm._door)
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
