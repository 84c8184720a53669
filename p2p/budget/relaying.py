"""Caps what a node passes on of what others told it, so that nobody far away can make it seem to flood its neighbours.

Whoever hears of much cannot know who began it: volume is no fault of who passes it on, and is bounded there instead.
Half of the cap is for whoever comes first; the other half is divided among the blocks of addresses that told something
lately, so that a flood from some of them leaves room for what others say. However many blocks there are, and in
whatever order they come, both halves together are the cap. Sans-IO.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from p2p.budget.buckets import Budget, Rate

LATELY: Final = 60.0
"""Seconds for which a block of addresses has a share after it told something."""
AT_ONCE: Final = 1 / 8
"""Part of what the second half lets through at once that a block alone has so; with n of them each has the nth of it.
So a hundred blocks that come one after the other do not use up with their first words what others have a share in."""
LEAST: Final = 2
"""Messages that a block may tell at once however many there are: an honest one tells two in a second now and then."""


class Relaying:
    """One topic, or some topics together. ``rate``: what others look at of one peer.

    It counts messages, or bytes of messages of ``largest`` at most.
    """

    def __init__(self, rate: Rate, largest: float = 1.0) -> None:
        self._largest = largest
        self._half = rate.kept().times(0.5)
        self._common = Budget[None](self._half)
        self._divided = Budget[None](self._half)
        self._shares: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """What each block has left, and when it told something last; the longest silent first."""

    def passes(self, block: str, now: float, amount: float = 1.0) -> bool:
        """Whether a message that a peer in ``block`` told goes on to others."""
        before = self._shares.pop(block, None)
        while self._shares and next(iter(self._shares.values()))[1] < now - LATELY:
            self._shares.popitem(last=False)
        share = self._half.times(1 / (len(self._shares) + 1))
        at_once = max(LEAST * self._largest, share.burst * AT_ONCE)
        left = Rate(per_second=share.per_second, burst=at_once).level(before, now)
        is_first = self._common.spend(None, now, amount)
        is_shared = not is_first and left >= amount and self._divided.spend(None, now, amount)
        self._shares[block] = (left - amount * is_shared, now)
        return is_first or is_shared
