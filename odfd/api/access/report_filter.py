"""Restricts reports of what happens on a node to the items that an account may see (``Call.sees``).

Of the history of resources it gets the changes of those that it can read. Like a watch (``news``), a stream of changes
ends with ``Reset`` when rights change. References and owners that the account cannot read are left out of a change; a
change that contains nothing else is not sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final, cast

import msgspec
import trio

from chain.errors import NotFound
from odfd.access.relations import Role
from odfd.control import wire
from odfd.control.board import account_event, is_of
from odfd.flows.tasks import TYPE as TASK
from odfd.obs.log_lines import LineFilter
from odfd.resources.resource import UUID, Resource
from odfd.runtime.ring import Lagged
from odfd.services.access.account_watch import SubjectRights
from odfd.services.access.calls import Call
from odfd.services.access.guard import Guard
from odfd.services.resources.history import HistoryService, PastEvent, bookmark_at, change_of

RESET: Final = "reset"
_WORDS: Final = "what you may read has changed: ask again"


async def status(call: Call) -> wire.Status:
    """Restricts ``about.status``."""
    said: wire.Status = await trio.to_thread.run_sync(call.service.account_status, call.guard.subject.name, call.sees)
    return said


async def seen(call: Call, *args: Any, **more: Any) -> Any:
    """Restricts lists whose operation takes ``sees``, the predicate for each item."""
    return await call.operation(*args, **more, sees=call.sees)


# Tasks.


def _resolve_task(guard: Guard, id_: str) -> str:
    """Returns the id of a task that the subject declares and calls by its name; another text as it is. Blocking."""
    found = guard.resolve_name(TASK, id_)
    return found if found != id_ and guard.is_of_account(found) else id_


async def task(call: Call, id_: str) -> Any:
    """Restricts ``tasks.get``."""
    id_ = await trio.to_thread.run_sync(_resolve_task, call.guard, id_)
    await call.check_task(id_)
    return await call.operation(id_)


async def cancelled(call: Call, id_: str) -> Any:
    """Restricts ``tasks.cancel``: the account that began a task, or owns its declaration, can cancel it."""
    id_ = await trio.to_thread.run_sync(_resolve_task, call.guard, id_)
    await call.check_task(id_)
    role = (
        await trio.to_thread.run_sync(lambda: call.guard.role_of(call.guard.state(), id_)) if UUID.match(id_) else None
    )
    if not call.tasks.has(call.guard.subject, id_) and role is not Role.OWNER:
        raise call.guard.owner_only("to cancel a task of another account")
    call.guard.check_identified("to cancel a task")
    return await call.operation(id_)


async def followed(call: Call, id_: str) -> AsyncIterator[wire.TaskState]:
    """Restricts ``tasks.follow``."""
    id_ = await trio.to_thread.run_sync(_resolve_task, call.guard, id_)
    await call.check_task(id_)
    async with aclosing(cast("Any", call.operation(id_))) as views:
        async for view in views:
            await call.check_task(id_, is_again=True)
            yield view


# Lines of the log.


async def lines(call: Call, filter_: LineFilter, limit: int) -> Sequence[wire.LogLineView]:
    """Restricts ``log_lines.last``."""
    await _check_lines(call, filter_)
    return [_number_lines(number, line) for number, line in enumerate(await call.operation(filter_, limit), 1)]


async def followed_lines(call: Call, filter_: LineFilter, limit: int) -> AsyncIterator[wire.LogLineView]:
    """Restricts ``log_lines.follow``."""
    await _check_lines(call, filter_)
    number = 0
    async with aclosing(cast("Any", call.operation(filter_, limit))) as found:
        async for line in found:
            await call.check_task(filter_.task, is_again=True)
            number += 1
            yield _number_lines(number, line)


async def _check_lines(call: Call, filter_: LineFilter) -> None:
    if not filter_.task:
        fault = call.guard.owner_only("the log of the daemon")
        fault.hint = "odfctl logs task/ID shows the lines of a task; odfctl get tasks lists those that you may see"
        raise fault
    await call.check_task(filter_.task)


def _number_lines(number: int, line: wire.LogLineView) -> wire.LogLineView:
    """Returns a log line with a number that does not count lines of others."""
    if line.part:
        return msgspec.structs.replace(line, sequence=number)
    return wire.LogLineView(sequence=number, event="some lines of the log are no longer kept")


# Events.


async def followed_events(
    call: Call, since: int | None, kinds: Sequence[str], log: str | None = None
) -> AsyncIterator[wire.EventView]:
    """Restricts ``events.follow``: the last line is ``reset`` when the follower's rights have changed."""
    rights, seeing, events = SubjectRights(call.guard), call.sees, call.service
    await trio.to_thread.run_sync(rights.begin, None)
    seeing.told = rights.told
    if log is not None:
        first = events.bookmark(since, log, is_tick=True)
        yield first
        since = first.sequence if since is None else events.begin(since, log)
    async with aclosing(cast("Any", events).batches(since)) as batches:
        async for batch in batches:
            # Before any of the batch, which may have come after a revocation
            # (test_a_stream_ends_with_a_reset_when_rights_change_and_tells_nothing_after).
            if await rights.have_changed(has_moved=True):
                yield wire.EventView(sequence=0, time="", kind=RESET, message=_WORDS)
                return
            if isinstance(batch, Lagged):
                yield account_event(batch)
                continue
            wanted = [each for each in batch if is_of(each.kind, kinds)]
            told = await trio.to_thread.run_sync(seeing, [each.about for each in wanted]) if wanted else ()
            for each, is_told in zip(wanted, told, strict=True):
                if is_told:
                    yield account_event(each)


# Changes of the log of resources.


_SILENT: Final = ("Observed", "Changed")
"""Kinds of change that are empty without details."""


async def last_changes(call: Call, of: str | None, limit: int) -> Sequence[wire.ResourceChange]:
    """Restricts ``history.last``."""
    rights = SubjectRights(call.guard)
    await trio.to_thread.run_sync(rights.begin, None)
    return await trio.to_thread.run_sync(_standing, call.service, rights, of, limit)


async def followed_changes(
    call: Call, since: str | None, of: str | None, limit: int, *, bookmark: bool = False
) -> AsyncIterator[wire.ResourceChange]:
    """Restricts ``history.follow``."""
    rights, history = SubjectRights(call.guard), call.service
    if await trio.to_thread.run_sync(rights.begin, since):
        return _reset(since or "")
    at = None if since is None else await trio.to_thread.run_sync(call.guard.number, since)
    ids = await trio.to_thread.run_sync(_choose, history, rights, of)
    if at is not None:
        return _tell(history, rights, of and ids, at, [bookmark_at(since or "")] if bookmark else ())
    newest = (await trio.to_thread.run_sync(history.epoch_and_newest))[1]
    standing = await trio.to_thread.run_sync(partial(_standing, history, rights, of, limit, upto=newest))
    if bookmark:
        number = await trio.to_thread.run_sync(call.guard.number, standing[-1].version) if standing else 0
        standing = [*standing, bookmark_at(rights.version(max(number, rights.position)))]
    return _tell(history, rights, of and ids, newest, standing)


async def _reset(version: str) -> AsyncIterator[wire.ResourceChange]:
    yield wire.ResourceChange(version=version, time="", type="", name="", id="", generation=0, change="Reset")


async def _tell(
    history: HistoryService,
    rights: SubjectRights,
    only: Collection[str] | str | None,
    at: int,
    standing: Sequence[wire.ResourceChange],
) -> AsyncIterator[wire.ResourceChange]:
    """``only``: ids of the requested resources; empty for all."""
    for each in standing:
        yield each
    epoch, _ = await trio.to_thread.run_sync(history.epoch_and_newest)
    while True:
        # Before the look: it is set by a change that comes after the look and before the wait.
        grown = history.grown
        seen, events = await trio.to_thread.run_sync(history.after, at)
        if await rights.have_changed(has_moved=seen != at):
            async for end in _reset(rights.version(rights.position)):
                yield end
            return
        for past in events:
            id_ = past.event.resource.id
            may_be_told = id_ in rights.readable or (past.event.op == "Deleted" and id_ in rights.told)
            row = _row(epoch, past, rights) if may_be_told and (not only or id_ in only) else None
            if row is not None:
                yield row
        if seen == at:
            await grown.wait()
        at = seen


def _standing(
    history: HistoryService, rights: SubjectRights, of: str | None, limit: int, upto: int | None = None
) -> Sequence[wire.ResourceChange]:
    """Blocking. Raises NotFound."""
    ids = _choose(history, rights, of)
    epoch, _ = history.epoch_and_newest()
    # What came since is told live. The limit counts what is left, else a reader of one row may get none.
    found = history.last_of(ids, limit, is_chosen=of is not None, upto=upto)
    rows = [_row(epoch, each, rights) for each in found]
    return [row for row in rows if row is not None]


def _choose(history: HistoryService, rights: SubjectRights, of: str | None) -> Collection[str]:
    """Returns the readable ids among the requested ones. Blocking. Raises NotFound."""
    if of is None:
        return rights.readable
    try:
        found = history.choose(of)
    except NotFound as fault:
        if fault.rule != "resource" or "/" not in of:
            raise
        found = None
    if found is None or found not in rights.readable:
        text = f"there is no {of[:120]!r} that you may read"
        raise NotFound(text, rule="resource", hint="odfctl get all lists what you may read")
    return (found,)


def _row(epoch: str, past: PastEvent, rights: SubjectRights) -> wire.ResourceChange | None:
    before = None if past.before is None else _restrict(past.before, rights)
    after = _restrict(past.event.resource, rights)
    row = change_of(epoch, PastEvent(msgspec.structs.replace(past.event, resource=after), before))
    is_whole = before == past.before and after == past.event.resource
    if row.change in _SILENT and not row.details and not is_whole:
        return None
    return msgspec.structs.replace(row, version=rights.version(past.event.rv))


def _restrict(resource: Resource, rights: SubjectRights) -> Resource:
    """Returns a resource without references and owners that cannot be read."""
    references = {
        key: held if held is not None and held.id in rights.readable else None
        for key, held in resource.references.items()
    }
    owners = tuple(owner for owner in resource.owners if owner.id in rights.readable)
    return msgspec.structs.replace(resource, references=references, owners=owners)
