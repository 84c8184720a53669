"""arrow0-sha3-256 row by row, as slow and as plain as it can be said: the oracle of the vectorised one."""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Iterator

import pyarrow as pa

UNIT = {"s": 0, "ms": 1, "us": 2, "ns": 3}
t = pa.types


def u64(n: int) -> bytes:
    return n.to_bytes(8, "little")


def is_list(kind: pa.DataType) -> bool:
    return t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind)


def marker(kind: pa.DataType) -> bytes:
    def number(n: int) -> bytes:
        return n.to_bytes(2, "little")

    if t.is_integer(kind):
        return number(1) + bytes([t.is_signed_integer(kind)]) + u64(kind.bit_width)
    if t.is_floating(kind):
        return number(2) + u64(kind.bit_width)
    if t.is_fixed_size_binary(kind) or t.is_binary(kind) or t.is_large_binary(kind):
        return number(3)
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return number(4)
    if t.is_boolean(kind):
        return number(5)
    if t.is_decimal(kind):
        return number(6) + u64(kind.bit_width) + u64(kind.precision) + kind.scale.to_bytes(8, "little", signed=True)
    if t.is_date(kind):
        return number(7) + u64(kind.bit_width) + number(0 if t.is_date32(kind) else 1)
    if t.is_time(kind):
        return number(8) + u64(kind.bit_width) + number(UNIT[kind.unit])
    if t.is_timestamp(kind):
        zone = b"\0" if kind.tz is None else u64(len(kind.tz)) + kind.tz.encode()
        return number(9) + number(UNIT[kind.unit]) + zone
    assert is_list(kind)
    return number(11) + marker(kind.value_type)


def value_bytes(value: pa.Scalar, kind: pa.DataType) -> bytes:
    if t.is_integer(kind):
        return value.as_py().to_bytes(kind.bit_width // 8, "little", signed=t.is_signed_integer(kind))
    if t.is_floating(kind):
        return struct.pack({16: "<e", 32: "<f", 64: "<d"}[kind.bit_width], value.as_py())
    if t.is_boolean(kind):
        return b"\2" if value.as_py() else b"\1"
    if t.is_temporal(kind):
        return value.value.to_bytes(kind.bit_width // 8, "little", signed=True)
    if t.is_decimal(kind):
        sign, digits, exponent = value.as_py().as_tuple()
        unscaled = int("".join(map(str, digits))) * 10 ** (exponent + kind.scale)
        return (-unscaled if sign else unscaled).to_bytes(kind.bit_width // 8, "little", signed=True)
    if is_list(kind):
        items = [value_bytes(item, kind.value_type) if item.is_valid else b"\0" for item in value.values]
        return u64(len(items)) + b"".join(items)
    raw = value.as_py()
    raw = raw.encode() if isinstance(raw, str) else raw
    return u64(len(raw)) + raw


def zero_bytes(kind: pa.DataType) -> bytes:
    if t.is_fixed_size_binary(kind) and not t.is_decimal(kind):
        return u64(kind.byte_width) + bytes(kind.byte_width)
    if t.is_boolean(kind):
        return b"\1"
    if t.is_fixed_size_list(kind):
        item = kind.value_field
        return u64(kind.list_size) + (b"\0" if item.nullable else zero_bytes(item.type)) * kind.list_size
    if is_list(kind) or marker(kind)[0] in (3, 4):
        return u64(0)
    return bytes(kind.bit_width // 8)


def leaf_bytes(array: pa.Array, own: list[bool] | None, effective: list[bool] | None, cuts: list[int]) -> bytes:
    kind = array.type
    slots: list[bytes] = []
    for start, stop in itertools.pairwise([0, *cuts, len(array)]):
        present = [value_bytes(array[i], kind) for i in range(start, stop) if own is None or own[i]]
        keeps = not (is_list(kind) or marker(kind)[0] in (3, 4)) or (
            t.is_fixed_size_binary(kind) and not t.is_decimal(kind)
        )
        left = iter(present)
        for i in range(stop - start):
            if own is None or own[start + i]:
                slots.append(next(left))
            else:
                slots.append(present[i] if keeps and i < len(present) else zero_bytes(kind))
    return b"".join(slot if effective is None or effective[i] else b"\0" for i, slot in enumerate(slots))


def leaves(
    field: pa.Field, array: pa.Array, inside: list[bool] | None, parent: list[bool] | None, cuts: list[int]
) -> Iterator[bytes]:
    own = None
    if field.nullable:
        own = [value.is_valid and (inside is None or inside[i]) for i, value in enumerate(array)]
        own = None if all(own) else own
    if parent is None or own is None:
        effective = parent if own is None else own
    else:
        effective = [a or b for a, b in zip(parent, own, strict=True)]
    if not t.is_struct(array.type):
        yield leaf_bytes(array, inside if own is None else own, effective, cuts)
        return
    here = own if inside is None else inside if own is None else [a and b for a, b in zip(inside, own, strict=True)]
    for i in range(array.type.num_fields):
        yield from leaves(array.type.field(i), array.field(i), here, effective, cuts)


def names(fields: list[pa.Field], level: int = 0) -> Iterator[tuple[pa.Field, int]]:
    for field in fields:
        yield field, level
        if t.is_struct(field.type):
            yield from names([field.type.field(i) for i in range(field.type.num_fields)], level + 1)


def reference_hash(table: pa.Table, window: int = 10_000, row_group: int = 1_048_576) -> bytes:
    """The digest, reading ``window`` rows at once from a file with ``row_group`` rows in each row group."""
    record = b""
    columns: list[bytes] = []
    for field, level in names(list(table.schema)):
        record += u64(len(field.name.encode())) + field.name.encode() + u64(level)
        if not t.is_struct(field.type):
            columns.append(marker(field.type))
    for start in range(0, table.num_rows, window):
        part = table.slice(start, window).combine_chunks()
        cuts = [g - start for g in range(row_group, table.num_rows, row_group) if start < g < start + part.num_rows]
        found = [
            data
            for field, column in zip(part.schema, part.columns, strict=True)
            for data in leaves(field, column.chunk(0), None, None, cuts)
        ]
        columns = [one + more for one, more in zip(columns, found, strict=True)]
    return hashlib.sha3_256(record + b"".join(hashlib.sha3_256(one).digest() for one in columns)).digest()
