"""Gives turns to queries, so that no caller keeps the others out, however long its queries run.

The node's owner may use all places; others leave one free, and strangers half of them. While another caller waits for a
place, a query has the time of its crowd; then it ends. The next turn is of the caller with the fewest queries at work,
and among these of the one who was served longest ago. Who fills the line leaves it for a newcomer.
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
from odfd.queries.askers import Crowd, QueryCaller
from odfd.queries.doors import BUSY

WAITING: Final = 16
"""Queries of accounts, and of strangers, that wait for a turn; more are refused. The owner's all wait."""
LAST_FRAME: Final = 10.0
"""Seconds after the end of a query's time for a client to take a frame that is under way."""
_REMEMBERED: Final = 1024
"""Callers whose last turn is remembered."""


@dataclass(slots=True, eq=False)
class _Turn:
    crowd: Crowd
    caller: Hashable
    came: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    began: float = math.inf
    sends: bool = False
    """Whether a frame is on its way, which is sent whole, unless its receiver does not read."""


class FairTurns:
    """Lends ``most`` turns."""

    def __init__(self, most: int) -> None:
        self._room = {
            Crowd.OWNER: (most, (Crowd.OWNER, Crowd.ACCOUNTS, Crowd.STRANGERS)),
            Crowd.ACCOUNTS: (max(1, most - 1), (Crowd.ACCOUNTS, Crowd.STRANGERS)),
            Crowd.STRANGERS: (max(1, most // 2), (Crowd.STRANGERS,)),
        }
        """Places of a crowd, and the crowds that take them."""
        self._working: list[_Turn] = []
        self._waiting: list[_Turn] = []
        self._served: dict[Hashable, float] = {}
        """When the last turn of a caller ended, the oldest first."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def one(self, caller: QueryCaller) -> AsyncIterator[Callable[[], AbstractContextManager[None]]]:
        """Waits for a turn, and holds it. Yields the context in which a frame is sent.

        Raises Refused if too many wait, LimitExceeded if its time ends it.
        """
        # Callers without a name are not one caller: none of them waits for the turns of the others.
        turn = _Turn(caller.crowd, caller if caller.name else object())
        self._queue(turn)
        try:
            self._arrange()
            await turn.came.wait()
            # ``came`` is also set for who was put out of a full line (``_queue``).
            if turn not in self._working:
                raise _busy()
            with turn.scope:
                yield lambda: self._sending(turn)
        finally:
            self._leave(turn)
        if turn.scope.cancelled_caught:
            raise LimitExceeded(
                f"the query took more than {turn.crowd.value:g} s while others waited",
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
        """Puts a query into the line of its crowd; one of the caller who has most there leaves a full one.

        Raises Refused.
        """
        line = [each for each in self._waiting if each.crowd is turn.crowd]
        if len(line) >= WAITING and turn.crowd is not Crowd.OWNER:
            counts = Counter(each.caller for each in line)
            ((most, count),) = counts.most_common(1)
            # ``+ 1``: the newcomer would otherwise only change places with the one who leaves.
            if count <= counts[turn.caller] + 1:
                raise _busy()
            last = next(each for each in reversed(line) if each.caller == most)
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

    def _fits(self, turn: _Turn, working: list[_Turn]) -> bool:
        """Whether there is a place for a turn beside ``working``, in each of the rooms that its crowd is in."""
        return all(
            sum(each.crowd in crowds for each in working) < most
            for most, crowds in self._room.values()
            if turn.crowd in crowds
        )

    def _arrange(self) -> None:
        """Begins what may begin, and sets the end of what is at work, after any change."""
        while able := [each for each in self._waiting if self._fits(each, self._working)]:
            working = Counter(each.caller for each in self._working)
            turn = min(able, key=lambda each: (working[each.caller], self._served.get(each.caller, -math.inf)))
            self._waiting.remove(turn)
            turn.began = trio.current_time()
            self._working.append(turn)
            turn.came.set()
        for turn in self._working:
            others = [each for each in self._working if each is not turn]
            contested = any(each.caller != turn.caller and self._fits(each, others) for each in self._waiting)
            # A frame that is cut off would hide the fault that follows it from the client.
            end = turn.began + turn.crowd.value + (LAST_FRAME if turn.sends else 0.0)
            turn.scope.deadline = end if contested else math.inf


def _busy() -> Refused:
    return Refused("too many queries wait for a slot", rule=BUSY, hint="retry in a while")
