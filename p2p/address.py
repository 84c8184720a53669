"""Parses and writes the multiaddresses that this host can use: TCP over IPv4, IPv6 or a DNS name.

``/ip4/203.0.113.7/tcp/4150/p2p/12D3KooW…``, ``/dns4/node.example/tcp/4150/p2p/…``, ``/ip4/0.0.0.0/tcp/4150`` to listen;
``/ip4/203.0.113.7/tcp/4150/p2p/RELAY/p2p-circuit/p2p/12D3KooW…`` through a relay, at the relay's host and port.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import msgspec

from chain.errors import Invalid
from p2p.errors import BadAddress
from p2p.identity import parse_peer
from p2p.ip import Ip, parse_ip
from p2p.ports import PeerId

MAX_ADDRESS: Final = 400
"""Longest address that is parsed, in characters: a DNS name of 253 characters and a peer id fit."""
_NAME: Final = re.compile(
    r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?(?:\.[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?)*"
)
CIRCUIT: Final = "/p2p-circuit"
_HINT: Final = "it looks like /ip4/203.0.113.7/tcp/4150/p2p/12D3KooW…"


class PeerAddress(msgspec.Struct, frozen=True):
    network: str
    """``ip4``, ``ip6``, ``dns``, ``dns4`` or ``dns6``."""
    host: str
    port: int
    peer: PeerId | None = None
    relay: PeerId | None = None
    """The relay at that host and port, if a circuit leads from it to the peer."""

    def __str__(self) -> str:
        return self.transport + (f"/p2p/{self.peer}" if self.peer else "")

    @property
    def ip(self) -> Ip | None:
        """The IP address; ``None`` for a name, which is not resolved here."""
        return _literal(self.host) if self.network in ("ip4", "ip6") else None

    def at(self, ip: Ip) -> PeerAddress:
        """Returns this address with ``ip``, one of the addresses of its host, in place of the host."""
        return PeerAddress(f"ip{ip.version}", str(ip), self.port, self.peer, self.relay)

    @property
    def of_relay(self) -> PeerAddress:
        """Returns the address of a circuit's relay."""
        return PeerAddress(self.network, self.host, self.port, self.relay)

    @property
    def transport(self) -> str:
        by_relay = f"/p2p/{self.relay}{CIRCUIT}" if self.relay else ""
        return f"/{self.network}/{self.host}/tcp/{self.port}{by_relay}"


@lru_cache(maxsize=4096)
def parse_address(text: str) -> PeerAddress:
    """Parses a multiaddress. Raises BadAddress, which says which part is wrong."""
    if len(text) > MAX_ADDRESS:
        raise BadAddress(f"an address of {len(text)} characters", rule="multiaddr", hint=_HINT)
    parts = text.split("/")
    relay = None
    if "p2p-circuit" in parts:
        if parts.index("p2p-circuit") != 7 or parts[5] != "p2p":
            raise BadAddress(
                f"{text[:120]!r} does not name one relay and where it is", rule="multiaddr-relay",
                hint="it looks like /ip4/203.0.113.7/tcp/4150/p2p/RELAY/p2p-circuit/p2p/PEER",
            )  # fmt: skip
        relay = _checked_peer(text, parts[6])
        del parts[5:8]
    if len(parts) not in (5, 7) or parts[0] or parts[3] != "tcp":
        raise _bad(text, "expected /ip4|ip6|dns…/host/tcp/port, and /p2p/id of the peer")
    network, host, port = parts[1], parts[2], parts[4]
    if not port.isascii() or not port.isdecimal() or int(port) > 65_535:
        raise _bad(text, f"{port!r} is not a port")
    peer = None
    if len(parts) == 7:
        if parts[5] != "p2p":
            raise _bad(text, f"/{parts[5]} is not supported after the port")
        peer = _checked_peer(text, parts[6])
    if relay is not None and relay == peer:
        raise _bad(text, "a relay leads to others, not to itself")
    return PeerAddress(network, _checked_host(text, network, host), int(port), peer, relay)


def by_peer(addresses: Iterable[str]) -> list[tuple[str, ...]]:
    """Groups multiaddresses by the peer that they lead to, so that each peer is dialled once, by all of its addresses.

    Nothing is parsed: an address that names no peer is a group of its own.
    """
    groups: dict[str, list[str]] = {}
    for address in dict.fromkeys(addresses):
        groups.setdefault(address.rpartition("/p2p/")[2], []).append(address)
    return [tuple(group) for group in groups.values()]


@lru_cache(maxsize=4096)
def network_of(host: str) -> str:
    """Returns the block of addresses that one operator is likely to hold entirely: a /16 of IPv4, a /32 of IPv6.

    Empty if ``host`` is no IP address. Spec: docs/spec/trust.md#first-contact.
    """
    return _block(host, 16, 32)


@lru_cache(maxsize=4096)
def prefix_of(host: str) -> str:
    """Returns the smallest block of addresses that is assigned:
    a /24 of IPv4, a /48 of IPv6; empty if no IP address."""
    return _block(host, 24, 48)


@lru_cache(maxsize=4096)
def line_of(host: str) -> str:
    """Returns the block that one subscriber usually gets: an address of IPv4, a /56 of IPv6; empty if no IP address."""
    return _block(host, 32, 56)


@lru_cache(maxsize=4096)
def _literal(host: str) -> Ip:
    return parse_ip(host)


def _block(host: str, of_ip4: int, of_ip6: int) -> str:
    try:
        address = parse_ip(host)
    except ValueError:
        return ""
    length = of_ip4 if address.version == 4 else of_ip6
    return str(ipaddress.ip_network((address, length), strict=False))


def _checked_peer(text: str, peer: str) -> PeerId:
    try:
        return parse_peer(peer)
    except Invalid as error:
        raise _bad(text, error.message) from error


def _checked_host(text: str, network: str, host: str) -> str:
    if "%" in host:
        raise _bad(text, "an address with a zone is good on one link of one machine alone")
    try:
        if network == "ip4":
            return str(ipaddress.IPv4Address(host))
        if network == "ip6":
            return str(ipaddress.IPv6Address(host))
    except ValueError as error:
        raise _bad(text, f"{host!r} is not an {network} address") from error
    if network not in ("dns", "dns4", "dns6"):
        raise _bad(text, f"/{network} is not supported; only TCP over ip4, ip6 and dns names is")
    if len(host) > 253 or not _NAME.fullmatch(host):
        raise _bad(text, f"{host!r} is not a host name")
    return host


def listen_address(text: str) -> PeerAddress:
    """Parses an address to listen at: TCP at an IP address of this machine. Raises BadAddress."""
    parsed = parse_address(text)
    if parsed.ip is None or parsed.relay is not None:
        raise BadAddress(f"{text!r}: listen on an IP address", rule="multiaddr", hint="like /ip4/0.0.0.0/tcp/4150")
    return parsed


def announced_address(text: str) -> PeerAddress:
    """Parses an address to announce. Raises BadAddress, also for one by way of a relay."""
    parsed = parse_address(text)
    if parsed.relay is not None:
        hint = "name the relay in p2p.relays: the address is announced while it holds a reservation"
        raise BadAddress(f"{text!r} goes by way of a relay", rule="multiaddr-relay", hint=hint)
    return parsed


def _bad(text: str, reason: str) -> BadAddress:
    return BadAddress(f"{text[:120]!r} is not an address of a node: {reason}", rule="multiaddr", hint=_HINT)
