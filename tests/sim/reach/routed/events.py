"""What happens when: a queue of events in simulated seconds, and a digest of all that was noted on the way."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable
from random import Random


class Events:
    """Events of one world, in the order of their times, and of their making where these are equal."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now = 0.0
        self.steps = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._made = 0
        self._digest = hashlib.sha256()

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        self._made += 1
        heapq.heappush(self._queue, (self.now + seconds, self._made, do))

    def run(self, until: float) -> None:
        while self._queue and self._queue[0][0] <= until:
            self.now, _, do = heapq.heappop(self._queue)
            self.steps += 1
            do()
        self.now = until

    def note(self, *what: object) -> None:
        """Makes it part of what the same seed must give again."""
        self._digest.update(repr((round(self.now, 6), *what)).encode())

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()
