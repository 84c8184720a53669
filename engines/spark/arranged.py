"""State that is rows: tables that a checkpoint carries behind its JSON, each named with its digest.

The rows are few against the history (one per live key, or the versions in force), and a function of the cut like all
of the state: sorted, and written as Parquet without anything that could tell how they came about. Engine semantics,
section 10.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from chain.errors import Invalid
from engines.spark.checkpoint import Arranged
from engines.spark.ordering import total_order

MAX_STATE: Final = 1 << 30
"""Bytes of all tables together."""


def pack(tables: Mapping[str, pa.Table]) -> tuple[tuple[Arranged, ...], bytes]:
    """Descriptions for the checkpoint, and the bytes that follow it. Empty tables are left out. Raises Invalid."""
    named, parts = [], []
    for name in sorted(tables):
        table = tables[name]
        if not table.num_rows:
            continue
        ordered = table.take(total_order(table, table.column_names)).replace_schema_metadata(None)
        raw = _parquet(ordered)
        named.append(Arranged(name=name, rows=table.num_rows, size=len(raw), digest=_digest(raw)))
        parts.append(raw)
    body = b"".join(parts)
    if len(body) > MAX_STATE:
        raise Invalid(
            f"the state of the transform has {len(body)} bytes", rule="state-size",
            hint=f"at most {MAX_STATE}: fewer keys, or a window of event time",
        )  # fmt: skip
    return tuple(named), body


def unpack(described: Sequence[Arranged], body: bytes) -> dict[str, pa.Table]:
    """The tables. Raises Invalid when the bytes are not those that were described."""
    tables, at = {}, 0
    for one in described:
        raw = body[at : at + one.size]
        at += one.size
        if _digest(raw) != one.digest:
            raise Invalid(
                f"the rows {one.name} of the checkpoint are damaged", rule="checkpoint",
                hint="replay the transform from its start",
            )  # fmt: skip
        tables[one.name] = pq.read_table(io.BytesIO(raw), use_threads=False)
    if at != len(body):
        raise Invalid("bytes after the end of the checkpoint", rule="checkpoint")
    return tables


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table.combine_chunks(), sink, compression="zstd", use_dictionary=False, write_statistics=False)
    return sink.getvalue()


def _digest(raw: bytes) -> str:
    return hashlib.sha3_256(raw).hexdigest()
