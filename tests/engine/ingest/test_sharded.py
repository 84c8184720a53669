"""Ways to merge rows, over shards: of each key the same is said as in one chain, by the real engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
import trio
from pyspark.sql import SparkSession

from chain.data.parquet import open_slice
from chain.instant import Instant
from chain.model.events import AddData, DatasetKind, Seed, SetPollingSource
from chain.model.source import (
    FetchFilesGlob,
    MergeAppend,
    MergeChangelogStream,
    MergeLedger,
    MergeSnapshot,
    MergeStrategy,
    MergeUpsertStream,
    ReadCsv,
)
from chain.state import load_state
from chain.statements.keys import SigningKey
from chain.store.base import Append, Head
from engines.request_control import RequestControl
from engines.spark.ingest.run import run_ingest
from odfd.datasets.commit import Commit
from odfd.ingest.driver import IngestDependencies, pull_root
from odfd.ingest.settings import IngestSettings
from odfd.ingest.sharded_writes import divide
from odfd.ingest.slices import SliceIndex
from odfd.trust.signing.owner_commit import author_blocks
from worlds.memory_store import MemoryChains, MemoryObjects

pytestmark = pytest.mark.engine

KEY = ("carrier",)
MERGES = (
    MergeAppend(),
    MergeLedger(primary_key=KEY),
    MergeChangelogStream(primary_key=KEY),
    MergeSnapshot(primary_key=KEY),
    MergeUpsertStream(primary_key=KEY),
)


class InProcess:
    """Spark behind the engine port, without a process between."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    async def ingest(self, request: Any, on_progress: Any = None) -> Any:
        return await trio.to_thread.run_sync(run_ingest, self.spark, request, RequestControl())


class Shards:
    """Commits without signing what is planned for the first chain to all."""

    def __init__(self, folder: Path, count: int, polling: SetPollingSource) -> None:
        self.objects = MemoryObjects(folder / "objects")
        self.chains = MemoryChains(self.objects)
        self.ids = [SigningKey(bytes([place + 1]) * 32).dataset_id for place in range(count)]
        for each in self.ids:
            self.append(each, [Seed(dataset_id=each, dataset_kind=DatasetKind.ROOT), polling], (), Instant(0))

    async def commit(self, commit: Commit) -> list[Head]:
        (part,) = commit.parts
        dataset, events, time = part.dataset, part.events, part.time
        assert dataset == self.ids[0]
        assert part.expected == self.chains.chain(dataset).head()
        states = [load_state(self.chains.chain(each)) for each in self.ids]
        made = divide(self.objects, states, KEY, events)
        for each, (own, slices) in zip(self.ids, made, strict=True):
            if own:
                self.append(each, own, slices, time)
        head = self.chains.chain(dataset).head()
        assert head is not None
        return [head]

    def append(self, dataset: Any, events: Sequence[Any], objects: Any, time: Instant) -> None:
        chain = self.chains.chain(dataset)
        blocks = author_blocks(load_state(chain), events, time)
        self.chains.commit([Append(dataset=dataset, expected=chain.head(), blocks=blocks, objects=objects)])

    def said(self) -> dict[str, list[Any]]:
        """All that was said of each key, in its order."""
        found: dict[str, list[Any]] = {}
        for each in self.ids:
            chain = self.chains.chain(each)
            head = chain.head()
            for number in range(head.size if head else 0):
                event = chain.block_at(number).event
                if not isinstance(event, AddData) or event.new_data is None:
                    continue
                with open_slice(self.objects.content(event.new_data.physical_hash)) as file:
                    rows: pa.Table = file.read(["op", "system_time", "event_time", "carrier", "name"])
                for row in rows.to_pylist():
                    found.setdefault(row["carrier"], []).append(tuple(row.values()))
        return found


@pytest.mark.parametrize("merge", MERGES, ids=lambda merge: type(merge).__name__)
async def test_shards_say_of_each_key_what_one_chain_says(
    merge: MergeStrategy, tmp_path: Path, spark: SparkSession
) -> None:
    source, lot = tmp_path / "source", Random(5)
    source.mkdir()
    columns = ("op INT", "carrier STRING NOT NULL", "name STRING")
    stated = isinstance(merge, MergeChangelogStream)
    polling = SetPollingSource(
        fetch=FetchFilesGlob(path=str(source / "*.csv")),
        read=ReadCsv(header=True, ddl_schema=columns if stated else columns[1:]),
        merge=merge,
    )
    runs = []
    for count in (1, 2, 5):
        folder = tmp_path / str(count)
        for each in ("objects", "staging"):
            (folder / each).mkdir(parents=True)
        shards = Shards(folder, count, polling)
        settings = IngestSettings(staging=folder / "staging")
        engine: Any = InProcess(spark)
        committer: Any = shards
        deps = IngestDependencies(
            shards.chains, shards.objects, engine, committer, lambda: Instant(0), settings, SliceIndex(),
            shards=lambda _, ids=shards.ids: ids,
        )  # fmt: skip
        runs.append((shards, deps))
    for number in range(6):
        some = lot.sample(range(8), 5)
        lines = [f"C{each},{lot.choice('xyz')}" for each in some]
        if stated:
            lines = [f"0,{line}" for line in lines]
        head = "op,carrier,name" if stated else "carrier,name"
        (source / f"{number}.csv").write_text("\n".join([head, *lines, ""]))
        for _, deps in runs:
            now = Instant(2 * 10**18 + number * 10**9)
            await pull_root(replace(deps, now=lambda now=now: now), deps.shards(None)[0])
    one, *others = (shards for shards, _ in runs)
    assert one.said()
    for each in others:
        assert each.said() == one.said()
        states = [load_state(each.chains.chain(dataset)) for dataset in each.ids]
        alone = load_state(one.chains.chain(one.ids[0]))
        assert {state.watermark for state in states} == {alone.watermark}
        assert [state.source_state for state in states] == [alone.source_state] * len(states)
