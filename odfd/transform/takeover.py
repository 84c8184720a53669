"""Has an engine take over a dataset from its old transform, before the first transaction of the new one.

The state of the new query takes the place of the old one's; what a table says otherwise from now on becomes the first
rows of the transaction's slice. Nothing here moves a head. Spec: docs/spec/engine-semantics.md#handover.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import trio

from chain.codec.arrow_schema import schema_of
from chain.data.parquet import open_slice, write_slice
from chain.errors import NotFound
from chain.model.events import OffsetInterval
from chain.store.base import ObjectReader
from engines.contract import DerivationNeeded, Engine, InternalError, InvalidQuery, OnProgress, Success
from engines.errors import engine_failed
from engines.spark.state.checkpoint import MAX_CHECKPOINT
from odfd.transform.checkpoint_info import read_past
from odfd.transform.inputs import chosen
from odfd.transform.plan import TRANSFORM_EVOLUTION, Blocked, Handover, Rejected, TransformPlan
from odfd.transform.requests import Files, migrate_request


class TakenOver(msgspec.Struct, frozen=True):
    """The transaction as it is after a handover."""

    plan: TransformPlan
    files: Files
    changes: OffsetInterval | None
    """Of the rows in ``files.changes``."""


async def take_over(
    plan: TransformPlan,
    handover: Handover,
    engine: Engine,
    objects: ObjectReader,
    files: Files,
    on_progress: OnProgress,
) -> TakenOver | Rejected | Blocked:
    """The state of the new query in place of the old one's."""
    try:
        request = await trio.to_thread.run_sync(migrate_request, plan, handover, objects, files)
    except NotFound as missing:
        return lacks(missing)
    answer = await engine.migrate(request, on_progress)
    match answer:
        case InvalidQuery():
            return Rejected.by(answer)
        case DerivationNeeded(message=message):
            return Blocked(f"the new transform cannot go on: {message}", "derive it anew", rule=TRANSFORM_EVOLUTION)
        case InternalError(message=message):
            raise engine_failed(message)
        case Success():
            return await trio.to_thread.run_sync(_after, plan, handover, answer, files)


def _after(plan: TransformPlan, handover: Handover, answer: Success, files: Files) -> TakenOver:
    taken = files.taken_over if files.taken_over.is_file() else None
    if taken is not None and not handover.same_query:
        runs = read_past(_beginning(taken)).reopen
        history = {view.dataset: view.new for view in handover.inputs}
        views = tuple(
            msgspec.structs.replace(view, reopened=chosen(history[view.dataset], runs.get(view.dataset, ())))
            for view in plan.inputs
        )
        plan = msgspec.structs.replace(plan, inputs=views)
    plan = msgspec.structs.replace(plan, handover=None)
    if answer.schema is not None and plan.state.schema is not None and answer.schema != schema_of(plan.state.schema):
        plan = msgspec.structs.replace(plan, grown=answer.schema, output_schema=answer.schema)
    files = msgspec.structs.replace(files, previous=taken or files.previous)
    return TakenOver(plan, files, answer.new_offset_interval)


def _beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_CHECKPOINT + 1)


def joined(answer: Success, changes: OffsetInterval, files: Files) -> Success:
    """One slice of what a handover changed and what came after it."""
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
