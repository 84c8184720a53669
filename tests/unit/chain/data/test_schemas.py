from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chain.codec.arrow_schema import schema_of
from chain.data.arrow_schema import differences, from_arrow, to_arrow
from chain.data.ddl import parse_ddl, spell
from chain.data.parquet import check_storable
from chain.data.type_limits import check_schema
from chain.errors import Invalid
from chain.model import schema as odf
from chain.model.events import SetDataSchema
from chain.model.schema import DataField, DataSchema, DataType, TimeUnit
from worlds.legacy_schema import legacy
from worlds.schemas import SCHEMAS

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
