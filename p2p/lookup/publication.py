"""Chooses which of a node's datasets is announced next:
each one when it is new, and again before its records expire."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final

from chain.backoff import Chance

REPEAT: Final = 5400.0
"""Seconds after which a record is brought again: some of its keepers have gone, and nearer nodes have come. If half of
all nodes are replaced in an hour, a third of the keepers is left then; the record lives longer than this."""
PAUSE: Final = 1.5
"""Seconds between two announcements: 3,600 datasets in ``REPEAT``; a node with more announces each one less often."""
FEW: Final = 10
"""With fewer keepers a record is brought again after ``SOON`` seconds."""
SOON: Final = 240.0
"""Seconds until then: the node had just joined and knew few others, or its network is small."""
RETRY: Final = 60.0
"""Seconds after which an announcement that reached nobody is repeated."""


class RecordPublication:
    def __init__(self, rng: Chance) -> None:
        self._rng = rng
        self._due: dict[bytes, float] = {}
        self._queue: list[tuple[float, bytes]] = []
        """A heap of times and keys; an entry that differs from ``_due`` is outdated and skipped."""
        self._next = 0.0

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: object) -> bool:
        return key in self._due

    def want(self, keys: Iterable[bytes], now: float) -> None:
        """Sets the keys to announce: new ones are due at once, missing ones are dropped."""
        wanted = set(keys)
        for key in self._due.keys() - wanted:
            del self._due[key]
        for key in sorted(wanted - self._due.keys()):
            self._plan(key, now)

    def take(self, now: float) -> bytes | None:
        """Returns the next key to announce, if one is due;
        it is due again after ``RETRY`` unless ``note_announced`` is called."""
        if now < self._next:
            return None
        while self._queue and self._queue[0][0] <= now:
            at, key = heapq.heappop(self._queue)
            if self._due.get(key) == at:
                self._next = now + PAUSE
                self._plan(key, now + RETRY)
                return key
        return None

    def note_announced(self, key: bytes, now: float, keepers: int) -> None:
        """Records that ``keepers`` nodes keep a record of the key;
        it is due again after ``REPEAT``, less a random part."""
        if key in self._due:
            self._plan(key, now + (SOON if keepers < FEW else REPEAT) * (0.75 + 0.25 * self._rng.random()))

    def _plan(self, key: bytes, at: float) -> None:
        self._due[key] = at
        heapq.heappush(self._queue, (at, key))
        if len(self._queue) > 4 * len(self._due) + 64:
            self._queue = [(at, key) for key, at in self._due.items()]
            heapq.heapify(self._queue)
