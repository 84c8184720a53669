"""Seals former renditions an hour after their handover, and frees their data once nobody needs it.

Each round asks ``odfd.renditions.handover`` what is next for the last handover from each rendition, performs it, and
sleeps until more is due; a node without several renditions of a collection does nothing. A round that was cut off is
done again: the mark that data is gone is durable before the data goes. Spec: docs/spec/collections.md#handover.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Final

import trio

from chain.errors import Conflict, Fault
from chain.instant import SECOND, to_millis
from chain.store.shards import SEALED
from odfd.control.assembly import Context
from odfd.renditions.handover import Command, Drop, Rest, RunOn, Seal, next_effect
from odfd.renditions.timeline import Switch
from odfd.runtime.hanging_calls import end_if_unwanted
from odfd.runtime.reconcile_loop import UNTIL_POKED, ReconcileLoop
from odfd.runtime.subjects import about
from odfd.services.renditions.effects import RenditionEffects
from odfd.store import collections
from odfd.store.collections import CollectionState
from odfd.store.directory import StateDirectory
from odfd.store.read_holds import HistoryHeld

LONGEST: Final = 3600.0
"""Most seconds between two looks at the clock, which may be set meanwhile."""
AGAIN: Final = 60.0
"""Seconds until the next look at a rendition whose data could not be freed, as while somebody reads it."""

START_SECONDS: Final = 10.0
"""Seconds before the first round: a node that starts has more urgent work."""


class RenditionUpkeep:
    """Keeps the collections of one node settled. Poke ``loop`` after a handover, and when a hold ends."""

    def __init__(self, home: StateDirectory, effects: RenditionEffects, context: Context) -> None:
        self._home, self._effects = home, effects
        self._clock, self._events, self._logger = context.clock, context.events, context.logger
        self.loop = ReconcileLoop(self._round, start_after=START_SECONDS)
        self.step: Callable[[str], None] = lambda _: None
        """Called after each durable effect; tests use it to let a process die there."""

    async def _round(self) -> float:
        pauses = [UNTIL_POKED]
        for state in await trio.to_thread.run_sync(self._every):
            pauses.append(await self._home.turns.perform(("rendition", state.id), partial(self._settle, state)))
        return min(pauses)

    def _every(self) -> list[CollectionState]:
        """Lists the collections that this node writes; the owner of a mirrored one settles it."""
        with self._home.database.read() as connection:
            return [
                each for each in collections.every(connection) if self._home.keys.has_dataset_key(each.active.dataset)
            ]

    def _settle(self, state: CollectionState) -> float:
        """Does all that is due in a collection. Returns the seconds until more is due. Blocking."""
        pauses = [UNTIL_POKED]
        for switch in _last_of_each(state):
            try:
                pauses.append(self._after(state, switch))
            except HistoryHeld:
                pauses.append(self._until_free(state))
            except Fault as fault:
                self._logger.error("a rendition is not settled", fault=str(fault), rule=fault.rule)
                pauses.append(AGAIN)
        for member in state.members:
            end_if_unwanted()
            if member.let_go and not self._effects.is_swept(member):
                pauses.append(UNTIL_POKED if self._effects.sweep(member) else AGAIN)
        return min(pauses)

    def _after(self, known: CollectionState, switch: Switch) -> float:
        while True:
            end_if_unwanted()
            state = self._effects.state(known.id)
            command = state.command(switch.command) or Command(switch.command, switch.to.number)
            effect = next_effect(self._effects.situation(state, command))
            match effect:
                case RunOn(rendition=number, until=until):
                    self._effects.run_on(state.member(number), until)
                case Seal(rendition=number):
                    self._effects.run_on(state.member(number), SEALED)
                    self._tell(state, number, "rendition.sealed", "it takes nothing more")
                case Drop(rendition=number):
                    if self._effects.is_read(state.member(number)):
                        return LONGEST
                    if not self._drop(state, number):
                        return self._until_free(state)
                case Rest(until=None):
                    return self._until_free(state)
                case Rest(until=until) if until is not None:
                    return min(LONGEST, max(0.001, (until - to_millis(self._clock.now())) / 1000))
                case _:
                    return UNTIL_POKED
            self.step(type(effect).__name__)

    def _drop(self, state: CollectionState, number: int) -> bool:
        """Marks the data of a rendition as gone; returns false if a reader came meanwhile. Raises HistoryHeld."""
        try:
            self._effects.drop(state.member(number))
        except Conflict:
            return False
        self._tell(state, number, "rendition.dropped", "its data is not needed any more, and is deleted")
        return True

    def _tell(self, state: CollectionState, number: int, kind: str, said: str) -> None:
        dataset = state.member(number).dataset
        self._events.emit(
            kind, self._home.name_of(dataset), said, about=about(dataset), id=str(dataset), rendition=number
        )

    def _until_free(self, state: CollectionState) -> float:
        """Returns the seconds until the first hold expires; infinity if none does."""
        now = self._clock.now()
        ends = [held.expires for held in self._effects.holds(state) if held.expires is not None]
        return min(((end - now) / SECOND for end in ends), default=math.inf)


def _last_of_each(state: CollectionState) -> Iterator[Switch]:
    """Yields the last handover from each rendition whose data is not gone."""
    last: dict[int, Switch] = {}
    switches = state.timeline.switches
    for before, after in pairwise(switches):
        last[before.to.number] = after
    return iter([switch for number, switch in last.items() if not state.member(number).is_gone])
