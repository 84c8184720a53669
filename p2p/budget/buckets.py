"""Implements token buckets, which limit per second what one peer may cost this node, and what this node asks of it.

A bucket is made at a peer's first message and forgotten with the peer; it holds two numbers and never a queue.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar

import msgspec
from cachetools import FIFOCache

K = TypeVar("K")
KEPT: Final = 0.75
"""The part of a peer's limit that we use: requests sent at intervals may arrive together, and clocks differ."""
MAX_KEYS: Final = 4096
"""Peers remembered at once. The one longest silent is forgotten first: its bucket has long been full again."""
LATELY: Final = 60.0
"""Seconds for which a block of addresses has a share after its last message."""
AT_ONCE: Final = 1 / 8
"""The part of the divided half's burst that one block of addresses may use at once; with n blocks, each may use 1/n of
that part. So a hundred blocks that come one after another cannot use up the burst with their first messages."""
LEAST: Final = 2
"""Messages that a block may always send at once: an honest one sometimes sends two in a second."""
LENT: Final = 4
"""Messages that a block may be ahead of its share, taken from the part of the divided half that may be lent."""


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """A rate limit: ``per_second`` units on average, ``burst`` units at once."""

    per_second: float
    burst: float

    def within_limit(self) -> Rate:
        """Returns the lower rate that we keep to where others penalise us beyond this one."""
        return self.times(KEPT)

    def times(self, factor: float) -> Rate:
        return Rate(per_second=self.per_second * factor, burst=self.burst * factor)

    def level(self, before: tuple[float, float] | None, now: float) -> float:
        """Computes the level of a bucket now from its last level and time; ``None``: it has not been used yet."""
        if before is None:
            return self.burst
        level, at = before
        return min(self.burst, level + max(0.0, now - at) * self.per_second)


class Budget(Generic[K]):
    """A set of token buckets with one rate, one for each key, full at first."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._levels: FIFOCache[K, tuple[float, float]] = FIFOCache(MAX_KEYS)

    def spend(self, key: K, now: float, amount: float = 1.0, leaving: float = 0.0) -> bool:
        """Takes ``amount`` if the bucket holds it and ``leaving`` more;
        returns whether it did. A refusal takes nothing."""
        level = self._rate.level(self._levels.get(key), now)
        granted = level >= amount + leaving
        self._levels[key] = (level - amount if granted else level, now)
        return granted

    def reserve(self, key: K, now: float, patience: float) -> float | None:
        """Takes one unit, a future one if the bucket is empty,
        and returns the seconds that the caller must wait for it.

        Returns ``None`` and takes nothing if that is longer than ``patience``, so that callers that give up owe nothing
        more.
        """
        level = self._rate.level(self._levels.get(key), now) - 1
        wait = max(0.0, -level) / self._rate.per_second
        if wait > patience:
            return None
        self._levels[key] = (level, now)
        return wait


class FairShares:
    """Caps the messages of all peers together, and divides half of the cap among blocks of addresses.

    The first half is for whoever comes first. The other half is divided among the blocks of addresses that sent
    something lately, so that a flood from some of them leaves room for the others. A block beyond its share may borrow
    some of that half, but never its lower part, nor what all recent blocks may send at once. Both halves together are
    the cap, however many blocks there are and in whatever order they come. Counts messages, or bytes of messages that
    have at most ``largest`` bytes.
    """

    def __init__(self, rate: Rate, largest: float = 1.0, lately: float = LATELY) -> None:
        """``lately``: seconds for which a block has a share; must be no shorter than a slow rate needs to refill."""
        self._largest = largest
        self._lately = lately
        self._half = rate.times(0.5)
        self._common = Budget[None](self._half)
        self._divided = Budget[None](self._half)
        self._shares: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """The remaining budget of each block, and the time of its last message; the longest silent block first."""

    def passes(self, block: str, now: float, amount: float = 1.0) -> bool:
        """Whether a message from a peer in ``block`` is within the cap; if so, it is charged."""
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
    """Caps the messages that a node forwards,
    so that a flood from elsewhere does not make it look like a flooder itself.

    A node that receives many messages cannot know who began them. So their number is no fault of the peer that passes
    them on, and each node bounds what it passes on instead. For one topic or several. ``rate``: what others accept from
    a peer.
    """

    def __init__(self, rate: Rate, largest: float = 1.0) -> None:
        super().__init__(rate.within_limit(), largest)
