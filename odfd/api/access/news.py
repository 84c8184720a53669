"""Tells one subject what becomes of the resources that it may read, until its rights change.

Then the watch ends with ``Reset``: who listens lists anew, and watches from there. So what may no longer be read is
told of no more, and what may be read now is not missed. Each change is judged before it is told. Versions that accounts
get are ``POSITION+MARK``: the encrypted number of the last change that they may read of, and a mark of their rights.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec
import trio

from odfd.api.access.guard import Guard
from odfd.api.access.seeing import Seeing
from odfd.api.access.state import AccessState
from odfd.api.access.tasks import TaskOwners
from odfd.api.resources.versions import number_of
from odfd.control import wire
from odfd.control.shared import SharedValue

TASK: Final = "Task"


class Rights:
    """The rights of a subject, as they were last looked at."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._state: AccessState | None = None
        self.readable: Collection[str] = ()
        """Ids of resources."""
        self.mark = ""
        """In versions that are given: of rights, when it was looked first."""
        self.position = 0
        """The number of the last change that it may read of, when it was looked."""
        self._published = 0
        self.told: set[str] = set()
        """Ids and dids of what was readable during this watch: their deletion is reported."""

    async def begin(self, since: str | None) -> bool:
        """Looks for the first time. Returns whether what was told up to ``since`` may have been by other rights."""
        await trio.to_thread.run_sync(self._look)
        if since is None:
            return False
        return not await trio.to_thread.run_sync(self._guard.has_rights_of, since, self.mark, self.readable)

    def version(self, number: int) -> str:
        """Returns the version of the log at a number."""
        return self._guard.version(number, self.mark)

    async def have_changed(self, *, has_moved: bool) -> bool:
        """Whether something that stood and stands is readable now and was not, or the other way round.

        ``has_moved``: the log of resources has. Raises Refused where the token is no longer good.
        """
        if not (has_moved or self._guard.subject.token or self._guard.published != self._published):
            return False
        return await trio.to_thread.run_sync(self._changed)

    def _changed(self) -> bool:
        if not self._guard.is_same_caller():
            return True
        before, readable = self._state, self.readable
        assert before is not None
        if self._guard.state().relations is before.relations and self._guard.published == self._published:
            return False
        both = before.accounts.keys() & self._look().accounts.keys()
        return any((each in readable) != (each in self.readable) for each in both)

    def _look(self) -> AccessState:
        """The mark stays that of the first look: when rights are others, what has it ends."""
        sight, mark = self._guard.look()
        self.mark = self.mark or mark
        self.position = sight.position
        self._published, self._state, self.readable = sight.published, sight.state, sight.readable
        self.told.update(self.readable)
        self.told.update(str(did) for each in self.readable if (did := sight.state.dids.get(each)) is not None)
        return sight.state

    def is_declared(self, id_: str) -> bool:
        """Whether a resource stands in the log, as far as was looked."""
        return self._state is not None and id_ in self._state.accounts


def news(guard: Guard, tasks: TaskOwners, operation: Any) -> Any:
    """The rule of ``declarations.news``. What others share is made for the subject alone."""

    async def guarded(since: str | None, word: str | None) -> AsyncIterator[SharedValue[wire.ResourceNews]]:
        rights = Rights(guard)
        if await rights.begin(since):
            yield SharedValue(wire.ResourceNews(version=since or "", op="Reset"))
            return
        epoch = (await trio.to_thread.run_sync(guard.state)).version[0]
        began = None if since is None else await trio.to_thread.run_sync(guard.number, since)
        declared = operation(None if began is None else f"{epoch}-{began}", word, ticks=True)
        async with aclosing(declared) as told, aclosing(_told(guard, tasks, rights, told, began)) as found:
            async for each in found:
                yield SharedValue(each)

    return guarded


async def _told(
    guard: Guard,
    tasks: TaskOwners,
    rights: Rights,
    news: AsyncIterator[SharedValue[wire.ResourceNews]],
    began: int | None,
) -> AsyncGenerator[wire.ResourceNews, None]:
    """``began``: the number that the watch goes on from; ``None``: it begins with what stands.

    What is told has the number of its change; what stands, and what is in no log, that of the last that was told.
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
        found = await readable_views(guard, tasks, [each.resource], is_judged=was_told)
        if not found:
            continue
        if has_begun and (each.resource.type != TASK or rights.is_declared(each.resource.id)):
            shown = number_of(each.version)
        rights.told.add(each.resource.id)
        yield msgspec.structs.replace(each, version=rights.version(shown), resource=found[0])


async def readable(guard: Guard, tasks: TaskOwners, views: Sequence[wire.ResourceView]) -> list[wire.ResourceView]:
    """Returns those of some resources that may be read: tasks that no manifest declares by what they are about."""
    state = await trio.to_thread.run_sync(guard.state)
    passing = [each for each in views if each.type == TASK and each.id not in state.accounts]
    if not passing:
        return await guard.reads(views)
    told = await Seeing(guard, tasks)([tasks.about(each.name) for each in passing])
    ids = {each.id for each, is_told in zip(passing, told, strict=True) if is_told}
    ids |= {each.id for each in await guard.reads([each for each in views if each not in passing])}
    return [each for each in views if each.id in ids]


async def readable_views(
    guard: Guard, tasks: TaskOwners, views: Any, *, is_judged: bool = False
) -> list[wire.ResourceView]:
    """Those that may be read, with references to what may be read alone: others look as if they found nothing."""
    found = views if is_judged else await readable(guard, tasks, views)
    ids = {held["id"] for each in found for held in each.status.get("references", ()) if "id" in held}
    known = await trio.to_thread.run_sync(guard.handles, ids)
    return [_dangling(each, known) for each in found]


def _dangling(view: wire.ResourceView, known: Any) -> wire.ResourceView:
    references = view.status.get("references")
    if not references:
        return view
    told = [each if each.get("id") in known else {"reference": each["reference"]} for each in references]
    return msgspec.structs.replace(view, status={**view.status, "references": told})
