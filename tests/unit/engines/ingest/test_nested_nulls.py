"""Structs that may be null, with fields that may not: read where absent, refused where a field of theirs is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from engines.spark.ingest.json_text import first_missing, loosen, needs_loosening
from worlds.reading import read, read_step

POINT = pa.struct([pa.field("x", pa.int64(), nullable=False), pa.field("label", pa.string())])
DEEP = pa.struct([pa.field("point", POINT), pa.field("n", pa.int64(), nullable=False)])


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
        pa.field("at", POINT, nullable=False),
        pa.field("at", pa.struct([pa.field("x", pa.int64())])),
        pa.field("at", pa.list_(POINT)),
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
