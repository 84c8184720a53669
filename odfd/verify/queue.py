"""Queues checks of objects, a few for each worker, and returns results in the order of the chain.

Made for one verification, over a pool that the verification owns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Final

from chain.store.base import ObjectReader
from odfd.verify.report import BlockRef, VerifyFinding

_WAITING: Final = 4
"""Most objects that wait for each worker."""


class ObjectQueue:
    """The queue of one verification, used from its thread only."""

    def __init__(self, pool: Executor, objects: ObjectReader, workers: int) -> None:
        self._pool = pool
        self._objects = objects
        self._limit = workers * (_WAITING + 1)
        self._waiting: deque[tuple[BlockRef, int, Future[list[VerifyFinding]]]] = deque()
        self.known = self.known_bytes = 0
        self.done = self.done_bytes = 0
        self._done: BlockRef | None = None

    def add(self, block: BlockRef, size: int, check: Callable[[ObjectReader], list[VerifyFinding]]) -> None:
        """Adds a check; ``size``: bytes that it will read, as its block states."""
        self.known += 1
        self.known_bytes += size
        self._waiting.append((block, size, self._pool.submit(check, self._objects)))

    def take(self, all_of_them: bool) -> list[tuple[BlockRef, list[VerifyFinding]]]:
        """Returns the results of finished checks; waits if the queue is full, or for everything at the end."""
        results = []
        while self._waiting and (all_of_them or len(self._waiting) > self._limit or self._waiting[0][2].done()):
            block, size, future = self._waiting.popleft()
            results.append((block, future.result()))
            self.done += 1
            self._done = block
            self.done_bytes += size
            if all_of_them:
                break
        return results

    @property
    def last(self) -> BlockRef | None:
        """The last block up to which all added objects are checked; ``None`` if there is none."""
        if self._waiting and self._waiting[0][0] == self._done:
            return None
        return self._done
