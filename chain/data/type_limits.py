"""Says which logical types rows can have. Needs no Arrow: datasets are declared in a daemon long before it has rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from chain.errors import Invalid
from chain.model import schema as odf
from chain.model.schema import DataField, DataSchema, DataType
from chain.repeats import repeated
from chain.wording import listed

MAX_DEPTH: Final = 32
"""Deepest nesting of types, as schemas come from untrusted files."""
_MOST: Final = (1 << 31) - 1
"""Longest value of a fixed length."""
_PRECISION: Final = 76


def check_schema(schema: DataSchema) -> None:
    """Raises Invalid, with the place, for types that rows cannot have and for columns named twice."""
    if twice := repeated(field.name for field in schema.fields):
        raise Invalid(f"columns named twice: {listed(twice)}", rule="schema-names")
    check_types(schema.fields)


def check_types(fields: Iterable[DataField], depth: int = 0) -> None:
    """Raises Invalid, with the place, for types that rows cannot have."""
    for field in fields:
        try:
            _check(field.type, depth)
        except Invalid as error:
            error.place = f"{field.name}.{error.place}" if error.place else field.name
            raise


def refusal(what: str, hint: str = "") -> Invalid:
    return Invalid(f"{what} is not a type of a dataset's schema", rule="schema-type", hint=hint)


def check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise refusal(f"types nested deeper than {MAX_DEPTH}")


def _check(type_: DataType, depth: int) -> None:
    check_depth(depth)
    match type_:
        case odf.Option(inner=odf.Option()):
            raise refusal("an optional of an optional")
        case odf.Option(inner=inner):
            _check(inner, depth)
        case odf.Timestamp(timezone=""):
            raise refusal("a timestamp with an empty time zone")
        case odf.Decimal(precision=precision) if not 1 <= precision <= _PRECISION:
            raise refusal(f"a decimal of {precision} digits", f"a decimal has 1 to {_PRECISION}")
        case odf.Binary(fixed_length=int(size)) | odf.List(fixed_length=int(size)) if size > _MOST:
            raise refusal(f"a fixed length of {size}", f"at most {_MOST}")
        case odf.Map(key_type=odf.Option() | odf.Null()):
            raise refusal("a map whose keys may be null")
        case odf.Map(key_type=key, value_type=value):
            _check(key, depth + 1)
            _check(value, depth + 1)
        case odf.List(item_type=item):
            _check(item, depth + 1)
        case odf.Struct(fields=fields):
            check_types(fields, depth + 1)
