"""When the sessions of an input's rows begin and end, read from its slices: what a plan alone cannot say.

Made for one transaction over the slices that it sees; a session still open is whole among them, since the checkpoint
keeps its blocks open. Vectorised. Engine semantics, sections 4 and 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path as FilePath

import numpy as np
import pyarrow as pa

from chain.data.parquet import open_slice
from engines.contract import Vocabulary
from engines.spark.analysis.classify import Path
from engines.spark.analysis.influence import Session
from engines.spark.analysis.monotone import LATEST
from engines.spark.facts import microseconds
from engines.spark.incremental import BlockFacts


class Sessions:
    """Sessions by path, each read once."""

    def __init__(self, vocabs: dict[str, Vocabulary]) -> None:
        self._vocabs = vocabs
        self._known: dict[tuple[str, Session], tuple[np.ndarray, np.ndarray]] = {}

    def oldest(self, path: Path, judged: Sequence[tuple[BlockFacts, int]], end: int) -> int:
        """When the oldest session begins that ends at ``end`` or later, microseconds. Raises Invalid, Environment."""
        if not isinstance(path.life, Session):
            raise AssertionError("a path without sessions")
        key = (path.input, path.life)
        if key not in self._known:
            self._known[key] = _spans(judged, path.life, self._vocabs[path.input].event_time_column)
        starts, ends = self._known[key]
        found = starts[ends >= end]
        return int(found.min()) if len(found) else LATEST


def _spans(judged: Sequence[tuple[BlockFacts, int]], session: Session, time: str) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends, microseconds. A row exactly one gap after another belongs to the same session, as in Spark."""
    parts = [
        part
        for block, threshold in judged
        if block.path is not None and block.first is not None
        for part in [_accepted(FilePath(block.path), [time, *session.keys], threshold)]
    ]
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    table = pa.concat_tables(parts, promote_options="permissive")
    times = np.asarray(table.column(time))
    groups = group_codes(table.select(session.keys))
    order = np.lexsort((times, groups))
    times, groups = times[order], groups[order]
    begins = np.ones(len(times), bool)
    begins[1:] = (groups[1:] != groups[:-1]) | (np.diff(times) > session.gap)
    finishes = np.append(begins[1:], True)[: len(times)]
    return times[begins], times[finishes] + session.gap


def _accepted(path: FilePath, columns: Sequence[str], threshold: int) -> pa.Table:
    """Event time (int64 microseconds) and keys of rows that are not late; columns that a slice lacks are null."""
    with open_slice(path) as source:
        present = [name for name in columns if name in source.schema.names]
        table = pa.Table.from_batches(
            list(source.batches(columns=present)), schema=pa.schema([source.schema.field(name) for name in present])
        )
    times = microseconds(table.column(columns[0]).combine_chunks())
    kept = np.asarray(times.is_valid()) & (np.asarray(times.fill_null(0)) >= threshold)
    found = {columns[0]: times} | {
        name: table.column(name) if name in present else pa.nulls(table.num_rows) for name in columns[1:]
    }
    return pa.table(found).filter(pa.array(kept))


def group_codes(keys: pa.Table) -> np.ndarray:
    """A number for each row, equal where all columns are; nested columns are passed over, which only joins groups."""
    codes = np.zeros(keys.num_rows, np.int64)
    for column in keys.columns:
        if pa.types.is_nested(column.type):
            continue
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
        values = np.asarray(encoded.indices.fill_null(-1), dtype=np.int64)
        _, codes = np.unique(np.stack([codes, values]), axis=1, return_inverse=True)
        codes = codes.reshape(-1).astype(np.int64)
    return codes
