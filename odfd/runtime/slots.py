"""Bounds how many jobs run at once, without counting those that wait for another program or peer; and locks by key.

Who has waited outside for ``PATIENCE`` seconds gives its slot to the next in line, and takes one again when the wait is
over, before all who are new. Nobody is set apart while no one stands in line: what is quick runs as few at once as was
said. A lock has one holder for each key at a time, others wait in the order in which they came; who waits long for it
keeps no slot from others meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

import trio

PATIENCE: Final = 3.0
"""Seconds; most of those who are asked have answered by then."""


@dataclass(slots=True, eq=False)
class _Slot:
    slots: Slots
    waits: int = 0
    """How many of its tasks wait for another party."""
    since: float = math.inf
    """When the first of them began to; never: it works."""
    connected: bool = False
    """Whether it waits for an outside party, which takes room."""


_HELD: Final[ContextVar[_Slot | None]] = ContextVar("slot", default=None)


class Slots:
    """Limits work to ``working`` at once, and at most ``apart`` more that wait for others.

    Who waits inside the node takes no room: one that holds what others wait for always gets a slot back.
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
        """Waits for a slot, in order of requests. ``waiting`` within the block is about this one."""
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
        """Until one that waits outside was set apart, or anything else changed."""
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

    Who leaves it by a failure waits for no slot to say so.
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
            if not lock.locked():
                self._locks.pop(thing, None)
