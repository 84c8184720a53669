"""Implements token buckets: how much of something one peer may cost us a second, and how much we ask of it.

A bucket is made with a peer's first message and forgotten with the peer; it holds two numbers and never a queue.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar

import msgspec
from cachetools import FIFOCache

K = TypeVar("K")
KEPT: Final = 0.75
"""Of what peers allow, what we use: what was asked in time may arrive at once, and clocks do not run alike."""
MAX_KEYS: Final = 4096
"""Peers remembered at once; the one longest silent is forgotten first, when its bucket has long been full again."""
LATELY: Final = 60.0
"""Seconds for which a block of addresses has a share after it told something."""
AT_ONCE: Final = 1 / 8
"""Part of what the second half lets through at once that a block alone has so; with n of them each has the nth of it.
So a hundred blocks that come one after the other do not use up with their first words what others have a share in."""
LEAST: Final = 2
"""Messages that a block may tell at once however many there are: an honest one tells two in a second now and then."""
LENT: Final = 4
"""Messages more than its share that a block may be ahead, of what the second half holds above what is not lent."""


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """``per_second`` units for as long as one likes, ``burst`` at once."""

    per_second: float
    burst: float

    def kept(self) -> Rate:
        """The rate that we keep below, where others penalise us beyond ``self``."""
        return self.times(KEPT)

    def times(self, factor: float) -> Rate:
        return Rate(per_second=self.per_second * factor, burst=self.burst * factor)

    def level(self, before: tuple[float, float] | None, now: float) -> float:
        """Computes the level of a bucket from its last level and time; ``None``: it was not used yet."""
        if before is None:
            return self.burst
        level, at = before
        return min(self.burst, level + max(0.0, now - at) * self.per_second)


class Budget(Generic[K]):
    """One bucket per key, full at first."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._levels: FIFOCache[K, tuple[float, float]] = FIFOCache(MAX_KEYS)

    def spend(self, key: K, now: float, amount: float = 1.0, leaving: float = 0.0) -> bool:
        """Take ``amount`` if it is there, and ``leaving`` besides. A refusal takes nothing."""
        level = self._rate.level(self._levels.get(key), now)
        granted = level >= amount + leaving
        self._levels[key] = (level - amount if granted else level, now)
        return granted

    def reserve(self, key: K, now: float, patience: float) -> float | None:
        """Takes one unit, a future one if none is there, and returns the seconds until then, which the caller waits.

        ``None`` if that is longer than ``patience``: nothing is taken, so that those who give up owe no more than that.
        """
        level = self._rate.level(self._levels.get(key), now) - 1
        wait = max(0.0, -level) / self._rate.per_second
        if wait > patience:
            return None
        self._levels[key] = (level, now)
        return wait


class FairShares:
    """Caps what others cause in all, and divides a part of it among the blocks of addresses that cause it.

    Half of the cap is for whoever comes first; the other half is divided among the blocks of addresses that told
    something lately, so that a flood from some of them leaves room for what others say. Who is beyond its share is
    lent some of that half, never its lower part nor what all blocks of lately may tell at once. However many blocks
    there are, and in whatever order they come, both halves together are the cap. It counts messages, or bytes of
    messages of ``largest`` at most.
    """

    def __init__(self, rate: Rate, largest: float = 1.0, lately: float = LATELY) -> None:
        """``lately``: seconds for which a block has a share; no shorter than a slow rate takes to be whole again."""
        self._largest = largest
        self._lately = lately
        self._half = rate.times(0.5)
        self._common = Budget[None](self._half)
        self._divided = Budget[None](self._half)
        self._shares: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """The rest of each block's budget, and when it sent something last; the longest silent first."""

    def passes(self, block: str, now: float, amount: float = 1.0) -> bool:
        """Whether a message from a peer in ``block`` is within the cap, of which it is taken then."""
        before = self._shares.pop(block, None)
        while self._shares and next(iter(self._shares.values()))[1] < now - self._lately:
            self._shares.popitem(last=False)
        if len(self._shares) >= MAX_KEYS:
            self._shares.popitem(last=False)
        blocks = len(self._shares) + 1
        share = self._half.times(1 / blocks)
        at_once = max(LEAST * self._largest, share.burst * AT_ONCE)
        left = Rate(per_second=share.per_second, burst=at_once).level(before, now)
        if self._common.spend(None, now, amount):
            self._shares[block] = (left, now)
            return True
        not_lent = 0.0 if left >= amount else max(self._half.burst / 2, blocks * at_once)
        may_owe = left + LENT * self._largest >= amount
        is_passed = may_owe and self._divided.spend(None, now, amount, not_lent)
        self._shares[block] = (left - amount * is_passed, now)
        return is_passed


class Relaying(FairShares):
    """Caps the messages that a node forwards, so that no remote flood makes it seem to flood its peers.

    Whoever hears of much cannot know who began it: volume is no fault of who passes it on, and is bounded there
    instead. For one topic, or some together. ``rate``: what others look at of one peer.
    """

    def __init__(self, rate: Rate, largest: float = 1.0) -> None:
        super().__init__(rate.kept(), largest)
