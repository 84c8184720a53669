"""Streams changes of the resources that one account can read, until its rights change.

The watch then ends with ``Reset``, and the client lists and watches anew. So it hears nothing more about resources that
it may no longer read, and misses none that it may read now. Each change is judged before it is sent. Versions that
accounts get are ``POSITION+MARK``: the encrypted number of the last readable change, and a mark of the rights.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec
import trio

from odfd.control import wire
from odfd.control.responses import SharedValue
from odfd.services.access.calls import Call
from odfd.services.access.guard import Guard
from odfd.services.resources.watches import number_of
from odfd.store.access_state import AccessState

TASK: Final = "Task"


class SubjectRights:
    """The rights of a subject, as of the last look."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._state: AccessState | None = None
        self.readable: Collection[str] = ()
        """Ids of the resources that the subject can read."""
        self.mark = ""
        """The mark of the rights at the first look, which goes into versions."""
        self.position = 0
        """The log number of the last change that the subject could read, as of the last look."""
        self._published = 0
        self.told: set[str] = set()
        """Ids and dids that were readable at any time during this watch: their deletion is reported."""

    def begin(self, since: str | None) -> bool:
        """Looks for the first time. Returns whether the rights differ from those under which ``since`` was given.

        Blocking.
        """
        self._look()
        return since is not None and not self._guard.has_rights_of(since, self.mark, self.readable)

    def version(self, number: int) -> str:
        """Returns the version of the log at a number."""
        return self._guard.version(number, self.mark)

    async def have_changed(self, *, has_moved: bool) -> bool:
        """Whether a resource that existed before and still exists became readable or unreadable.

        ``has_moved``: whether the log of resources has grown. Raises Refused if the token is no longer valid.
        """
        if not (has_moved or self._guard.subject.token or self._guard.published != self._published):
            return False
        return await trio.to_thread.run_sync(self._has_changed)

    def _has_changed(self) -> bool:
        if not self._guard.is_same_caller():
            return True
        before, readable = self._state, self.readable
        assert before is not None
        if self._guard.state().relations is before.relations and self._guard.published == self._published:
            return False
        both = before.accounts.keys() & self._look().accounts.keys()
        return any((each in readable) != (each in self.readable) for each in both)

    def _look(self) -> AccessState:
        """Looks anew. Keeps the mark of the first look: a watch ends when its rights change."""
        sight, mark = self._guard.look()
        self.mark = self.mark or mark
        self.position = sight.position
        self._published, self._state, self.readable = sight.published, sight.state, sight.readable
        self.told.update(self.readable)
        self.told.update(str(did) for each in self.readable if (did := sight.state.dids.get(each)) is not None)
        return sight.state


async def news(call: Call, since: str | None, word: str | None) -> AsyncIterator[SharedValue[wire.ResourceNews]]:
    """Restricts ``declarations.news``. Shared values are rebuilt for the one subject."""
    rights = SubjectRights(call.guard)

    def begin() -> tuple[bool, str, int | None]:
        """Returns whether the rights are other ones, the name of the log, and the number in it to continue from."""
        if rights.begin(since):
            return True, "", None
        return False, call.guard.state().version[0], None if since is None else call.guard.number(since)

    is_reset, epoch, began = await trio.to_thread.run_sync(begin)
    if is_reset:
        yield SharedValue(wire.ResourceNews(version=since or "", op="Reset"))
        return
    declared = call.operation(None if began is None else f"{epoch}-{began}", word, ticks=True)
    async with aclosing(declared) as told, aclosing(_tell(call, rights, told, began)) as found:
        async for each in found:
            yield SharedValue(each)


async def _tell(
    call: Call,
    rights: SubjectRights,
    news: AsyncIterator[SharedValue[wire.ResourceNews]],
    began: int | None,
) -> AsyncGenerator[wire.ResourceNews, None]:
    """Yields the readable news. ``began``: the log number to continue from; ``None`` to begin with a list.

    A change carries its own log number. Items of the initial list, and what is undeclared, carry the last number
    that the subject was given.
    """
    at, has_begun, shown = "", began is not None, rights.position if began is None else began
    async for one in news:
        each = one.value
        moved, at = each.version != at, each.version
        if await rights.have_changed(has_moved=moved):
            yield wire.ResourceNews(version=rights.version(shown), op="Reset")
            return
        if each.resource is None:
            if not has_begun:  # the bookmark after what stood; others are for us
                has_begun = True
                yield msgspec.structs.replace(each, version=rights.version(shown))
            continue
        was_told = each.op == "Deleted" and each.resource.id in rights.told
        found = await readable_views(call, [each.resource], is_judged=was_told)
        if not found:
            continue
        if has_begun and each.resource.generation:
            shown = number_of(each.version)
        rights.told.add(each.resource.id)
        yield msgspec.structs.replace(each, version=rights.version(shown), resource=found[0])


async def readable(call: Call, views: Sequence[wire.ResourceView]) -> list[wire.ResourceView]:
    """Returns those of ``views`` that the subject can read, or sees by what they are about.

    The latter without labels and annotations, which may say anything.
    """
    found = {each.id: each for each in await trio.to_thread.run_sync(call.guard.filter_views, views)}
    if others := {view.id: view for view in views if view.id not in found}:
        subjects = await call.tasks.subjects(tuple(others.values()))
        about = [(id_, each) for id_, several in subjects.items() for each in several]
        told = await trio.to_thread.run_sync(call.sees, [each for _, each in about])
        found |= {id_: _bare(others[id_]) for (id_, _), is_told in zip(about, told, strict=True) if is_told}
    return [found[view.id] for view in views if view.id in found]


def _bare(view: wire.ResourceView) -> wire.ResourceView:
    headers = {key: each for key, each in view.headers.items() if key not in ("labels", "annotations")}
    return msgspec.structs.replace(view, headers=headers, labels={}, system_labels={})


async def readable_views(call: Call, views: Any, *, is_judged: bool = False) -> list[wire.ResourceView]:
    """Returns the readable ones of ``views``. A reference to an unreadable resource looks dangling."""
    found = views if is_judged else await readable(call, views)
    ids = {held["id"] for each in found for held in each.status.get("references", ()) if "id" in held}
    known = await trio.to_thread.run_sync(call.guard.handles, ids)
    return [_dangling(each, known) for each in found]


def _dangling(view: wire.ResourceView, known: Any) -> wire.ResourceView:
    references = view.status.get("references")
    if not references:
        return view
    told = [
        reference if reference.get("id") in known else {"reference": reference["reference"]} for reference in references
    ]
    return msgspec.structs.replace(view, status={**view.status, "references": told})
