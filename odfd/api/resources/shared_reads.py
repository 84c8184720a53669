"""Reads the news of a log once for all readers that wait at the same position.

The first reader at a position reads, and waits if there is nothing; others at the same position wait for its result.
Results are kept until the next write, for readers that come later. A leading reader that is cancelled or fails wakes
the others, and one of them reads. All who share a read get the same, so whoever passes news on leaves out what a reader
may not see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

import trio

from odfd.obs.events import EventLog

KEPT: Final = 8
"""Positions whose news are kept. Readers that lag behind read by themselves."""
T = TypeVar("T")


class _Flight(Generic[T]):
    """A read under way at one position, for all readers there."""

    def __init__(self) -> None:
        self.over = trio.Event()
        self.found: Sequence[T] = ()
        """The news; empty after the end if the leading reader was cancelled or failed."""


class SharedReads(Generic[T]):
    """Shares the reads of one log among its readers, which are tasks of one trio run."""

    def __init__(self, read: Callable[[int], Sequence[T]], written: Callable[[], int], events: EventLog) -> None:
        """``read``, called in worker threads, returns some of what comes after a position, in order, or nothing.

        ``written`` grows with each write to the log, at the latest when ``events`` are nudged after it.
        """
        self._read, self._written, self._events = read, written, events
        self._flights: dict[int, _Flight[T]] = {}
        self._kept: dict[int, Sequence[T]] = {}
        self._kept_at = -1
        """The value of ``written`` that ``_kept`` belongs to."""

    async def after(self, position: int) -> Sequence[T]:
        """Waits for news after a position, and returns some of it. Raises what reading raises."""
        while True:
            if found := self._known(position):
                await trio.lowlevel.checkpoint()
                return found
            flight = self._flights.get(position)
            if flight is None:
                return await self._lead(position)
            await flight.over.wait()
            if flight.found:
                return flight.found

    async def _lead(self, position: int) -> Sequence[T]:
        """Reads for all readers that come to this position meanwhile."""
        flight = self._flights[position] = _Flight()
        try:
            while not flight.found:
                grown = self._events.grown
                if self._known(position) is None:
                    flight.found = await self._looked(position)
                else:
                    await grown.wait()
            return flight.found
        finally:
            del self._flights[position]
            flight.over.set()

    async def _looked(self, position: int) -> Sequence[T]:
        written = self._written()
        found = await trio.to_thread.run_sync(self._read, position)
        if written == self._kept_at:
            if len(self._kept) >= KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[position] = found
        return found

    def _known(self, position: int) -> Sequence[T] | None:
        """Returns what was read at a position since the last write; ``None`` if nobody read."""
        written = self._written()
        if written != self._kept_at:
            self._kept_at = written
            self._kept.clear()
        return self._kept.get(position)
