"""Represents how a query maps event time, as monotone functions, which can be inverted.

Time here is Spark's own: whole microseconds since the epoch, UTC, as an int. A function is a tuple of steps applied
left to right, so composition is concatenation. No step ever decreases; this makes ``least`` possible, and lets the
engine treat all kinds of windows alike. Spec: docs/spec/engine-semantics.md#influence.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

MILLISECOND: Final = 1_000
SECOND: Final = 1_000_000
DAY: Final = 86_400 * SECOND
EARLIEST: Final = -(2**62)
LATEST: Final = 2**62
"""The bounds of time in searches: 146,000 years each way, half of what 64 bits of microseconds can hold."""
FURTHEST: Final = 18 * 3600 * SECOND
"""Greatest distance of a zone from UTC that can be written (``java.time.ZoneOffset.MAX``), in microseconds. No place
ever had one beyond 16 hours."""
_BACK: Final = 26 * 3600 * SECOND
"""The most by which a clock was ever put back: a day, where a place changed its side of the date line."""


class MonotoneFunction(Protocol):
    def __call__(self, time: int, /) -> int: ...


@dataclass(frozen=True, slots=True)
class Floor:
    """Rounds down to ``origin`` plus a whole number of ``size``."""

    size: int
    origin: int = 0

    def __call__(self, time: int, /) -> int:
        return time - (time - self.origin) % self.size


@dataclass(frozen=True, slots=True)
class FloorMonths:
    """Rounds down to the first instant of a group of ``months`` calendar months counted from January 1970."""

    months: int

    def __call__(self, time: int, /) -> int:
        month, _ = _civil(time // DAY)
        return _first_day(month - month % self.months) * DAY


@dataclass(frozen=True, slots=True)
class Shift:
    """Adds ``by`` microseconds."""

    by: int

    def __call__(self, time: int, /) -> int:
        return time + self.by


@dataclass(frozen=True, slots=True)
class AddMonths:
    """Midnight of the same day in another month, or of that month's last day. For times of day see ``enclose_months``.

    Not monotone below a day: 30 January 12:00 and 31 January 10:00 become 28 February, in the wrong order.
    """

    months: int

    def __call__(self, time: int, /) -> int:
        month, day = _civil(time // DAY)
        month += self.months
        first = _first_day(month)
        return (first + min(day, _first_day(month + 1) - first - 1)) * DAY


@dataclass(frozen=True, slots=True)
class First:
    """The earliest time whose image under ``of`` is not before the given one: the inverse, rounded up."""

    of: Function

    def __call__(self, time: int, /) -> int:
        return least(self.of, time)


@dataclass(frozen=True, slots=True)
class Last:
    """The latest time whose image under ``of`` is not after the given one: the inverse, rounded down."""

    of: Function

    def __call__(self, time: int, /) -> int:
        return least(self.of, time + 1) - 1


@dataclass(frozen=True, slots=True)
class Least:
    """The least value of several functions."""

    of: tuple[Function, ...]

    def __call__(self, time: int, /) -> int:
        return min(apply(function, time) for function in self.of)


@dataclass(frozen=True, slots=True)
class Greatest:
    """The greatest value of several functions."""

    of: tuple[Function, ...]

    def __call__(self, time: int, /) -> int:
        return max(apply(function, time) for function in self.of)


Function: TypeAlias = tuple[MonotoneFunction, ...]
IDENTITY: Final[Function] = ()


def apply(function: Function, time: int) -> int:
    for step in function:
        time = step(time)
    return time


@functools.lru_cache(maxsize=16_384)
def least(function: Function, value: int) -> int:
    """Returns the earliest time whose image is not before ``value``; ``LATEST`` if there is none."""
    low, high = EARLIEST, LATEST
    while low < high:
        middle = (low + high) // 2
        if apply(function, middle) >= value:
            high = middle
        else:
            low = middle + 1
    return low


def first(function: Function) -> Function:
    """Returns ``time -> the earliest x with function(x) >= time``, step by step from the last, as none decreases."""
    return tuple(part for step in reversed(function) for part in _first(step))


def last(function: Function) -> Function:
    """Returns ``time -> the latest x with function(x) <= time``."""
    return tuple(part for step in reversed(function) for part in _last(step))


def _first(step: MonotoneFunction) -> Function:
    match step:
        case Shift(by):
            return (Shift(-by),)
        case Floor(size, _):
            return (Shift(size - 1), step) if size > 1 else ()
        case FloorMonths(months):
            return Shift(-1), step, AddMonths(months)
    return (First((step,)),)


def _last(step: MonotoneFunction) -> Function:
    match step:
        case Shift(by):
            return (Shift(-by),)
        case Floor(size, _):
            return (step, Shift(size - 1)) if size > 1 else ()
        case FloorMonths(months):
            return step, AddMonths(months), Shift(-1)
    return (Last((step,)),)


def least_of(functions: Iterable[Function]) -> Function:
    distinct = tuple(dict.fromkeys(functions))
    return distinct[0] if len(distinct) == 1 else (Least(distinct),)


def greatest_of(functions: Iterable[Function]) -> Function:
    distinct = tuple(dict.fromkeys(functions))
    return distinct[0] if len(distinct) == 1 else (Greatest(distinct),)


def enclose_months(months: int) -> tuple[Function, Function]:
    """Returns bounds of ``timestamp + INTERVAL n MONTH``, which keeps the time of day and so is only
    monotone by the day."""
    return (Floor(DAY), AddMonths(months)), (Floor(DAY), AddMonths(months), Shift(DAY - 1))


def _civil(days: int) -> tuple[int, int]:
    """Returns (months since January 1970, day of month from zero) of a day since the epoch; proleptic Gregorian, any
    year.

    Counts in years that begin in March, so that the leap day is the last day of its year.
    """
    days += 719_468
    era, of_era = divmod(days, 146_097)
    year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    shifted = (5 * of_year + 2) // 153
    day = of_year - (153 * shifted + 2) // 5
    return (era * 400 + year - 1970) * 12 + shifted + 2, day


def _first_day(month: int) -> int:
    """Returns the day since the epoch on which a month (since January 1970) begins."""
    year, shifted = divmod(month - 2, 12)
    year += 1970
    era, of_era = divmod(year, 400)
    of_year = (153 * shifted + 2) // 5
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


@dataclass(frozen=True, slots=True)
class Zone:
    """One zone's offsets from UTC, exact up to ``until``. Times in microseconds."""

    name: str
    moments: tuple[int, ...] = field(repr=False)
    """Times at which clocks change, ascending."""
    offsets: tuple[int, ...] = field(repr=False)
    """Offsets before the first clock change, and after each."""
    until: int
    edges: tuple[int, ...] = field(init=False, repr=False)
    """Local times from which the later offset applies: the earlier one applies in gaps and overlaps."""

    def __post_init__(self) -> None:
        pairs = zip(self.moments, self.offsets, self.offsets[1:], strict=False)
        object.__setattr__(self, "edges", tuple(moment + max(pair) for moment, *pair in pairs))

    def local(self, time: int) -> int:
        return time + self.offsets[bisect_right(self.moments, time)]

    def instant(self, local: int) -> int:
        """Converts local time to UTC: the earlier of two instants; a time within a gap is shifted by the gap."""
        return local - self.offsets[bisect_right(self.edges, local)]


@dataclass(frozen=True, slots=True)
class LocalFloor:
    """The start of the local day, week, month or year, as ``step`` computes it in local time.

    Local time falls back in autumn, in a few zones over midnight, so a day may begin, end and then go on for a while.
    There the function is enclosed by the nearest two that never decrease; everywhere else it is exact. Rules of zones
    are values, taken from the engine's own database, which is part of its digest. Spec:
    docs/spec/engine-semantics.md#time.
    """

    zone: Zone
    step: MonotoneFunction
    high: bool
    """Which bound is taken where the function would decrease: the greatest value so far, else the least
    still to come."""

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
