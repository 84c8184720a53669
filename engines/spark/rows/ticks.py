"""Computes the rows of each key of a changing table at each tick, and the changes from one tick to the next.

A round is one key at one tick. All rounds of a transaction are evaluated at once, so the work is that of the keys that
change, whatever the history. For provenance, ``Lifetimes`` also has the statement that took a row back. Pure, in
columns. Spec: docs/spec/engine-semantics.md#table-mode, #effective-time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chain.data.operations import APPEND, CORRECT_FROM, CORRECT_TO, RETRACT
from engines.contract import Vocab
from engines.spark.rows.changelog import NEVER, cancelled_by, data_of, distinct, positive, row_codes, total_order


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds of a transaction, sorted by key, then tick."""

    places: np.ndarray
    """Of each round: key number * number of ticks + number of its tick. Tick 0 is the tick that was reached earlier."""
    times: np.ndarray
    """Times of the ticks, microseconds, ascending; the first is the tick that was reached earlier."""

    @property
    def ticks(self) -> np.ndarray:
        """The number of each round's tick."""
        found: np.ndarray = self.places % len(self.times)
        return found

    @property
    def first(self) -> np.ndarray:
        """Marks rounds of the tick that was reached earlier, which give nothing new."""
        known: np.ndarray = self.ticks == 0
        return known


def rounds_of(keys: np.ndarray, ticks: np.ndarray, times: np.ndarray) -> Rounds:
    """Returns the rounds of keys with events at ticks (numbers from 1); each key also gets a round of tick 0."""
    unique = distinct(keys)
    return Rounds(distinct(np.concatenate([keys * len(times) + ticks, unique * len(times)])), times)


def stretches(rounds: Rounds, spans: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], most: int) -> np.ndarray:
    """Returns the numbers of ticks at which to cut, from 0 to the last, so that few rows are evaluated between two of
    them.

    ``spans``: keys, ``enter`` and ``leave`` of the rows of each input; each row counts once for every round in which it
    is in force. About ``most`` rows to a stretch; a single tick is never cut.
    """
    count = len(rounds.times)
    ends = np.zeros(len(rounds.places) + 1, np.int64)
    for keys, enter, leave in spans:
        begin, sizes = _spans(rounds, keys, enter, leave)
        ends += np.bincount(begin, minlength=len(ends)) - np.bincount(begin + sizes, minlength=len(ends))
    alive = np.cumsum(ends)[:-1]
    fresh = ~rounds.first
    per_tick = np.bincount(rounds.ticks[fresh], weights=alive[fresh], minlength=count)[1:].astype(np.int64)
    stretch = np.maximum(np.cumsum(per_tick) - 1, 0) // most
    return np.append(np.append(0, np.flatnonzero(np.diff(stretch)) + 1), count - 1)


def rounds_in_force(
    rounds: Rounds, keys: np.ndarray, enter: np.ndarray, leave: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (row, round) for every round of a row's key in which the row is in force: ``enter < tick <= leave``."""
    begin, sizes = _spans(rounds, keys, enter, leave)
    rows = np.repeat(np.arange(len(keys)), sizes)
    starts = np.cumsum(sizes) - sizes
    return rows, np.arange(sizes.sum()) - np.repeat(starts - begin, sizes)


def _spans(rounds: Rounds, keys: np.ndarray, enter: np.ndarray, leave: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first round of each row, and the number of its rounds, which are consecutive."""
    count = len(rounds.times)
    low = keys * count + np.searchsorted(rounds.times, enter, side="right")
    high = keys * count + np.searchsorted(rounds.times, leave, side="right") - 1
    begin = np.searchsorted(rounds.places, low, side="left")
    return begin, np.maximum(np.searchsorted(rounds.places, high, side="right") - begin, 0)


def differences(
    rows: pa.Table, of: np.ndarray, rounds: Rounds, keys: Sequence[str], single: bool
) -> tuple[pa.Table, np.ndarray]:
    """Returns the changes from each round of a key to its next: rows with ops, ordered by tick, then key, retractions
    first.

    ``of``: the round of each row. ``single``: a key has at most one row, so its change is a correction.
    """
    first = rounds.first
    following = of + 1
    goes_on = following < len(first)
    goes_on[goes_on] = ~first[following[goes_on]]
    new = np.flatnonzero(~first[of])
    old = np.flatnonzero(goes_on)
    source = np.concatenate([new, old])
    step = np.concatenate([of[new], following[old]])
    gone = np.zeros(len(source), bool)
    if len(old):
        weights = np.concatenate([np.ones(len(new)), -np.ones(len(old))])
        codes = row_codes(rows)
        places = step * (len(codes) + 1) + codes[source]
        _, index, inverse = np.unique(places, return_index=True, return_inverse=True)
        net = np.bincount(inverse, weights=weights, minlength=len(index)).astype(np.int64)
        picked = np.repeat(index, np.abs(net))
        gone = np.repeat(net < 0, np.abs(net))
        source, step = source[picked], step[picked]
    ops = np.where(gone, RETRACT, APPEND)
    if single and gone.any():
        pairs = step * (len(codes) + 1) + row_codes(rows.select(keys))[source]
        _, inverse, count = np.unique(pairs, return_inverse=True, return_counts=True)
        both = count[inverse] == 2
        ops = np.where(both, np.where(gone, CORRECT_FROM, CORRECT_TO), ops)
    changed = rows.take(pa.array(source))
    columns = {f"t{at}": changed.column(name) for at, name in enumerate(keys)}
    columns = {"t": pa.array(rounds.ticks[step]), **columns, "u": pa.array(~gone)}
    columns |= {f"v{at}": changed.column(name) for at, name in enumerate(changed.column_names)}
    table = pa.table(columns)
    order = total_order(table, table.column_names)
    return changed.take(order), ops[np.asarray(order)].astype(np.int32)


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Rows of some keys, each with the time for which it is in force."""

    rows: pa.Table
    enter: np.ndarray
    leave: np.ndarray
    """Time at which a row is taken back, microseconds: the row counts at ticks with ``enter < tick <= leave``."""
    ended_by: np.ndarray
    """Offset of the statement that takes the row back; -1: none."""
    dated_by: np.ndarray
    """Offset of the statement whose time says when the row is taken back, of a correction its second half; -1: none."""


def entering(ops: np.ndarray, times: np.ndarray, before: int | None, after: int | None) -> np.ndarray:
    """Returns the time from which each statement of a block is in force; ``before`` and
    ``after``: the block's watermarks."""
    low, high = (-NEVER if mark is None else mark for mark in (before, after))
    enter = np.maximum(times, low)
    enter = np.where(ops == RETRACT, np.maximum(enter, high), enter)
    return np.where(ops == CORRECT_FROM, np.append(enter[1:], enter[-1:]), enter)


def dating(ops: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Returns for each statement of a block the offset of the statement whose time it takes, as ``entering`` does."""
    following = np.append(ops[1:], APPEND) == CORRECT_TO
    dated: np.ndarray = np.where((ops == CORRECT_FROM) & following, np.append(offsets[1:], offsets[-1:]), offsets)
    return dated


def lives(rows: pa.Table, ops: np.ndarray, enter: np.ndarray, dated: np.ndarray, vocab: Vocab) -> Lifetimes:
    """Returns the lifetimes of rows; ``rows``: all statements about some keys, in chain order, with effective times."""
    offsets = np.asarray(rows.column(vocab.offset)).astype(np.int64)
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
    """Marks the rows with these values; a value that a column's type cannot hold is in no row."""
    chosen = np.ones(rows.num_rows, bool)
    for name, value in columns.items():
        column = rows.column(name)
        if not value.is_valid:
            chosen &= np.asarray(column.is_null())
            continue
        chosen &= np.asarray(pc.fill_null(pc.equal(column, value.cast(column.type)), False))
    return chosen
