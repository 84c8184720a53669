"""Caps what a node passes on of what others told it, so that nobody far away can make it seem to flood its neighbours.

Whoever hears of much cannot know who began it: volume is no fault of who passes it on, and is bounded there instead.
Half of the cap is for whoever comes first; the other half is divided among the blocks of addresses that told something
lately, so that a flood from some of them leaves room for what others say. Sans-IO.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from p2p.budget.buckets import Budget, Rate

LATELY: Final = 60.0
"""Seconds for which a block of addresses has a share after it told something."""


class Relaying:
    """One topic, or some topics together. ``rate``: what others look at of one peer."""

    def __init__(self, rate: Rate) -> None:
        half = rate.kept().times(0.5)
        self._most = half.burst
        self._common = Budget[None](half)
        self._shares = Budget[str](half)
        self._told: OrderedDict[str, float] = OrderedDict()
        """When each block told something last, the longest silent first."""

    def passes(self, block: str, now: float) -> bool:
        """Whether one message that a peer in ``block`` told goes on to others."""
        self._told[block] = now
        self._told.move_to_end(block)
        while self._told[oldest := next(iter(self._told))] < now - LATELY:
            del self._told[oldest]
        return self._common.spend(None, now) or self._shares.spend(block, now, min(len(self._told), self._most))
