"""Decides which IP addresses belong to the Internet, and finds IPv4 addresses that are embedded in IPv6 ones.

An IPv6 address may carry an IPv4 one, to which a router or the kernel takes the connection: mapped
(``::ffff:127.0.0.1``), 6to4, Teredo, NAT64. Such an address is judged by what it carries too. RFC 6890, 4291,
3056, 6052.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, TypeAlias

Ip: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Allows: TypeAlias = Callable[[Ip], bool]
"""A predicate: whether an address may be dialled."""

_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
"""The part of IPv6 that is assigned for use on the Internet."""
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_COMPATIBLE: Final = ipaddress.IPv6Network("::/96")
_LAST_32: Final = (1 << 32) - 1
_SERVICES: Final = frozenset(map(ipaddress.ip_address, ("100.100.100.200", "192.0.0.192", "fd00:ec2::254")))
"""Addresses of clouds' own services that are not link-local, as 169.254.169.254 is."""
_LOCAL: Final = (
    ".localhost", ".local", ".intranet", ".internal", ".private", ".corp", ".home", ".lan", ".home.arpa", ".test",
)  # fmt: skip
"""Ends of names that no server of the Internet answers. RFC 6761; 6762, appendix G; 8375."""
_NOT_GIVEN_OUT: Final = (
    ipaddress.ip_network("192.88.99.0/24"),  # the relays of 6to4, wherever the nearest is
    ipaddress.ip_network("3fff::/20"),  # documentation
)


def parse_ip(text: str) -> Ip:
    """Parses an address without its zone; a mapped one becomes the IPv4 address in it. Raises ValueError."""
    found = ipaddress.ip_address(text)
    if isinstance(found, ipaddress.IPv4Address):
        return found
    return found.ipv4_mapped or (found if found.scope_id is None else ipaddress.IPv6Address(int(found)))


def stands_for(ip: Ip) -> Iterator[Ip]:
    """Yields the address itself, and the IPv4 addresses embedded in it."""
    yield ip
    if isinstance(ip, ipaddress.IPv4Address):
        return
    for carried in (ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())):
        if carried is not None:
            yield carried
    if ip in _NAT64 or (ip in _COMPATIBLE and int(ip) > 1):
        yield ipaddress.IPv4Address(int(ip) & _LAST_32)


def is_global(ip: Ip) -> bool:
    """Whether an address, and every address embedded in it, belongs to the Internet."""
    return all(_is_global(each) for each in stands_for(ip))


def anywhere(_: Ip) -> bool:
    """Allows every address: for hosts that the owner of the node named."""
    return True


def is_beyond(ip: Ip) -> bool:
    """Whether an address, and every address embedded in it, is of another machine that is more than a link away.

    Those of a cloud's own services, which give keys to whoever asks from the machine, count as of this link.
    """
    return not any(
        each.is_loopback or each.is_link_local or each.is_unspecified or each.is_multicast or each in _SERVICES
        for each in stands_for(ip)
    )


def is_local_name(host: str) -> bool:
    """Whether a host is an address as such, or a name that has a meaning on this machine or in its network alone."""
    name = host.rstrip(".").lower()
    with suppress(ValueError):
        return bool(parse_ip(name))
    return "." not in name or name.endswith(_LOCAL)


def within(networks: tuple[IpNetwork, ...]) -> Allows:
    """Returns a predicate that allows addresses of the Internet and of ``networks``."""

    def allows(ip: Ip) -> bool:
        return is_global(ip) or any(ip.version == network.version and ip in network for network in networks)

    return allows


def _is_global(ip: Ip) -> bool:
    if ip.is_multicast or any(ip.version == network.version and ip in network for network in _NOT_GIVEN_OUT):
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        if ip in _NAT64:  # its IPv4 address is what counts
            return True
        if ip not in _UNICAST:
            return False
        if ip.sixtofour is not None:  # newer Pythons call all of 6to4 private
            return True
    return ip.is_global
