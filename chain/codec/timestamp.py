"""Encodes and decodes the struct Timestamp: year, day of the year from one, second of the day, nanosecond; in UTC.

Two pure functions over its 16 bytes. Spec: FlatBuffers schema, struct Timestamp.
"""

from __future__ import annotations

import calendar
import struct
from typing import Final

from chain.errors import Invalid
from chain.instant import DAY, FIRST_YEAR, LAST_YEAR, SECOND, Instant, date_of, day_of

SIZE: Final = 16
_LAYOUT: Final = struct.Struct("<iHxxII")
_LAST: Final = (day_of(LAST_YEAR, 12, 31) + 1) * DAY * SECOND - 1
_LEAP_NANOS: Final = 2 * SECOND
"""Bound of nanoseconds in a second before a leap second, which the reference writes as the 59th plus more than 1e9."""


def pack(instant: Instant) -> bytes:
    """Encodes an instant. Raises Invalid outside of the years that the reference can hold."""
    seconds, nanos = divmod(instant, SECOND)
    days, second = divmod(seconds, DAY)
    year, _, _ = date_of(days)
    if not FIRST_YEAR <= year <= LAST_YEAR:
        raise Invalid(f"time out of range: {instant} ns", rule="timestamp", hint=f"years {FIRST_YEAR} to {LAST_YEAR}")
    return _LAYOUT.pack(year, days - day_of(year, 1, 1) + 1, second, nanos)


def unpack(raw: bytes, position: int) -> Instant:
    """Decodes the struct at ``position``; the caller has checked that it is in the buffer. Raises Invalid."""
    year, ordinal, second, nanos = _LAYOUT.unpack_from(raw, position)
    if FIRST_YEAR <= year <= LAST_YEAR and 1 <= ordinal <= 365 + calendar.isleap(year) and second < DAY:
        time = ((day_of(year, 1, 1) + ordinal - 1) * DAY + second) * SECOND + nanos
        if nanos < (_LEAP_NANOS if second % 60 == 59 else SECOND) and time <= _LAST:
            return Instant(time)
    raise Invalid(f"no such time: year {year}, day {ordinal}, second {second} and {nanos} ns", rule="timestamp")
