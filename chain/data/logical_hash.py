"""Computes the logical hash of rows, arrow0-sha3-256, which is the same whatever their Parquet encoding.

A ``LogicalHasher`` is made for one slice's schema, fed its batches in row order and finished once; memory is one window
of rows. Batches may be of any size: the hash does not depend on them. See ``arrow0`` for the bytes that are hashed.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future
from typing import Final, TypeAlias

from chain.data import arrow0, arrow0_values, dictionaries, parquet
from chain.errors import Invalid
from chain.libraries import pa
from chain.multihash import ARROW0_SHA3_256, Multihash


def logical_hashes(rows: pa.RecordBatch, bounds: Sequence[int]) -> list[Multihash]:
    """Hashes slices that are row groups: slice ``i`` has rows ``bounds[i]`` to ``bounds[i + 1]``, one or more.

    ``rows`` hold no dictionaries. Raises Invalid as ``logical_hash``.
    """
    record, types, quirky = described(rows.schema)
    spans = list(itertools.pairwise(bounds))
    if quirky:  # the hash depends on the window, so each slice is hashed alone
        return [logical_hash(rows.slice(start, stop - start)) for start, stop in spans]
    hashed = [hashlib.sha3_256(record) for _ in spans]
    for kind, leaf in zip(types, arrow0.leaves(rows), strict=True):
        empty = hashlib.sha3_256(kind)
        for slice_, part in zip(hashed, arrow0_values.parts(leaf, bounds), strict=True):
            column = empty.copy()
            column.update(part)
            slice_.update(column.digest())
    return [Multihash.from_digest(ARROW0_SHA3_256, each.digest()) for each in hashed]


QUIRK_WINDOW: Final = 10_000
"""Rows that the reference reads at once.

The digest of a null below a nullable struct depends on what else is in its window and its row group (``arrow0``), so
for such schemas windows are exactly these.
"""
WIDE_WINDOW: Final = 65_536
"""Rows hashed at once where windows do not matter: enough to hide the cost of a call, few enough for caches."""
SHARED_WINDOW: Final = 131_072
"""The same for several threads: large enough that they seldom wait for each other at the interpreter's lock."""
WINDOW_BYTES: Final = 4 << 20
"""Bytes after which rows are hashed before their window is full, where windows do not matter: few, since these
rows are copied together, and clearing new pages for the copy costs the kernel as much as hashing half of it."""
SHARED_BYTES: Final = 32 << 20
"""The same for several threads."""
MAX_WINDOW_BYTES: Final = 256 << 20
"""Most bytes of a window where windows matter."""

_AHEAD: Final = 3
"""Windows begun before the first is done, so that no thread waits at a window's end for the slowest column."""
_LENGTH: Final = 8
"""Bytes of the length that is hashed before each text."""

Rows: TypeAlias = "pa.Table | pa.RecordBatch | pa.RecordBatchReader"


@functools.lru_cache(maxsize=64)
def described(schema: pa.Schema) -> tuple[bytes, tuple[bytes, ...], bool]:
    """Returns the hashed parts of a schema: names and types of leaves, and whether a nullable struct occurs.

    Cached, as slices of one dataset have one schema, and small ones are many. Raises Invalid.
    """
    record, types, nested = bytearray(), [], False
    for field, level in arrow0.fields_depth_first(schema):
        name = field.name.encode()
        record += arrow0.u64(len(name)) + name + arrow0.u64(level)
        if pa.types.is_struct(arrow0.storage(field.type)):
            nested = nested or field.nullable
            continue
        try:
            types.append(arrow0.type_bytes(field.type))
        except Invalid as error:
            error.place = f"column {field.name!r}"
            raise
    return bytes(record), tuple(types), nested


class LogicalHasher:
    """Streaming digest of one slice. Not for several threads.

    The pool, if given, hashes columns side by side, a few windows at a time, all of which are then in memory.
    """

    def __init__(
        self, schema: pa.Schema, pool: Executor | None = None, row_groups: Sequence[int] | None = None
    ) -> None:
        """Sets the schema. ``row_groups``: the number of rows of each in the file; by default as our writer makes them.

        Raises Invalid for a schema with a type that has no logical hash.
        """
        self._schema = schema
        self._starts = None if row_groups is None else list(itertools.accumulate(row_groups))
        self._pool = pool
        record, types, nested = described(schema)
        self._record = hashlib.sha3_256(record)
        self._columns = [hashlib.sha3_256(type_) for type_ in types]
        self._quirky = nested
        self._most = WINDOW_BYTES if pool is None else SHARED_BYTES
        self._window = QUIRK_WINDOW if nested else WIDE_WINDOW if pool is None else SHARED_WINDOW
        self._running: deque[dict[int, Future[None]]] = deque()
        """Windows that the pool is hashing: for each, the future of every column."""
        self._pending: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0
        self._done = 0

    def update(self, batch: pa.RecordBatch) -> None:
        """Adds the next rows, plain or as ``SliceFile.batches(encoded=True)``. Raises Invalid for another schema."""
        same = batch.schema.equals(self._schema) or dictionaries.decoded(batch.schema).equals(self._schema)
        if not same:
            raise Invalid("rows of another schema than the slice began with", rule="slice-schema")
        start = 0
        while self._rows + batch.num_rows - start >= self._window:
            take = self._window - self._rows
            self._pending.append(batch.slice(start, take))
            self._flush()
            start += take
        if start < batch.num_rows:
            rest = batch.slice(start)
            self._pending.append(rest)
            self._rows += rest.num_rows
            self._bytes += rest.nbytes
        if self._bytes > self._most:
            self._crowded()

    def _crowded(self) -> None:
        """Hashes pending rows early; where windows matter it cannot, and raises Invalid beyond MAX_WINDOW_BYTES."""
        if not self._quirky:
            self._flush()
        elif self._bytes > MAX_WINDOW_BYTES:
            raise Invalid(
                f"{self._rows:,} rows below a nullable struct take {self._bytes:,} bytes, and are hashed together",
                rule="logical-hash-window",
                hint=f"keep {QUIRK_WINDOW:,} such rows within {MAX_WINDOW_BYTES:,} bytes, or make the struct required",
            )

    def finish(self) -> Multihash:
        """Returns the hash of all rows given. The hasher cannot be used afterwards."""
        self._flush()
        self._settle()
        for column in self._columns:
            self._record.update(column.digest())
        return Multihash.from_digest(ARROW0_SHA3_256, self._record.digest())

    def _flush(self) -> None:
        if not self._pending:
            return
        window = pa.concat_batches(self._pending) if len(self._pending) > 1 else self._pending[0]
        cuts = self._cuts(self._done, self._done + window.num_rows)
        self._done += window.num_rows
        self._pending, self._rows, self._bytes = [], 0, 0

        def feed(column: hashlib._Hash, leaf: arrow0.ArrowLeaf, before: Future[None] | None = None) -> None:
            if before is not None:
                before.result()
            for part in arrow0_values.streams(leaf, cuts):
                column.update(part)

        work = list(zip(self._columns, arrow0.leaves(window), strict=True))
        if self._pool is None:
            for column, leaf in work:
                feed(column, leaf)
            return
        # The longest column first, so that no thread begins it last and keeps the others waiting.
        self._settle(_AHEAD)
        before = self._running[-1] if self._running else {}
        running: dict[int, Future[None]] = {}
        for place in sorted(range(len(work)), key=lambda place: _weight(work[place][1].array), reverse=True):
            running[place] = self._pool.submit(feed, *work[place], before.get(place))
        self._running.append(running)

    def _settle(self, left: int = 0) -> None:
        """Waits until at most ``left`` windows are being hashed."""
        while len(self._running) > left:
            for future in self._running.popleft().values():
                future.result()

    def _cuts(self, start: int, stop: int) -> list[int]:
        """Returns where row groups begin strictly within the rows ``start <= n < stop``, counted from ``start``."""
        if self._starts is None:
            first = start // parquet.ROW_GROUP + 1
            return [n - start for n in range(first * parquet.ROW_GROUP, stop, parquet.ROW_GROUP) if n > start]
        found = bisect.bisect_right(self._starts, start), bisect.bisect_left(self._starts, stop)
        return [n - start for n in self._starts[slice(*found)]]


def _weight(array: pa.Array) -> float:
    """Estimates the bytes to hash of a column, with the texts of a dictionary written out."""
    if not isinstance(array, pa.DictionaryArray):
        return float(array.nbytes)
    entry: float = array.dictionary.nbytes / max(1, len(array.dictionary))
    return len(array) * (_LENGTH + entry)


def logical_hash(rows: Rows, pool: Executor | None = None) -> Multihash:
    """Returns the hash of a table, a batch or a stream of batches. Raises Invalid for types that cannot be hashed."""
    hasher = LogicalHasher(rows.schema, pool)
    batches: Iterable[pa.RecordBatch] = [rows] if isinstance(rows, pa.RecordBatch) else rows
    if isinstance(rows, pa.Table):
        batches = rows.to_batches()
    for batch in batches:
        hasher.update(batch)
    return hasher.finish()


def logical_hash_file(source: parquet.Source, pool: Executor | None = None) -> Multihash:
    """Returns the hash of a Parquet file's rows, in memory of a few windows. Raises Invalid if not one, NotFound."""
    with parquet.open_slice(source) as file:
        hasher = LogicalHasher(file.schema, pool, file.row_groups)
        for batch in file.batches(encoded=True):
            hasher.update(batch)
    return hasher.finish()
