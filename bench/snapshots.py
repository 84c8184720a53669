"""Measures a snapshot of many rows of which few changed: by a real engine, into a real store, in seconds of CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from itertools import count, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc_csv
import trio

from bench import chains
from bench.again import Committer
from bench.engine import warm_engine
from bench.machine import spent_below
from bench.measure import Row, Side, Size, in_turns_async
from bench.store import opened
from chain.data.ddl import parse_ddl
from chain.data.parquet import write_slice
from chain.instant import Instant
from chain.model.events import AddPushSource, DatasetKind, Seed
from chain.model.schema import DataSchema
from chain.model.source import MergeSnapshot, ReadCsv
from chain.store.base import Append
from odfd.ingest.driver import IngestDependencies, IngestTotals, load, transact
from odfd.ingest.plan import Batch, find_push_source
from odfd.ingest.progress import quiet
from odfd.ingest.settings import IngestSettings
from odfd.ingest.slices import SliceIndex

_COLUMNS = DataSchema(
    fields=parse_ddl(("event_time TIMESTAMP, id BIGINT, name STRING, value BIGINT, price DOUBLE",)).fields
)


def measure_snapshot(size: Size, folder: Path) -> list[Row]:
    """Measures a snapshot against reading its file and writing all of its rows, by Arrow alone."""
    return trio.run(_measure, size, folder)


async def _measure(size: Size, folder: Path) -> list[Row]:
    rows, changes = size.pick(2_000, 1_000_000), size.pick(20, 1_000)
    async with warm_engine(size, folder) as (engine, _):
        with opened(folder / "store") as (kept, stored):
            founding = (
                Seed(dataset_id=chains.DATASET, dataset_kind=DatasetKind.ROOT),
                AddPushSource(
                    source_name="s",
                    read=ReadCsv(header=True, schema=_COLUMNS),
                    merge=MergeSnapshot(primary_key=("id",)),
                ),
            )
            kept.commit([Append(dataset=chains.DATASET, expected=None, blocks=chains.blocks_of(*founding))])
            deps = IngestDependencies(
                kept, stored, engine, Committer(kept), lambda: Instant(chains.START * 2),
                IngestSettings(staging=folder), SliceIndex(folder / "segments"),
            )  # fmt: skip
            rounds, warm = size.pick(1, 7), size.pick(0, 2)
            first, *others = islice(_files(folder, rows, changes), rounds + warm + 1)  # none is made meanwhile
            files = iter(others)
            assert await _ingested(deps, first) == rows
            path = folder / "bare"

            async def ours() -> None:
                assert await _ingested(deps, next(files)) == 2 * changes

            peer = partial(trio.to_thread.run_sync, _bare, first, path)
            costs = await in_turns_async(ours, peer, rounds, warm=warm, clock=lambda: spent_below(os.getpid()))
    return [
        Row(
            name="snapshot",
            measures=f"CPU of all processes: a snapshot of {rows:,} rows, {changes:,} of them changed",
            ours=Side(name="parse, compare, both hashes, commit", costs=costs[0], unit="s"),
            peer=Side(name="Arrow reads the CSV and writes all rows as Parquet", costs=costs[1], unit="s"),
            goal="< 1 s",
        )
    ]


async def _ingested(deps: IngestDependencies, path: Path) -> int:
    """Returns the number of rows that were written."""
    tally = IngestTotals()
    batch = Batch(paths=(path,), names=(path.name,), identity=path.name)
    state = await trio.to_thread.run_sync(load, deps, chains.DATASET)
    await transact(deps, state, lambda found: find_push_source(found, None, None), batch, tally, quiet)
    return tally.rows


def _files(folder: Path, rows: int, changes: int) -> Iterator[Path]:
    """Yields snapshots, each with other rows changed. They are as long as the first."""
    numbers = np.arange(rows)
    values = 1_000 + numbers % 997
    times = pa.array(np.full(rows, chains.START // 1_000_000), pa.timestamp("ms"))
    names = pa.array([f"name {number}" for number in range(rows)])
    for number in count():
        path = folder / f"snapshot-{number}.csv"
        columns = {"event_time": times, "id": numbers, "name": names, "value": values, "price": values / 8}
        pc_csv.write_csv(pa.table(columns), path)
        yield path
        values = values + ((numbers + number) % (rows // changes) == 0)


def _bare(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    write_slice(pc_csv.read_csv(source), target)
