"""Stores state by key, in buckets of bounded size, so that a transaction opens only buckets of keys that it changes.

Buckets are the leaves of a tree over the bits of a hash of the key. A leaf is split when it holds more than ``BUCKET``
rows, and merged with its neighbour when both together hold no more. So the tree is a function of the rows, whatever the
order in which they came, and changes only where they change. Leaves that are not opened are copied as they are. Spec:
docs/spec/engine-semantics.md#state, #cost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from engines.spark.rows.ordering import distinct
from engines.spark.state.files import Kept, StoredTable

BUCKET: Final = 4096
"""Most rows of a bucket, unless it is as deep as the tree may be."""
MAX_BITS: Final = 24
"""Greatest depth of the tree. Rows of one key are never separated, so a leaf this deep may hold any number."""
_WIDTH: Final = 64
_PRIME: Final = np.uint64(0x100000001B3)
_MIX: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_NULL: Final = np.uint64(0x2545F4914F6CDD1D)


def hashes_of(keys: pa.Table) -> np.ndarray:
    """Computes a 64-bit hash of all columns for each row: the same on every machine and in every version."""
    found = np.full(keys.num_rows, _STEP, np.uint64)
    for column in keys.columns:
        array = column.combine_chunks()
        valid = np.asarray(array.is_valid())
        values = _values(array)
        found = _mix(found * _PRIME + np.where(valid, values, _NULL))
    return found


def _mix(values: np.ndarray) -> np.ndarray:
    """Applies the finaliser of splitmix64: every bit of the result depends on every bit of the value."""
    values = (values ^ (values >> np.uint64(30))) * _MIX[0]
    values = (values ^ (values >> np.uint64(27))) * _MIX[1]
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed


def _values(array: pa.Array) -> np.ndarray:
    """Converts a column to 64-bit numbers: numbers as they are, texts by hash; other types give 0, so do not tell rows
    apart."""
    kind = array.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return np.asarray(array.cast(pa.int64(), safe=False).fill_null(0)).view(np.uint64)
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind) or pa.types.is_duration(kind):
        return np.asarray(array.cast(pa.int64()).fill_null(0)).view(np.uint64)
    if pa.types.is_date32(kind):
        return np.asarray(array.cast(pa.int32()).cast(pa.int64()).fill_null(0)).view(np.uint64)
    if pa.types.is_decimal(kind):
        return _texts(array.cast(pa.string()).cast(pa.binary()))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        return _texts(array.cast(pa.binary()))
    return np.zeros(len(array), np.uint64)


def _texts(array: pa.Array) -> np.ndarray:
    """Hashes each text as a polynomial of its bytes, modulo 2^64."""
    array = array.fill_null(b"")
    _, offsets_buffer, body_buffer = array.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    begins, lengths = offsets[:-1] - offsets[:1], np.diff(offsets)
    body = np.frombuffer(body_buffer if body_buffer is not None else b"", np.uint8)
    numbers = body[int(offsets[0]) : int(offsets[-1])].astype(np.uint64) + np.uint64(1)
    places = np.arange(len(numbers)) - np.repeat(begins, lengths)
    powers = np.cumprod(np.full(int(lengths.max(initial=0)) + 1, _PRIME, np.uint64))
    sums = np.append(np.uint64(0), np.cumsum(numbers * powers[places]))
    found: np.ndarray = sums[begins + lengths] - sums[begins]
    return found


class BucketedTable:
    """The buckets of one table of the state in one transaction: ``take`` reads some, ``keep`` writes the results."""

    def __init__(self, name: str, schema: pa.Schema, state: Mapping[str, StoredTable]) -> None:
        """``schema``: of the rows now. Buckets written with an older schema are all opened, to be rewritten."""
        described = hashlib.sha3_256(str(schema.remove_metadata()).encode()).hexdigest()[:8]
        self._stem = f"{name}/{described}/"
        found = {key.removeprefix(self._stem): each for key, each in state.items() if key.startswith(self._stem)}
        self._closed: dict[str, Kept] = dict(sorted(found.items()))
        others = [key for key in state if key.startswith(f"{name}/") and not key.startswith(self._stem)]
        self._outgrown = [state[key] for key in sorted(others)]
        self._opened: list[str] = []

    def take(self, hashes: np.ndarray) -> list[pa.Table]:
        """Reads the buckets that hold the keys, with all their rows, also those of other keys. Raises Invalid for
        damaged ones."""
        leaves = list(self._closed)
        known = distinct(hashes)
        begin, end = (np.array([int(bits.ljust(_WIDTH, fill), 2) for bits in leaves], np.uint64) for fill in "01")
        some = np.searchsorted(known, end, "right") > np.searchsorted(known, begin, "left")
        wanted = [leaves[at] for at in np.flatnonzero(some)]
        self._opened += wanted
        outgrown, self._outgrown = self._outgrown, []
        return [each.table() for each in outgrown] + [_rows(self._closed.pop(bits)) for bits in wanted]

    def take_all(self) -> list[pa.Table]:
        """Reads all buckets. Raises Invalid for damaged ones."""
        return self.take(np.array([int(bits.ljust(_WIDTH, "0"), 2) for bits in self._closed], np.uint64))

    def keep(self, rows: pa.Table, hash_of: Callable[[pa.Table], np.ndarray]) -> dict[str, Kept]:
        """Returns the new state. ``rows``: those of the buckets that were read, and rows of keys that had no bucket."""
        found: dict[str, Kept] = {}
        hashes = hash_of(rows)
        waiting = [("", np.arange(rows.num_rows), list(self._closed), self._opened)]
        while waiting:
            bits, mine, closed, opened = waiting.pop()
            total = len(mine) + sum(_size(self._closed[leaf]) for leaf in closed)
            if not len(mine) and (not opened or closed == [bits]):
                found.update((leaf, self._closed[leaf]) for leaf in closed)
            elif total <= BUCKET or len(bits) == MAX_BITS:
                parts = [rows.take(pa.array(mine)), *(_rows(self._closed[leaf]) for leaf in closed)]
                found.update({bits: pa.concat_tables(parts)} if total else {})
            else:
                side = (hashes[mine] >> np.uint64(_WIDTH - 1 - len(bits))) & np.uint64(1)
                waiting += [
                    (bits + word, mine[side == int(word)], *([leaf for leaf in each if leaf.startswith(bits + word)]
                     for each in (closed, opened))) for word in "01"
                ]  # fmt: skip
        return {self._stem + bits: each for bits, each in found.items()}


def _size(kept: Kept) -> int:
    return kept.num_rows if isinstance(kept, pa.Table) else kept.rows


def _rows(kept: Kept) -> pa.Table:
    return kept if isinstance(kept, pa.Table) else kept.table()
