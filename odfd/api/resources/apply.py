"""Applies manifests: creates and updates datasets, and reports which were created, updated or left unchanged.

Manifests are read and every mistake told before anything is touched. Then each snapshot becomes one commit of its own,
inputs before what derives from them; a refused one is an item of the result and harms no other. A transform is shown to
the engine first: what it cannot promise to compute alike everywhere is refused here, not when data comes.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import msgspec
import trio

from chain import instant
from chain.errors import Conflict, Environment, Fault, Invalid
from chain.ids import DatasetId, parse_own_name
from chain.instant import MILLISECOND, Instant
from chain.model.events import (
    AddPushSource,
    DatasetKind,
    DatasetSnapshot,
    MetadataEvent,
    SetPollingSource,
    SetTransform,
    SetVocab,
)
from chain.model.source import TransformSql
from chain.state import ChainState, Vocab
from chain.store.base import Head
from chain.wording import plural
from engines.contract import Engine
from engines.errors import EngineFault, EngineLost
from engines.faults import Diagnostic, Severity
from engines.spark.analysis.source_declarations import read_source
from odfd.api.resources.applied_dataset import dataset_of, over_shards
from odfd.api.resources.apply_items import declared_item, refused, successful, with_headers, with_warnings
from odfd.api.resources.apply_terms import OWNERS, ApplyTerms
from odfd.api.resources.declarations import ELSEWHERE, DeclarationService
from odfd.api.resources.desired_state import DesiredSnapshot, DesiredState, in_order, read_desired_state
from odfd.api.resources.skipping import Possible, possible, terms_of
from odfd.api.transforms import EvolutionCheck, TransformCheck, judge_preprocess, read_schema
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.board import task_ref
from odfd.datasets.catalog import Catalog, resolve_dataset
from odfd.datasets.creation import changed_events, founding_events, input_ids
from odfd.errors import sole_faults
from odfd.flows.manifest import DesiredFlow
from odfd.ingest.acceptance import check_source
from odfd.ingest.settings import IngestSettings
from odfd.ingest.templates import check_text
from odfd.resources.plan import PlannedResource, cycle_fault
from odfd.resources.references import dids_of, find_cycle
from odfd.resources.selectors import parse_selector
from odfd.resources.sets import names_in
from odfd.resources.store import Resources
from odfd.runtime.about import about
from odfd.runtime.tasks import Report
from odfd.state.directory import StateDirectory
from odfd.trust.signing.owner_commit import OwnerCommitter

BASE_KIND = "source-base"
"""Resource that keeps, on this node only, the folder that a dataset's relative source paths start from."""


ATTEMPTS: Final = 5
"""Times that an apply is planned, because a pull moved the head in between."""
_LATER: Final = "is not judged yet, but with the first data: "
_UNBORN = DatasetId.from_public_key(bytes(32))
"""Stands for a dataset whose key is made only when it is committed."""


Meant: TypeAlias = Mapping[str, str]
"""Dids of datasets by the keys of references that mean them."""


class ApplyFlow(Protocol):
    """Declares one flow. Raises Invalid for a dataset that is not here."""

    async def __call__(self, desired: DesiredFlow, meant: Meant, *, dry_run: bool) -> wire.ApplyItem: ...


class ApplyIntents(Protocol):
    """Brings about those of a plan that are intents: networks, peers, mirrors. What fails is an item too."""

    async def __call__(self, planned: Sequence[PlannedResource], *, dry_run: bool) -> list[wire.ApplyItem]: ...


class Prune(Protocol):
    """Deletes what has labels, was written by a manager, and is not named."""

    async def __call__(
        self, selector: str, named: Collection[tuple[str, str]], *, manager: str, dry_run: bool
    ) -> list[wire.ApplyItem]: ...


class Adopt(Protocol):
    """Takes back a deleted dataset whose data is kept. Raises NotFound, Invalid, Conflict."""

    async def __call__(self, ref: str, request: wire.AdoptRequest) -> object: ...


async def _cannot_adopt(ref: str, request: wire.AdoptRequest) -> object:
    raise Invalid(f"{ref} cannot be taken back here", rule="dataset-did", hint=f"odfctl adopt {ref} {request.name}")


class ApplyOperation:
    """Plans and performs applies."""

    def __init__(
        self,
        home: StateDirectory,
        committer: OwnerCommitter,
        engine: Engine,
        context: Context,
        ingestion: Callable[[], IngestSettings],
        apply_flow: ApplyFlow,
        declarations: tuple[DeclarationService, ApplyIntents, Prune],
    ) -> None:
        """``ingestion``: what sources may do here, asked each time. ``apply_flow`` declares one flow.

        ``declarations``: keeps resources, brings about those that are intents, and deletes what is left out.
        """
        self._declarations, self._apply_intents, self._prune = declarations
        self._apply_flow = apply_flow
        self._home = home
        self._ingestion = ingestion
        self._committer = committer
        self._engine = engine
        self._check = TransformCheck(home, engine)
        self._succession = EvolutionCheck(home, engine, self._check)
        self._conditional = trio.Lock()
        """Of applies that state a generation: one at a time."""
        self.adopt: Adopt = _cannot_adopt
        """Takes back a deleted dataset whose data is kept; whoever joins the services sets it."""
        self._board = context.board
        self._events = context.events
        self._clock = context.clock

    async def submit(self, request: wire.ApplyRequest, terms: ApplyTerms = OWNERS) -> wire.TaskRef:
        """Raises Invalid at once for manifests that cannot be read, with every mistake; what ``terms`` refuse.

        Raises Conflict for another generation.
        """
        found = await trio.to_thread.run_sync(self._possible, request, terms)
        wanted, planned = found.wanted, found.planned
        snapshots, skips = wanted.snapshots, request.on_error == "skip"
        others = [each for each in planned if each.after.type not in ELSEWHERE]
        total = len(planned) + sum(each.is_legacy for each in snapshots)

        async def work(report: Report) -> wire.ApplyResult:
            if request.generation is None:
                return await whole(report)
            async with self._conditional:
                check = partial(self._declarations.check_planned, planned, request.generation)
                await trio.to_thread.run_sync(check)
                return await whole(report)

        async def whole(report: Report) -> wire.ApplyResult:
            report.begin("applying", total, "manifests")
            if planned and len(planned) + len(snapshots) > 1 and not request.dry_run and not skips:
                items = await self._perform(wanted, planned, report, dry_run=True)
                if any(each.action == "failed" for each in items):
                    return refused(items, others)
                report.begin("applying", total, "manifests")
            with self._declarations.applying():
                brought = await self._perform(wanted, planned, report, dry_run=request.dry_run)
                items = with_headers(brought, planned)
                try:
                    if planned and not request.dry_run:
                        await trio.to_thread.run_sync(
                            self._declarations.commit, successful(items, planned), request.generation
                        )
                finally:  # whose datasets they are is known now, and so who is told of them
                    if not request.dry_run:
                        self._tell(brought)
            items += [declared_item(each) for each in others]
            for each in others:
                if each.action != "unchanged" and not request.dry_run:
                    self._events.emit(
                        f"resource.{each.action}", each.after.name, each.after.type, about=about(each.after.id)
                    )
            if request.prune is not None:
                named = {(each.after.type, each.after.name.casefold()) for each in planned}
                named |= {("Dataset", desired.name.casefold()) for desired in snapshots}
                manager = terms_of(request).manager
                items += await self._prune(request.prune, named, manager=manager, dry_run=request.dry_run)
            warnings = {(each.after.type.lower(), each.after.name.casefold()): each.warnings for each in planned}
            told = [with_warnings(with_warnings(each, warnings), wanted.warnings) for each in items]
            return wire.ApplyResult(items=(*told, *found.failed), dry_run=request.dry_run)

        names = [*(desired.name for desired in snapshots if desired.is_legacy), *(each.after.name for each in planned)]
        target = ", ".join(names)
        return task_ref(self._board.submit("apply", target, work))

    def _tell(self, brought: Sequence[wire.ApplyItem]) -> None:
        for each in brought:
            if each.kind == "dataset" and each.changes and each.id is not None:
                done, text = "created" if each.action == "created" else "updated", plural(len(each.changes), "block")
                self._events.emit(f"dataset.{done}", each.name, text, about=about(each.id), id=each.id)

    def _possible(self, request: wire.ApplyRequest, terms: ApplyTerms) -> Possible:
        """Returns which manifests are to be applied: all of them, or else none is. Blocking.

        Raises Invalid, Conflict, and what ``terms`` refuse.
        """
        if request.prune is not None:
            parse_selector(request.prune)
        plan = partial(self._declarations.plan, dry_run=request.dry_run, terms=terms_of(request), account=terms.account)
        if request.on_error == "skip":
            found = possible(request.manifests, plan)
            terms.judge(found.wanted)
            return found
        wanted = read_desired_state(request.manifests)
        terms.judge(wanted)
        if request.generation is not None and (len(wanted.drafts), len(wanted.snapshots)) not in ((1, 0), (1, 1)):
            raise Invalid("a generation is that of one resource", rule="request", hint="apply them one by one")
        return Possible(wanted, plan(wanted.drafts), ())

    async def _perform(
        self, wanted: DesiredState, planned: Sequence[PlannedResource], report: Report, *, dry_run: bool
    ) -> list[wire.ApplyItem]:
        """Networks, peers and mirrors, then datasets, then flows; what fails is an item too."""
        items = await self._apply_intents(planned, dry_run=dry_run)
        report.advance(len(items))
        promised: set[str] = set()
        meant = {(each.after.type, each.after.name): dids_of(each.after.references) for each in planned}
        for each in in_order(wanted.snapshots):
            desired = msgspec.structs.replace(
                each, variables=_variables(each.name, planned), meant=meant.get(("Dataset", each.name), {})
            )
            items.append(await self._apply(desired, promised, dry_run=dry_run))
            promised.add(desired.name.casefold())
            report.advance()
        born = {item.name.casefold(): item.id for item in items if item.kind == "dataset" and item.id is not None}
        of_flows = {each.after.name: each.after.references for each in planned if each.after.type == "Flow"}
        for flow in wanted.flows:
            now = {
                key: did
                for key, handle in of_flows[flow.name].items()
                if handle is not None and (did := handle.did or born.get(handle.name.casefold())) is not None
            }
            items.append(await self._declare(flow, now, promised, dry_run=dry_run))
            report.advance()
        return items

    async def _apply(self, desired: DesiredSnapshot, promised: AbstractSet[str], *, dry_run: bool) -> wire.ApplyItem:
        """``promised``: names that the manifests before this one make."""
        try:
            with sole_faults():
                for _ in range(ATTEMPTS - 1):
                    with contextlib.suppress(Conflict):
                        return await self._bring_about(desired, promised, dry_run=dry_run)
                return await self._bring_about(desired, promised, dry_run=dry_run)
        except Fault as fault:
            fault.place = fault.place or desired.manifest.place()
            return wire.ApplyItem(kind="dataset", name=desired.name, action="failed", fault=wire.Problem.of(fault))

    async def _declare(
        self, flow: DesiredFlow, meant: Meant, promised: AbstractSet[str], *, dry_run: bool
    ) -> wire.ApplyItem:
        """``promised``: names of datasets that are made by the same apply."""
        if dry_run and any(each.casefold().rpartition("/")[2] in promised for each in (flow.target, *flow.inputs)):
            return wire.ApplyItem(kind="flow", name=flow.name, action="created")
        try:
            return await self._apply_flow(flow, meant, dry_run=dry_run)
        except Fault as fault:
            return wire.ApplyItem(kind="flow", name=flow.name, action="failed", fault=wire.Problem.of(fault))

    async def _bring_about(
        self, desired: DesiredSnapshot, promised: AbstractSet[str], *, dry_run: bool
    ) -> wire.ApplyItem:
        parse_own_name(desired.name)
        held, is_kept = await trio.to_thread.run_sync(dataset_of, self._home, desired)
        desired = await trio.to_thread.run_sync(over_shards, self._home, desired)
        pin = (await self._engine.identity()).digest if _asks_engine(desired.snapshot) else None

        def pinned(transform: TransformSql) -> str | None:
            return pin if transform.engine == "spark" else None

        def resolve(ref: str) -> DatasetId:
            try:
                return self._resolve(ref, desired.meant)
            except Invalid as fault:
                if dry_run and ref.casefold().removeprefix("dataset:") in promised:
                    return _UNBORN
                fault.place = desired.input_place(ref)
                raise

        def planned() -> Sequence[MetadataEvent]:
            if held is None:
                return founding_events(desired.snapshot, _UNBORN, resolve, pinned)
            return changed_events(held[1], desired.snapshot, resolve, pinned)

        events = await trio.to_thread.run_sync(planned)
        if held is not None:
            await trio.to_thread.run_sync(self._check_circle, desired, held[0], events)
        warnings = await self._validate(events, desired, held[1] if held else None)
        dataset = held[0] if held else None
        if is_kept and dataset is not None and not dry_run:
            await self.adopt(str(dataset), wire.AdoptRequest(name=desired.name))
        if events and not dry_run:
            dataset = await trio.to_thread.run_sync(self._commit, desired, held, events)
        elif held is not None and not dry_run:
            await trio.to_thread.run_sync(self._place, desired, held[0])
        return wire.ApplyItem(
            kind="dataset",
            name=desired.name,
            action="adopted" if is_kept else "unchanged" if not events else "updated" if held else "created",
            id=None if dataset is None else str(dataset),
            changes=tuple(type(event).__name__ for event in events),
            warnings=warnings,
        )

    def _resolve(self, ref: str, meant: Meant) -> DatasetId:
        said = ref.removeprefix("Dataset:")
        if said.startswith("did:"):
            return DatasetId.parse(said)
        parse_own_name(said)
        with self._home.catalog() as catalog:
            return resolve_dataset(ref, meant, catalog).id

    def _check_circle(self, desired: DesiredSnapshot, dataset: DatasetId, events: Sequence[MetadataEvent]) -> None:
        """Raises Invalid where what it derives from derives from it, by whatever way. Blocking."""
        changed = [event for event in events if isinstance(event, SetTransform)]

        def edges(did: str) -> list[str]:
            if did == str(dataset):
                return [str(each) for each in input_ids(changed[-1])]
            block = self._home.chains.chain(DatasetId.parse(did)).last_of((SetTransform.__name__,))
            return (
                [str(each) for each in input_ids(block.event)]
                if block and isinstance(block.event, SetTransform)
                else []
            )

        cycle = find_cycle([str(dataset)] if changed else [], edges)
        if cycle is not None:
            with self._home.catalog() as catalog:
                names = [catalog.name_of(DatasetId.parse(each)) for each in cycle]
            raise cycle_fault(names, desired.transform_place())

    def _commit(
        self, desired: DesiredSnapshot, held: tuple[DatasetId, ChainState] | None, events: Sequence[MetadataEvent]
    ) -> DatasetId:
        """On the head that was planned on. Raises Conflict."""
        if held is not None:
            dataset, state = held
            self._append(desired, dataset, Head(state.head, state.sequence_number) if state.head else None, events)
            return dataset
        with self._home.newborn() as dataset:
            born = (msgspec.structs.replace(events[0], dataset_id=dataset), *events[1:])
            self._append(desired, dataset, None, born)
        return dataset

    def _append(
        self, desired: DesiredSnapshot, target: DatasetId, head: Head | None, events: Sequence[MetadataEvent]
    ) -> None:
        """Blocks, name and the folder of relative paths are one commit."""
        now, upper = self._clock.now(), self._home.chains.upper(target)

        def name_it(connection: sqlite3.Connection) -> None:
            resources = Resources(connection)
            Catalog(resources).add(desired.name, target, now)
            resources.apply(BASE_KIND, str(target), desired.base.encode(), now)

        self._committer.commit_now(target, head, events, (), max(_whole(now), instant.from_millis(upper)), name_it)

    def _place(self, desired: DesiredSnapshot, target: DatasetId) -> None:
        """Relative paths of a dataset that was imported begin nowhere until its manifest is applied here."""
        with self._home.database.read() as connection:
            kept = Resources(connection).get(BASE_KIND, str(target))
        if desired.base and (kept is None or not kept.spec):
            with self._home.database.write() as connection:
                Resources(connection).apply(BASE_KIND, str(target), desired.base.encode(), self._clock.now())

    def _check_source(self, event: SetPollingSource | AddPushSource, desired: DesiredSnapshot) -> None:
        """Raises Invalid, Refused: what would be refused with the first data is refused now. Blocking."""
        given, base = self._ingestion(), Path(desired.base) if desired.base else None
        named = {*given.allowed, *desired.variables, *self._declarations.names_of_values(desired.name)}
        settings = msgspec.structs.replace(given, base=base, allowed=named)
        refused = check_source(event, settings)
        if refused is not None:
            part, fault = refused
            fault.place = desired.source_place(event, part)
            raise fault

    async def _check_preprocess(
        self, event: SetPollingSource | AddPushSource, names: Vocab, desired: DesiredSnapshot
    ) -> tuple[str, ...]:
        """Raises Invalid with all that the engine refuses of the query; why it cannot be judged yet is returned."""
        query, _ = read_source(event.preprocess)
        if query is None:
            return ()
        later = f"the preprocess query {_LATER}"
        columns = read_schema(event.read)
        if columns is None:
            return (f"{later}the read step states no columns (read.schema)",)
        try:
            answer = await judge_preprocess(query, columns, names, self._engine)
        except Environment as fault:
            if _was_with_engine(fault):
                raise
            return (f"{later}{fault.message}",)
        if not answer.ok:
            raise refusal(answer.diagnostics, desired.source_place(event, "preprocess"))
        return tuple(_diagnostic_text(each) for each in answer.diagnostics)

    async def _validate(
        self, events: Sequence[MetadataEvent], desired: DesiredSnapshot, state: ChainState | None
    ) -> tuple[str, ...]:
        """Show the engine each transform. Raises Invalid with all that it refuses; warnings are returned."""
        warnings: list[str] = []
        stated = [event for event in events if isinstance(event, SetVocab)]
        names = ChainState(set_vocab=stated[-1]).vocab if stated else state.vocab if state is not None else Vocab()
        for event in events:
            if isinstance(event, SetPollingSource | AddPushSource):
                await trio.to_thread.run_sync(self._check_source, event, desired)
                warnings += await self._check_preprocess(event, names, desired)
            if not isinstance(event, SetTransform):
                continue
            if event.transform.engine != "spark":
                raise Invalid(
                    f"no engine {event.transform.engine!r} here",
                    rule="engine-unknown",
                    hint="write engine: spark; for words of other engines see docs/kamu.md",
                    place=desired.transform_place(),
                )
            _check_no_variable(event, desired)
            try:
                answer = await self._check.validate(event, names)
                why = await self._check.unknown_input(event) if answer is None else ""
            except Environment as fault:
                if _was_with_engine(fault):
                    raise
                answer, why = None, fault.message
            if answer is None:
                warnings.append(f"the query {_LATER}{why}")
                continue
            if not answer.ok:
                raise refusal(answer.diagnostics, desired.transform_place())
            warnings += [_diagnostic_text(each) for each in answer.diagnostics]
            warnings += await self._check.remarks(event, answer)
            if state is not None:
                await self._succession.check(desired.name, state, event, _whole(self._clock.now()))
        return tuple(warnings)


def _check_no_variable(event: SetTransform, desired: DesiredSnapshot) -> None:
    """Raises Invalid: a query says the same on every machine."""
    for step in event.transform.queries or ():
        try:
            check_text(step.query, "the query")
        except Invalid as fault:
            fault.place = desired.transform_place()
            raise


def _variables(name: str, planned: Sequence[PlannedResource]) -> frozenset[str]:
    """Names of values in sets, applied together, that sources of the dataset ``name`` may read."""
    sets = [each.after for each in planned if each.after.name.casefold() == name.casefold()]
    return frozenset(key for each in sets for key in names_in(each.type, each.spec))


def _was_with_engine(fault: Environment) -> bool:
    """Whether the engine may have failed because of the request; false if it never got it, as after a failed start."""
    return isinstance(fault, EngineFault) or (isinstance(fault, EngineLost) and fault.at_work)


def _asks_engine(snapshot: DatasetSnapshot) -> bool:
    return snapshot.kind is DatasetKind.DERIVATIVE and any(isinstance(e, SetTransform) for e in snapshot.metadata)


def refusal(diagnostics: Sequence[Diagnostic], place: str) -> Invalid:
    """Joins an engine's errors and warnings about a query in one message, with the remedies as the hint."""
    if all(each.severity is not Severity.ERROR for each in diagnostics):
        return Invalid("the engine refuses this query without a reason", rule="query", place=place)
    diagnostics = sorted(diagnostics, key=lambda each: each.severity is not Severity.ERROR)
    remedies = dict.fromkeys(each.replace for each in diagnostics if each.replace)
    hint = f"instead: {'; '.join(remedies)}" if remedies else ""
    return Invalid("; ".join(each.message for each in diagnostics), rule=diagnostics[0].code, hint=hint, place=place)


def _diagnostic_text(each: Diagnostic) -> str:
    place = f"line {each.line}, column {each.column}: " if each.line is not None else ""
    remedy = f"; instead: {each.replace}" if each.replace else ""
    return f"{place}{each.message}{remedy} (rule {each.code})"


def _whole(now: Instant) -> Instant:
    return Instant(now // MILLISECOND * MILLISECOND)
