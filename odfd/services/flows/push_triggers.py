"""Tells the scheduler of flows when records that were pushed to Sources, or that inputs got, make their flows run.

It checks after a push, at the end of a run and for a new flow; it never polls. The spool counts the records that wait
for a dataset, and chains have what a derived dataset has not read, so after a restart they are counted again and none
is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import trio

from chain.errors import NotFound, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from odfd.flows.plan import FlowPlan
from odfd.flows.scheduler import Scheduler
from odfd.resources.store import ResourceStore
from odfd.store.directory import StateDirectory
from odfd.transform.pending import unread_records


class _Awaited(NamedTuple):
    sources: frozenset[str]
    """Ids of the Sources that the plan waits for."""
    at: Instant | None
    is_lost: bool
    """Whether one of its Sources is not known, or not yet: a flow is in force before its references are recorded."""


class PushTriggers:
    """Tracks the records that wait at Sources, for the plans of one node. Used from the event loop."""

    def __init__(self, home: StateDirectory, scheduler: Scheduler, poke: Callable[[], None]) -> None:
        self._home, self._scheduler, self._poke = home, scheduler, poke
        self._keys: dict[str, set[str]] = {}
        """Keys of plans by the id of the Source that they wait for."""
        self._changed: set[str] = set()
        """Keys of plans to check."""
        self._lost: set[str] = set()
        """Keys of plans that name an unknown Source."""
        self._applies = 0
        """Number of applies that have ended."""
        self._pushed: set[str] = set()
        """Sources to which records were pushed since the last check began."""

    def note_push(self, source: str) -> None:
        """Notes a push to a Source, by its id."""
        self._pushed.add(source)
        keys = self._keys.get(source)
        if keys:
            self._changed |= keys
            self._poke()

    def note(self, key: str, plan: FlowPlan) -> None:
        """Notes that a plan is new, or has run."""
        if plan.arrivals or plan.batched:
            self._changed.add(key)

    def news(self, dataset: DatasetId) -> None:
        """Notes that a dataset may have new records."""
        self._changed.update(self._scheduler.awaiting(dataset))

    def note_apply(self) -> None:
        """Notes that an apply has ended, which may have made unknown Sources known."""
        self._applies += 1
        if self._lost:
            self._changed |= self._lost
            self._poke()

    async def look(self, now: Instant) -> None:
        """Checks the changed plans; costs nothing if there are none. Plans that change meanwhile are checked again."""
        changed, self._changed, self._pushed = self._changed, set(), set()
        applies = self._applies
        plans = {
            key: (entry.plan, entry.record.ended_at)
            for key in changed
            if (entry := self._scheduler.find(key)) is not None
        }
        found = await trio.to_thread.run_sync(self._read, plans, now) if plans else {}
        for keys in self._keys.values() if changed else ():
            keys -= changed
        self._lost -= changed
        for key, awaited in found.items():
            for source in awaited.sources:
                self._keys.setdefault(source, set()).add(key)
            if awaited.is_lost:
                self._lost.add(key)
            self._scheduler.await_until(key, awaited.at, now)
            if awaited.sources & self._pushed or (awaited.is_lost and applies != self._applies):
                self._changed.add(key)
                self._poke()

    def _read(self, plans: Mapping[str, tuple[FlowPlan, Instant | None]], now: Instant) -> dict[str, _Awaited]:
        return {key: self._awaited_of(plan, ended, now) for key, (plan, ended) in plans.items()}

    def _awaited_of(self, plan: FlowPlan, ended: Instant | None, now: Instant) -> _Awaited:
        sources: set[str] = set()
        times: list[Instant] = []
        is_lost = False
        for arrival in plan.arrivals:
            with self._home.database.read() as connection:
                try:
                    store = ResourceStore(connection)
                    source = self._home.uses.find_meant(store, store.get(plan.id), arrival.source).id
                except (NotFound, Refused):
                    is_lost = True  # the flow's resource tells of it
                    continue
            sources.add(source)
            waiting = self._home.spool.waiting(source, plan.target)
            if waiting.oldest is not None:
                at = now if waiting.records >= arrival.least else Instant(min(waiting.oldest, now) + arrival.longest)
                times.append(_rested_at(at, ended, arrival.cooldown, now))
        if (follows := plan.follows) is not None and plan.batched:
            derived = follows.dataset or plan.target
            unread = unread_records(self._home.chains, derived, plan.batched, follows.least)
            if unread.oldest is not None:
                at = now if unread.records >= follows.least else Instant(min(unread.oldest, now) + follows.longest)
                times.append(_rested_at(at, ended, follows.cooldown, now))
        return _Awaited(frozenset(sources), min(times, default=None), is_lost)


def _rested_at(at: Instant, ended: Instant | None, cooldown: int, now: Instant) -> Instant:
    """Returns a time, or the end of a cooldown after the last run if that is later."""
    return at if ended is None else Instant(max(at, min(ended, now) + cooldown))
