"""Computes when a schedule is due: by a cron expression in a time zone, or at even intervals.

Pure; time is an argument.

A nominal time is one that the schedule names, whenever it is acted on. ``Covered`` remembers which of them were acted
on, so that none fires twice, however the clock jumps.
"""

from __future__ import annotations

import bisect
import datetime as dt
import re
from typing import Final, TypeAlias
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from chain.errors import Invalid
from chain.instant import SECOND, Instant

UTC: Final = "UTC"
LEAST_INTERVAL: Final = SECOND
MOST_INTERVAL: Final = 366 * 86_400 * SECOND
SPANS: Final = 8
"""Most ranges of fired times that are remembered."""
MISSED_COUNTED: Final = 1000
"""Number up to which missed nominal times are counted."""
_NAMED: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_UNITS: Final = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_DURATION: Final = re.compile(r"([0-9]{1,9})\s*(s|sec|min|m|h|d|w)\Z")
_LOOKS_BACK: Final = (3600, 86_400, 32 * 86_400, 366 * 86_400, 9 * 366 * 86_400)
"""Seconds to look back for the last nominal time, in this order until one is found."""
_FIRST_YEAR, _LAST_YEAR = 1970, 9900


class Cron(msgspec.Struct, frozen=True, tag="cron"):
    """A schedule of five cron fields, or of a name such as ``@daily``.

    At clock changes it follows Debian's cron: a skipped time is due right after the change, a repeated one is due once,
    and hours written ``*`` follow elapsed time.
    """

    text: str
    zone: str = UTC

    def after(self, time: Instant) -> Instant | None:
        """Returns the first nominal time after ``time``; ``None`` if there is none."""
        try:
            start = dt.datetime.fromtimestamp(time // SECOND, dt.UTC).astimezone(ZoneInfo(self.zone))
            if not _FIRST_YEAR <= start.year <= _LAST_YEAR:
                return None
            for found in CronSim(_NAMED.get(self.text, self.text), start):
                nominal = Instant(int(found.timestamp()) * SECOND)
                if nominal > time:
                    return nominal
        except (OverflowError, ValueError, OSError):
            return None
        return None

    def __str__(self) -> str:
        return self.text if self.zone == UTC else f"{self.text} {self.zone}"


class Every(msgspec.Struct, frozen=True, tag="every"):
    """Fires at whole multiples of ``nanoseconds`` since the epoch."""

    nanoseconds: int

    def after(self, time: Instant) -> Instant | None:
        return Instant((time // self.nanoseconds + 1) * self.nanoseconds)

    def __str__(self) -> str:
        return f"every {duration_text(self.nanoseconds)}"


class Several(msgspec.Struct, frozen=True, tag="several"):
    """Fires at the times of each of several schedules; a time that two of them have is one."""

    schedules: tuple[Cron | Every, ...]

    def after(self, time: Instant) -> Instant | None:
        found = (schedule.after(time) for schedule in self.schedules)
        return min((each for each in found if each is not None), default=None)

    def __str__(self) -> str:
        return "; ".join(map(str, self.schedules))


Schedule: TypeAlias = Cron | Every | Several


def offset_at(schedule: Schedule | None, time: Instant) -> int:
    """Returns the seconds by which the zone of a schedule is ahead of UTC at a time."""
    if isinstance(schedule, Several):  # their cron expressions have one zone
        schedule = next((each for each in schedule.schedules if isinstance(each, Cron)), None)
    if not isinstance(schedule, Cron):
        return 0
    found = dt.datetime.fromtimestamp(time // SECOND, ZoneInfo(schedule.zone)).utcoffset()
    return 0 if found is None else int(found.total_seconds())


class Covered(msgspec.Struct, frozen=True):
    """The nominal times that fired, as ranges in which every nominal time counts as fired.

    If there are too many ranges, the oldest are joined.
    """

    spans: tuple[tuple[int, int], ...] = ()
    """First and last time of each range, in order, without overlaps."""

    def end_over(self, time: Instant) -> Instant | None:
        """Returns the last nominal time of the range that holds ``time``; ``None`` if it did not fire."""
        place = bisect.bisect_right(self.spans, int(time), key=_first) - 1
        if place < 0:
            return None
        first, last = self.spans[place]
        return Instant(last) if first <= time <= last else None

    def newest(self, now: Instant) -> Instant | None:
        """Returns the newest time, at most ``now``, up to which nothing is due, because it or a later one fired."""
        before = [min(last, now) for first, last in self.spans if first <= now]
        return Instant(max(before)) if before else None

    def with_(self, time: Instant, schedule: Schedule) -> Covered:
        """Adds the fired ``time``."""
        if self.end_over(time) is not None:
            return self
        spans = [*self.spans]
        place = bisect.bisect_right(spans, int(time), key=_first)
        if place and schedule.after(Instant(spans[place - 1][1])) == time:
            spans[place - 1] = (spans[place - 1][0], time)
        else:
            spans.insert(place, (time, time))
        if len(spans) > SPANS:
            spans[:2] = [(spans[0][0], spans[1][1])]
        return Covered(tuple(spans))


def _first(span: tuple[int, int]) -> int:
    return span[0]


def next_time(schedule: Schedule, covered: Covered, after: Instant) -> Instant | None:
    """Returns the first nominal time after ``after`` that has not fired."""
    found = schedule.after(after)
    while found is not None and (end := covered.end_over(found)) is not None:
        found = schedule.after(end)
    return found


def latest_time(schedule: Schedule, after: Instant, now: Instant) -> Instant | None:
    """Returns the last nominal time after ``after`` and not after ``now``."""
    if isinstance(schedule, Every):
        last = Instant(now // schedule.nanoseconds * schedule.nanoseconds)
        return last if last > after else None
    for seconds in _LOOKS_BACK:
        start = Instant(max(after, now - seconds * SECOND))
        latest, found = None, schedule.after(start)
        while found is not None and found <= now:
            latest, found = found, schedule.after(found)
        if latest is not None or start == after:
            return latest
    return None


def passed_over(schedule: Schedule, after: Instant, until: Instant) -> int:
    """Counts nominal times after ``after`` and before ``until``, up to ``MISSED_COUNTED``."""
    if isinstance(schedule, Every):
        return min(MISSED_COUNTED, (until - 1) // schedule.nanoseconds - after // schedule.nanoseconds)
    count, found = 0, schedule.after(after)
    while found is not None and found < until and count < MISSED_COUNTED:
        count, found = count + 1, schedule.after(found)
    return count


def parse_cron(text: str, zone: str) -> Cron:
    """Parses a cron expression. Raises Invalid for a malformed one, or one that is never due."""
    plain = " ".join(text.split())
    fields = _NAMED.get(plain, plain)
    if len(fields.split()) != 5:
        raise Invalid(
            f"not a cron expression: {text[:60]!r}",
            rule="flow-cron",
            hint="five fields, minute hour day month weekday, like '30 17 * * 1-5', or @hourly, @daily, @weekly, "
            "@monthly, @yearly",
        )
    try:
        first = next(CronSim(fields, dt.datetime(2024, 1, 1)), None)
    except CronSimError as error:
        raise Invalid(
            f"not a cron expression: {text[:60]!r}: {str(error).lower()}",
            rule="flow-cron",
            hint="minute 0-59, hour 0-23, day 1-31, month 1-12, weekday 0-7 (0 and 7: Sunday)",
        ) from error
    if first is None:
        raise Invalid(f"{text[:60]!r} names no day that there is", rule="flow-cron", hint="look at day and month")
    return Cron(plain, zone)


def parse_zone(text: str) -> str:
    """Returns the name of a time zone. Raises Invalid for an unknown one."""
    try:
        ZoneInfo(text)
    # A name with .. raises ValueError, and that of a folder of zones, such as America, OSError.
    except (KeyError, ValueError, OSError) as error:
        raise Invalid(
            f"no time zone {text[:60]!r}", rule="flow-zone", hint="a name like America/Toronto, or UTC"
        ) from error
    return text


def parse_duration(text: str) -> int:
    """Returns the nanoseconds that a text such as ``10s``, ``5min``, ``1h`` or ``1d`` states. Raises Invalid."""
    found = _DURATION.match(text.strip())
    if found is None:
        raise Invalid(f"not a length of time: {text[:40]!r}", rule="flow-duration", hint="like 10s, 5min, 1h or 1d")
    return int(found[1]) * _UNITS[found[2]] * SECOND


def parse_every(text: str) -> Every:
    """Parses an interval. Raises Invalid for one out of range."""
    length = parse_duration(text)
    if not LEAST_INTERVAL <= length <= MOST_INTERVAL:
        raise Invalid(f"{text[:40]} is out of range", rule="flow-duration", hint="1s to 366d")
    return Every(length)


def duration_text(nanoseconds: int) -> str:
    seconds = nanoseconds // SECOND
    for unit in ("d", "h", "min"):
        if seconds and seconds % _UNITS[unit] == 0:
            return f"{seconds // _UNITS[unit]}{unit}"
    return f"{seconds}s"
