"""Slices of data: read under a schema that grew, filled in any order, told as they are; files in pieces."""

from __future__ import annotations

import decimal
import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.compaction import Limits
from chain.data.arrow_schema import from_arrow, to_arrow
from chain.data.evolution import as_in_force, enlarged
from chain.data.json_values import plain_rows, plain_values
from chain.data.parquet import open_slice, write_slice
from chain.errors import Invalid
from chain.instant import Instant
from chain.model.events import AddData, DatasetKind, Seed, SetDataSchema
from chain.model.schema import Option
from chain.multihash import Multihash
from chain.state import load_state
from chain.statements.keys import SigningKey
from chain.store.rewriting import plan_merging, prepare
from odfd.control.wire import CountRange
from odfd.datasets import previews
from odfd.datasets.pieces import PieceFile, PieceLists, PieceSink
from odfd.services.datasets.profiles import ColumnFacts, ProfileBuilder
from odfd.verify.verify import VerificationRequest, verify_chain
from p2p.wire import swarm
from p2p.wire.swarm import PieceList, is_signed, piece_count, piece_size, sign_list
from worlds.schemas import legacy
from worlds.transform_world import ROOT, World

# A schema that grew: what stood before is read under it, whoever reads, and nobody merges across the change.

UTC = pa.timestamp("ms", "UTC")
SYSTEM = [
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("op", pa.int32(), nullable=False),
    pa.field("system_time", UTC, nullable=False),
    pa.field("event_time", UTC, nullable=False),
]
OLD = pa.schema([
    *SYSTEM,
    pa.field("at", pa.timestamp("ns", "UTC")),
    pa.field("place", pa.struct([pa.field("city", pa.string(), nullable=False)])),
])  # fmt: skip
NEW = pa.schema([
    *SYSTEM,
    pa.field("note", pa.string()),
    pa.field("place", pa.struct([
        pa.field("zip", pa.uint64()),
        pa.field("city", pa.string(), nullable=False),
        pa.field("seen", pa.struct([pa.field("on", pa.date32())])),
    ])),
    pa.field("at", pa.timestamp("ns", "UTC")),
])  # fmt: skip
AT = 1_700_000_000_123_456_789
SHOWN = "2023-11-14T22:13:20.123456789Z"


class Grown:
    """Two slices of the old schema, then three of the new one."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder)
        self.world.append(ROOT, Seed(dataset_id=ROOT, dataset_kind=DatasetKind.ROOT))
        self.declare(OLD)
        self.add(OLD, [{"at": AT, "place": {"city": "Graz"}}])
        self.add(OLD, [{"at": None, "place": None}])
        self.declare(NEW)
        later = {"zip": 2**64 - 1, "city": "Linz", "seen": {"on": None}}
        for note in ("a", "b", "c"):
            self.add(NEW, [{"at": AT, "place": later, "note": note}])
        self.chain = self.world.chains.chain(ROOT)

    def declare(self, schema: pa.Schema) -> None:
        self.world.append(ROOT, SetDataSchema(schema=from_arrow(schema)))

    def add(self, schema: pa.Schema, rows: list[dict[str, Any]]) -> None:
        state = load_state(self.world.chains.chain(ROOT))
        # Time stands still in this world, so every block is made at one moment, and its rows say so.
        made = self.world.time
        system = {"op": 0, "system_time": made, "event_time": made}
        full = [{**row, **system, "offset": state.next_offset + place} for place, row in enumerate(rows)]
        table = pa.table({f.name: pa.array([row[f.name] for row in full], f.type) for f in schema}, schema=schema)
        data = self.world.keep(table)
        self.world.append(ROOT, AddData(prev_offset=state.last_offset, new_data=data), objects=[data.physical_hash])

    def tail(self, limit: int) -> list[dict[str, Any]]:
        table = previews.tail(self.chain, _Files(self.world.objects), limit, to_arrow(from_arrow(NEW)))
        assert table is not None
        assert table.schema.equals(NEW)
        return [dict(zip(table.column_names, row, strict=True)) for row in plain_rows(table)]

    def failures(self) -> list[str]:
        report = verify_chain(self.chain, self.world.objects, VerificationRequest(ref="x", workers=1))
        return [failure.rule for failure in report.failures]


class _Files:
    def __init__(self, objects: Any) -> None:
        self._objects = objects

    def path(self, name: Any, _sequence: int) -> Any:
        return self._objects.path(name)

    def check_again(self, _name: Any, _sequence: int) -> None: ...


@pytest.fixture
def grown(tmp_path: Path) -> Grown:
    return Grown(tmp_path)


def test_the_last_rows_are_shown_under_the_schema_in_force(grown: Grown) -> None:
    rows = grown.tail(10)
    assert [row["offset"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["note"] for row in rows] == [None, None, "a", "b", "c"]
    assert [row["at"] for row in rows] == [SHOWN, None, SHOWN, SHOWN, SHOWN]
    assert [row["place"] for row in rows[:3]] == [
        {"zip": None, "city": "Graz", "seen": None},
        None,
        {"zip": str(2**64 - 1), "city": "Linz", "seen": {"on": None}},
    ]
    assert [row["offset"] for row in grown.tail(4)] == [1, 2, 3, 4]


def test_the_schema_shown_is_the_newest(grown: Grown) -> None:
    said = load_state(grown.chain).schema
    assert said is not None
    assert [name for name, *_ in previews.columns_of(said)] == NEW.names
    assert {name: kind for name, kind, *_ in previews.columns_of(said)}["place"] == (
        "Struct(zip: UInt64?, city: String, seen: Struct(on: Date?)?)"
    )


def test_each_slice_is_verified_against_the_schema_at_its_block(grown: Grown) -> None:
    assert grown.failures() == []
    grown.add(OLD, [{"at": None, "place": None}])
    assert grown.failures() == ["slice-schema"]


def test_compaction_merges_on_each_side_of_the_change_and_never_across(grown: Grown) -> None:
    before = grown.tail(10)
    plan = plan_merging(grown.chain, ROOT, Limits())
    assert plan is not None
    assert [list(batch) for batch in plan.batches] == [[2, 3], [5, 6, 7]]
    grown.world.chains.rewrite(prepare(grown.chain, grown.world.objects, plan, Instant(4 * 10**18)))
    assert [type(grown.chain.block_at(number).event).__name__ for number in range(5)] == [
        "Seed", "SetDataSchema", "AddData", "SetDataSchema", "AddData",
    ]  # fmt: skip
    assert grown.tail(10) == before
    assert grown.failures() == []


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (pa.table({"place": pa.array([{"city": "Graz", "lost": 1}])}), "place.lost is in no schema"),
        (pa.table({"place": pa.array(["Graz"])}), "of an older slice cannot be read as struct"),
        (pa.table({"note": pa.array([[1]])}), "of an older slice cannot be read as string"),
        (pa.table([["a"], ["b"]], names=["note", "note"]), "column 'note' occurs twice in a slice"),
    ],
)
def test_rows_of_no_earlier_schema_are_refused_by_name(rows: pa.Table, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        as_in_force(rows, NEW)


def test_a_schema_in_the_legacy_form_is_shown(grown: Grown) -> None:
    said = SetDataSchema(raw_arrow_schema=legacy(OLD))
    assert previews.columns_of(said) == previews.columns_of(SetDataSchema(schema=from_arrow(OLD)))


def test_a_schema_grows_by_optional_columns_in_the_order_given() -> None:
    held = from_arrow(pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())]))
    same = pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.string())])
    assert enlarged(held, same) is held
    new = pa.field("n", pa.int64(), nullable=False)
    made = enlarged(held, pa.schema([same.field("b"), new, same.field("a")]))
    assert [field.name for field in made.fields] == ["b", "n", "a"]
    assert (made.fields[0], made.fields[2]) == (held.fields[1], held.fields[0])
    assert isinstance(made.fields[1].type, Option)
    with pytest.raises(Invalid, match="no 'b'"):
        enlarged(held, pa.schema([same.field("a"), pa.field("n", pa.int64())]))


# Values of slices as JSON: whatever a slice may hold is told as it is.

DAYS = pa.array([-719_529, -719_528, 2_932_897, None], pa.int32()).cast(pa.date32())
SAID = ["-0001-12-31", "0000-01-01", "10000-01-01", None]


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()])
def test_dates_of_any_year(kind: pa.DataType) -> None:
    days = DAYS.cast(kind)
    assert plain_values(days) == SAID
    assert plain_values(pa.StructArray.from_arrays([days], ["day"])) == [{"day": said} for said in SAID]
    assert plain_values(pa.ListArray.from_arrays([0, 1, 4], days)) == [SAID[:1], SAID[1:]]


TIMES: Final = (
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    pa.date32(),
    pa.date64(),
    pa.time64("ns"),
)


@pytest.mark.slow
@given(st.sampled_from(TIMES), st.integers(-(2**62), 2**62 - 1), st.integers(0, 62))
def test_times_are_rendered_as_arrow_casts_them(kind: pa.DataType, number: int, smaller: int) -> None:
    number >>= smaller
    if pa.types.is_date32(kind):
        number >>= 31
    elif pa.types.is_date64(kind):
        number = number >> 31 << 20
        number -= number % 86_400_000
    elif pa.types.is_time(kind):
        number %= 86_400 * 10**9
    values = pa.array([number, None], pa.int32() if pa.types.is_date32(kind) else pa.int64()).view(kind)
    assert plain_values(values) == values.cast(pa.string()).to_pylist()


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.int32()), pa.list_(pa.int32(), 2)])
def test_lists_of_a_slice(kind: pa.DataType) -> None:
    rows: list[Any] = [[1, 2], None, [3, 4], [None, 5]]
    values = pa.array(rows, kind)
    for start in range(5):
        assert plain_values(values.slice(start)) == rows[start:]
        assert plain_values(values.slice(start, 1)) == rows[start : start + 1]
    assert plain_values(pa.array([{"a": 1}, None, {"a": None}]).slice(1)) == [None, {"a": None}]
    assert plain_values(pa.array(["x", None, "y", "x"]).dictionary_encode().slice(1)) == [None, "y", "x"]


FEW_ROWS: Final = """
import sys
sys.modules["numpy"] = sys.modules["pandas"] = None  # as in the process of a query
import pyarrow as pa
from chain.data.json_values import plain_values
day = pa.date32()
for kind, value in (
    (pa.timestamp("us"), 1), (pa.timestamp("us", "UTC"), 1), (day, 1), (pa.time64("ns"), 1),
    (pa.list_(pa.int32()), [1]), (pa.list_(pa.int32(), 1), [1]), (pa.struct([("a", day)]), {"a": 1}),
    (pa.dictionary(pa.int8(), pa.string()), "x"),
):
    plain_values(pa.array([value, None], kind))
assert "pyarrow.compute" not in sys.modules
"""


@pytest.mark.slow
def test_few_rows_load_no_module_that_takes_longer_than_they_do() -> None:
    subprocess.run([sys.executable, "-c", FEW_ROWS], check=True)


# What files say of their columns is what is in them, as far as they say it.

KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "small": (pa.int8(), st.integers(-3, 3)),
    "unsigned": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "offset": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "truth": (pa.bool_(), st.booleans()),
    "real": (pa.float64(), st.floats(allow_nan=False)),
    "single": (pa.float32(), st.floats(allow_nan=False, width=32)),
    "price": (pa.decimal128(20, 3), st.integers(-(10**12), 10**12).map(lambda n: decimal.Decimal(n).scaleb(-3))),
    "few": (pa.decimal128(5, 2), st.integers(-9999, 9999).map(lambda n: decimal.Decimal(n).scaleb(-2))),
    "day": (pa.date32(), st.dates()),
    "at": (pa.timestamp("ms", "UTC"), st.integers(-(10**13), 10**13)),
    "clock": (pa.time64("us"), st.integers(0, 86_399_999_999)),
    "name": (pa.string(), st.text(st.characters(codec="utf-8"), max_size=4)),
    "raw": (pa.binary(), st.binary(max_size=3)),
}
SCHEMA = pa.schema([pa.field(name, kind) for name, (kind, _) in KINDS.items()])
ROWS = st.fixed_dictionaries({name: st.none() | values for name, (_, values) in KINDS.items()})


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    arrays = [pa.array([row[field.name] for row in rows], field.type) for field in SCHEMA]
    return pa.table(arrays, schema=SCHEMA)


def profile(tables: list[pa.Table], folder: Path, schema: pa.Schema, group: int = 7) -> dict[str, ColumnFacts]:
    builder = ProfileBuilder(schema)
    for number, table in enumerate(tables):
        path = folder / f"{number}.parquet"
        pq.write_table(table, path, row_group_size=group, store_schema=True)
        with open_slice(path) as file:
            builder.add(file)
    return dict(builder.columns())


@pytest.mark.slow
@settings(max_examples=20)
@given(st.lists(st.lists(ROWS, min_size=1, max_size=12), min_size=1, max_size=3))
def test_a_profile_is_that_of_the_rows(tmp_path_factory: pytest.TempPathFactory, slices: list[Any]) -> None:
    tables = [table_of(rows) for rows in slices]
    found = profile(tables, tmp_path_factory.mktemp("slices"), SCHEMA)
    whole = pa.concat_tables(tables)
    for name in SCHEMA.names:
        column, said = whole.column(name).combine_chunks(), found[name]
        assert said.nulls == column.null_count, name
        ends = pc.min_max(column)
        wanted = [plain_values(pa.array([ends[each]], column.type))[0] for each in ("min", "max")]
        assert [said.minimum, said.maximum] == wanted, name
        distinct = len(column.drop_null().unique())
        if said.distinct is None:
            assert distinct, name
        else:
            assert said.distinct.at_least <= distinct <= said.distinct.at_most, name
    assert found["truth"].distinct is not None
    assert found["truth"].distinct.at_most <= 2


def test_chunks_whose_values_lie_apart_have_none_in_common(tmp_path: Path) -> None:
    """The newest month's cities are those of the month before; its days are others."""
    schema = pa.schema([("day", pa.int64()), ("city", pa.string())])
    tables = [
        pa.table([[month * 100 + day for day in range(30)], [f"city {day % 3}" for day in range(30)]], schema=schema)
        for month in range(3)
    ]
    found = profile(tables, tmp_path, schema, group=100)
    assert found["day"].distinct == CountRange(at_least=90, at_most=90)
    assert found["city"].distinct == CountRange(at_least=3, at_most=9)


def test_what_a_slice_of_ours_says_of_a_column_that_comes_later(tmp_path: Path) -> None:
    """Rows from before a column was there have no value in it."""
    schema = pa.schema([("n", pa.int64()), ("later", pa.string()), ("tags", pa.list_(pa.string()))])
    builder = ProfileBuilder(schema)
    for path, columns in (("old", ["n"]), ("new", ["n", "later", "tags"])):
        rows = pa.table([[1, 2], ["a", None], [["x"], []]], schema=schema).select(columns)
        write_slice(rows, tmp_path / path)
        with open_slice(tmp_path / path) as file:
            builder.add(file)
    found = dict(builder.columns())
    assert found["later"] == ColumnFacts(3, "a", "a", CountRange(at_least=1, at_most=1))
    assert found["n"] == ColumnFacts(0, 1, 2, CountRange(at_least=2, at_most=2))
    assert found["tags"] == ColumnFacts()


def test_nothing_of_a_damaged_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "slice"
    write_slice(pa.table({"n": [1, 2], "city": ["Graz", "Wien"]}), path)
    raw = path.read_bytes()
    path.write_bytes(raw[:4] + b"\xff" * 40 + raw[44:])
    builder = ProfileBuilder(pa.schema([("n", pa.int64()), ("city", pa.string())]))
    with open_slice(path) as file, pytest.raises(Invalid, match="without a header"):
        builder.add(file)
    assert dict(builder.columns())["n"].nulls == 0
    assert dict(builder.columns())["n"].minimum is None


# Files that fill in any order, and the lists that say what fits them.

PIECE = 64
SIZE = 10 * PIECE - 7
WHOLE = bytes(number * 7 % 251 for number in range(SIZE))
NAME = Multihash.sha3_256(WHOLE)
KEY = SigningKey(bytes(32))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swarm, "LEAST_PIECE", PIECE)


def listed(data: bytes = WHOLE, name: Multihash = NAME) -> PieceList:
    hashes = b"".join(hashlib.sha3_256(data[at : at + PIECE]).digest() for at in range(0, len(data), PIECE))
    return PieceList(name, len(data), hashes)


def piece(number: int) -> bytes:
    return WHOLE[number * PIECE : (number + 1) * PIECE]


class Store:
    """Takes over what is whole."""

    def __init__(self) -> None:
        self.kept: dict[Multihash, bytes] = {}

    def adopt(self, staged: Path, name: Multihash) -> None:
        self.kept[name] = staged.read_bytes()
        staged.unlink()


def read(file: PieceFile, offset: int, length: int) -> bytes | None:
    into = bytearray(length)
    count = file.read(offset, memoryview(into))
    return None if count is None else bytes(into[:count])


def test_pieces_in_any_order_make_the_whole(tmp_path: Path) -> None:
    file, store = PieceFile(tmp_path / "one", listed()), Store()
    for number in (9, 3, 0, 1, 2, 8, 7, 4, 6, 5):
        assert not file.is_whole
        file.put(number, piece(number))
        assert read(file, number * PIECE, PIECE) == piece(number)
    assert read(file, 0, 2 * SIZE) == WHOLE
    file.finish(store)  # type: ignore[arg-type]
    assert store.kept == {NAME: WHOLE}
    assert read(file, 5, 90) == WHOLE[5:95], "who was told of a piece has it also now"
    file.close()
    assert read(file, 0, 1) is None


def test_what_does_not_fit_is_refused_and_never_told(tmp_path: Path) -> None:
    file = PieceFile(tmp_path / "one", listed())
    sink = PieceSink(file, 1)
    assert (sink.received, sink.stop) == (PIECE, 2 * PIECE)
    sink.write(bytes(PIECE))
    with pytest.raises(Invalid, match="does not fit"):
        sink.finish()
    assert sink.received == PIECE
    assert not file.have
    assert read(file, PIECE, PIECE) is None
    file.put(1, piece(1))
    assert read(file, PIECE, PIECE + 1) is None, "a part of it is not here"
    with (tmp_path / "one").open("r+b") as damaged:
        damaged.seek(PIECE + 3)
        damaged.write(b"?")
    assert read(file, PIECE, PIECE) is None
    assert not file.have, "damage on our disk is fetched again"
    file.close()


def test_what_is_closed_early_is_the_beginning_of_the_object(tmp_path: Path) -> None:
    path = tmp_path / "one"
    file = PieceFile(path, listed())
    for number in (0, 1, 4, 9):
        file.put(number, piece(number))
    file.close()
    file.close()
    assert path.read_bytes() == WHOLE[: 2 * PIECE]
    again = PieceFile(path, listed())
    assert again.have == 0b11
    again.close()


def test_after_a_crash_whatever_fits_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "one"
    file = PieceFile(path, listed())
    for number in (1, 4):
        file.put(number, piece(number))
    again = PieceFile(path, listed())
    assert again.have == 0b1_0010
    file.close()
    again.close()


def test_a_false_list_is_found_at_the_end(tmp_path: Path) -> None:
    path, false = tmp_path / "one", bytes(SIZE)
    file, store = PieceFile(path, listed(false)), Store()
    for number in range(piece_count(SIZE)):
        file.put(number, false[number * PIECE : (number + 1) * PIECE])
    with pytest.raises(Invalid, match="not what the list"):
        file.finish(store)  # type: ignore[arg-type]
    assert not store.kept
    assert path.read_bytes() == b"", "nothing of it is gone on with"


def test_a_list_is_made_once_and_signed(tmp_path: Path) -> None:
    path, lists, opened = tmp_path / "one", PieceLists(), []

    def reading() -> Path:
        opened.append(1)
        return path

    path.write_bytes(WHOLE)
    made = [lists.of(NAME, SIZE, reading) for _ in range(3)]
    assert made[0].hashes == listed().hashes
    assert len(opened) == 1
    signed = lists.sign(made[0], KEY)
    assert lists.get(NAME) == signed
    assert is_signed(signed, KEY.public)
    assert not is_signed(signed, SigningKey(b"x" * 32).public)
    assert not is_signed(sign_list(NAME, SIZE + 1, signed.hashes, KEY), bytes(32))
    lists.forget(NAME)
    assert lists.get(NAME) is None


@given(st.integers(1, 1 << 48))
def test_pieces_cover_an_object_and_are_not_too_many(size: int) -> None:
    assert 0 < piece_count(size) <= swarm.MAX_PIECES
    assert (piece_count(size) - 1) * piece_size(size) < size <= piece_count(size) * piece_size(size)


@pytest.mark.parametrize("more", [b"", b"\0" * 7])
def test_a_whole_file_that_was_not_finished_is_the_object_and_no_more(tmp_path: Path, more: bytes) -> None:
    path = tmp_path / "one"
    file = PieceFile(path, listed())
    for number in range(10):
        file.put(number, piece(number))
    file.close()
    assert path.read_bytes() == WHOLE
    path.write_bytes(WHOLE + more)
    again = PieceFile(path, listed())
    assert again.is_whole
    assert path.read_bytes() == WHOLE
    again.close()


@given(st.permutations(range(10)), st.integers(0, 10), st.data())
def test_however_it_comes_only_what_fits_counts(
    tmp_path_factory: Any, order: list[int], until: int, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("pieces") / "one"
    file, have = PieceFile(path, listed()), set[int]()
    for number in order[:until]:
        raw = piece(number)
        if data.draw(st.booleans()):
            file.put(number, raw)
            have.add(number)
        else:
            with pytest.raises(Invalid):
                file.put(number, raw + b"?")
    assert file.have == sum(1 << number for number in have)
    file.close()
    assert WHOLE.startswith(path.read_bytes())
    path.unlink()
