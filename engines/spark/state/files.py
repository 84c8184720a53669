"""Reads and writes checkpoint files whole and within limits: canonical JSON, then tables, which the JSON names by
digest.

Tables hold few rows compared with the history (one per live key, or the versions in force), and are a function of the
cut like all of the state: sorted, and written as Parquet without anything that depends on how they came about. Spec:
docs/spec/engine-semantics.md#state.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from chain.errors import Environment, Invalid
from engines.spark.rows.ordering import total_order
from engines.spark.state.checkpoint import (
    MAX_CHECKPOINT,
    MAX_TABLES,
    Arranged,
    StateCheckpoint,
    decode_checkpoint,
    encode_checkpoint,
)

_HINT: Final = "start the transform anew after a change of its query"
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
