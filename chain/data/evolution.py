"""Converts rows of an older schema to the current one: fields added since, at any depth, are null.

A schema only changes in ways that allow this (rule ``schema-compatible``): optional fields are added, the order
changes, nothing is removed. Pure functions over Arrow. Spec: DataSchema, schema evolution.
"""

from __future__ import annotations

from typing import Final

import msgspec

from chain.data.arrow_schema import from_arrow
from chain.errors import Invalid
from chain.libraries import pa
from chain.model.schema import DataSchema
from chain.repeats import repeated
from chain.wording import listed

_VERIFY: Final = "verify the dataset: odfctl verify"


def as_in_force(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns ``rows`` with the columns of ``schema``, in its order and types.

    Raises Invalid, naming the column, for rows that are not of an older schema of the same dataset.
    """
    names = rows.column_names
    have = set(names)
    if twice := repeated(filter(set(schema.names).__contains__, names)):
        raise Invalid(f"column {twice[0]!r} occurs twice in a slice", rule="schema-evolution", hint=_VERIFY)
    columns = [
        _column(rows.column(field.name), field) if field.name in have else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def enlarged(schema: DataSchema, columns: pa.Schema) -> DataSchema:
    """Adds new columns of ``columns`` to ``schema`` as optional, in its order. Raises Invalid if one is missing."""
    known = {field.name: field for field in schema.fields}
    if gone := sorted(known.keys() - set(columns.names)):
        raise Invalid(f"no {listed(gone)}", rule="schema-evolution", hint="a column that is in use stays")
    if [field.name for field in schema.fields] == columns.names:
        return schema
    new = from_arrow(pa.schema([field.with_nullable(True) for field in columns if field.name not in known]))
    known |= {field.name: field for field in new.fields}
    return msgspec.structs.replace(schema, fields=tuple(known[name] for name in columns.names))


def _column(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if column.type.equals(field.type):
        return column
    if gone := list(_dropped(column.type, field.type, field.name)):
        raise _misfit(field, f"{gone[0]} is in no schema that came after it")
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise _misfit(field, str(error).splitlines()[0]) from error


def _dropped(old: pa.DataType, new: pa.DataType, place: str) -> list[str]:
    """Lists fields of structs that Arrow would drop silently."""
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        known = {field.name: field.type for field in new}
        return [
            lost
            for field in old
            for lost in (
                _dropped(field.type, known[field.name], f"{place}.{field.name}")
                if field.name in known
                else [f"{place}.{field.name}"]
            )
        ]
    if old.num_fields == 1 and new.num_fields == 1:
        return _dropped(old.field(0).type, new.field(0).type, f"{place}[]")
    return []


def _misfit(field: pa.Field, why: str) -> Invalid:
    return Invalid(
        f"column {field.name!r} of an older slice cannot be read as {field.type}: {why}",
        rule="schema-evolution",
        hint=_VERIFY,
    )
