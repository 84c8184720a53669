"""Points in time as the format keeps them: whole nanoseconds since the epoch, always UTC.

Python's datetime stops at microseconds; honest blocks carry nanoseconds, so an instant is an int.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Final, NewType

from chain.errors import Invalid

Instant = NewType("Instant", int)
"""Nanoseconds since 1970-01-01T00:00:00Z; may be negative."""

SECOND: Final = 1_000_000_000
MILLISECOND: Final = 1_000_000
_EPOCH: Final = dt.date(1970, 1, 1)
_RFC3339: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:([Zz])|([+-])(\d\d):(\d\d))\Z", re.ASCII
)


def from_millis(millis: int) -> Instant:
    return Instant(millis * MILLISECOND)


def to_millis(instant: Instant) -> int:
    """Whole milliseconds, rounded towards the past."""
    return instant // MILLISECOND


def parse(text: str) -> Instant:
    """RFC 3339 with up to nine digits of fraction and any offset. Raises Invalid."""
    match = _RFC3339.match(text)
    if match is None:
        raise Invalid(f"not a time: {text[:40]!r}", rule="rfc3339", hint="write it like 2024-05-01T12:30:00Z")
    year, month, day, hour, minute, second = (int(match[i]) for i in range(1, 7))
    try:
        days = (dt.date(year, month, day) - _EPOCH).days
    except ValueError as error:
        raise Invalid(f"no such day: {text[:40]!r}", rule="rfc3339") from error
    if hour > 23 or minute > 59 or second > 60:
        raise Invalid(f"no such time of day: {text[:40]!r}", rule="rfc3339")
    offset = 0
    if match[9]:
        offset = (int(match[10]) * 60 + int(match[11])) * (60 if match[9] == "+" else -60)
    nanos = int((match[7] or "").ljust(9, "0"))
    return Instant((days * 86400 + hour * 3600 + minute * 60 + second - offset) * SECOND + nanos)


def render(instant: Instant) -> str:
    """RFC 3339 in UTC, with as few digits of fraction as hold the value (0, 3, 6 or 9): ``2024-05-01T12:30:00Z``."""
    seconds, nanos = divmod(instant, SECOND)
    days, rest = divmod(seconds, 86400)
    try:
        date = (_EPOCH + dt.timedelta(days=days)).isoformat()
    except OverflowError as error:
        raise Invalid(f"time out of range: {instant} ns", rule="rfc3339") from error
    fraction = f".{nanos:09d}" if nanos else ""
    while fraction.endswith("000"):
        fraction = fraction[:-3]
    return f"{date}T{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}{fraction}Z"
