"""Decides which resource to reconcile next: one attempt of each at a time, changes before retries. Sans-IO.

Touches during an attempt lead to one more attempt, however many they were. An attempt that failed for a passing reason
is repeated after a random pause whose bound doubles each time; a refused one waits for a touch. Time and randomness are
arguments.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from chain.errors import Conflict, Environment, Fault, Invalid, Refused, Remote
from chain.instant import SECOND, Instant

LEAST: Final = SECOND
MOST: Final = 300 * SECOND
HOURLY: Final = 3600 * SECOND
"""Nanoseconds of the pause after a bug of ours, which waiting does not mend."""


class WorkQueue:
    """The ids of resources that wait, are being worked on, or are due later."""

    def __init__(self, draw: Callable[[int], int]) -> None:
        """``draw`` returns a random number from zero to below its argument."""
        self._draw = draw
        self._waiting: OrderedDict[str, None] = OrderedDict()
        self._working: set[str] = set()
        self._again: set[str] = set()
        self._later: list[tuple[Instant, int, str]] = []
        self._due: dict[str, int] = {}
        """The number of the valid entry in ``_later`` for each id; entries with other numbers are superseded."""
        self._counts = itertools.count()

    def touch(self, each: str) -> None:
        """Queues a resource now, and ends its pause."""
        self._due.pop(each, None)
        if each in self._working:
            self._again.add(each)
        else:
            self._waiting[each] = None

    def later(self, each: str, at: Instant) -> None:
        """Schedules a resource for a later time, unless it is touched before."""
        number = next(self._counts)
        self._due[each] = number
        heapq.heappush(self._later, (at, number, each))

    def take(self, now: Instant, room: int) -> list[str]:
        """Returns at most ``room`` attempts to begin: touched ones first, in order, then due ones."""
        while self._later and (self._later[0][0] <= now or self._is_over(self._later[0])):
            entry = heapq.heappop(self._later)
            if not self._is_over(entry):
                self.touch(entry[2])
        taken: list[str] = []
        while self._waiting and len(taken) < room:
            each, _ = self._waiting.popitem(last=False)
            self._working.add(each)
            taken.append(each)
        return taken

    def end(self, each: str) -> None:
        """Ends an attempt; a resource that was touched meanwhile is queued again."""
        self._working.discard(each)
        if each in self._again:
            self._again.discard(each)
            self.touch(each)

    def next_time(self) -> Instant | None:
        """Returns when the next scheduled resource is due; ``None`` if there is none."""
        while self._later and self._is_over(self._later[0]):
            heapq.heappop(self._later)
        return self._later[0][0] if self._later else None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued and nothing is in progress."""
        return not self._waiting and not self._working

    def pause(self, fault: Fault, failures: int) -> int | None:
        """Returns the nanoseconds to the next attempt after so many failures in a row; ``None`` for no retry."""
        if isinstance(fault, Environment | Remote | Conflict):
            # ``min``: a resource that failed ten thousand times would shift to a number of ten thousand bits.
            most = min(MOST, LEAST << min(failures, 20))
            return LEAST + self._draw(most)
        return None if isinstance(fault, Invalid | Refused) else HOURLY

    def _is_over(self, entry: tuple[Instant, int, str]) -> bool:
        return self._due.get(entry[2]) != entry[1]
