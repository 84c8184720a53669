"""Runs a round of work when it starts, and again after each poke or when a pause is over.

For parts that process everything each time, so that no poke matters by itself: any number of pokes during a round cause
one more round. A ``ReconcileLoop`` is alive while ``run`` is.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

import trio

from odfd.runtime.hanging_calls import in_loop, invoke
from odfd.runtime.supervision import Life

UNTIL_POKED: Final = math.inf
"""A pause that only a poke ends."""
K = TypeVar("K", bound=Hashable)


class ReconcileLoop:
    """Repeats ``work``, which returns the seconds until the next round. Its exceptions end ``run``.

    A plain ``work`` runs in a worker thread, and calls ``end_if_unwanted`` between the things that it processes.

    The first round begins ``start_after`` seconds after the start of ``run``, or with a poke: a node that starts has
    more urgent work than a look at everything.
    """

    def __init__(self, work: Callable[[], float | Awaitable[float]], start_after: float = 0.0) -> None:
        self._work = work
        self._start_after = start_after
        self._poked = trio.Event()

    @in_loop
    def poke(self) -> None:
        """Starts a round soon."""
        self._poked.set()

    async def run(self, life: Life) -> None:
        """Runs until stopped; a round in progress is cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._go_round)
            life.ready()
            await life.stopping.wait()
            nursery.cancel_scope.cancel()

    async def _go_round(self) -> None:
        with trio.move_on_after(self._start_after):
            await self._poked.wait()
        while True:
            # Before the work: a poke that comes meanwhile causes one more round.
            self._poked = trio.Event()
            pause = await invoke(self._work)
            with trio.move_on_after(pause):
                await self._poked.wait()


class KeyedReconcileLoop(ReconcileLoop, Generic[K]):
    """Processes only things touched since the last round, so that one change does not cost in proportion to all.

    The first round of a ``run`` processes everything, and so does the first after ``all_every`` seconds of ``now``: for
    things that age without being touched.
    """

    def __init__(
        self,
        work: Callable[[], float | Awaitable[float]],
        all_every: float = math.inf,
        now: Callable[[], float] = trio.current_time,
        start_after: float = 0.0,
    ) -> None:
        super().__init__(work, start_after)
        self._touched: set[K] | None = None
        self._all_every = all_every
        self._now = now
        self._all_at = -math.inf
        """Time of the last round that processed everything."""

    async def run(self, life: Life) -> None:
        """Runs as ``ReconcileLoop.run``; a cancelled or failed round is repeated for everything."""
        self._touched = None
        await super().run(life)

    @property
    def is_idle(self) -> bool:
        """Whether nothing was touched since the last ``take``."""
        return self._touched is not None and not self._touched

    @in_loop
    def touch(self, each: K) -> None:
        """Marks one thing as changed, and starts a round soon."""
        self.leave(each)
        self.poke()

    @in_loop
    def touch_all(self) -> None:
        """Marks everything as changed, such as after a change of policy, and starts a round soon."""
        self._touched = None
        self.poke()

    @in_loop
    def leave(self, each: K) -> None:
        """Marks one thing as changed for the next round, without starting it early."""
        if self._touched is not None:
            self._touched.add(each)

    @in_loop
    def take(self) -> set[K] | None:
        """Returns the things that a round has to process; ``None`` for everything."""
        touched, self._touched = self._touched, set()
        if touched is not None and self._now() < self._all_at + self._all_every:
            return touched
        self._all_at = self._now()
        return None
