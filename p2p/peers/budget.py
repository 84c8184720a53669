"""Token buckets: how much of something one peer may cost us a second.

A bucket is made with a peer's first message and forgotten with the peer; it holds two numbers and never a queue.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar

import msgspec

K = TypeVar("K")
MAX_KEYS: Final = 4096
"""Peers remembered at once; the one longest silent is forgotten first, when its bucket has long been full again."""


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """``per_second`` units for as long as one likes, ``burst`` at once."""

    per_second: float
    burst: float


class Budget(Generic[K]):
    """One bucket per key, full at first."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._levels: OrderedDict[K, tuple[float, float]] = OrderedDict()

    def spend(self, key: K, now: float, amount: float = 1.0) -> bool:
        """Take ``amount`` if it is there. A refusal takes nothing."""
        level, at = self._levels.pop(key, (self._rate.burst, now))
        level = min(self._rate.burst, level + max(0.0, now - at) * self._rate.per_second)
        granted = level >= amount
        self._levels[key] = (level - amount if granted else level, now)
        while len(self._levels) > MAX_KEYS:
            self._levels.popitem(last=False)
        return granted
