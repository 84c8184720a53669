"""Reads structs that may be null although their fields may not, for which pyarrow refuses a record without the struct.

pyarrow demands a required field even of a struct that is absent. So the fields are read as optional, and their presence
is checked where the struct is present. Where it is absent, they get a value that is never read: Arrow and Parquet need
one. Pure.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

REFUSED: Final = "a required field was null"
"""Part of pyarrow's message for this refusal."""


def needs_loosening(schema: pa.Schema) -> bool:
    """Whether the schema has a nullable struct with a field that is not nullable."""
    return any(_is_strict(field, may_be_null=False) for field in schema)


def _is_strict(field: pa.Field, *, may_be_null: bool) -> bool:
    if not pa.types.is_struct(field.type):
        return may_be_null and not field.nullable
    if may_be_null and not field.nullable:
        return True
    return any(_is_strict(inner, may_be_null=may_be_null or field.nullable) for inner in field.type.fields)


def loosen(schema: pa.Schema) -> pa.Schema:
    """Makes all fields within structs optional."""
    return pa.schema([field.with_type(_loose(field.type)) for field in schema])


def _loose(type_: pa.DataType) -> pa.DataType:
    if not pa.types.is_struct(type_):
        return type_
    return pa.struct([field.with_type(_loose(field.type)).with_nullable(True) for field in type_.fields])


def first_missing(table: pa.Table, schema: pa.Schema) -> int | None:
    """Returns the number of the first row with a struct that lacks a required field; ``None`` if there is none."""
    rows, there = [], set(table.column_names)
    for field in schema:
        if pa.types.is_struct(field.type) and field.name in there:
            column = table.column(field.name).combine_chunks()
            rows += _missing(column, field.type)
    return min(rows, default=None)


def _missing(column: pa.StructArray, type_: pa.DataType) -> list[int]:
    """Returns for each field that is missing somewhere the first row where it is."""
    found = []
    for number, field in enumerate(type_.fields):
        inner = pc.struct_field(column, number)  # null where the struct is
        if not field.nullable:
            absent = pc.and_(column.is_valid(), inner.is_null())
            found += [pc.index(absent, True).as_py()] if pc.any(absent).as_py() else []
        if pa.types.is_struct(field.type):
            found += _missing(inner, field.type)
    return found


def tighten(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Converts the columns to the types of the schema, after ``first_missing`` found none."""
    columns, fields = [], []
    for field in table.schema:
        column, number = table.column(field.name), schema.get_field_index(field.name)
        if number >= 0 and pa.types.is_struct(field.type):
            field = schema.field(number)
            column = _tight(column.combine_chunks(), field.type)
        columns.append(column)
        fields.append(field)
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _tight(column: pa.Array, type_: pa.DataType) -> pa.Array:
    if not pa.types.is_struct(type_):
        return column
    inner = []
    for number, field in enumerate(type_.fields):
        values = _tight(pc.struct_field(column, number), field.type)
        inner.append(values if field.nullable else _fill(values))
    return pa.StructArray.from_arrays(inner, fields=list(type_.fields), mask=column.is_null())


def _fill(values: pa.Array) -> pa.Array:
    if not values.null_count:
        return values
    if pa.types.is_struct(values.type):
        fields = list(values.type.fields)
        inner = [values.field(number) for number in range(len(fields))]
        return pa.StructArray.from_arrays(
            [each if field.nullable else _fill(each) for each, field in zip(inner, fields, strict=True)],
            fields=fields,
        )
    return pc.coalesce(values, _zero(values.type))


def _zero(type_: pa.DataType) -> pa.Scalar:
    """Returns a value of a type, empty or 0."""
    if pa.types.is_nested(type_):
        return pa.scalar([], type_)
    zeros = pa.py_buffer(bytes(64))
    more = [pa.py_buffer(b"")] if type_.num_buffers > 2 else []
    return pa.Array.from_buffers(type_, 1, [None, zeros, *more])[0]
