"""Stores events that tell what was found wrong with a dataset, or what was decided, beside the dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import aclosing

import trio

from chain.errors import Fault
from chain.ids import DID_ODF, DatasetId
from chain.store.database import Database
from odfd.obs.events import Event, EventLog
from odfd.runtime.ring import Lagged
from odfd.runtime.supervision import Life
from odfd.store import incidents
from odfd.store.incidents import Incident


class IncidentKeeper:
    """One for a daemon: events from its start on are stored once, also where ``run`` is started again."""

    def __init__(self, database: Database, log: EventLog) -> None:
        self._database, self._log = database, log
        self._position = 0

    async def run(self, life: Life) -> None:
        """Stores also what came until the stop."""
        life.ready()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow)
            await life.stopping.wait()
            nursery.cancel_scope.cancel()
        await self._note([each for each in self._log.list_kept() if each.sequence > self._position])

    async def _follow(self) -> None:
        async with aclosing(self._log.follow(self._position)) as all_news:
            async for news in all_news:
                if isinstance(news, Lagged):
                    self._position = news.resume - 1
                    continue
                await self._note([news])
                self._position = news.sequence

    async def _note(self, events: Iterable[Event]) -> None:
        if found := [incident for event in events for incident in incidents_of(event)]:
            await trio.to_thread.run_sync(self._keep, found)

    def _keep(self, found: list[Incident]) -> None:
        with self._database.write() as connection:
            incidents.keep(connection, [each for each in found if incidents.is_here(connection, each.dataset)])


def incidents_of(event: Event) -> Iterator[Incident]:
    """Yields one for each dataset that the event is about."""
    if event.kind not in incidents.KINDS:
        return
    for thing in sorted(event.about.things):
        if thing.startswith(DID_ODF):
            try:
                dataset = DatasetId.parse(thing)
            except Fault:
                continue
            yield Incident(dataset, event.time, event.kind, event.message)
