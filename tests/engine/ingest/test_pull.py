"""The driver on real Spark: months of flights, a crash before a commit, the same slices afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import trio
from pyspark.sql import SparkSession

from chain.codec.blocks import encode_block
from chain.ids import DatasetId
from chain.instant import Instant, to_millis
from chain.model.block import MetadataBlock
from chain.model.events import AddData, DatasetKind, MetadataEvent, Seed, SetPollingSource
from chain.model.source import (
    FetchFilesGlob,
    MergeAppend,
    MergeLedger,
    MergeSnapshot,
    MergeStrategy,
    MergeUpsertStream,
    ReadCsv,
)
from chain.store.base import Append, Head
from engines.contract import HistoryNeeded
from engines.request_control import RequestControl
from engines.spark.ingest.run import run_ingest
from odfd.datasets.commit import Commit
from odfd.ingest.driver import IngestDependencies, Ingested, NothingNew, pull_root
from odfd.ingest.raw_replay import replay
from odfd.ingest.settings import IngestSettings
from odfd.ingest.slices import SliceIndex
from odfd.store.captures import BoundCapture, Capture, CapturedPart
from worlds.memory_store import MemoryChains, MemoryObjects

pytestmark = pytest.mark.engine

DATASET = DatasetId.from_public_key(bytes(32))
SNAPSHOT = MergeSnapshot(primary_key=("carrier",))


class InProcess:
    """Spark behind the engine port, without a process between."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    async def ingest(self, request: Any, on_progress: Any = None) -> Any:
        return await trio.to_thread.run_sync(run_ingest, self.spark, request, RequestControl())


class Crash(Exception):
    """The process is gone."""


class Chain:
    """Commits without signing; ``crash_before`` counts down to a crash."""

    def __init__(self, folder: Path) -> None:
        self.objects = MemoryObjects(folder / "objects")
        self.chains = MemoryChains(self.objects)
        self.crash_before = -1
        self.captures: list[BoundCapture] = []

    async def commit(self, commit: Commit) -> list[Any]:
        (part,) = commit.parts
        if not part.events:
            return [part.expected]
        self.crash_before -= 1
        if self.crash_before == 0:
            raise Crash
        head = self.append(part.expected, part.events, part.objects, part.time)
        for capture in (each for each in part.records if isinstance(each, Capture)):
            first = head.sequence_number + 1 - len(part.events)
            bound = CapturedPart(part.dataset, head.hash, first, head.sequence_number)
            self.captures.append(BoundCapture(capture=capture, parts=(bound,), time=to_millis(part.time)))
        return [head]

    def append(self, head: Head | None, events: Any, objects: Any = (), system_time: Any = 0) -> Head:
        blocks, at = [], head
        for event in events:
            content = MetadataBlock(
                system_time=system_time,
                prev_block_hash=at.hash if at else None,
                sequence_number=at.size if at else 0,
                event=event,
            )
            blocks.append(encode_block(content))
            at = Head(blocks[-1].hash, blocks[-1].sequence_number)
        self.chains.commit([Append(dataset=DATASET, expected=head, blocks=blocks, objects=objects)])
        assert at is not None
        return at

    def events(self) -> list[MetadataEvent]:
        reader = self.chains.chain(DATASET)
        head = reader.head()
        return [reader.block_at(number).event for number in range(head.size if head else 0)]


@pytest.fixture
def begun(tmp_path: Path, spark: SparkSession) -> Callable[..., tuple[Chain, IngestDependencies]]:
    source = tmp_path / "source"
    source.mkdir()
    (source / "1.csv").write_text("carrier,name\nAA,American\nUA,United Air\nOO,SkyWest\n")
    (source / "2.csv").write_text("carrier,name\nAA,American\nUA,United\n")

    def make(
        name: str, merge: MergeStrategy = SNAPSHOT, index: SliceIndex | None = None
    ) -> tuple[Chain, IngestDependencies]:
        folder = tmp_path / name
        for each in ("objects", "staging"):
            (folder / each).mkdir(parents=True)
        chain = Chain(folder)
        polling = SetPollingSource(
            fetch=FetchFilesGlob(path=str(source / "*.csv")),
            read=ReadCsv(header=True, ddl_schema=("carrier STRING NOT NULL", "name STRING")),
            merge=merge,
        )
        chain.append(None, [Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT), polling])
        settings = IngestSettings(staging=folder / "staging")
        times = map(Instant, range(10**18, 2 * 10**18, 10**9))
        engine: Any = InProcess(spark)
        known = index or SliceIndex()
        return chain, IngestDependencies(
            chain.chains, chain.objects, engine, chain, lambda: next(times), settings, known
        )

    return make


async def test_a_dimension_that_changes(begun: Callable[..., tuple[Chain, IngestDependencies]]) -> None:
    chain, deps = begun("whole")
    outcome = await pull_root(deps, DATASET)
    assert isinstance(outcome, Ingested)
    assert (outcome.rows, outcome.files, outcome.blocks) == (6, 2, 3)
    slices = [event.new_data for event in chain.events() if isinstance(event, AddData)]
    assert [one.offset_interval.end for one in slices if one] == [2, 5]
    mark = chain.events()[-1].new_watermark
    again = await pull_root(deps, DATASET)
    assert isinstance(again, Ingested)
    assert (again.rows, again.blocks) == (0, 1), "a second look says that the snapshot still stands"
    assert chain.events()[-1].new_watermark > mark
    assert isinstance(await pull_root(deps, DATASET), NothingNew)


@pytest.mark.parametrize("commit", [1, 2])
async def test_a_crash_before_a_commit_loses_and_doubles_nothing(
    commit: int, begun: Callable[..., tuple[Chain, IngestDependencies]]
) -> None:
    chain, deps = begun(f"crash-{commit}")
    chain.crash_before = commit
    with pytest.raises(Crash):
        await pull_root(deps, DATASET)
    assert sum(isinstance(event, AddData) for event in chain.events()) == commit - 1
    outcome = await pull_root(deps, DATASET)
    assert isinstance(outcome, Ingested)
    data = [event.new_data for event in chain.events() if isinstance(event, AddData)]
    assert [(one.offset_interval.start, one.offset_interval.end) for one in data if one] == [(0, 2), (3, 5)]


def spoil(file: Path) -> None:
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:-9] + bytes(9))


@pytest.mark.parametrize(
    "merge", [SNAPSHOT, MergeLedger(primary_key=("carrier",)), MergeUpsertStream(primary_key=("carrier",))]
)
async def test_merged_slices_make_the_same_blocks_as_slices(
    merge: MergeStrategy,
    begun: Callable[..., tuple[Chain, IngestDependencies]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Carriers come, change, go and come back; now and then a merged file is damaged after it was planned with."""
    monkeypatch.setattr("odfd.ingest.segments.FAN_OUT", 3)
    lot = Random(7)
    chain, deps = begun("apart", merge)
    merged, quick = begun("merged", merge, SliceIndex(tmp_path / "segments"))
    damaged, most = 0, 0
    ingest = quick.engine.ingest

    async def watched(request: Any, *more: Any) -> Any:
        nonlocal damaged, most
        most = max(most, len(request.prev_data_paths))
        made = [path for path in request.prev_data_paths if str(tmp_path / "segments") in path]
        if made and lot.random() < 0.3:
            damaged += 1
            spoil(Path(lot.choice(made)))
        return await ingest(request, *more)

    monkeypatch.setattr(quick.engine, "ingest", watched)
    for number in range(3, 16):
        rows = [f"C{each},{lot.choice('xyz')}" for each in lot.sample(range(8), 5)]
        (tmp_path / "source" / f"9{number:02}.csv").write_text("\n".join(["carrier,name", *rows, ""]))
        for each in (deps, quick):
            # Planned again after a damage, a block still has the same time.
            await pull_root(replace(each, now=lambda: Instant(2 * 10**18)), DATASET)
    assert merged.events() == chain.events()
    assert damaged
    assert most < len([event for event in merged.events() if isinstance(event, AddData) and event.new_data])


@pytest.mark.parametrize("aware", [True, False])
async def test_a_ledger_that_is_given_only_what_can_matter_makes_the_same_blocks(
    aware: bool,
    begun: Callable[..., tuple[Chain, IngestDependencies]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """New keys, and once some of long ago; ``aware``: whether the engine knows what bounds are for."""
    monkeypatch.setattr("odfd.ingest.segments.SMALL_SLICE", 100)
    monkeypatch.setattr("odfd.ingest.slices.RECENT", 2)
    merge = MergeLedger(primary_key=("carrier",))
    chain, deps = begun("whole", merge)
    bounded, quick = begun("bounded", merge, SliceIndex(tmp_path / "segments"))
    asked: list[tuple[bool, int]] = []
    again = 0
    ingest = quick.engine.ingest

    async def watched(request: Any, *more: Any) -> Any:
        nonlocal again
        asked.append((request.prev_data_bounds is not None, len(request.prev_data_paths)))
        if not aware:
            known = msgspec.structs.replace(request, prev_data_bounds=None, prev_data_bounds_hash=None)
            return await ingest(known, *more)
        answer = await ingest(request, *more)
        again += isinstance(answer, HistoryNeeded)
        return answer

    monkeypatch.setattr(quick.engine, "ingest", watched)
    for number in range(3, 15):
        rows = "Z04,x\nZ05,other\n" if number == 12 else f"Z{number:02},x\n"
        (tmp_path / "source" / f"9{number:02}.csv").write_text(f"carrier,name\n{rows}")
        for each in (deps, quick):
            await pull_root(replace(each, now=lambda: Instant(2 * 10**18)), DATASET)
    assert bounded.events() == chain.events()
    if aware:
        assert again == 1, "the keys of long ago are looked for where they can be"
        assert max(count for _, count in asked) <= 5
    assert any(by_bounds for by_bounds, _ in asked)


@pytest.mark.parametrize(
    "merge",
    [SNAPSHOT, MergeAppend(), MergeLedger(primary_key=("carrier",)), MergeUpsertStream(primary_key=("carrier",))],
    ids=lambda merge: type(merge).__name__,
)
async def test_every_block_comes_again_from_its_bytes(
    begun: Callable[..., tuple[Chain, IngestDependencies]], merge: MergeStrategy
) -> None:
    """To the byte, from the state before it, whatever came after; the source is not asked."""
    chain, deps = begun("replayed", merge)
    deps.is_captured = lambda _: True
    await pull_root(deps, DATASET)
    folder = deps.settings.staging.parent.parent / "source"
    (folder / "3.csv").write_text("carrier,name\nAA,American Airlines\nOO,SkyWest\nDL,\n")
    await pull_root(deps, DATASET)
    for file in folder.glob("*.csv"):
        file.unlink()
    assert len(chain.captures) == 3
    found = [await replay(deps, DATASET, each) for each in chain.captures]
    assert [each.outcome for each in found] == ["same"] * 3, found
    other = msgspec.structs.replace(chain.captures[2], capture=chain.captures[0].capture)
    told = await replay(deps, DATASET, other)
    assert told.outcome == "differs"
