"""The total order against Python's: rows as tuples, element by element."""

from __future__ import annotations

import math
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from engines.spark.rows.changelog import total_order

SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("l", pa.list_(pa.int32())),
        ("o", pa.struct([("x", pa.float32()), ("y", pa.string())])),
    ]
)
small = st.sampled_from([None, -1, 0, 1])
numbers = st.sampled_from([None, -math.inf, -1.5, -0.0, 0.0, 2.5, math.inf, math.nan])
words = st.sampled_from([None, "", "a", "A", "é", "z", "\U0001f600", "￿"])
rows = st.fixed_dictionaries(
    {
        "i": small,
        "f": numbers,
        "s": words,
        "l": st.none() | st.lists(small, max_size=3),
        "o": st.none() | st.fixed_dictionaries({"x": numbers, "y": words}),
    }
)


def number(value):
    if value is None:
        return (0,)
    if math.isnan(value):
        return (2,)
    return (1, value, not struct.pack(">d", value)[0] & 0x80)


def word(value):
    return (0,) if value is None else (1, value.encode())


def plain(value):
    return (0,) if value is None else (1, value)


def key(row):
    items = row["l"]
    of = row["o"]
    return (
        plain(row["i"]),
        number(row["f"]),
        word(row["s"]),
        (0,) if items is None else (1, tuple(plain(item) for item in items)),
        (0,) if of is None else (1, number(of["x"]), word(of["y"])),
    )


@pytest.mark.slow
@given(st.lists(rows, max_size=12))
def test_order_is_that_of_tuples(listed):
    table = pa.Table.from_pylist(listed, SCHEMA)
    got = [listed[i] for i in total_order(table, SCHEMA.names).to_pylist()]
    assert list(map(key, got)) == sorted(map(key, listed))


def test_no_order_for_maps():
    table = pa.table({"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))})
    with pytest.raises(Invalid, match="no order"):
        total_order(table, ["m"])
