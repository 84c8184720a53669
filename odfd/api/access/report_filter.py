"""Restricts reports of what happens on a node to the items that ``ItemVisibility`` lets an account see."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Final, cast

import msgspec
import trio

from odfd.access.relations import Role
from odfd.api.access.account_watch import Rights
from odfd.api.access.guard import Guard
from odfd.api.access.item_visibility import ItemVisibility
from odfd.api.access.tasks import TaskOwners, no_task
from odfd.control import wire
from odfd.control.board import account_event, is_of
from odfd.flows.tasks import TYPE as TASK
from odfd.obs.log_lines import LineFilter
from odfd.resources.resource import UUID
from odfd.runtime.ring import Lagged

RESET: Final = "reset"
_WORDS: Final = "what you may read has changed: ask anew"


def status(guard: Guard, tasks: TaskOwners, operation: Any) -> Any:
    """Restricts ``about.status``."""

    async def guarded() -> wire.Status:
        said: wire.Status = await operation.__self__.account_status(guard.subject.name, ItemVisibility(guard, tasks))
        return said

    return guarded


def seen(guard: Guard, tasks: TaskOwners, operation: Any) -> Any:
    """Restricts lists whose operation takes ``sees``, the predicate for each item."""

    async def guarded(*args: Any, **more: Any) -> Any:
        return await operation(*args, **more, sees=ItemVisibility(guard, tasks))

    return guarded


# Tasks.


async def _meant(guard: Guard, id_: str) -> str:
    """Returns the id of a task that the subject declares and calls by its name; another text as it is."""
    found = await guard.meant(TASK, id_)
    return found if found != id_ and await trio.to_thread.run_sync(guard.is_of_account, found) else id_


async def _check_task(guard: Guard, tasks: TaskOwners, task: str) -> None:
    """Raises NotFound for a task that the subject may not see, as for one that does not exist."""
    if not any(await ItemVisibility(guard, tasks)(tasks.abouts(task))):
        raise no_task(task)


def task(guard: Guard, tasks: TaskOwners, operation: Any) -> Any:
    """Restricts ``tasks.get``."""

    async def guarded(id_: str) -> Any:
        id_ = await _meant(guard, id_)
        await _check_task(guard, tasks, id_)
        return await operation(id_)

    return guarded


def cancelled(guard: Guard, tasks: TaskOwners, operation: Any) -> Any:
    """Restricts ``tasks.cancel``: the account that began a task, or owns its declaration, can cancel it."""

    async def guarded(id_: str) -> Any:
        id_ = await _meant(guard, id_)
        await _check_task(guard, tasks, id_)
        role = await trio.to_thread.run_sync(lambda: guard.role_of(guard.state(), id_)) if UUID.match(id_) else None
        if not tasks.has(guard.subject, id_) and role is not Role.OWNER:
            raise guard.owner_only("to cancel a task that others began")
        guard.identified("to cancel a task")
        return await operation(id_)

    return guarded


def followed(guard: Guard, tasks: TaskOwners, operation: Any) -> Any:
    """Restricts ``tasks.follow``."""

    async def guarded(id_: str) -> AsyncIterator[wire.TaskView]:
        id_ = await _meant(guard, id_)
        await _check_task(guard, tasks, id_)
        async with aclosing(cast("Any", operation(id_))) as views:
            async for each in views:
                await _check_again(guard, tasks, id_)
                yield each

    return guarded


async def _check_again(guard: Guard, tasks: TaskOwners, task: str) -> None:
    if not await trio.to_thread.run_sync(guard.is_same_caller):
        raise no_task(task)
    await _check_task(guard, tasks, task)


# Lines of the log.


def lines(guard: Guard, tasks: TaskOwners, operation: Any) -> Any:
    """Restricts ``log_lines.last``."""

    async def guarded(filter_: LineFilter, limit: int) -> Sequence[wire.LogLineView]:
        await _check_lines(guard, tasks, filter_)
        return [_counted(number, line) for number, line in enumerate(await operation(filter_, limit), 1)]

    return guarded


def followed_lines(guard: Guard, tasks: TaskOwners, operation: Any) -> Any:
    """Restricts ``log_lines.follow``."""

    async def guarded(filter_: LineFilter, limit: int) -> AsyncIterator[wire.LogLineView]:
        await _check_lines(guard, tasks, filter_)
        number = 0
        async with aclosing(cast("Any", operation(filter_, limit))) as found:
            async for line in found:
                await _check_again(guard, tasks, filter_.task)
                number += 1
                yield _counted(number, line)

    return guarded


async def _check_lines(guard: Guard, tasks: TaskOwners, filter_: LineFilter) -> None:
    if not filter_.task:
        fault = guard.owner_only("the log of the daemon")
        fault.hint = "odfctl logs task/ID shows the lines of a task; odfctl get tasks lists those that you may see"
        raise fault
    await _check_task(guard, tasks, filter_.task)


def _counted(number: int, line: wire.LogLineView) -> wire.LogLineView:
    """Returns a log line with a number that does not count lines of others."""
    if line.part:
        return msgspec.structs.replace(line, sequence=number)
    return wire.LogLineView(sequence=number, event="some lines of the log are no longer kept")


# Events.


def followed_events(guard: Guard, tasks: TaskOwners, operation: Any) -> Any:
    """Restricts ``events.follow``: the last line is ``reset`` when the follower's rights have changed."""

    async def guarded(since: int | None, kinds: Sequence[str], log: str | None = None) -> AsyncIterator[wire.EventView]:
        rights, seeing, events = Rights(guard), ItemVisibility(guard, tasks), operation.__self__
        await rights.begin(None)
        seeing.told = rights.told
        if log is not None:
            first = events.bookmark(since, log, is_tick=True)
            yield first
            since = first.sequence if since is None else events.begin(since, log)
        async with aclosing(cast("Any", events).batches(since)) as batches:
            async for batch in batches:
                if await rights.have_changed(has_moved=True):
                    yield wire.EventView(sequence=0, time="", kind=RESET, message=_WORDS)
                    return
                if isinstance(batch, Lagged):
                    yield account_event(batch)
                    continue
                wanted = [each for each in batch if is_of(each.kind, kinds)]
                told = await seeing([each.about for each in wanted]) if wanted else ()
                for each, is_told in zip(wanted, told, strict=True):
                    if is_told:
                        yield account_event(each)

    return guarded
