"""Collects the facts about how others reach this node, and tests how its NAT maps ports.

The result is a value; ``odfd`` formats it for people. Only the two peers of the test are dialled.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import trio

from chain.errors import Fault
from p2p.address import PeerAddress, parse_address
from p2p.driver.autonat import IDENTIFY, AutoNat, read_observed
from p2p.driver.ports import DirectPort
from p2p.ip import is_global
from p2p.machines.reachability import Reached
from p2p.ports import PeerId

PROBES: Final = 2
"""Peers that are asked, from one local port, at which address they see it."""
PATIENCE: Final = 8.0
"""Seconds for each of them."""


class DialBackResult(msgspec.Struct, frozen=True):
    address: str
    reached: Reached
    yes: int
    """Networks whose servers reached the address."""
    no: int
    """Networks whose servers did not reach it."""


class NetFacts(msgspec.Struct, frozen=True, kw_only=True):
    listening: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    """IP addresses of this machine."""
    seen: tuple[str, ...] = ()
    """Addresses at which peers see this node's connections, with the port if it matters."""
    reached: tuple[DialBackResult, ...] = ()
    mapped: tuple[str, ...] = ()
    """Addresses at which two peers saw connections from the same port of this machine."""
    relays_named: int = 0
    relays_used: int = 0
    peers: int = 0
    by_ip6: int = 0
    """Peers that are connected over IPv6."""
    by_relay: int = 0
    """Peers that are connected only through a relay."""
    direct: int = 0
    """Hole punches that succeeded."""
    failed: int = 0
    """Hole punches that failed."""
    clock_behind: float = 0.0
    """Seconds by which the clock of a peer is at least ahead of ours, by when it signed its presence."""


def dialable(told: Iterable[str]) -> list[PeerAddress]:
    """Returns the IPv4 addresses of the Internet among ``told`` that name their peer, one for each host: the NATs of
    homes are of IPv4."""
    found: dict[str, PeerAddress] = {}
    for text in told:
        address = parse_address(text)
        ip = address.ip
        if address.relay is None and address.peer and ip is not None and ip.version == 4 and is_global(ip):
            found.setdefault(address.host, address)
    return list(found.values())


async def mapping(direct: DirectPort, targets: Sequence[PeerAddress]) -> list[PeerAddress]:
    """Dials targets from one local port, and returns the addresses at which they see it,
    from up to ``PROBES`` of them."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    found: list[PeerAddress] = []
    for target in targets:
        if len(found) >= PROBES:
            break
        peer = target.peer
        assert peer is not None, "dialable names it"
        with trio.move_on_after(PATIENCE):
            try:
                async with direct.brief(target, PeerId(peer), port) as open_stream:
                    seen = await read_observed(await open_stream(IDENTIFY), PeerId(peer))
                    found += [seen] if seen is not None else []
            except (Fault, OSError):
                continue
    return found


def dial_back_results(autonat: AutoNat) -> tuple[DialBackResult, ...]:
    now, reach = trio.current_time(), autonat.reachability
    return tuple(
        DialBackResult(address.transport, reach.of(address, now), *reach.counts(address, now))
        for address in reach.addresses
    )
