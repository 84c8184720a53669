"""Brings data into datasets (ingest, correct, pull, import), alters their columns, and exports them.

``pull`` brings each kind of dataset up to date in its own way: a mirror syncs, a root polls its source, a derivative
runs its transform after its inputs. A dataset that fails harms no other; its fault is an item of the result.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec
import trio

from chain import instant
from chain.codec.manifest import render_manifest
from chain.errors import Conflict, Fault, Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import DatasetKind, SetDataSchema
from chain.state import ChainState, load_state
from chain.store.base import UpperMove
from chain.wording import plural
from odfd.access.relations import Action
from odfd.access.uses import NOT_GRANTED
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.board import task_ref
from odfd.control.operations import DATASET_PATH, NODE_PATH, EachOf, Owner, Permission, operation
from odfd.datasets import failing
from odfd.datasets.commit import Commit, CommitPart, block_time
from odfd.datasets.creation import input_ids, inputs_first
from odfd.datasets.feeding import check_fed, is_fed
from odfd.datasets.shard_reading import resolve_chains
from odfd.errors import sole_faults
from odfd.ingest import driver as ingesting
from odfd.ingest.acceptance import check_root
from odfd.ingest.alteration import Alteration, Altered, altered_change_kind, plan_alteration
from odfd.ingest.correction import CorrectionSpec, correct
from odfd.ingest.driver import ATTEMPTS, GivenSource, Ingested, load
from odfd.ingest.local_files import BASE_KIND
from odfd.ingest.plan import PUSH_SOURCE
from odfd.ingest.push import PushTerms, push_files
from odfd.ingest.trigger import TriggerTime
from odfd.ingest.watermarks import set_watermark
from odfd.mirrors.mirror_state import SchedulerState
from odfd.mirrors.repair import Repair
from odfd.mirrors.scheduler import MirrorScheduler
from odfd.repositories.catalog import Target
from odfd.resources import records
from odfd.runtime.hanging_calls import end_if_unwanted, invoke
from odfd.runtime.slots import Slots, waiting
from odfd.runtime.spans import span
from odfd.runtime.subjects import NODE, about
from odfd.runtime.tasks import Report, outside
from odfd.services.access.input_rights import check_inputs
from odfd.services.execution.quarantine import QuarantineDatasets
from odfd.services.execution.transforms import way_anew
from odfd.services.ingest.own_roots import check_owner
from odfd.services.ingest.sources import SourceReader, check_one
from odfd.services.portals.service import PortalService
from odfd.services.transfer.collection_transfer import CollectionTransfer
from odfd.services.views.derivative_index import DerivativeIndex
from odfd.services.views.pull_remarks import (
    blocked_remark,
    corrected_view,
    long_pause,
    newest,
    note_pulled,
    repeated_remark,
    uncacheable,
)
from odfd.services.views.task_progress import keep_showing, show_failures, show_ingest, show_mirror, show_transform
from odfd.services.views.views import columns_view, rows_view
from odfd.store import captures, collections
from odfd.store.catalog import Catalog, DatasetEntry
from odfd.store.directory import StateDirectory
from odfd.store.pushes import PushTable
from odfd.store.row_counts import NOTHING_READ, add_counts
from odfd.store.uploads import Uploads
from odfd.transform import driver as transforming
from odfd.transform.driver import Committed
from odfd.transform.plan import APPEND_ONLY, INPUT_DIVERGED, TRANSFORM_EVOLUTION, Blocked, Rejected, UpToDate
from odfd.transform.recovery import run_recovering

TOGETHER: Final = 32
"""Datasets that one pull brings up to date at the same time."""
SLOW: Final = 512
"""Further datasets of one pull whose sources are slow; each holds a connection, and delays no other dataset."""

_Check: TypeAlias = Callable[[DatasetEntry], None]
"""Raises Refused for what must not be written so. Blocking."""


def _accept(_: DatasetEntry) -> None:
    """Raises nothing."""


_Pull: TypeAlias = Callable[[DatasetEntry, Report], wire.PullItem | Awaitable[wire.PullItem]]


@dataclass(eq=False, kw_only=True)
class IngestPullService:
    """The API service for ingests, pulls, imports and exports, each request as a task."""

    home: StateDirectory
    deps: ingesting.IngestDependencies
    transform: transforming.TransformDependencies
    scheduler: MirrorScheduler
    context: Context
    uploads: Uploads
    import_export: CollectionTransfer
    repairing: Repair
    values: Callable[[DatasetId], Mapping[str, str]]
    """Returns the values that sources of a named dataset may read, besides those that the settings let all read."""
    promise: Callable[[DatasetId], Instant]
    """Moves a frontier to now and returns it (``promises``). Blocking."""
    derivatives: DerivativeIndex
    portals: PortalService
    ahead: Callable[[Sequence[DatasetId]], Awaitable[None]]
    """Called with the datasets of a pull; starts ahead what their transforms will need of an engine."""
    unheld: Callable[[Sequence[DatasetId]], Sequence[str]]
    """Returns remarks on datasets whose blocks pin an engine that nobody here has. Blocking."""
    turned: Callable[[str], object]
    """Called with the name of a dataset whose transform fails, or works again."""

    @operation(needs=Permission.BY_RULE)
    async def stage(self, name: str, chunks: AsyncIterable[bytes]) -> wire.Upload:
        """Keeps the bytes of one uploaded file until an ingest names it."""
        done = await self.uploads.take(name, chunks)
        return wire.Upload(id=done.id, name=name, size=done.size)

    @operation("POST", DATASET_PATH + "/ingest", needs=Action.WRITE)
    def ingest(self, ref: str, request: wire.IngestRequest) -> wire.TaskRef:
        """Ingests uploaded files into a source dataset. Result: PullResult with one item."""
        entry = self.home.resolve(ref)
        check_owner(self.home, entry)
        others = {"source": request.source, "id": request.id, "again": request.again}
        terms = PushTerms.parse(request.format, request.event_time, request.after, **others)
        self.uploads.check(request.uploads)

        async def work(report: Report) -> wire.PullResult:
            files = self.uploads.claim(request.uploads)
            try:
                async with self._turn(entry, report, self._check_fed) as fed:
                    report.begin(f"ingesting {plural(len(files), 'file')}", None, "rows")
                    log, telling = PushTable(self.home.database), partial(show_ingest, report)
                    outcome = await push_files(self.deps, fed.id, files, terms, log, telling)
            except Fault as fault:
                if fault.rule == PUSH_SOURCE:  # the fault is about the dataset, and about none of the files
                    fault.place = fault.place or entry.name
                raise
            finally:
                await self.uploads.delete(files)
            return wire.PullResult(items=(await self._report_ingest(fed, outcome, None),))

        return task_ref(self.context.board.submit("ingest", entry.name, work, about(entry.id)))

    @operation("PUT", DATASET_PATH + "/watermark", needs=Action.WRITE)
    def set_watermark(self, ref: str, request: wire.WatermarkRequest) -> wire.TaskRef:
        """Sets the watermark of a dataset. Result: PullResult with one item.

        Raises Refused unless it is a root of this node's own.
        """
        to = instant.parse(request.time)

        async def work(entry: DatasetEntry) -> wire.PullResult:
            done = await set_watermark(self.deps, entry.id, to, ahead=request.ahead)
            text = f"the watermark is {instant.render(to)}"
            if done.head is None:
                return wire.PullResult(items=(_item(entry, text),))
            self._tell_appended(entry, text, 1, 0)
            return wire.PullResult(items=(_item(entry, text, blocks=1, head=str(done.head.hash)),))

        return self._alone("watermark", ref, work, self._check_fed)

    @operation("PUT", DATASET_PATH + "/upper", needs=Action.WRITE)
    def advance(self, ref: str) -> wire.TaskRef:
        """Promises that a dataset is complete for all times before now. Result: PullResult with one item.

        Raises Refused if other nodes may write the dataset.
        """

        def work(entry: DatasetEntry) -> wire.PullResult:
            until = instant.render(self.promise(entry.id))
            text, told = f"times before {until} are complete", about(entry.id)
            self.context.events.emit("dataset.advanced", entry.name, text, about=told, id=str(entry.id), upper=until)
            return wire.PullResult(items=(_item(entry, text),))

        return self._alone("advance", ref, work)

    @operation("POST", DATASET_PATH + "/correct", needs=Action.WRITE)
    def correct(self, ref: str, request: wire.CorrectRequest) -> wire.TaskRef:
        """Corrects a row of a dataset with the ledger strategy. Result: CorrectResult.

        Raises Refused unless it is a ledger of this node's own.
        """

        def check(entry: DatasetEntry) -> None:
            self._check_fed(entry)
            self._check_own(entry, "correct")

        async def work(entry: DatasetEntry) -> wire.CorrectResult:
            spec = msgspec.convert(request, CorrectionSpec, from_attributes=True)
            done = await correct(self.deps, entry.id, spec)
            if done.head is not None:
                text = "1 record retracted" if done.after is None else "1 record corrected"
                self._tell_appended(entry, text, done.blocks, done.rows)
            return corrected_view(entry.name, done, request)

        return self._alone("correct", ref, work, check)

    @operation("POST", DATASET_PATH + "/schema", needs=Action.MAINTAIN)
    def alter_schema(self, ref: str, request: wire.AlterSchemaRequest) -> wire.TaskRef:
        """Alters the columns of a source dataset of this node. Result: AlterSchemaResult. Raises Refused for others."""
        return self._alone("alter", ref, partial(self._alter, request=request))

    def _alone(
        self, kind: str, ref: str, work: Callable[[DatasetEntry], object], check: _Check = _accept
    ) -> wire.TaskRef:
        """Begins a task on a dataset, which nobody else writes meanwhile. Raises NotFound, Invalid."""
        entry = self.home.resolve(ref)

        async def alone(report: Report) -> object:
            async with self._turn(entry, report, check) as written:
                return await invoke(work, written)

        return task_ref(self.context.board.submit(kind, entry.name, alone, about(entry.id)))

    @asynccontextmanager
    async def _turn(self, entry: DatasetEntry, report: Report, check: _Check = _accept) -> AsyncIterator[DatasetEntry]:
        """Waits for the turn to write a dataset, and yields the one to write then. Raises what ``check`` does.

        Its collection may hand over meanwhile: what came for the active rendition is for the next one.
        """
        while True:
            async with self.home.turns.of(entry.id, report.waits_to_write(entry.name)):
                meant = await trio.to_thread.run_sync(self._find_active, entry, check)
                if meant.id == entry.id:
                    yield entry
                    return
            entry = meant

    def _find_active(self, entry: DatasetEntry, check: _Check) -> DatasetEntry:
        """Returns the active rendition of a collection in place of the one that was; others by themselves.

        Raises what ``check`` does of one that is itself.
        """
        with self.home.database.read() as connection:
            active = entry.id if entry.is_inner else collections.of(connection, entry.id).active.dataset
            found = entry if active == entry.id else Catalog(connection).resolve(str(active))
        if found.id == entry.id:
            check(entry)
        return found

    def _check_fed(self, entry: DatasetEntry) -> None:
        """Raises Refused for a dataset that is not fed here."""
        check_fed(self.home, entry.id)

    def _check_own(self, entry: DatasetEntry, verb: str, rule: str = "correct-owner") -> None:
        """Raises Refused for a dataset whose rows and columns others change."""
        if not self.home.keys.has_dataset_key(entry.id):
            raise Refused(f"{entry.name} is not this node's own", rule=rule, hint=f"ask its owner to {verb} it")

    def _tell_appended(self, entry: DatasetEntry, text: str, blocks: int, records: int) -> None:
        told = about(entry.id)
        self.context.events.emit("dataset.appended", entry.name, text, about=told, blocks=blocks, records=records)

    def _alter(self, entry: DatasetEntry, request: wire.AlterSchemaRequest) -> wire.AlterSchemaResult:
        """Appends the change, or only plans it. Raises whatever ``plan_alteration`` and a commit raise. Blocking."""
        self._check_own(entry, "alter", "schema-owner")
        wanted = msgspec.convert(request, Alteration, from_attributes=True)
        for attempt in range(ATTEMPTS):
            end_if_unwanted()
            (state, upper, time), altered, planned = self._plan_alteration(entry, request, wanted)
            if request.dry_run or altered.derived is not None:
                return planned
            part = CommitPart.after(state, time, altered.events, upper=UpperMove(upper))
            try:
                (head,) = self.deps.committer.commit_now(Commit(parts=(part,)))
            except Conflict:
                if attempt + 1 == ATTEMPTS:
                    raise
                continue
            added, blocks = ", ".join(column.name for column in planned.added), len(altered.events)
            self._tell_appended(entry, f"columns: {added}", blocks, 0)
            return msgspec.structs.replace(planned, outcome="altered", head=str(head.hash), blocks=blocks)
        raise AssertionError("the last attempt returns or raises")

    def _plan_alteration(
        self, entry: DatasetEntry, request: wire.AlterSchemaRequest, wanted: Alteration
    ) -> tuple[tuple[ChainState, int, Instant], Altered, wire.AlterSchemaResult]:
        if request.derived is not None:
            self._check_free(request.derived)
        seen = self._look(entry)
        altered = plan_alteration(seen[0], wanted)
        return seen, altered, self._altered_view(entry, seen[0], request, altered)

    def _check_free(self, name: str) -> None:
        """Raises Refused if there is a dataset with the name of the derived one to be declared."""
        with suppress(NotFound):
            there = self.home.resolve(name)
            raise Refused(f"there is a dataset {there.name} already", rule="schema-as", hint="choose another name")

    def _look(self, entry: DatasetEntry) -> tuple[ChainState, int, Instant]:
        """Returns the state, the frontier, and the time of the next block. Raises as ``load``."""
        upper, state = self.deps.store.upper(entry.id), load(self.deps, entry.id)
        return state, upper, block_time(state, self.deps.now(), upper)

    def _altered_view(
        self, entry: DatasetEntry, state: ChainState, request: wire.AlterSchemaRequest, altered: Altered
    ) -> wire.AlterSchemaResult:
        assert state.schema is not None
        columns = columns_view(SetDataSchema(schema=altered.schema))
        with self.home.database.read() as connection:
            kept = captures.count(connection, entry.id)
        course = altered_change_kind(entry.name, state, altered, kept)
        before = {column.name for column in columns_view(state.schema)}
        return wire.AlterSchemaResult(
            ref=entry.name,
            action=request.action,
            outcome="planned",
            events=tuple(type(event).__name__ for event in altered.events),
            columns=columns,
            added=tuple(column for column in columns if column.name not in before) if altered.events else (),
            records=state.next_offset,
            derivations=tuple(each.name for each in self.derivatives.of(entry.id)),
            remarks=altered.remarks,
            course=course.word,
            course_text=course.text,
            manifest=None if altered.derived is None else render_manifest(altered.derived),
        )

    @operation("POST", NODE_PATH + "/pull", needs=EachOf(Action.WRITE))
    def pull(self, request: wire.PullRequest, trigger: TriggerTime | None = None) -> wire.TaskRef:
        """Brings datasets up to date. Result: PullResult. ``trigger``: the time that a run of a flow is for."""
        check_one(request)
        wished = None if request.time is None else TriggerTime.read(request.time, is_wished=True)
        targets = self._targets(request)
        entries = self._list_wanted(request)
        target = ", ".join([*map(str, targets), *(entry.name for entry in entries)])
        names_others = bool(targets) or request.source is not None  # repositories and Sources are the node's owner's
        private = self.portals.inputs([entry.id for entry in entries])
        told = NODE if names_others else about(*(entry.id for entry in entries), *private, inputs=True)
        ordered = self._after(entries, request.repair)

        async def work(report: Report) -> wire.PullResult:
            items: dict[DatasetId, wire.PullItem | None] = {}
            slots = Slots(TOGETHER, SLOW)
            over = {entry.id: trio.Event() for entry in entries}

            async def one(entry: DatasetEntry, first: Sequence[DatasetId]) -> None:
                for each in first:
                    await over[each].wait()
                async with slots.one():
                    with report.part() as part:
                        async with self._turn(entry, part) as pulled:
                            with span("pull", pulled.name) as seen:
                                found = await self._pull_one(pulled, part, request, wished or trigger)
                                items[entry.id] = found
                                note_pulled(seen, found)
                over[entry.id].set()

            async def bring(target: Target) -> None:
                async with slots.one():
                    with report.part() as part:
                        brought.append(await self.import_export.pull(target, request.as_name, part))

            brought: list[wire.PullItem] = []
            # The datasets of a pull have their own slots, so its task gives up the one that it holds.
            async with waiting(connected=False), trio.open_nursery() as nursery:
                await self.ahead([] if request.repair else list(over))
                for entry, first in ordered:
                    nursery.start_soon(one, entry, first)
                for target in targets:
                    nursery.start_soon(bring, target)
            brought += [found for entry in entries if (found := items[entry.id]) is not None]
            show_failures(report, brought)
            return wire.PullResult(items=tuple(brought))

        return task_ref(self.context.board.submit("pull", target, work, told))

    @operation("POST", DATASET_PATH + "/export", needs=Owner.FILES)
    def export(self, ref: str, request: wire.ExportRequest) -> wire.TaskRef:
        """Exports a dataset, with all its shards, to a folder. Result: TransferResult."""
        entries = resolve_chains(self.home, ref)
        if len(entries) > 1:
            work = self.import_export.export_collection(entries, request)
        else:
            work = self.import_export.export(entries[0], request)
        return task_ref(self.context.board.submit("export", entries[0].name, work))

    @operation("POST", NODE_PATH + "/import", needs=Owner.FILES)
    def import_(self, request: wire.ImportRequest) -> wire.TaskRef:
        """Imports a dataset from a folder or a published copy. Result: TransferResult."""
        return task_ref(self.context.board.submit("import", request.source, self.import_export.import_(request)))

    def _targets(self, request: wire.PullRequest) -> list[Target]:
        """Returns the requested datasets that are in repositories. Raises NotFound, Invalid."""
        targets = self.import_export.repositories.targets(request.refs)
        if request.as_name is not None and (len(targets), len(request.refs)) != (1, 1):
            text = "a local name is for one dataset that comes from a repository"
            raise Invalid(text, rule="pull-name", hint="odfctl pull REPOSITORY/DATASET --as NAME")
        return targets

    def _list_wanted(self, request: wire.PullRequest) -> list[DatasetEntry]:
        """Returns the requested datasets that are here, inputs before what derives from them."""
        with self.home.catalog() as catalog:
            entries = {entry.id: entry for entry in catalog.chains()}
            asked = (
                [entry for entry in entries.values() if not entry.is_inner]
                if request.all
                else [catalog.resolve(ref) for ref in request.refs if not self.import_export.repositories.has(ref)]
            )
        among = entries if request.recursive else {entry.id: entry for entry in asked}
        if request.repair:
            return asked
        return [entries[each] for each in inputs_first([entry.id for entry in asked], self._inputs, among)]

    def _after(self, entries: Sequence[DatasetEntry], repair: bool) -> list[tuple[DatasetEntry, list[DatasetId]]]:
        """Pairs each dataset with those before it that it derives from.

        A repair has no order, since the chain of a dataset to be repaired may be unreadable.
        """
        before: set[DatasetId] = set()
        found = []
        for entry in entries:
            found.append((entry, [] if repair else [input_ for input_ in self._inputs(entry.id) if input_ in before]))
            before.add(entry.id)
        return found

    async def _states(self, dataset: DatasetId) -> dict[DatasetId, ChainState]:
        return await trio.to_thread.run_sync(lambda: {each: self._state(each) for each in self.home.shards_of(dataset)})

    def _state(self, dataset: DatasetId) -> ChainState:
        return load_state(self.home.chains.chain(dataset))

    def _inputs(self, dataset: DatasetId) -> Sequence[DatasetId]:
        said = self._state(dataset).set_transform
        return input_ids(said) if said is not None else ()

    def _way(self, entry: DatasetEntry, request: wire.PullRequest, trigger: TriggerTime | None) -> _Pull | None:
        """Returns what pulls a dataset; ``None`` for one that has no source and was not named. Blocking."""
        explicit, is_own = not request.all, self.home.keys.has_dataset_key(entry.id)
        state = self._state(entry.id)
        if request.source is not None or request.time is not None:
            rule = "pull-source" if request.source is not None else "pull-time"
            check_root(entry.name, rule, is_own=is_own, kind=state.kind)
        if self.scheduler.find(entry.id) is not None:
            return self._sync
        if not is_own and explicit:
            raise Invalid(
                f"{entry.name} is neither this node's own nor a mirror: there is nowhere to pull it from",
                rule="pull-source",
                hint=f"odfctl mirror add {entry.id} --as {entry.name}",
            )
        if not is_own:
            return None
        if state.kind is DatasetKind.DERIVATIVE:
            if state.set_transform is not None:
                check_inputs(self.home, entry.id, input_ids(state.set_transform))
            return partial(self._derive, before=state)
        if request.source is None and (portal := self.portals.of(entry.id)):
            return partial(self.portals.pull, portal=portal)
        if not is_fed(self.home, entry.id, explicit) or (state.polling_source is None and not explicit):
            return None
        return partial(self._poll, request=request, trigger=trigger)

    async def _pull_one(
        self, entry: DatasetEntry, report: Report, request: wire.PullRequest, trigger: TriggerTime | None
    ) -> wire.PullItem | None:
        """Pulls one dataset; returns ``None`` if it has no source and was not named in the request."""
        report.begin(f"pulling {entry.name}", None, "rows")
        try:
            # A dataset to be repaired may have a chain that cannot be read, so its kind is not looked up.
            with sole_faults():
                if request.repair:
                    return await self._repair(entry, report)
                pull = await trio.to_thread.run_sync(self._way, entry, request, trigger)
                return None if pull is None else await invoke(pull, entry, report)
        except Fault as fault:
            outcome: Literal["blocked", "failed"] = "blocked" if fault.rule == NOT_GRANTED else "failed"
            return wire.PullItem(ref=entry.name, outcome=outcome, message=str(fault), fault=wire.Problem.of(fault))

    async def _poll(
        self, entry: DatasetEntry, report: Report, *, request: wire.PullRequest, trigger: TriggerTime | None
    ) -> wire.PullItem:
        deps = await trio.to_thread.run_sync(self._dependencies_of, request.source, entry.id)
        outcome = await ingesting.pull_root(
            replace(deps, trigger=trigger), entry.id,
            fetch_uncacheable=request.fetch_uncacheable, report=partial(show_ingest, report),
        )  # fmt: skip
        return await self._report_ingest(entry, outcome, deps.given)

    def _dependencies_of(self, source: str | None, dataset: DatasetId) -> ingesting.IngestDependencies:
        """Returns what a pull uses, from a Source if one is named. Raises NotFound, Refused."""
        if source is None:
            return self.dependencies(dataset)
        # It reads only its own values, and has no folder for relative paths.
        given, values = self._bind(source, dataset)
        settings = msgspec.structs.replace(self.deps.settings, variables=values)
        return replace(self.deps, given=given, settings=settings)

    def _bind(self, source: str, dataset: DatasetId) -> tuple[GivenSource, Mapping[str, str]]:
        """Notes from which Source a dataset takes, and returns it with its values. Raises NotFound, Refused."""
        sources = SourceReader(self.home)
        given, values = sources.open_given(source, dataset)
        sources.bind(given)
        return given, values

    def _settle(self, entry: DatasetEntry, outcome: ingesting.PullOutcome, given: GivenSource | None) -> str:
        """Records how far a Source was taken; returns the remarks beside the numbers."""
        if given is not None:
            SourceReader(self.home).note_taken(given)
        return self._remark_on(entry, outcome)

    def dependencies(self, dataset: DatasetId) -> ingesting.IngestDependencies:
        """Returns what an ingest of a dataset uses, with the variables that its source may name. Blocking."""
        settings = self.deps.settings
        settings = msgspec.structs.replace(settings, variables={**settings.variables, **self.values(dataset)})
        return replace(self.deps, base=self._base, settings=settings)

    def _remark_on(self, entry: DatasetEntry, outcome: ingesting.PullOutcome) -> str:
        """Says where the unreadable records of an ingest are, and if its time is doubtful; empty if neither."""
        count, datasets = outcome.counts.quarantined, self.deps.quarantines
        is_single = len(self.home.shards_of(entry.id)) == 1  # of several no block can be given up
        told = long_pause(entry.name, self.home.chains.chain(entry.id), outcome) if is_single else ""
        if count and isinstance(datasets, QuarantineDatasets):
            return "; ".join(filter(None, (f"what could not be read is in {datasets.name(entry.id)}", told)))
        return told

    def _base(self, dataset: DatasetId) -> Path | None:
        with self.home.database.read() as connection:
            found = records.get(connection, BASE_KIND, str(dataset))
        return Path(found.body.decode()) if found is not None and found.body else None

    async def _report_ingest(
        self, entry: DatasetEntry, outcome: ingesting.PullOutcome, given: GivenSource | None
    ) -> wire.PullItem:
        """Returns the result of an ingest. ``given``: the Source that it was from, if one was named."""
        told = await trio.to_thread.run_sync(self._settle, entry, outcome, given)
        if not isinstance(outcome, Ingested) or outcome.blocks > outcome.repeated:
            self.context.meter.rows("ingest", outcome.counts)
        rows = rows_view(outcome.counts)
        if not isinstance(outcome, Ingested):
            reason = outcome.reason
            why = uncacheable(entry.name, reason) if reason == ingesting.UNCACHEABLE else reason
            return _item(entry, "; ".join(part for part in (why, told) if part), rows=rows)
        blocks, records = outcome.blocks - outcome.repeated, outcome.rows - outcome.repeated_rows
        if blocks:
            self.context.meter.count_commit("ingest", blocks, records)
            self._tell_appended(entry, plural(records, "record"), blocks, records)
        message = "; ".join(part for part in (repeated_remark(outcome), told) if part)
        return _item(entry, message, blocks=blocks, records=records, head=str(outcome.head.hash), rows=rows)

    async def _derive(self, entry: DatasetEntry, report: Report, *, before: ChainState) -> wire.PullItem:
        """Runs the transform, and notes why it fails, until it works."""
        try:
            with sole_faults():
                item = await self._run_transform(entry, report, before)
        except Fault as fault:
            if not isinstance(fault, Conflict):  # which says that another run is at work
                await self._note(entry, fault)
            raise
        if item.outcome != "blocked":
            await self._note(entry, None)
        return item

    async def _note(self, entry: DatasetEntry, fault: Fault | None) -> None:
        def note() -> bool:
            with self.home.database.read() as connection:
                if fault is None and failing.of(connection, entry.id) is None:
                    return False
            with self.home.database.write() as connection:
                return failing.note(connection, entry.id, fault, self.context.clock.now())

        if await trio.to_thread.run_sync(note):
            self.turned(entry.name)

    async def _run_transform(self, entry: DatasetEntry, report: Report, before: ChainState) -> wire.PullItem:
        """Runs the transform until no input is left to consume."""
        blocks = records = 0
        counts = NOTHING_READ
        while True:
            outcome = await run_recovering(self.transform, entry.id, partial(show_transform, report))
            if not isinstance(outcome, Committed):
                break
            records += outcome.records
            counts = add_counts(counts, outcome.counts)
            report.begin(f"{plural(records, 'record')} so far", None, "rows")
            report.done = records
        after, anew, remarks = await trio.to_thread.run_sync(self._look_after, entry, before, outcome)
        blocks = after.size - before.size
        self.context.meter.rows("transform", counts)
        if blocks:
            self.context.meter.count_commit("transform", blocks, records)
            text, told = plural(records, "record"), about(entry.id)
            self.context.events.emit("dataset.derived", entry.name, text, about=told, blocks=blocks, records=records)
        way = f"odfctl compact {entry.name} --keep-metadata-only, then odfctl pull {entry.name}"
        if isinstance(outcome, Rejected):
            hint = ": ".join(filter(None, (outcome.hint, way if outcome.rule == APPEND_ONLY else "")))
            place = f"{entry.name}, {outcome.place}" if outcome.place else entry.name
            raise Invalid(outcome.message, rule=outcome.rule or "transform", hint=hint, place=place)
        if isinstance(outcome, Blocked) and outcome.rule == INPUT_DIVERGED:
            raise Refused(outcome.reason, rule=outcome.rule, hint=f"{outcome.hint}: {way}", place=entry.name)
        if isinstance(outcome, Blocked) and outcome.rule == TRANSFORM_EVOLUTION:
            raise Refused(outcome.reason, rule=outcome.rule, hint=anew, place=entry.name)
        if isinstance(outcome, Blocked):
            return blocked_remark(entry.name, outcome, wire.PullItem(
                ref=entry.name, outcome="blocked", blocks=blocks, records=records, rows=rows_view(counts)
            ))  # fmt: skip
        head, rows = str(after.head), rows_view(counts)
        return _item(entry, "; ".join(remarks), blocks=blocks, records=records, head=head, rows=rows)

    def _look_after(
        self, entry: DatasetEntry, before: ChainState, outcome: Rejected | Blocked | UpToDate
    ) -> tuple[ChainState, str, Sequence[str]]:
        """Returns the state after a transform ran, the way to begin anew if it has to, and remarks on its inputs."""
        after = self._state(entry.id)
        has_changed = isinstance(outcome, Blocked) and outcome.rule == TRANSFORM_EVOLUTION
        anew = way_anew(self.home.chains, entry.name, after) if has_changed else ""
        is_told = after.size > before.size and not isinstance(outcome, Rejected | Blocked)
        return after, anew, self.unheld(self._inputs(entry.id)) if is_told else ()

    async def _sync(self, entry: DatasetEntry, report: Report) -> wire.PullItem:
        if self.scheduler.get(entry.id).spec.paused:
            message = f"it is paused: odfctl mirror resume {entry.name}"
            return wire.PullItem(ref=entry.name, outcome="blocked", message=message)
        before = await self._states(entry.id)
        async with outside(f"peers of {entry.name}"), trio.open_nursery() as nursery:
            nursery.start_soon(keep_showing, report, self.scheduler.get(entry.id))
            for each in reversed(before):
                mirror = await self.scheduler.pass_now(each)
            nursery.cancel_scope.cancel()
        after = await self._states(entry.id)
        show_mirror(report, mirror)
        report.message = mirror.message
        if mirror.state in (SchedulerState.REFUSED, SchedulerState.FAILED, SchedulerState.STALLED):
            fault = wire.Problem.of(mirror.fault) if mirror.fault is not None else None
            return wire.PullItem(ref=entry.name, outcome="failed", message=mirror.message, fault=fault)
        moved = sum(after[each].size - before[each].size for each in before)
        return wire.PullItem(
            ref=entry.name,
            outcome="updated" if moved else "blocked" if mirror.doubt else "up-to-date",
            message=f"{mirror.doubt}; {newest(after[entry.id])}" if mirror.doubt else mirror.message,
            blocks=moved,
            records=sum(after[each].next_offset - before[each].next_offset for each in before),
            head=str(after[entry.id].head) if after[entry.id].head else None,
        )

    async def _repair(self, entry: DatasetEntry, report: Report) -> wire.PullItem:
        report.begin(f"looking at every block and object of {entry.name}", None, "objects")
        async with outside(f"peers of {entry.name}"):
            async with self.scheduler.still(entry.id):
                repaired = await self.repairing.repair(entry)
            told = [f"{repaired} made whole" if any(repaired) else "every block and object is whole"]
            fetched = await self.repairing.catch_up(entry)
        if fetched:
            told.append(f"{fetched} more that are signed were fetched")
        item = _item(entry, "; ".join(told), blocks=fetched)
        return msgspec.structs.replace(item, outcome="updated") if any(repaired) else item


def _item(
    entry: DatasetEntry,
    message: str = "",
    *,
    blocks: int = 0,
    records: int = 0,
    head: str | None = None,
    rows: wire.RowCounts | None = None,
) -> wire.PullItem:
    """Returns the result of one dataset, which is up to date without new blocks."""
    return wire.PullItem(
        ref=entry.name, outcome="updated" if blocks else "up-to-date", message=message, blocks=blocks,
        records=records, head=head, rows=rows,
    )  # fmt: skip
