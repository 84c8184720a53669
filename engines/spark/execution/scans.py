"""Reads slices of a changing table's inputs in Spark, and computes in the query the round of each row.

Rows that all count in this transaction need not pass through Python. Whether they do is known of a slice from what
planning read of it, or from its times where ticks are points of a grid. Small slices do pass through Python, which is
faster than one more scan. Spec: docs/spec/engine-semantics.md#table-mode.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

from engines.contract import Vocab
from engines.spark.analysis.lexical import quote_name
from engines.spark.catalyst.plans import HIDDEN_ROUND
from engines.spark.planning.transaction import BlockFacts, SliceRead
from engines.spark.rows.tables import event_times, read_rows
from engines.spark.sql.views import slices_view

SCANNED: Final = 1 << 20
"""Bytes from which on a slice is worth a scan of its own."""
MAX_TICKS: Final = 64
"""Most ticks, about, between the rows of a slice: each is a comparison in the query."""


class Scanned(Protocol):
    """The properties of an input whose slices are scanned."""

    @property
    def schema(self) -> st.StructType: ...
    @property
    def vocab(self) -> Vocab: ...
    @property
    def log(self) -> bool:
        """Whether the query sees every statement as an event, so that operations do not matter."""


@dataclass(frozen=True, slots=True)
class Scan:
    """A slice that only adds rows, all of which count in this transaction."""

    path: str
    moments: np.ndarray
    """Times from which the rows count, microseconds; only the least and the greatest unless all were asked for."""
    round: str = ""
    """SQL expression for the number of a row's round; empty until the ticks are known."""


def scan_of(block: BlockFacts, counts_from: int, until: int, source: Scanned, *, every: bool) -> Scan | None:
    """Returns the scan of a block, or ``None`` if its rows must be read in Python.

    Rows count from ``counts_from`` at the earliest, and in this transaction if before ``until``. ``every``: all moments
    are needed. Raises Invalid, Environment.
    """
    if block.path is None or Path(block.path).stat().st_size < SCANNED:
        return None
    if every or block.changes is None:
        return _looked_at(block.path, counts_from, until, source)
    if block.first is None or block.last is None or (block.changes and not source.log):
        return None
    moments = np.maximum(np.array([block.first, block.last], np.int64), counts_from)
    return Scan(block.path, moments) if moments[1] < until else None


def _looked_at(path: str, counts_from: int, until: int, source: Scanned) -> Scan | None:
    """Makes the scan as ``scan_of`` does, but from the times of all rows; ``None`` if it has to be read in Python."""
    schema, vocab, log = source.schema, source.vocab, source.log
    names = {vocab.event_time, vocab.operation_type}
    rows = read_rows([path], st.StructType([field for field in schema if field.name in names]))
    if not log and np.any(np.asarray(rows.column(vocab.operation_type))):
        return None
    times, timed = event_times(rows, vocab)
    moments = np.maximum(times[timed], counts_from)
    return Scan(path, moments) if len(moments) and moments.max() < until else None


def is_crowded(scan: Scan, ticks: np.ndarray) -> bool:
    """Whether more than ``MAX_TICKS`` ticks occur between its rows."""
    return bool(np.diff(_ends(scan, ticks))[0] > MAX_TICKS)


def in_rounds(scan: Scan, ticks: np.ndarray, vocab: Vocab) -> Scan:
    """Adds the expression for a row's round: the number of ticks up to when the row counts."""
    low, high = _ends(scan, ticks).tolist()
    time = f"unix_micros(cast({quote_name(vocab.event_time)} as timestamp))"
    # No row counts before the least moment, so for ticks after it the row's own time decides.
    steps = [f"cast({time} >= {tick}L as bigint)" for tick in ticks[low:high].tolist()]
    return Scan(scan.path, scan.moments, " + ".join([f"{low}L", *steps]))


def scan_rows(session: SparkSession, scans: Sequence[Scan], schema: st.StructType, vocab: Vocab) -> list[DataFrame]:
    """Returns the rows of scans that have a time, with the column ``HIDDEN_ROUND``."""
    rounds = dict.fromkeys(scan.round for scan in scans)
    return [
        slices_view(session, [SliceRead(tuple(scan.path for scan in scans if scan.round == each))], schema, vocab, None)
        .where(f"{quote_name(vocab.event_time)} is not null")
        .selectExpr("*", f"{each} as {HIDDEN_ROUND}")
        for each in rounds
    ]


def _ends(scan: Scan, ticks: np.ndarray) -> np.ndarray:
    return np.searchsorted(ticks, [scan.moments.min(), scan.moments.max()], side="right")


def unite(frames: Sequence[DataFrame]) -> DataFrame:
    return functools.reduce(DataFrame.unionAll, frames)
