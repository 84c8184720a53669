"""Defines points in time as the format keeps them: whole nanoseconds since the epoch, always UTC.

Python's datetime stops at microseconds and at the years 1 and 9999; honest blocks carry nanoseconds, and event times of
history and prehistory, so an instant is an int. The calendar is the Gregorian one in both directions, with a year 0.
"""

from __future__ import annotations

import functools
import re
from typing import Final, NewType

from chain.errors import Invalid

Instant = NewType("Instant", int)
"""Nanoseconds since 1970-01-01T00:00:00Z; may be negative."""

SECOND: Final = 1_000_000_000
MILLISECOND: Final = 1_000_000
MICROSECOND: Final = 1_000
FIRST_YEAR: Final = -262_143
LAST_YEAR: Final = 262_142
"""The last year that the reference can hold; FIRST_YEAR is the first."""
DAY: Final = 86_400
"""Seconds of a day."""
_EPOCH: Final = 719_163
"""Days from the first of January of the year 1, which is day 1, to that of 1970."""
_CYCLE_YEARS: Final = 400
_CYCLE_DAYS: Final = 146_097
"""Days of a cycle of 400 years, after which the calendar repeats, to the day of the week."""
_RFC3339: Final = re.compile(
    r"(\d{4}|[+-]\d{4,6})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9})\d*)?(?:([Zz])|([+-])(\d\d):(\d\d))\Z",
    re.ASCII,
)


def from_millis(millis: int) -> Instant:
    return Instant(millis * MILLISECOND)


def to_millis(instant: Instant) -> int:
    """Returns whole milliseconds, rounded towards the past."""
    return instant // MILLISECOND


def day_of(year: int, month: int, day: int) -> int:
    """Returns the number of days since the epoch. Raises ValueError when there is no such day."""
    import datetime as dt  # imported here, as odfctl often starts without showing times

    cycle, within = divmod(year - 1, _CYCLE_YEARS)
    return cycle * _CYCLE_DAYS + dt.date(within + 1, month, day).toordinal() - _EPOCH


def date_of(day: int) -> tuple[int, int, int]:
    """Returns year, month and day of the month of a day counted from the epoch."""
    import datetime as dt

    cycle, within = divmod(day + _EPOCH - 1, _CYCLE_DAYS)
    date = dt.date.fromordinal(within + 1)
    return cycle * _CYCLE_YEARS + date.year, date.month, date.day


def parse(text: str) -> Instant:
    """Parses RFC 3339 with any offset; digits of the fraction beyond nine are ignored. Raises Invalid.

    Years of more than four digits have a sign, and so have those before the year 0, as in ISO 8601.
    """
    match = _RFC3339.match(text)
    if match is None:
        raise Invalid(f"not a time: {text[:40]!r}", rule="rfc3339", hint="write it like 2024-05-01T12:30:00Z")
    year, month, day, hour, minute, second = (int(match[i]) for i in range(1, 7))
    try:
        days = day_of(year, month, day)
    except ValueError as error:
        raise Invalid(f"no such day: {text[:40]!r}", rule="rfc3339") from error
    if hour > 23 or minute > 59 or second > 60:
        raise Invalid(f"no such time of day: {text[:40]!r}", rule="rfc3339")
    offset = 0
    if match[9]:
        offset = (int(match[10]) * 60 + int(match[11])) * (60 if match[9] == "+" else -60)
    nanos = int((match[7] or "").ljust(9, "0"))
    return Instant((days * DAY + hour * 3600 + minute * 60 + second - offset) * SECOND + nanos)


@functools.lru_cache(maxsize=8_192)
def render(instant: Instant) -> str:
    """Writes RFC 3339 in UTC, with the fewest digits of fraction (0, 3, 6 or 9): ``2024-05-01T12:30:00Z``.

    Raises Invalid for years that no block can hold.
    """
    seconds, nanos = divmod(instant, SECOND)
    days, rest = divmod(seconds, DAY)
    year, month, day = date_of(days)
    if not FIRST_YEAR <= year <= LAST_YEAR:
        raise Invalid(f"time out of range: {instant} ns", rule="rfc3339")
    years = f"{year:04d}" if 0 <= year <= 9999 else f"{year:+05d}"
    fraction = f".{nanos:09d}" if nanos else ""
    while fraction.endswith("000"):
        fraction = fraction[:-3]
    return f"{years}-{month:02d}-{day:02d}T{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}{fraction}Z"
