"""Chooses what a round of anti-entropy goes over: all that the peer keeps, or once that costs too much what is wanted.

Wide rounds, over all, tell of datasets that nobody wants here yet. What they cost grows with the network, so their
bytes are so many, of all peers together. Once these are used up, rounds go over datasets of interest alone, until half
of them are back: those cost what grows with this node alone. In memory, and forgotten with the process.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from chain.ids import DatasetId
from p2p.budget.buckets import Rate
from p2p.wire.limits import MAX_DATASETS

WIDE: Final = Rate(per_second=192.0, burst=8 << 20)
"""Bytes of answers in wide rounds, sums apart: where two nodes keep the same, whatever they keep, they cost nothing.
In a large network a newcomer hears 8 MiB, which is half of what it keeps of datasets it does not want."""


class RoundScope:
    def __init__(self) -> None:
        self._left: tuple[float, float] | None = None
        self._is_spent = False
        self._after: DatasetId | None = None
        self._wanted: Sequence[DatasetId] = ()
        self._next = 0

    def is_wide(self, now: float) -> bool:
        """Whether the next round may go over all."""
        if self._is_spent and WIDE.level(self._left, now) >= WIDE.burst / 2:
            self._is_spent = False
        return not self._is_spent

    def cost(self, size: int, now: float) -> None:
        """An answer of ``size`` bytes came in a wide round."""
        left = WIDE.level(self._left, now) - size
        self._left = (left, now)
        self._is_spent = self._is_spent or left <= 0

    def turn(self, interests: Sequence[DatasetId]) -> list[DatasetId]:
        """Of datasets of interest those of the next round: one question's worth, all of them in turn."""
        found = self._wanted = sorted(set(interests))
        first = 0 if self._after is None else bisect_right(found, self._after)
        chosen = [*found[first:], *found[:first]][:MAX_DATASETS]
        self._after = chosen[-1] if chosen else None
        return chosen

    @property
    def wanted(self) -> Sequence[DatasetId]:
        """What was of interest in the last round over that; nothing, while rounds are wide."""
        return self._wanted if self._is_spent else ()

    def next_wanted(self) -> DatasetId | None:
        """One of these, each in turn: whoever serves it is to be asked next."""
        if not self.wanted:
            return None
        self._next = (self._next + 1) % len(self._wanted)
        return self._wanted[self._next]
