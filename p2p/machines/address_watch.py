"""Detects that this machine moved to another network, by the addresses of its interfaces. Sans-IO.

Connections from an address that is gone are dead, but no packet says so: they would wait for their timeouts. The
addresses are compared when they changed. An address counts as gone if it is missing at two looks in a row, since
renewing a lease may remove an address for a moment.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from p2p.ip import Ip

LOOK: Final = 0.5
"""Seconds between two looks at missing addresses; a node that moved is connected again within five seconds."""


class Moved(NamedTuple):
    came: frozenset[Ip]
    gone: frozenset[Ip]


class AddressWatch:
    """Tracks the addresses of one machine, without loopback and link-local ones."""

    def __init__(self, now: Collection[Ip]) -> None:
        self._known = _usable(now)
        self._missing: frozenset[Ip] = frozenset()

    @property
    def is_settled(self) -> bool:
        """Whether no address was missing at the last look; then the next look can wait until something changes."""
        return not self._missing

    def look(self, now: Collection[Ip]) -> Moved | None:
        """Returns which addresses came and are gone since the last look; ``None`` if none."""
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
