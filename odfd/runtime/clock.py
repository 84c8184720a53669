"""Reads the machine's clock. Only this module does; others get the time, or a ``Clock``, as an argument."""

from __future__ import annotations

import time
from typing import Final, Protocol

from chain.instant import Instant

_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    def now(self) -> Instant:
        """Returns the time of day, UTC. It may jump, also backwards."""

    def monotonic(self) -> int:
        """Returns nanoseconds that only ever grow, counted from an arbitrary moment."""


class SystemClock:
    """The clock of the machine."""

    def now(self) -> Instant:
        return Instant(time.time_ns())

    def monotonic(self) -> int:
        """Returns monotonic nanoseconds, including suspended time."""
        return time.clock_gettime_ns(_STEADY)

    def sleep(self, seconds: float) -> None:
        """Blocks the thread. For programs without an event loop; only ``odfctl`` is one."""
        time.sleep(seconds)


class JumpWatch:
    """Measures how far the time of day was set ahead of the monotonic clock since the process started."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._zero = int(clock.now()) - clock.monotonic()

    def ahead(self, known: Instant | None) -> int:
        """Returns nanoseconds, 0 if it was not set ahead. ``known``: a time that is certainly past.

        A clock that was behind ``known``, such as that of a machine that begins in 1970, was corrected, not set ahead.
        """
        steady = self._zero + self._clock.monotonic()
        return 0 if known is not None and steady < known else max(0, int(self._clock.now()) - steady)
