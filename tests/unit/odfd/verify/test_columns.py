"""Judging blocks as columns and slices together gives the answers that judging one by one gives."""

from __future__ import annotations

import dataclasses
import io
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chain.codec.blocks import decode_block, encode_block
from chain.codec.shape import shape_of
from chain.codec.timestamp import pack, unpack
from chain.data.logical_hash import logical_hash_file
from chain.errors import Invalid, NotFound
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block, MetadataBlock
from chain.model.events import (
    AddData,
    Checkpoint,
    DatasetKind,
    DataSlice,
    ExecuteTransform,
    ExecuteTransformInput,
    OffsetInterval,
    Seed,
    SetDataSchema,
    SetInfo,
    SetTransform,
    SourceState,
    TransformInput,
    Vocab,
)
from chain.model.schema import DataField, DataSchema, Int64
from chain.model.source import SqlQueryStep, TransformSql
from chain.multihash import ARROW0_SHA3_256, SHA2_256, Multihash
from chain.rules import RULES, Binds
from chain.rules.columns import unpack_many
from chain.rules.rule import Rule
from chain.store.base import Head, Snapshot, StoredBlock, StoredPage
from odfd.verify import batch
from odfd.verify.batch import sound_of
from odfd.verify.objects import check_event
from odfd.verify.report import Level
from odfd.verify.terms import ChainTerms
from odfd.verify.verify import VerificationRequest, verify_chain

# Judging blocks as columns gives the answer that judging them one by one gives, whatever is wrong with them.

INPUTS = [DatasetId.from_public_key(bytes([n]) * 32) for n in (8, 9)]


class Listed:
    """A stored chain of blocks as given: names and bytes need not agree."""

    def __init__(self, rows: Sequence[tuple[Multihash, bytes | None]], page: int) -> None:
        self._rows = rows
        self._page = page

    def snapshot(self) -> Snapshot:
        return Snapshot(Head(self._rows[-1][0], len(self._rows) - 1))

    def stored_blocks(self, start: int = 0, stop: int | None = None) -> Iterator[StoredBlock]:
        for number, (name, raw) in enumerate(self._rows[start:stop], start):
            yield StoredBlock(number, name, raw)

    def stored_pages(self, start: int = 0, stop: int | None = None) -> Iterator[StoredPage]:
        rows = self._rows[start:stop]
        for first in range(0, len(rows), self._page):
            page = rows[first : first + self._page]
            yield StoredPage(first, b"".join(name for name, _ in page), [raw for _, raw in page])


def digest(lot: random.Random) -> Multihash:
    return Multihash.sha3_256(lot.randbytes(8))


def root_events(lot: random.Random, count: int) -> Iterator[Any]:
    yield Seed(dataset_id=DatasetId.from_public_key(bytes(32)), dataset_kind=DatasetKind.ROOT)
    if lot.random() < 0.95:
        yield SetDataSchema(schema=DataSchema(fields=(DataField(name="offset", type=Int64()),)))
    offset, mark, checkpoint = None, None, None
    for number in range(count):
        if lot.random() < 0.03:
            yield SetInfo(description=f"{number}")
            continue
        rows = lot.choice([0, 5, 5, 5])
        start = 0 if offset is None else offset + 1
        new_data = slice_of(lot, start, rows) if rows else None
        if lot.random() < 0.7:
            mark = Instant((mark or 10**18) + lot.choice([0, 10**9]))
        saved = Checkpoint(physical_hash=digest(lot), size=7) if checkpoint or lot.random() < 0.02 else None
        text = lot.choice(["abcd", "efgh", "ef\u00e9x"])
        yield AddData(
            prev_offset=offset,
            prev_checkpoint=checkpoint,
            new_data=new_data,
            new_watermark=mark,
            new_checkpoint=saved,
            new_source_state=SourceState(source_name="default", kind="odf/etag", value=text) if number % 2 else None,
        )
        offset = new_data.offset_interval.end if new_data else offset
        checkpoint = saved.physical_hash if saved else None


def transform_events(lot: random.Random, count: int) -> Iterator[Any]:
    yield Seed(dataset_id=DatasetId.from_public_key(bytes(32)), dataset_kind=DatasetKind.DERIVATIVE)
    yield SetTransform(
        inputs=tuple(TransformInput(dataset_ref=str(each), alias=f"i{n}") for n, each in enumerate(INPUTS)),
        transform=TransformSql(engine="spark", queries=(SqlQueryStep(query="select 1"),)),
    )
    yield SetDataSchema(schema=DataSchema(fields=(DataField(name="offset", type=Int64()),)))
    offset, mark = None, 10**18
    at: list[tuple[Multihash | None, int | None]] = [(None, None), (None, None)]
    for _ in range(count):
        used = []
        for number, (block, row) in enumerate(at):
            new_block = digest(lot) if lot.random() < 0.9 else None
            new_row = (row or 0) + 3 if new_block and lot.random() < 0.8 else None
            used.append(
                ExecuteTransformInput(
                    dataset_id=INPUTS[number],
                    prev_block_hash=block,
                    new_block_hash=new_block,
                    prev_offset=row,
                    new_offset=new_row,
                )
            )
            at[number] = (new_block or block, row if new_row is None else new_row)
        new_data = slice_of(lot, 0 if offset is None else offset + 1, 4) if lot.random() < 0.8 else None
        mark += lot.choice([0, 10**6])
        yield ExecuteTransform(
            query_inputs=tuple(used), prev_offset=offset, new_data=new_data, new_watermark=Instant(mark)
        )
        offset = new_data.offset_interval.end if new_data else offset


def slice_of(lot: random.Random, start: int, rows: int) -> DataSlice:
    return DataSlice(
        logical_hash=Multihash.from_digest(ARROW0_SHA3_256, lot.randbytes(32)),
        physical_hash=digest(lot),
        offset_interval=OffsetInterval(start=start, end=start + rows - 1),
        size=lot.randrange(1 << 20),
    )


WRONG = [Multihash.sha3_256(b"other"), Multihash.from_digest(SHA2_256, bytes(32))]


def tampered(lot: random.Random, value: Any) -> Any:
    """The same struct with one field, at some depth, made another or left out."""
    fields = msgspec.structs.fields(value)
    if not fields:
        return value
    field = lot.choice(fields)
    old = getattr(value, field.name)
    if field.name in ("dataset_kind", "kind", "source_name"):
        return value
    new: Any = old
    if isinstance(old, msgspec.Struct) and lot.random() < 0.8:
        new = tampered(lot, old)
    elif isinstance(old, tuple) and old and isinstance(old[0], msgspec.Struct):
        at = lot.randrange(len(old))
        new = (*old[:at], tampered(lot, old[at]), *old[at + 1 :])
    elif not field.required and lot.random() < 0.4:
        new = None
    elif isinstance(old, Multihash):
        new = lot.choice(WRONG)
    elif isinstance(old, int) and not isinstance(old, bool):
        new = old + lot.choice([-1, 1, 10**9, -(10**10), 1 << 62])
    elif old is None and field.name in ("prev_checkpoint", "prev_block_hash", "new_block_hash"):
        new = lot.choice(WRONG)
    elif old is None and field.name in ("prev_offset", "new_offset"):
        new = lot.randrange(20)
    return msgspec.structs.replace(value, **{field.name: new})


def chain_of(seed: int) -> list[tuple[Multihash, bytes | None]]:
    lot = random.Random(seed)
    events = list((root_events if lot.random() < 0.6 else transform_events)(lot, lot.randrange(20, 90)))
    wrong = {lot.randrange(len(events)) for _ in range(lot.choice([0, 1, 1, 2, 5]))}
    rows: list[tuple[Multihash, bytes | None]] = []
    time = 1_700_000_000 * 10**9
    for number, event in enumerate(events):
        time += lot.choice([0, 10**6, 10**9])
        content = MetadataBlock(
            system_time=Instant(time),
            prev_block_hash=rows[-1][0] if rows else None,
            sequence_number=number,
            event=event,
        )
        block = encode_block(content, version=lot.choice([2, 3]) if seed % 5 == 0 else 3)
        raw, name = block.raw, block.hash
        if number in wrong:
            raw, name = spoiled(lot, content, raw)
        rows.append((name, raw))
    for number in wrong:
        if lot.random() < 0.15:
            rows[number] = (rows[number][0], None)
    return rows


def spoiled(lot: random.Random, content: MetadataBlock, raw: bytes) -> tuple[bytes, Multihash]:
    """Another block in its place: tampered with and hashed anew, or with a flipped bit, hashed anew or not."""
    way = lot.randrange(3)
    if way == 0:
        try:
            block = encode_block(tampered(lot, content))
        except Invalid:
            return raw, Multihash.sha3_256(raw)
        return block.raw, block.hash
    flipped = bytearray(raw)
    flipped[lot.randrange(len(raw))] ^= 1 << lot.randrange(8)
    return bytes(flipped), Multihash.sha3_256(bytes(flipped) if way == 1 else raw)


class NoObjects:
    def has(self, name: Multihash) -> bool:
        raise AssertionError(name)

    size = path = has  # type: ignore[assignment]


@pytest.mark.slow
@example(seed=73, page=64)  # a flipped bit in a block among others of its kind, under its old name
@example(seed=332023128, page=64)  # a watermark of the year 4049, and then one of 2001
@given(seed=st.integers(0, 1 << 32), page=st.sampled_from([9, 30, 64, 1000]))
def test_columns_and_single_blocks_give_one_answer(seed: int, page: int) -> None:
    chain = Listed(chain_of(seed), page)
    quick, slow = (
        verify_chain(chain, NoObjects(), VerificationRequest(ref="x", level=Level.CHAIN, columns=each))  # type: ignore[arg-type]
        for each in (True, False)
    )
    assert quick == slow


FAR = Instant(65_000_000_000 * 10**9)
"""The year 4029, whose nanoseconds no int64 holds."""


@pytest.mark.parametrize("rule", ["watermark-monotonic", "system-time-monotonic"])
@pytest.mark.parametrize("page", [4, 5, 6, 100])
def test_what_comes_after_a_value_beyond_columns_is_looked_at(rule: str, page: int) -> None:
    """Attack T-BYTES-01: a time or number beyond the range of a column, to hide that later values decrease.

    Defence: such a block and the next one are decoded and checked rule by rule.

    Wherever the page ends. It is compared with a value that stands for anything.
    """
    rows: list[tuple[Multihash, bytes | None]] = []
    data = [AddData(new_watermark=Instant(10**18 + number)) for number in range(8)]
    events = [Seed(dataset_id=DatasetId.from_public_key(bytes(32)), dataset_kind=DatasetKind.ROOT), *data]
    for number, event in enumerate(events):
        time = Instant(17 * 10**17 + number)
        if number == 5 and rule.startswith("system"):
            time = FAR
        elif number == 5:
            event = AddData(new_watermark=FAR)
        before = rows[-1][0] if rows else None
        content = MetadataBlock(system_time=time, prev_block_hash=before, sequence_number=number, event=event)
        block = encode_block(content)
        rows.append((block.hash, block.raw))
    answers = [
        verify_chain(Listed(rows, page), NoObjects(), VerificationRequest(ref="x", level=Level.CHAIN, columns=each))  # type: ignore[arg-type]
        for each in (True, False)
    ]
    assert answers[0] == answers[1]
    assert [failure.block.sequence_number for failure in answers[0].failures if failure.rule == rule] == [6]


@pytest.mark.slow
def test_the_generator_makes_chains_that_hold_and_many_that_do_not() -> None:
    """A property over chains that are all alike would prove little."""
    broken = set()
    held = 0
    for seed in range(250):
        answer = verify_chain(Listed(chain_of(seed), 64), NoObjects(), VerificationRequest(ref="x", level=Level.CHAIN))  # type: ignore[arg-type]
        held += answer.ok
        broken |= {failure.rule for failure in answer.failures}
    assert 20 < held < 230
    assert {
        "prev-block-link", "sequence-number", "system-time-monotonic", "watermark-monotonic", "offsets-sequential",
        "prev-offset", "prev-checkpoint", "input-prev-block", "input-prev-offset", "block-hash", "block-missing",
    } <= broken  # fmt: skip


def test_every_rule_that_binds_everyone_and_looks_at_data_has_columns() -> None:
    """A rule without them would be right, and make every chain a hundred times slower."""
    for rule in RULES:
        about = not rule.concerns or {AddData, ExecuteTransform} & set(rule.concerns)
        if rule.binds is Binds.EVERYONE and about:
            assert type(rule).doubts is not Rule.doubts, rule.name


@given(st.lists(st.integers(-62_000_000_000, 253_000_000_000), min_size=1), st.integers(0, 10**9 - 1))
def test_many_times_are_read_as_one_is(seconds: list[int], nanos: int) -> None:
    raws = [pack(Instant(each * 10**9 + nanos)) for each in seconds]
    times, sure = unpack_many(np.frombuffer(b"".join(raws), np.uint8).reshape(-1, 16))
    for raw, time, believed in zip(raws, times, sure, strict=True):
        assert not believed or unpack(raw, 0) == time


@given(
    st.sampled_from([1699, 1700, 1900, 2000, 2023, 2024, 2200, 2201]) | st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([0, 1, 365, 366, 367]) | st.integers(0, 2**16 - 1),
    st.sampled_from([0, 86_399, 86_400]) | st.integers(0, 2**32 - 1),
    st.sampled_from([0, 10**9 - 1, 10**9]) | st.integers(0, 2**32 - 1),
)
@example(2023, 366, 0, 0)
@example(2024, 366, 86_399, 10**9 - 1)
def test_a_time_that_is_none_is_never_believed(year: int, ordinal: int, second: int, nanos: int) -> None:
    raw = struct.pack("<iHxxII", year, ordinal, second, nanos)
    times, sure = unpack_many(np.frombuffer(raw, np.uint8).reshape(1, 16))
    if sure[0]:
        assert unpack(raw, 0) == times[0]


@pytest.mark.parametrize("name", ["flights", "airlines"])
def test_golden_blocks_have_shapes_that_read_them(name: str) -> None:
    """What a shape lifts from its own template is what the codec decodes."""
    folder = Path(__file__).parents[3] / "golden" / "kamu" / name / "blocks"
    for file in folder.iterdir():
        raw = file.read_bytes()
        shape = shape_of(raw)
        if shape is None:
            continue
        values, same = shape.lift([raw, raw])
        assert same.all()
        block = decode_block(raw)
        assert unpack(values["system_time"][0].tobytes(), 0) == block.system_time
        if block.prev_block_hash is not None:
            assert values["prev_block_hash"][1].tobytes() == block.prev_block_hash.digest
        other = bytearray(raw)
        other[4] ^= 1
        assert list(shape.lift([raw, bytes(other)])[1]) == [True, False]


# Small slices looked at together get the answers that each gets by itself, whatever is wrong with which of them.

MADE = 1_700_000_000
FAR_SECONDS = 65_000_000_000
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
    field("made", FAR_SECONDS),
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


def made_slice(lot: random.Random, start: int) -> Made:
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
        made = made_slice(lot, 10 * number)
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
        slices = [made_slice(lot, 10 * number) for number in range(5)]
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
    made, shelf = made_slice(random.Random(3), 0), Shelf()
    made.start = (1 << 63) + 5
    put(made, "offset", pa.array(range(first, first + made.table.num_rows), kind))
    assert [found.rule for found in check_event(shelf, TERMS, block_of(made, shelf))] == rules


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize(
    "made, ahead, rules", [(MADE, 0, []), (MADE, 1, ["slice-system-time"]), (FAR_SECONDS, -1, []), (FAR_SECONDS, 0, [])]
)
def test_times_up_to_when_the_block_was_made(unit: str, made: int, ahead: int, rules: list[str]) -> None:
    """Also after what nanoseconds in 64 bits can say."""
    lied, shelf = made_slice(random.Random(3), 0), Shelf()
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
    group = [(TERMS, block_of(made_slice(lot, 10 * number), shelf)) for number in range(50)]
    monkeypatch.setattr(batch, "check_event", None)
    assert sound_of(shelf, group) == set(range(50))


def test_slices_in_files_are_looked_at_one_by_one(tmp_path: Path) -> None:
    """They are not small, or were here before."""
    lot, shelf = random.Random(1), Shelf()
    group = [(TERMS, block_of(made_slice(lot, 10 * number), shelf)) for number in range(3)]
    for name, raw in list(shelf.held.items()):
        assert isinstance(raw, bytes)
        path = tmp_path / str(name)
        path.write_bytes(raw)
        shelf.held[name] = path
    assert sound_of(shelf, group) == {0, 1, 2}
