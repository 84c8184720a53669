"""Reads the machine's clock. No other module does: others get the time, or a ``Clock``, as an argument."""

from __future__ import annotations

import time
from typing import Final, Protocol

from chain.instant import Instant

_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    def now(self) -> Instant:
        """Returns the time of day, UTC. It may jump, also backwards."""

    def monotonic(self) -> int:
        """Nanoseconds that only ever grow; their zero means nothing."""


class SystemClock:
    """The clock of the machine."""

    def now(self) -> Instant:
        return Instant(time.time_ns())

    def monotonic(self) -> int:
        """Returns monotonic nanoseconds, including suspended time."""
        return time.clock_gettime_ns(_STEADY)

    def sleep(self, seconds: float) -> None:
        """Blocks the thread: for programs without an event loop, which is ``odfctl`` alone."""
        time.sleep(seconds)


class JumpWatch:
    """Measures how far the time of day was set ahead of the monotonic clock since its start with the process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._zero = int(clock.now()) - clock.monotonic()

    def ahead(self, known: Instant | None) -> int:
        """Nanoseconds; 0 where it was not. ``known``: of something that has happened.

        A clock that was behind that, as of a machine that begins in 1970, was set right when it was set ahead.
        """
        steady = self._zero + self._clock.monotonic()
        return 0 if known is not None and steady < known else max(0, int(self._clock.now()) - steady)
