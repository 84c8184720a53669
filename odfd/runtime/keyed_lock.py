"""Turns at one thing: who works on it works alone, and others wait in the order in which they came.

Made by the wiring and shared by all whose work on one thing must not overlap. Holds only what is asked for now.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager

import trio


class KeyedLocks:
    """See the module. Nobody takes a second turn inside a first one: two such could wait for each other for ever."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, trio.Lock] = {}

    @asynccontextmanager
    async def of(self, thing: Hashable, wait: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
        """``wait`` is called when the turn is somebody else's."""
        lock = self._locks.setdefault(thing, trio.Lock())
        if lock.locked():
            wait()
        await lock.acquire()
        try:
            yield
        finally:
            lock.release()
            if not lock.locked():
                self._locks.pop(thing, None)
