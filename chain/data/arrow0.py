"""The byte stream of arrow0-sha3-256: what a column's hasher is fed (digest of rows, independent of their encoding).

Pure functions from Arrow arrays to bytes, whole arrays at a time. Nothing here hashes, reads files or keeps state.
The algorithm is that of the reference's RecordDigestV0: a type marker per leaf column, then each value as its
little-endian bytes, lengths as u64, a null as one zero byte (ODF specification, section "Logical hash").
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chain.data.buffers import bits, numbers
from chain.errors import Invalid

_UNITS: Final = {"s": 0, "ms": 1, "us": 2, "ns": 3}
MAX_DEPTH: Final = 32
"""Deepest nesting of structs and lists that is hashed; types come from files of strangers."""


class Leaf(NamedTuple):
    """A column without children of its own in one window of rows."""

    array: pa.Array
    own: pa.BooleanArray | None
    """Where the leaf has a value, as a Parquet reader would say; ``None``: everywhere."""
    effective: pa.BooleanArray | None
    """Where the digest sees a value (see ``_combine``); ``None``: everywhere."""


def u16(value: int) -> bytes:
    return struct.pack("<H", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_))


def storage(type_: pa.DataType) -> pa.DataType:
    """The type below an extension type: extensions are metadata, and metadata is not hashed."""
    return type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_


def fields_depth_first(schema: pa.Schema) -> Iterator[tuple[pa.Field, int]]:
    """Every field with its level, structs before their children. Lists are leaves."""
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
    """The marker that begins a leaf column's stream. Raises Invalid for a type that the algorithm does not know."""
    t, type_ = pa.types, storage(type_)
    if t.is_null(type_):
        return u16(0)
    if t.is_integer(type_):
        return u16(1) + bytes([t.is_signed_integer(type_)]) + u64(type_.bit_width)
    if t.is_floating(type_):
        return u16(2) + u64(type_.bit_width)
    if _is_binary(type_) or t.is_fixed_size_binary(type_):
        return u16(3)
    if _is_string(type_):
        return u16(4)
    if t.is_boolean(type_):
        return u16(5)
    if t.is_decimal128(type_) or t.is_decimal256(type_):
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


def leaves(batch: pa.RecordBatch) -> Iterator[Leaf]:
    """The leaf columns of one window, in the order of ``fields_depth_first``."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        yield from _leaves(field, column, None, None)


def _leaves(
    field: pa.Field, array: pa.Array, inside: pa.BooleanArray | None, effective: pa.BooleanArray | None
) -> Iterator[Leaf]:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    own = array.is_valid() if field.nullable and array.null_count else None
    if own is not None or field.nullable:
        # What lies under a null parent is null when read back from a file, whatever it is in memory.
        own = _both(own, inside)
    combined = _combine(effective, own)
    if not pa.types.is_struct(array.type):
        yield Leaf(array, own, combined)
        return
    inside = _both(inside, own)
    for i in range(array.type.num_fields):
        yield from _leaves(array.type.field(i), array.field(i), inside, combined)


def _both(one: pa.BooleanArray | None, other: pa.BooleanArray | None) -> pa.BooleanArray | None:
    if one is None or other is None:
        return other if one is None else one
    return pc.and_(one, other)


def _combine(parent: pa.BooleanArray | None, own: pa.BooleanArray | None) -> pa.BooleanArray | None:
    """Validity as the reference sees it. Where parent and child both have nulls *in the same window* it takes
    ``or``, so a null child of a present parent counts as present: part of the algorithm now, so kept."""
    if own is None or parent is None:
        return parent if own is None else own
    return pc.or_(parent, own)


def stream(leaf: Leaf, cuts: Sequence[int] = ()) -> memoryview | bytes:
    """Bytes that the leaf's hasher is fed for one window.

    ``cuts``: rows within the window at which a row group of the file begins (see ``_left_over``).
    """
    array = leaf.array
    if len(array) == 0:
        return b""
    if leaf.effective is None and leaf.own is None and _fixed_width(array.type):
        return _fixed_bytes(array).data
    rows = _rows(array)
    if leaf.own is not None and leaf.effective is not None:
        ghosts = pc.and_not(leaf.effective, leaf.own)
        if ghosts.true_count:
            rows = pc.if_else(ghosts, _left_over(array.type, rows, leaf.own, cuts), rows)
    if leaf.effective is not None:
        return _marked(rows, leaf.effective)
    return _joined(rows)


def _rows(array: pa.Array) -> pa.LargeBinaryArray:
    """Each row's bytes as if it had a value, in memory of its own; rows without one hold anything, but not nothing."""
    type_ = array.type
    if _fixed_width(type_):
        data = _fixed_bytes(array).copy()
        return _even(data, len(data) // len(array), len(array))
    if pa.types.is_boolean(type_):
        return _even(bits(array) + np.uint8(1), 1, len(array))
    if pa.types.is_fixed_size_binary(type_):
        width = type_.byte_width
        table = np.empty((len(array), 8 + width), np.uint8)
        table[:, :8] = np.frombuffer(u64(width), np.uint8)
        if width:
            table[:, 8:] = _fixed_bytes(array).reshape(len(array), width)
        return _even(table.reshape(-1), 8 + width, len(array))
    if is_list(type_):
        return _list_rows(array)
    if _is_string(type_) or _is_binary(type_):
        return _measured(array)
    raise Invalid(f"values of type {type_} have no logical hash", rule="logical-hash-type")


def _measured(array: pa.Array) -> pa.LargeBinaryArray:
    """Length and bytes of texts and byte strings."""
    data, starts, _ = _spans(array)
    return _with_counts(data, starts, np.diff(starts))


def _spans(array: pa.Array) -> tuple[pa.Buffer | None, np.ndarray, int]:
    type_ = array.type
    if not (pa.types.is_large_string(type_) or pa.types.is_large_binary(type_)):
        small = pa.types.is_string(type_) or pa.types.is_binary(type_)
        if not small:
            array = array.cast(pa.large_string() if _is_string(type_) else pa.large_binary())
    width = np.int32 if pa.types.is_string(array.type) or pa.types.is_binary(array.type) else np.int64
    _, offsets, data = array.buffers()
    starts = np.frombuffer(offsets, width, len(array) + 1, array.offset * np.dtype(width).itemsize)
    return data, starts.astype(np.int64), len(array)


def _list_rows(array: pa.Array) -> pa.LargeBinaryArray:
    """Count and items, recursively: the items' rows are made at once, then regrouped by the lists' offsets."""
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        bounds = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64) * size
    else:
        bounds = numbers(array.offsets).astype(np.int64)
    items = array.values.slice(bounds[0], bounds[-1] - bounds[0])
    counts = np.diff(bounds)
    if isinstance(items, pa.ExtensionArray):
        items = items.storage
    if len(items) == 0:
        return _with_counts(None, np.zeros(len(array) + 1, np.int64), counts)
    rows = _rows(items)
    if items.null_count:
        rows = pc.if_else(items.is_valid(), rows, _NULL_MARK)
    return _with_counts(rows.buffers()[2], _ends(rows)[bounds - bounds[0]], counts)


def _with_counts(data: pa.Buffer | None, starts: np.ndarray, counts: np.ndarray) -> pa.LargeBinaryArray:
    """``counts`` as u64, each before its part of ``data``.

    Arrow makes room with zeros in one pass; of the numbers only those bytes are written that any of them needs, which
    is half the time of joining numbers and parts.
    """
    size = len(counts)
    bodies = pa.Array.from_buffers(pa.large_binary(), size, [None, pa.py_buffer(starts), data or pa.py_buffer(b"")])
    rows = pc.binary_replace_slice(bodies, start=0, stop=0, replacement=bytes(8))
    places, room = _ends(rows)[:-1], _bytes_of(rows)
    for byte in range((int(counts.max()).bit_length() + 7) // 8):
        room[places + byte if byte else places] = (counts >> 8 * byte).astype(np.uint8)
    return rows


def _left_over(
    type_: pa.DataType, rows: pa.LargeBinaryArray, own: pa.BooleanArray, cuts: Sequence[int]
) -> pa.LargeBinaryArray | pa.Scalar:
    """What the reference finds in the slot of a missing value that it takes for present.

    Its Parquet reader decodes the values of a row group's part of the window side by side and then spreads them to
    their rows from the back, so the slot of row ``i`` still holds the ``i``-th value decoded, or zero beyond the last.
    Texts, byte strings and lists have offsets instead, and come out empty.
    """
    absent = _bytes_scalar(_absent(type_))
    if is_list(type_) or _is_string(type_) or _is_binary(type_):
        return absent
    bounds = [0, *cuts, len(rows)]
    parts: list[pa.Array] = []
    for start, stop in itertools.pairwise(bounds):
        decoded = rows.slice(start, stop - start).filter(own.slice(start, stop - start))
        parts += [decoded, pa.repeat(absent, stop - start - len(decoded))]
    return pa.concat_arrays(parts)


def _absent(type_: pa.DataType) -> bytes:
    """The bytes of a zero or an empty value."""
    if _fixed_width(type_):
        return bytes(int(type_.byte_width))
    if pa.types.is_boolean(type_):
        return b"\x01"
    if pa.types.is_fixed_size_binary(type_):
        return u64(type_.byte_width) + bytes(type_.byte_width)
    if pa.types.is_fixed_size_list(type_):
        item, size = type_.value_field, int(type_.list_size)
        return u64(size) + (b"\0" if item.nullable else _absent(storage(item.type))) * size
    return u64(0)


def _even(data: np.ndarray, width: int, count: int) -> pa.LargeBinaryArray:
    offsets = np.arange(count + 1, dtype=np.int64) * width
    return pa.Array.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _marked(rows: pa.LargeBinaryArray, present: pa.BooleanArray) -> memoryview | bytes:
    """The rows joined, one zero byte for each that is not present. Writes into the memory of ``rows``.

    What lies between the bytes to leave out is copied run by run, so that few nulls cost little.
    """
    absent = np.flatnonzero(bits(pc.invert(present)))
    if not len(absent):
        return _joined(rows)
    ends, data = _ends(rows), _bytes_of(rows)
    data[ends[absent]] = 0
    bounds = np.empty(2 * len(absent) + 2, np.int64)
    bounds[0], bounds[-1] = ends[0], ends[-1]
    bounds[1:-1:2], bounds[2:-1:2] = ends[absent] + 1, ends[absent + 1]
    keep = np.zeros(len(bounds) - 1, bool)
    keep[::2] = True
    runs = pa.Array.from_buffers(pa.large_binary(), len(keep), [None, pa.py_buffer(bounds), rows.buffers()[2]])
    return _joined(runs.filter(_mask(keep)))


def _mask(chosen: np.ndarray) -> pa.BooleanArray:
    packed = np.packbits(chosen, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(chosen), [None, pa.py_buffer(packed)])


def _joined(rows: pa.LargeBinaryArray) -> memoryview | bytes:
    data, ends = rows.buffers()[2], _ends(rows)
    return b"" if data is None else memoryview(data)[int(ends[0]) : int(ends[-1])]


def _ends(rows: pa.LargeBinaryArray) -> np.ndarray:
    """Where rows begin in their memory, and at last where they end."""
    return np.frombuffer(rows.buffers()[1], np.int64, len(rows) + 1, rows.offset * 8)


def _bytes_of(rows: pa.LargeBinaryArray) -> np.ndarray:
    """The memory of rows that we made ourselves, to write into: NumPy refuses when it is not ours to change."""
    return np.frombuffer(rows.buffers()[2], np.uint8)


def _fixed_bytes(array: pa.Array) -> np.ndarray:
    width = array.type.byte_width
    return np.frombuffer(array.buffers()[1], np.uint8, len(array) * width, array.offset * width)


def _fixed_width(type_: pa.DataType) -> bool:
    """Hashed as the bytes that lie in memory."""
    if pa.types.is_boolean(type_):
        return False
    t = pa.types
    return bool(t.is_integer(type_) or t.is_floating(type_) or t.is_temporal(type_) or t.is_decimal(type_))


def _is_string(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def _is_binary(type_: pa.DataType) -> bool:
    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_))


def _bytes_scalar(value: bytes) -> pa.Scalar:
    """Not by ``pa.scalar``, which imports pandas to see whether it was given some: half a second at start."""
    return _even(np.frombuffer(value, np.uint8), len(value), 1)[0]


_NULL_MARK: Final = _bytes_scalar(b"\0")
