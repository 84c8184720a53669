"""Computes local calendars: the start of a local day, week, month or year, as a function that never decreases.

Local time falls back in autumn, and in a few zones over midnight, so a day may begin, end and go on for a minute: there
the function is enclosed by the nearest two that never decrease, everywhere else it is exact. Rules of zones are values,
taken from the engine's own database, which is part of its digest. Pure. Spec: docs/spec/engine-semantics.md#time.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Final

from engines.spark.analysis.monotone import SECOND, MonotoneFunction

FURTHEST: Final = 16 * 3600 * SECOND
"""No zone was ever further from UTC than local mean time at the date line."""
_BACK: Final = 26 * 3600 * SECOND
"""No clock was ever put back by more: by a day, where a place changed its side of the date line."""


@dataclass(frozen=True, slots=True)
class Zone:
    """Offsets from UTC of one zone, exact up to ``until``. Times in microseconds."""

    name: str
    moments: tuple[int, ...] = field(repr=False)
    """When clocks are changed, ascending."""
    offsets: tuple[int, ...] = field(repr=False)
    """Before the first moment, and after each."""
    until: int
    edges: tuple[int, ...] = field(init=False, repr=False)
    """Local times from which the later offset is taken for local time: the earlier one holds in gaps and overlaps."""

    def __post_init__(self) -> None:
        pairs = zip(self.moments, self.offsets, self.offsets[1:], strict=False)
        object.__setattr__(self, "edges", tuple(moment + max(pair) for moment, *pair in pairs))

    def local(self, time: int) -> int:
        return time + self.offsets[bisect_right(self.moments, time)]

    def instant(self, local: int) -> int:
        """When clocks show it: the first time of two, and as far after a gap as the gap would have had it."""
        return local - self.offsets[bisect_right(self.edges, local)]


@dataclass(frozen=True, slots=True)
class LocalFloor:
    """The start of the local day, week, month or year, which ``step`` gives of local time."""

    zone: Zone
    step: MonotoneFunction
    high: bool
    """Where it would decrease: the greatest so far; else the least still to come."""

    def __call__(self, time: int, /) -> int:
        zone = self.zone
        if time >= zone.until:
            enclosed = self.step(time + (FURTHEST if self.high else -FURTHEST))
            return max(self(zone.until - 1), enclosed + (FURTHEST if self.high else -FURTHEST))
        begin, end = (time - _BACK, time) if self.high else (time, time + _BACK)
        near = zone.moments[bisect_right(zone.moments, begin) : bisect_right(zone.moments, end)]
        times = [time, *(moment - self.high for moment in near if moment - self.high < zone.until)]
        found = [zone.instant(self.step(zone.local(each))) for each in times]
        return max(found) if self.high else min(found)
