"""Gives accounts the history of the resources that they can read: changes of the log of resources.

Like a watch (``news``), a stream of changes ends with ``Reset`` when rights change. References and owners that the
account cannot read are left out of a change; a change that contains nothing else is not sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from functools import partial
from typing import Final

import msgspec
import trio

from chain.errors import NotFound
from odfd.api.access.account_watch import Rights
from odfd.api.access.calls import Call
from odfd.api.access.guard import Guard
from odfd.api.resources.history import HistoryService, PastEvent, bookmark_at, change_of
from odfd.control import wire
from odfd.resources.resource import Resource

_SILENT: Final = ("Observed", "Changed")
"""Kinds of change that are empty without details."""


async def last(call: Call, of: str | None, limit: int) -> Sequence[wire.ResourceChange]:
    """Restricts ``history.last``."""
    rights = await _begun(call.guard)
    return await trio.to_thread.run_sync(_standing, call.service, rights, of, limit)


async def followed(
    call: Call, since: str | None, of: str | None, limit: int, *, bookmark: bool = False
) -> AsyncIterator[wire.ResourceChange]:
    """Restricts ``history.follow``."""
    rights, history = Rights(call.guard), call.service
    if await rights.begin(since):
        return _reset(since or "")
    at = None if since is None else await trio.to_thread.run_sync(call.guard.number, since)
    ids = await trio.to_thread.run_sync(_chosen, history, rights, of)
    if at is not None:
        return _told(history, rights, of and ids, at, [bookmark_at(since or "")] if bookmark else ())
    newest = (await trio.to_thread.run_sync(history.epoch_and_newest))[1]
    standing = await trio.to_thread.run_sync(partial(_standing, history, rights, of, limit, upto=newest))
    if bookmark:
        number = await trio.to_thread.run_sync(call.guard.number, standing[-1].version) if standing else 0
        standing = [*standing, bookmark_at(rights.version(max(number, rights.position)))]
    return _told(history, rights, of and ids, newest, standing)


async def _begun(guard: Guard) -> Rights:
    rights = Rights(guard)
    await rights.begin(None)
    return rights


async def _reset(version: str) -> AsyncIterator[wire.ResourceChange]:
    yield wire.ResourceChange(version=version, time="", type="", name="", id="", generation=0, change="Reset")


async def _told(
    history: HistoryService,
    rights: Rights,
    only: Collection[str] | str | None,
    at: int,
    standing: Sequence[wire.ResourceChange],
) -> AsyncIterator[wire.ResourceChange]:
    """``only``: ids of the requested resources; empty for all."""
    for each in standing:
        yield each
    epoch, _ = await trio.to_thread.run_sync(history.epoch_and_newest)
    while True:
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
    history: HistoryService, rights: Rights, of: str | None, limit: int, upto: int | None = None
) -> Sequence[wire.ResourceChange]:
    """Blocking. Raises NotFound."""
    ids = _chosen(history, rights, of)
    epoch, _ = history.epoch_and_newest()
    found = history.last_of(ids, limit, is_chosen=of is not None)
    rows = [_row(epoch, each, rights) for each in found if upto is None or each.event.rv <= upto]
    return [row for row in rows if row is not None]


def _chosen(history: HistoryService, rights: Rights, of: str | None) -> Collection[str]:
    """Returns the readable ids among the requested ones. Blocking. Raises NotFound."""
    if of is None:
        return rights.readable
    try:
        found = history.chosen(of)
    except NotFound as fault:
        if fault.rule != "resource" or "/" not in of:
            raise
        found = None
    if found is None or found not in rights.readable:
        text = f"there is no {of[:120]!r} that you may read"
        raise NotFound(text, rule="resource", hint="odfctl get all lists what you may read")
    return (found,)


def _row(epoch: str, past: PastEvent, rights: Rights) -> wire.ResourceChange | None:
    before = None if past.before is None else _known(past.before, rights)
    after = _known(past.event.resource, rights)
    row = change_of(epoch, PastEvent(msgspec.structs.replace(past.event, resource=after), before))
    is_whole = before == past.before and after == past.event.resource
    if row.change in _SILENT and not row.details and not is_whole:
        return None
    return msgspec.structs.replace(row, version=rights.version(past.event.rv))


def _known(resource: Resource, rights: Rights) -> Resource:
    """Returns a resource without references and owners that cannot be read."""
    references = {
        key: held if held is not None and held.id in rights.readable else None
        for key, held in resource.references.items()
    }
    owners = tuple(each for each in resource.owners if each.id in rights.readable)
    return msgspec.structs.replace(resource, references=references, owners=owners)
