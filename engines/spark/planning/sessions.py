"""Finds when sessions of inputs' rows begin and end from their slices, which a plan alone does not tell.

A session is of the rows of all members together: what a row of one input keeps open is not settled for the others
either. Made for one transaction over the slices that it sees; a session still open is whole among them, since the
checkpoint keeps its blocks open. Vectorised. Spec: docs/spec/engine-semantics.md#influence, #time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chain.data.parquet import open_slice
from engines.contract import Vocabulary
from engines.spark.analysis.influence import Member, Session
from engines.spark.analysis.monotone import LATEST
from engines.spark.planning.transaction import Judged
from engines.spark.rows.times import microseconds

TIME: Final = "time"


class Sessions:
    """Starts and ends of sessions, each kind read once."""

    def __init__(self, vocabs: dict[str, Vocabulary]) -> None:
        self._vocabs = vocabs
        self._known: dict[tuple[int, tuple[Member, ...]], tuple[np.ndarray, np.ndarray]] = {}

    def oldest(self, sessions: Session, judged: Mapping[str, Judged], end: int) -> int:
        """When the oldest session begins that ends at ``end`` or later, microseconds in the times by which the query
        makes sessions; ``LATEST`` if there is none. Raises Invalid, Environment.
        """
        key = (sessions.gap, sessions.of)
        if key not in self._known:
            rows = [
                _accepted(FilePath(block.path), self._vocabs[member.input].event_time_column, member, threshold)
                for member in sessions.of
                for block, threshold in judged[member.input]
                if block.path is not None and block.first is not None
            ]
            self._known[key] = _spans(rows, sessions.gap)
        starts, ends = self._known[key]
        found = starts[ends >= end]
        return int(found.min()) if len(found) else LATEST


def _spans(parts: Sequence[pa.Table], gap: int) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends, microseconds. A row exactly one gap after another belongs to the same session, as in Spark."""
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    times = np.concatenate([np.asarray(part.column(TIME)) for part in parts])
    groups = group_codes(_keys(parts))
    order = np.lexsort((times, groups))
    times, groups = times[order], groups[order]
    begins = np.ones(len(times), bool)
    begins[1:] = (groups[1:] != groups[:-1]) | (np.diff(times) > gap)
    finishes = np.append(begins[1:], True)[: len(times)]
    return times[begins], times[finishes] + gap


def _keys(parts: Sequence[pa.Table]) -> pa.Table:
    """Key columns of all parts; one whose values have no type in common is left out, which only joins groups."""
    found = [pa.nulls(sum(part.num_rows for part in parts))]
    for name in parts[0].column_names[1:]:
        with contextlib.suppress(pa.ArrowTypeError):
            found.append(pa.concat_tables([part.select([name]) for part in parts], promote_options="permissive")[name])
    return pa.table(found, names=[str(at) for at in range(len(found))])


def _accepted(path: FilePath, time: str, member: Member, threshold: int) -> pa.Table:
    """Rows that are not late: when they count (int64 microseconds), and keys by number; columns that a slice lacks
    are null.
    """
    with open_slice(path) as source:
        present = [name for name in dict.fromkeys((time, *member.keys)) if name in source.schema.names]
        table = pa.Table.from_batches(
            list(source.batches(columns=present)), schema=pa.schema([source.schema.field(name) for name in present])
        )
    times = microseconds(table.column(time).combine_chunks())
    kept = np.asarray(times.is_valid()) & (np.asarray(times.fill_null(0)) >= threshold)
    found = {TIME: pc.add(times, member.shift)} | {
        str(at): table.column(name) if name in present else pa.nulls(table.num_rows)
        for at, name in enumerate(member.keys)
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
