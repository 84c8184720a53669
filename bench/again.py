"""Measures an ingest after many others against one after few: by a real engine, into a real store."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import trio

from bench import chains
from bench.engine import warm_engine
from bench.measure import Row, Side, Size, all_in_turns
from bench.store import opened
from chain.codec.blocks import encode_block
from chain.data.arrow_schema import from_arrow
from chain.data.ddl import parse_ddl
from chain.data.parquet import write_slice
from chain.instant import Instant
from chain.model.block import MetadataBlock
from chain.model.events import (
    AddData,
    AddPushSource,
    DatasetKind,
    DataSlice,
    MetadataEvent,
    OffsetInterval,
    Seed,
    SetDataSchema,
)
from chain.model.schema import DataSchema
from chain.model.source import MergeLedger, MergeSnapshot, MergeStrategy, ReadNdJson
from chain.multihash import ARROW0_SHA3_256, Multihash
from chain.store.base import Append, Head
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from engines.contract import Engine, IngestAnswer, IngestBatchRequest, OnProgress, ignore_progress
from odfd.datasets.commit import Commit
from odfd.ingest import segments
from odfd.ingest.driver import IngestDependencies, IngestTotals, load, transact
from odfd.ingest.plan import Batch, find_push_source
from odfd.ingest.progress import quiet
from odfd.ingest.settings import IngestSettings
from odfd.ingest.slices import SliceIndex

FEW: Final = 10
LEDGER: Final = MergeLedger(primary_key=("event_time",))
SNAPSHOT: Final = MergeSnapshot(primary_key=("part",))
SCHEMA: Final = chains.SCHEMA.append(pa.field("part", pa.int64()))
_COLUMNS: Final = DataSchema(fields=parse_ddl(("event_time TIMESTAMP, value BIGINT, part BIGINT",)).fields)
_LINE: Final = """{{"event_time": "{}", "value": {}, "part": {}}}\n"""


def measure_again(size: Size, folder: Path) -> list[Row]:
    """Measures one row pushed, parsed, merged and committed; slices are merged, or left unchanged as large ones."""
    return trio.run(_measure, size, folder)


async def _measure(size: Size, folder: Path) -> list[Row]:
    many = size.pick(150, 10_000)
    cases: dict[str, tuple[MergeStrategy, bool]] = {
        "ledger": (LEDGER, False),
        "ledger, large slices": (LEDGER, True),
        "snapshot": (SNAPSHOT, False),
    }
    rows = []
    async with warm_engine(size, folder) as (engine, _):
        for name, (merge, large) in cases.items():
            with (
                opened(folder / name / "many") as late,
                opened(folder / name / "few") as early,
            ):
                sides = [
                    _Side(folder / name / label, store, engine, length, merge)
                    for label, store, length in (("many", late, many), ("few", early, FEW))
                ]
                rows.append(await _in_turns(name, sides, size, large))
    return rows


async def _in_turns(name: str, sides: Sequence[_Side], size: Size, large: bool) -> Row:
    small, segments.SMALL_SLICE = segments.SMALL_SLICE, 0 if large else segments.SMALL_SLICE  # type: ignore[misc]
    try:
        costs = await all_in_turns([side.ingest for side in sides], size.pick(1, 15), warm=size.pick(0, 5))
    finally:
        segments.SMALL_SLICE = small  # type: ignore[misc]
    return Row(
        name=f"again {name}",
        measures="one row is ingested",
        ours=Side(name=f"after {sides[0].length:,} ingests", costs=costs[0]),
        peer=Side(name=f"after {sides[1].length}", costs=costs[1]),
        goal="<= 1.2",
        facts={"files given": sides[0].given, "files given of the other": sides[1].given},
    )


class _Side:
    """A dataset after some ingests, and the next ones."""

    def __init__(
        self, folder: Path, store: tuple[SqliteChains, DiskObjects], engine: Engine, length: int, merge: MergeStrategy
    ) -> None:
        kept, stored = store
        self.length, self._folder, self._numbers = length, folder, count(length)
        _fill(kept, stored, length, folder / "slice", merge)
        self._engine = _Watched(engine)
        watched: Any = self._engine
        self._deps = IngestDependencies(
            kept,
            stored,
            watched,
            Committer(kept),
            lambda: Instant(chains.START * 2),
            IngestSettings(staging=folder),
            SliceIndex(folder / "segments"),
        )

    @property
    def given(self) -> int:
        return int(self._engine.given)

    async def ingest(self) -> None:
        number, tally = next(self._numbers), IngestTotals()
        path = self._folder / "row.json"
        path.write_text(
            _LINE.format(f"2024-01-01T00:{number // 60 % 60:02}:{number % 60:02}.{number:06}Z", number, number % 97)
        )
        batch = Batch(paths=(path,), names=("row.json",), identity=str(number))
        state = load(self._deps, chains.DATASET)
        await transact(self._deps, state, lambda found: find_push_source(found, None, None), batch, tally, quiet)
        assert tally.rows, tally


class _Watched:
    """The engine, and how many files of earlier rows the last request named."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.given = engine, 0

    async def ingest(self, request: IngestBatchRequest, on_progress: OnProgress = ignore_progress) -> IngestAnswer:
        self.given = len(request.prev_data_paths)
        return await self._engine.ingest(request, on_progress)


class Committer:
    """Appends, unsigned: what a signature costs does not depend on what was before."""

    def __init__(self, kept: SqliteChains) -> None:
        self._kept = kept

    async def commit(self, commit: Commit) -> Sequence[Head]:
        return await trio.to_thread.run_sync(self.commit_now, commit)

    def commit_now(self, commit: Commit) -> Sequence[Head]:
        (part,) = commit.parts
        assert part.expected is not None
        blocks, at = [], part.expected
        for event in part.events:
            content = MetadataBlock(
                system_time=part.time, prev_block_hash=at.hash, sequence_number=at.size, event=event
            )
            blocks.append(encode_block(content))
            at = Head(blocks[-1].hash, blocks[-1].sequence_number)
        append = Append(dataset=part.dataset, expected=part.expected, blocks=blocks, objects=list(part.objects))
        self._kept.commit([append])
        return [at]


def _fill(kept: SqliteChains, stored: DiskObjects, length: int, fresh: Path, merge: MergeStrategy) -> None:
    """A chain as ``length`` ingests of one row each leave it."""
    events: list[MetadataEvent] = [
        Seed(dataset_id=chains.DATASET, dataset_kind=DatasetKind.ROOT),
        AddPushSource(source_name="s", read=ReadNdJson(schema=_COLUMNS), merge=merge),
        SetDataSchema(schema=from_arrow(SCHEMA)),
    ]
    names = []
    for number in range(length):
        rows = [[number], [0], [number], [number * 1000], [number], [number % 97]]
        columns = [pa.array(values, field.type) for values, field in zip(rows, SCHEMA, strict=True)]
        write_slice(pa.Table.from_arrays(columns, schema=SCHEMA), fresh)
        raw = fresh.read_bytes()
        fresh.unlink()
        names.append(stored.add_bytes(raw))
        data = DataSlice(
            logical_hash=Multihash.from_digest(ARROW0_SHA3_256, bytes(32)),
            physical_hash=names[-1],
            offset_interval=OffsetInterval(start=number, end=number),
            size=len(raw),
        )
        events.append(AddData(prev_offset=number - 1 if number else None, new_data=data))
    blocks = chains.blocks_of(*events)
    kept.commit([Append(dataset=chains.DATASET, expected=None, blocks=blocks, objects=names)])
