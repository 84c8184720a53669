"""Implements token buckets: how much of something one peer may cost us a second, and how much we ask of it.

A bucket is made with a peer's first message and forgotten with the peer; it holds two numbers and never a queue.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

import msgspec
from cachetools import FIFOCache

K = TypeVar("K")
KEPT: Final = 0.75
"""Of what peers allow, what we use: what was asked in time may arrive at once, and clocks do not run alike."""
MAX_KEYS: Final = 4096
"""Peers remembered at once; the one longest silent is forgotten first, when its bucket has long been full again."""


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """``per_second`` units for as long as one likes, ``burst`` at once."""

    per_second: float
    burst: float

    def kept(self) -> Rate:
        """What we keep to, of a rate beyond which others blame us."""
        return self.times(KEPT)

    def times(self, factor: float) -> Rate:
        return Rate(per_second=self.per_second * factor, burst=self.burst * factor)

    def level(self, before: tuple[float, float] | None, now: float) -> float:
        """What a bucket holds that was left with so much at such a time, or ``None``: was not used yet."""
        if before is None:
            return self.burst
        level, at = before
        return min(self.burst, level + max(0.0, now - at) * self.per_second)


class Budget(Generic[K]):
    """One bucket per key, full at first."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._levels: FIFOCache[K, tuple[float, float]] = FIFOCache(MAX_KEYS)

    def spend(self, key: K, now: float, amount: float = 1.0) -> bool:
        """Take ``amount`` if it is there. A refusal takes nothing."""
        level = self._rate.level(self._levels.get(key), now)
        granted = level >= amount
        self._levels[key] = (level - amount if granted else level, now)
        return granted

    def reserve(self, key: K, now: float, patience: float) -> float | None:
        """Take one unit, of those to come if none is there; seconds until it is, which whoever reserves waits.

        ``None`` if that is longer than ``patience``: nothing is taken, so that those who give up owe no more than that.
        """
        level = self._rate.level(self._levels.get(key), now) - 1
        wait = max(0.0, -level) / self._rate.per_second
        if wait > patience:
            return None
        self._levels[key] = (level, now)
        return wait
