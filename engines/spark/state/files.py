"""Reads and writes checkpoint files whole and within limits: canonical JSON, then tables, which the JSON names by
digest.

Tables hold few rows compared with the history (one per live key, or the versions in force), and are a function of the
cut like all of the state: sorted, and written as Parquet without anything that depends on how they came about. Spec:
docs/spec/engine-semantics.md#state.

State by key is stored in buckets of bounded size, so that a transaction opens only buckets of keys that it changes.
Buckets are the leaves of a tree over the bits of a hash of the key. A leaf is split when it holds more than ``BUCKET``
rows, and merged with its neighbour when both together hold no more. So the tree is a function of the rows, whatever the
order in which they came, and changes only where they change. Leaves that are not opened are copied as they are. Spec:
docs/spec/engine-semantics.md#cost.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from chain.errors import Environment, Invalid
from engines.spark.rows.changelog import distinct, total_order
from engines.spark.state.checkpoint import (
    MAX_CHECKPOINT,
    MAX_TABLES,
    Arranged,
    StateCheckpoint,
    decode_checkpoint,
    encode_checkpoint,
)

_HINT: Final = "start the transform again after a change of its query"
MAX_STATE: Final = 1 << 30
"""Most bytes of all tables together."""


@dataclass(frozen=True, slots=True)
class State:
    """The state that a transaction begins with; ``checkpoint`` is ``None`` before the first."""

    checkpoint: StateCheckpoint | None = None
    tables: Tables = field(default_factory=lambda: Tables({}))
    """Tables by name, each read on first use; empty tables are absent."""

    @property
    def stored(self) -> Mapping[str, StoredTable]:
        return self.tables.stored


def load(path: str | None, transform: str, mode: str | None) -> State:
    """Loads the state of query digest ``transform``; ``mode``: ``None`` for any. Raises Invalid, Environment."""
    if path is None:
        return State()
    file = Path(path)
    try:
        if file.stat().st_size > MAX_CHECKPOINT + MAX_STATE:
            raise Invalid(f"the checkpoint {file.name} is too large", rule="checkpoint-size")
        raw = _map(file)
    except OSError as error:
        raise Environment(f"cannot read checkpoint {file}: {error.strerror}", rule="disk") from error
    end = raw.find(b"\n", 0, MAX_CHECKPOINT + 1)
    checkpoint = decode_checkpoint(raw[: end if end >= 0 else MAX_CHECKPOINT + 1])
    if checkpoint.transform != transform or mode not in (None, checkpoint.mode):
        raise Invalid("the checkpoint is of another query", rule="checkpoint-transform", hint=_HINT)
    described = () if checkpoint.arranged is msgspec.UNSET else checkpoint.arranged
    return State(checkpoint, unpack(described, memoryview(raw)[end + 1 if end >= 0 else len(raw) :]))


def _map(file: Path) -> bytes | mmap.mmap:
    """Maps the bytes of a file into memory, so that only what is used is read. Raises OSError."""
    with file.open("rb") as opened:
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(opened.fileno()).st_size else b""


def save(path: str, checkpoint: StateCheckpoint, tables: Mapping[str, Kept]) -> None:
    """Writes a checkpoint file. Raises Invalid for a state that cannot be kept, Environment."""
    for item in checkpoint.inputs:
        if any("" in run for run in item.open):
            raise Invalid(
                f"input {item.alias}: rows must be kept, and their blocks were given without hashes",
                rule="open-blocks",
                hint="the coordinator must state block_hash",
            )
    described, body = pack(tables)
    if described:
        checkpoint = msgspec.structs.replace(checkpoint, arranged=described)
    raw = encode_checkpoint(checkpoint)
    try:
        with Path(path).open("wb") as file:
            file.writelines([raw, b"\n", *body] if body else [raw])
    except OSError as error:
        raise Environment(f"cannot write checkpoint {path}: {error.strerror}", rule="disk") from error


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table of a checkpoint that is not read yet."""

    described: Arranged
    raw: memoryview

    @property
    def rows(self) -> int:
        return self.described.rows

    def table(self) -> pa.Table:
        """Reads the table's rows. Raises Invalid when the bytes differ from their description."""
        raw = bytes(self.raw)
        if _digest(raw) != self.described.digest:
            raise Invalid(
                f"the rows {self.described.name} of the checkpoint are damaged",
                rule="checkpoint",
                hint="replay the transform from its start",
            )
        with pq.ParquetFile(pa.BufferReader(raw)) as file:
            return file.read(use_threads=False)


Kept: TypeAlias = pa.Table | StoredTable
"""Rows of the state: new rows, or a stored table that is unchanged and copied as it is."""


class Tables(Mapping[str, pa.Table]):
    """Tables of a checkpoint by name, each read on first use."""

    def __init__(self, stored: Mapping[str, StoredTable]) -> None:
        self.stored = stored

    def __getitem__(self, name: str) -> pa.Table:
        return self.stored[name].table()

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)


def pack(tables: Mapping[str, Kept]) -> tuple[tuple[Arranged, ...], list[bytes | memoryview]]:
    """Returns descriptions for the checkpoint, and its body. Empty tables are left out. Raises Invalid."""
    named: list[Arranged] = []
    parts: list[bytes | memoryview] = []
    for name in sorted(tables):
        table = tables[name]
        if isinstance(table, StoredTable):
            named.append(table.described)
            parts.append(table.raw)
            continue
        if not table.num_rows:
            continue
        ordered = table.take(total_order(table, table.column_names)).replace_schema_metadata(None)
        raw = _parquet(ordered)
        named.append(Arranged(name=name, rows=table.num_rows, size=len(raw), digest=_digest(raw)))
        parts.append(raw)
    size = sum(map(len, parts))
    if size > MAX_STATE or len(named) > MAX_TABLES:
        raise Invalid(
            f"the state of the transform has {size} bytes in {len(named)} parts",
            rule="state-size",
            hint=f"at most {MAX_STATE} in {MAX_TABLES}: fewer keys, or a window of event time",
        )
    return tuple(named), parts


def unpack(described: Sequence[Arranged], body: memoryview) -> Tables:
    """Splits the body into the tables described. Raises Invalid for more or fewer bytes than described."""
    stored, at = {}, 0
    for one in described:
        stored[one.name] = StoredTable(one, body[at : at + one.size])
        at += one.size
    if at != len(body):
        raise Invalid("the rows of the checkpoint do not end where it ends", rule="checkpoint")
    return Tables(stored)


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table.combine_chunks(), sink, compression="zstd", use_dictionary=False, write_statistics=False)
    return sink.getvalue()


def _digest(raw: bytes) -> str:
    return hashlib.sha3_256(raw).hexdigest()


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
