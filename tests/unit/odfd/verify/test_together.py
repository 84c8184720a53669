"""Small slices looked at together get the answers that each gets by itself, whatever is wrong with which of them."""

from __future__ import annotations

import dataclasses
import io
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.data.logical_hash import logical_hash_file
from chain.errors import Invalid, NotFound
from chain.instant import Instant
from chain.model.block import Block
from chain.model.events import AddData, Checkpoint, DataSlice, OffsetInterval, Vocab
from chain.multihash import ARROW0_SHA3_256, Multihash
from odfd.verify import batch
from odfd.verify.batch import sound_of
from odfd.verify.objects import check_event
from odfd.verify.terms import ChainTerms

MADE = 1_700_000_000
FAR = 65_000_000_000
"""The year 4029, whose nanoseconds no int64 holds."""
OTHER = Multihash.from_digest(ARROW0_SHA3_256, bytes(32))
TERMS = ChainTerms(vocab=Vocab())


class Shelf:
    """Objects in memory, but for those that are said to lie in files."""

    def __init__(self) -> None:
        self.held: dict[Multihash, Path | bytes] = {}

    def content(self, name: Multihash) -> Path | bytes:
        if name not in self.held:
            raise NotFound("not here", rule="object-missing")
        return self.held[name]

    def has(self, name: Multihash) -> bool:
        raise AssertionError(name)

    size = path = has


@dataclasses.dataclass
class Made:
    """A slice on its way to being wrong."""

    table: pa.Table
    start: int
    row_group: int = 1 << 20
    made: int = MADE
    size: int | None = None
    rows: int | None = None
    claimed: Multihash | None = None
    checkpoint: Multihash | None = None
    raw: Callable[[bytes], bytes] = lambda raw: raw
    gone: bool = False


def put(made: Made, name: str, values: pa.Array) -> None:
    place = made.table.schema.get_field_index(name)
    made.table = made.table.set_column(place, pa.field(name, values.type), values)


def change(name: str, new: object) -> Callable[[Made, random.Random], None]:
    def wrong(made: Made, lot: random.Random) -> None:
        values = made.table[name].to_pylist()
        values[lot.randrange(len(values))] = new
        put(made, name, pa.array(values, made.table.schema.field(name).type))

    return wrong


def cast(name: str, kind: pa.DataType) -> Callable[[Made, random.Random], None]:
    return lambda made, _: put(made, name, made.table[name].combine_chunks().cast(kind))


def beyond(made: Made, lot: random.Random) -> None:
    """Offsets that no int64 holds."""
    made.start = (1 << 63) + 5
    kind, first = lot.choice([(pa.uint64(), made.start), (pa.int64(), made.start - (1 << 64))])
    put(made, "offset", pa.array(range(first, first + made.table.num_rows), kind))


def grouped_structs(made: Made, _: random.Random) -> None:
    """Whose hash is another when they lie in one row group (see ``arrow0_values``)."""
    made.table = pa.concat_tables([made.table.slice(0, 1)] * 4)
    put(made, "offset", pa.array(range(made.start, made.start + 4), pa.int64()))
    made.table = made.table.append_column("struct", pa.array([{"x": 5}, {"x": None}, None, {"x": 7}]))
    made.row_group = 1


def field(name: str, value: object) -> Callable[[Made, random.Random], None]:
    return lambda made, _: setattr(made, name, value)


def add(name: str, values: Callable[[int], pa.Array]) -> Callable[[Made, random.Random], None]:
    def wrong(made: Made, _: random.Random) -> None:
        made.table = made.table.append_column(name, values(made.table.num_rows))

    return wrong


def structs(rows: int) -> pa.Array:
    return pa.array([[{"x": 1}, None, {"x": None}][row % 3] for row in range(rows)])


WAYS: list[Callable[[Made, random.Random], None]] = [
    field("made", MADE),
    field("made", FAR),
    field("made", 0),
    field("size", 5),
    field("rows", 2),
    field("rows", 5000),
    field("claimed", OTHER),
    field("row_group", 1),
    field("gone", True),
    field("raw", lambda raw: raw[:-9]),
    field("raw", lambda _: b""),
    field("checkpoint", OTHER),
    change("offset", 1),
    change("offset", -1),
    change("offset", None),
    change("op", 3),
    change("op", 4),
    change("op", None),
    change("system_time", (MADE + 1) * 1000),
    change("system_time", None),
    change("text", ""),
    cast("offset", pa.uint64()),
    cast("op", pa.uint8()),
    cast("op", pa.int64()),
    cast("system_time", pa.timestamp("us", "UTC")),
    beyond,
    add("numbers", lambda rows: pa.array([[n, None][: n % 3] for n in range(rows)], pa.list_(pa.int32()))),
    add("offset", lambda rows: pa.array(range(rows), pa.int64())),
    add("odd", lambda rows: pa.array([1] * rows, pa.duration("ms"))),
    add("nothing", lambda rows: pa.nulls(rows)),
    add("struct", structs),
    grouped_structs,
]


def slice_of(lot: random.Random, start: int) -> Made:
    rows = lot.randrange(1, 6)
    columns = {
        "offset": pa.array(range(start, start + rows), pa.int64()),
        "op": pa.array([lot.randrange(4) for _ in range(rows)], pa.int32()),
        "system_time": pa.array([(MADE - lot.randrange(2)) * 1000] * rows, pa.timestamp("ms", "UTC")),
        "event_time": pa.array([lot.randrange(10**12) for _ in range(rows)], pa.timestamp("ms", "UTC")),
        "text": pa.array([lot.choice([None, "", "a", "bcd"]) for _ in range(rows)], pa.string()),
        "number": pa.array([lot.choice([None, 1, 2]) for _ in range(rows)], pa.int64()),
    }
    return Made(pa.table(columns), start)


def block_of(made: Made, shelf: Shelf) -> Block:
    file = io.BytesIO()
    pq.write_table(made.table, file, row_group_size=made.row_group)
    raw = made.raw(file.getvalue())
    name = Multihash.sha3_256(raw)
    if not made.gone:
        shelf.held[name] = raw
    try:
        hashed = logical_hash_file(file.getvalue())
    except Invalid:  # a type without a hash: any will do
        hashed = OTHER
    rows = made.table.num_rows if made.rows is None else made.rows
    said = DataSlice(
        logical_hash=made.claimed or hashed,
        physical_hash=name,
        offset_interval=OffsetInterval(start=made.start, end=made.start + rows - 1),
        size=len(raw) if made.size is None else made.size,
    )
    saved = None if made.checkpoint is None else Checkpoint(physical_hash=made.checkpoint, size=1)
    return Block(
        raw=b"",
        hash=OTHER,
        version=3,
        system_time=Instant(made.made * 10**9),
        prev_block_hash=None,
        sequence_number=0,
        event=AddData(new_data=said, new_checkpoint=saved),
    )


def group_of(seed: int) -> tuple[Shelf, list[tuple[ChainTerms, Block]]]:
    lot, shelf, group = random.Random(seed), Shelf(), []
    for number in range(lot.randrange(1, 9)):
        made = slice_of(lot, 10 * number)
        if lot.random() < 0.4:
            lot.choice(WAYS)(made, lot)
        terms = lot.choice([TERMS, TERMS, TERMS, ChainTerms()])
        group.append((terms, block_of(made, shelf)))
    return shelf, group


@pytest.mark.slow
@given(seed=st.integers(0, 1 << 32), most=st.sampled_from([0, 400, 16 << 20]))
def test_each_gets_the_answer_that_it_gets_alone(seed: int, most: int) -> None:
    shelf, group = group_of(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "MOST_BYTES", most)
        found = sound_of(shelf, group)
    assert found == {place for place, each in enumerate(group) if not check_event(shelf, *each)}


@pytest.mark.slow
@pytest.mark.parametrize("way", range(len(WAYS)))
def test_each_way_among_sound_ones(way: int) -> None:
    for seed in range(10):
        lot, shelf = random.Random(seed), Shelf()
        slices = [slice_of(lot, 10 * number) for number in range(5)]
        WAYS[way](slices[2], lot)
        group = [(TERMS, block_of(made, shelf)) for made in slices]
        found = sound_of(shelf, group)
        assert found >= {0, 1, 3, 4}
        assert (2 in found) == (not check_event(shelf, *group[2]))


@pytest.mark.parametrize(
    "kind, first, rules",
    [
        (pa.uint64(), (1 << 63) + 5, []),
        (pa.int64(), 5 - (1 << 63), ["slice-offsets"]),
        (pa.int64(), 5, ["slice-offsets"]),
    ],
)
def test_offsets_beyond_what_a_signed_column_holds(kind: pa.DataType, first: int, rules: list[str]) -> None:
    made, shelf = slice_of(random.Random(3), 0), Shelf()
    made.start = (1 << 63) + 5
    put(made, "offset", pa.array(range(first, first + made.table.num_rows), kind))
    assert [found.rule for found in check_event(shelf, TERMS, block_of(made, shelf))] == rules


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize(
    "made, ahead, rules", [(MADE, 0, []), (MADE, 1, ["slice-system-time"]), (FAR, -1, []), (FAR, 0, [])]
)
def test_times_up_to_when_the_block_was_made(unit: str, made: int, ahead: int, rules: list[str]) -> None:
    """Also after what nanoseconds in 64 bits can say."""
    lied, shelf = slice_of(random.Random(3), 0), Shelf()
    lied.made = made
    per_second = {"ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    latest = min(made * per_second + ahead, (1 << 63) - 1)
    times = pa.array([latest] * lied.table.num_rows, pa.int64()).view(pa.timestamp(unit, "UTC"))
    put(lied, "system_time", times)
    assert [found.rule for found in check_event(shelf, TERMS, block_of(lied, shelf))] == rules


@pytest.mark.slow
def test_the_generator_makes_sound_groups_and_others() -> None:
    found = [len(group) - len(sound_of(shelf, group)) for shelf, group in map(group_of, range(200))]
    assert 20 < found.count(0) < 150


@pytest.mark.slow
def test_sound_slices_of_one_schema_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    lot, shelf = random.Random(1), Shelf()
    group = [(TERMS, block_of(slice_of(lot, 10 * number), shelf)) for number in range(50)]
    monkeypatch.setattr(batch, "check_event", None)
    assert sound_of(shelf, group) == set(range(50))


def test_slices_in_files_are_looked_at_one_by_one(tmp_path: Path) -> None:
    """They are not small, or were here before."""
    lot, shelf = random.Random(1), Shelf()
    group = [(TERMS, block_of(slice_of(lot, 10 * number), shelf)) for number in range(3)]
    for name, raw in list(shelf.held.items()):
        assert isinstance(raw, bytes)
        path = tmp_path / str(name)
        path.write_bytes(raw)
        shelf.held[name] = path
    assert sound_of(shelf, group) == {0, 1, 2}
