"""Executes a plan by an engine: lays out files, checks the response, and measures the output.

The same for a transaction that will be committed and for one that is replayed; only the use of the files differs, and
that a transaction is made by the engine that its transform pins or not at all, while any may repeat it.
Before the first transaction of a changed transform the engine migrates the state: the new query's state replaces the
old one's, and rows of a table that change thereby become the first rows of the slice. Nothing here moves a head. Spec:
docs/spec/engine-semantics.md#handover.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import trio

from chain.codec.arrow_schema import schema_of
from chain.data.operations import NO_RECORDS, Operations
from chain.data.parquet import open_slice, write_slice
from chain.errors import Invalid, NotFound
from chain.libraries import pa
from chain.model.defaults import same
from chain.model.events import Checkpoint, DataSlice, ExecuteTransform, MetadataEvent, OffsetInterval
from chain.model.schema import DataSchema
from chain.store.base import ObjectReader
from engines.contract import DerivationNeeded, Engine, EngineInternalError, InvalidQuery, OnProgress, RowCounts, Success
from engines.errors import engine_failed
from engines.output_check import measure_slice, operations, sha3_file
from engines.spark.state.checkpoint import MAX_CHECKPOINT
from odfd.datasets.engine_pins import ENGINE_CHANGED, EngineInUse, Engines, engine_for
from odfd.store.row_counts import NOTHING_READ, with_written
from odfd.transform.checkpoint_info import read_past
from odfd.transform.inputs import select_blocks
from odfd.transform.plan import TRANSFORM_EVOLUTION, Blocked, Handover, Rejected, TransformPlan, events_of, settle
from odfd.transform.progress import Report, by_engine, measure_plan, quiet
from odfd.transform.requests import Files, migrate_request, transform_request


class Executed(msgspec.Struct, frozen=True, kw_only=True):
    """The result: events ready to commit, and the files that they name."""

    by: EngineInUse
    """The engine that made it."""
    event: ExecuteTransform
    schema: DataSchema | None
    """The schema, if a first transaction found it, or a later one extended it by the changelog attribute."""
    events: tuple[MetadataEvent, ...]
    """The events to commit: the schema if it is new, the event if it is not empty."""
    data: DataSlice | None
    checkpoint: Checkpoint | None
    """The checkpoint that this run wrote; ``None`` without one."""
    counts: RowCounts
    """Counts of the rows of the new blocks, and of the rows written for them."""

    @property
    def late(self) -> int:
        """Number of input rows dropped as late."""
        return self.counts.late or 0

    @property
    def records(self) -> int:
        interval = self.data.offset_interval if self.data is not None else None
        return 0 if interval is None else interval.end - interval.start + 1


async def execute(
    plan: TransformPlan,
    engines: Engines,
    objects: ObjectReader,
    files: Files,
    report: Report = quiet,
    *,
    repeats: bool,
) -> Executed | Rejected | Blocked:
    """Runs a plan; outputs stay in ``files.folder``. Raises EngineLost, LimitExceeded, EngineFault, Invalid.

    ``repeats``: the plan is of a recorded transaction, which another engine than the pinned one may run: the result
    says which did. A new transaction is blocked then.
    """
    engine, by = await engine_for(engines, plan.transform)
    if by.differs and not repeats:
        return Blocked(str(by), "prove that this one gives the same", rule=ENGINE_CHANGED)
    transaction = f"replay:{plan.transaction_id}" if repeats else plan.transaction_id
    changes: OffsetInterval | None = None
    begun = measure_plan(plan)
    report(begun)
    on_progress = by_engine(begun, report)
    if plan.handover is not None:
        taken = await take_over(plan, plan.handover, engine, objects, files, on_progress)
        if not isinstance(taken, TakenOver):
            return taken
        plan, files, changes = taken.plan, taken.files, taken.changes
    try:
        request = await trio.to_thread.run_sync(transform_request, plan, transaction, objects, files, changes)
    except NotFound as missing:
        return lacks(missing)
    answer = await engine.transform(request, on_progress)
    match answer:
        case InvalidQuery():
            return Rejected.by(answer)
        case EngineInternalError(message=message):
            raise engine_failed(message)
        case Success():
            if changes is not None:
                answer = await trio.to_thread.run_sync(join_slices, answer, changes, files)
            report(msgspec.structs.replace(begun, stage="checking"))
            return await trio.to_thread.run_sync(_weigh, plan, by, answer, files)


def _weigh(plan: TransformPlan, by: EngineInUse, answer: Success, files: Files) -> Executed:
    schema = plan.output_schema or answer.schema
    data, written = None, NO_RECORDS
    if answer.new_offset_interval is not None:
        if schema is None:
            raise Invalid("the engine wrote data and gave no schema", rule="engine-answer")
        data = measure_slice(files.data, schema, plan.state.vocab.offset)
        written = operations(files.data, plan.state.vocab.operation_type)
    checkpoint = None
    if files.checkpoint.is_file():
        checkpoint = Checkpoint(physical_hash=sha3_file(files.checkpoint), size=files.checkpoint.stat().st_size)
    event = settle(plan, answer, data, checkpoint)
    declared = answer.schema if answer.schema not in (None, plan.output_schema) else plan.grown
    return Executed(
        by=by,
        event=event,
        schema=declared,
        events=events_of(plan, event, declared),
        data=data,
        checkpoint=checkpoint,
        counts=_count_rows(plan, answer, written),
    )


def _count_rows(plan: TransformPlan, answer: Success, written: Operations) -> RowCounts:
    """Counts rows of a transform, which merges nothing: it knows only the late ones and those without time."""
    moved = [input_ for input_ in plan.query_inputs if input_.new_offset is not None]
    read = sum(_next(each.new_offset) - _next(each.prev_offset) for each in moved)
    untimed = answer.rows.untimed if answer.rows is not None else None
    counts = msgspec.structs.replace(NOTHING_READ, read=read, shaped=read, late=answer.late, untimed=untimed)
    return with_written(counts, written)


def _next(offset: int | None) -> int:
    return 0 if offset is None else offset + 1


class TakenOver(msgspec.Struct, frozen=True):
    """The transaction after a handover."""

    plan: TransformPlan
    files: Files
    changes: OffsetInterval | None
    """Offsets of the rows in ``files.changes``; ``None`` without rows."""


async def take_over(
    plan: TransformPlan,
    handover: Handover,
    engine: Engine,
    objects: ObjectReader,
    files: Files,
    on_progress: OnProgress,
) -> TakenOver | Rejected | Blocked:
    """Migrates the state of the old query to the new one."""
    try:
        request = await trio.to_thread.run_sync(migrate_request, plan, handover, objects, files)
    except NotFound as missing:
        return lacks(missing)
    answer = await engine.migrate(request, on_progress)
    match answer:
        case InvalidQuery():
            return Rejected.by(answer)
        case DerivationNeeded(message=message):
            return Blocked(f"the new transform cannot continue: {message}", "derive it again", rule=TRANSFORM_EVOLUTION)
        case EngineInternalError(message=message):
            raise engine_failed(message)
        case Success():
            return await trio.to_thread.run_sync(_after, plan, handover, answer, files)


def _after(plan: TransformPlan, handover: Handover, answer: Success, files: Files) -> TakenOver:
    taken = files.taken_over if files.taken_over.is_file() else None
    if taken is not None and not handover.same_query:
        runs = read_past(_beginning(taken)).reopen
        history = {view.dataset: view.new for view in handover.inputs}
        views = tuple(
            msgspec.structs.replace(view, reopened=select_blocks(history[view.dataset], runs.get(view.dataset, ())))
            for view in plan.inputs
        )
        plan = msgspec.structs.replace(plan, inputs=views)
    plan = msgspec.structs.replace(plan, handover=None)
    held = None if plan.state.schema is None else schema_of(plan.state.schema)
    if answer.schema is not None and held is not None and not same(answer.schema, held):
        plan = msgspec.structs.replace(plan, grown=answer.schema, output_schema=answer.schema)
    files = msgspec.structs.replace(files, previous=taken or files.previous)
    return TakenOver(plan, files, answer.new_offset_interval)


def _beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_CHECKPOINT + 1)


def join_slices(answer: Success, changes: OffsetInterval, files: Files) -> Success:
    """Joins the changes of a handover and the later output in one slice."""
    own = answer.new_offset_interval
    if own is None:
        files.changes.replace(files.data)
        return msgspec.structs.replace(answer, new_offset_interval=changes)
    parts = []
    for path in (files.changes, files.data):
        with open_slice(path) as source:
            parts.append(source.read())
    files.data.unlink()
    write_slice(pa.concat_tables(parts), files.data)
    return msgspec.structs.replace(answer, new_offset_interval=OffsetInterval(start=changes.start, end=own.end))


def lacks(missing: NotFound) -> Blocked:
    return Blocked(f"a slice of an input is not here: {missing}", "mirror the inputs with their data")
