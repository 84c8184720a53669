"""Computes when rows of a key counted in a changing table, and which statements ended them. Pure, in columns.

The same effective times as ``tables`` works with, for the rows of one key from the first block on; kept besides is
which statement took a row back, for that is what people ask about. Spec: docs/spec/engine-semantics.md#table-mode,
#effective-time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chain.data.operations import APPEND, CORRECT_FROM, CORRECT_TO, RETRACT
from engines.contract import Vocabulary
from engines.spark.rows.changelog import NEVER, cancelled_by, data_of, positive, row_codes


@dataclass(frozen=True, slots=True)
class Lifetimes:
    rows: pa.Table
    enter: np.ndarray
    leave: np.ndarray
    """Microseconds: a row counts at ticks with ``enter < tick <= leave``."""
    ended_by: np.ndarray
    """Offset of the statement that takes the row back; -1: none."""
    dated_by: np.ndarray
    """Offset of the statement that tells when it is taken back: of a correction the second half; -1: none."""


def entering(ops: np.ndarray, times: np.ndarray, before: int | None, after: int | None) -> np.ndarray:
    """From when each statement of a block counts by itself; ``before`` and ``after``: its watermarks."""
    low, high = (-NEVER if mark is None else mark for mark in (before, after))
    enter = np.maximum(times, low)
    enter = np.where(ops == RETRACT, np.maximum(enter, high), enter)
    return np.where(ops == CORRECT_FROM, np.append(enter[1:], enter[-1:]), enter)


def dating(ops: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Of each statement of a block, the offset of the one whose time it counts from: ``entering`` says the same."""
    following = np.append(ops[1:], APPEND) == CORRECT_TO
    dated: np.ndarray = np.where((ops == CORRECT_FROM) & following, np.append(offsets[1:], offsets[-1:]), offsets)
    return dated


def lives(rows: pa.Table, ops: np.ndarray, enter: np.ndarray, dated: np.ndarray, vocab: Vocabulary) -> Lifetimes:
    """``rows``: all statements about some keys, in chain order, with what they say, when they count, and whose time
    tells it.
    """
    offsets = np.asarray(rows.column(vocab.offset_column)).astype(np.int64)
    leave = np.full(len(ops), NEVER, np.int64)
    ended_by, dated_by = (np.full(len(ops), -1, np.int64) for _ in range(2))
    if ops.any():
        canceller, _ = cancelled_by(row_codes(data_of(rows, vocab)), ops)
        ended = np.flatnonzero(canceller >= 0)
        leave[ended] = np.maximum(enter[canceller[ended]], enter[ended])
        ended_by[ended], dated_by[ended] = offsets[canceller[ended]], dated[canceller[ended]]
    kept = positive(ops) & (enter < leave)
    return Lifetimes(rows.filter(pa.array(kept)), enter[kept], leave[kept], ended_by[kept], dated_by[kept])


def of_key(rows: pa.Table, columns: dict[str, pa.Scalar]) -> np.ndarray:
    """Which rows have these values; a value that a column cannot hold is in no row."""
    chosen = np.ones(rows.num_rows, bool)
    for name, value in columns.items():
        column = rows.column(name)
        if not value.is_valid:
            chosen &= np.asarray(column.is_null())
            continue
        chosen &= np.asarray(pc.fill_null(pc.equal(column, value.cast(column.type)), False))
    return chosen
