"""A workshop over memory stores, a small engine, and a committer that keeps the rules for authors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chain import instant
from chain.codec.blocks import encode_block
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.model.block import MetadataBlock
from chain.model.events import DatasetKind, MetadataEvent, Seed, SetPollingSource
from chain.model.source import FetchFilesGlob, MergeLedger, MergeStrategy, ReadCsv
from chain.multihash import Multihash
from chain.rules import check_block
from chain.state import load_state
from chain.store.base import Append, Head
from engines.contract import RowCounts
from odfd.datasets.commit import Commit
from odfd.ingest.driver import IngestDependencies
from odfd.ingest.settings import IngestSettings
from odfd.ingest.slices import SliceIndex
from odfd.store.pushes import Push
from worlds.fake_engine import FakeEngine
from worlds.memory_store import MemoryChains, MemoryObjects

DATASET = DatasetId.from_public_key(bytes(32))
START = instant.parse("2024-01-01T00:00:00Z")
READ = ReadCsv(header=True, ddl_schema=("event_time TIMESTAMP, city STRING, population BIGINT",))


@dataclass
class Bench:
    """The dataset under test and everything around it. ``before_commit`` may move the head first."""

    chains: MemoryChains
    objects: MemoryObjects
    folder: Path
    engine: Any = field(default_factory=FakeEngine)
    clock: int = START
    before_commit: Callable[[], None] = lambda: None
    commits: int = 0
    settle: float = 0.0
    settle_closed: float = 0.0
    counts: list[RowCounts] = field(default_factory=list)
    """What became of the rows of each transaction."""
    pushes: list[Push] = field(default_factory=list)
    index: SliceIndex = field(default_factory=SliceIndex)

    async def commit(self, commit: Commit) -> Sequence[Head]:
        (part,) = commit.parts
        rows, *others = part.records
        assert isinstance(rows, RowCounts)
        if not part.events:
            assert part.expected == self.chains.chain(DATASET).head()
            self.counts.append(rows)
            return [part.expected]
        self.before_commit()
        self.commits += 1
        self.counts.append(rows)
        head = self.append(part.expected, part.events, part.objects, part.time)
        pushes = [each for each in others if isinstance(each, Push)]
        self.pushes += [msgspec.structs.replace(each, sequence=head.sequence_number) for each in pushes]
        return [head]

    def find(self, dataset: DatasetId, push_id: str) -> Push | None:
        return next((push for push in reversed(self.pushes) if push.id == push_id), None)

    def newest(self, dataset: DatasetId) -> Push | None:
        return self.pushes[-1] if self.pushes else None

    def append(
        self,
        expected: Head | None,
        events: Sequence[MetadataEvent],
        objects: Sequence[Multihash] = (),
        system_time: instant.Instant = START,
    ) -> Head:
        reader = self.chains.chain(DATASET)
        state, head, blocks = load_state(reader), expected, []
        current = state.head == (expected.hash if expected else None)
        for event in events:
            content = MetadataBlock(
                system_time=system_time,
                prev_block_hash=head.hash if head else None,
                sequence_number=head.size if head else 0,
                event=event,
            )
            block = encode_block(content)
            if current and (broken := check_block(state, block, as_author=True)):
                raise Invalid("; ".join(each.message for each in broken), rule=broken[0].rule)
            state, head = state.advance(block), Head(block.hash, block.sequence_number)
            blocks.append(block)
        self.chains.commit([Append(dataset=DATASET, expected=expected, blocks=blocks, objects=objects)])
        assert head is not None
        return head

    def tick(self) -> instant.Instant:
        self.clock += instant.SECOND
        return instant.Instant(self.clock)

    @property
    def deps(self) -> IngestDependencies:
        settings = IngestSettings(staging=self.folder / "staging", settle=self.settle, settle_closed=self.settle_closed)
        return IngestDependencies(self.chains, self.objects, self.engine, self, self.tick, settings, self.index)

    def events(self) -> list[MetadataEvent]:
        reader = self.chains.chain(DATASET)
        head = reader.head()
        return [reader.block_at(number).event for number in range(head.size if head else 0)]

    def write(self, name: str, *rows: str) -> Path:
        path = self.folder / "source" / name
        path.write_text("\n".join(["event_time,city,population", *rows, ""]))
        return path

    def leftovers(self) -> list[Path]:
        return [*(self.folder / "staging").iterdir(), *(self.folder / "objects").glob(".*")]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    for name in ("staging", "source", "objects"):
        (tmp_path / name).mkdir()
    objects = MemoryObjects(tmp_path / "objects")
    return Bench(MemoryChains(objects), objects, tmp_path)


@pytest.fixture
def polling(bench: Bench) -> Callable[..., Bench]:
    """The bench with a root dataset that polls ``source/*.csv``; ``rows`` are those of ``01.csv``."""

    def make(merge: MergeStrategy | None = None, rows: Sequence[str] = ()) -> Bench:
        if rows:
            bench.write("01.csv", *rows)
        fetch = FetchFilesGlob(path=str(bench.folder / "source" / "*.csv"))
        source = SetPollingSource(
            fetch=fetch, read=READ, merge=merge or MergeLedger(primary_key=("event_time", "city"))
        )
        bench.append(None, [Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT), source])
        return bench

    return make
