"""The only place that reads the clock of the machine. Everything else is told the time, or is given a ``Clock``."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from chain.instant import Instant


class Clock(Protocol):
    def now(self) -> Instant:
        """Time of day, UTC. It may jump, also backwards."""

    def monotonic(self) -> int:
        """Nanoseconds that only ever grow; their zero means nothing."""


class SystemClock:
    """The machine's own."""

    def now(self) -> Instant:
        return Instant(time.time_ns())

    def monotonic(self) -> int:
        return time.monotonic_ns()

    def sleep(self, seconds: float) -> None:
        """Blocks the thread: for programs without an event loop, which is ``odfctl`` alone."""
        time.sleep(seconds)


@dataclass(slots=True)
class FixedClock:
    """A clock that stands still until it is moved: for tests and for reruns of a decision."""

    instant: Instant

    def now(self) -> Instant:
        return self.instant

    def monotonic(self) -> int:
        return int(self.instant)

    def advance(self, nanoseconds: int) -> None:
        self.instant = Instant(self.instant + nanoseconds)
