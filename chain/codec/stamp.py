"""The struct Timestamp of the wire: year, day of the year from one, second of the day, nanosecond; always UTC.

Two pure functions over its 16 bytes. Spec: FlatBuffers schema, struct Timestamp.
"""

from __future__ import annotations

import calendar
import datetime as dt
import struct
from typing import Final

from chain.errors import Invalid
from chain.instant import SECOND, Instant

SIZE: Final = 16
_LAYOUT: Final = struct.Struct("<iHxxII")
_EPOCH: Final = dt.date(1970, 1, 1).toordinal()
_DAY: Final = 86_400
_LAST: Final = (dt.date.max.toordinal() + 1 - _EPOCH) * _DAY * SECOND - 1
_LEAP_NANOS: Final = 2 * SECOND
"""The reference writes a leap second as the 59th with more than a second's worth of nanoseconds."""


def pack(instant: Instant) -> bytes:
    """Raises Invalid outside of the years 1 to 9999."""
    seconds, nanos = divmod(instant, SECOND)
    days, second = divmod(seconds, _DAY)
    try:
        date = dt.date.fromordinal(days + _EPOCH)
    except (ValueError, OverflowError) as error:
        raise Invalid(f"time out of range: {instant} ns", rule="timestamp", hint="years 1 to 9999") from error
    ordinal = days + _EPOCH - dt.date(date.year, 1, 1).toordinal() + 1
    return _LAYOUT.pack(date.year, ordinal, second, nanos)


def unpack(raw: bytes, position: int) -> Instant:
    """Instant of the struct at ``position``, which the caller knows to be inside. Raises Invalid."""
    year, ordinal, second, nanos = _LAYOUT.unpack_from(raw, position)
    if 1 <= year <= 9999 and 1 <= ordinal <= 365 + calendar.isleap(year) and second < _DAY:
        days = dt.date(year, 1, 1).toordinal() - _EPOCH + ordinal - 1
        time = (days * _DAY + second) * SECOND + nanos
        if nanos < (_LEAP_NANOS if second % 60 == 59 else SECOND) and time <= _LAST:
            return Instant(time)
    raise Invalid(f"no such time: year {year}, day {ordinal}, second {second} and {nanos} ns", rule="timestamp")
