"""Strangers on hosts with the limits that the daemon gives them: who is silent or shows many keys keeps nobody out.

Addresses are those of 127.0.0.0/8, which all of them reach this machine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
import trio

from p2p.budget.buckets import Rate
from p2p.budget.work import HANDSHAKE, WorkShares
from p2p.errors import AddressInUse, PeerFault
from p2p.host.host import Host, open_host
from p2p.host.limits import HostLimits
from worlds.eventually import PATIENCE
from worlds.hostile import from_address

DAEMONS = HostLimits(max_connections=64)
"""As ``odfd.state.component_settings`` makes them of the settings that nobody touched."""


@asynccontextmanager
async def attacked(limits: HostLimits = DAEMONS) -> AsyncIterator[Host]:
    with trio.fail_after(PATIENCE):
        async with open_host(b"a" * 32, ["/ip4/0.0.0.0/tcp/0"], limits) as alice:
            yield alice


def port_of(host: Host) -> int:
    return int(host.listening()[0].split("/")[4])


async def meets(host: Host, seed: bytes = b"h" * 32, address: str = "127.0.9.9") -> bool:
    async with open_host(seed) as honest:
        with from_address(address):
            await honest.connect(f"/ip4/127.0.0.1/tcp/{port_of(host)}/p2p/{host.peer_id}")
        return await honest.ping(host.peer_id) >= 0


async def test_sixty_three_silent_connections_keep_nobody_out() -> None:
    """The library refuses the sixty-fifth before our doorway makes room."""
    async with attacked() as alice, AsyncExitStack() as stack:
        for number in range(160):
            stream = await trio.open_tcp_stream(
                "127.0.0.1", port_of(alice), local_address=f"127.0.{number % 5}.{1 + number // 5}"
            )
            stack.push_async_callback(stream.aclose)
        assert await meets(alice)


async def test_keys_that_cost_nothing_take_no_more_places_than_their_addresses() -> None:
    async with attacked() as alice, AsyncExitStack() as stack:
        alice.base.get_network().work.chosen_hosts = frozenset({"127.0.1.1"})  # their handshakes are paid for here
        for number in range(20):
            eve = await stack.enter_async_context(open_host(bytes([number + 1]) * 32))
            with from_address("127.0.1.1"):
                await eve.connect(f"/ip4/127.0.0.1/tcp/{port_of(alice)}/p2p/{alice.peer_id}")
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


async def test_chosen_peers_are_let_in_whoever_else_comes() -> None:
    async with attacked(HostLimits(max_connections=8)) as alice, AsyncExitStack() as stack:
        async with open_host(b"h" * 32) as friend:
            alice.choose([friend.peer_id], ["/ip4/127.0.9.9/tcp/1"])
        for number in range(12):
            eve = await stack.enter_async_context(open_host(bytes([number + 1]) * 32))
            with from_address(f"127.0.{number}.1"), suppress(PeerFault):
                await eve.connect(f"/ip4/127.0.0.1/tcp/{port_of(alice)}/p2p/{alice.peer_id}")
        assert await meets(alice)
