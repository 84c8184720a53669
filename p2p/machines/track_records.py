"""Remembers how each peer served this node in earlier transfers, so that productive peers are asked before slow ones.

A bad record only means that a peer is asked later; it is still asked if no other is left. Bytes count for a peer once
they are verified; a delay counts against it once another peer has delivered in its place. New keys cost nothing, so a
delay by a key without a record counts against all such keys of its address block.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import msgspec
from cachetools import LRUCache

from p2p.ports import PeerId

MOST: Final = 4096
"""Peers remembered, and blocks of addresses; counted separately, so that new keys evict no proven peer."""
MISSES: Final = 2
"""Misses in a row after which a peer's earlier deliveries no longer count."""
FADES: Final = 600.0
"""Seconds after which misses are forgotten."""
SHARE: Final = 0.5
"""Weight of the latest answer time in the average."""
ALIKE: Final = 0.05
"""Seconds up to which peers count as equally fast; above that each doubling counts as one step slower."""


class Misses(msgspec.Struct, frozen=True):
    """The number of misses in a row, and the time of the last one."""

    count: int = 0
    at: float = -math.inf


class TrackRecords:
    """Keeps the records of all peers. ``network_of`` returns the network of a connected peer, empty for any other."""

    def __init__(self, network_of: Callable[[PeerId], str] = lambda _: "") -> None:
        self._network_of = network_of
        self._usual: LRUCache[PeerId, float] = LRUCache(MOST)
        self._misses: LRUCache[str, Misses] = LRUCache(MOST)

    def gave(self, peer: PeerId, seconds: float) -> None:
        """Notes that a peer delivered correct data, ``seconds`` after the question."""
        usual = self._usual.get(peer, seconds)
        self._usual[peer] = usual + SHARE * (seconds - usual)
        self._misses.pop(peer, None)

    def note_missed(self, peer: PeerId, now: float) -> None:
        """Notes that a peer was late with a part that another peer delivered."""
        stranger = peer not in self._usual
        for name in (peer, *([self._network_of(peer)] if stranger else [])):
            if name:
                self._misses[name] = Misses(self._count(name, now) + 1, now)

    def usual(self, peer: PeerId) -> float | None:
        """Returns the seconds that its answers usually take; ``None``: it never gave correct data."""
        return self._usual.get(peer)

    def is_proven(self, peer: PeerId, now: float) -> bool:
        return peer in self._usual and self._count(peer, now) < MISSES

    def misses(self, peer: PeerId, now: float) -> int:
        """Returns the recent misses of a peer; for one without a record, those of its address block too."""
        if self.is_proven(peer, now):
            return 0
        return self._count(peer, now) + (0 if peer in self._usual else self._count(self._network_of(peer), now))

    def slowness(self, peer: PeerId) -> int:
        """Returns how slow a peer usually is, in doublings of ``ALIKE``; 0 for a fast or an unknown peer."""
        return max(0, round(math.log2(max(self._usual.get(peer, ALIKE), ALIKE) / ALIKE)))

    def _count(self, name: str, now: float) -> int:
        found = self._misses.get(name, Misses())
        return found.count if now - found.at < FADES else 0
