"""Tracks which parts of an interval are still to be requested: disjoint spans, lowest first."""

from __future__ import annotations

import heapq
from typing import TypeAlias

Interval: TypeAlias = tuple[int, int]
"""``(start, stop)``: units ``start <= n < stop``."""


class Intervals:
    """Keeps the spans that are still to be requested; spans are taken from the low end and may be put back."""

    def __init__(self, start: int, stop: int) -> None:
        self._spans: list[Interval] = [(start, stop)] if start < stop else []

    def __bool__(self) -> bool:
        return bool(self._spans)

    @property
    def first(self) -> int:
        """Returns the lowest unit to be requested. There must be one."""
        return self._spans[0][0]

    def add(self, span: Interval) -> None:
        heapq.heappush(self._spans, span)

    def take(self, units: int) -> Interval:
        """Removes and returns the lowest span, or its first ``units`` units. There must be one."""
        start, stop = heapq.heappop(self._spans)
        if stop - start > units:
            heapq.heappush(self._spans, (start + units, stop))
            stop = start + units
        return start, stop
