"""What a query only passes on leaves it as it came, to the type and the last digit; what cannot be held is refused."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from chain.data.arrow_schema import EXTRA_KEY, from_arrow
from chain.data.parquet import write_slice
from chain.data.uuids import stored
from chain.ids import DatasetId
from chain.instant import from_millis
from chain.model.source import TransformSql
from chain.multihash import Multihash
from engines.contract import InputBlock, InvalidQuery, Success, TransformRequest, TransformRequestInput, Vocab
from engines.request_control import RequestControl
from engines.spark.execution.transform import SharedCaches, run_transform
from engines.spark.planning.slice_facts import SliceReader
from engines.spark.sql.queries import Analyst
from worlds.every_type import AT, every_type

pytestmark = pytest.mark.engine
UTC = pa.timestamp("ms", "UTC")
SYSTEM = pa.schema([
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("op", pa.int32(), nullable=False),
    pa.field("system_time", UTC, nullable=False),
    pa.field("event_time", UTC),
])  # fmt: skip
DAY = 86_400_000


class Derivation:
    """An input of some slices, and transactions over all that are new."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.blocks: list[InputBlock] = []
        self.schema: pa.Schema | None = None
        self.force: pa.Schema | None = None
        self.rows = 0
        self.taken = 0
        self.previous: str | None = None
        self.offset = 0
        self.changelog = False

    def add(self, data: pa.Table, times: pa.Array | None = None) -> pa.Table:
        """A slice of these rows, which say their number as their event time in seconds."""
        offsets = pa.array(range(self.rows, self.rows + data.num_rows), pa.int64())
        stamps = pa.array([value.as_py() * 1000 for value in offsets], pa.int64()).cast(UTC)
        ops, made = pa.array([0] * data.num_rows, pa.int32()), pa.array([DAY] * data.num_rows, pa.int64()).cast(UTC)
        times = stamps if times is None else times
        system = SYSTEM.set(3, pa.field("event_time", times.type))
        schema = pa.schema([*system, *data.schema])
        table = pa.Table.from_arrays([offsets, ops, made, times, *data.columns], schema=schema)
        path = self.folder / f"in-{len(self.blocks)}"
        write_slice(table, path)
        self.rows += data.num_rows
        before = self.blocks[-1].watermark_after if self.blocks else None
        block = InputBlock(
            data_path=str(path), watermark_before=before, watermark_after=from_millis(1000 * self.rows),
            block_hash=Multihash.sha3_256(str(path).encode()),
        )  # fmt: skip
        self.blocks.append(block)
        self.schema = schema
        return table

    def ask(self, sql: str) -> pa.Table | str:
        """The slice made, or why none is."""
        assert self.schema is not None
        stated = self.folder / "schema"
        write_slice(self.schema.empty_table(), stated)
        given = TransformRequestInput(
            dataset_id=DatasetId.from_public_key(b"i" * 32), dataset_alias="in", query_alias="a", vocab=Vocab(),
            blocks=tuple(self.blocks[self.taken :]), schema_file=str(stated), changelog=self.changelog,
        )  # fmt: skip
        request = TransformRequest(
            dataset_id=DatasetId.from_public_key(b"o" * 32), dataset_alias="out", system_time=from_millis(2 * DAY),
            vocab=Vocab(), transform=TransformSql(engine="spark", query=sql), query_inputs=(given,),
            next_offset=self.offset, prev_checkpoint_path=self.previous, new_data_path=str(self.folder / "out"),
            new_checkpoint_path=str(self.folder / f"checkpoint-{self.taken}"),
            output_schema=None if self.force is None else from_arrow(self.force),
        )  # fmt: skip
        answer = run_transform(
            self.spark.newSession(), request, RequestControl(), SharedCaches(Analyst(), SliceReader())
        )
        if isinstance(answer, InvalidQuery):
            return str(answer)
        assert isinstance(answer, Success), answer
        assert self.force is None or answer.schema == request.output_schema
        return pq.read_table(self.folder / "out")

    def go_on(self, sql: str) -> pa.Table:
        """The next transaction of several."""
        made = self.rows_of(sql)
        self.previous = str(self.folder / f"checkpoint-{self.taken}")
        self.taken, self.offset = len(self.blocks), self.offset + made.num_rows
        return made

    def rows_of(self, sql: str) -> pa.Table:
        made = self.ask(sql)
        assert isinstance(made, pa.Table), made
        return made.drop_columns(["offset", "system_time"])

    def refused(self, sql: str) -> str:
        made = self.ask(sql)
        assert isinstance(made, str), made
        return made


@pytest.fixture
def derivation(spark: SparkSession, tmp_path: Path) -> Derivation:
    return Derivation(spark, tmp_path)


def same(one: pa.Table, other: pa.Table, but: Sequence[str] = ()) -> None:
    assert {f.name: f.type for f in one.schema if f.name not in but} == {
        f.name: f.type for f in other.schema if f.name not in but
    }
    for name in set(one.column_names) - set(but):
        assert one.column(name).combine_chunks().equals(other.column(name).combine_chunks()), name


def test_rows_out_are_rows_in(derivation: Derivation) -> None:
    given = derivation.add(every_type())
    same(derivation.rows_of("select * from a"), given.drop_columns(["offset", "system_time"]))


def test_columns_keep_their_types_under_other_names_and_through_other_shapes(derivation: Derivation) -> None:
    given = derivation.add(every_type().select(["u64", "ns", "clock_ns", "us", "u8"]))
    sql = """
        select time_bucket(interval '1' second, event_time) as event_time, u64 as n, ns, clock_ns, us, count(*) as c
        from (select * from a where event_time is not null) group by 1, 2, 3, 4, 5"""
    made = derivation.rows_of(sql)
    types = dict(zip(made.column_names, made.schema.types, strict=True))
    assert types["n"] == pa.uint64()
    assert [types[name] for name in ("ns", "clock_ns", "us")] == [
        given.schema.field(name).type for name in ("ns", "clock_ns", "us")
    ]
    assert set(made.column("ns").cast(pa.int64()).to_pylist()) == {-1, None, AT}


def test_nanoseconds_are_numbers_to_a_query(derivation: Derivation) -> None:
    derivation.add(every_type().select(["ns"]))
    made = derivation.rows_of("select event_time, ns + 1 as later, timestamp_millis(ns div 1000000) as cut from a")
    assert made.column("later").to_pylist() == [0, None, AT + 1]
    assert made.column("cut").cast(pa.int64()).to_pylist() == [0, None, AT // 10**6]


def test_digits_are_cut_by_the_author_or_not_at_all(derivation: Derivation) -> None:
    derivation.add(every_type().select(["us", "u8", "i8"]))
    said = derivation.refused("select event_time, us + interval '1' second as later from a")
    assert "column 'later' holds times with digits that timestamp[ms, tz=UTC] cannot hold" in said
    assert "date_trunc('MILLISECOND', later)" in said
    cut = derivation.rows_of("select event_time, date_trunc('MILLISECOND', us + interval '1' second) as later from a")
    assert cut.column("later").cast(pa.int64()).to_pylist() == [999, None, AT // 10**6 + 1000]
    number = derivation.rows_of("select event_time, unix_micros(us) as later from a")
    assert number.column("later").to_pylist() == [-1, None, AT // 1000]
    mixed = derivation.refused("select event_time, u8 from a union all select event_time, cast(i8 as smallint) from a")
    assert "column 'u8' holds values that are no uint8" in mixed


def test_an_event_time_in_nanoseconds_is_refused_by_name(derivation: Derivation) -> None:
    derivation.add(pa.table({"v": [1]}), pa.array([AT], pa.timestamp("ns", "UTC")))
    assert "the event time 'event_time' of an input counts nanoseconds" in derivation.refused("select * from a")


def test_an_event_time_in_microseconds_is_kept(derivation: Derivation) -> None:
    derivation.add(pa.table({"v": [1]}), pa.array([1_234_567], pa.timestamp("us", "UTC")))
    made = derivation.rows_of("select * from a")
    assert made.column("event_time").type == pa.timestamp("us", "UTC")
    assert made.column("event_time").cast(pa.int64()).to_pylist() == [1_234_567]


def test_a_dataset_that_has_the_wider_types_keeps_them(derivation: Derivation) -> None:
    derivation.add(every_type().select(["u64", "u8"]))
    wider = pa.field("u64", pa.decimal128(20, 0)), pa.field("u8", pa.int16())
    derivation.force = pa.schema([*SYSTEM, *wider], metadata={EXTRA_KEY: b'{"said":"by its author"}'})
    made = derivation.rows_of("select * from a")
    assert made.schema.types[2:] == [pa.decimal128(20, 0), pa.int16()]
    assert [int(value) for value in made.column("u64").drop_null().to_pylist()] == [0, 2**64 - 1]


def test_old_slices_are_read_under_the_schema_in_force(derivation: Derivation) -> None:
    old = pa.struct([pa.field("n", pa.uint64()), pa.field("deep", pa.struct([pa.field("a", pa.int32())]))])
    new = pa.struct([
        pa.field("added", pa.string()),
        pa.field("deep", pa.struct([pa.field("b", pa.timestamp("ns", "UTC")), pa.field("a", pa.int32())])),
        pa.field("n", pa.uint64()),
    ])  # fmt: skip
    derivation.add(pa.table({"place": pa.array([{"n": 2**64 - 1, "deep": {"a": 1}}, None], old)}))
    row = {"added": "x", "deep": {"b": AT, "a": 2}, "n": 1}
    derivation.add(pa.table({"note": ["y"], "place": pa.array([row], new)}))
    expected = pa.array([{"added": None, "deep": {"b": None, "a": 1}, "n": 2**64 - 1}, None, row], new)
    for sql in ("select * from a", "select event_time, note, place from a where event_time is not null"):
        made = derivation.rows_of(sql)
        assert made.column("note").to_pylist() == [None, None, "y"]
        assert made.column("place").type == new
        assert made.column("place").combine_chunks().equals(expected)
    settled = derivation.rows_of(
        "select time_bucket(interval '1' second, event_time) as event_time, max(place.added) as m, count(note) as c "
        "from a group by 1"
    )
    assert settled["m"].to_pylist() == [None, None, "x"]
    assert settled["c"].to_pylist() == [0, 0, 1]


@pytest.mark.parametrize("changelog", [False, True], ids=["only grows", "changelog"])
def test_rows_kept_from_before_the_schema_grew_are_counted_on(derivation: Derivation, changelog: bool) -> None:
    """A table that changes for ever keeps rows of its input between transactions, in the columns of their time."""
    derivation.changelog = changelog
    old, new = pa.struct([("n", pa.uint64())]), pa.struct([("added", pa.string()), ("n", pa.uint64())])
    sql = "select k, max(event_time) as event_time, count(place.n) as c, sum(place.n) as s from a group by k"
    derivation.add(pa.table({"k": ["x", "y"], "place": pa.array([{"n": 2**64 - 1}, {"n": 1}], old)}))
    first = derivation.go_on(sql)
    assert sorted(zip(first["k"].to_pylist(), first["c"].to_pylist(), strict=True)) == [("x", 1), ("y", 1)]
    derivation.add(pa.table({"note": ["z"], "k": ["x"], "place": pa.array([{"added": "a", "n": 1}], new)}))
    second = derivation.go_on(sql)
    assert list(zip(second["op"].to_pylist(), second["c"].to_pylist(), second["s"].to_pylist(), strict=True)) == [
        (2, 1, 2**64 - 1), (3, 2, 2**64),
    ]  # fmt: skip


def test_a_star_over_an_input_that_grew_is_told_by_the_new_column(derivation: Derivation) -> None:
    derivation.force = derivation.add(pa.table({"v": [1]})).schema
    derivation.add(pa.table({"v": [1], "note": ["x"]}))
    assert derivation.rows_of("select event_time, v from a").column("v").to_pylist() == [1, 1]
    assert "extra note" in derivation.refused("select * from a")


def test_uuids_are_passed_on_as_uuids(derivation: Derivation) -> None:
    """What a query computes of them are bytes, as it sees bytes."""
    ids = pa.array([uuid.UUID(int=5).bytes, None], pa.binary(16))
    schema = pa.schema([stored(pa.field("id", pa.uuid()))])
    derivation.add(pa.Table.from_arrays([ids], schema=schema))
    made = derivation.rows_of("select event_time, id, id as other, substr(id, 1, 4) as part from a")
    assert [made.schema.field(name).type for name in ("id", "other", "part")] == [pa.uuid(), pa.uuid(), pa.binary()]
    assert made.column("other").to_pylist() == [uuid.UUID(int=5), None]
