"""Nodes that know no address find each other by multicast on the loopback, and are not led astray there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
import trio

from chain.statements.keys import SigningKey
from p2p.address import parse_address
from p2p.driver.lan import Group4, Group6
from p2p.driver.network import open_network
from p2p.driver.replication import ReplicationDriver
from p2p.driver.settings import ReplicationSettings
from p2p.host.host import open_host
from p2p.ports import PeerId
from p2p.wire.lan import encode_presence, encode_question
from worlds.eventually import PATIENCE
from worlds.lan import NoLan, open_lan

pytestmark = pytest.mark.e2e
LIAR = PeerId("12D3KooWM57jXdhtZT4ZEcdNbTo5JiKUxMZHg143ugaEYH8CNUMh")
IPV6 = "fd00::7"
NOW = 1_700_000_000_000_000_000


class Nothing:
    """A library and a board with nothing in them."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_more: [] if name in ("datasets", "refs") else 0


@pytest.fixture
def port() -> int:
    """That nobody on this machine uses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@asynccontextmanager
async def node(
    number: int, port: int | None, network: str = "home", listen: str = "/ip4/127.0.0.1/tcp/0"
) -> AsyncIterator[ReplicationDriver]:
    seed = bytes([number]) * 32
    settings = ReplicationSettings(network=network, lan=port, degree=0)
    async with open_host(seed, [listen]) as host, open_network(host) as opened:
        board: Any = Nothing()
        driver = ReplicationDriver(opened, board, board, settings, Random(number), lambda: NOW, SigningKey(seed))
        async with trio.open_nursery() as nursery:
            await nursery.start(driver.run)
            yield driver
            nursery.cancel_scope.cancel()


def connected(driver: ReplicationDriver) -> set[PeerId]:
    return {view.peer for view in driver.peers() if view.connected}


def say(port: int, *packets: bytes) -> None:
    """From the loopback, as somebody on the LAN."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as speaker:
        speaker.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        for packet in packets:
            speaker.sendto(packet, (Group4.address, port))


async def until(come_true: Callable[[], bool], again: Callable[[], None] = lambda: None) -> None:
    while not come_true():
        again()
        await trio.sleep(0.05)


async def test_peers_of_one_network_meet_and_those_of_another_do_not(port: int) -> None:
    with trio.fail_after(PATIENCE):
        async with (
            node(31, port) as first, node(32, port, "office") as other, node(33, None) as silent,
            node(34, port) as second,
        ):  # fmt: skip
            await until(lambda: second.peer_id in connected(first))
            assert connected(second) == {first.peer_id}
            assert connected(other) == connected(silent) == set()


async def test_noise_floods_and_lies_lead_to_nobody(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-REACH-01: false data and floods by multicast on the LAN.

    Defence: off by default; an address counts only if it is the packet's source; ten packets a second of one address,
    four dials at a time.

    The liar names a third, then the listener itself, then a place where nobody is, hundreds of times.
    """
    dialled: list[str] = []
    with trio.fail_after(PATIENCE):
        async with node(41, port) as first:
            assert first._lan is not None
            visit = first._lan._visit

            async def watched(peer: PeerId, addresses: Any) -> object:
                dialled.extend(addresses)
                return await visit(peer, addresses)

            monkeypatch.setattr(first._lan, "_visit", watched)
            own = [parse_address(each) for each in first.addresses()]
            third, closed = (parse_address(text) for text in ("/ip4/192.168.7.7/tcp/9", "/ip4/127.0.0.1/tcp/1"))
            lies = [encode_presence(LIAR, "home", [third]), encode_presence(first.peer_id, "home", own)]
            noise = [b"", b"\xff" * 300, bytes(8999), encode_question()]
            last = encode_presence(LIAR, "home", [closed])
            await until(lambda: bool(dialled), lambda: say(port, *noise, *lies, last))
            say(port, *[last] * 300)
            async with node(42, port) as second:
                await until(lambda: second.peer_id in connected(first))
                ours = {f"{one.transport}/p2p/{second.peer_id}" for one in map(parse_address, second.addresses())}
            assert set(dialled) - ours == {f"{closed.transport}/p2p/{LIAR}"}


async def test_a_machine_without_multicast_does_without(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Group4, "address", "203.0.113.1")
    monkeypatch.setattr(Group6, "address", "2001:db8::1")
    with trio.fail_after(PATIENCE):
        async with node(51, port) as first, node(52, None) as second:
            await first.connect(second.addresses()[0])
            assert connected(first) == {second.peer_id}


def test_peers_that_have_ipv6_alone_meet() -> None:
    """Attack T-REACH-01: unicast mDNS over IPv6 from outside of the link.

    Defence: only packets to the group of the link count.

    In a namespace with a device that carries multicast: the loopback does not, with IPv6.
    """
    try:
        with open_lan(1, seed=1) as switch:
            (place,) = switch.places
            words = f"ip -6 addr add {IPV6}/64 dev lan0 nodad".split()
            if subprocess.run([*place.entering, *words], capture_output=True, check=False).returncode:
                pytest.skip("no IPv6 here")
            inside = [*place.entering, sys.executable, __file__]
            met = subprocess.run(inside, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, timeout=PATIENCE)
            assert met.returncode == 0
    except NoLan as reason:
        pytest.skip(f"no network namespaces here: {reason}")


async def meet_by_ipv6() -> None:
    """What a liar says to this machine alone, or of a third, leads nowhere; what it says of itself to all does."""
    listen, dialled = f"/ip6/{IPV6}/tcp/0", list[str]()
    alone, third, itself = (
        encode_presence(LIAR, "home", [parse_address(text)])
        for text in (f"/ip6/{IPV6}/tcp/1", "/ip6/fd00::9/tcp/9", f"/ip6/{IPV6}/tcp/2")
    )

    def lie() -> None:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as speaker:
            speaker.bind((IPV6, 0))
            speaker.sendto(alone, (IPV6, 5353))
            for packet in (third, itself):
                speaker.sendto(packet, (Group6.address, 5353, 0, socket.if_nametoindex("lan0")))

    with trio.fail_after(PATIENCE):
        async with node(61, 5353, listen=listen) as first:
            assert first._lan is not None
            visit = first._lan._visit

            async def watched(peer: PeerId, addresses: Any) -> object:
                dialled.extend(addresses)
                return await visit(peer, addresses)

            first._lan._visit = watched
            await until(lambda: bool(dialled), lie)
            assert set(dialled) == {f"/ip6/{IPV6}/tcp/2/p2p/{LIAR}"}
            async with node(62, 5353, listen=listen) as second, node(63, 5353, "office", listen) as other:
                await until(lambda: second.peer_id in connected(first))
                assert connected(second) == {first.peer_id}
                assert connected(other) == set()


if __name__ == "__main__":
    trio.run(meet_by_ipv6)
