"""Indexes the files that hold a dataset's earlier rows, for merging: slices, with small ones merged into segments.

The index is remembered, so that only new blocks are read. There is one per process, with some hundred bytes for each
file. A chain that was cut back or replaced is noticed by the hash of the newest remembered block: the part that is
still of its history stays, the rest is read anew. An engine is given the slices that most batches need, and others on
request.

Only the engine knows the keys of a batch, once it has read it. It is therefore given the newest files, and instead of
the older ones a small file with their bounds (``engines.footers``); if a key may be in some of these, it answers
with their names, and is run again with them. Bounds of a file are read once, and kept beside the segments in a file
named by its hash; one that is damaged, or of another history, is made anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec
import trio

from chain.codec.arrow_schema import schema_of
from chain.data.arrow_schema import to_arrow
from chain.errors import Fault, Invalid, Refused
from chain.ids import DatasetId
from chain.libraries import pa
from chain.model.events import AddData, DataSlice, ExecuteTransform
from chain.model.schema import DataSchema
from chain.model.source import MergeLedger, MergeStrategy, traits
from chain.multihash import Multihash
from chain.state import ChainState
from chain.store.base import ChainReader, ObjectStore
from chain.store.files import check_file
from engines.contract import (
    Engine,
    HistoryNeeded,
    IngestAnswer,
    IngestBatchRequest,
    OnProgress,
    Success,
    ignore_progress,
)
from engines.footers import NAME, bounds_table, footer, read_bounds, write_bounds
from engines.output_check import measure_slice
from odfd.datasets.engine_pins import ENGINE_CHANGED, differs, short
from odfd.ingest.plan import NO_HISTORY, EarlierSlices
from odfd.ingest.segments import FULL, Keys, Segment, SegmentFolder, folder_of, keys_of

RECENT: Final = 8
"""Number of newest files that are always given; up to as many more are: most batches have no key in others."""


class KeyBounds:
    """The key bounds of one dataset's files, for the columns ``keys``. Old files change only when history does."""

    def __init__(self, folder: Path, dataset: DatasetId, keys: Sequence[str], operation_column: str) -> None:
        rule = Multihash.sha3_256("\0".join((*keys, operation_column)).encode()).digest.hex()[:16]
        self._folder = folder_of(folder, dataset) / f"bounds-{rule}"
        self._keys = tuple(keys)
        self._operation_column = operation_column
        self._covered: list[Segment] = []
        self._table: pa.Table | None = None
        self._name: Multihash | None = None

    def covering(
        self, segments: Sequence[Segment], schema: pa.Schema, path_of: Callable[[Segment], Path]
    ) -> tuple[int, Multihash, Path] | None:
        """Returns how many of the oldest files have their bounds in the bounds file, with its hash and path.

        ``None``: there are too few files, or bounds cannot be made; then all files are to be given.
        """
        count = len(self._covered)
        if self._table is not None and (count > len(segments) or list(segments[:count]) != self._covered):
            self._forget()
        if self._table is None:
            self._load(segments)
        count = len(self._covered)
        settled = min(_count_settled(segments), len(segments) - RECENT)
        if settled - count >= RECENT:
            try:
                self._extend(segments, settled, schema, path_of)
            except (Fault, OSError, pa.ArrowException):
                self._forget()
                return None
        if self._name is None:
            return None
        return len(self._covered), self._name, self._folder / str(self._name)

    def mend(self) -> bool:
        """Drops a damaged bounds file, to be made again on the next use. Returns whether it was damaged."""
        if self._name is None:
            return False
        try:
            check_file(self._folder / str(self._name), self._name)
        except Fault:
            self._forget()
            return True
        return False

    def _extend(
        self, segments: Sequence[Segment], count: int, schema: pa.Schema, path_of: Callable[[Segment], Path]
    ) -> None:
        """Writes the bounds of the first ``count`` files; reads only the footers of those that are new."""
        fresh = segments[len(self._covered) : count]
        footers = {each.name: footer(path_of(each)) for each in fresh}
        table = bounds_table(footers, schema, self._keys, self._operation_column)
        if self._table is not None and self._table.schema.equals(table.schema):
            table = pa.concat_tables([self._table, table])
        elif self._table is not None:
            self._forget()
            return self._extend(segments, count, schema, path_of)
        self._folder.mkdir(parents=True, exist_ok=True)
        staged = self._folder / ".writing"
        write_bounds(table, staged)
        with staged.open("rb") as file:
            name = Multihash.sha3_256_of(file)
        staged.replace(self._folder / str(name))
        for other in self._folder.iterdir():
            if other.name != str(name):
                other.unlink(missing_ok=True)
        self._table, self._name, self._covered = table, name, list(segments[:count])
        return None

    def _load(self, segments: Sequence[Segment]) -> None:
        """Loads the bounds file of an earlier process, if it is undamaged and belongs to these files."""
        try:
            for file in self._folder.iterdir():
                name = Multihash.parse(file.name)
                check_file(file, name)
                table = read_bounds(file)
                if table.column(NAME).to_pylist() == [segment.name for segment in segments[: table.num_rows]]:
                    self._table, self._name, self._covered = table, name, list(segments[: table.num_rows])
                    return
        except (Fault, OSError):
            return

    def _forget(self) -> None:
        self._covered, self._table, self._name = [], None, None


def _count_settled(segments: Sequence[Segment]) -> int:
    """Returns how many of the oldest files are never merged again: those up to the last full one."""
    behind = sum(1 for _ in itertools.takewhile(lambda each: each.level != FULL, reversed(segments)))
    return len(segments) - behind


UNSAVED: Final = 64
"""Files that may be new since the last save; after a restart their blocks are read again."""
_DATA = ("AddData", "ExecuteTransform")


class SliceStore(Protocol):
    """The part of a store of objects that writes slices."""

    def stage(self) -> Path: ...

    def add_file(self, staged: Path) -> Multihash: ...

    def path(self, name: Multihash) -> Path: ...


class SliceIndex:
    """The files of all datasets' rows. ``folder`` holds merged files and bounds; without it there are none."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._known: dict[tuple[DatasetId, Keys], list[Segment]] = {}
        self._saved: dict[tuple[DatasetId, Keys], int] = {}
        self._bounds: dict[DatasetId, tuple[tuple[str, ...], KeyBounds]] = {}

    def parts(
        self, reader: ChainReader, state: ChainState, objects: ObjectStore, merge: MergeStrategy
    ) -> list[tuple[Multihash, Path]]:
        """Returns the files with all rows up to ``state`` that the strategy may need, oldest first, with their hashes.

        Reads the data blocks added since the last call.
        """
        path_of = self._path_of(state, objects, keys_of(merge))
        return [(segment.hash, path_of(segment)) for segment in self._segments(reader, state, objects, keys_of(merge))]

    def earlier(
        self, reader: ChainReader, state: ChainState, objects: ObjectStore, merge: MergeStrategy
    ) -> EarlierSlices:
        """Returns earlier slices for an engine that may request more: for a ledger with many files, only the newest."""
        if not traits(merge).asks_history:
            return NO_HISTORY
        keys = keys_of(merge)
        segments = self._segments(reader, state, objects, keys)
        path_of = self._path_of(state, objects, keys)
        found = self._covering(state, segments, merge, path_of) if isinstance(merge, MergeLedger) else None
        if found is None:
            return EarlierSlices([(segment.hash, path_of(segment)) for segment in segments])
        count, name, path = found

        def older(names: Collection[str] | None) -> list[tuple[Multihash, Path]]:
            return [
                (segment.hash, path_of(segment))
                for segment in segments[:count]
                if names is None or segment.name in names
            ]

        return EarlierSlices([(segment.hash, path_of(segment)) for segment in segments[count:]], (name, path), older)

    def earlier_of_all(
        self,
        shards: Sequence[tuple[ChainReader, ChainState]],
        objects: ObjectStore,
        merge: MergeStrategy,
    ) -> EarlierSlices:
        """Returns earlier slices of all shards; their order does not matter, as all rows of a key are in one shard."""
        if len(shards) == 1:
            return self.earlier(*shards[0], objects, merge)
        if not traits(merge).asks_history:
            return NO_HISTORY
        return EarlierSlices([file for shard in shards for file in self.parts(*shard, objects, merge)])

    def mend(self, dataset: DatasetId) -> bool:
        """Checks all merged files of a dataset; drops a damaged one. Returns whether there was one."""
        damaged = dataset in self._bounds and self._bounds[dataset][1].mend()
        for (each, keys), segments in list(self._known.items()):
            if each == dataset and self._folder is not None:
                whole = SegmentFolder(self._folder, dataset, keys).whole(segments)
                damaged = damaged or whole != segments
                self._known[each, keys] = whole
        return damaged

    def _segments(self, reader: ChainReader, state: ChainState, objects: ObjectStore, keys: Keys) -> list[Segment]:
        assert state.dataset is not None
        kept = None if self._folder is None else SegmentFolder(self._folder, state.dataset, keys)
        known = self._known.get((state.dataset, keys))
        if known is None:
            known = [] if kept is None else kept.load()
            self._saved[state.dataset, keys] = len(known)
        segments = _still_there(known, reader, state)
        before = len(segments)
        segments += _newer(reader, state, segments[-1].last if segments else -1)
        if kept is not None and state.schema is not None:
            settled = kept.settle(segments, before, objects, to_arrow(schema_of(state.schema)), state.vocab.offset)
            merged = len(settled) < len(segments)
            segments = settled
            if merged or len(segments) - self._saved.get((state.dataset, keys), 0) >= UNSAVED:
                kept.save(segments)
                self._saved[state.dataset, keys] = len(segments)
        self._known[state.dataset, keys] = segments
        return segments

    def _path_of(self, state: ChainState, objects: ObjectStore, keys: Keys) -> Callable[[Segment], Path]:
        assert state.dataset is not None
        kept = None if self._folder is None else SegmentFolder(self._folder, state.dataset, keys)
        return lambda each: kept.path(each) if kept is not None and each.made else objects.path(each.hash)

    def _covering(
        self, state: ChainState, segments: Sequence[Segment], merge: MergeLedger, path_of: Callable[[Segment], Path]
    ) -> tuple[int, Multihash, Path] | None:
        if self._folder is None or state.schema is None or state.dataset is None:
            return None
        columns = (*merge.primary_key, state.vocab.operation_type)
        known = self._bounds.get(state.dataset)
        if known is None or known[0] != columns:
            known = columns, KeyBounds(self._folder, state.dataset, merge.primary_key, state.vocab.operation_type)
            self._bounds[state.dataset] = known
        return known[1].covering(segments, to_arrow(schema_of(state.schema)), path_of)


def _still_there(known: Sequence[Segment], reader: ChainReader, state: ChainState) -> list[Segment]:
    """Returns the segments up to the last whose block is still in the chain: that block commits to all before it."""
    for count in range(len(known), 0, -1):
        last = known[count - 1]
        if last.last < state.size and str(reader.block_at(last.last).hash) == last.block:
            return list(known[:count])
    return []


def _newer(reader: ChainReader, state: ChainState, after: int) -> list[Segment]:
    """Returns the slices of the blocks after number ``after``, each as a segment of its own."""
    newer: list[Segment] = []
    block = reader.last_of(_DATA, state.size)
    while block is not None and block.sequence_number > after:
        event, number = block.event, block.sequence_number
        if isinstance(event, AddData | ExecuteTransform) and (data := event.new_data) is not None:
            newer.append(
                Segment(
                    first=number,
                    last=number,
                    block=str(block.hash),
                    name=str(data.physical_hash),
                    size=data.size,
                    rows=data.offset_interval.end - data.offset_interval.start + 1,
                )
            )
        block = reader.last_of(_DATA, number)
    return newer[::-1]


async def execute_request(
    engine: Engine, request: IngestBatchRequest, earlier: EarlierSlices, on_progress: OnProgress = ignore_progress
) -> IngestAnswer:
    """Runs a request; if the engine requests earlier slices, runs it again with them. Raises EngineFault, Refused."""
    answer = await ingest(engine, request, on_progress)
    if earlier.bounds is None:
        return answer
    if isinstance(answer, HistoryNeeded):
        more = await trio.to_thread.run_sync(earlier.older, frozenset(answer.hashes))
        answer = await ingest(engine, _with_slices(request, [*more, *earlier.files]), on_progress)
    unaware = isinstance(answer, Success) and answer.prev_data_bounds_hash != request.prev_data_bounds_hash
    if unaware or isinstance(answer, HistoryNeeded):
        # An engine of another make ignores bounds: it took the slices that it was given for all there are.
        more = await trio.to_thread.run_sync(earlier.older, None)
        all_ = _with_slices(request, [*more, *earlier.files])
        all_ = msgspec.structs.replace(all_, prev_data_bounds=None, prev_data_bounds_hash=None)
        answer = await ingest(engine, all_, on_progress)
    return answer


async def ingest(
    engine: Engine, request: IngestBatchRequest, on_progress: OnProgress = ignore_progress
) -> IngestAnswer:
    """Sends a request to the engine; each ingest does it here. Raises Refused if its preprocess pins another engine."""
    if request.preprocess is not None and request.preprocess.version is not None:
        identity = await engine.identity()
        if differs(request.preprocess.version, (identity.digest,)):
            raise Refused(
                f"preprocess pins the engine {short(request.preprocess.version)}, and the one here is another",
                rule=ENGINE_CHANGED,
                hint=f"declare the source without a version there, or with {identity.digest}",
            )
    return await engine.ingest(request, on_progress)


def _with_slices(request: IngestBatchRequest, slices: Sequence[tuple[Multihash, Path]]) -> IngestBatchRequest:
    return msgspec.structs.replace(
        request,
        prev_data_paths=tuple(str(path) for _, path in slices),
        prev_data_hashes=tuple(str(name) for name, _ in slices),
    )


def keep_slice(objects: SliceStore, path: Path, schema: DataSchema | None, offset: str) -> DataSlice:
    """Measures a file and stores it as an object. Raises Invalid."""
    found = measure_slice(path, schema, offset)
    if objects.add_file(path) != found.physical_hash:
        raise Invalid(f"{path.name} changed after it was measured", rule="engine-output")
    return found
