"""Computes the shard of each row: ``pmod(xxhash64(columns), shards)`` as Spark defines it, with seed 42.

Vectorised: each step is done for all rows at once; only values longer than 32 bytes take one more step for each further
32 bytes. Pinned by vectors that Spark computed (``tests/golden/data/xxhash64.json``): every node must compute the same
shards, for ever. Pure. Spec: docs/spec/collections.md#shards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from chain.errors import Invalid
from chain.libraries import np, pa

FUNCTION: Final = "xxhash64"
"""Name of the hash, as signed cards of collections state it."""
SEED: Final = 42
MAX_SHARDS: Final = 64
"""Most shards of one rendition: a commit writes to all of them, and a read opens all of them."""
_P1: Final = 0x9E3779B185EBCA87
_P2: Final = 0xC2B2AE3D27D4EB4F
_P3: Final = 0x165667B19E3779F9
_P4: Final = 0x85EBCA77C2B2AE63
_P5: Final = 0x27D4EB2F165667C5
_MASK: Final = (1 << 64) - 1
_STRIPE: Final = 32
_LONG_DIGITS: Final = 18
"""Digits of the decimals that Spark keeps in 64 bits."""
_MICROS: Final = {"s": 1_000_000, "ms": 1000, "us": 1}


def hashable(kind: pa.DataType) -> bool:
    """Whether a column may decide the shard: its equal values must have equal bytes, unlike floats and nested ones."""
    return (
        (pa.types.is_integer(kind) and kind != pa.uint64())
        or pa.types.is_boolean(kind)
        or any(is_bytes(kind) for is_bytes in _bytes_like())
        or pa.types.is_date32(kind)
        or (pa.types.is_timestamp(kind) and kind.unit in _MICROS)
        or (pa.types.is_decimal128(kind) and kind.precision <= _LONG_DIGITS)
    )  # fmt: skip


def shards_of(rows: pa.Table, columns: Sequence[str], shards: int) -> np.ndarray:
    """Returns the number of the shard of each row. Raises Invalid for a column that cannot decide it."""
    if shards == 1:
        return np.zeros(rows.num_rows, np.int64)
    return np.mod(hashes(rows, columns).view(np.int64), np.int64(shards))


def hashes(rows: pa.Table, columns: Sequence[str]) -> np.ndarray:
    """Returns ``xxhash64`` of the columns, each seeded with the hash of those before; a null keeps the hash."""
    found = np.full(rows.num_rows, SEED, np.uint64)
    for name in columns:
        column = rows.column(name).combine_chunks()
        if not hashable(column.type):
            raise Invalid(f"column {name} of type {column.type} cannot decide the shard of a row", rule="shard-column")
        there = np.asarray(column.is_valid())
        if not there.all():
            column = column.drop_null()
        found[there] = _column(column, found[there])
    return found


def _column(values: pa.Array, seeds: np.ndarray) -> np.ndarray:
    kind = values.type
    if any(is_bytes(kind) for is_bytes in _bytes_like()):
        return _of_bytes(values.cast(pa.large_binary()), seeds)
    if pa.types.is_boolean(kind):
        return _of_int(np.asarray(values.cast(pa.int32())), seeds)
    if pa.types.is_timestamp(kind):
        numbers = np.asarray(values.cast(pa.int64())) * np.int64(_MICROS[kind.unit])
        return _of_long(numbers, seeds)
    if pa.types.is_decimal128(kind):
        return _of_long(_unscaled(values), seeds)
    if pa.types.is_date32(kind):
        return _of_int(np.asarray(values.cast(pa.int32())), seeds)
    if kind in {pa.int64(), pa.uint32()}:
        return _of_long(np.asarray(values).astype(np.int64), seeds)
    return _of_int(np.asarray(values).astype(np.int32), seeds)


def _bytes_like() -> Sequence[Callable[[pa.DataType], bool]]:
    return (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)


def _unscaled(values: pa.Array) -> np.ndarray:
    """Returns decimals of at most 18 digits as integers: the lower one of two words."""
    words = np.frombuffer(values.buffers()[1], np.int64)
    low: np.ndarray = np.array(words[2 * values.offset : 2 * (values.offset + len(values)) : 2])
    return low


def _of_int(values: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    found = seeds + _u(_P5 + 4)
    found ^= values.astype(np.uint32).astype(np.uint64) * _u(_P1)
    return _final(_turn(found, 23) * _u(_P2) + _u(_P3))


def _of_long(values: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    return _final(_eight(seeds + _u(_P5 + 8), values.view(np.uint64)))


def _of_bytes(values: pa.LargeBinaryArray, seeds: np.ndarray) -> np.ndarray:
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    place, lengths = ends[:-1].copy(), np.diff(ends)
    bytes_ = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    # Words are read from a copy with spare room behind the last byte.
    bytes_ = np.concatenate([bytes_[: ends[-1]] if len(ends) else bytes_, np.zeros(8, np.uint8)])
    found = seeds + _u(_P5)
    long_ = np.flatnonzero(lengths >= _STRIPE)
    if len(long_):
        found[long_] = _striped(bytes_, place[long_], lengths[long_] // _STRIPE, seeds[long_])
        place[long_] += lengths[long_] // _STRIPE * _STRIPE
    found += lengths.astype(np.uint64)
    left = lengths % _STRIPE
    for _ in range(_STRIPE // 8 - 1):
        some = np.flatnonzero(left >= 8)
        found[some] = _eight(found[some], _words(bytes_, place[some], 8))
        place[some] += 8
        left[some] -= 8
    some = np.flatnonzero(left >= 4)
    found[some] = _turn(found[some] ^ _words(bytes_, place[some], 4) * _u(_P1), 23) * _u(_P2) + _u(_P3)
    place[some] += 4
    left[some] -= 4
    for _ in range(3):
        some = np.flatnonzero(left > 0)
        found[some] = _turn(found[some] ^ bytes_[place[some]].astype(np.uint64) * _u(_P5), 11) * _u(_P1)
        place[some] += 1
        left[some] -= 1
    return _final(found)


def _striped(bytes_: np.ndarray, place: np.ndarray, stripes: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Hashes all whole stripes of 32 bytes, for values that have at least one."""
    lanes = [seeds + _u(_P1 + _P2), seeds + _u(_P2), seeds.copy(), seeds - _u(_P1)]
    place = place.copy()
    for done in range(int(stripes.max())):
        some = np.flatnonzero(stripes > done)
        for lane in lanes:
            lane[some] = _turn(lane[some] + _words(bytes_, place[some], 8) * _u(_P2), 31) * _u(_P1)
            place[some] += 8
    found = _turn(lanes[0], 1) + _turn(lanes[1], 7) + _turn(lanes[2], 12) + _turn(lanes[3], 18)
    for lane in lanes:
        found = (found ^ _turn(lane * _u(_P2), 31) * _u(_P1)) * _u(_P1) + _u(_P4)
    together: np.ndarray = found
    return together


def _words(bytes_: np.ndarray, place: np.ndarray, size: int) -> np.ndarray:
    """Returns the little-endian numbers of ``size`` bytes at these places."""
    windows = np.lib.stride_tricks.sliding_window_view(bytes_, size)[place]
    words: np.ndarray = np.ascontiguousarray(windows).view(f"<u{size}").ravel().astype(np.uint64)
    return words


def _eight(found: np.ndarray, words: np.ndarray) -> np.ndarray:
    return _turn(found ^ _turn(words * _u(_P2), 31) * _u(_P1), 27) * _u(_P1) + _u(_P4)


def _turn(values: np.ndarray, bits: int) -> np.ndarray:
    return (values << _u(bits)) | (values >> _u(64 - bits))


def _final(found: np.ndarray) -> np.ndarray:
    found = (found ^ (found >> _u(33))) * _u(_P2)
    found = (found ^ (found >> _u(29))) * _u(_P3)
    mixed: np.ndarray = found ^ (found >> _u(32))
    return mixed


def _u(value: int) -> np.uint64:
    return np.uint64(value & _MASK)
