"""Bounds how many jobs run at once, without counting those that wait for another program or peer; and locks by key.

A job that has waited for an outside party for ``PATIENCE`` seconds is set apart: its slot goes to the next in line, and
it gets one again after the wait, before all new jobs. No job is set apart while the line is empty, so quick work stays
within the limit. A lock has one holder for each key at a time, others wait in order of arrival; a job that waits long
for a lock does not keep its slot meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, TypeVar

import trio

T = TypeVar("T")

PATIENCE: Final = 3.0
"""Seconds that a wait may take before the job is set apart; most parties have answered by then."""


@dataclass(slots=True, eq=False)
class _Slot:
    slots: Slots
    waits: int = 0
    """Number of the job's tasks that wait for another party."""
    since: float = math.inf
    """Time at which the first of these waits began; infinity while it works."""
    connected: bool = False
    """Whether it waits for an outside party, and so counts towards ``apart``."""


_HELD: Final[ContextVar[_Slot | None]] = ContextVar("slot", default=None)


class Slots:
    """Limits work to ``working`` jobs at once, and at most ``apart`` more that wait for outside parties.

    A job that waits within the node does not count: so the holder of a thing that others wait for always gets a slot
    back.
    """

    def __init__(self, working: int, apart: float = math.inf) -> None:
        self._most, self._most_apart = working, apart
        self._working: set[_Slot] = set()
        self._apart: set[_Slot] = set()
        self._returning = 0
        self._line = trio.Lock()
        self._changed = trio.Event()

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of held slots, and of those set apart."""
        return len(self._working), len(self._apart)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Waits for a slot, in order of requests, and holds it. ``waiting`` within the block refers to this slot."""
        slot = _Slot(self)
        async with self._line:
            while len(self._working) + self._returning >= self._most:
                await self._vacancy()
            self._working.add(slot)
        before = _HELD.set(slot)
        try:
            yield
        finally:
            _HELD.reset(before)
            self._working.discard(slot)
            self._apart.discard(slot)
            self._notify()

    def begin(self, slot: _Slot, *, connected: bool) -> None:
        """Marks a slot as waiting for another party."""
        slot.waits += 1
        slot.connected = slot.connected or connected
        if slot.waits == 1:
            slot.since = trio.current_time()
            self._notify()

    def end(self, slot: _Slot) -> None:
        """Marks a slot as no longer waiting."""
        slot.waits -= 1
        if not slot.waits:
            slot.since, slot.connected = math.inf, False

    async def back(self, slot: _Slot) -> None:
        """Waits until a slot may work: at once, unless it was set apart, or another of its tasks still waits."""
        if slot.waits or slot not in self._apart:
            return
        self._returning += 1
        try:
            while len(self._working) >= self._most:
                await self._vacancy()
        finally:
            self._returning -= 1
        self._apart.discard(slot)
        self._working.add(slot)
        self._notify()

    async def _vacancy(self) -> None:
        """Waits until a job that waits outside was set apart, or anything else changed."""
        now, room = trio.current_time(), sum(each.connected for each in self._apart) < self._most_apart
        may_leave = (each for each in self._working if room or not each.connected)
        slot = min(may_leave, key=lambda each: each.since, default=None)
        due = slot.since + PATIENCE if slot is not None else math.inf
        if slot is not None and due <= now:
            self._working.discard(slot)
            self._apart.add(slot)
            self._notify()
            return
        with trio.move_on_at(due):
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


@asynccontextmanager
async def waiting(*, connected: bool = True) -> AsyncIterator[None]:
    """Marks the block as waiting for another party: outside, or with ``connected=False`` in this node. Needs no slot.

    A block that fails is left at once, without waiting for a slot.
    """
    slot = _HELD.get()
    if slot is None:
        yield
        return
    slot.slots.begin(slot, connected=connected)
    try:
        yield
    finally:
        slot.slots.end(slot)
    await slot.slots.back(slot)


class KeyedLocks:
    """Fair locks, one for each key in use. They do not nest: two tasks could wait for each other forever."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, trio.Lock] = {}

    @asynccontextmanager
    async def of(self, thing: Hashable, wait: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
        """Takes the lock of a key; ``wait`` is called if it is taken."""
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
            # A lock that others wait for is theirs by now, so it is locked, and stays.
            if not lock.locked():
                self._locks.pop(thing, None)

    async def perform(self, thing: Hashable, call: Callable[[], T], wait: Callable[[], None] = lambda: None) -> T:
        """Calls a function that blocks in a worker thread while the lock of a key is taken; ``wait``: as of ``of``."""
        async with self.of(thing, wait):
            return await trio.to_thread.run_sync(call)

    def waiting(self, thing: Hashable) -> int:
        """Returns the number of tasks that wait for the lock of a key."""
        lock = self._locks.get(thing)
        return 0 if lock is None else lock.statistics().tasks_waiting
