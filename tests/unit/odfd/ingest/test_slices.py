"""The index of slices reads what is new, and notices a chain that was replaced."""

from __future__ import annotations

from typing import Any

from chain.ids import DatasetId
from chain.model.events import AddData, DatasetKind, DataSlice, OffsetInterval, Seed, SetDataSchema, SetInfo
from chain.model.schema import DataField, DataSchema, Int32, Int64, Timestamp
from chain.model.source import MergeLedger
from chain.multihash import ARROW0_SHA3_256, Multihash
from chain.state import load_state
from odfd.ingest.slices import SliceIndex

DATASET = DatasetId.from_public_key(bytes(32))


class Counting:
    def __init__(self, reader: Any) -> None:
        self.reader, self.reads = reader, 0

    def block_at(self, number: int) -> Any:
        self.reads += 1
        return self.reader.block_at(number)

    def last_of(self, kinds: Any, before: int | None = None) -> Any:
        self.reads += 1
        return self.reader.last_of(kinds, before)


def added(bench: Any, number: int) -> Multihash:
    content = f"slice {number}".encode()
    name = bench.objects.add_bytes(content)
    data = DataSlice(
        logical_hash=Multihash.from_digest(ARROW0_SHA3_256, bytes(32)),
        physical_hash=name,
        offset_interval=OffsetInterval(start=number, end=number),
        size=len(content),
    )
    head = bench.chains.chain(DATASET).head()
    bench.append(head, [AddData(prev_offset=number - 1 if number else None, new_data=data)], [name])
    return name


LEDGER = MergeLedger(primary_key=("event_time",))


def names_of(index: SliceIndex, bench: Any, reader: Any, state: Any) -> list[Multihash]:
    return [name for name, _ in index.parts(reader, state, bench.objects, LEDGER)]


def test_only_new_blocks_are_read(bench: Any) -> None:
    schema = DataSchema(
        fields=(
            DataField(name="offset", type=Int64()),
            DataField(name="op", type=Int32()),
            DataField(name="system_time", type=Timestamp()),
            DataField(name="event_time", type=Timestamp()),
        )
    )
    bench.append(None, [Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT), SetDataSchema(schema=schema)])
    reader, index = Counting(bench.chains.chain(DATASET)), SliceIndex()
    state = load_state(bench.chains.chain(DATASET))
    assert names_of(index, bench, reader, state) == []
    names = [added(bench, number) for number in range(20)]
    state = load_state(bench.chains.chain(DATASET))
    assert names_of(index, bench, reader, state) == names
    names.append(added(bench, 20))
    bench.append(bench.chains.chain(DATASET).head(), [SetInfo(description="x")])
    state, reader.reads = load_state(bench.chains.chain(DATASET)), 0
    assert names_of(index, bench, reader, state) == names
    assert reader.reads <= 5

    bench.chains.drop(DATASET)
    bench.append(None, [Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT), SetDataSchema(schema=schema)])
    other = added(bench, 0)
    reader = Counting(bench.chains.chain(DATASET))
    assert names_of(index, bench, reader, load_state(bench.chains.chain(DATASET))) == [other]
