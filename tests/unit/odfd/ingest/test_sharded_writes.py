"""What a rendition contains does not depend on the number of its shards, nor on the columns that decide them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as some

from chain.data.arrow_schema import to_arrow
from chain.data.operations import APPEND, CORRECT_FROM, CORRECT_TO, RETRACT
from chain.data.parquet import open_slice, write_slice
from chain.data.partition import shards_of
from chain.errors import NotFound, Refused
from chain.instant import Instant, from_millis
from chain.model import schema as odf
from chain.model.block import Block
from chain.model.events import AddData, DatasetKind, Seed, SetDataSchema
from chain.state import ChainState
from chain.statements.keys import SigningKey
from chain.store.base import Head
from chain.store.database import open_database
from chain.store.objects import DiskObjects
from odfd.ingest.copying import copied_group, groups_after
from odfd.ingest.sharded_writes import divide
from odfd.ingest.slices import keep_slice
from odfd.trust.signing.owner_commit import author_blocks

TIMES = odf.Timestamp(unit=odf.TimeUnit.MILLISECOND, timezone="UTC")
SCHEMA = odf.DataSchema(
    fields=(
        odf.DataField(name="offset", type=odf.Int64()),
        odf.DataField(name="op", type=odf.Int32()),
        odf.DataField(name="system_time", type=TIMES),
        odf.DataField(name="event_time", type=TIMES),
        odf.DataField(name="key", type=odf.Option(inner=odf.String())),
        odf.DataField(name="number", type=odf.Option(inner=odf.Int64())),
        odf.DataField(name="value", type=odf.Option(inner=odf.Int64())),
    )
)
KEYS = ("key", "number")
Change = tuple[int, tuple[str | None, int | None], int | None]


class Chain:
    """Blocks in memory, which keep the rules for authors."""

    def __init__(self, name: int, events: Sequence[Any], time: Instant) -> None:
        dataset = SigningKey(bytes([name + 1]) * 32).dataset_id
        self.blocks: list[Block] = []
        self.state = ChainState.EMPTY
        self.add((Seed(dataset_id=dataset, dataset_kind=DatasetKind.ROOT), *events), time)

    def add(self, events: Sequence[Any], time: Instant) -> None:
        for block in author_blocks(self.state, events, time):
            self.blocks.append(block)
            self.state = self.state.advance(block)

    def head(self) -> Head | None:
        return Head(self.blocks[-1].hash, len(self.blocks) - 1)

    def block_at(self, number: int) -> Block:
        if not 0 <= number < len(self.blocks):
            raise NotFound("no block", rule="block-number")
        return self.blocks[number]

    def data(self) -> Iterator[AddData]:
        for block in self.blocks:
            if isinstance(block.event, AddData):
                yield block.event


@some.composite
def histories(draw: some.DrawFn) -> list[list[Change]]:
    """Transactions of rows: new ones, corrections in pairs, retractions."""
    key = some.tuples(some.none() | some.sampled_from("abcdefgh"), some.none() | some.integers(0, 3))
    value = some.none() | some.integers(0, 9)
    batch = some.lists(some.tuples(some.sampled_from("+-c"), key, value, value), max_size=6)
    made = []
    for rows in draw(some.lists(batch, min_size=1, max_size=4)):
        changes: list[Change] = []
        for kind, own, before, after in rows:
            if kind == "c":
                changes += [(CORRECT_FROM, own, before), (CORRECT_TO, own, after)]
            else:
                changes.append((APPEND if kind == "+" else RETRACT, own, after))
        made.append(changes)
    return made


class Store:
    """Objects in a folder, and the writes to them."""

    def __init__(self, folder: Path) -> None:
        self.database = open_database(folder / "db")
        self.objects = DiskObjects(folder / "objects", self.database)
        settings = SimpleNamespace(staging=folder, disk_reserve=0)
        self.deps: Any = SimpleNamespace(objects=self.objects, settings=settings)

    def event(self, state: ChainState, changes: Sequence[Change], number: int) -> AddData:
        """One transaction as it is planned for the first shard."""
        mark = from_millis(1000 + number)
        if not changes:
            return AddData(prev_offset=state.last_offset, new_watermark=mark)
        start = state.next_offset
        columns = {
            "offset": list(range(start, start + len(changes))),
            "op": [change[0] for change in changes],
            "system_time": [1000 + number] * len(changes),
            "event_time": [number] * len(changes),
            "key": [change[1][0] for change in changes],
            "number": [change[1][1] for change in changes],
            "value": [change[2] for change in changes],
        }
        arrow = to_arrow(SCHEMA).remove_metadata()
        rows = pa.table([pa.array(columns[field.name]).cast(field.type) for field in arrow], schema=arrow)
        path = self.objects.stage()
        write_slice(rows, path)
        data = keep_slice(self.objects, path, SCHEMA, "offset")
        return AddData(prev_offset=state.last_offset, new_data=data, new_watermark=mark)

    def rows(self, event: AddData) -> pa.Table:
        assert event.new_data is not None
        with open_slice(self.objects.content(event.new_data.physical_hash)) as file:
            return file.read(SCHEMA_NAMES)

    def said(self, chain: Chain) -> list[tuple[Any, ...]]:
        """All rows of a chain in order, without offsets; their offsets count up from 0."""
        tables = [self.rows(event) for event in chain.data() if event.new_data is not None]
        if not tables:
            return []
        whole = pa.concat_tables(tables)
        assert whole.column("offset").to_pylist() == list(range(whole.num_rows))
        return list(zip(*(whole.column(name).to_pylist() for name in SCHEMA_NAMES[1:]), strict=True))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    made = Store(tmp_path_factory.mktemp("store"))
    yield made
    made.database.close()


SCHEMA_NAMES = [field.name for field in SCHEMA.fields]


def sharded(store: Store, count: int, by: Sequence[str], history: Sequence[Sequence[Change]]) -> list[Chain]:
    chains = [Chain(place, (SetDataSchema(schema=SCHEMA),), from_millis(900)) for place in range(count)]
    for number, changes in enumerate(history, start=1):
        write(store, chains, by, [store.event(chains[0].state, changes, number)], from_millis(1000 + number))
    return chains


def write(store: Store, chains: Sequence[Chain], by: Sequence[str], events: Sequence[Any], time: Instant) -> None:
    made = divide(store.objects, [chain.state for chain in chains], by, events)
    for chain, (own, _) in zip(chains, made, strict=True):
        chain.add(own, time)


def by_key(said: Sequence[Sequence[tuple[Any, ...]]]) -> dict[Any, list[Any]]:
    """What is said of each key, in order: all that a merge and a fold depend on."""
    found: dict[Any, list[Any]] = {}
    for rows in said:
        for row in rows:
            found.setdefault(row[3:5], []).append(row)
    return found


LAYOUTS = some.tuples(some.integers(1, 6), some.sampled_from([("key",), ("number",), KEYS]))


@pytest.mark.slow
@given(history=histories(), layout=LAYOUTS)
def test_shards_say_of_each_key_what_one_chain_says(
    store: Store, history: list[list[Change]], layout: tuple[int, tuple[str, ...]]
) -> None:
    (one,) = sharded(store, 1, (), history)
    count, by = layout
    chains = sharded(store, count, by, history)
    said = [store.said(chain) for chain in chains]
    assert by_key(said) == by_key([store.said(one)])
    assert sum((Counter(rows) for rows in said), Counter()) == Counter(store.said(one))
    for place, chain in enumerate(chains):
        assert chain.state.watermark == one.state.watermark
        for event in chain.data():
            if event.new_data is not None:
                assert set(shards_of(store.rows(event), by, count).tolist()) == {place}


@pytest.mark.slow
@given(history=histories(), first=LAYOUTS, second=LAYOUTS)
def test_blocks_are_copied_from_shards_to_shards_without_a_difference(
    store: Store, history: list[list[Change]], first: tuple[int, tuple[str, ...]], second: tuple[int, tuple[str, ...]]
) -> None:
    source = sharded(store, *first, history)
    count, by = second
    target = [Chain(place, (SetDataSchema(schema=SCHEMA),), from_millis(900)) for place in range(count)]
    readers: Any = source
    for group in groups_after(readers, 2 * len(source), by_time=count > 1):
        copied = copied_group(store.deps, group, target[0].state)
        write(store, target, by, copied.events, group.time)
    assert by_key(list(map(store.said, target))) == by_key(list(map(store.said, source)))
    assert {chain.state.watermark for chain in target} == {chain.state.watermark for chain in source}


def test_a_correction_that_would_move_a_row_is_refused(store: Store) -> None:
    moves: list[Change] = [(CORRECT_FROM, ("a", 0), 1), (CORRECT_TO, ("a", 0), 2)]
    with pytest.raises(Refused, match="moves a row to another shard"):
        sharded(store, 6, ("value",), [moves])
