"""Work done in rounds: one at once, then another whenever something happened, or when a pause is over.

For parts that look at everything each time and so may miss a poke: pokes while a round is under way bring one more
round, however many they were. A ``Rounds`` is alive while ``run`` is.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from odfd.kit.supervision import Life

UNTIL_POKED: Final = math.inf
"""A pause that only a poke ends."""


class Rounds:
    """``work`` does one round and says how many seconds may pass before the next. What it raises ends ``run``."""

    def __init__(self, work: Callable[[], Awaitable[float]]) -> None:
        self._work = work
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
        while True:
            self._poked = trio.Event()
            pause = await self._work()
            with trio.move_on_after(pause):
                await self._poked.wait()
