"""Segments stand for their slices, and the index of slices reads what is new."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.codec.arrow_schema import schema_of
from chain.codec.blocks import encode_block
from chain.data.arrow_schema import from_arrow, to_arrow
from chain.data.evolution import as_in_force
from chain.data.parquet import write_slice
from chain.ids import DatasetId
from chain.instant import Instant
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
)
from chain.model.schema import DataField, DataSchema, Int32, Int64, Timestamp
from chain.model.source import MergeLedger, MergeSnapshot, MergeStrategy, MergeUpsertStream
from chain.multihash import ARROW0_SHA3_256, Multihash
from chain.state import load_state
from chain.store.base import Append, Rewrite
from engines.footers import footer, read_bounds
from engines.spark.ingest.history import History as EngineHistory
from engines.spark.ingest.history import SlicesMissing, ranges_of
from odfd.ingest.segments import FAN_OUT, SETS
from odfd.ingest.slices import SliceIndex
from worlds.memory_store import MemoryChains, MemoryObjects

# Segments stand for their slices: whatever a merge asks of earlier rows, both answer alike, and few files do it.

DATASET = DatasetId.from_public_key(bytes(32))
SYSTEM = [
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("op", pa.int32(), nullable=False),
    pa.field("system_time", pa.timestamp("ms", "UTC"), nullable=False),
    pa.field("event_time", pa.timestamp("ms", "UTC")),
]
FIRST = pa.schema([*SYSTEM, pa.field("city", pa.string()), pa.field("n", pa.float64())])
SECOND = pa.schema([*FIRST, pa.field("more", pa.string())])
LEDGER = MergeLedger(primary_key=("city",))
SNAPSHOT = MergeSnapshot(primary_key=("city",))
UPSERT = MergeUpsertStream(primary_key=("city", "n"))
Row = tuple[int, str | None, float | None]
"""Operation, key, value."""


@dataclass
class History:
    """A chain of slices, written as an ingest writes them."""

    folder: Path
    chains: MemoryChains
    objects: MemoryObjects
    offset: int = 0
    sizes: list[int] = field(default_factory=list)
    """Of the chain before each slice."""

    def append(self, *events: MetadataEvent, names: Sequence[Multihash] = ()) -> None:
        chain = self.chains.chain(DATASET)
        expected = head = chain.head()
        blocks = []
        for event in events:
            content = MetadataBlock(
                system_time=Instant(0),
                prev_block_hash=blocks[-1].hash if blocks else head.hash if head else None,
                sequence_number=len(blocks) + (head.size if head else 0),
                event=event,
            )
            blocks.append(encode_block(content))
        self.chains.commit([Append(dataset=DATASET, expected=expected, blocks=blocks, objects=names)])

    def begin(self) -> None:
        schema = SetDataSchema(schema=from_arrow(FIRST))
        self.append(Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT), schema)

    def enlarge(self) -> None:
        self.append(SetDataSchema(schema=from_arrow(SECOND)))

    def add(self, rows: Sequence[Row]) -> None:
        schema = to_arrow(schema_of(self.state.schema))
        start, self.offset = self.offset, self.offset + len(rows)
        columns: dict[str, Any] = {
            "offset": range(start, self.offset),
            "op": [row[0] for row in rows],
            "system_time": [0] * len(rows),
            "event_time": [0] * len(rows),
            "city": [row[1] for row in rows],
            "n": [row[2] for row in rows],
            "more": [None] * len(rows),
        }
        arrays = [pa.array(columns[each.name], each.type) for each in schema]
        path = self.folder / "slice"
        path.unlink(missing_ok=True)
        write_slice(pa.Table.from_arrays(arrays, schema=schema), path)
        raw = path.read_bytes()
        data = DataSlice(
            logical_hash=Multihash.from_digest(ARROW0_SHA3_256, bytes(32)),
            physical_hash=self.objects.add_bytes(raw),
            offset_interval=OffsetInterval(start=start, end=self.offset - 1),
            size=len(raw),
        )
        head = self.chains.chain(DATASET).head()
        assert head is not None
        self.sizes.append(head.size)
        added = AddData(prev_offset=start - 1 if start else None, new_data=data)
        self.append(added, names=[data.physical_hash])

    def cut(self, count: int) -> None:
        """Give up the last slices."""
        head = self.chains.chain(DATASET).head()
        assert head is not None
        self.chains.rewrite(Rewrite(dataset=DATASET, expected=head, keep=self.sizes[-count]))
        del self.sizes[-count:]
        last = self.state.last_offset
        self.offset = 0 if last is None else last + 1

    @property
    def state(self) -> Any:
        return load_state(self.chains.chain(DATASET))

    def parts(self, index: SliceIndex, merge: MergeStrategy) -> list[tuple[Multihash, Path]]:
        return index.parts(self.chains.chain(DATASET), self.state, self.objects, merge)

    def rows(self, index: SliceIndex, merge: MergeStrategy) -> pa.Table:
        schema = to_arrow(schema_of(self.state.schema))
        tables = [schema.empty_table()]
        for name, path in self.parts(index, merge):
            assert Multihash.sha3_256(path.read_bytes()) == name
            tables.append(as_in_force(pq.read_table(path), schema))
        return pa.concat_tables(tables)


@contextmanager
def history() -> Iterator[History]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "objects").mkdir()
        objects = MemoryObjects(folder / "objects")
        made = History(folder, MemoryChains(objects), objects)
        made.begin()
        yield made


def asked(rows: pa.Table, merge: MergeStrategy) -> Any:
    """What the strategy may ask of earlier rows, by its definition: row by row, with Python's eyes."""
    listed = [tuple(map(repr, row.values())) for row in rows.to_pylist()]
    if isinstance(merge, MergeLedger):
        return sorted(listed)
    newest: dict[tuple[str, ...], Any] = {}
    for row in sorted(rows.to_pylist(), key=lambda row: row["offset"]):
        # Zeros of both signs are one key where a merge compares values.
        key = tuple(repr(row[name] + 0.0 if isinstance(row[name], float) else row[name]) for name in merge.primary_key)
        newest[key] = tuple(map(repr, row.values()))
    return newest


ROW = st.tuples(
    st.integers(0, 3),
    st.sampled_from([None, "", "a", "b", "ä", "c" * 300]),
    st.sampled_from([None, 0.0, -0.0, float("nan"), 1.5, float("inf")]),
)
STEP = st.one_of(
    st.lists(ROW, min_size=1, max_size=4),
    st.sampled_from(["look", "again", "damage", "lose", "spoil the set", "enlarge"]),
    st.integers(1, 30),
)


@pytest.mark.slow
@given(st.lists(STEP, max_size=60), st.sampled_from([LEDGER, SNAPSHOT, UPSERT]), st.randoms(use_true_random=False))
def test_segments_answer_as_slices_do_whatever_happens(
    steps: list[Any], merge: MergeStrategy, lot: random.Random
) -> None:
    with history() as past:
        folder = past.folder / "segments"
        index = SliceIndex(folder)
        for step in [*steps, "look"]:
            files = [file for file in folder.rglob("*") if file.is_file()]
            if isinstance(step, list):
                past.add(step)
            elif isinstance(step, int):
                if past.sizes:
                    past.cut(min(step, len(past.sizes)))
            elif step == "enlarge":
                if past.state.schema.schema.fields[-1].name != "more":
                    past.enlarge()
            elif step == "again":
                index = SliceIndex(folder)
            elif step == "look":
                index.mend(DATASET)  # as after a fault, which a damaged file brings
                assert asked(past.rows(index, merge), merge) == asked(past.rows(SliceIndex(), merge), merge)
            elif files:
                victim = lot.choice(files)
                if step == "lose":
                    victim.unlink()
                elif (victim.name == SETS) == (step == "spoil the set"):
                    victim.chmod(0o644)
                    raw = bytearray(victim.read_bytes())
                    raw[lot.randrange(len(raw))] ^= 1 << lot.randrange(8)
                    victim.write_bytes(raw)


class Counted:
    """Counts blocks that are read."""

    def __init__(self, reader: Any) -> None:
        self._reader, self.reads = reader, 0

    def block_at(self, number: int) -> Any:
        self.reads += 1
        return self._reader.block_at(number)

    def last_of(self, kinds: Any, before: int | None = None) -> Any:
        self.reads += 1
        return self._reader.last_of(kinds, before)


@pytest.mark.slow
@pytest.mark.parametrize("merge", [LEDGER, SNAPSHOT])
def test_the_300th_ingest_is_given_few_files_and_reads_few_blocks(merge: MergeStrategy) -> None:
    with history() as past:
        index, most, reads, parts = SliceIndex(past.folder / "segments"), 0, 0, []
        for number in range(300):
            past.add([(0, f"city {number % 20}", float(number))])
            reader = Counted(past.chains.chain(DATASET))
            parts = index.parts(reader, past.state, past.objects, merge)  # type: ignore[arg-type]
            most, reads = max(most, len(parts)), max(reads, reader.reads)
        assert most <= (FAN_OUT - 1) * 3
        assert reads <= 4
        made = SliceIndex(past.folder / "segments")
        assert [name for name, _ in past.parts(made, merge)] == [name for name, _ in parts], "a restart finds them"
        if merge is SNAPSHOT:
            assert sum(pq.read_metadata(path).num_rows for _, path in parts) <= 300 * 2 // 3, "old rows of a key go"


def test_large_slices_of_a_ledger_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odfd.ingest.segments.SMALL_SLICE", 100)
    with history() as past:
        index = SliceIndex(past.folder / "segments")
        for _ in range(20):
            past.add([(0, "x", 1.0)])
        assert len(past.parts(index, LEDGER)) == 20
        assert not list((past.folder / "segments").rglob("*"))


@pytest.mark.slow
@pytest.mark.parametrize("merge", [SNAPSHOT, UPSERT])
def test_slices_of_any_size_are_merged_where_the_newest_rows_count(
    merge: MergeStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many files and bytes are given late as early: they follow the keys, and not how often they changed."""
    monkeypatch.setattr("odfd.ingest.segments.BASE", 500)  # all slices are many times larger
    with history() as past:
        index, given = SliceIndex(past.folder / "segments"), []
        for number in range(300):
            past.add([(0, f"city {number % 20}", float(number % 4)) for _ in range(1 + number % 3)])
            paths = [path for _, path in past.parts(index, merge)]
            given.append((len(paths), sum(path.stat().st_size for path in paths)))
        early, late = given[40:80], given[-40:]
        for measure in range(2):
            assert max(each[measure] for each in late) <= 1.2 * max(each[measure] for each in early)


@pytest.mark.slow
@pytest.mark.parametrize("restart", [False, True])
def test_of_a_ledger_of_large_slices_as_much_is_given_and_read_late_as_early(
    restart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files given, bytes given, footers and blocks read, by the number of ingests before."""
    monkeypatch.setattr("odfd.ingest.segments.SMALL_SLICE", 100)
    monkeypatch.setattr("odfd.ingest.slices.UNSAVED", 8)
    footers = 0

    def counted(path: Path) -> Any:
        nonlocal footers
        footers += 1
        return footer(path)

    monkeypatch.setattr("odfd.ingest.slices.footer", counted)
    with history() as past:
        index, costs = SliceIndex(past.folder / "segments"), []
        for number in range(300):
            past.add([(0, f"city {number}", float(number))])
            reader, footers = Counted(past.chains.chain(DATASET)), 0
            if restart and number % 100 == 99:
                index = SliceIndex(past.folder / "segments")
            earlier = index.earlier(reader, past.state, past.objects, LEDGER)  # type: ignore[arg-type]
            size = sum(path.stat().st_size for _, path in earlier.files)
            costs.append((len(earlier.files), size, footers, reader.reads))
            if number % 50 == 0:
                everything = [*earlier.older(None), *earlier.files]
                assert [name for name, _ in everything] == [name for name, _ in past.parts(SliceIndex(), LEDGER)]
        early, late = costs[20:120], costs[-100:]
        for measure in range(4):
            assert max(each[measure] for each in late) <= 1.2 * max(each[measure] for each in early)
        assert max(each[0] for each in costs) == 15


KEYS = st.integers(0, 30)
LEDGER_STEP = st.one_of(st.lists(KEYS, min_size=1, max_size=3), st.sampled_from(["again", "cut", "damage"]))


@pytest.mark.slow
@given(
    st.lists(
        st.one_of(st.lists(KEYS, min_size=1, max_size=3), st.sampled_from(["again", "cut", "damage"])), max_size=60
    ),
    st.lists(KEYS, min_size=1, max_size=2),
)
def test_no_slice_that_may_hold_a_key_is_left_out(steps: list[Any], batch: list[int]) -> None:
    """Whatever the slices, and whatever becomes of the file of bounds: also after a cut, a restart, a damage."""
    wanted = {f"city {number:02}" for number in batch}
    keys = pa.table({"city": sorted(wanted)})
    with pytest.MonkeyPatch.context() as patch, history() as past:
        patch.setattr("odfd.ingest.segments.SMALL_SLICE", 100)
        patch.setattr("odfd.ingest.slices.RECENT", 2)
        index = SliceIndex(past.folder / "segments")
        for step in [*steps, [0]]:
            if step == "again":
                index = SliceIndex(past.folder / "segments")
            elif step == "cut":
                if past.sizes:
                    past.cut(1 + len(past.sizes) // 3)
            elif step == "damage":
                for file in (past.folder / "segments").rglob("*"):
                    if file.is_file():
                        file.chmod(0o644)
                        file.write_bytes(file.read_bytes()[:-9] + bytes(9))
                index.mend(DATASET)
            else:
                past.add([(0, f"city {number:02}", 1.0) for number in step])
            chain = past.chains.chain(DATASET)
            earlier = index.earlier(chain, past.state, past.objects, LEDGER)
            schema = to_arrow(schema_of(past.state.schema))
            there = {str(name) for name, path in past.parts(SliceIndex(), LEDGER) if wanted & cities(path)}
            given_ = {str(name) for name, _ in earlier.files}
            asked_for: tuple[str, ...] = ()
            if earlier.bounds is not None:
                names, paths = [name for name, _ in earlier.files], [path for _, path in earlier.files]
                engine = EngineHistory(schema, paths, names, read_bounds(earlier.bounds[1]))
                try:
                    engine.overlapping(ranges_of(keys))
                except SlicesMissing as missing:
                    asked_for = missing.names
            assert there <= given_ | set(asked_for)
            assert set(asked_for) == {str(name) for name, _ in earlier.older(asked_for)}


def cities(path: Path) -> set[str]:
    return set(pq.read_table(path, columns=["city"]).column("city").to_pylist())


# The index of slices reads what is new, and notices a chain that was replaced.


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


TIMED_LEDGER = MergeLedger(primary_key=("event_time",))


def names_of(index: SliceIndex, bench: Any, reader: Any, state: Any) -> list[Multihash]:
    return [name for name, _ in index.parts(reader, state, bench.objects, TIMED_LEDGER)]


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
