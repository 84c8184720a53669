"""Writes a schema of rows as kamu's nodes do: Arrow's as JSON, ODF's as JSON or YAML. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from chain.codec.manifest import to_builtins
from chain.data.arrow_schema import from_arrow, to_arrow
from chain.errors import Invalid
from chain.libraries import pa
from chain.model.schema import DataSchema
from chain.yaml_text import render_yaml

_UNITS: Final = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}


def arrow_json(schema: pa.Schema) -> dict[str, Any]:
    """Encodes a schema as the Rust implementation of Arrow does. Raises Invalid for an unsupported type."""
    return {"fields": [_field(field) for field in schema], "metadata": {}}


def odf_json(schema: pa.Schema) -> dict[str, Any]:
    """Encodes a schema in ODF's format. Raises Invalid for a type that ODF does not know."""
    return to_builtins(from_arrow(schema))


FORMATS: Final[dict[str, Callable[[pa.Schema], Any]]] = {
    "ArrowJson": arrow_json,
    "OdfJson": odf_json,
    "OdfYaml": lambda schema: render_yaml(odf_json(schema)),
}
"""Encoders of schemas, by kamu's names of formats."""


def of_dataset(schema: DataSchema, form: str) -> Any:
    """Encodes the declared schema of a dataset in one of ``FORMATS``. Raises Invalid."""
    return FORMATS[form](to_arrow(schema).remove_metadata())


def _field(field: pa.Field) -> dict[str, Any]:
    return {
        "name": field.name,
        "data_type": _type(field.type, field.name),
        "nullable": field.nullable,
        "dict_id": 0,
        "dict_is_ordered": False,
        "metadata": {},
    }


def _type(kind: pa.DataType, name: str) -> Any:
    if (plain := _plain_types().get(kind)) is not None:
        return plain
    shaped = _shape(kind)
    if shaped is None:
        raise Invalid(
            f"the type {kind} of {name} cannot be written in ArrowJson", rule="query-schema", hint=f"cast {name}"
        )
    return shaped


def _shape(kind: pa.DataType) -> Any:
    if pa.types.is_timestamp(kind):
        return {"Timestamp": [_UNITS[kind.unit], "UTC" if kind.tz in ("Etc/UTC", "UTC") else kind.tz]}
    if pa.types.is_time(kind):
        return {"Time32" if pa.types.is_time32(kind) else "Time64": _UNITS[kind.unit]}
    if pa.types.is_duration(kind):
        return {"Duration": _UNITS[kind.unit]}
    if pa.types.is_decimal(kind):
        return {f"Decimal{kind.bit_width}": [kind.precision, kind.scale]}
    if pa.types.is_fixed_size_binary(kind):
        return {"FixedSizeBinary": kind.byte_width}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return {"List" if pa.types.is_list(kind) else "LargeList": _field(kind.value_field)}
    if pa.types.is_fixed_size_list(kind):
        return {"FixedSizeList": [_field(kind.value_field), kind.list_size]}
    if pa.types.is_struct(kind):
        return {"Struct": [_field(field) for field in kind]}
    if pa.types.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        return {"Map": [_field(pa.field("entries", entries, nullable=False)), kind.keys_sorted]}
    if pa.types.is_dictionary(kind):
        return {"Dictionary": [_type(kind.index_type, "the index"), _type(kind.value_type, "the value")]}
    return None


@functools.cache
def _plain_types() -> dict[pa.DataType, Any]:
    return {
        pa.null(): "Null",
        pa.bool_(): "Boolean",
        pa.float16(): "Float16",
        pa.float32(): "Float32",
        pa.float64(): "Float64",
        pa.date32(): "Date32",
        pa.date64(): "Date64",
        pa.string(): "Utf8",
        pa.large_string(): "LargeUtf8",
        pa.string_view(): "Utf8View",
        pa.binary(): "Binary",
        pa.large_binary(): "LargeBinary",
        pa.binary_view(): "BinaryView",
        pa.month_day_nano_interval(): {"Interval": "MonthDayNano"},
        **{kind: str(kind).replace("uint", "UInt").replace("int", "Int") for kind in (
            pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    }  # fmt: skip
