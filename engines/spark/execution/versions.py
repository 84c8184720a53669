"""Computes the versions of an input's keys, each with the time for which it is in force, as rows that a query can join.

State is one table: versions that end at the bound or later, each with its effective time and its end as far as it is
known. Computed from the former state and new rows, in columns; knows no queries. Spec:
docs/spec/engine-semantics.md#versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as st

from chain.data.evolution import as_in_force
from chain.data.operations import CORRECT_FROM, RETRACT
from chain.errors import Invalid
from engines.contract import Vocab
from engines.spark.analysis.walk import VALID_FROM, VALID_TO
from engines.spark.planning.transaction import VersionStep
from engines.spark.rows.changelog import NEVER, effective_times, key_codes, positive, valid_until
from engines.spark.rows.tables import arrow_columns, event_times, read_rows

TAU: Final = "__odf_tau"
UNTIL: Final = "__odf_until"
ERA: Final = "__odf_era"
LATEST: Final = "__odf_latest_era"
"""Columns of an input that may or may not be a changelog: how often the row's key had been taken back
before the row, and by now."""
_UNKNOWN: Final = -1
_FAR: Final = 253_370_764_800_000_000
"""The year 9999, which SQL can still write: shown as the end of a version that nothing supersedes."""


@dataclass(frozen=True, slots=True)
class VersionRows:
    """The versions after a transaction."""

    seen: pa.Table
    """Versions that the query sees: the input's columns, and ``valid_from`` and ``valid_to`` if it asked for them."""
    kept: pa.Table
    """Versions for the state: the input's columns, effective time (tau) and end (until)."""


def advance(
    step: VersionStep, former: pa.Table | None, schema: st.StructType, vocab: Vocab, changelog: bool | None,
    by_time: bool = False,
) -> VersionRows:  # fmt: skip
    """Advances versions. A ``changelog``'s are ranked in chain order, others by event time; ``None``: see ``_eras``.

    ``by_time``: event time ranks also the versions of a changelog, as in a ledger that was corrected, where a
    correction takes the place of what it corrects. Raises Invalid.
    """
    columns = arrow_columns(schema)
    fresh, before, after = _statements(step, schema, vocab)
    state = as_in_force(former, columns) if former is not None else columns.empty_table()
    known = _column(former, TAU)
    limits = np.append(_column(former, UNTIL), np.full(fresh.num_rows, NEVER))
    rows = pa.concat_tables([state, fresh])
    by_offset = np.argsort(np.asarray(rows.column(vocab.offset)), kind="stable")
    rows, limits = rows.take(pa.array(by_offset)), limits[by_offset]
    ops = np.asarray(rows.column(vocab.operation_type)).astype(np.int64)
    if changelog is False and ops.any():
        raise Invalid("an input that only grows holds corrections or retractions", rule="append-only")
    times, _ = event_times(rows, vocab)
    old = len(known)
    taus = np.append(known, np.full(fresh.num_rows, NEVER))[by_offset]
    since, then = (np.append(np.full(old, -NEVER), side)[by_offset] for side in (before, after))
    keys = key_codes(rows.select(step.life.keys))
    fresh_ops = np.where(taus == NEVER, ops, 0)
    taus = effective_times(ops, times, since, then, keys, taus)
    if by_time:
        _check_stays(ops, times)
        # A retraction by hand repeats the time of its row, but counts from when it was stated.
        taus = np.where(fresh_ops == RETRACT, np.maximum(np.maximum(times, since), then), taus)
    offsets = np.asarray(rows.column(vocab.offset)).astype(np.int64)
    ranks, eras = offsets, []
    if changelog is None:
        eras = _eras(
            keys,
            ops,
            [np.append(_column(former, name), np.full(fresh.num_rows, _UNKNOWN))[by_offset] for name in (ERA, LATEST)],
        )
        ranks = np.argsort(np.lexsort((offsets, np.where(positive(ops), times, -NEVER), eras[0])))
    elif by_time or not changelog:
        ranks = np.argsort(np.lexsort((offsets, times)))
    speaks = ops != CORRECT_FROM
    until = np.full(len(taus), NEVER, np.int64)
    until[speaks] = valid_until(keys[speaks], ranks[speaks], taus[speaks], limits[speaks])
    standing = taus < until
    version = positive(ops) & standing
    # Ranked by time, a retraction is an empty version too: an older row that comes later must not replace it.
    kept = (version | (by_time & (ops == RETRACT) & standing)) & (until >= step.kept_from)
    seen = version & (until >= step.seen_from) & (taus < step.seen_until)
    state = rows.append_column(TAU, pa.array(taus)).append_column(UNTIL, pa.array(until))
    view = _view(state.filter(pa.array(seen)), step.life.clamped)
    for name, column in zip((ERA, LATEST), eras, strict=False):
        state = state.append_column(name, pa.array(column))
    return VersionRows(view, state.filter(pa.array(kept)))


def _check_stays(ops: np.ndarray, times: np.ndarray) -> None:
    """Raises Invalid for a row that was corrected to another event time: its place among the versions would change."""
    before = np.flatnonzero(ops == CORRECT_FROM)
    if np.any(times[before] != times[np.minimum(before + 1, len(times) - 1)]):
        raise Invalid(
            "a row of a ledger was corrected to another event time, which versions in the order of time do not follow",
            rule="versions-moved",
            hint="make a table of the ledger in a dataset of its own, as by  group by  its key with  "
            "max(struct(event_time, value)),  and join with that",
        )


def _eras(keys: np.ndarray, ops: np.ndarray, former: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns how often the key of each row was taken back before the row, and has been by now; rows are in chain
    order.

    A coordinator may not say whether an input is a changelog. Versions of a key that follow each other without being
    taken back are ranked by event time, as for inputs that only grow; a version after a retraction or correction ranks
    after all before it, as for changelogs. So a valid chain of either kind gets the ranks of its kind.
    """
    era, latest = former
    count = int(keys.max(initial=-1)) + 1
    before = np.zeros(count, np.int64)
    known = era != _UNKNOWN
    np.maximum.at(before, keys[known], latest[known])
    negative = ~positive(ops) & ~known
    order = np.argsort(keys, kind="stable")
    counted = np.cumsum(negative[order])
    starts = np.append(True, keys[order][1:] != keys[order][:-1]) if len(order) else np.empty(0, bool)
    base = np.where(starts, counted - negative[order], 0)
    within = np.empty(len(order), np.int64)
    within[order] = counted - np.maximum.accumulate(base)
    era = np.where(known, era, before[keys] + within)
    last = before.copy()
    np.maximum.at(last, keys, era)
    return [era, last[keys]]


def _view(versions: pa.Table, dated: bool) -> pa.Table:
    plain = versions.drop_columns([TAU, UNTIL])
    if not dated:
        return plain
    ends = pc.min_element_wise(versions.column(UNTIL), _FAR)
    stamp = pa.timestamp("us", "UTC")
    return plain.append_column(VALID_FROM, versions.column(TAU).cast(stamp)).append_column(VALID_TO, ends.cast(stamp))


def _column(table: pa.Table | None, name: str) -> np.ndarray:
    if table is None:
        return np.empty(0, np.int64)
    if name not in table.column_names:
        return np.zeros(table.num_rows, np.int64)
    return np.asarray(table.column(name)).astype(np.int64)


def _statements(step: VersionStep, schema: st.StructType, vocab: Vocab) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """Returns the new rows that are accepted, and the watermarks before and after the block of each."""
    tables = [arrow_columns(schema).empty_table()]
    befores: list[np.ndarray] = []
    afters: list[np.ndarray] = []
    for block, threshold in step.blocks:
        if block.path is None:
            continue
        rows = read_rows([block.path], schema)
        times, timed = event_times(rows, vocab)
        rows = rows.filter(pa.array(timed & (times >= threshold)))
        tables.append(rows)
        for marks, mark in ((befores, block.before), (afters, block.after)):
            marks.append(np.full(rows.num_rows, -NEVER if mark is None else mark - step.lateness, np.int64))
    empty = np.empty(0, np.int64)
    return pa.concat_tables(tables), np.concatenate([empty, *befores]), np.concatenate([empty, *afters])
