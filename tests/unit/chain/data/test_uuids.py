"""Columns of UUIDs: bytes with an attribute in Arrow and in schemas, a logical type in Parquet, texts for people."""

from __future__ import annotations

import uuid
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.data import uuids
from chain.data.arrow_schema import differences, from_arrow, to_arrow
from chain.data.ddl import parse_ddl, spell_field
from chain.data.json_values import plain_rows
from chain.data.logical_hash import logical_hash
from chain.data.parquet import open_slice, write_slice
from chain.model import schema as odf
from chain.model.schema import DataField, DataSchema

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
