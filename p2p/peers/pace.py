"""A cap on bytes a second: what may go now, and when the next may. Sans-IO; one number, and never a queue.

What is larger than a second's worth goes at once and is paid for by those that come after it, so that over any stretch
of time no more goes than the rate, a second's worth, and the last piece.
"""

from __future__ import annotations

import math
from typing import Final

BURST: Final = 1.0
"""Seconds of silence that are made up for at once."""


class Pace:
    """``rate`` in bytes a second; 0: no cap."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self._paid = -math.inf
        """The time up to which all that went is paid for."""

    def due(self, now: float) -> float:
        """When the next may go, whatever its size."""
        return max(now, self._paid) if self.rate else now

    def take(self, amount: int, now: float) -> float:
        """As ``due``, for so many bytes, which will go then."""
        at = self.due(now)
        if self.rate:
            self._paid = max(self._paid, now - BURST) + amount / self.rate
        return at
