"""Has an engine carry out a plan: files laid out, the answer weighed, its output measured.

The same for a transaction that will be committed and for one that is replayed; they differ in what becomes of the
files. Nothing here moves a head.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import trio

from chain.data.arrow_schema import differences, to_arrow
from chain.data.logical_hash import logical_hash_file
from chain.data.parquet import open_slice, write_slice
from chain.errors import Invalid, NotFound
from chain.model.events import (
    Checkpoint,
    DataSlice,
    ExecuteTransform,
    MetadataEvent,
    OffsetInterval,
)
from chain.model.schema import DataSchema
from chain.multihash import SHA3_256, Multihash
from chain.store.base import ObjectReader
from chain.store.objects import sound_path
from engines.contract import (
    Engine,
    InputBlock,
    InternalError,
    InvalidQuery,
    OnProgress,
    Success,
    TransformInput,
    TransformRequest,
    Watermark,
)
from engines.errors import EngineFault
from odfd.transform.plan import Blocked, DataBlock, InputView, TransformPlan, events_of, settle, vocabulary


class Rejected(msgspec.Struct, frozen=True):
    """The query cannot be carried out on this data; asking again gives the same answer."""

    message: str


class Files(msgspec.Struct, frozen=True, kw_only=True):
    """Where one execution reads and writes. The folder is the caller's, fresh, and removed by it."""

    folder: Path
    previous: Path | None
    """The previous checkpoint."""

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"


class Executed(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it: events ready to commit, and the files they speak of."""

    event: ExecuteTransform
    schema: DataSchema | None
    """Told by a first transaction."""
    events: tuple[MetadataEvent, ...]
    """What to commit: the schema if it is new, the event if it leaves a trace."""
    data: DataSlice | None
    checkpoint: Checkpoint | None
    """One that the engine wrote this time."""
    late: int

    @property
    def records(self) -> int:
        interval = self.data.offset_interval if self.data is not None else None
        return 0 if interval is None else interval.end - interval.start + 1


async def execute(
    plan: TransformPlan,
    transaction: str,
    engine: Engine,
    objects: ObjectReader,
    files: Files,
    on_progress: OnProgress = lambda: None,
) -> Executed | Rejected | Blocked:
    """Ask ``engine``. Outputs are left in ``files.folder``. Raises EngineLost, LimitExceeded, EngineFault, Invalid."""
    try:
        request = await trio.to_thread.run_sync(_request, plan, transaction, objects, files)
    except NotFound as missing:
        return Blocked(f"a slice of an input is not here: {missing}", "mirror the inputs with their data")
    answer = await engine.transform(request, on_progress)
    match answer:
        case InvalidQuery(message=message):
            return Rejected(message)
        case InternalError(message=message, backtrace=trace):
            raise EngineFault(f"the engine failed: {message}", rule="engine", hint=trace or "")
        case Success():
            return await trio.to_thread.run_sync(_weigh, plan, answer, files)


def sha3_file(path: Path) -> Multihash:
    """Physical hash of a file."""
    with path.open("rb") as file:
        return Multihash.from_digest(SHA3_256, hashlib.file_digest(file, "sha3_256").digest())


def _weigh(plan: TransformPlan, answer: Success, files: Files) -> Executed:
    schema = plan.output_schema or answer.schema
    data = None
    if answer.new_offset_interval is not None:
        if schema is None:
            raise Invalid("the engine wrote data and told no schema", rule="engine-answer")
        data = _measure(files.data, schema, plan.state.vocab.offset)
    checkpoint = None
    if files.checkpoint.is_file():
        checkpoint = Checkpoint(physical_hash=sha3_file(files.checkpoint), size=files.checkpoint.stat().st_size)
    event = settle(plan, answer, data, checkpoint)
    told = answer.schema if plan.output_schema is None else None
    return Executed(
        event=event,
        schema=told,
        events=events_of(plan, event, told),
        data=data,
        checkpoint=checkpoint,
        late=answer.late or 0,
    )


def _measure(path: Path, schema: DataSchema, offset: str) -> DataSlice:
    """What the file really holds. Raises Invalid when that is not a slice of ``schema``."""
    with open_slice(path) as file:
        found = file.stats(offset)
        wrong = differences(schema, file.schema)
    for each in wrong:
        raise Invalid(
            f"column {each.place} in the engine's file is {each.actual} and should be {each.expected}",
            rule="engine-answer",
        )
    if found.offsets is None or found.rows != found.offsets[1] - found.offsets[0] + 1:
        raise Invalid("the engine's file has gaps in its offsets", rule="engine-answer")
    return DataSlice(
        logical_hash=logical_hash_file(path),
        physical_hash=sha3_file(path),
        offset_interval=OffsetInterval(start=found.offsets[0], end=found.offsets[1]),
        size=path.stat().st_size,
    )


def _request(plan: TransformPlan, transaction: str, objects: ObjectReader, files: Files) -> TransformRequest:
    """Raises NotFound for a slice that is not held, ObjectDamaged for one that would give rows of nobody's."""
    paths = {each.physical_hash: str(sound_path(objects, each.physical_hash)) for each in plan.input_slices}
    return TransformRequest(
        dataset_id=plan.dataset,
        dataset_alias=plan.dataset.short,
        system_time=plan.system_time,
        vocab=vocabulary(plan.state.vocab),
        transform=plan.transform,
        emission_limit=plan.emission_limit,
        query_inputs=tuple(
            _input(view, paths.__getitem__, _schema_file(files.folder, number, view))
            for number, view in enumerate(plan.inputs)
        ),
        next_offset=plan.state.next_offset,
        prev_checkpoint_path=str(files.previous) if files.previous is not None else None,
        new_checkpoint_path=str(files.checkpoint),
        new_data_path=str(files.data),
        transaction_id=transaction,
        output_schema=plan.output_schema,
    )


def _input(view: InputView, path_of: Callable[[Multihash], str], schema_file: Path) -> TransformInput:
    def block(each: DataBlock, reopened: bool) -> InputBlock:
        return InputBlock(
            data_path=path_of(each.new_data.physical_hash) if each.new_data is not None else None,
            watermark_before=each.watermark_before,
            watermark_after=each.watermark_after,
            block_hash=each.hash,
            reopened=reopened,
        )

    slices = [each.new_data for each in view.new if each.new_data is not None]
    return TransformInput(
        dataset_id=view.dataset,
        dataset_alias=view.name,
        query_alias=view.alias,
        vocab=vocabulary(view.vocab),
        offset_interval=OffsetInterval(start=slices[0].offset_interval.start, end=slices[-1].offset_interval.end)
        if slices
        else None,
        data_paths=tuple(path_of(each.physical_hash) for each in slices),
        schema_file=str(schema_file),
        explicit_watermarks=tuple(
            Watermark(system_time=each.system_time, event_time=each.stated_watermark)
            for each in view.new
            if each.stated_watermark is not None
        ),
        blocks=(*(block(each, True) for each in view.reopened), *(block(each, False) for each in view.new)),
        changelog=view.changelog,
    )


def _schema_file(folder: Path, number: int, view: InputView) -> Path:
    """An empty slice: how ODF tells an engine the columns of an input that brings no rows."""
    assert view.schema is not None
    path = folder / f"schema-{number}.parquet"
    write_slice(to_arrow(view.schema).empty_table(), path)
    return path
