"""Computes the blocks of a root dataset again from its captured bytes, and compares them with those of the chain.

The only inputs are the state before the transaction, its time and the captured bytes; nothing is fetched, committed or
kept. Equal means: the same events, with slices of the same logical hash, offsets, schema, watermark and source state.
Slices that differ only in their bytes are reported as such, since libraries encode rows in different ways.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
import trio

from chain.errors import NotFound
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block
from chain.model.events import AddData, DataSlice, MetadataEvent, SetDataSchema
from chain.model.read_options import quarantine_of
from chain.model.source import traits
from chain.multihash import Multihash
from chain.state import ChainState, load_state
from chain.store.base import ChainReader
from chain.store.objects import sound_path
from chain.wording import plural
from engines.contract import IngestRequest, InternalError, InvalidQuery, QuarantineTarget, Success
from engines.errors import EngineFault, engine_failed
from engines.output_check import measured, operations
from odfd.datasets.captures import BoundCapture, Capture
from odfd.ingest.driver import IngestDependencies, prepared
from odfd.ingest.fetch.base import Fetched
from odfd.ingest.file_writer import staged_folder
from odfd.ingest.plan import Batch, EarlierSlices, IngestPlan, guesses_columns, plan_ingest, polling, pushed
from odfd.ingest.settlement import IngestOutcome, settle
from odfd.ingest.slices import SliceIndex
from odfd.ingest.snapshots import has_own_times


class RawReplay(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a replay of one transaction."""

    outcome: Literal["same", "equivalent", "differs", "rewritten"]
    """``equivalent``: the same rows in a slice of other bytes. ``rewritten``: the history has no such block now."""
    message: str = ""


async def replay(deps: IngestDependencies, dataset: DatasetId, bound: BoundCapture) -> RawReplay:
    """Replays a transaction. Raises NotFound (no such object), Environment (it is damaged), EngineFault or Refused."""
    chain = deps.store.chain(dataset)
    blocks = await trio.to_thread.run_sync(_transaction, chain, bound)
    if not blocks:
        return RawReplay(outcome="rewritten", message=f"block {bound.block.short} is not of its history any more")
    made = next((n for n, block in enumerate(blocks) if isinstance(block.event, SetDataSchema | AddData)), len(blocks))
    state = await trio.to_thread.run_sync(load_state, chain, bound.first + made)
    async with staged_folder(deps.settings.staging) as folder:
        batch = await captured_batch(deps, state, bound.capture, folder)
        origin = bound.capture.source, blocks[-1].system_time
        plan = await trio.to_thread.run_sync(_plan, deps, chain, state, batch, origin, folder)
        answer = await deps.engine.ingest(plan.request)
        match answer:
            case InvalidQuery(message=message):
                return RawReplay(outcome="differs", message=f"the bytes cannot be read any more: {message}")
            case InternalError(message=message):
                raise engine_failed(message)
            case Success():
                events = await trio.to_thread.run_sync(_events, plan, answer)
                return compared([block.event for block in blocks[made:]], events)
    raise EngineFault(f"the engine gave an answer of no known kind: {type(answer).__name__}", rule="engine")


def compared(stored: Sequence[object], computed: Sequence[MetadataEvent]) -> RawReplay:
    """Compares events, first exactly and then without the bytes of slices."""
    if list(stored) == list(computed):
        return RawReplay(outcome="same")
    if list(map(_content, stored)) == list(map(_content, computed)):
        return RawReplay(outcome="equivalent", message="the same rows, in a slice of other bytes")
    for here, there in zip(map(_content, stored), map(_content, computed), strict=False):
        if here != there:
            return RawReplay(outcome="differs", message=_difference(here, there))
    return RawReplay(outcome="differs", message=f"{plural(len(stored), 'event')} stored, and {len(computed)} computed")


def _difference(stored: object, computed: object) -> str:
    if not (isinstance(stored, AddData) and isinstance(computed, AddData)):
        return f"{type(stored).__name__} differs"
    names = [name for name in AddData.__struct_fields__ if getattr(stored, name) != getattr(computed, name)]
    return f"AddData differs: {', '.join(names)}"


def _content(event: object) -> object:
    if not isinstance(event, AddData) or event.new_data is None:
        return event
    bare = msgspec.structs.replace(event.new_data, physical_hash=event.new_data.logical_hash, size=0)
    return msgspec.structs.replace(event, new_data=bare)


def _transaction(chain: ChainReader, bound: BoundCapture) -> list[Block]:
    """Returns the blocks of the transaction; none if the chain has another history now."""
    try:
        blocks = [chain.block_at(number) for number in range(bound.first, bound.last + 1)]
    except NotFound:
        return []
    return blocks if blocks[-1].hash == bound.block else []


async def captured_batch(deps: IngestDependencies, state: ChainState, capture: Capture, folder: Path) -> Batch:
    """Returns the captured files, prepared by the steps of the source in force."""
    paths = [
        await trio.to_thread.run_sync(_copied, deps, file.object, folder / f"raw-{number}", file.name)
        for number, file in enumerate(capture.files)
    ]
    names = tuple(file.name for file in capture.files)
    identity = "\n".join(str(file.object) for file in capture.files)
    if capture.source:
        return Batch(
            paths=tuple(paths), names=names, identity=identity, event_time=capture.event_time,
            fills_event_time=capture.fills_event_time, state=capture.label,
        )  # fmt: skip
    polled, _ = polling(state)
    found = Fetched(
        path=paths[0], more=tuple(paths[1:]), name=names[0], identity=identity, event_time=capture.event_time,
        state=capture.label, decoded=capture.decoded,
    )  # fmt: skip
    return await prepared(deps, polled, found, folder)


def _copied(deps: IngestDependencies, name: Multihash, folder: Path, called: str) -> Path:
    """Copies a captured object under its original name, which tells some formats, after a check of its hash."""
    folder.mkdir()
    target = folder / (Path(called).name or "file")
    shutil.copyfile(sound_path(deps.objects, name), target)
    return target


def _plan(
    deps: IngestDependencies,
    reader: ChainReader,
    state: ChainState,
    batch: Batch,
    origin: tuple[str, Instant],
    folder: Path,
) -> IngestPlan:
    """Plans the transaction again. ``origin``: the push source or an empty text, and the time of the blocks."""
    name, time = origin
    source = pushed(state, name, None)[0] if name else polling(state)[1]
    asks = traits(source.merge).asks_history
    # A separate index: the driver's is for the head.
    parts = SliceIndex().parts(reader, state, deps.objects, source.merge) if asks else []
    plan = plan_ingest(state, source, batch, time, EarlierSlices(parts))
    needs_time = batch.event_time is None and guesses_columns(source)
    request: IngestRequest = msgspec.structs.replace(
        plan.request,
        new_data_path=str(folder / "rows"),
        transaction_id=f"replay:{plan.request.transaction_id}",
        max_source_bytes=deps.settings.max_source_bytes,
        max_unpack_ratio=deps.settings.max_unpack_ratio,
        needs_event_time=needs_time and has_own_times([(reader, state)]),
        quarantine=_aside(quarantine_of(source.read.schema) is not None, folder, state),
    )
    return msgspec.structs.replace(plan, request=request)


def _aside(wanted: bool, folder: Path, state: ChainState) -> QuarantineTarget | None:
    """Returns the target for unreadable records, which is discarded with the folder after the comparison."""
    if not wanted:
        return None
    return QuarantineTarget(path=str(folder / "aside"), next_offset=0, follows=str(state.head))


def _events(plan: IngestPlan, answer: Success) -> Sequence[MetadataEvent]:
    """Returns the events that an ingest would commit. Raises Invalid."""
    slice_: DataSlice | None = None
    settling = partial(settle, plan, answer)
    path = Path(plan.request.new_data_path)
    if answer.new_offset_interval is not None:
        vocab = plan.request.vocab
        slice_ = measured(path, answer.schema, vocab.offset_column)
        done = settling(slice_, operations(path, vocab.operation_type_column))
    else:
        done = settling(None)
    return done.events if isinstance(done, IngestOutcome) else ()
