"""A world in memory: a root dataset that grows, a derived one over it, and the small engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from chain.codec.blocks import encode_block
from chain.data.arrow_schema import from_arrow
from chain.data.logical_hash import logical_hash_file
from chain.data.parquet import open_slice, write_slice
from chain.errors import Conflict, Invalid
from chain.ids import DatasetId
from chain.instant import MILLISECOND, Instant
from chain.model.block import MetadataBlock
from chain.model.events import (
    AddData,
    DatasetKind,
    DataSlice,
    MetadataEvent,
    OffsetInterval,
    Seed,
    SetDataSchema,
    SetInfo,
    SetTransform,
    TransformInput,
)
from chain.model.source import SqlQueryStep, TransformSql
from chain.multihash import Multihash
from chain.rules.check import check_block
from chain.state import load_state
from chain.store.base import Append, Head, UpperMove
from engines.contract import Engine
from engines.provision.warm import EnginePool
from odfd.datasets.commit import Commit
from odfd.transform.driver import TransformDependencies
from worlds.fake_engine import FakeEngine
from worlds.memory_store import MemoryChains, MemoryObjects

ROOT = DatasetId.from_public_key(b"r" * 32)
DERIVED = DatasetId.from_public_key(b"d" * 32)
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("op", pa.int32(), nullable=False),
        pa.field("system_time", pa.timestamp("ms", "UTC"), nullable=False),
        pa.field("event_time", pa.timestamp("ms", "UTC")),
        pa.field("k", pa.int64()),
    ]
)


class World:
    """Chains, objects and a committer that keeps the rules for authors."""

    def __init__(
        self, folder: Path, engine: Engine | None = None, root: DatasetId = ROOT, derived: DatasetId = DERIVED
    ) -> None:
        self.root_id, self.derived_id = root, derived
        (folder / "objects").mkdir(parents=True)
        (folder / "staging").mkdir()
        self.objects = MemoryObjects(folder / "objects")
        self.chains = MemoryChains(self.objects)
        self.folder = folder
        self.time = 1_700_000_000_000
        self.before_commit: list[Sequence[MetadataEvent]] = []
        self.interfere: MetadataEvent | None = None
        """Committed by somebody else right before the next commit."""
        self.engine = engine or FakeEngine()
        self.deps = TransformDependencies(
            chains=self.chains,
            objects=self.objects,
            engines=EnginePool({"spark": (self.engine,)}),
            committer=self,  # type: ignore[arg-type]
            now=self.now,
            staging=folder / "staging",
        )

    def now(self) -> Instant:
        self.time += 1
        return Instant(self.time * MILLISECOND + 123)

    async def commit(self, commit: Commit) -> Sequence[Head]:
        (part,) = commit.parts
        assert part.upper == UpperMove(self.chains.upper(part.dataset)) or self.interfere is not None
        if self.interfere is not None:
            event, self.interfere = self.interfere, None
            self.append(part.dataset, event)
        return [self.append_at(part.dataset, part.expected, part.events, part.objects, part.time)]

    def append(self, dataset: DatasetId, *events: MetadataEvent, objects: Sequence[Multihash] = ()) -> Head:
        time = Instant(self.now() // MILLISECOND * MILLISECOND)
        return self.append_at(dataset, self.chains.chain(dataset).head(), events, objects, time)

    def append_at(
        self,
        dataset: DatasetId,
        expected: Head | None,
        events: Sequence[MetadataEvent],
        objects: Sequence[Multihash],
        system_time: Instant,
    ) -> Head:
        state = load_state(self.chains.chain(dataset))
        if state.head != (expected.hash if expected else None):
            raise Conflict("the head moved")
        blocks = []
        for event in events:
            content = MetadataBlock(
                system_time=system_time,
                prev_block_hash=state.head,
                sequence_number=state.size,
                event=event,
            )
            block = encode_block(content)
            if broken := check_block(state, block, as_author=True):
                raise Invalid(f"{broken[0].rule}: {broken[0].message}")
            blocks.append(block)
            state = state.advance(block)
        self.chains.commit([Append(dataset=dataset, expected=expected, blocks=blocks, objects=objects)])
        return Head(blocks[-1].hash, blocks[-1].sequence_number)

    def found(
        self,
        query: str = "select * from x",
        alias: str | None = "x",
        rows: Sequence[int] = (),
        watermark: int | None = None,
    ) -> None:
        """Both chains, and the first data of the root if there are rows."""
        self.append(self.root_id, Seed(dataset_id=self.root_id, dataset_kind=DatasetKind.ROOT))
        self.derive(query, alias)
        if rows:
            self.add_rows(rows, watermark)

    def derive(self, query: str, alias: str | None = "x") -> None:
        transform = TransformSql(engine="spark", queries=(SqlQueryStep(query=query),))
        self.append(
            self.derived_id,
            Seed(dataset_id=self.derived_id, dataset_kind=DatasetKind.DERIVATIVE),
            SetTransform(inputs=(TransformInput(dataset_ref=str(self.root_id), alias=alias),), transform=transform),
        )

    def add_rows(self, values: Sequence[int], watermark: int | None = None) -> Head:
        """One data block of the root; no rows: a heartbeat."""
        state = load_state(self.chains.chain(self.root_id))
        events: list[MetadataEvent] = []
        if state.schema is None:
            events.append(SetDataSchema(schema=from_arrow(SCHEMA)))
        data = self.slice_of(values, state.next_offset) if values else None
        stated = state.watermark if watermark is None else Instant(watermark * MILLISECOND)
        events.append(
            AddData(
                prev_offset=state.last_offset,
                new_data=data,
                new_watermark=stated,
            )
        )
        return self.append(self.root_id, *events, objects=[data.physical_hash] if data else [])

    def add_note(self, text: str) -> Head:
        return self.append(self.root_id, SetInfo(description=text))

    def slice_of(self, values: Sequence[int], offset: int) -> DataSlice:
        count = len(values)
        table = pa.table(
            [
                pa.array(range(offset, offset + count), pa.int64()),
                pa.array([0] * count, pa.int32()),
                pa.array([self.time] * count, pa.timestamp("ms", "UTC")),
                pa.array([1000 * value for value in values], pa.timestamp("ms", "UTC")),
                pa.array(values, pa.int64()),
            ],
            schema=SCHEMA,
        )
        return self.keep(table)

    def keep(self, table: pa.Table) -> DataSlice:
        path = self.objects.stage()
        write_slice(table, path)
        logical, size = logical_hash_file(path), path.stat().st_size
        offsets = table.column("offset").to_pylist()
        return DataSlice(
            logical_hash=logical,
            physical_hash=self.objects.add_file(path),
            offset_interval=OffsetInterval(start=offsets[0], end=offsets[-1]),
            size=size,
        )

    def rows(self, data: DataSlice) -> pa.Table:
        with open_slice(self.objects.path(data.physical_hash)) as file:
            return file.read()
