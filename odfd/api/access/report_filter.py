"""Restricts reports of what happens on a node to the items that an account may see (``Call.sees``)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Final, cast

import msgspec
import trio

from odfd.access.relations import Role
from odfd.api.access.account_watch import Rights
from odfd.api.access.calls import Call
from odfd.api.access.guard import Guard
from odfd.control import wire
from odfd.control.board import account_event, is_of
from odfd.flows.tasks import TYPE as TASK
from odfd.obs.log_lines import LineFilter
from odfd.resources.resource import UUID
from odfd.runtime.ring import Lagged

RESET: Final = "reset"
_WORDS: Final = "what you may read has changed: ask anew"


async def status(call: Call) -> wire.Status:
    """Restricts ``about.status``."""
    said: wire.Status = await call.service.account_status(call.guard.subject.name, call.sees)
    return said


async def seen(call: Call, *args: Any, **more: Any) -> Any:
    """Restricts lists whose operation takes ``sees``, the predicate for each item."""
    return await call.operation(*args, **more, sees=call.sees)


# Tasks.


async def _meant(guard: Guard, id_: str) -> str:
    """Returns the id of a task that the subject declares and calls by its name; another text as it is."""
    found = await guard.meant(TASK, id_)
    return found if found != id_ and await trio.to_thread.run_sync(guard.is_of_account, found) else id_


async def task(call: Call, id_: str) -> Any:
    """Restricts ``tasks.get``."""
    id_ = await _meant(call.guard, id_)
    await call.check_task(id_)
    return await call.operation(id_)


async def cancelled(call: Call, id_: str) -> Any:
    """Restricts ``tasks.cancel``: the account that began a task, or owns its declaration, can cancel it."""
    id_ = await _meant(call.guard, id_)
    await call.check_task(id_)
    role = (
        await trio.to_thread.run_sync(lambda: call.guard.role_of(call.guard.state(), id_)) if UUID.match(id_) else None
    )
    if not call.tasks.has(call.guard.subject, id_) and role is not Role.OWNER:
        raise call.guard.owner_only("to cancel a task that others began")
    call.guard.identified("to cancel a task")
    return await call.operation(id_)


async def followed(call: Call, id_: str) -> AsyncIterator[wire.TaskView]:
    """Restricts ``tasks.follow``."""
    id_ = await _meant(call.guard, id_)
    await call.check_task(id_)
    async with aclosing(cast("Any", call.operation(id_))) as views:
        async for each in views:
            await call.check_task_again(id_)
            yield each


# Lines of the log.


async def lines(call: Call, filter_: LineFilter, limit: int) -> Sequence[wire.LogLineView]:
    """Restricts ``log_lines.last``."""
    await _check_lines(call, filter_)
    return [_counted(number, line) for number, line in enumerate(await call.operation(filter_, limit), 1)]


async def followed_lines(call: Call, filter_: LineFilter, limit: int) -> AsyncIterator[wire.LogLineView]:
    """Restricts ``log_lines.follow``."""
    await _check_lines(call, filter_)
    number = 0
    async with aclosing(cast("Any", call.operation(filter_, limit))) as found:
        async for line in found:
            await call.check_task_again(filter_.task)
            number += 1
            yield _counted(number, line)


async def _check_lines(call: Call, filter_: LineFilter) -> None:
    if not filter_.task:
        fault = call.guard.owner_only("the log of the daemon")
        fault.hint = "odfctl logs task/ID shows the lines of a task; odfctl get tasks lists those that you may see"
        raise fault
    await call.check_task(filter_.task)


def _counted(number: int, line: wire.LogLineView) -> wire.LogLineView:
    """Returns a log line with a number that does not count lines of others."""
    if line.part:
        return msgspec.structs.replace(line, sequence=number)
    return wire.LogLineView(sequence=number, event="some lines of the log are no longer kept")


# Events.


async def followed_events(
    call: Call, since: int | None, kinds: Sequence[str], log: str | None = None
) -> AsyncIterator[wire.EventView]:
    """Restricts ``events.follow``: the last line is ``reset`` when the follower's rights have changed."""
    rights, seeing, events = Rights(call.guard), call.sees, call.service
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
