"""A clock that tests move by hand."""

from __future__ import annotations

from chain.instant import Instant


class FixedClock:
    """A clock that stands still until it is moved."""

    __slots__ = ("instant",)

    def __init__(self, instant: Instant) -> None:
        self.instant = instant

    def now(self) -> Instant:
        return self.instant

    def monotonic(self) -> int:
        return int(self.instant)

    def advance(self, nanoseconds: int) -> None:
        self.instant = Instant(self.instant + nanoseconds)
