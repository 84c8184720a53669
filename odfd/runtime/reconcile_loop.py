"""Runs a round of work when it starts, and again after each poke or when a pause is over.

For parts that look at everything each time and so may miss a poke: pokes while a round is under way bring one more
round, however many they were. A ``ReconcileLoop`` is alive while ``run`` is.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

import trio

from odfd.runtime.supervision import Life

UNTIL_POKED: Final = math.inf
"""A pause that only a poke ends."""
K = TypeVar("K", bound=Hashable)


class ReconcileLoop:
    """``work`` does one round and says how many seconds may pass before the next. What it raises ends ``run``.

    The first begins ``start_after`` seconds after the start of ``run``, or with a poke: a node that starts has more
    pressing work than a look at everything.
    """

    def __init__(self, work: Callable[[], Awaitable[float]], start_after: float = 0.0) -> None:
        self._work = work
        self._start_after = start_after
        self._poked = trio.Event()

    def poke(self) -> None:
        """From the event loop: there may be work."""
        self._poked.set()

    async def run(self, life: Life) -> None:
        """Until asked to stop; a round under way is cut off."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._go_round)
            life.ready()
            await life.stopping.wait()
            nursery.cancel_scope.cancel()

    async def _go_round(self) -> None:
        with trio.move_on_after(self._start_after):
            await self._poked.wait()
        while True:
            self._poked = trio.Event()
            pause = await self._work()
            with trio.move_on_after(pause):
                await self._poked.wait()


class KeyedReconcileLoop(ReconcileLoop, Generic[K]):
    """Rounds that look at what was touched since the last one, so that what one thing costs does not grow with all.

    The first round of a ``run`` looks at everything, and so does the first after ``all_every`` seconds of ``now``: for
    what ages without being touched.
    """

    def __init__(
        self,
        work: Callable[[], Awaitable[float]],
        all_every: float = math.inf,
        now: Callable[[], float] = trio.current_time,
        start_after: float = 0.0,
    ) -> None:
        super().__init__(work, start_after)
        self._touched: set[K] | None = None
        self._all_every = all_every
        self._now = now
        self._all_at = -math.inf
        """When everything was looked at last."""

    async def run(self, life: Life) -> None:
        """As ``ReconcileLoop.run``; a round that was cut off or failed may have left anything undone."""
        self._touched = None
        await super().run(life)

    @property
    def is_idle(self) -> bool:
        """Whether nothing was touched since the last ``take``."""
        return self._touched is not None and not self._touched

    def touch(self, each: K) -> None:
        """From the event loop: it is another than it was."""
        self.leave(each)
        self.poke()

    def touch_all(self) -> None:
        """What everything is judged by is another."""
        self._touched = None
        self.poke()

    def leave(self, each: K) -> None:
        """It was looked at, and is to be looked at again by the next round, which this does not hasten."""
        if self._touched is not None:
            self._touched.add(each)

    def take(self) -> set[K] | None:
        """For the round that begins: what to look at, ``None`` for everything."""
        touched, self._touched = self._touched, set()
        if touched is not None and self._now() < self._all_at + self._all_every:
            return touched
        self._all_at = self._now()
        return None
