"""Limits bytes per second: says what may be sent now, and when the next may. Sans-IO; holds one number and no queue.

What is larger than a second's worth goes at once and is paid for by those that come after it, so that over any stretch
of time no more goes than the rate, a second's worth, and the last piece.
"""

from __future__ import annotations

import math
from typing import Final

BURST: Final = 1.0
"""Seconds of silence that are made up for at once."""


class Pace:
    """Caps ``rate`` in bytes a second; 0: no cap. A change at any time leaves earlier charges unchanged."""

    def __init__(self, rate: int = 0) -> None:
        self.rate = rate
        self._paid = -math.inf
        """The time up to which all that went is paid for."""

    def due(self, now: float) -> float:
        """Returns when the next transmission may start, whatever its size."""
        return max(now, self._paid) if self.rate else now

    def take(self, amount: int, now: float) -> float:
        """Reserves a transmission of ``amount`` bytes, and returns when it may start."""
        at = self.due(now)
        if self.rate:
            self._paid = max(self._paid, now - BURST) + amount / self.rate
        return at


class Traffic:
    """Bytes that went over the wire between this node and its peers, ever since it was made."""

    def __init__(self) -> None:
        self.received = 0
        self.sent = 0


class Bandwidth:
    """The node's bandwidth: ``down`` and ``up``, shared by all users, and ``carried`` for relayed circuits."""

    def __init__(self, down: int = 0, up: int = 0, carried: int = 0) -> None:
        self.down = Pace(down)
        self.up = Pace(up)
        self.carried = Pace(carried)
        self.traffic = Traffic()

    def cap(self, down: int, up: int, carried: int = 0) -> None:
        self.down.rate, self.up.rate, self.carried.rate = down, up, carried
