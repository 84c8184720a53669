"""Limits bytes per second: says when the next transmission may start. Sans-IO; keeps one number and no queue.

A piece larger than one second's worth is sent at once, and the pieces after it wait for longer. So over any period no
more is sent than the rate allows, plus one second's worth and the last piece.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

BURST: Final = 1.0
"""Seconds of unused rate that may be sent at once after a silence."""
WINDOW: Final = 8
"""Seconds over which a rate is averaged, the current second included."""


class Pace:
    """Caps transmissions at ``rate`` bytes a second; 0 means no cap.
    Changing the rate leaves earlier charges unchanged."""

    def __init__(self, rate: int = 0) -> None:
        self.rate = rate
        self._paid = -math.inf
        """The time at which everything sent so far is paid for."""

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
    """Counts the bytes sent and received between this node and its peers since this object was made."""

    def __init__(self) -> None:
        self.received = 0
        self.sent = 0


class RecentBytes:
    """Counts the bytes of the last ``WINDOW`` seconds as one sum for each second, so its size is fixed. Sans-IO."""

    __slots__ = ("_second", "_sums")

    def __init__(self) -> None:
        self._sums = [0] * WINDOW
        self._second = 0

    def add(self, amount: int, now: float) -> None:
        self._pass(int(now))
        self._sums[self._second % WINDOW] += amount

    def rate(self, now: float) -> float:
        """Returns the average bytes a second over the current second and the whole ones before it."""
        self._pass(int(now))
        return sum(self._sums) / (WINDOW - 1 + max(0.0, now - self._second))

    def _pass(self, second: int) -> None:
        """Clears the sums of seconds that are past. If the clock went back, the latest second stays the current one."""
        for each in range(min(second - self._second, WINDOW)):
            self._sums[(second - each) % WINDOW] = 0
        self._second = max(self._second, second)


class LineTraffic:
    """Counts the bytes of one connection, and adds them to those of the node."""

    __slots__ = ("down", "received", "sent", "total", "up")

    def __init__(self, total: Traffic) -> None:
        self.total = total
        self.received = self.sent = 0
        self.down, self.up = RecentBytes(), RecentBytes()

    def came(self, amount: int, now: float) -> None:
        self.received += amount
        self.total.received += amount
        self.down.add(amount, now)

    def went(self, amount: int, now: float) -> None:
        self.sent += amount
        self.total.sent += amount
        self.up.add(amount, now)


class PeerTraffic(NamedTuple):
    """The traffic of all open connections with a peer: bytes since they began, and recent bytes a second."""

    received: int = 0
    sent: int = 0
    down: float = 0.0
    up: float = 0.0

    @classmethod
    def of(cls, lines: Iterable[LineTraffic], now: float) -> PeerTraffic:
        each = [(line.received, line.sent, line.down.rate(now), line.up.rate(now)) for line in lines]
        return cls(*map(sum, zip(*each, strict=True))) if each else cls()


class Bandwidth:
    """The bandwidth of a node: caps ``down`` and ``up``, shared by all users, and ``carried`` for relayed circuits."""

    def __init__(self, down: int = 0, up: int = 0, carried: int = 0) -> None:
        self.down = Pace(down)
        self.up = Pace(up)
        self.carried = Pace(carried)
        self.traffic = Traffic()

    def cap(self, down: int, up: int, carried: int = 0) -> None:
        self.down.rate, self.up.rate, self.carried.rate = down, up, carried
