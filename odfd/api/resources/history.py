"""Tells what became of resources: the events of their log, each with what it changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import trio

from chain import instant
from chain.errors import NotFound
from odfd.api.resources.declarations import DeclarationService
from odfd.api.resources.versions import position
from odfd.api.resources.watches import PAGE
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.resources.changes import told
from odfd.resources.declared import DeclaredStore, ResourceEvent
from odfd.state.directory import StateDirectory


class HistoryService:
    """The API service for the log of resources. Reads are by version, so that each event is read exactly once."""

    def __init__(self, home: StateDirectory, context: Context, declarations: DeclarationService) -> None:
        self._home = home
        self._events = context.events
        self._declarations = declarations

    async def last(self, of: str | None, limit: int) -> Sequence[wire.ResourceChange]:
        """The last of one resource (``TYPE/NAME``, also one that is deleted) or of all, in order. Raises NotFound."""
        return await trio.to_thread.run_sync(self._last, of, limit)

    async def follow(self, since: str | None, of: str | None, limit: int) -> AsyncIterator[wire.ResourceChange]:
        """Yields changes after a version, or the last ones, then live. Raises NotFound; Invalid for another log."""
        at, chosen, standing = await trio.to_thread.run_sync(self._begin, since, of, limit)
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

    def _last(self, of: str | None, limit: int) -> Sequence[wire.ResourceChange]:
        self._declarations.adopt()
        chosen = self._chosen(of)
        with self._home.database.read() as connection:
            store = DeclaredStore(connection)
            return self._views(store, chosen, store.history(chosen, limit, self._declarations.unlisted))

    def _begin(
        self, since: str | None, of: str | None, limit: int
    ) -> tuple[int, str | None, Sequence[wire.ResourceChange]]:
        self._declarations.adopt()
        chosen = self._chosen(of)
        with self._home.database.read() as connection:
            store = DeclaredStore(connection)
            if since is not None:
                return position(store, since), chosen, ()
            return (
                store.newest(),
                chosen,
                self._views(store, chosen, store.history(chosen, limit, self._declarations.unlisted)),
            )

    def _after(self, at: int, chosen: str | None) -> tuple[int, Sequence[wire.ResourceChange]]:
        """And how far it was read."""
        self._declarations.adopt()
        with self._home.database.read() as connection:
            store = DeclaredStore(connection)
            events = store.events(at, PAGE)
            return (events[-1].rv if events else at), self._views(store, chosen, events)

    def _chosen(self, of: str | None) -> str | None:
        """The id of what is asked for."""
        if of is None:
            return None
        word, slash, name = of.partition("/")
        if not slash:
            raise NotFound(f"{of[:80]!r} is no resource", rule="resource", hint="written as KIND/NAME: dataset/flights")
        return self._declarations.id_of(word, name)

    def _views(
        self, store: DeclaredStore, chosen: str | None, events: Sequence[ResourceEvent]
    ) -> Sequence[wire.ResourceChange]:
        epoch = store.epoch()
        found = []
        for each in events:
            resource = each.resource
            if chosen == resource.id or (chosen is None and resource.type not in self._declarations.unlisted):
                change, details = told(store.before(each), each)
                found.append(
                    wire.ResourceChange(
                        version=f"{epoch}-{each.rv}", time=instant.render(each.at), type=resource.type,
                        name=resource.name, id=resource.id, generation=resource.generation, change=change,
                        details=details,
                    )
                )  # fmt: skip
        return found
