from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.data.arrow_schema import differences, from_arrow, to_arrow
from chain.data.ddl import parse_ddl
from chain.data.spell import spell
from chain.errors import Invalid
from chain.model import schema as odf
from chain.model.schema import DataField, DataSchema, DataType, TimeUnit

VECTORS = json.loads((Path(__file__).parents[3] / "golden" / "vectors.json").read_text())

UNITS = st.sampled_from(TimeUnit)
LEAVES: st.SearchStrategy[DataType] = st.one_of(
    st.sampled_from([odf.Bool(), odf.Date(), odf.Float16(), odf.Float32(), odf.Float64(), odf.String(), odf.Binary()]),
    st.sampled_from([odf.Int8(), odf.Int16(), odf.Int32(), odf.Int64()]),
    st.sampled_from([odf.UInt8(), odf.UInt16(), odf.UInt32(), odf.UInt64()]),
    st.builds(odf.Binary, fixed_length=st.integers(1, 64)),
    st.integers(1, 76).flatmap(lambda p: st.builds(odf.Decimal, precision=st.just(p), scale=st.integers(-5, p))),
    st.builds(odf.Duration, unit=UNITS),
    st.builds(odf.Time, unit=UNITS),
    st.builds(odf.Timestamp, unit=UNITS, timezone=st.sampled_from(["UTC", "Europe/Berlin", "+02:00"])),
)
EXTRA = st.none() | st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=2)


def optional(inner: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
    return inner | st.builds(odf.Option, inner=inner)


def fields(inner: st.SearchStrategy[DataType], **size: int) -> st.SearchStrategy[tuple[DataField, ...]]:
    one = st.builds(DataField, name=st.text(min_size=1, max_size=5), type=optional(inner), extra=EXTRA)
    return st.lists(one, unique_by=lambda field: field.name, **size).map(tuple)


def nested(inner: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
    return st.one_of(
        st.builds(odf.List, item_type=optional(inner), fixed_length=st.none() | st.integers(1, 5)),
        st.builds(odf.Map, key_type=inner, value_type=optional(inner), keys_sorted=st.sampled_from([None, True])),
        st.builds(odf.Struct, fields=fields(inner, min_size=1, max_size=3)),
    )


SCHEMAS = st.builds(DataSchema, fields=fields(st.recursive(LEAVES, nested, max_leaves=6), max_size=5), extra=EXTRA)


@given(SCHEMAS)
@settings(deadline=None)
def test_schemas_survive_arrow(schema: DataSchema) -> None:
    arrow = to_arrow(schema)
    assert from_arrow(arrow) == schema
    assert differences(schema, arrow) == []
    assert all(spell(field.type) for field in schema.fields)


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
        DataSchema(fields=(DataField(name="a", type=odf.Bool()), DataField(name="a", type=odf.Bool()))),
    ],
)
def test_what_arrow_cannot_hold_is_refused(bad: DataSchema) -> None:
    with pytest.raises(Invalid):
        to_arrow(bad)


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
        ("n decimal(2, 5)", "a decimal is"),
        ("n int(5)", "takes no parameters"),
        ("at timestamp(6)", "milliseconds"),
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
