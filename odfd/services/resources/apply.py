"""Applies manifests: creates and updates resources, and reports which were created, updated or left unchanged.

All manifests are read, and every mistake is reported, before anything is changed. Then each resource is prepared by the
controller of its type, and all are committed in one transaction with the declarations: a crash leaves all of them or
none. A refused resource is an item of the result, and then nothing of several is done. What is in the database is
brought into force afterwards; after a crash in between the next start does so.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Final, NamedTuple

import msgspec
import trio

from chain.errors import Conflict, Fault, Invalid, Refused
from chain.instant import MILLISECOND, Instant
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.board import task_ref
from odfd.control.operations import Permission, operation
from odfd.datasets.commit import Commit
from odfd.errors import sole_faults
from odfd.resources.controller import ApplyBatch, Intent
from odfd.resources.manifest import Draft
from odfd.resources.plan import APPLY, PlannedResource, Terms
from odfd.resources.selectors import parse_selector
from odfd.runtime.hanging_calls import invoke
from odfd.runtime.subjects import about
from odfd.runtime.tasks import Report
from odfd.services.node_events import ApplyEnded
from odfd.services.resources.declarations import DeclarationService
from odfd.services.resources.planning import MOVED, Planning
from odfd.services.resources.reading import Plan, Possible, possible, read_drafts
from odfd.services.resources.types import TYPES
from odfd.trust.signing.owner_commit import OwnerCommitter

ATTEMPTS: Final = 5
"""Times that an apply is planned at most, as when a pull moved the head in between."""
_MANAGER: Final = re.compile(r"[A-Za-z0-9][\w./-]{0,62}", re.ASCII)
TAKE_UP_SECONDS: Final = 30.0
"""Longest time for which an apply waits until what it recorded is in force; the next start does what is left."""


def _anything(_: Sequence[Draft]) -> Mapping[int, wire.ApplyItem]:
    """Allows everything, as for the node's owner."""
    return {}


class ApplyTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of one apply: on whose behalf it is, and what it may declare."""

    account: str | None = None
    """Id of the account that gets new resources that name no account; ``None`` for the node's owner."""
    judge: Callable[[Sequence[Draft]], Mapping[int, wire.ApplyItem]] = _anything
    """Raises a fault if the manifests may not be applied. Called in worker threads.

    Returns the items of those, by their places, of which nothing is done, since they are here as they are written.
    """


OWNERS: Final = ApplyTerms()


class _Prepared(NamedTuple):
    """A planned resource with its item, and what is done for it beside its declaration."""

    planned: PlannedResource
    item: wire.ApplyItem
    """Says also why it cannot be done."""
    intent: Intent = Intent()

    @property
    def is_failed(self) -> bool:
        return self.item.action == "failed"


class ApplyOperation:
    """The API service that applies manifests and renames resources."""

    def __init__(
        self,
        committer: OwnerCommitter,
        context: Context,
        planning: Planning,
        declarations: DeclarationService,
    ) -> None:
        self._committer, self._planning = committer, planning
        self._declarations, self._controllers = declarations, declarations.controllers
        self.get = declarations.get
        """Returns a resource by its type and name; whoever judges rights uses it."""
        self._bus = context.bus
        self._conditional = trio.Lock()
        """Held by applies that state a generation, of which one runs at a time."""
        self._board, self._events, self._clock = context.board, context.events, context.clock

    @operation(needs=Permission.BY_RULE)
    def apply(self, request: wire.ApplyRequest, terms: ApplyTerms = OWNERS) -> wire.TaskRef:
        """Applies manifests as a task. Result: ApplyResult.

        Raises Invalid at once for manifests that cannot be read, with every mistake; Conflict for another generation;
        and whatever ``terms`` raises.
        """
        found = self._possible(request, terms)

        async def work(report: Report) -> wire.ApplyResult:
            planned, generation = found.planned, request.generation
            async with nullcontext() if generation is None else self._conditional:
                if generation is not None:
                    await trio.to_thread.run_sync(self._planning.check, planned, generation)
                for left in reversed(range(ATTEMPTS)):
                    try:
                        return await self._apply(request, found, planned, report)
                    except Conflict as fault:
                        if fault.rule != MOVED or not left:
                            raise
                        planned = await trio.to_thread.run_sync(self._plan_of(request, terms), found.drafts)
            raise AssertionError("the last attempt returns or raises")

        target = ", ".join(each.after.name for each in found.planned)
        return task_ref(self._board.submit("apply", target, work))

    @operation(needs=Permission.BY_RULE)
    async def rename(self, word: str, ref: str, name: str) -> wire.ResourceView:
        """Gives a resource another name, as an apply of its id with that name. Raises NotFound, Invalid, Conflict."""
        for left in reversed(range(ATTEMPTS)):
            planned = await trio.to_thread.run_sync(self._planning.plan_rename, word, ref, name)
            before = planned[0].before
            assert before is not None
            request = wire.ApplyRequest(manifests=(), generation=before.generation)
            try:
                done = await self._perform(request, planned, (), Report())
                break
            except Conflict as fault:
                if fault.rule not in ("generation", MOVED) or not left:
                    raise
        for each in done:
            if each.item.fault is not None:
                raise each.item.fault.fault()
        await self._tell(done)
        return await self.get(word, planned[0].after.id)

    async def _apply(
        self, request: wire.ApplyRequest, found: Possible, planned: Sequence[PlannedResource], report: Report
    ) -> wire.ApplyResult:
        report.begin("applying", len(planned), "manifests")
        done = await self._perform(request, planned, found.drafts, report)
        if _refuses(request, done):
            skipped = [
                each.item if each.is_failed else msgspec.structs.replace(each.item, action="skipped") for each in done
            ]
            return wire.ApplyResult(items=tuple(skipped), dry_run=request.dry_run)
        if not request.dry_run:
            await self._tell(done)
        remarks = {each.after.id: each.warnings for each in planned}
        for one, draft in zip(planned, found.drafts, strict=False):
            remarks[one.after.id] = (*draft.warnings, *one.warnings)
        items = [
            msgspec.structs.replace(each.item, warnings=(*remarks[each.planned.after.id], *each.item.warnings))
            for each in done
        ]
        if request.prune is not None:
            named = {(each.after.type, each.after.key) for each in planned}
            items += await prune(self._declarations, request, named)
        return wire.ApplyResult(items=(*items, *found.others), dry_run=request.dry_run)

    async def _tell(self, done: Sequence[_Prepared]) -> None:
        """Lets controllers follow what changed, and reports it."""
        changed = [each.planned for each in done if not each.is_failed and each.planned.action != "unchanged"]
        for controller in self._controllers:
            if mine := [each for each in changed if each.after.type == controller.type]:
                await controller.follow_changes(mine)
        for one in changed:
            if not self._controllers.of(one.after.type).has_own_events:
                told = about(one.after.id)
                self._events.emit(f"resource.{one.action}", one.after.name, one.after.type, about=told)
        self._bus.publish(ApplyEnded())
        self._events.nudge()
        for each in done:
            if not each.is_failed:
                each.intent.tell()

    def _plan_of(self, request: wire.ApplyRequest, terms: ApplyTerms) -> Plan:
        """Returns what plans the drafts of an apply, against what is here when it is called."""
        return partial(self._planning.plan, dry_run=request.dry_run, terms=_terms_of(request), account=terms.account)

    def _possible(self, request: wire.ApplyRequest, terms: ApplyTerms) -> Possible:
        """Returns the manifests to apply: those that can be with ``on_error`` skip, otherwise all. Blocking.

        Raises Invalid, Conflict, and whatever ``terms`` raises.
        """
        if request.prune is not None:
            parse_selector(request.prune)
        plan = self._plan_of(request, terms)
        if request.on_error == "skip":
            found = possible(request.manifests, plan)
        else:
            found = Possible(read_drafts(request.manifests), (), ())
        settled = terms.judge(found.drafts)
        if request.generation is not None and len(found.drafts) != 1:
            raise Invalid("a generation is that of one resource", rule="request", hint="apply them one by one")
        if request.on_error == "skip" and not settled:
            return found
        drafts = [draft for at, draft in enumerate(found.drafts) if at not in settled]
        return Possible(drafts, plan(drafts), (*found.others, *settled.values()))

    async def _perform(
        self, request: wire.ApplyRequest, planned: Sequence[PlannedResource], drafts: Sequence[Draft], report: Report
    ) -> list[_Prepared]:
        """Applies all in one transaction. Raises Conflict if something moved since the plan."""
        written = {one.after.id: draft for one, draft in zip(planned, drafts, strict=False)}
        refusals: dict[str, Fault] = {}
        for attempt in range(ATTEMPTS):
            # Blocks have times in milliseconds, and the declarations of this apply get the same time.
            now = Instant(self._clock.now() // MILLISECOND * MILLISECOND)
            batch = ApplyBatch(planned, written, now, dry_run=request.dry_run, forced=request.force)
            try:
                found = [await self._prepare(each, batch, refusals) for each in self._order(batch)]
                if request.dry_run or _refuses(request, found):
                    report.advance(len(found))
                    return found
                await self._commit(batch, _successful(found), request.generation)
                break
            except _Refusals as several:
                refusals |= several.faults
                if attempt + 1 == ATTEMPTS:
                    raise next(iter(refusals.values())) from None
            finally:
                # ``run_sync`` would raise Cancelled before it starts, and what the batch holds would stay held.
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(batch.closing.close)
        found = await _take_up(found)
        report.advance(len(found))
        return found

    def _order(self, batch: ApplyBatch) -> Iterator[PlannedResource]:
        """Yields first what is prepared, in the order of the controllers, then the others as written."""
        for controller in self._controllers:
            if controller.prepares != "never":
                yield from controller.order(
                    [each for each in batch.planned if each.after.type == controller.type], batch
                )
        yield from (each for each in batch.planned if self._controllers.of(each.after.type).prepares == "never")

    async def _prepare(self, planned: PlannedResource, batch: ApplyBatch, refusals: Mapping[str, Fault]) -> _Prepared:
        """Prepares one resource. ``refusals``: faults of those that could not be committed, by id."""
        after, controller = planned.after, self._controllers.of(planned.after.type)
        item = wire.ApplyItem(
            kind=after.type.lower(), name=after.name, action=planned.action, id=after.id, changes=planned.changes
        )
        if controller.prepares == "never" or (controller.prepares == "changes" and not planned.has_new_spec):
            return _Prepared(planned, item)
        try:
            if (refusal := refusals.get(after.id)) is not None:
                raise refusal
            _check_same(planned)
            with sole_faults():
                intent = await controller.prepare(planned, batch) or Intent()
        except Fault as fault:
            draft = batch.drafts.get(after.id)
            fault.place = fault.place or ("" if draft is None else draft.place())
            failed = wire.ApplyItem(kind=item.kind, name=item.name, action="failed", fault=wire.Problem.of(fault))
            return _Prepared(planned, failed)
        if intent.did is not None:
            batch.known[after.account, after.key] = intent.did
        return _Prepared(planned, _complete_item(item, planned, intent), intent)

    async def _commit(self, batch: ApplyBatch, prepared: Sequence[_Prepared], generation: int | None) -> None:
        """Commits all, or nothing. Raises Conflict, or ``_Refusals`` for some."""
        for each in prepared:
            if each.intent.first is not None:  # which is no part of the transaction
                try:
                    await invoke(each.intent.first)
                except Fault as fault:
                    raise _Refusals({each.planned.after.id: fault}) from fault
        dids = {each.planned.after.id: str(each.intent.did) for each in prepared if each.intent.did is not None}
        ids = {each.planned.after.id for each in prepared}
        planned = [each for each in batch.planned if each.after.id in ids]

        def together(connection: sqlite3.Connection) -> None:
            self._planning.commit(connection, planned, generation, dids)
            _record(connection, prepared)

        commit = Commit(parts=[part for each in prepared for part in each.intent.blocks], also=together)
        await trio.to_thread.run_sync(self._commit_now, commit, prepared)

    def _commit_now(self, commit: Commit, prepared: Sequence[_Prepared]) -> None:
        """Commits. Raises Conflict, or ``_Refusals`` for the resources whose blocks are refused."""
        try:
            self._committer.commit_now(commit)
        except Conflict:
            raise
        except Fault:
            broken = self._committer.faults_of(commit)
            faults = {
                each.planned.after.id: broken[part.dataset]
                for each in prepared
                for part in reversed(each.intent.blocks)
                if part.dataset in broken
            }
            if not faults:
                raise
            raise _Refusals(faults) from None


def _refuses(request: wire.ApplyRequest, prepared: Sequence[_Prepared]) -> bool:
    """Whether one failure keeps everything from being done."""
    return len(prepared) > 1 and request.on_error != "skip" and any(each.is_failed for each in prepared)


class _Refusals(Exception):
    """Names the resources that could be planned but not committed, by id, each with its fault."""

    def __init__(self, faults: Mapping[str, Fault]) -> None:
        super().__init__()
        self.faults = faults


def _record(connection: sqlite3.Connection, prepared: Sequence[_Prepared]) -> None:
    """Writes the intents. Raises ``_Refusals`` with all that cannot be written, and the transaction is undone."""
    faults: dict[str, Fault] = {}
    for each in prepared:
        try:
            each.intent.record(connection)
        except Fault as fault:
            faults[each.planned.after.id] = fault
    if faults:
        raise _Refusals(faults)


def _successful(prepared: Sequence[_Prepared]) -> list[_Prepared]:
    """Returns those that did not fail, nor stand for the same as one that did."""
    dids = {each.planned.after.did for each in prepared if each.is_failed} - {None}
    return [each for each in prepared if not each.is_failed and each.planned.after.did not in dids]


def _complete_item(item: wire.ApplyItem, planned: PlannedResource, intent: Intent) -> wire.ApplyItem:
    """Returns the item as the intent says it, together with the changes of headers, which count as an update."""
    if not intent.item:
        return item
    item = msgspec.structs.replace(item, **intent.item)
    more = tuple(change for change in planned.changes if " spec." not in change)
    if not more or item.action not in ("unchanged", "updated"):
        return item
    return msgspec.structs.replace(item, action="updated", changes=(*item.changes, *more))


def _check_same(planned: PlannedResource) -> None:
    """Raises Refused if the resource would stand for another thing than before."""
    before, after = planned.before, planned.after
    key = TYPES.get(after.type).stands_for
    if before is not None and key and before.spec.get(key) != after.spec.get(key):
        kind = after.type.lower()
        text = f"the {key} of {kind} {before.name} cannot change"
        raise Refused(text, rule="immutable", hint=f"odfctl delete {kind} {before.name}, and apply it again")


async def _take_up(prepared: Sequence[_Prepared]) -> list[_Prepared]:
    """Brings what is recorded into force; what cannot be yet is a warning, since the declaration stands."""
    done: list[_Prepared] = []
    # Committed already: a client that goes away, or a cancelled task, must not leave half of it out of force.
    with trio.CancelScope(shield=True, deadline=trio.current_time() + TAKE_UP_SECONDS):
        for each in prepared:
            try:
                if not each.is_failed:
                    await each.intent.take_up()
            except Fault as fault:
                text = f"it is declared, and not in force yet: {fault.message}"
                each = each._replace(item=msgspec.structs.replace(each.item, warnings=(*each.item.warnings, text)))
            done.append(each)
    return [*done, *prepared[len(done) :]]


def _terms_of(request: wire.ApplyRequest) -> Terms:
    """Returns the manager and the conditions of an apply.

    Raises Invalid for a bad name of a manager, or one that the node keeps for its own parts.
    """
    manager = APPLY if request.manager is None else request.manager
    # What controllers wrote may not be claimed by a manifest: its owner could then prune it.
    if not _MANAGER.fullmatch(manager) or manager.startswith("controller/"):
        hint = "letters, digits and . _ - / up to 63 characters, not beginning with controller/"
        raise Invalid(f"{manager[:80]!r} is no name of a manager", rule="manager", hint=hint)
    return Terms(manager, request.force, request.generation)


async def prune(
    declarations: DeclarationService, request: wire.ApplyRequest, named: Collection[tuple[str, str]]
) -> list[wire.ApplyItem]:
    """Deletes what has the labels of a request and its manager wrote for the node's owner; returns an item for each.

    Datasets, and intents to hold data of others, are deleted only by commands of their own, since it is too easy to
    leave a file out. ``named``: types and names in lower case of those that the apply names. Raises Invalid for a bad
    selector.
    """
    items, manager = [], _terms_of(request).manager
    writers, owner = await trio.to_thread.run_sync(lambda: (declarations.writers(), declarations.owner["id"]))
    for each in await declarations.list(None, request.prune):
        if (each.type, each.name.casefold()) in named or each.spec is None:
            continue
        if each.account["id"] != owner:  # what an account has is not in the owner's manifests
            continue
        if "ownerReferences" in each.headers:  # it is deleted with its owner
            continue
        kind = each.type.lower()
        wrote = writers.get(each.id, manager)
        if not TYPES.get(each.type).is_pruned or wrote != manager:
            by = f"{wrote} wrote it, and not {manager}: " if wrote != manager else ""
            text = f"{by}it is not pruned: odfctl delete {kind} {each.name}"
            items.append(wire.ApplyItem(kind=kind, name=each.name, action="unchanged", id=each.id, warnings=(text,)))
            continue
        if not request.dry_run:
            await declarations.delete(each.type, each.id)
        items.append(wire.ApplyItem(kind=kind, name=each.name, action="deleted", id=each.id))
    return items
