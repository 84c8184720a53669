"""Computes how long to wait before the next attempt: exponential, with jitter where many wait for the same. Sans-IO."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

MAX_DOUBLINGS: Final = 16
"""Exponent at which growth stops for certain, whatever the numbers: 2**16 times the first wait."""


class Chance(Protocol):
    """A source of chance that the caller made and seeded, such as ``random.Random``."""

    def random(self) -> float:
        """Evenly in [0, 1)."""


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Waits in seconds, doubled with each failure in a row from ``first`` on, never over ``most``."""

    first: float
    most: float

    def whole(self, failures: int) -> float:
        """Seconds to wait after the ``failures``-th failure in a row (from 1), without jitter."""
        return min(self.most, self.first * 2.0 ** min(failures - 1, MAX_DOUBLINGS))

    def wait(self, failures: int, rng: Chance) -> float:
        """Computes the delay with jitter: a random share between half and all of it."""
        return self.whole(failures) * (0.5 + 0.5 * rng.random())
