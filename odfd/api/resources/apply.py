"""Applies manifests: creates and updates datasets, and reports which were created, updated or left unchanged.

All manifests are read, and every mistake is reported, before anything is changed. Then all datasets are planned, inputs
before what derives from them, and committed in one transaction with the declarations of all resources: a crash leaves
all of them or none. A refused dataset is an item of the result, and then nothing of several is done.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import msgspec
import trio

from chain.errors import Conflict, Fault, Invalid
from chain.ids import DatasetId
from chain.wording import plural
from odfd.api.resources.apply_items import (
    INTENDED,
    PreparedIntent,
    declared_item,
    prepared,
    refused,
    successful,
    taken_up,
    with_headers,
    with_warnings,
)
from odfd.api.resources.dataset_batch import DatasetBatch
from odfd.api.resources.dataset_planning import DatasetPlanning
from odfd.api.resources.declarations import DeclarationService
from odfd.api.resources.desired_state import (
    OWNERS,
    ApplyTerms,
    DesiredSnapshot,
    DesiredState,
    in_order,
    read_desired_state,
)
from odfd.api.resources.planning import MOVED, Planning
from odfd.api.resources.set_controllers import SetValues
from odfd.api.resources.skipping import Plan, Possible, possible, terms_of
from odfd.api.resources.types import TYPES
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.board import task_ref
from odfd.datasets.catalog import TYPE as DATASET
from odfd.datasets.engine_pins import Engines
from odfd.errors import sole_faults
from odfd.flows.store import TYPE as FLOW
from odfd.ingest.settings import IngestSettings
from odfd.resources.controller import Controllers
from odfd.resources.plan import PlannedResource
from odfd.resources.references import dids_of
from odfd.resources.resource import Resource
from odfd.resources.selectors import parse_selector
from odfd.resources.sets import names_in
from odfd.runtime.subjects import about
from odfd.runtime.tasks import Report
from odfd.state.directory import StateDirectory
from odfd.trust.signing.owner_commit import OwnerCommitter

ELSEWHERE: Final = frozenset({DATASET, *INTENDED})
"""Types with their own commands and checks, whose truth is not their declaration."""
ATTEMPTS: Final = 5
"""Times that an apply is planned at most, as when a pull moved the head in between."""


FlowsChanged: TypeAlias = Callable[[Sequence[PlannedResource]], Awaitable[None]]
"""Puts flows in force as they are declared now, and tells of them."""
Renamed: TypeAlias = Callable[[DatasetId], Awaitable[None]]
"""Lets what runs for a dataset go on under its new name."""
Adopt: TypeAlias = Callable[[str, wire.AdoptRequest], Awaitable[object]]
"""Takes back a deleted dataset whose data is kept. Raises NotFound, Invalid, Conflict."""


class ApplyOperation:
    """Plans and performs applies."""

    def __init__(
        self,
        home: StateDirectory,
        committer: OwnerCommitter,
        engines: Engines,
        context: Context,
        ingestion: Callable[[], IngestSettings],
        followers: tuple[FlowsChanged, Renamed, Adopt],
        declarations: tuple[DeclarationService, Planning, Controllers, Sequence[Callable[[], None]]],
    ) -> None:
        """``ingestion`` returns what sources may do here, and is called each time.

        ``followers`` put applied flows in force, follow new names, and take back what was deleted. ``declarations``:
        prunes resources, plans and writes them, and prepares what they intend; the last are called in
        the event loop after an apply, whose events may have arrived before it was recorded.
        """
        self._declarations, self._planner, self._controllers, self._applied = declarations
        self._flows_changed, self._renamed, self._adopt = followers
        self._home = home
        self._committer = committer
        self._planning = DatasetPlanning(home, engines, ingestion, SetValues(home).names)
        self._conditional = trio.Lock()
        """Held by applies that state a generation, of which one runs at a time."""
        self._board = context.board
        self._events = context.events
        self._clock = context.clock

    async def submit(self, request: wire.ApplyRequest, terms: ApplyTerms = OWNERS) -> wire.TaskRef:
        """Applies manifests as a task. Result: ApplyResult.

        Raises Invalid at once for manifests that cannot be read, with every mistake; Conflict for another generation;
        and whatever ``terms`` raises.
        """
        found = await trio.to_thread.run_sync(self._possible, request, terms)
        wanted, skips = found.wanted, request.on_error == "skip"
        chains = {each.draft for each in wanted.snapshots}
        bare = {at for at, each in enumerate(wanted.drafts) if each.type.name == DATASET and at not in chains}

        async def work(report: Report) -> wire.ApplyResult:
            planned, generation = found.planned, request.generation
            async with nullcontext() if generation is None else self._conditional:
                if generation is not None:
                    await trio.to_thread.run_sync(self._planner.check, planned, generation)
                for left in reversed(range(ATTEMPTS)):
                    try:
                        return await whole(report, planned)
                    except Conflict as fault:
                        if fault.rule != MOVED or not left:
                            raise
                        planned = await trio.to_thread.run_sync(self._plan_of(request, terms), wanted.drafts)
            raise AssertionError("the last attempt returns or raises")

        async def whole(report: Report, planned: Sequence[PlannedResource]) -> wire.ApplyResult:
            others = [each for at, each in enumerate(planned) if each.after.type not in ELSEWHERE or at in bare]
            report.begin("applying", len(planned), "manifests")
            is_whole = len(planned) > 1 and not skips
            how = _Terms(request.dry_run, is_whole, request.generation, request.force)
            brought = await self._perform(wanted, planned, report, how)
            if how.is_whole and not request.dry_run and _has_failed(brought):
                return refused(brought, others)
            items = with_headers(brought, planned) + [declared_item(each) for each in others]
            if not request.dry_run:
                await self._tell(brought, planned)
            if request.prune is not None:
                named = {(each.after.type, each.after.name.casefold()) for each in planned}
                items += await prune(self._declarations, request, named)
            warnings = {(each.after.type.lower(), each.after.name.casefold()): each.warnings for each in planned}
            told = [with_warnings(with_warnings(each, warnings), wanted.warnings) for each in items]
            return wire.ApplyResult(items=(*told, *found.failed), dry_run=request.dry_run)

        target = ", ".join(each.after.name for each in found.planned)
        return task_ref(self._board.submit("apply", target, work))

    async def rename(self, word: str, ref: str, name: str) -> None:
        """Gives a resource another name, as an apply of its id with that name. Raises NotFound, Invalid, Conflict."""
        for left in reversed(range(ATTEMPTS)):
            planned = await trio.to_thread.run_sync(self._planner.plan_rename, word, ref, name)
            before = planned[0].before
            assert before is not None
            terms = _Terms(dry_run=False, is_whole=True, generation=before.generation, forced=False)
            try:
                await self._perform(DesiredState([], {}, []), planned, Report(), terms)
                break
            except Conflict as fault:
                if fault.rule not in ("generation", MOVED) or not left:
                    raise
        await self._tell((), planned)

    async def _tell(self, brought: Sequence[wire.ApplyItem], planned: Sequence[PlannedResource]) -> None:
        """Puts applied flows in force, and reports what changed."""
        others = [each for each in planned if each.after.type not in ELSEWHERE]
        await self._flows_changed([each for each in others if each.after.type == FLOW and each.action != "unchanged"])
        for one in others:
            if one.action != "unchanged" and one.after.type != FLOW:
                self._events.emit(
                    f"resource.{one.action}", one.after.name, one.after.type, about=about(one.after.id)
                )  # fmt: skip
        for ended in self._applied:
            ended()
        self._events.nudge()
        for one in planned:
            if one.after.type == DATASET and one.before is not None and one.before.name != one.after.name:
                await self._tell_renamed(one.before, one.after)
        for each in brought:
            if each.kind == "dataset" and each.changes and each.id is not None:
                done, text = "created" if each.action == "created" else "updated", plural(len(each.changes), "block")
                self._events.emit(f"dataset.{done}", each.name, text, about=about(each.id), id=each.id)

    async def _tell_renamed(self, before: Resource, after: Resource) -> None:
        if before.did is None:
            return
        await self._renamed(DatasetId.parse(before.did))
        told = about(before.did)
        self._events.emit("dataset.renamed", after.name, f"it was {before.name}", about=told, id=before.did)

    def _plan_of(self, request: wire.ApplyRequest, terms: ApplyTerms) -> Plan:
        """Returns what plans the drafts of an apply, against what is here when it is called."""
        return partial(self._planner.plan, dry_run=request.dry_run, terms=terms_of(request), account=terms.account)

    def _possible(self, request: wire.ApplyRequest, terms: ApplyTerms) -> Possible:
        """Returns the manifests to apply: those that can be with ``on_error`` skip, otherwise all. Blocking.

        Raises Invalid, Conflict, and whatever ``terms`` raises.
        """
        if request.prune is not None:
            parse_selector(request.prune)
        plan = self._plan_of(request, terms)
        if request.on_error == "skip":
            found = possible(request.manifests, plan)
            terms.judge(found.wanted)
            return found
        wanted = read_desired_state(request.manifests)
        terms.judge(wanted)
        if request.generation is not None and len(wanted.drafts) != 1:
            raise Invalid("a generation is that of one resource", rule="request", hint="apply them one by one")
        return Possible(wanted, plan(wanted.drafts), ())

    async def _perform(
        self, wanted: DesiredState, planned: Sequence[PlannedResource], report: Report, terms: _Terms
    ) -> list[wire.ApplyItem]:
        """Applies all declarations in one transaction; each dataset and intent gives an item.

        Raises Conflict if something moved since the plan.
        """
        refusals: dict[str, Fault] = {}
        for attempt in range(ATTEMPTS):
            batch = DatasetBatch(self._home, self._clock.now(), dry_run=terms.dry_run, forced=terms.forced)
            batch.leave_names(_without_names(planned))
            try:
                intents = await self._intents(planned, batch, refusals)
                datasets = [await self._plan(each, batch, refusals) for each in self._snapshots(wanted, planned)]
                items = [*(each.item for each in intents), *datasets]
                if terms.dry_run or (terms.is_whole and _has_failed(items)):
                    report.advance(len(items))
                    return items
                await self._commit(batch, intents, successful(items, planned), terms)
                break
            except _Refusals as found:
                refusals |= found.faults
                if attempt + 1 == ATTEMPTS:
                    raise next(iter(refusals.values())) from None
            finally:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(batch.close)
        report.advance(len(datasets))
        brought = await taken_up(intents)
        report.advance(len(brought))
        return [*brought, *datasets]

    async def _intents(
        self, planned: Sequence[PlannedResource], batch: DatasetBatch, refusals: Mapping[str, Fault]
    ) -> list[PreparedIntent]:
        """Prepares the intents, and makes the names of mirrors known to the datasets of the same apply."""
        intents = await prepared(self._controllers, planned, refusals)
        for each in intents:
            if each.intent is not None and each.intent.dataset is not None:
                batch.promise(each.item.name, each.intent.dataset)
        return intents

    def _snapshots(self, wanted: DesiredState, planned: Sequence[PlannedResource]) -> Iterator[DesiredSnapshot]:
        """Yields datasets in the order in which they can be made, with the values and references that they may use."""
        for each in in_order(wanted.snapshots):
            own = planned[each.draft]
            account, meant = own.after.account, dids_of(own.after.references)
            did = None if own.before is None else own.before.did
            yield msgspec.structs.replace(
                each, variables=_variables(each.name, account, planned), meant=meant, account=account,
                held=None if did is None else DatasetId.parse(did),
            )  # fmt: skip

    async def _plan(
        self, desired: DesiredSnapshot, batch: DatasetBatch, refusals: Mapping[str, Fault]
    ) -> wire.ApplyItem:
        """Plans one dataset and returns its item.

        ``refusals``: faults of datasets that could not be committed, by name.
        """
        try:
            if (found := refusals.get(desired.name)) is not None:
                raise found
            with sole_faults():
                return await self._planning.plan(desired, batch)
        except Fault as fault:
            fault.place = desired.located(fault)
            return wire.ApplyItem(kind="dataset", name=desired.name, action="failed", fault=wire.Problem.of(fault))

    async def _commit(
        self,
        batch: DatasetBatch,
        intents: Sequence[PreparedIntent],
        planned: Sequence[PlannedResource],
        terms: _Terms,
    ) -> None:
        """Commits all datasets, intents and declarations, or nothing. Raises Conflict, or ``_Refusals`` for some."""
        await self._take_back(batch, intents)

        ids = {(each.after.account, each.after.key): each.after.id for each in planned if each.after.type == DATASET}
        dids = {ids[each.desired.key]: str(each.dataset) for each in batch.planned}

        def also(connection: sqlite3.Connection) -> None:
            self._planner.commit(connection, planned, terms.generation, dids)
            _record(connection, intents)

        try:
            await trio.to_thread.run_sync(batch.commit, self._committer, also)
        except Conflict:
            raise
        except Fault:
            faults = await trio.to_thread.run_sync(batch.faults, self._committer)
            if not faults:
                raise
            raise _Refusals(faults) from None

    async def _take_back(self, batch: DatasetBatch, intents: Sequence[PreparedIntent]) -> None:
        """Takes back deleted datasets whose data is kept, which is no part of the transaction. Raises ``_Refusals``."""
        for one in batch.planned:
            if one.is_kept:
                try:
                    await self._adopt(str(one.dataset), wire.AdoptRequest(name=one.desired.name))
                except Fault as fault:
                    raise _Refusals({one.desired.name: fault}) from fault
        for each in intents:
            if each.intent is not None and each.intent.first is not None:
                try:
                    await each.intent.first()
                except Fault as fault:
                    raise _Refusals({each.key: fault}) from fault


def _record(connection: sqlite3.Connection, intents: Sequence[PreparedIntent]) -> None:
    """Writes the intents. Raises ``_Refusals`` with all that cannot be written, and the transaction is undone."""
    faults: dict[str, Fault] = {}
    for each in intents:
        try:
            if each.intent is not None:
                each.intent.record(connection)
        except Fault as fault:
            faults[each.key] = fault
    if faults:
        raise _Refusals(faults)


class _Terms(NamedTuple):
    """The settings of one apply."""

    dry_run: bool
    is_whole: bool
    """Whether one failure keeps everything from being done."""
    generation: int | None
    forced: bool


class _Refusals(Exception):
    """Names the datasets and intents that could be planned but not committed, each with its fault."""

    def __init__(self, faults: Mapping[str, Fault]) -> None:
        super().__init__()
        self.faults = faults


def _without_names(planned: Sequence[PlannedResource]) -> Iterator[DatasetId]:
    """Yields the datasets that the apply renames or moves, so that another one may have the name."""
    for each in planned:
        if each.gives_up_name and each.before is not None and each.after.type == DATASET and each.before.did:
            yield DatasetId.parse(each.before.did)


def _has_failed(items: Sequence[wire.ApplyItem]) -> bool:
    return any(each.action == "failed" for each in items)


def _variables(name: str, account: str | None, planned: Sequence[PlannedResource]) -> frozenset[str]:
    """Returns the names of values, in sets applied together, that sources of an account's dataset may read."""
    wanted = account, name.casefold()
    sets = [each.after for each in planned if (each.after.account, each.after.key) == wanted]
    return frozenset(key for each in sets for key in names_in(each.type, each.spec))


async def prune(
    declarations: DeclarationService, request: wire.ApplyRequest, named: Collection[tuple[str, str]]
) -> list[wire.ApplyItem]:
    """Deletes what has the labels of a request and its manager wrote for the node's owner; returns an item for each.

    Datasets, and intents to hold data of others, are deleted only by commands of their own, since it is too easy to
    leave a file out. ``named``: types and names in lower case of those that the apply names. Raises Invalid for a bad
    selector.
    """
    items, manager = [], terms_of(request).manager
    writers = await declarations.writers()
    owner = await trio.to_thread.run_sync(lambda: declarations.owner["id"])
    for each in await declarations.list(None, request.prune):
        if (each.type, each.name.casefold()) in named or each.spec is None:
            continue
        if each.account["id"] != owner:  # what an account has is not in the owner's manifests
            continue
        if "ownerReferences" in each.headers:  # it is deleted with its owner
            continue
        kind = each.type.lower()
        wrote = writers.get(each.id, manager)
        if not TYPES.named(each.type).is_pruned or wrote != manager:
            by = f"{wrote} wrote it, and not {manager}: " if wrote != manager else ""
            text = f"{by}it is not pruned: odfctl delete {kind} {each.name}"
            items.append(wire.ApplyItem(kind=kind, name=each.name, action="unchanged", id=each.id, warnings=(text,)))
            continue
        if not request.dry_run:
            await declarations.delete(each.type, each.id)
        items.append(wire.ApplyItem(kind=kind, name=each.name, action="deleted", id=each.id))
    return items
