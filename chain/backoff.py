"""Computes how long to wait before the next attempt: doubling, with jitter where many wait for the same. No I/O."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

MAX_DOUBLINGS: Final = 16
"""Number of doublings after which the wait grows no more, whatever the settings: 2**16 times the first wait."""


class Chance(Protocol):
    """A source of random numbers that the caller made and seeded, such as ``random.Random``."""

    def random(self) -> float:
        """Returns a number evenly distributed in [0, 1)."""


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Computes waits in seconds: ``first`` after one failure, doubled with each further failure, at most ``most``."""

    first: float
    most: float

    def whole(self, failures: int) -> float:
        """Returns the wait in seconds after the ``failures``-th failure in a row (from 1), without jitter."""
        return min(self.most, self.first * 2.0 ** min(failures - 1, MAX_DOUBLINGS))

    def wait(self, failures: int, rng: Chance) -> float:
        """Returns the wait in seconds with jitter: a random share, between half and all, of the whole wait."""
        return self.whole(failures) * (0.5 + 0.5 * rng.random())
