"""Remembers how each peer served this node in earlier transfers, so that productive peers are asked before slow ones.

A record is no accusation: a peer that stalls is asked later, and still asked where no other is left. Bytes count for a
peer once they are verified; a wait counts against it once another peer has delivered in its place. New keys cost
nothing, so a wait on a key without a record counts against all such keys of its address block.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import msgspec
from cachetools import LRUCache

from p2p.ports import PeerId

MOST: Final = 4096
"""Remembered peers, and blocks of addresses, limited separately, so that new ones evict no proven peer."""
MISSES: Final = 2
"""Misses in a row after which what a peer gave before says nothing of it."""
FADES: Final = 600.0
"""Seconds after which misses are forgotten."""
SHARE: Final = 0.5
"""Weight of the latest answer in what is usual."""
ALIKE: Final = 0.05
"""Seconds up to which peers are equally quick; beyond that each doubling makes a difference."""


class Misses(msgspec.Struct, frozen=True):
    """So many in a row, the last one ``at`` that time."""

    count: int = 0
    at: float = -math.inf


class TrackRecords:
    """Records of all peers. ``network_of`` gives the network of a connected peer, and none of any other."""

    def __init__(self, network_of: Callable[[PeerId], str] = lambda _: "") -> None:
        self._network_of = network_of
        self._usual: LRUCache[PeerId, float] = LRUCache(MOST)
        self._misses: LRUCache[str, Misses] = LRUCache(MOST)

    def gave(self, peer: PeerId, seconds: float) -> None:
        """Notes that a peer delivered correct data, with an answer time."""
        usual = self._usual.get(peer, seconds)
        self._usual[peer] = usual + SHARE * (seconds - usual)
        self._misses.pop(peer, None)

    def missed(self, peer: PeerId, now: float) -> None:
        """Notes that a peer was late with what another one delivered."""
        stranger = peer not in self._usual
        for name in (peer, *([self._network_of(peer)] if stranger else [])):
            if name:
                self._misses[name] = Misses(self._count(name, now) + 1, now)

    def usual(self, peer: PeerId) -> float | None:
        """Seconds that its answers take; ``None``: it never gave anything that proved true."""
        return self._usual.get(peer)

    def is_proven(self, peer: PeerId, now: float) -> bool:
        return peer in self._usual and self._count(peer, now) < MISSES

    def misses(self, peer: PeerId, now: float) -> int:
        """Misses of a peer; for an unproven one, those of its address block too."""
        if self.is_proven(peer, now):
            return 0
        return self._count(peer, now) + (0 if peer in self._usual else self._count(self._network_of(peer), now))

    def slowness(self, peer: PeerId) -> int:
        """0 for a quick peer, and for an unknown one."""
        return max(0, round(math.log2(max(self._usual.get(peer, ALIKE), ALIKE) / ALIKE)))

    def _count(self, name: str, now: float) -> int:
        found = self._misses.get(name, Misses())
        return found.count if now - found.at < FADES else 0
