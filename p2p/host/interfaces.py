"""Determines the addresses at which others reach this node: the configured ones, else those of its interfaces.

``0.0.0.0`` can be listened on but not dialled, so it is replaced by the addresses of the interfaces that are up.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

import ifaddr
import trio

from p2p.address import PeerAddress, parse_address
from p2p.ip import Ip, parse_ip

_GROUPS: Final = 0x10 | 0x100
"""The multicast groups RTMGRP_IPV4_IFADDR and RTMGRP_IPV6_IFADDR of rtnetlink(7)."""
_POLL: Final = 0.5
"""Seconds between checks on systems whose kernel does not report changes."""
_MESSAGE: Final = 65_536


async def other_than(known: Collection[Ip]) -> None:
    """Waits until the interfaces have other addresses than ``known``.
    Linux reports changes; elsewhere they are polled."""
    before = frozenset(known)
    with _news() as news:
        while frozenset(local_ips()) == before:
            if news is None:
                await trio.sleep(_POLL)
                continue
            await trio.lowlevel.wait_readable(news.fileno())
            with suppress(OSError):  # also of a queue that overflowed: the addresses are looked at in any case
                while news.recv(_MESSAGE):
                    pass


@contextmanager
def _news() -> Iterator[socket.socket | None]:
    """Yields a socket that is readable after an address came or went; ``None`` if the kernel has none."""
    with ExitStack() as stack:
        news: socket.socket | None = None
        with suppress(AttributeError, OSError):
            kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK
            opened = stack.enter_context(socket.socket(socket.AF_NETLINK, kind, socket.NETLINK_ROUTE))
            opened.bind((0, _GROUPS))
            news = opened
        yield news


def local_ips() -> list[Ip]:
    found = []
    for adapter in ifaddr.get_adapters():
        for one in adapter.ips:
            text = one.ip if isinstance(one.ip, str) else one.ip[0]
            found.append(parse_ip(text))
    return found


def can_listen(address: str) -> bool:
    """Whether this machine has the IP version of an address: some have no IPv6."""
    if parse_address(address).network != "ip6":
        return True
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::", 0))
    except OSError:
        return False
    return True


def is_free(address: PeerAddress) -> bool:
    """Whether a host could listen at an address now: no other program listens at its port."""
    family = socket.AF_INET6 if address.network == "ip6" else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind((address.host, address.port))
            probe.listen()
        except OSError:
            return False
    return True


def index_of(ip: str) -> int:
    """Returns the number of the interface that has an address; 0, which means any, if none has."""
    for adapter in ifaddr.get_adapters():
        for one in adapter.ips:
            if ip == (one.ip if isinstance(one.ip, str) else one.ip[0]):
                return adapter.index or 0
    return 0


def reachable_at(
    listening: Iterable[str], announce: Sequence[str], ips: Callable[[], Sequence[Ip]] = local_ips
) -> list[PeerAddress]:
    """Lists the addresses to announce, best first. ``announce``, if given, replaces all that is found.

    Loopback is announced only if there is nothing else: then only this machine can reach us.
    """
    if announce:
        return [_alone(parse_address(text)) for text in announce]
    found = [one for text in listening for one in _expand(_alone(parse_address(text)), ips)]
    outside = [one for one in found if not ipaddress.ip_address(one.host).is_loopback]
    return sorted(dict.fromkeys(outside or found), key=lambda one: ipaddress.ip_address(one.host).is_private)


def _expand(address: PeerAddress, ips: Callable[[], Sequence[Ip]]) -> list[PeerAddress]:
    here = ipaddress.ip_address(address.host)
    if not here.is_unspecified:
        return [address]
    usable = [ip for ip in ips() if ip.version == here.version and not ip.is_link_local and not ip.is_multicast]
    return [PeerAddress(address.network, str(ip), address.port) for ip in usable]


def _alone(address: PeerAddress) -> PeerAddress:
    return PeerAddress(address.network, address.host, address.port)
