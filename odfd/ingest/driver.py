"""Runs an ingest: fetches, prepares, executes by the engine, checks the output, commits; repeats while more is left.

One iteration is one transaction. A crash before the commit leaves the chain as it was, and files in the staging
directories that may be deleted; the next run fetches from the source state in the chain. If another commit won the race
for the head, the ingest plans again on the new head with the files already fetched, unless the source has changed or
got further meanwhile: then it fetches again. Blocking work runs in worker threads.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import trio

from chain.errors import Conflict, Environment, Fault, Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.defaults import same
from chain.model.events import AddData, MetadataEvent, SetPollingSource, SourceState
from chain.model.fetch_options import fetch_options
from chain.model.source import FetchFilesGlob, traits
from chain.state import ChainState, load_state
from chain.store.base import ChainReader, ChainStore, Head, ObjectStore, UpperMove
from chain.store.objects import staged_in
from engines.contract import (
    Engine,
    EngineInternalError,
    InvalidQuery,
    OnProgress,
    RowCounts,
    SkippedFile,
    Success,
    ignore_progress,
)
from engines.errors import EngineFault, engine_failed
from engines.output_check import operations
from odfd.datasets.commit import Commit, CommitPart, Committer, Record, block_time
from odfd.ingest.consumed_files import ConsumedFileIndex
from odfd.ingest.fetch.files import check_unchanged, left_alone
from odfd.ingest.fetch.source import Fetched, FetchJob, FetchOutcome, Unchanged, names_of
from odfd.ingest.file_writer import staged_folder
from odfd.ingest.plan import (
    Batch,
    IngestPlan,
    PlanTerms,
    SourceInForce,
    declared_columns,
    plan_ingest,
    polling,
)
from odfd.ingest.preparation import prepare
from odfd.ingest.progress import IngestStep, Report, by_engine, quiet, watch
from odfd.ingest.quarantine import Quarantines, set_aside, standing, way_on
from odfd.ingest.settings import IngestSettings
from odfd.ingest.settlement import IngestOutcome, settle, with_answer
from odfd.ingest.slices import SliceIndex, execute_request, keep_slice
from odfd.ingest.snapshots import confirm, needs_event_time
from odfd.ingest.templates import redact
from odfd.ingest.trigger import TriggerTime, check_wish, fetch_for, is_uncacheable
from odfd.runtime.filesystem import check_room
from odfd.runtime.spans import span
from odfd.runtime.tasks import outside
from odfd.store.captures import Capture, CapturedFile
from odfd.store.pushes import Push
from odfd.store.row_counts import NOTHING_READ, add_counts, says_something, together

ATTEMPTS: Final = 5
"""Times that a transaction is planned again because of a concurrent commit."""
UNCACHEABLE: Final = "uncacheable"
WRITTEN_TO: Final = "it is still being written to, and is taken when it is left alone (ingest.settle-seconds)"


class Ingested(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an ingest that committed a block."""

    head: Head
    blocks: int
    rows: int
    files: int
    """Files taken from the source, also those that brought no new rows."""
    counts: RowCounts
    """Counts of all rows that were read by their result, with the files that were skipped."""
    repeated: int = 0
    """How many of ``blocks`` an earlier, identical push had appended."""
    repeated_rows: int = 0
    """How many of ``rows`` such a push had appended."""


class NothingNew(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an ingest that committed nothing."""

    reason: str
    """``unchanged``: the source says so. ``uncacheable``: it cannot say, and was read before. ``nothing-new``: the
    dataset has all of its rows already. ``unsettled``: the next file is still being written to."""
    counts: RowCounts = NOTHING_READ


PullOutcome: TypeAlias = Ingested | NothingNew
Fetch: TypeAlias = Callable[[FetchJob], Awaitable[FetchOutcome]]


class GivenSource(msgspec.Struct, frozen=True, kw_only=True):
    """A Source that is declared outside of the chain, in the form of the chain's own source."""

    id: str
    dataset: DatasetId
    name: str
    """The name that the chain has for the Source: the one that it had when the dataset first took from it."""
    polled: SetPollingSource
    fetch: Fetch | None = None
    """Replaces the fetch step of ``polled``, if given."""
    keeps_raw: bool = False
    """Whether the bytes that are taken from it are kept."""

    def over(self, state: ChainState) -> ChainState:
        """Returns the state as if the chain declared the source. Raises Refused for a second source of one dataset."""
        seen = state.source_state
        own = state.polling_source is not None and not same(state.polling_source, self.polled)
        if own or state.active_push_sources or (seen is not None and seen.source_name != self.name):
            by_chain = own or state.active_push_sources
            has = "its metadata" if by_chain or seen is None else f"the source {seen.source_name}"
            raise second_source(has, self.name)
        return msgspec.structs.replace(state, set_polling_source=self.polled, polling_disabled=False)

    def with_name(self, found: FetchOutcome) -> FetchOutcome:
        """Returns the fetch's outcome with the name of the Source in its source state."""
        if isinstance(found, Unchanged) or found.state is None:
            return found
        return msgspec.structs.replace(found, state=msgspec.structs.replace(found.state, source_name=self.name))


def second_source(has: str, wanted: str) -> Refused:
    """Returns the fault for a Source of a dataset that has another. ``has``: what that is."""
    return Refused(
        f"the dataset takes its records from {has}, and not from the Source {wanted}",
        rule="second-source",
        hint="one dataset has one source: make a dataset for the other, and derive a third from both",
    )


def keep_raw(objects: ObjectStore, batch: Batch, source: str, given: str = "") -> Capture:
    """Stores the files of a batch. Returns the capture to commit with the blocks.

    ``source``: name of the push source, or empty. ``given``: id of the Source, or empty. Raises Environment.
    """
    files = []
    for number, path in enumerate(batch.raw or batch.paths):
        name = batch.names[number] if number < len(batch.names) else path.name
        with staged_in(objects) as staged:
            try:
                shutil.copyfile(path, staged)
                size = staged.stat().st_size
            except OSError as error:
                raise Environment(f"cannot keep {name}: {error.strerror}", rule="capture") from error
            files.append(CapturedFile(name, objects.add_file(staged), size))
    return Capture(
        files=tuple(files),
        source=source,
        given=given,
        label=batch.state,
        event_time=batch.event_time,
        fills_event_time=batch.fills_event_time,
        decoded=batch.decoded,
    )


@dataclass(slots=True)
class IngestDependencies:
    """The dependencies of ingestion, made once by the daemon. A change of ``settings`` applies to later ingests."""

    store: ChainStore
    objects: ObjectStore
    engine: Engine
    committer: Committer
    now: Callable[[], Instant]
    settings: IngestSettings
    index: SliceIndex = field(default_factory=SliceIndex)
    base: Callable[[DatasetId], Path | None] | None = None
    """Returns the folder that relative source paths start from, before each fetch. ``None``: as in ``settings``."""
    taken: ConsumedFileIndex = field(default_factory=ConsumedFileIndex)
    quarantines: Quarantines | None = None
    """Access to quarantines; ``None``: files with records that cannot be read are refused."""
    given: GivenSource | None = None
    """A Source that one dataset reads from during this ingest."""
    trigger: TriggerTime | None = None
    """The trigger time of this ingest; ``None``: the time at which it begins."""
    is_captured: Callable[[DatasetId], bool] = lambda _: False
    """Whether a dataset says that the bytes of its source are kept."""
    shards: Callable[[DatasetId], Sequence[DatasetId]] = lambda dataset: (dataset,)
    """Returns the chains that hold the dataset's rows; an ingest planned for the first is committed to all."""

    def keeps_raw(self, dataset: DatasetId) -> bool:
        """Whether this ingest keeps the bytes of the dataset's source, as the dataset or the given Source says."""
        return (self.given is not None and self.given.keeps_raw) or self.is_captured(dataset)


@dataclass(slots=True)
class IngestTotals:
    """Adds up the transactions of one call."""

    head: Head | None = None
    blocks: int = 0
    rows: int = 0
    files: int = 0
    counts: RowCounts = NOTHING_READ
    repeated: int = 0
    repeated_rows: int = 0

    def repeat(self, head: Head, push: Push) -> None:
        """Counts a push that was ingested before, with the numbers of that time."""
        self.head = head if push.answer.blocks else self.head
        self.rows += push.answer.records
        self.blocks += push.answer.blocks
        self.repeated += push.answer.blocks
        self.repeated_rows += push.answer.records
        self.count(push.answer.counts)

    def add(self, after: Head, done: IngestOutcome) -> None:
        self.head, self.rows = after, self.rows + done.rows
        self.blocks += len(done.events)
        self.count(done.counts)

    def count(self, counts: RowCounts) -> None:
        self.counts = add_counts(self.counts, counts)

    def outcome(self, otherwise: str) -> PullOutcome:
        if self.head is None:
            return NothingNew(reason=otherwise, counts=self.counts)
        return Ingested(
            head=self.head, blocks=self.blocks, rows=self.rows, files=self.files, counts=self.counts,
            repeated=self.repeated, repeated_rows=self.repeated_rows,
        )  # fmt: skip


async def pull_root(
    deps: IngestDependencies, dataset: DatasetId, *, fetch_uncacheable: bool = False, report: Report = quiet
) -> PullOutcome:
    """Brings a dataset up to date with its polling source.

    Raises Refused (not a root, no polling source), Invalid (data or query, with file and line), NotFound and Remote
    (the source), Environment and the engine's faults. Transactions committed before a fault stay committed.
    """
    with redact(deps.settings.variables):
        deps = deps if deps.trigger is not None else replace(deps, trigger=TriggerTime.of(deps.now()))
        return await _pull(deps, dataset, fetch_uncacheable=fetch_uncacheable, report=report)


async def _pull(
    deps: IngestDependencies, dataset: DatasetId, *, fetch_uncacheable: bool, report: Report
) -> PullOutcome:
    tally, overtaken = IngestTotals(), 0
    while True:
        state = await trio.to_thread.run_sync(load, deps, dataset)
        polled, _ = polling(state)
        check_wish(polled, deps.trigger)
        shards = await trio.to_thread.run_sync(shards_with, deps, state)
        has_rows = any(each.last_offset is not None for _, each in shards)
        if has_rows and not fetch_uncacheable and is_uncacheable(polled, state.source_state, deps.trigger):
            return tally.outcome(UNCACHEABLE)
        async with staged_folder(deps.settings.staging) as folder:
            async with outside("its source"):
                fetching = IngestStep(file="its source", phase="fetching", rows=tally.rows)
                with span("fetch"):
                    async with watch(folder, fetching, report):
                        found = await fetch_next(deps, dataset, polled, state, folder)
                found = found if deps.given is None else deps.given.with_name(found)
                settled = isinstance(found, Unchanged) or await left_alone(found.local, deps.settings, deps.now)
            if isinstance(found, Unchanged):
                await _note_skipped(deps, state, found.skipped, tally)
                await _confirm(deps, dataset, polled, state.source_state, tally)
                return tally.outcome("unchanged")
            if not settled:
                skipped = (SkippedFile(name=found.name, reason=WRITTEN_TO), *found.skipped)
                await _note_skipped(deps, state, skipped, tally)
                return tally.outcome("unsettled")
            report(IngestStep(file=found.name, phase="fetched", rows=tally.rows))
            async with outside("the preparation of its source"):
                with span("read"):
                    batch = await prepare_batch(deps, polled, found, folder)
            try:
                await transact(deps, state, _as_fetched(state), batch, tally, report)
            except SourceMoved:
                overtaken += 1
                if overtaken == ATTEMPTS:
                    raise
                continue
            tally.files += 1
        if not found.has_more:
            if tally.rows == 0:
                await _confirm(deps, dataset, polled, found.state, tally)
            return tally.outcome("nothing-new")
        # The wish is for one document: each further round would fetch the same again.
        fetch_uncacheable = False


def shards_with(deps: IngestDependencies, state: ChainState) -> list[tuple[ChainReader, ChainState]]:
    """Returns the chains that hold the rows, with their states; ``state`` is that of the first."""
    first = state.dataset
    assert first is not None
    return [(deps.store.chain(shard), state if shard == first else load(deps, shard)) for shard in deps.shards(first)]


async def _confirm(
    deps: IngestDependencies,
    dataset: DatasetId,
    polled: SetPollingSource,
    seen: SourceState | None,
    tally: IngestTotals,
) -> None:
    """Commits that a snapshot is still as in the state ``seen`` of its source, unless the dataset changed meanwhile."""

    def look() -> tuple[ChainState, Instant, AddData | None, int]:
        upper, state = deps.store.upper(dataset), load(deps, dataset)
        now = block_time(state, deps.now(), upper)
        stays = same(state.polling_source, polled) and (seen is None or state.source_state == seen)
        event = confirm(shards_with(deps, state), deps.objects, polled, now) if stays else None
        return state, now, event, upper

    if not traits(polled.merge).whole_state:
        return
    state, now, event, upper = await trio.to_thread.run_sync(look)
    if event is None:
        return
    part = CommitPart.after(state, now, (event,), upper=UpperMove(upper), records=(NOTHING_READ,))
    try:
        (head,) = await deps.committer.commit(Commit(parts=(part,)))
    except Conflict:
        return
    tally.head, tally.blocks = head, tally.blocks + 1


async def _note_skipped(
    deps: IngestDependencies,
    state: ChainState,
    skipped: tuple[SkippedFile, ...],
    tally: IngestTotals,
) -> None:
    """Logs the skipped files each time, since they stay in place."""
    if skipped and state.system_time is not None:
        counts = msgspec.structs.replace(NOTHING_READ, skipped=together(skipped, ()))
        tally.count(counts)
        part = CommitPart.after(state, state.system_time, records=(counts,))
        await deps.committer.commit(Commit(parts=(part,)))


Choose: TypeAlias = Callable[[ChainState], tuple[SourceInForce, tuple[MetadataEvent, ...]]]


class SourceMoved(Conflict):
    """The chain's source or its state changed during a fetch: a manifest was applied, or another ingest committed."""


def _as_fetched(before: ChainState) -> Choose:
    """Returns a function that returns the source in force, if source and source state are still those of ``before``.

    It raises SourceMoved otherwise: rows fetched earlier would be committed after those of another source or state.
    """

    def choose(state: ChainState) -> tuple[SourceInForce, tuple[MetadataEvent, ...]]:
        if not same((state.polling_source, state.source_state), (before.polling_source, before.source_state)):
            raise SourceMoved(
                "the source of the dataset was changed while it was fetched",
                rule="source-moved",
                hint="pull again when it is not being changed",
            )
        return polling(state)[1], ()

    return choose


async def transact(
    deps: IngestDependencies,
    known: ChainState,
    choose: Choose,
    batch: Batch,
    tally: IngestTotals,
    report: Report,
    push: Push | None = None,
) -> None:
    """Ingests one batch, exactly once: computes and commits on one head, or plans again on the next one.

    ``known``: the state as the caller read it. ``push`` is remembered with the blocks, if there are any.
    """
    assert known.dataset is not None
    dataset = known.dataset
    for attempt in range(ATTEMPTS):
        plan = await trio.to_thread.run_sync(_plan, deps, dataset, choose, batch, known)
        computing = IngestStep(file=", ".join(batch.names[:3]), phase="computing", rows=tally.rows)
        report(computing)
        try:
            with span("engine"):
                settled, aside = await compute(deps, plan, by_engine(computing, report))
        except Fault:
            # A file that was written to meanwhile is the reason, whatever the engine says of its halves.
            await check_unchanged(batch.local, batch.names)
            if attempt + 1 < ATTEMPTS and await trio.to_thread.run_sync(deps.index.mend, dataset):
                continue  # a merged file was damaged on disk: the slices themselves have the rows
            raise
        try:
            with span("commit"):
                head = await _commit(deps, dataset, plan, settled, aside, push, batch)
        except Conflict:
            if attempt + 1 == ATTEMPTS:
                raise
            continue
        if head is None:
            tally.count(settled.counts)
            return
        tally.add(head, settled)
        report(IngestStep(file=", ".join(batch.names[:3]), phase="committed", rows=tally.rows))
        return


async def _commit(
    deps: IngestDependencies,
    dataset: DatasetId,
    plan: IngestPlan,
    settled: IngestOutcome,
    aside: CommitPart | None,
    push: Push | None,
    batch: Batch,
) -> Head | None:
    """Commits the result and quarantined rows. Returns the new head, ``None`` if nothing changed. Raises Conflict."""
    records: list[Record] = [settled.counts]
    appends = bool(settled.events)
    if push is not None and (appends or aside is not None):
        records.append(with_answer(push, settled))
    if appends and await trio.to_thread.run_sync(deps.keeps_raw, dataset):
        source, given = push.source if push else "", deps.given.id if deps.given else ""
        records.append(await trio.to_thread.run_sync(keep_raw, deps.objects, batch, source, given))
    # After its bytes were copied, so that the copy is of what the engine read.
    await check_unchanged(batch.local, batch.names)
    if not appends and aside is None and not says_something(settled.counts):
        return None
    time = plan.request.system_time
    part = CommitPart.after(plan.state, time, settled.events, settled.objects, plan.upper, records)
    head, *_ = await deps.committer.commit(Commit(parts=(part,) if aside is None else (part, aside)))
    return head if appends else None


def _plan(deps: IngestDependencies, dataset: DatasetId, choose: Choose, batch: Batch, known: ChainState) -> IngestPlan:
    size = sum(path.stat().st_size for path in batch.paths if path.exists())
    check_room(deps.settings.staging, deps.settings.disk_reserve, size, f"{size:,} bytes are to be ingested")
    upper, state = deps.store.upper(dataset), load(deps, dataset, known)
    source, founding = choose(state)
    shards = shards_with(deps, state)
    terms = PlanTerms(
        output=deps.objects.stage(),
        settings=deps.settings,
        upper=UpperMove(upper),
        earlier=deps.index.earlier_of_all(shards, deps.objects, source.merge),
        founding=founding,
        quarantine=standing(deps.quarantines, source, dataset, deps.objects, partial(load, deps)),
        needs_event_time=needs_event_time(batch, source, shards),
    )
    time = block_time(state, deps.now(), upper, alone=deps.keeps_raw(dataset))
    return plan_ingest(state, source, batch, time, terms)


async def compute(
    deps: IngestDependencies, plan: IngestPlan, on_progress: OnProgress = ignore_progress
) -> tuple[IngestOutcome, CommitPart | None]:
    """Has the engine execute the plan. Returns its checked answer, with the slices stored as objects."""
    path = Path(plan.request.new_data_path)
    aside = None if plan.quarantine is None else plan.quarantine.path
    try:
        answer = await execute_request(deps.engine, plan.request, plan.earlier, on_progress)
        match answer:
            case InvalidQuery(message=message, rule=rule, hint=hint, place=place):
                text = "; ".join(filter(None, (hint, way_on(plan.request, rule), *plan.remarks)))
                raise Invalid(message, rule=rule or "ingest", hint=text, place=place or "")
            case EngineInternalError(message=message):
                raise engine_failed(message)
            case Success():
                return await trio.to_thread.run_sync(_settle, deps, plan, answer)
    finally:
        for each in (path, aside):
            if each is not None:
                each.unlink(missing_ok=True)
    raise EngineFault(f"the engine sent an answer of an unknown kind: {type(answer).__name__}", rule="engine")


def _settle(deps: IngestDependencies, plan: IngestPlan, answer: Success) -> tuple[IngestOutcome, CommitPart | None]:
    settled = _settle_rows(deps, plan, answer)
    return settled, set_aside(plan, answer, deps.quarantines, deps.objects, partial(load, deps))


def _settle_rows(deps: IngestDependencies, plan: IngestPlan, answer: Success) -> IngestOutcome:
    if answer.new_offset_interval is None:
        return settle(plan, answer, None)
    path = Path(plan.request.new_data_path)
    written = operations(path, plan.request.vocab.operation_type)
    kept = keep_slice(deps.objects, path, answer.schema, plan.request.vocab.offset)
    return settle(plan, answer, kept, written)


def load(deps: IngestDependencies, dataset: DatasetId, known: ChainState | None = None) -> ChainState:
    """Loads the state of a writable chain; returns ``known`` if the head is the same. Raises Invalid, NotFound."""
    reader = deps.store.chain(dataset)
    head = reader.head()
    if head is None:
        raise NotFound(
            "the dataset was deleted meanwhile", rule="dataset-ref", hint="odfctl get datasets lists what is here"
        )
    state = known if known is not None and head.hash == known.head else load_state(reader)
    if state.unknown is not None:
        raise Invalid(
            f"block {state.unknown.short} holds an event that this version does not know",
            rule="unknown-event",
            hint="a newer odfd can write to this dataset",
        )
    given = deps.given
    return state if given is None or given.dataset != dataset else given.over(state)


async def fetch_next(
    deps: IngestDependencies, dataset: DatasetId, polled: SetPollingSource, state: ChainState, folder: Path
) -> FetchOutcome:
    job = await fetch_job(deps, dataset, polled, state, folder)
    given = None if deps.given is None else deps.given.fetch
    return await (fetch_for(polled, job, deps.trigger) if given is None else given(job))


async def fetch_job(
    deps: IngestDependencies, dataset: DatasetId, polled: SetPollingSource, state: ChainState, folder: Path
) -> FetchJob:
    settings, taken = deps.settings, None
    if deps.base is not None:
        base = await trio.to_thread.run_sync(deps.base, dataset)
        settings = msgspec.structs.replace(settings, base=base)
    if isinstance(polled.fetch, FetchFilesGlob):
        taken = await trio.to_thread.run_sync(deps.taken.of, deps.store.chain(dataset), state)
    return FetchJob(
        state=state.source_state, now=block_time(state, deps.now(), deps.store.upper(dataset)),
        folder=folder, settings=settings, passed_over=None if taken is None else taken.passed_over, taken=taken,
        dataset=str(dataset), options=fetch_options(polled.read.schema), columns=declared_columns(polled.read),
    )  # fmt: skip


async def prepare_batch(deps: IngestDependencies, polled: SetPollingSource, found: Fetched, folder: Path) -> Batch:
    """Prepares the fetched files for the engine, by the source's prepare steps."""
    names = names_of(found)
    ready = []
    for number, (path, name) in enumerate(zip((found.path, *found.more), names, strict=True)):
        inside = folder / f"file-{number}"
        inside.mkdir()
        ready.append(await prepare(path, polled.prepare or (), inside, deps.settings, name=name, decoded=found.decoded))
    return Batch(
        paths=tuple(each.path for each in ready),
        names=names,
        identity=found.identity,
        event_time=found.event_time,
        state=found.state,
        fills_event_time=found.event_time is not None and getattr(polled.fetch, "event_time", None) is not None,
        skipped=found.skipped,
        local=found.local,
        raw=(found.path, *found.more),
        decoded=found.decoded,
        remarks=tuple(remark for each in ready for remark in each.remarks),
    )
