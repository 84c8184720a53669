"""Watches declared resources: yields the present state, then each change once, in the order of commits.

The log is read once for all watchers that wait at the same position. The first reader at a position reads, and waits if
there is nothing; others at the same position wait for its result. Results are kept until the next write, for readers
that come later. A leading reader that is cancelled or fails wakes the others, and one of them reads. All who share a
read get the same, so whoever passes news on leaves out what a reader may not see.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec
import trio

from chain.digits import read_whole
from chain.errors import Invalid, Refused
from odfd.control import wire
from odfd.control.responses import SharedValue
from odfd.obs.events import EventLog
from odfd.resources.resource import Resource, ResourceEvent
from odfd.resources.store import ResourceStore
from odfd.store.directory import StateDirectory

KEPT: Final = 8
"""Positions whose news are kept. Readers that lag behind read by themselves."""
T = TypeVar("T")


class _Flight(Generic[T]):
    """A read under way at one position, for all readers there."""

    def __init__(self) -> None:
        self.over = trio.Event()
        self.found: Sequence[T] = ()
        """The news; empty after the end if the leading reader was cancelled or failed."""


class SharedReads(Generic[T]):
    """Shares the reads of one log among its readers, which are tasks of one trio run."""

    def __init__(self, read: Callable[[int], Sequence[T]], written: Callable[[], int], events: EventLog) -> None:
        """``read``, called in worker threads, returns some of what comes after a position, in order, or nothing.

        ``written`` grows with each write to the log, at the latest when ``events`` are nudged after it.
        """
        self._read, self._written, self._events = read, written, events
        self._flights: dict[int, _Flight[T]] = {}
        self._kept: dict[int, Sequence[T]] = {}
        self._kept_at = -1
        """The value of ``written`` that ``_kept`` belongs to."""

    async def after(self, position: int) -> Sequence[T]:
        """Waits for news after a position, and returns some of it. Raises what reading raises."""
        while True:
            if found := self._find_known(position):
                await trio.lowlevel.checkpoint()
                return found
            flight = self._flights.get(position)
            if flight is None:
                return await self._lead(position)
            await flight.over.wait()
            if flight.found:
                return flight.found

    async def _lead(self, position: int) -> Sequence[T]:
        """Reads for all readers that come to this position meanwhile."""
        flight = self._flights[position] = _Flight()
        try:
            while not flight.found:
                grown = self._events.grown
                if self._find_known(position) is None:
                    flight.found = await self._look(position)
                else:
                    await grown.wait()
            return flight.found
        finally:
            del self._flights[position]
            flight.over.set()

    async def _look(self, position: int) -> Sequence[T]:
        written = self._written()
        found = await trio.to_thread.run_sync(self._read, position)
        if written == self._kept_at:
            if len(self._kept) >= KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[position] = found
        return found

    def _find_known(self, position: int) -> Sequence[T] | None:
        """Returns what was read at a position since the last write; ``None`` if nobody read."""
        written = self._written()
        if written != self._kept_at:
            self._kept_at = written
            self._kept.clear()
        return self._kept.get(position)


PAGE: Final = 500
"""Most events read at a time."""
PAGE_BYTES: Final = 1024 * 1024
"""Most bytes of events read at a time for watchers; at least one event is read."""
WATCHES: Final = 128
"""Most watches that may be open: half of the control socket's connections, so that others can ask."""
News: TypeAlias = SharedValue[wire.ResourceNews]


class _Told(msgspec.Struct, frozen=True):
    """An event in the form that all watchers get."""

    rv: int
    type: str
    news: News


class ResourceWatches:
    """Serves the watches of one node; reads and encodes news once for all watchers at the same position."""

    def __init__(
        self,
        home: StateDirectory,
        events: EventLog,
        *,
        view: Callable[[Resource], wire.ResourceView],
        is_listed: Callable[[str, str | None], bool],
    ) -> None:
        """``view`` is called in worker threads.

        ``is_listed``: whether a watch of one type, or of all, reports a type.
        """
        self._home, self._events = home, events
        self._view, self._is_listed = view, is_listed
        self._open = 0
        self._reads = SharedReads(self._after, lambda: home.database.writes, events)

    async def news(self, since: str | None, type_: str | None, *, ticks: bool = False) -> AsyncGenerator[News, None]:
        """Yields the present resources and a bookmark if ``since`` is absent; then each change once, in order.

        ``ticks``: also yields a bookmark after any event, for readers that judge rights anew. Raises Invalid for a
        version of another log, after which a reader lists anew; Refused if too many watches are open.
        """
        if self._open >= WATCHES:
            hint = "end one, or ask again later"
            raise Refused(f"{WATCHES} watches of resources are open", rule="watch-limit", hint=hint)
        self._open += 1
        grown = self._events.grown
        try:
            epoch, at, standing = await trio.to_thread.run_sync(self._begin, since, type_)
            for view in standing:
                yield SharedValue(wire.ResourceNews(version=f"{epoch}-{at}", op="Added", resource=view))
            yield SharedValue(wire.ResourceNews(version=f"{epoch}-{at}", op="Bookmark"))
            while True:
                found = await (self._after_or_tick(at, grown) if ticks else self._reads.after(at))
                grown = self._events.grown  # taken before anything is judged by the present state
                for each in found:
                    if self._is_listed(each.type, type_):
                        yield each.news
                at = found[-1].rv if found else at
                if ticks:
                    yield SharedValue(wire.ResourceNews(version=f"{epoch}-{at}", op="Bookmark"))
        finally:
            self._open -= 1

    async def _after_or_tick(self, at: int, grown: trio.Event) -> Sequence[_Told]:
        """Waits for news of resources, or for any other event, and then returns nothing."""
        found: Sequence[_Told] = ()

        async def read(over: trio.CancelScope) -> None:
            nonlocal found
            found = await self._reads.after(at)
            over.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, nursery.cancel_scope)
            await grown.wait()
            nursery.cancel_scope.cancel()
        return found

    def _begin(self, since: str | None, type_: str | None) -> tuple[str, int, Sequence[wire.ResourceView]]:
        with self._home.database.read() as connection:
            store = ResourceStore(connection)
            if since is not None:
                return store.epoch(), position(store, since), ()
            epoch, at, standing = store.epoch(), store.newest(), store.all()
        return epoch, at, [self._view(each) for each in standing if self._is_listed(each.type, type_)]

    def _after(self, at: int) -> Sequence[_Told]:
        with self._home.database.read() as connection:
            store = ResourceStore(connection)
            epoch, events = store.epoch(), store.events(at, PAGE, PAGE_BYTES)
        return [_Told(event.rv, event.resource.type, self._to_news(epoch, event)) for event in events]

    def _to_news(self, epoch: str, event: ResourceEvent) -> News:
        op = "Modified" if event.op == "Observed" else event.op
        return SharedValue(
            wire.ResourceNews(version=f"{epoch}-{event.rv}", op=op, resource=self._view(event.resource))
        )  # fmt: skip


def position(store: ResourceStore, since: str) -> int:
    """Returns the position of a version in this log. Raises Invalid for one of another log, or no longer kept."""
    epoch, floor = store.epoch(), store.floor()
    said, _, digits = since.rpartition("-")
    number = read_whole(digits)
    hint = "list again: odfctl get KIND -w without --since"
    if said != epoch or number is None or number > store.newest():
        text = f"{since[:60]!r} is no version of this node's log of resources"
        raise Invalid(text, rule="resource-version", hint=hint)
    if number < floor:
        text = f"{since[:60]} is too old: this node keeps the changes after {epoch}-{floor}"
        raise Invalid(text, rule="resource-version-too-old", hint=hint)
    return number


def number_of(version: str) -> int:
    """Returns the number of a version of the log."""
    return int(version.rpartition("-")[2])
