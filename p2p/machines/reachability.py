"""Decides from dial-backs at which of its addresses a node is reached from the Internet (AutoNAT v2's client). Sans-IO.

An address counts as reached if servers in two networks reached it and fewer networks failed; as not reached if two
networks failed and fewer reached it. Only the latest report of each network counts, for a limited time. So one server
that lies or fails for an hour decides nothing, and many servers of one operator count once.

Detects that this machine moved to another network, by the addresses of its interfaces. Connections from an address that
is gone are dead, but no packet says so: they would wait for their timeouts. The addresses are compared when they
changed. An address counts as gone if it is missing at two looks in a row, since renewing a lease may remove an address
for a moment.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from p2p.address import PeerAddress
from p2p.ip import Ip

ENOUGH: Final = 2
"""Networks whose reports must agree."""
COUNTS: Final = 3600.0
"""Seconds for which a report counts."""
AGAIN_SURE, AGAIN_UNSURE = 900.0, 60.0
"""Seconds until a server's network is asked again about an address that is decided, and about one that is not."""
MAX_WORDS: Final = 16
"""Networks whose reports are kept for one address; a new one replaces the oldest."""
MAX_ADDRESSES: Final = 8
"""Addresses that are tested; as many are told to others."""


class Reached(enum.Enum):
    UNKNOWN = "unknown"
    YES = "yes"
    NO = "no"


class Reachability:
    """Collects the reports of servers about the addresses of one node."""

    def __init__(self) -> None:
        self._words: dict[PeerAddress, dict[str, tuple[bool, float]]] = {}

    def watch(self, addresses: Iterable[PeerAddress]) -> None:
        """Sets the addresses that the node has now; reports about others are forgotten."""
        kept = list(dict.fromkeys(addresses))[:MAX_ADDRESSES]
        self._words = {each: self._words.get(each, {}) for each in kept}

    @property
    def addresses(self) -> Sequence[PeerAddress]:
        return list(self._words)

    def note_report(self, address: PeerAddress, network: str, now: float, *, is_reached: bool) -> None:
        """Records the report of a server in ``network``."""
        words = self._words.get(address)
        if words is None:
            return
        words.pop(network, None)
        words[network] = (is_reached, now)
        if len(words) > MAX_WORDS:
            del words[next(iter(words))]

    def of(self, address: PeerAddress, now: float) -> Reached:
        yes, no = self.counts(address, now)
        if yes >= ENOUGH and yes > no:
            return Reached.YES
        return Reached.NO if no >= ENOUGH and no > yes else Reached.UNKNOWN

    def counts(self, address: PeerAddress, now: float) -> tuple[int, int]:
        """Returns the number of networks whose servers reached the address, and of those whose servers did not."""
        lately = [said for said, at in self._words.get(address, {}).values() if now - at < COUNTS]
        return sum(lately), len(lately) - sum(lately)

    def whole(self, now: float) -> Reached:
        """Returns YES if any address is reached, ``NO`` if every address is known not to be, else UNKNOWN."""
        found = {self.of(word, now) for word in self._words}
        if Reached.YES in found:
            return Reached.YES
        return Reached.NO if found == {Reached.NO} else Reached.UNKNOWN

    def is_reached_over(self, version: int, now: float) -> bool:
        """Whether an address of this IP version is reached; one of IPv6 is of no use to peers that have only IPv4."""
        ips = ((word, word.ip) for word in self._words)
        return any(ip is not None and ip.version == version and self.of(each, now) is Reached.YES for each, ip in ips)

    def due(self, network: str, now: float) -> list[PeerAddress]:
        """Returns the addresses to ask a server of ``network`` about now, those with the fewest reports first."""
        found = []
        for address, words in self._words.items():
            again = AGAIN_UNSURE if self.of(address, now) is Reached.UNKNOWN else AGAIN_SURE
            if network not in words or now - words[network][1] >= again:
                found.append(address)
        return sorted(found, key=lambda each: sum(self.counts(each, now)))


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
