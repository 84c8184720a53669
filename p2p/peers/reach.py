"""Decides at which addresses a peer is dialled on the word of others.

Anybody can tell of a peer at any address, also one of this machine or of the network that it stands in, and each dial
knocks there. So others lead only to the Internet, and to networks that a setting names. A node whose owner named
nothing beyond this machine has all its peers there, and dials them there.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

from chain.errors import Invalid
from p2p.address import Address, parse_address
from p2p.ip import Allows, IpNetwork, within

LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
_HERE: Final = ("localhost",)


def networks(texts: Iterable[str]) -> tuple[IpNetwork, ...]:
    """Raises ValueError, saying which is none."""
    return tuple(ipaddress.ip_network(text) for text in texts)


class Reach:
    """What one node may dial. ``inside``: networks that a setting names; ``None``: it does not say."""

    def __init__(self, inside: Iterable[str] | None, bootstrap: Iterable[str]) -> None:
        self._said = None if inside is None else within(networks(inside))
        self._is_here = True
        for address in bootstrap:
            self.name(address)

    def name(self, address: str) -> None:
        """The owner named a peer's address."""
        self._is_here = self._is_here and _is_here(address)

    def allows(self, ours: Iterable[str]) -> Allows:
        """``ours``: addresses at which others reach this node."""
        if self._said is not None:
            return self._said
        return within(networks(LOOPBACK) if self._is_here and all(map(_is_here, ours)) else ())

    def again(self, known: Iterable[str], ours: Iterable[str]) -> Allows:
        """Of a peer met before: where it was met too. What a name stands for may have changed since."""
        met = {address.ip for address in map(_parsed, known) if address is not None}
        others = self.allows(ours)
        return lambda ip: ip in met or others(ip)


def _is_here(text: str) -> bool:
    address = _parsed(text)
    if address is None:
        return False
    return address.host in _HERE if address.ip is None else address.ip.is_loopback


def _parsed(text: str) -> Address | None:
    try:
        return parse_address(text)
    except Invalid:
        return None
