"""Schemas, and what they say of columns."""

from __future__ import annotations

import contextlib
import io
import json
import uuid
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as some
from hypothesis import strategies as st

from chain.codec.arrow_schema import schema_of
from chain.data import uuids
from chain.data.arrow_schema import differences, from_arrow, to_arrow
from chain.data.ddl import parse_ddl, spell, spell_field
from chain.data.json_values import plain_rows
from chain.data.logical_hash import logical_hash
from chain.data.parquet import check_storable, open_slice, write_slice
from chain.data.partition import hashable, hashes, shards_of
from chain.data.type_limits import check_schema
from chain.errors import Invalid
from chain.model import schema as odf
from chain.model.events import SetDataSchema
from chain.model.schema import DataField, DataSchema, DataType, TimeUnit
from worlds.schemas import SCHEMAS, legacy

#

VECTORS = json.loads((Path(__file__).parents[3] / "golden" / "vectors.json").read_text())


@pytest.mark.slow
@given(SCHEMAS)
def test_schemas_survive_arrow(schema: DataSchema) -> None:
    arrow = to_arrow(schema)
    assert from_arrow(arrow) == schema
    assert differences(schema, arrow) == []
    assert all(spell(field.type) for field in schema.fields)


@pytest.mark.slow
@given(SCHEMAS)
def test_schemas_survive_a_slice_or_are_refused_by_it(schema: DataSchema) -> None:
    """Parquet has fewer types: what it would change is refused by name. That keys are sorted is an encoding."""
    file = io.BytesIO()
    arrow = to_arrow(schema)
    try:
        check_storable(arrow)
        pq.write_table(arrow.empty_table(), file, version="2.6", store_schema=True)
    except (Invalid, pa.ArrowNotImplementedError):
        return  # as SliceWriter refuses it
    read = pq.read_schema(file)
    assert differences(schema, read) == []
    told = [
        [(field.name, spell(field.type), field.extra) for field in one.fields] for one in (schema, from_arrow(read))
    ]
    assert told[0] == told[1]


@pytest.mark.slow
@given(SCHEMAS)
def test_the_legacy_form_says_the_same_columns(schema: DataSchema) -> None:
    """Old chains hold Arrow's own bytes, from before there were attributes."""
    said = schema_of(SetDataSchema(raw_arrow_schema=legacy(to_arrow(schema))))
    assert [(field.name, spell(field.type)) for field in said.fields] == [
        (field.name, spell(field.type)) for field in schema.fields
    ]


def only(**columns: DataType) -> DataSchema:
    return DataSchema(fields=tuple(DataField(name=name, type=kind) for name, kind in columns.items()))


def test_defaults_are_milliseconds_and_utc() -> None:
    arrow = to_arrow(only(at=odf.Timestamp(), t=odf.Time(), d=odf.Duration()))
    assert arrow.types == [pa.timestamp("ms", "UTC"), pa.time32("ms"), pa.duration("ms")]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view()])
def test_encodings_are_not_types(kind: pa.DataType) -> None:
    assert from_arrow(pa.schema([("a", kind)])) == only(a=odf.Option(inner=odf.String()))


@pytest.mark.parametrize(
    "bad",
    [
        only(a=odf.Option(inner=odf.Option(inner=odf.Bool()))),
        only(a=odf.Decimal(precision=0, scale=0)),
        only(a=odf.Decimal(precision=77, scale=0)),
        only(a=odf.Binary(fixed_length=1 << 40)),
        only(a=odf.Timestamp(timezone="")),
        only(a=odf.List(item_type=odf.Int8(), fixed_length=1 << 31)),
        only(a=odf.Map(key_type=odf.Option(inner=odf.String()), value_type=odf.Int8())),
        only(a=odf.Map(key_type=odf.Null(), value_type=odf.Int8())),
        only(a=odf.Struct(fields=(DataField(name="b", type=odf.Decimal(precision=77, scale=0)),))),
        DataSchema(fields=(DataField(name="a", type=odf.Bool()), DataField(name="a", type=odf.Bool()))),
    ],
)
def test_what_arrow_cannot_hold_is_refused(bad: DataSchema) -> None:
    with pytest.raises(Invalid):
        to_arrow(bad)
    with pytest.raises(Invalid):
        check_schema(bad)


@pytest.mark.parametrize(
    "largest",
    [
        odf.Binary(fixed_length=(1 << 31) - 1),
        odf.List(item_type=odf.Int8(), fixed_length=(1 << 31) - 1),
        odf.Decimal(precision=76, scale=(1 << 31) - 1),
        odf.Decimal(precision=1, scale=-(1 << 31)),
        odf.Timestamp(timezone="no zone at all"),
    ],
)
def test_what_is_not_refused_arrow_can_hold(largest: DataType) -> None:
    """``check_schema`` decides without Arrow, so it must know Arrow's limits."""
    assert len(to_arrow(only(a=largest))) == 1


def test_deep_types_are_refused_both_ways() -> None:
    kind: DataType = odf.Int8()
    arrow = pa.int8()
    for _ in range(50):
        kind, arrow = odf.List(item_type=kind), pa.list_(arrow)
    with pytest.raises(Invalid, match="nested deeper"):
        to_arrow(only(a=kind))
    with pytest.raises(Invalid, match="nested deeper"):
        from_arrow(pa.schema([("a", arrow)]))


@pytest.mark.parametrize(
    "kind", [pa.timestamp("ms"), pa.dictionary(pa.int8(), pa.string()), pa.list_(pa.timestamp("s"))]
)
def test_what_odf_does_not_know_is_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(Invalid) as caught:
        from_arrow(pa.schema([("ok", pa.int8()), ("bad", kind)]))
    assert caught.value.place.startswith("bad")


def test_differences_are_told_one_by_one() -> None:
    declared = only(a=odf.Int32(), b=odf.Option(inner=odf.String()), c=odf.List(item_type=odf.Int8()))
    actual = pa.schema(
        [
            pa.field("a", pa.int64(), nullable=False),
            pa.field("b", pa.string(), nullable=False),
            pa.field("c", pa.list_(pa.field("item", pa.int8(), nullable=True)), nullable=False),
        ]
    )
    told = [(one.place, one.expected, one.actual) for one in differences(declared, actual)]
    assert told == [("a", "int32", "int64"), ("c[]", "int8 without nulls", "int8 with nulls")]


def test_missing_extra_and_renamed_columns_are_differences() -> None:
    declared = only(a=odf.Int8(), b=odf.Int8())
    slot = pa.field("a", pa.int8(), nullable=False)
    assert [one.place for one in differences(declared, pa.schema([slot]))] == ["b"]
    assert [one.place for one in differences(only(a=odf.Int8()), pa.schema([slot, slot.with_name("z")]))] == ["z"]
    assert [one.actual for one in differences(declared, pa.schema([slot, slot.with_name("z")]))] == ["z"]


GOLDEN_TYPES: dict[str, DataType] = {
    "Timestamp(ms,UTC)": odf.Timestamp(unit=TimeUnit.MILLISECOND, timezone="UTC"),
    "Option<Bool>": odf.Option(inner=odf.Bool()),
}


@pytest.mark.parametrize("text, expected", VECTORS["ddl"]["odf"].items())
def test_ddl_as_the_reference_reads_it(text: str, expected: str) -> None:
    kind = GOLDEN_TYPES.get(expected) or getattr(odf, expected)()
    assert parse_ddl([text]).fields == (DataField(name=text.split()[0], type=kind),)


def test_ddl_errors_of_the_reference_are_errors() -> None:
    for text in VECTORS["ddl"]["errors"]:
        with pytest.raises(Invalid, match="reserved word"):
            parse_ddl([text])


def test_ddl_spellings() -> None:
    told = parse_ddl(["`Odd name` varchar(10) not null, d DECIMAL(10, 2)", '"key" text null', "p double precision"])
    assert [(field.name, spell(field.type)) for field in told.fields] == [
        ("Odd name", "String"),
        ("d", "Decimal(10, 2)?"),
        ("key", "String?"),
        ("p", "Float64?"),
    ]


@pytest.mark.parametrize(
    "text, why",
    [
        ("city", "a column is a name and a type"),
        ("city STRING NUT NULL", "unknown type"),
        ("city STRNG", "unknown type 'STRNG'"),
        ("price DECIMAL(5", "put the column in quotes"),
        ("n decimal(2, 5)", "a decimal is"),
        ("n int(5)", "takes no parameters"),
        ("at timestamp(5)", "3, 6 or 9 digits"),
        ("at time(3, 6)", "3, 6 or 9 digits"),
        ("a int, , b int", "a column is a name and a type"),
        ("a int; drop table x", "cannot read"),
        ("a int, a text", "is there twice"),
    ],
)
def test_ddl_mistakes_are_named(text: str, why: str) -> None:
    with pytest.raises(Invalid, match=why.replace("(", r"\(")) as caught:
        parse_ddl(["ok int", text])
    assert caught.value.hint
    assert why == "is there twice" or caught.value.place == "ddlSchema[1]"


@pytest.mark.slow
@given(st.text(max_size=40))
def test_any_text_is_columns_or_refused(text: str) -> None:
    with contextlib.suppress(Invalid):
        parse_ddl([text])


def test_golden_schemas_are_what_golden_slices_hold() -> None:
    from chain.codec.blocks import decode_block
    from chain.data.parquet import open_slice
    from chain.model.events import SetDataSchema

    seen = 0
    for folder in sorted((Path(__file__).parents[3] / "golden" / "kamu").iterdir()):
        if not folder.is_dir():
            continue
        events: list[Any] = [decode_block(file.read_bytes()).event for file in (folder / "blocks").iterdir()]
        (said,) = [event for event in events if isinstance(event, SetDataSchema)]
        for file in (folder / "data").iterdir():
            with open_slice(file) as source:
                assert differences(said.schema, source.schema) == []
            seen += 1
    assert seen == 43


def test_times_without_a_zone_stand_where_the_zone_is_unsaid() -> None:
    local = pa.schema([pa.field("at", pa.timestamp("us"), nullable=False)])
    unsaid, said = odf.Timestamp(unit=TimeUnit.MICROSECOND), odf.Timestamp(unit=TimeUnit.MICROSECOND, timezone="UTC")
    assert differences(only(at=unsaid), local) == []
    assert differences(only(at=odf.Timestamp()), pa.schema([pa.field("at", pa.timestamp("ms"), nullable=False)])) == []
    for declared in (said, odf.Timestamp(), odf.Date()):
        [found] = differences(only(at=declared), local)
        assert (found.place, found.actual) == ("at", "a timestamp without a time zone")
    with pytest.raises(Invalid, match="at: a timestamp without a time zone is not a type"):
        from_arrow(local)


def test_one_odd_column_hides_no_other() -> None:
    actual = pa.schema([("a", pa.dictionary(pa.int8(), pa.string())), pa.field("b", pa.int8(), nullable=False)])
    found = differences(only(a=odf.String(), b=odf.Int16()), actual)
    assert [(each.place, each.expected) for each in found] == [("a", "a type that ODF knows"), ("b", "int16")]


_SPELLINGS = {
    "Bool": ["bool", "boolean"],
    "Int8": ["tinyint"],
    "Int16": ["smallint", "int2"],
    "Int32": ["int", "integer", "int4"],
    "Int64": ["bigint", "int8"],
    "UInt8": ["tinyint unsigned"],
    "UInt16": ["smallint unsigned", "int2 unsigned"],
    "UInt32": ["int unsigned", "integer unsigned"],
    "UInt64": ["bigint unsigned", "int8 unsigned"],
    "Float32": ["float", "real", "float4"],
    "Float64": ["double", "double precision", "float8"],
    "Date": ["date"],
    "Time(Nanosecond)": ["time", "time(9)"],
    "Time(Millisecond)": ["time(3)"],
    "Timestamp(Millisecond, UTC)": [
        "timestamp",
        "timestamp(3)",
        "timestamp with time zone",
        "timestamp(3) with time zone",
    ],
    "Timestamp(Microsecond, UTC)": ["timestamp(6)", "timestamp ( 6 ) without time zone"],
    "Timestamp(Nanosecond, UTC)": ["timestamp(9)"],
    "String": ["string", "text", "varchar", "varchar(10)", "char(2)"],
    "Binary": ["binary", "varbinary(16)", "bytea", "blob"],
    "Decimal(38, 10)": ["decimal", "numeric"],
    "Decimal(10, 0)": ["decimal(10)"],
    "Decimal(76, 30)": ["numeric(76, 30)", "decimal ( 76,30 )"],
}
_COLUMNS = st.tuples(
    st.text(min_size=1, max_size=8),
    st.sampled_from([(kind, text) for kind, texts in _SPELLINGS.items() for text in texts]),
    st.sampled_from(["", " null", " not null", " NOT  NULL"]),
    st.sampled_from(["upper", "lower"]),
    st.sampled_from(['"', "`"]),
)


@given(st.lists(_COLUMNS, min_size=1, max_size=5, unique_by=lambda column: column[0]), st.data())
def test_ddl_of_every_spelling(columns: list[tuple[str, tuple[str, str], str, str, str]], data: st.DataObject) -> None:
    """Names of any text, quoted; types in any case; optional or not; one column to a text, or several."""
    texts, expected = [], []
    for name, (kind, spelling), suffix, case, quote in columns:
        name = name.replace("`", "") or "x" * (len(expected) + 1)
        quoted = f'"{name.replace(chr(34), chr(34) * 2)}"' if quote == '"' else f"`{name}`"
        texts.append(f"{quoted} {getattr(spelling, case)()}{suffix}")
        expected.append((name, kind if "not" in suffix.lower() else kind + "?"))
    assume(len({name for name, _ in expected}) == len(expected))
    cut = data.draw(st.integers(0, len(texts) - 1))
    several = [*texts[:cut], ", ".join(texts[cut:])]
    assert [(field.name, spell(field.type)) for field in parse_ddl(several).fields] == expected


# Columns of UUIDs: bytes with an attribute in Arrow and in schemas, a logical type in Parquet, texts for people.

ONE = uuid.UUID("123e4567-e89b-12d3-a456-426614174000")
DECLARED = parse_ddl(["id UUID NOT NULL", "other uuid"])
VALUES = st.lists(st.none() | st.uuids(), max_size=20)


def bytes_of(values: list[uuid.UUID | None]) -> pa.Array:
    return pa.array([None if value is None else value.bytes for value in values], pa.binary(16))


def test_the_specifications_own_example_is_declared() -> None:
    assert [(field.name, spell_field(field)) for field in DECLARED.fields] == [("id", "UUID"), ("other", "UUID?")]
    assert all(uuids.is_uuid(field) for field in DECLARED.fields)
    inner = odf.Binary(fixed_length=16)
    assert [field.type for field in DECLARED.fields] == [inner, odf.Option(inner=inner)], "as the reference reads them"


def test_arrows_own_type_is_the_same_column() -> None:
    theirs = pa.schema([pa.field("id", pa.uuid(), nullable=False), pa.field("other", pa.uuid())])
    assert from_arrow(theirs) == DECLARED == from_arrow(to_arrow(DECLARED))
    assert differences(DECLARED, theirs) == []
    assert uuids.named_all(to_arrow(DECLARED)).types == theirs.types
    assert uuids.stored_all(theirs).equals(to_arrow(DECLARED), check_metadata=True)


@pytest.mark.parametrize(
    "field",
    [
        DataField(name="a", type=odf.Binary(fixed_length=16)),
        DataField(name="a", type=odf.Binary(fixed_length=15), extra={uuids.TYPE: uuids.UUID}),
        DataField(name="a", type=odf.Binary(fixed_length=16), extra={uuids.TYPE: {"kind": "Other"}}),
        DataField(name="a", type=odf.Binary(fixed_length=16), extra={"b": uuids.TYPE}),
    ],
)
def test_other_bytes_are_none(field: DataField) -> None:
    assert not uuids.is_uuid(field)
    assert uuids.named_all(to_arrow(DataSchema(fields=(field,)))) == to_arrow(DataSchema(fields=(field,)))


@pytest.mark.slow
@given(VALUES)
def test_texts_and_bytes(values: list[uuid.UUID | None]) -> None:
    texts = [None if value is None else str(value) for value in values]
    column = uuids.parsed(
        pa.chunked_array([texts, [None if each is None else each.upper() for each in texts]], pa.string())
    )
    assert column.to_pylist() == bytes_of(values + values).to_pylist()
    rows = pa.Table.from_arrays([bytes_of(values)], schema=pa.schema([to_arrow(DECLARED).field("other")]))
    assert plain_rows(rows) == [(text,) for text in texts]


@pytest.mark.parametrize(
    "text", ["", "123e4567e89b12d3a456426614174000", f"{{{ONE}}}", f"urn:uuid:{ONE}", f"{ONE}0", "x" * 36]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(pa.ArrowInvalid):
        uuids.parsed(pa.chunked_array([[None, text]], pa.string()))


@pytest.mark.slow
@given(VALUES)
def test_a_slice_says_uuid_and_hashes_as_its_bytes(values: list[uuid.UUID | None]) -> None:
    """In columns and in structs; items of lists are bytes, as nothing in the format could say what they are."""
    column, marked = bytes_of(values), to_arrow(DECLARED).field("other")
    inside = pa.StructArray.from_arrays([column], fields=[marked.with_name("x")])
    fields = [marked, pa.field("inside", inside.type), pa.field("many", pa.list_(pa.binary(16)))]
    many = pa.array([[each] for each in column.to_pylist()], pa.list_(pa.binary(16)))
    rows = pa.Table.from_arrays([column, inside, many], schema=pa.schema(fields))
    with TemporaryDirectory() as folder:
        file = Path(folder) / "slice"
        write_slice(rows, file)
        written = pq.ParquetFile(file)
        assert written.schema_arrow.field("other").type == pa.uuid()
        assert written.schema_arrow.field("inside").type.field("x").type == pa.uuid()
        assert "fixed_len_byte_array(16) field_id=-1 other (UUID)" in str(written.schema)
        with open_slice(file) as source:
            assert from_arrow(source.schema) == from_arrow(rows.schema)
            assert source.read().to_pylist() == rows.to_pylist()
            assert [row for batch in source.batches() for row in batch.to_pylist()] == rows.to_pylist()
        shown = duckdb.sql(f"SELECT other, inside.x FROM read_parquet('{file}')").fetchall()
        assert shown == [(value, value) for value in values]
    assert logical_hash(rows) == logical_hash(rows.cast(uuids.named_all(rows.schema)))


def test_a_file_of_others_is_read(tmp_path: Path) -> None:
    """With lists of Arrow's type too, and whether its writer stored Arrow's schema or not."""
    column = pa.array([[ONE.bytes], None], pa.list_(pa.binary(16))).cast(pa.list_(pa.uuid()))
    table = pa.table({"id": bytes_of([ONE, None]).cast(pa.uuid()), "many": column})
    for stored in (True, False):
        pq.write_table(table, tmp_path / "f.parquet", store_schema=stored)
        with open_slice(tmp_path / "f.parquet") as source:
            assert [spell_field(field) for field in from_arrow(source.schema).fields] == ["UUID?", "List(Binary(16)?)?"]
            assert source.read().to_pylist() == [{"id": ONE.bytes, "many": [ONE.bytes]}, {"id": None, "many": None}]
            assert source.tail(1).to_pylist() == [{"id": None, "many": None}]


# Which shard a row belongs to: the hash of Spark, whatever the other rows are.

GOLDEN = json.loads((Path(__file__).parents[3] / "golden" / "shards" / "xxhash64.json").read_text())


def golden() -> pa.Table:
    said = GOLDEN["columns"]
    decimals = [None if each is None else Decimal(each) for each in said["decimal"]]
    return pa.table(
        {
            "string": pa.array(said["string"], pa.string()),
            "int": pa.array(said["int"], pa.int32()),
            "bigint": pa.array(said["bigint"], pa.int64()),
            "smallint": pa.array(said["smallint"], pa.int16()),
            "boolean": pa.array(said["boolean"], pa.bool_()),
            "date": pa.array(said["date"], pa.date32()),
            "timestamp": pa.array(said["timestamp"], pa.timestamp("us", "UTC")),
            "decimal": pa.array(decimals, pa.decimal128(18, 2)),
            "binary": pa.array(said["string"], pa.string()).cast(pa.binary()),
        }
    )


@pytest.mark.parametrize("column", GOLDEN["xxhash64"])
def test_each_type_is_hashed_as_spark_does(column: str) -> None:
    assert hashes(golden(), [column]).view(np.int64).tolist() == GOLDEN["xxhash64"][column]


def test_columns_together_and_the_shard_are_those_of_spark() -> None:
    rows = golden()
    assert hashes(rows, GOLDEN["together"]).view(np.int64).tolist() == GOLDEN["xxhash64_together"]
    assert shards_of(rows, GOLDEN["together"], GOLDEN["shards"]).tolist() == GOLDEN["shard"]


@pytest.mark.slow
@given(some.lists(some.tuples(some.none() | some.text(max_size=90), some.none() | some.integers(-(2**63), 2**63 - 1))))
def test_a_row_has_its_shard_whatever_rows_are_beside_it(rows: list[tuple[Any, Any]]) -> None:
    kinds = (pa.string(), pa.int64())
    columns = [pa.array([row[place] for row in rows], kind) for place, kind in enumerate(kinds)]
    table = pa.table(columns, names=["text", "number"])
    together = shards_of(table, ["text", "number"], 5).tolist()
    assert together == [int(shards_of(table.slice(n, 1), ["text", "number"], 5)[0]) for n in range(len(rows))]
    assert all(0 <= each < 5 for each in together)


def test_one_shard_has_all_rows_and_no_rows_have_none() -> None:
    assert shards_of(golden(), [], 1).tolist() == [0] * len(GOLDEN["shard"])
    assert shards_of(golden().slice(0, 0), ["string"], 7).tolist() == []


@pytest.mark.parametrize("kind", [pa.float64(), pa.list_(pa.int32()), pa.uint64(), pa.decimal128(20, 2)])
def test_columns_whose_equal_values_may_differ_in_bytes_decide_nothing(kind: pa.DataType) -> None:
    assert not hashable(kind)
    with pytest.raises(Invalid, match="cannot decide the shard"):
        hashes(pa.table({"a": pa.array([], kind)}), ["a"])
