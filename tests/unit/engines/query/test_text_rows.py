"""Rows as lines of text: by columns they are what the values give one by one."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.data.json_values import plain_rows
from chain.errors import Invalid
from engines.query.text_rows import heading, render_lines
from odfd.cli.sql.formats import csv_text, ndjson_text

_WORDS = st.one_of(
    st.text(max_size=8), st.sampled_from(["", " a", "a\u00a0", 'say "x"', "a,b", "1\n2", "\\", "\x00\x1f"])
)
_FLOATS = st.one_of(
    st.floats(), st.floats(-1e6, 1e6), st.sampled_from([0.0, -0.0, 1e15, 1e16, 1e-4, 123456789012345.6])
)
_TICKS = st.one_of(
    st.integers(-(2**62), 2**62), st.integers(-(10**15), 10**15), st.integers(-9, 9).map(lambda n: n * 10**6)
)
_DAYS = st.integers(-100_000, 100_000)
_COLUMNS: dict[str, tuple[pa.DataType, Any]] = {
    "text": (pa.string(), _WORDS),
    "large": (pa.large_string(), _WORDS),
    "n": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "u": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "small": (pa.int16(), st.integers(-9, 9)),
    "yes": (pa.bool_(), st.booleans()),
    "float": (pa.float64(), _FLOATS),
    "half": (pa.float32(), st.floats(width=32)),
    "time": (pa.timestamp("us", "UTC"), _TICKS),
    "milli": (pa.timestamp("ms", "UTC"), _TICKS.map(lambda ticks: ticks // 10**4)),
    "nano": (pa.timestamp("ns", "UTC"), _TICKS),
    "local": (pa.timestamp("us"), st.integers(-(10**15), 10**15)),
    "day": (pa.date32(), _DAYS),
    "price": (pa.decimal128(20, 4), st.decimals(-(10**9), 10**9, places=4)),
    "tiny": (pa.decimal128(20, 12), st.decimals(-10, 10, places=12)),
    "clock": (pa.time64("us"), st.times()),
    "bytes": (pa.binary(), st.binary(max_size=4)),
    "list": (pa.list_(pa.string()), st.lists(_WORDS, max_size=3)),
    "struct": (pa.struct([("a", pa.int64())]), st.fixed_dictionaries({"a": st.integers(0, 9)})),
    "none": (pa.null(), st.none()),
}


def _batch(name: str, values: list[Any]) -> pa.RecordBatch:
    kind = _COLUMNS[name][0]
    if pa.types.is_timestamp(kind):
        column = pa.array(values, pa.int64()).view(kind)
    elif pa.types.is_date(kind):
        column = pa.array(values, pa.int32()).view(kind)
    else:
        column = pa.array(values, kind)
    return pa.record_batch({name: column, "n o": pa.array(range(len(values)), pa.int32())})


def _said(batch: pa.RecordBatch, form: Any) -> bytes:
    return b"".join(bytes(text) for _, text in render_lines(batch, form))


@pytest.mark.slow
@pytest.mark.parametrize("name", _COLUMNS)
@given(data=st.data())
def test_lines_by_columns_are_those_of_each_value(name: str, data: st.DataObject) -> None:
    batch = _batch(name, data.draw(st.lists(st.none() | _COLUMNS[name][1], min_size=1, max_size=12)))
    try:
        rows = json.loads(json.dumps(plain_rows(batch)))
    except Invalid:
        with pytest.raises(Invalid):
            _said(batch, "csv")
        return
    assert _said(batch, "csv") == csv_text(rows)
    assert _said(batch, "ndjson").decode() == ndjson_text(batch.schema.names, rows) + "\n"


@pytest.mark.slow
def test_a_slice_of_a_batch_is_rendered_alone() -> None:
    batch = pa.record_batch({"x": ["a", None, 'b"', ""], "d": [Decimal("1.50"), None, Decimal(-2), None]}).slice(1, 3)
    assert _said(batch, "csv") == b',\n"b""",-2.00\n"",\n'
    whole = pa.record_batch({"t": pa.array([dt.datetime(2024, 5, 1, tzinfo=dt.UTC)] * 200_000)})
    assert sum(rows for rows, _ in render_lines(whole, "ndjson")) == 200_000


def test_a_heading_is_csv_and_an_object_has_each_name_once() -> None:
    assert heading(["a", "b,c", ""], "csv") == b'a,"b,c",""\n'
    assert heading(["a", "b"], "ndjson") == b""
    with pytest.raises(Invalid, match="two columns are called a"):
        heading(["a", "a"], "ndjson")
