"""Gives turns to queries of strangers, so that none keeps the others out, however long its queries run.

While anybody else waits, a query has ``SHARE`` seconds; then it ends. The next turn is of the caller with the fewest
queries at work, and among these of the one who was served longest ago. Who fills the line leaves it for a newcomer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

from chain.errors import Refused
from engines.errors import LimitExceeded
from odfd.api.queries.service import LAST_FRAME
from odfd.kamu.ports import BUSY

WAITING: Final = 16
"""Queries that wait for a turn; more are refused."""
SHARE: Final = 10.0
"""Seconds of a query while another caller waits."""
_REMEMBERED: Final = 1024
"""Callers whose last turn is remembered."""


@dataclass(slots=True, eq=False)
class _Turn:
    caller: Hashable
    came: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    began: float = math.inf
    sends: bool = False
    """Whether a frame is on its way, which is sent whole, unless its receiver does not read."""


class FairTurns:
    """Lends ``most`` turns. ``caller``: block of addresses; empty if it is not known, and then each is another's."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._working: list[_Turn] = []
        self._waiting: list[_Turn] = []
        self._served: dict[Hashable, float] = {}
        """When the last turn of a caller ended, the oldest first."""

    @asynccontextmanager
    async def one(self, caller: str) -> AsyncIterator[Callable[[], AbstractContextManager[None]]]:
        """Waits for a turn, and holds it. Yields the context in which a frame is sent.

        Raises Refused if too many wait, LimitExceeded if its share ends it.
        """
        turn = _Turn(caller or object())
        self._queue(turn)
        try:
            self._arrange()
            await turn.came.wait()
            if turn not in self._working:
                raise _busy()
            with turn.scope:
                yield lambda: self._sending(turn)
        finally:
            self._leave(turn)
        if turn.scope.cancelled_caught:
            raise LimitExceeded(
                f"the query took more than {SHARE:g} s while others waited",
                rule="query-share", hint="ask for less, or again when fewer ask",
            )  # fmt: skip

    @contextmanager
    def _sending(self, turn: _Turn) -> Iterator[None]:
        turn.sends = True
        self._arrange()
        try:
            yield
        finally:
            turn.sends = False
            self._arrange()

    def _queue(self, turn: _Turn) -> None:
        """Puts a query into the line; one of the caller who has most there leaves a full one. Raises Refused."""
        if len(self._waiting) >= WAITING:
            counts = Counter(each.caller for each in self._waiting)
            ((most, count),) = counts.most_common(1)
            if count <= counts[turn.caller] + 1:
                raise _busy()
            last = next(each for each in reversed(self._waiting) if each.caller == most)
            self._waiting.remove(last)
            last.came.set()
        self._waiting.append(turn)

    def _leave(self, turn: _Turn) -> None:
        if turn in self._working:
            self._working.remove(turn)
            self._served.pop(turn.caller, None)
            self._served[turn.caller] = trio.current_time()
            if len(self._served) > _REMEMBERED:
                del self._served[next(iter(self._served))]
        if turn in self._waiting:
            self._waiting.remove(turn)
        self._arrange()

    def _arrange(self) -> None:
        """Begins what may begin, and sets the end of what is at work, after any change."""
        while self._waiting and len(self._working) < self._most:
            working = Counter(each.caller for each in self._working)
            turn = min(self._waiting, key=lambda each: (working[each.caller], self._served.get(each.caller, -math.inf)))
            self._waiting.remove(turn)
            turn.began = trio.current_time()
            self._working.append(turn)
            turn.came.set()
        for turn in self._working:
            contested = any(each.caller != turn.caller for each in self._waiting)
            end = turn.began + SHARE + (LAST_FRAME if turn.sends else 0.0)
            turn.scope.deadline = end if contested else math.inf


def _busy() -> Refused:
    return Refused("too many questions wait for their turn", rule=BUSY, hint="ask again in a while")
