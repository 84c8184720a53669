"""JSON in all its forms: what a value means, and which number it is."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chain.data.arrow_schema import from_arrow
from chain.errors import Invalid
from chain.model.source import ReadGeoJson, ReadJson, ReadNdGeoJson, ReadNdJson
from engines.spark.ingest.json_text import first_missing, loosen, needs_loosening, with_whole_numbers
from worlds.reading import NAME, read, read_step

# JSON, GeoJSON and JSON lines: numbers keep their digits, nothing is taken for something else, faults have a line.

LONG = "0.12345678901234567890123456789"
POINT = '{"type": "Point", "coordinates": [1.0, 2.0]}'


def feature(properties: str, geometry: str = POINT, more: str = "") -> str:
    return f'{{"type": "Feature", "properties": {properties}, "geometry": {geometry}{more}}}'


def collection(*features: str, more: str = "") -> str:
    return f'{{"type": "FeatureCollection"{more}, "features": [{",".join(features)}]}}'


@pytest.mark.parametrize(
    "text,step",
    [
        (f'{{"x": {LONG}}}', ReadNdJson(ddl_schema=("x DECIMAL(38, 29)",))),
        (f'[{{"x": {LONG}}}]', ReadJson(ddl_schema=("x DECIMAL(38, 29)",))),
        (f'{{"a": {{"b": [{{"x": {LONG}}}]}}}}', ReadJson(sub_path="a.b", ddl_schema=("x DECIMAL(38, 29)",))),
        (collection(feature(f'{{"x": {LONG}}}')), ReadGeoJson(ddl_schema=("x DECIMAL(38, 29)",))),
        (feature(f'{{"x": {LONG}}}'), ReadNdGeoJson(ddl_schema=("x DECIMAL(38, 29)",))),
    ],
    ids=["lines", "document", "sub path", "features", "feature lines"],
)
def test_decimals_never_pass_through_floats(tmp_path: Path, text: str, step: Any) -> None:
    assert read(tmp_path, text, step).column("x") == [Decimal(LONG)]


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.decimals(allow_nan=False, allow_infinity=False, places=9, min_value=-(10**27), max_value=10**27)))
def test_any_decimal_comes_out_as_it_stands(tmp_path: Path, values: list[Decimal]) -> None:
    text = "[" + ",".join(f'{{"x": {value:f}}}' for value in values) + "]"
    assert read(tmp_path, text, ReadJson(ddl_schema=("x DECIMAL(38, 9)",))).column("x") == values


@pytest.mark.parametrize(
    "text,step",
    [
        ('{"n": 12345678901234567890}\n{"n": 1}', ReadNdJson()),
        ('[{"n": 12345678901234567890}, {"n": 1}]', ReadJson()),
        (collection(feature('{"n": 12345678901234567890}'), feature('{"n": 1}')), ReadGeoJson()),
    ],
)
def test_whole_numbers_beyond_64_bits_keep_their_digits(tmp_path: Path, text: str, step: Any) -> None:
    assert read(tmp_path, text, step).column("n") == [Decimal(12345678901234567890), Decimal(1)]


def test_what_no_number_type_holds_is_not_guessed(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"column 'a\.b' holds whole numbers of 50 digits") as told:
        read(tmp_path, '{"a": {"b": ' + "9" * 50 + "}}", ReadNdJson())
    assert told.value.hint == "give a schema"
    assert read(tmp_path, '{"n": 1}\n{"n": 1.5}\n{"n": 1e3}', ReadNdJson()).column("n") == [1.0, 1.5, 1000.0]


def test_a_property_called_geometry_steps_aside(tmp_path: Path) -> None:
    got = read(tmp_path, collection(feature('{"geometry": "round", "a": 1}')), ReadGeoJson())
    assert got.rows == [["round", 1, '{"coordinates":[1.0,2.0],"type":"Point"}']]
    assert got.table.column_names == ["_geometry", "a", "geometry"]
    with pytest.raises(Invalid, match="would both be the column '_geometry'"):
        read(tmp_path, feature('{"geometry": 1, "_geometry": 2}'), ReadNdGeoJson())
    nested = read(tmp_path, feature('{"a": {"geometry": 1}}'), ReadNdGeoJson())
    assert nested.column("a") == [{"geometry": 1}]


@pytest.mark.parametrize("step,whole", [(ReadGeoJson(), True), (ReadNdGeoJson(), False)])
def test_no_shape_is_null(tmp_path: Path, step: Any, whole: bool) -> None:
    text = [feature('{"a": 1}', "null"), feature('{"a": 2}')]
    got = read(tmp_path, collection(*text) if whole else "\n".join(text), step)
    assert got.column("geometry")[0] is None
    assert got.column("geometry")[1] is not None


def crs(name: str) -> str:
    return f', "crs": {{"type": "name", "properties": {{"name": "{name}"}}}}'


@pytest.mark.parametrize(
    "name", ["urn:ogc:def:crs:OGC:1.3:CRS84", "urn:ogc:def:crs:OGC::CRS84", "EPSG:4326", "urn:ogc:def:crs:EPSG::4326"]
)
def test_the_usual_coordinates_are_not_mentioned(tmp_path: Path, name: str) -> None:
    got = read(tmp_path, collection(feature("{}"), more=crs(name)), ReadGeoJson())
    assert got.column("geometry") == ['{"coordinates":[1.0,2.0],"type":"Point"}']


@pytest.mark.parametrize("name", ["EPSG:3857", "urn:ogc:def:crs:EPSG::25832", "urn:ogc:def:crs:EPSG::14326"])
def test_other_coordinates_carry_their_system(tmp_path: Path, name: str) -> None:
    wanted = {"type": "name", "properties": {"name": name}}
    for text, step in [
        (collection(feature("{}"), more=crs(name)), ReadGeoJson()),
        (feature("{}", more=crs(name)), ReadNdGeoJson()),
    ]:
        (shape,) = read(tmp_path, text, step).column("geometry")
        assert json.loads(shape)["crs"] == wanted


def test_coordinates_keep_digits_that_a_double_would_lose(tmp_path: Path) -> None:
    text = collection(feature("{}", f'{{"type": "Point", "coordinates": [{LONG}, 1.50, 1e2, 0.1000000000000000055]}}'))
    (shape,) = read(tmp_path, text, ReadGeoJson()).column("geometry")
    assert shape == f'{{"coordinates":[{LONG},1.5,100.0,0.1000000000000000055],"type":"Point"}}'


def test_the_id_of_a_feature_is_a_column_where_one_is_declared(tmp_path: Path) -> None:
    text = feature('{"a": 1}', more=', "id": 7') + "\n" + feature('{"a": 2, "id": 9}', more=', "id": 8')
    assert read(tmp_path, text, ReadNdGeoJson(ddl_schema=("id BIGINT, a BIGINT, geometry STRING",))).column("id") == [
        7,
        9,
    ]
    got = read(tmp_path, text, ReadNdGeoJson(ddl_schema=("a BIGINT, geometry STRING",)))
    assert got.unknown == {"id": 2, "id beside properties": 1}


@pytest.mark.parametrize("whole", [True, False])
def test_what_is_beside_the_properties_of_a_feature_is_told(tmp_path: Path, whole: bool) -> None:
    """The reference makes no columns of it, so guessing makes none either; an id need not be of one type."""
    features = (
        feature('{"a": 1}', more=', "id": 7, "title": "x", "bbox": [1, 2, 1, 2]'),
        feature('{"a": 2}', more=', "id": "way/8"'),
        feature('{"a": 3}', more=', "id": null'),
        feature('{"a": 4, "id": 9}', more=', "id": 9'),
        feature('{"a": 5, "id": 9}', more=', "id": 10'),
    )
    step = ReadGeoJson() if whole else ReadNdGeoJson()
    got = read(tmp_path, collection(*features) if whole else "\n".join(features), step)
    assert got.table.column_names == ["a", "geometry", "id"]
    assert got.column("id") == [None, None, None, 9, 9]
    assert got.unknown == {"id beside properties": 3, "title beside properties": 1}


@pytest.mark.parametrize(
    "text,step",
    [
        ('{"a": 1, "b": 2}\n{"a": 2}\n{"a": 3, "b": [1], "c": null}\n', ReadNdJson(ddl_schema=("a BIGINT",))),
        ('[{"a": 1, "b": 2},\n {"a": 2}, {"a": 3, "b": [1], "c": null}]', ReadJson(ddl_schema=("a BIGINT",))),
        (
            collection(feature('{"a":1,"b":2}'), feature('{"a":2}'), feature('{"a":3,"b":[1],"c":null}')),
            ReadGeoJson(ddl_schema=("a BIGINT, geometry STRING",)),
        ),
    ],
)
def test_unknown_fields_are_counted_by_name(tmp_path: Path, text: str, step: Any) -> None:
    got = read(tmp_path, text, step)
    assert got.column("a") == [1, 2, 3]
    assert got.unknown == {"b": 2, "c": 1}


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ('{"foo": 1, "bar": "a"}\n{"foo": 2}\n', ReadNdJson(ddl_schema=("id BIGINT, v STRING",))),
        ('[{"foo": 1}, {"bar": 2}]', ReadJson(ddl_schema=("id BIGINT, v STRING",))),
    ],
)
def test_a_file_in_which_no_field_matches_is_refused(tmp_path: Path, text: str, step: Any) -> None:
    """As a header of CSV in which no column does: it would become rows of nulls."""
    with pytest.raises(Invalid, match="no field of any record is in the schema") as told:
        read(tmp_path, text, step)
    assert told.value.rule == "read-columns"
    assert "'foo'" in told.value.message
    assert "rename them in preprocess" in told.value.hint
    matching = text.replace("bar", "v").replace('"v": 2', '"v": "2"')
    assert read(tmp_path, matching, step).unknown == {"foo": 2 - text.count("[")}


def test_unknown_fields_within_values_are_told(tmp_path: Path) -> None:
    step = ReadNdJson(schema=from_arrow(pa.schema([("a", pa.struct([("x", pa.int64())]))])))
    assert read(tmp_path, '{"a": {"x": 1}}', step).unknown == {}
    assert read(tmp_path, '{"a": {"x": 1, "y": 2}}', step).unknown == {"fields within nested values": 1}


NDJSON = ReadNdJson(ddl_schema=("a BIGINT, t STRING",))
JSON = ReadJson(ddl_schema=("a BIGINT, t STRING",))


@pytest.mark.parametrize(
    "text,step,place,said",
    [
        ('{"a": 1}\n{"a": "1"}', NDJSON, ":2", "field 'a' is a string, and the schema reads a number (Int64)"),
        ('{"a": 1}\n{"t": 5}', NDJSON, ":2", "field 't' is a number, and the schema reads a string (String)"),
        ('{"a": 1}\n{"t": {"u": 5}}', NDJSON, ":2", "field 't' is an object"),
        ('{"a": 1}\n[1]', NDJSON, ":2", "a record that is no object but: array"),
        ('{"a": 1}\n{"a": 2', NDJSON, ":2", "not the JSON expected"),
        ('{"t": 5}', ReadNdJson(ddl_schema=("t TIMESTAMP",)), ":1", "the schema reads a string (Timestamp)"),
        ("\n{}\n{}", ReadNdJson(), ":2", "the first 2 records have no fields"),
        ("[{}]", ReadJson(), ":1", "the first record has no fields"),
        ("null", NDJSON, ":1", "a record that is no object but: null"),
        (' \n null {"a": 1}', NDJSON, ":2", "a record that is no object but: null"),
        ('{"t": "} null"}\n{}\n{"a": null}\n\nnull\n{"a": 1}', NDJSON, ":5", "a record that is no object but: null"),
        ('[{"a": 1},\nnull]', JSON, ":2", "a record that is no object but: null"),
        ("[null]", ReadJson(), ":1", "a record that is no object"),
        (collection("null"), ReadGeoJson(), ":1", "not a GeoJSON Feature"),
        ('{"a": 1, "u": 1}\n\n{"t": "x"}\n{"a": 1.5}\n{"a": 2}', NDJSON, ":4", "column 'a': '1.5' is not an Int64"),
        ('[{"a": 1},\n{"t": "x"},\n{"a":\n 1e-3}]', JSON, ":3", "column 'a': '1e-3' is not an Int64"),
        ('{"a": 1}\n{"a": 2},\n{"a": 3}', NDJSON, ":2", "',' is between the records"),
        ('{"a": 1}\n{"a": 2}}', NDJSON, ":2", "'}' is between the records"),
        ('{"a": 1, "a": 2}', NDJSON, ":1", "specified twice"),
        ('[{"a": 1},\n{"a": 1,\n "a": 2}]', JSON, ":2", "specified twice"),
        ('[{"a": 1},\n\n{"a":\n "x"}]', JSON, ":3", "field 'a' is a string"),
        ('[{"a": 1},\n{"a": 2}', JSON, "", "not JSON"),
        ('[{"a": 1},\n{"a": 2},]', JSON, ":2", "trailing comma"),
        ('[{"a": NaN}]', JSON, ":1", "not JSON"),
        ('{"a": []}', JSON, "", "$ is not an array but an object"),
        ('{"a": []}', ReadJson(sub_path="b"), "", "no 'b' at $"),
        ("[1, 2]", JSON, ":1", "a record that is no object but: number"),
        ("[1, 2]", ReadJson(), ":1", "a record that is no object"),
        (b'{"a": 1}\n{"t": "\xff"}', NDJSON, ":2", "not UTF-8: byte 0xff"),
        (b'[{"a": 1},\n{"t": "\xff"}]', JSON, ":2", "not UTF-8: byte 0xff"),
        (b'{"t": "\xff"}', ReadNdJson(), ":1", "not UTF-8: byte 0xff"),
        ("[" * 100_000 + "]" * 100_000, JSON, "", "nested too deeply"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", ReadNdJson(), ":1", "nested deeper than 64 levels"),
        ('{"a": ' + "[" * 100 + "]" * 100 + "}", ReadNdJson(), ":1", "nested deeper than 64 levels"),
        (collection("{}"), ReadGeoJson(), ":1", "not a GeoJSON Feature"),
        (POINT, ReadGeoJson(), "", "not a FeatureCollection"),
        (collection(feature("{}") + ",\n" + feature("[1]")), ReadGeoJson(), ":2", "properties of a feature"),
        (feature("{}") + "\n\n7", ReadNdGeoJson(), ":3", "not a GeoJSON Feature"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: Any, step: Any, place: str, said: str) -> None:
    with pytest.raises(Invalid) as told:
        read(tmp_path, text, step)
    assert said in told.value.message
    assert told.value.place == f"{NAME}{place}"
    assert told.value.rule.startswith("read-")


def test_deep_nesting_beside_what_is_read_does_no_harm(tmp_path: Path) -> None:
    got = read(tmp_path, '{"a": 1, "z": ' + "[" * 100_000 + "]" * 100_000 + "}", NDJSON)
    assert got.column("a") == [1]
    assert len(got.unknown) == 1


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    bom = b"\xef\xbb\xbf"
    assert read(tmp_path, bom + b'{"a": 1}', ReadNdJson()).rows == [[1]]
    assert read(tmp_path, bom + b'[{"a": 1}]', ReadJson()).rows == [[1]]
    assert read(tmp_path, bom + collection(feature('{"a": 1}')).encode(), ReadGeoJson()).column("a") == [1]
    assert read(tmp_path, bom + feature('{"a": 1}').encode(), ReadNdGeoJson()).column("a") == [1]


def test_nothing_in_an_array_is_no_row(tmp_path: Path) -> None:
    assert read(tmp_path, "[]", JSON).table.schema == pa.schema([("a", pa.int64()), ("t", pa.string())])
    assert read(tmp_path, collection(), ReadGeoJson(ddl_schema=("a BIGINT",))).rows == []


# Whole numbers that are written with a point or an exponent, as pandas writes those of a column with gaps.

N = ("n BIGINT, s STRING, d DOUBLE",)


@pytest.mark.parametrize(
    "written,value",
    [
        ("1.0", 1),
        ("-1.000", -1),
        ("-0.0", 0),
        ("1e3", 1000),
        ("1.25E+2", 125),
        ("100e-2", 1),
        ("9007199254740993.0", 2**53 + 1),
        ("9223372036854775807.0", 2**63 - 1),
        ("-9223372036854775808.00", -(2**63)),
        ("9.223372036854775807e18", 2**63 - 1),
    ],
)
def test_they_are_taken_by_their_digits(tmp_path: Path, written: str, value: int) -> None:
    record = f'{{"n": {written}, "s": "1.0 1e3 \\"n\\": 2.0}}", "d": 0.5}}'
    for step, text in [
        (ReadNdJson(ddl_schema=N), f'{{"n": 5}}\n{record}\n'),
        (ReadJson(ddl_schema=N), f'[{{"n": 5}},\n{record}]'),
        (
            ReadGeoJson(ddl_schema=N),
            f'{{"type": "FeatureCollection", "features": [{{"type": "Feature", "properties": {{"n": 5}}}},'
            f'{{"type": "Feature", "properties": {record}}}]}}',
        ),
    ]:
        assert read(tmp_path, text, step).rows == [[5, None, None], [value, '1.0 1e3 "n": 2.0}', 0.5]]


@pytest.mark.parametrize("written", ["1.5", "1e-1", "1.05e1", "9223372036854775808.0", "1e19", "1e999999999", "1.0.0"])
def test_what_is_not_whole_or_too_large_is_refused_with_its_line(tmp_path: Path, written: str) -> None:
    with pytest.raises(Invalid) as refused:
        read(tmp_path, f'{{"n": 1.0}}\n{{"n": {written}}}\n{{"n": 3}}\n', ReadNdJson(ddl_schema=N))
    assert refused.value.place == "data.txt:2"


def test_within_values_and_beside_unknown_fields(tmp_path: Path) -> None:
    import pyarrow as pa

    from chain.data.arrow_schema import from_arrow

    kind = pa.struct([("l", pa.list_(pa.int32())), ("u", pa.uint64())])
    step = ReadNdJson(schema=from_arrow(pa.schema([("o", kind), ("p", pa.decimal128(4, 0))])))
    got = read(tmp_path, '{"o": {"l": [1.0, 2, 3e0], "u": 18446744073709551615.0}, "p": 7.0, "x": 1.0}', step)
    assert got.rows == [[{"l": [1, 2, 3], "u": 2**64 - 1}, Decimal(7)]]
    assert got.unknown == {"x": 1}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def numbers(text: str | bytes) -> Any:
    return json.loads(text, parse_int=Decimal, parse_float=Decimal)


@pytest.mark.slow
@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_no_value_changes_and_no_line_moves(value: Any, ascii_: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_, indent=indent)
    made = with_whole_numbers(text.encode("utf-8", "surrogatepass"))
    assert numbers(made.decode("utf-8", "surrogatepass")) == numbers(text)
    assert made.count(b"\n") == text.count("\n")
    assert with_whole_numbers(made) == made


@given(st.text(alphabet='"\\ n0.1eE+-,:{}[]\n', max_size=200).map(str.encode))
def test_texts_that_are_no_json_keep_their_lines(text: bytes) -> None:
    assert with_whole_numbers(text).count(b"\n") == text.count(b"\n")


@pytest.mark.slow
def test_it_is_linear_in_what_a_hostile_text_holds() -> None:
    """Each of these would take minutes if a part were looked at again from every place within it."""
    size = 1 << 18
    for part in (b'\\"', b'"', b"1", b"1.0", b"0e", b"-", b'"\\', b"1e1"):
        assert len(with_whole_numbers(b'"' + part * (size // len(part)))) > 0
        assert len(with_whole_numbers(part * (size // len(part)))) > 0


# Structs that may be null, with fields that may not: read where absent, refused where a field of theirs is.

POINTS = pa.struct([pa.field("x", pa.int64(), nullable=False), pa.field("label", pa.string())])
DEEP = pa.struct([pa.field("point", POINTS), pa.field("n", pa.int64(), nullable=False)])


def test_a_struct_is_absent_whole_or_is_there_whole() -> None:
    schema = pa.schema([pa.field("at", DEEP)])
    assert needs_loosening(schema)
    rows = [{"at": None}, {"at": {"point": None, "n": 1}}, {"at": {"point": {"x": 1, "label": None}, "n": 2}}]
    assert first_missing(pa.Table.from_pylist(rows, loosen(schema)), schema) is None
    for bad in ({"at": {"point": None, "n": None}}, {"at": {"point": {"x": None, "label": "a"}, "n": 1}}):
        assert first_missing(pa.Table.from_pylist([*rows, bad], loosen(schema)), schema) == 3


def test_what_needs_no_loosening_is_left_as_it_is() -> None:
    for field in (
        pa.field("x", pa.int64(), nullable=False),
        pa.field("at", POINTS, nullable=False),
        pa.field("at", pa.struct([pa.field("x", pa.int64())])),
        pa.field("at", pa.list_(POINTS)),
    ):
        assert not needs_loosening(pa.schema([field]))


VALUES = st.none() | st.fixed_dictionaries({"x": st.none() | st.integers(-9, 9), "label": st.none() | st.text()})


@given(st.lists(st.none() | st.fixed_dictionaries({"point": VALUES, "n": st.none() | st.integers(-9, 9)}), max_size=6))
def test_the_first_row_that_lacks_a_field_is_found(values: list[Any]) -> None:
    schema = pa.schema([pa.field("at", DEEP)])

    def is_bad(value: Any) -> bool:
        point = None if value is None else value["point"]
        return value is not None and (value["n"] is None or (point is not None and point["x"] is None))

    table = pa.Table.from_pylist([{"at": each} for each in values], loosen(schema))
    wanted = next((row for row, value in enumerate(values) if is_bad(value)), None)
    assert first_missing(table, schema) == wanted


STEP = """kind: NdJson
schema:
  fields:
  - name: at
    type:
      kind: Option
      inner: {kind: Struct, fields: [{name: x, type: Int64}, {name: label, type: {kind: Option, inner: String}}]}
  - {name: n, type: Int64}
"""


def test_lines_with_and_without_such_a_struct_are_read(tmp_path: Path) -> None:
    rows = [{"at": None, "n": 1}, {"n": 2}, {"at": {"x": 3}, "n": 3}, {"at": {"x": 4, "label": "a"}, "n": 4}]
    found = read(tmp_path, "".join(f"{json.dumps(row)}\n" for row in rows), read_step(STEP))
    assert found.column("n") == [1, 2, 3, 4]
    assert found.column("at") == [None, None, {"x": 3, "label": None}, {"x": 4, "label": "a"}]


def test_a_struct_without_its_field_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(Invalid) as refused:
        read(tmp_path, '{"at": null, "n": 1}\n{"at": {"label": "a"}, "n": 2}\n', read_step(STEP))
    assert (refused.value.rule, refused.value.place.rpartition(":")[2]) == ("read-json", "2")
