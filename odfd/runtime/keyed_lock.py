"""Locks by key: one holder for each key at a time, others wait in the order in which they came.

Made by the wiring and shared by all whose work on one thing must not overlap. Holds only what is asked for now. Who
waits long for a turn keeps no slot from others meanwhile (``slots``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager

import trio

from odfd.runtime.slots import waiting


class KeyedLocks:
    """Fair locks, one for each key in use.

    Nobody takes a second turn inside a first one: two such could wait for each other for ever.
    """

    def __init__(self) -> None:
        self._locks: dict[Hashable, trio.Lock] = {}

    @asynccontextmanager
    async def of(self, thing: Hashable, wait: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
        """``wait`` is called when the turn is somebody else's."""
        lock = self._locks.setdefault(thing, trio.Lock())
        if lock.locked():
            wait()
        held = False
        try:
            async with waiting(connected=False):
                await lock.acquire()
                held = True
            yield
        finally:
            if held:
                lock.release()
            if not lock.locked():
                self._locks.pop(thing, None)
