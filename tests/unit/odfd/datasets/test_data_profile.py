"""What files say of their columns is what is in them, as far as they say it."""

from __future__ import annotations

import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.data.json_values import plain_values
from chain.data.parquet import open_slice, write_slice
from chain.errors import Invalid
from odfd.control.wire import CountRange
from odfd.services.datasets.profiles import ColumnFacts, ProfileBuilder

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
