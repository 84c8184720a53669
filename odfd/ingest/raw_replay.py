"""Computes the blocks of a root dataset again from its captured bytes: to compare them, or into another rendition.

The only inputs are the state before the transaction, its time and the captured bytes; nothing is fetched. A comparison
commits and keeps nothing. Equal means: the same events, with slices of the same logical hash, offsets, schema,
watermark and source state. Slices that differ only in their bytes are reported as such, since libraries encode rows in
different ways.

``decode`` takes the bytes into another rendition, at their times, as the sources of that rendition read them, and
commits the blocks with the same bytes bound to them. The captures that remain are found from those bound already, so a
crash neither loses nor repeats any. Spec: docs/spec/collections.md#from-raw.
"""

from __future__ import annotations

import shutil
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec
import trio

from chain.errors import Conflict, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import from_millis, to_millis
from chain.model.block import Block
from chain.model.events import AddData, DataSlice, MetadataEvent, SetDataSchema
from chain.model.read_options import quarantine_of
from chain.model.source import traits
from chain.multihash import Multihash
from chain.state import ChainState, load_state
from chain.store.base import ChainReader, Head, UpperMove
from chain.store.files import disk
from chain.store.objects import sound_path
from chain.terminal_text import is_visible
from chain.wording import plural
from engines.contract import EngineInternalError, InvalidQuery, Success
from engines.errors import EngineFault, engine_failed
from engines.output_check import measure_slice, operations
from odfd.datasets.commit import Commit, CommitPart
from odfd.ingest.driver import IngestDependencies, compute, load, prepare_batch, shards_with
from odfd.ingest.fetch.source import Fetched
from odfd.ingest.file_writer import staged_folder
from odfd.ingest.gaps import gap_between, gap_transaction
from odfd.ingest.plan import (
    Batch,
    EarlierSlices,
    IngestPlan,
    PlanTerms,
    QuarantineDataset,
    find_push_source,
    plan_ingest,
    polling,
)
from odfd.ingest.settlement import IngestOutcome, settle
from odfd.ingest.sharded_writes import divide
from odfd.ingest.slices import SliceIndex, ingest
from odfd.ingest.snapshots import needs_event_time
from odfd.store.captures import BoundCapture, Capture, CapturedPart
from odfd.store.row_counts import NOTHING_READ

_MOST_OF_A_NAME: Final = 200
"""Bytes of a file's name that every file system takes."""


class RawReplay(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a replay of one transaction."""

    outcome: Literal["same", "equivalent", "differs", "rewritten"]
    """``equivalent``: the same rows in a slice of other bytes. ``rewritten``: the history has no such block now."""
    message: str = ""


class _Shard(NamedTuple):
    """A chain as it was before a transaction, and the events of the transaction in it."""

    chain: ChainReader
    state: ChainState
    events: tuple[object, ...]


async def replay(
    deps: IngestDependencies, dataset: DatasetId, bound: BoundCapture, by: Sequence[str] = ()
) -> RawReplay:
    """Replays a transaction. Raises NotFound (no such object), Environment (it is damaged), EngineFault or Refused.

    ``dataset``: the only chain, or the first of several shards, whose rows are divided by the columns ``by``.
    """
    shards = await trio.to_thread.run_sync(_shards, deps, dataset, bound)
    if not shards:
        return RawReplay(outcome="rewritten", message=f"block {bound.block.short} is not of its history any more")
    if not bound.capture.files:
        return await trio.to_thread.run_sync(_replayed_gap, shards, bound)
    if deps.given is not None:
        shards[0] = shards[0]._replace(state=deps.given.over(shards[0].state))
    async with staged_folder(deps.settings.staging) as folder:
        batch = await captured_batch(deps, shards[0].state, bound.capture, folder)
        plan = await trio.to_thread.run_sync(_plan, deps, shards, batch, bound, folder)
        answer = await ingest(deps.engine, plan.request)
        match answer:
            case InvalidQuery(message=message):
                return RawReplay(outcome="differs", message=f"the bytes cannot be read any more: {message}")
            case EngineInternalError(message=message):
                raise engine_failed(message)
            case Success():
                made = await trio.to_thread.run_sync(_make, plan, answer, shards, by, folder)
                return _worst([compare(each.events, own) for each, own in zip(shards, made, strict=True)])
    raise EngineFault(f"the engine sent an answer of an unknown kind: {type(answer).__name__}", rule="engine")


def _replayed_gap(shards: Sequence[_Shard], bound: BoundCapture) -> RawReplay:
    """Builds again how a source went on over a gap that was accepted, which has no bytes."""
    found, label = [], bound.capture.label
    for shard in shards:
        gap = gap_between(shard.state, label)
        found.append(compare(shard.events, gap_transaction(shard.state, gap, label).events))
    return _worst(found)


def compare(stored: Sequence[object], computed: Sequence[MetadataEvent]) -> RawReplay:
    """Compares events, first exactly and then without the bytes of slices."""
    if list(stored) == list(computed):
        return RawReplay(outcome="same")
    if list(map(_content, stored)) == list(map(_content, computed)):
        return RawReplay(outcome="equivalent", message="the same rows, in a slice of other bytes")
    for here, there in zip(map(_content, stored), map(_content, computed), strict=False):
        if here != there:
            return RawReplay(outcome="differs", message=_difference(here, there))
    return RawReplay(outcome="differs", message=f"{plural(len(stored), 'event')} stored, and {len(computed)} computed")


def _worst(found: Sequence[RawReplay]) -> RawReplay:
    """Returns the result of all shards: that of the one which is least equal."""
    outcomes = ("same", "equivalent", "differs", "rewritten")
    return max(found, key=lambda each: outcomes.index(each.outcome))


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


def _shards(deps: IngestDependencies, dataset: DatasetId, bound: BoundCapture) -> list[_Shard]:
    """Returns the chains before the transaction, each with its events; none if one has another history now."""
    parts = {part.dataset: part for part in bound.parts}
    found = []
    for shard in deps.shards(dataset):
        chain, part = deps.store.chain(shard), parts.pop(shard, None)
        if part is None:
            found.append(_Shard(chain, load_state(chain, _size_at(chain, bound.time)), ()))
            continue
        blocks = _transaction(chain, part)
        if not blocks:
            return []
        is_made = (n for n, block in enumerate(blocks) if isinstance(block.event, SetDataSchema | AddData))
        made = next(is_made, len(blocks))
        events = tuple(block.event for block in blocks[made:])
        found.append(_Shard(chain, load_state(chain, part.first + made), events))
    return [] if parts else found


def _size_at(chain: ChainReader, time: int) -> int:
    """Returns the number of blocks whose time (ms) is not after ``time``, by a logarithmic number of reads.

    A shard for which a transaction changed nothing has blocks of its time only if it was begun then.
    """
    head = chain.head()
    size = 0 if head is None else head.size
    return bisect_right(range(size), time, key=lambda number: to_millis(chain.block_at(number).system_time))


def _transaction(chain: ChainReader, part: CapturedPart) -> list[Block]:
    """Returns the blocks of the transaction; none if the chain has another history now."""
    try:
        blocks = [chain.block_at(number) for number in range(part.first, part.last + 1)]
    except NotFound:
        return []
    return blocks if blocks[-1].hash == part.block else []


async def captured_batch(deps: IngestDependencies, state: ChainState, capture: Capture, folder: Path) -> Batch:
    """Returns the captured files, prepared by the steps of the source in force."""
    paths = [
        await trio.to_thread.run_sync(_copy, deps, file.object, folder / f"raw-{number}", file.name)
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
    return await prepare_batch(deps, polled, found, folder)


def _copy(deps: IngestDependencies, name: Multihash, folder: Path, called: str) -> Path:
    """Copies a captured object under its original name, which tells some formats, after a check of its hash."""
    folder.mkdir()
    last = Path(called).name
    is_name = is_visible(last) and last not in ("", "..") and len(last.encode()) <= _MOST_OF_A_NAME
    target = folder / (last if is_name else "file")
    shutil.copyfile(sound_path(deps.objects, name), target)
    return target


def _plan(
    deps: IngestDependencies, shards: Sequence[_Shard], batch: Batch, bound: BoundCapture, folder: Path
) -> IngestPlan:
    """Plans the transaction again."""
    name, time, state = bound.capture.source, from_millis(bound.time), shards[0].state
    source = find_push_source(state, name, None)[0] if name else polling(state)[1]
    asks = traits(source.merge).asks_history
    # A separate index: the driver's is for the head.
    index, chains = SliceIndex(), [(shard.chain, shard.state) for shard in shards]
    parts = [file for chain in chains for file in index.parts(*chain, deps.objects, source.merge)] if asks else []
    sets_aside = quarantine_of(source.read.schema) is not None
    terms = PlanTerms(
        output=folder / "rows",
        settings=deps.settings,
        earlier=EarlierSlices(parts),
        quarantine=QuarantineDataset(path=folder / "aside") if sets_aside else None,  # discarded with the folder
        needs_event_time=needs_event_time(batch, source, chains),
        purpose="replay:",
    )
    return plan_ingest(state, source, batch, time, terms)


class _Scratch:
    """The slices of a replay, which are deleted with its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self._staged = count()

    def stage(self) -> Path:
        return self._folder / f"staged-{next(self._staged)}"

    def add_file(self, staged: Path) -> Multihash:
        with disk(staged), staged.open("rb") as file:
            name = Multihash.sha3_256_of(file)
        staged.replace(self.path(name))
        return name

    def path(self, name: Multihash) -> Path:
        return self._folder / str(name)


def _make(
    plan: IngestPlan, answer: Success, shards: Sequence[_Shard], by: Sequence[str], folder: Path
) -> Sequence[Sequence[MetadataEvent]]:
    """Returns the events that an ingest would commit to each shard. Raises Invalid, Refused."""
    events = _events(plan, answer)
    if len(shards) == 1:
        return [events]
    scratch, rows = _Scratch(folder / "slices"), Path(plan.request.new_data_path)
    if rows.exists():
        scratch.add_file(rows)
    return [own for own, _ in divide(scratch, [shard.state for shard in shards], by, events)]


def _events(plan: IngestPlan, answer: Success) -> Sequence[MetadataEvent]:
    """Returns the events that an ingest would commit to one chain. Raises Invalid."""
    slice_: DataSlice | None = None
    settling = partial(settle, plan, answer)
    path = Path(plan.request.new_data_path)
    if answer.new_offset_interval is not None:
        vocab = plan.request.vocab
        slice_ = measure_slice(path, answer.schema, vocab.offset)
        done = settling(slice_, operations(path, vocab.operation_type))
    else:
        done = settling(None)
    return done.events


def remaining(source: Sequence[BoundCapture], own: Sequence[BoundCapture]) -> Sequence[BoundCapture]:
    """Returns the captures after the last one that became blocks. Both lists are in order; a capture may give no block.

    Raises Conflict if ``own`` has a capture that ``source`` lacks: it is then no rendition of the same collection.
    """
    place = 0
    for each in own:
        while place < len(source) and not _is_same(source[place], each):
            place += 1
        if place == len(source):
            raise Conflict("a captured transaction is not of the collection", rule="rendition-captures")
        place += 1
    return source[place:]


def _is_same(one: BoundCapture, other: BoundCapture) -> bool:
    return (one.time, one.capture) == (other.time, other.capture)


async def decode(deps: IngestDependencies, dataset: DatasetId, bound: BoundCapture) -> Head | None:
    """Commits the transaction of a capture at its time; returns ``None`` if the capture gives nothing to commit.

    Raises Invalid (the bytes cannot be read so), Conflict, Refused, NotFound, Environment and the engine's faults.
    """
    if not bound.capture.files:
        return await _gone_on(deps, dataset, bound)
    plan, settled = await compute_captured(deps, dataset, bound.capture, bound.time)
    if not settled.events:
        return None
    time, records = plan.request.system_time, (settled.counts, bound.capture)
    part = CommitPart.after(plan.state, time, settled.events, settled.objects, plan.upper, records)
    (head,) = await deps.committer.commit(Commit(parts=(part,)))
    return head


async def _gone_on(deps: IngestDependencies, dataset: DatasetId, bound: BoundCapture) -> Head:
    """Commits that the source went on over a gap that was accepted. Raises Conflict, Refused."""
    upper = await trio.to_thread.run_sync(deps.store.upper, dataset)
    state = await trio.to_thread.run_sync(load, deps, dataset)
    label = bound.capture.label
    events, records = gap_transaction(state, gap_between(state, label), label).events, (NOTHING_READ, bound.capture)
    part = CommitPart.after(state, from_millis(bound.time), events, upper=UpperMove(upper), records=records)
    (head,) = await deps.committer.commit(Commit(parts=(part,)))
    return head


async def compute_captured(
    deps: IngestDependencies, dataset: DatasetId, capture: Capture, time: int
) -> tuple[IngestPlan, IngestOutcome]:
    """Computes the transaction of captured bytes at a time, after what the dataset, or all of its shards, have now.

    Raises as ``decode``. The slices of the result are stored as objects.
    """
    state = await trio.to_thread.run_sync(load, deps, dataset)
    if state.system_time is not None and time < to_millis(state.system_time):
        raise Conflict("a capture of an earlier time than the rendition's last block", rule="rendition-captures")
    async with staged_folder(deps.settings.staging) as folder:
        batch = await captured_batch(deps, state, capture, folder)
        plan = await trio.to_thread.run_sync(_decoding_plan, deps, state, batch, (capture.source, time))
        settled, _ = await compute(deps, plan)
    return plan, settled


def _decoding_plan(deps: IngestDependencies, state: ChainState, batch: Batch, origin: tuple[str, int]) -> IngestPlan:
    """Plans as the driver does. ``origin``: the push source or an empty text, and the time (ms). Raises Refused."""
    name, time = origin
    source = find_push_source(state, name, None)[0] if name else polling(state)[1]
    if quarantine_of(source.read.schema) is not None:
        raise Refused(
            "a source with onError: quarantine cannot be decoded again: the records of its "
            "quarantine dataset would be written twice",
            rule="rendition-quarantine",
            hint="leave out onError in the manifest, and apply it first",
        )
    assert state.dataset is not None
    shards = shards_with(deps, state)
    terms = PlanTerms(
        output=deps.objects.stage(),
        settings=deps.settings,
        upper=UpperMove(deps.store.upper(state.dataset)),
        earlier=deps.index.earlier_of_all(shards, deps.objects, source.merge),
        needs_event_time=needs_event_time(batch, source, shards),
    )
    return plan_ingest(state, source, batch, from_millis(time), terms)
