"""Notices that this machine moved to another network, by the addresses of its interfaces. Sans-IO.

An address that is gone takes the connections from it along, and no packet tells them: they would wait for their
timeouts. Addresses are looked at when they changed; what is missing at two looks in a row is gone, since a lease that
is renewed may take an address away for a moment.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from p2p.ip import Ip

LOOK: Final = 0.5
"""Seconds between two looks at what is missing: a node that moved is back within five."""


class Moved(NamedTuple):
    came: frozenset[Ip]
    gone: frozenset[Ip]


class AddressWatch:
    """Watches the addresses of one machine. Loopback and link-local addresses are no network."""

    def __init__(self, now: Collection[Ip]) -> None:
        self._known = _usable(now)
        self._missing: frozenset[Ip] = frozenset()

    @property
    def is_settled(self) -> bool:
        """Whether nothing was missing at the last look: then the next can wait until something changes."""
        return not self._missing

    def look(self, now: Collection[Ip]) -> Moved | None:
        """Returns what changed since the last look."""
        found = _usable(now)
        missing = self._known - found
        gone, self._missing = missing & self._missing, missing
        came = found - self._known
        if not gone and not came:
            return None
        self._known = (self._known | came) - gone
        self._missing -= gone
        return Moved(came, gone)


def _usable(found: Collection[Ip]) -> frozenset[Ip]:
    return frozenset(each for each in found if not each.is_loopback and not each.is_link_local)
