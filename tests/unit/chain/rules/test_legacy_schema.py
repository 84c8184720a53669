"""Schemas in the legacy Arrow form: read without a native parser, and upgraded to ODF's own."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from chain.codec.arrow_schema import schema_of
from chain.errors import Invalid
from chain.model.events import SetDataSchema
from chain.model.schema import (
    Binary,
    Bool,
    DataField,
    DataSchema,
    DataType,
    Date,
    Decimal,
    Duration,
    Float16,
    Float32,
    Float64,
    Int8,
    Int32,
    Int64,
    List,
    Map,
    Null,
    Option,
    String,
    Struct,
    Time,
    Timestamp,
    TimeUnit,
    UInt8,
    UInt64,
)
from chain.rules.schema import incompatibilities
from worlds import legacy_schema


def legacy(schema: pa.Schema) -> SetDataSchema:
    return SetDataSchema(raw_arrow_schema=legacy_schema.legacy(schema))


TYPES: list[tuple[pa.DataType, DataType]] = [
    (pa.int8(), Int8()),
    (pa.int64(), Int64()),
    (pa.uint8(), UInt8()),
    (pa.uint64(), UInt64()),
    (pa.float16(), Float16()),
    (pa.float32(), Float32()),
    (pa.float64(), Float64()),
    (pa.bool_(), Bool()),
    (pa.string(), String()),
    (pa.large_string(), String()),
    (pa.string_view(), String()),
    (pa.binary(), Binary()),
    (pa.large_binary(), Binary()),
    (pa.binary_view(), Binary()),
    (pa.binary(7), Binary(fixed_length=7)),
    (pa.decimal128(12, 3), Decimal(precision=12, scale=3)),
    (pa.decimal256(40, -2), Decimal(precision=40, scale=-2)),
    (pa.date32(), Date()),
    (pa.date64(), Date()),
    (pa.time32("s"), Time(unit=TimeUnit.SECOND)),
    (pa.time32("ms"), Time(unit=TimeUnit.MILLISECOND)),
    (pa.time64("ns"), Time(unit=TimeUnit.NANOSECOND)),
    (pa.timestamp("us", "UTC"), Timestamp(unit=TimeUnit.MICROSECOND, timezone="UTC")),
    (pa.timestamp("ms"), Timestamp(unit=TimeUnit.MILLISECOND)),
    (pa.duration("ms"), Duration(unit=TimeUnit.MILLISECOND)),
    (pa.duration("s"), Duration(unit=TimeUnit.SECOND)),
    (pa.list_(pa.int8()), List(item_type=Option(inner=Int8()))),
    (pa.large_list(pa.field("item", pa.int8(), nullable=False)), List(item_type=Int8())),
    (pa.list_(pa.int8(), 3), List(item_type=Option(inner=Int8()), fixed_length=3)),
    (
        pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.string())]),
        Struct(fields=(DataField(name="a", type=Int32()), DataField(name="b", type=Option(inner=String())))),
    ),
    (
        pa.map_(pa.string(), pa.int32()),
        Map(key_type=String(), value_type=Option(inner=Int32()), keys_sorted=False),
    ),
]


@pytest.mark.parametrize(("arrow", "expected"), TYPES, ids=lambda value: str(value)[:40])
def test_types(arrow: pa.DataType, expected: DataType) -> None:
    schema = pa.schema([pa.field("required", arrow, nullable=False), pa.field("optional", arrow)])
    assert schema_of(legacy(schema)) == DataSchema(
        fields=(DataField(name="required", type=expected), DataField(name="optional", type=Option(inner=expected)))
    )


def test_null_columns() -> None:
    assert schema_of(legacy(pa.schema([pa.field("n", pa.null())]))).fields[0].type == Null()


@pytest.mark.parametrize(
    "arrow", [pa.dictionary(pa.int8(), pa.string()), pa.month_day_nano_interval(), pa.dense_union([])], ids=str
)
def test_types_that_odf_has_not(arrow: pa.DataType) -> None:
    with pytest.raises(Invalid, match=r"column 'x' has .*, for which ODF has no type"):
        schema_of(legacy(pa.schema([pa.field("x", arrow)])))


def test_the_golden_legacy_schema(vectors: dict[str, Any]) -> None:
    [vector] = [each for each in vectors["metadata_blocks"]["vectors"] if "legacy" in each["name"]]
    raw = bytes.fromhex(vector["block"]["event"][1]["raw_arrow_schema"]["$hex"])
    names = [field.name for field in schema_of(SetDataSchema(raw_arrow_schema=raw)).fields]
    assert names == ["a", "b"]


def test_upgrades_may_change_optionality_and_nothing_else() -> None:
    old = schema_of(legacy(pa.schema([("at", pa.timestamp("ms", "UTC")), ("n", pa.list_(pa.int32()))]))).fields
    same = (DataField(name="at", type=Timestamp()), DataField(name="n", type=List(item_type=Int32())))
    assert list(incompatibilities(old, same, upgrade=True)) == []
    assert len(list(incompatibilities(old, same))) == 2
    other = (DataField(name="at", type=Date()), DataField(name="n", type=List(item_type=Int64())))
    assert [each.message for each in incompatibilities(old, other, upgrade=True)] == [
        "column 'at' changes its type",
        "column 'n[]' changes its type",
    ]


def test_an_event_without_a_schema() -> None:
    with pytest.raises(Invalid, match="holds no schema"):
        schema_of(SetDataSchema())
    with pytest.raises(Invalid, match="too short"):
        schema_of(SetDataSchema(raw_arrow_schema=b""))


def test_a_change_of_parameters_is_told_in_full() -> None:
    old = (DataField(name="at", type=Timestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")),)
    new = (DataField(name="at", type=Timestamp(unit=TimeUnit.NANOSECOND, timezone="UTC")),)
    [found] = incompatibilities(old, new)
    assert (found.expected, found.actual) == ("Timestamp<Millisecond, UTC>", "Timestamp<Nanosecond, UTC>")
