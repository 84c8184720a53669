"""Produces the bytes that arrow0-sha3-256 hashes for the values of a leaf column, for one window of rows.

Works on whole arrays, as rows of bytes that are then joined. ``arrow0`` decides which rows have a value.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from chain.data.arrow0 import ArrowLeaf, is_binary, is_list, is_string, storage, u64
from chain.data.buffers import bits, from_numbers, numbers
from chain.errors import Invalid
from chain.libraries import np, pa, pc

PIECE: Final = 16 << 20
"""Most bytes of dictionary values that are written out at a time."""
_TOGETHER: Final = 8
_SEQUENCES: Final = 1024
"""Most rows of a dictionary column that are copied as one, and most sequences of entries that are prepared for that."""


def streams(leaf: ArrowLeaf, cuts: Sequence[int] = ()) -> Iterator[memoryview | bytes]:
    """Yields the bytes of the leaf to hash for one window, in order; mostly in one piece.

    ``cuts``: rows within the window at which a row group of the file begins (see ``_left_over``).
    """
    if len(leaf.array) == 0:
        return
    if isinstance(leaf.array, pa.DictionaryArray):
        yield from _looked_up(leaf.array)
    else:
        yield _stream(leaf, cuts)


def parts(leaf: ArrowLeaf, bounds: Sequence[int]) -> Iterator[memoryview]:
    """Yields the bytes to hash of each span of rows, from one bound to the next.

    For a leaf with rows that is no dictionary and not below a nullable struct.
    """
    if _fixed_width(leaf.array.type) and leaf.own is None:
        width = int(leaf.array.type.byte_width)
        data, ends = _fixed_bytes(leaf.array).data, [row * width for row in bounds]
    else:
        rows = _rows(leaf.array)
        if leaf.own is not None:
            rows = pc.if_else(leaf.own, rows, _null_mark())
        data, ends = memoryview(rows.buffers()[2]), _ends(rows)[np.asarray(bounds)].tolist()
    return (data[start:stop] for start, stop in itertools.pairwise(ends))


def _stream(leaf: ArrowLeaf, cuts: Sequence[int]) -> memoryview | bytes:
    array = leaf.array
    if _fixed_width(array.type) and leaf.effective is leaf.own:
        data = _fixed_bytes(array)
        return data.data if leaf.own is None else _marked_evenly(data.copy(), leaf.own)
    rows = _rows(array)
    if leaf.own is not None and leaf.effective is not None:
        ghosts = pc.and_not(leaf.effective, leaf.own)
        if ghosts.true_count:
            rows = pc.if_else(ghosts, _left_over(array.type, rows, leaf.own, cuts), rows)
    if leaf.effective is not None:
        return _marked(rows, leaf.effective)
    return _joined(rows)


def _rows(array: pa.Array) -> pa.LargeBinaryArray:
    """Returns each row's bytes as if it had a value, in new memory; a null's bytes are arbitrary, but at least one."""
    type_ = array.type
    if len(array) == 0:
        return _even(np.empty(0, np.uint8), 0, 0)
    if _fixed_width(type_):
        data = _fixed_bytes(array).copy()
        return _even(data, len(data) // len(array), len(array))
    if pa.types.is_boolean(type_):
        return _even(bits(array) + np.uint8(1), 1, len(array))
    if pa.types.is_fixed_size_binary(type_):
        return _alike(_fixed_bytes(array), len(array))
    if is_list(type_):
        return _list_rows(array)
    if is_string(type_) or is_binary(type_):
        return _measured(array)
    raise Invalid(f"values of type {type_} have no logical hash", rule="logical-hash-type")


def _looked_up(array: pa.DictionaryArray) -> Iterator[memoryview | bytes]:
    """Yields the bytes of a dictionary column: each entry is prepared once, and a null is one more entry.

    Copying an entry costs more than its bytes do, so of a small dictionary several rows are copied as one. A few
    entries can stand for more than fits into memory, so no piece is longer than PIECE or one copy.
    """
    entries = pa.concat_arrays([_rows(array.dictionary), _even(np.zeros(1, np.uint8), 1, 1)])
    places = numbers(array.indices)
    if array.indices.null_count:
        places = np.where(bits(array.indices.is_valid()).view(np.bool_), places, len(array.dictionary))
    size = len(entries)
    together = max(n for n in range(1, _TOGETHER + 1) if n == 1 or size**n <= min(_SEQUENCES, len(places)))
    whole = len(places) - len(places) % together
    yield from _taken(_sequences(entries, together), _as_digits(places[:whole].reshape(-1, together), size))
    yield from _taken(entries, places[whole:])


def _sequences(entries: pa.LargeBinaryArray, length: int) -> pa.LargeBinaryArray:
    """Joins every sequence of ``length`` entries; the places of a sequence's entries are the digits of its number."""
    if length == 1:
        return entries
    size = len(entries)
    spelt = np.arange(size**length)
    digits = np.stack([spelt // size**power % size for power in reversed(range(length))], axis=1)
    rows = entries.take(from_numbers(digits.reshape(-1)))
    ends = np.ascontiguousarray(_ends(rows)[::length])
    return pa.Array.from_buffers(pa.large_binary(), len(ends) - 1, [None, pa.py_buffer(ends), rows.buffers()[2]])


def _as_digits(rows: np.ndarray, base: int) -> np.ndarray:
    """Returns the number whose digits each row holds, the first digit counting most."""
    spelt = rows[:, 0].astype(np.int32)
    for column in range(1, rows.shape[1]):
        spelt *= base
        spelt += rows[:, column]
    return spelt


def _taken(entries: pa.LargeBinaryArray, places: np.ndarray) -> Iterator[memoryview | bytes]:
    """Yields the entries at some places, one after the other, a piece at a time."""
    step = max(1, PIECE // int(np.diff(_ends(entries)).max()))
    for start in range(0, len(places), step):
        yield _joined(entries.take(from_numbers(places[start : start + step])))


def _measured(array: pa.Array) -> pa.LargeBinaryArray:
    """Returns length and bytes of each text or byte string."""
    data, starts = _spans(array)
    counts = np.diff(starts)
    if data is not None and int(counts.min()) == int(counts.max()):
        return _alike(np.frombuffer(data, np.uint8)[starts[0] : starts[-1]], len(counts))
    return _with_counts(data, starts, counts)


def _spans(array: pa.Array) -> tuple[pa.Buffer | None, np.ndarray]:
    type_ = array.type
    if not (pa.types.is_large_string(type_) or pa.types.is_large_binary(type_)):
        small = pa.types.is_string(type_) or pa.types.is_binary(type_)
        if not small:
            array = array.cast(pa.large_string() if is_string(type_) else pa.large_binary())
    width = np.int32 if pa.types.is_string(array.type) or pa.types.is_binary(array.type) else np.int64
    _, offsets, data = array.buffers()
    starts = np.frombuffer(offsets, width, len(array) + 1, array.offset * np.dtype(width).itemsize)
    return data, starts.astype(np.int64)


def _alike(data: np.ndarray, count: int) -> pa.LargeBinaryArray:
    """Returns length and bytes of ``count`` values of the same length, as codes and hashes often are."""
    width = len(data) // count
    table = np.empty((count, 8 + width), np.uint8)
    table[:, :8] = np.frombuffer(u64(width), np.uint8)
    table[:, 8:] = data.reshape(count, width)
    return _even(table.reshape(-1), 8 + width, count)


def _list_rows(array: pa.Array) -> pa.LargeBinaryArray:
    """Returns count and items of each list: all items' rows are made at once, then regrouped by the lists' offsets."""
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        bounds = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64) * size
    else:
        bounds = numbers(array.offsets).astype(np.int64)
    items = array.values.slice(bounds[0], bounds[-1] - bounds[0])
    counts = np.diff(bounds)
    if isinstance(items, pa.ExtensionArray):
        items = items.storage
    rows = _rows(items)
    if items.null_count:
        rows = pc.if_else(items.is_valid(), rows, _null_mark())
    return _with_counts(rows.buffers()[2], _ends(rows)[bounds - bounds[0]], counts)


def _with_counts(data: pa.Buffer | None, starts: np.ndarray, counts: np.ndarray) -> pa.LargeBinaryArray:
    """Puts each of ``counts``, as u64, before its part of ``data``.

    Arrow inserts eight zero bytes before each part in one pass; then only the bytes that some count needs are set,
    which takes half the time of joining counts and parts.
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
    """Returns what the reference finds in the slot of a missing value that it takes for present.

    Its Parquet reader decodes the values of a row group's part of the window side by side and then spreads them to
    their rows from the back, so the slot of row ``i`` still holds the ``i``-th value decoded, or zero beyond the last.
    Texts, byte strings and lists have offsets instead, and come out empty.
    """
    absent = _bytes_scalar(_absent(type_))
    if is_list(type_) or is_string(type_) or is_binary(type_):
        return absent
    bounds = [0, *cuts, len(rows)]
    parts: list[pa.Array] = []
    for start, stop in itertools.pairwise(bounds):
        decoded = rows.slice(start, stop - start).filter(own.slice(start, stop - start))
        parts += [decoded, pa.repeat(absent, stop - start - len(decoded))]
    return pa.concat_arrays(parts)


def _absent(type_: pa.DataType) -> bytes:
    """Returns the bytes of a zero or an empty value of the type."""
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
    """Joins the rows, with one zero byte for each that is absent. Overwrites the memory of ``rows``."""
    absent = _absences(present)
    if not len(absent):
        return _joined(rows)
    ends = _ends(rows)
    return _shortened(_bytes_of(rows), (int(ends[0]), int(ends[-1])), ends[absent], ends[absent + 1])


def _marked_evenly(data: np.ndarray, present: pa.BooleanArray) -> memoryview | bytes:
    """Does the same for rows of equal width that lie in ``data``."""
    absent = _absences(present)
    if not len(absent):
        return data.data
    width = len(data) // len(present)
    return _shortened(data, (0, len(data)), absent * width, absent * width + width)


def _absences(present: pa.BooleanArray) -> np.ndarray:
    return np.flatnonzero(bits(pc.invert(present)).view(np.bool_))


def _shortened(data: np.ndarray, span: tuple[int, int], starts: np.ndarray, stops: np.ndarray) -> memoryview | bytes:
    """Returns a span of ``data`` in which each range from one of ``starts`` to its stop is replaced by a zero byte.

    The bytes between these ranges are copied run by run, so that few nulls cost little.
    """
    data[starts] = 0
    bounds = np.empty(2 * len(starts) + 2, np.int64)
    bounds[0], bounds[-1] = span
    bounds[1:-1:2], bounds[2:-1:2] = starts + 1, stops
    keep = np.zeros(len(bounds) - 1, bool)
    keep[::2] = True
    runs = pa.Array.from_buffers(pa.large_binary(), len(keep), [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    return _joined(runs.filter(_mask(keep)))


def _mask(chosen: np.ndarray) -> pa.BooleanArray:
    packed = np.packbits(chosen, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(chosen), [None, pa.py_buffer(packed)])


def _joined(rows: pa.LargeBinaryArray) -> memoryview | bytes:
    data, ends = rows.buffers()[2], _ends(rows)
    return b"" if data is None else memoryview(data)[int(ends[0]) : int(ends[-1])]


def _ends(rows: pa.LargeBinaryArray) -> np.ndarray:
    """Returns the positions in memory where rows begin, and the end of the last."""
    return np.frombuffer(rows.buffers()[1], np.int64, len(rows) + 1, rows.offset * 8)


def _bytes_of(rows: pa.LargeBinaryArray) -> np.ndarray:
    """Returns writable memory of rows that this module made; NumPy refuses to write to memory of others."""
    return np.frombuffer(rows.buffers()[2], np.uint8)


def _fixed_bytes(array: pa.Array) -> np.ndarray:
    width = array.type.byte_width
    return np.frombuffer(array.buffers()[1], np.uint8, len(array) * width, array.offset * width)


def _fixed_width(type_: pa.DataType) -> bool:
    """Whether values of the type are hashed as the bytes that lie in memory."""
    if pa.types.is_boolean(type_):
        return False
    t = pa.types
    return bool(t.is_integer(type_) or t.is_floating(type_) or t.is_temporal(type_) or t.is_decimal(type_))


def _bytes_scalar(value: bytes) -> pa.Scalar:
    """Makes a scalar without ``pa.scalar``, which imports pandas to check its argument: half a second at start."""
    return _even(np.frombuffer(value, np.uint8), len(value), 1)[0]


@functools.cache
def _null_mark() -> pa.Scalar:
    return _bytes_scalar(b"\0")
