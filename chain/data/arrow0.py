"""Lists the columns that arrow0-sha3-256 (a digest of rows, independent of their encoding) hashes, with their types.

Pure functions on Arrow's types and arrays. Nothing here hashes, reads files or keeps state; ``arrow0_values`` gives the
bytes of values. The algorithm is that of the reference's RecordDigestV0: a type marker per leaf column, then each value
as its little-endian bytes, lengths as u64, a null as one zero byte (ODF specification, section "Logical hash").
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from chain.errors import Invalid
from chain.libraries import pa, pc

_UNITS: Final = {"s": 0, "ms": 1, "us": 2, "ns": 3}
MAX_DEPTH: Final = 32
"""Deepest nesting of structs and lists that is hashed, as types come from untrusted files."""


class ArrowLeaf(NamedTuple):
    """A column without child columns, for one window of rows."""

    array: pa.Array
    """The values. Texts and byte strings of a top-level column may be dictionary-encoded: the hash is the same."""
    own: pa.BooleanArray | None
    """Marks the rows in which the leaf has a value, as a Parquet reader would say; ``None``: in all."""
    effective: pa.BooleanArray | None
    """Marks the rows in which the digest sees a value (see ``_combine``); ``None``: in all."""


def u16(value: int) -> bytes:
    return struct.pack("<H", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_))


def storage(type_: pa.DataType) -> pa.DataType:
    """Returns the type below an extension type: extensions are metadata, which is not hashed."""
    return type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_


def fields_depth_first(schema: pa.Schema) -> Iterator[tuple[pa.Field, int]]:
    """Yields every field with its level, structs before their children. Lists count as leaves."""
    yield from _descend(list(schema), 0)


def _descend(fields: list[pa.Field], level: int) -> Iterator[tuple[pa.Field, int]]:
    if level > MAX_DEPTH:
        raise Invalid(f"columns nested deeper than {MAX_DEPTH}", rule="logical-hash-type")
    for field in fields:
        yield field, level
        type_ = storage(field.type)
        if pa.types.is_struct(type_):
            yield from _descend([type_.field(i) for i in range(type_.num_fields)], level + 1)


def type_bytes(type_: pa.DataType, depth: int = 0) -> bytes:
    """Returns the marker that begins a leaf column's stream. Raises Invalid for types unknown to the algorithm."""
    t, type_ = pa.types, storage(type_)
    if t.is_null(type_):
        return u16(0)
    if t.is_integer(type_):
        return u16(1) + bytes([t.is_signed_integer(type_)]) + u64(type_.bit_width)
    if t.is_floating(type_):
        return u16(2) + u64(type_.bit_width)
    if is_binary(type_) or t.is_fixed_size_binary(type_):
        return u16(3)
    if is_string(type_):
        return u16(4)
    if t.is_boolean(type_):
        return u16(5)
    if t.is_decimal(type_):
        return u16(6) + u64(type_.bit_width) + u64(type_.precision) + struct.pack("<q", type_.scale)
    if t.is_date(type_):
        return u16(7) + u64(type_.bit_width) + u16(_UNITS["s" if t.is_date32(type_) else "ms"])
    if t.is_time(type_):
        return u16(8) + u64(type_.bit_width) + u16(_UNITS[type_.unit])
    if t.is_timestamp(type_):
        zone = b"\0" if type_.tz is None else u64(len(type_.tz.encode())) + type_.tz.encode()
        return u16(9) + u16(_UNITS[type_.unit]) + zone
    if is_list(type_) and depth < MAX_DEPTH:
        return u16(11) + type_bytes(type_.value_type, depth + 1)
    raise Invalid(
        f"values of type {type_} have no logical hash",
        rule="logical-hash-type",
        hint="cast the column to a number, text, bytes, time, decimal, or a list or struct of these",
    )


def leaves(batch: pa.RecordBatch) -> Iterator[ArrowLeaf]:
    """Yields the leaf columns of one window, in the order of ``fields_depth_first``."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        yield from _leaves(field, column, None, None)


def _leaves(
    field: pa.Field, array: pa.Array, inside: pa.BooleanArray | None, effective: pa.BooleanArray | None
) -> Iterator[ArrowLeaf]:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    own = array.is_valid() if field.nullable and array.null_count else None
    if own is not None or field.nullable:
        # A value under a null parent is null when read back from a file, whatever it is in memory.
        own = _both(own, inside)
    combined = _combine(effective, own)
    if not pa.types.is_struct(array.type):
        # A required leaf has no validity of its own, and still has no value where its parents have none.
        yield ArrowLeaf(array, inside if own is None else own, combined)
        return
    inside = _both(inside, own)
    for i in range(array.type.num_fields):
        yield from _leaves(array.type.field(i), array.field(i), inside, combined)


def _both(one: pa.BooleanArray | None, other: pa.BooleanArray | None) -> pa.BooleanArray | None:
    if one is None or other is None:
        return other if one is None else one
    return pc.and_(one, other)


def _combine(parent: pa.BooleanArray | None, own: pa.BooleanArray | None) -> pa.BooleanArray | None:
    """Combines validities as the reference does.

    Where parent and child both have nulls *in the same window* the reference takes ``or``, so a null child of a present
    parent counts as present. That is part of the algorithm by now, and therefore kept.
    """
    if own is None or parent is None:
        return parent if own is None else own
    return pc.or_(parent, own)


def is_string(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def is_binary(type_: pa.DataType) -> bool:
    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_))
