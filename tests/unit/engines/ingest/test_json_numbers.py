"""Whole numbers that are written with a point or an exponent, as pandas writes those of a column with gaps."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from chain.model.source import ReadGeoJson, ReadJson, ReadNdJson
from engines.spark.ingest.json_text import with_whole_numbers
from worlds.reading import read

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
