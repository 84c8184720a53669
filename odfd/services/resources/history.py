"""Tells how resources changed: the events of their log, each with what it changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from functools import partial
from typing import NamedTuple

import trio

from chain import instant
from chain.errors import NotFound
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.operations import Permission, operation
from odfd.resources.changes import describe
from odfd.resources.resource import Resource, ResourceEvent
from odfd.resources.store import ResourceStore
from odfd.services.resources.declarations import DeclarationService
from odfd.services.resources.watches import PAGE, position
from odfd.store.directory import StateDirectory


class PastEvent(NamedTuple):
    """An event of the log, and its resource as of the event before, if that is kept."""

    event: ResourceEvent
    before: Resource | None


def change_of(epoch: str, past: PastEvent) -> wire.ResourceChange:
    """Describes an event of a log and what it changed."""
    event, resource = past.event, past.event.resource
    change, details = describe(past.before, event)
    return wire.ResourceChange(
        version=f"{epoch}-{event.rv}", time=instant.render(event.at), type=resource.type, name=resource.name,
        id=resource.id, generation=resource.generation, change=change, details=details,
    )  # fmt: skip


def bookmark_at(version: str) -> wire.ResourceChange:
    """Returns the row that tells how far the log was read."""
    return wire.ResourceChange(version=version, time="", type="", name="", id="", generation=0, change="Bookmark")


class HistoryService:
    """The API service for the log of resources. Reads are by version, so that each event is read exactly once."""

    def __init__(self, home: StateDirectory, context: Context, declarations: DeclarationService) -> None:
        self._home = home
        self._events = context.events
        self._declarations = declarations

    @operation(needs=Permission.BY_RULE)
    def last(self, of: str | None, limit: int) -> Sequence[wire.ResourceChange]:
        """Lists the last changes of one resource or of all, in order. Raises NotFound.

        ``of``: ``TYPE/NAME``, also of a deleted resource.
        """
        chosen = self.choose(of)
        with self._home.database.read() as connection:
            store = ResourceStore(connection)
            return self._views(store, chosen, self._last_of(store, chosen, limit))

    @operation(needs=Permission.BY_RULE)
    async def follow(
        self, since: str | None, of: str | None, limit: int, *, bookmark: bool = False
    ) -> AsyncIterator[wire.ResourceChange]:
        """Yields the changes after a version, or the last ones, then live ones.

        ``bookmark``: between both, yields how far the log was read. Raises NotFound; Invalid for another log.
        """
        at, chosen, standing = await trio.to_thread.run_sync(partial(self._begin, since, of, limit, bookmark=bookmark))
        return self._from(at, chosen, standing)

    async def _from(
        self, at: int, chosen: str | None, standing: Sequence[wire.ResourceChange]
    ) -> AsyncIterator[wire.ResourceChange]:
        for each in standing:
            yield each
        while True:
            grown = self._events.grown
            seen, more = await trio.to_thread.run_sync(self._after, at, chosen)
            for each in more:
                yield each
            if seen == at:
                await grown.wait()
            at = seen

    def _begin(
        self, since: str | None, of: str | None, limit: int, *, bookmark: bool
    ) -> tuple[int, str | None, Sequence[wire.ResourceChange]]:
        chosen = self.choose(of)
        with self._home.database.read() as connection:
            store = ResourceStore(connection)
            if since is not None:
                at, standing = position(store, since), []
            else:
                at, standing = store.newest(), [*self._views(store, chosen, self._last_of(store, chosen, limit))]
            mark = [bookmark_at(f"{store.epoch()}-{at}")] if bookmark else []
        return at, chosen, [*standing, *mark]

    def _after(self, at: int, chosen: str | None) -> tuple[int, Sequence[wire.ResourceChange]]:
        """Returns how far the log was read, and the changes found there."""
        with self._home.database.read() as connection:
            store = ResourceStore(connection)
            events = store.events(at, PAGE)
            return (events[-1].rv if events else at), self._views(store, chosen, events)

    def choose(self, of: str | None) -> str | None:
        """Returns the id of the resource named ``TYPE/NAME``. Blocking. Raises NotFound."""
        if of is None:
            return None
        word, slash, name = of.partition("/")
        if not slash:
            raise NotFound(f"{of[:80]!r} is no resource", rule="resource", hint="written as KIND/NAME: dataset/flights")
        return self._declarations.id_of(word, name)

    def _last_of(self, store: ResourceStore, chosen: str | None, limit: int) -> Sequence[ResourceEvent]:
        return store.history((chosen,), limit) if chosen else store.history(None, limit, self._declarations.unlisted)

    def _views(
        self, store: ResourceStore, chosen: str | None, events: Sequence[ResourceEvent]
    ) -> Sequence[wire.ResourceChange]:
        epoch, unlisted = store.epoch(), self._declarations.unlisted
        return [
            change_of(epoch, PastEvent(event, store.before(event)))
            for event in events
            if chosen == event.resource.id or (chosen is None and event.resource.type not in unlisted)
        ]

    # Used for accounts, of which each may see some resources only. Blocking.

    def epoch_and_newest(self) -> tuple[str, int]:
        """Returns the name of the log, and the number of its last event."""
        with self._home.database.read() as connection:
            store = ResourceStore(connection)
            return store.epoch(), store.newest()

    def last_of(
        self, ids: Collection[str], limit: int, *, is_chosen: bool, upto: int | None = None
    ) -> Sequence[PastEvent]:
        """Returns the last events of some resources, in order, to the number ``upto``.

        Types that are not listed are left out unless chosen.
        """
        with self._home.database.read() as connection:
            store = ResourceStore(connection)
            events = store.history(ids, limit, () if is_chosen else self._declarations.unlisted, upto)
            return [PastEvent(event, store.before(event)) for event in events]

    def after(self, at: int) -> tuple[int, Sequence[PastEvent]]:
        """Returns how far the log was read, and the events of listed types found there."""
        with self._home.database.read() as connection:
            store = ResourceStore(connection)
            events, unlisted = store.events(at, PAGE), self._declarations.unlisted
            found = [PastEvent(event, store.before(event)) for event in events if event.resource.type not in unlisted]
            return (events[-1].rv if events else at), found

    @property
    def grown(self) -> trio.Event:
        """An event that is set at the next change."""
        return self._events.grown
