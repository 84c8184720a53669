"""Judges from dial-backs which addresses of a node are reached from the Internet (AutoNAT v2's client). Sans-IO.

An address counts as reached when servers in two networks reached it and fewer failed; as not reached when servers in
two networks failed and fewer reached it. Of each network the latest word counts, for a while. So neither a server that
lies nor one that has a bad hour decides, and servers of one operator are one.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Final

from p2p.address import Address

ENOUGH: Final = 2
"""Networks whose words decide."""
COUNTS: Final = 3600.0
"""Seconds that a word counts."""
AGAIN_SURE, AGAIN_UNSURE = 900.0, 60.0
"""Seconds until a server's network is asked again, where the others have decided and where not."""
MAX_WORDS: Final = 16
"""Networks whose words are kept of one address; the oldest makes room."""
MAX_ADDRESSES: Final = 8
"""Addresses that are looked at; as many are told to others."""


class Reached(enum.Enum):
    UNKNOWN = "unknown"
    YES = "yes"
    NO = "no"


class Reachability:
    """The knowledge of one node's addresses."""

    def __init__(self) -> None:
        self._words: dict[Address, dict[str, tuple[bool, float]]] = {}

    def watch(self, addresses: Iterable[Address]) -> None:
        """These are its addresses now; words of others are forgotten."""
        kept = list(dict.fromkeys(addresses))[:MAX_ADDRESSES]
        self._words = {each: self._words.get(each, {}) for each in kept}

    @property
    def addresses(self) -> Sequence[Address]:
        return list(self._words)

    def heard(self, address: Address, network: str, now: float, *, is_reached: bool) -> None:
        """The word of a server in ``network``."""
        words = self._words.get(address)
        if words is None:
            return
        words.pop(network, None)
        words[network] = (is_reached, now)
        if len(words) > MAX_WORDS:
            del words[next(iter(words))]

    def of(self, address: Address, now: float) -> Reached:
        yes, no = self.counts(address, now)
        if yes >= ENOUGH and yes > no:
            return Reached.YES
        return Reached.NO if no >= ENOUGH and no > yes else Reached.UNKNOWN

    def counts(self, address: Address, now: float) -> tuple[int, int]:
        """Networks whose servers reached it, and those whose did not."""
        lately = [said for said, at in self._words.get(address, {}).values() if now - at < COUNTS]
        return sum(lately), len(lately) - sum(lately)

    def whole(self, now: float) -> Reached:
        """Whether any address is reached; ``NO`` where it is known of each that it is not."""
        found = {self.of(each, now) for each in self._words}
        if Reached.YES in found:
            return Reached.YES
        return Reached.NO if found == {Reached.NO} else Reached.UNKNOWN

    def due(self, network: str, now: float) -> list[Address]:
        """Chooses what to ask a server of a network, the least known first."""
        found = []
        for address, words in self._words.items():
            again = AGAIN_UNSURE if self.of(address, now) is Reached.UNKNOWN else AGAIN_SURE
            if network not in words or now - words[network][1] >= again:
                found.append(address)
        return sorted(found, key=lambda each: sum(self.counts(each, now)))
