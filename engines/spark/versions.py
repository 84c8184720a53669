"""The versions of an input's keys: which are in force when, as rows that a query can join. Engine semantics, 5.4.

State is one table: versions that end at the bound or later, each with its effective time and its end as far as it is
known. Made of the former state and new rows, in columns; knows no queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as st

from chain.data.evolution import as_in_force
from chain.errors import Invalid
from engines.contract import Vocabulary
from engines.spark.analysis.walk import VALID_FROM, VALID_TO
from engines.spark.changes import CORRECT_FROM, NEVER, effective_times, positive, row_codes, valid_until
from engines.spark.incremental import VersionStep
from engines.spark.rows import arrow_columns, event_times, read_rows

TAU: Final = "__odf_tau"
UNTIL: Final = "__odf_until"
_FAR: Final = 253_370_764_800_000_000
"""The year 9999, which SQL can still write: the end of a version that nothing supersedes."""


@dataclass(frozen=True, slots=True)
class Versions:
    """After a transaction."""

    seen: pa.Table
    """What the query sees: the input's columns, and ``valid_from`` and ``valid_to`` if it asked for them."""
    kept: pa.Table
    """State: the input's columns, tau and until."""


def advance(
    step: VersionStep, former: pa.Table | None, schema: st.StructType, vocab: Vocabulary, changelog: bool | None
) -> Versions:
    """``changelog``: the chain's order ranks versions, also when unknown; else event time does. Raises Invalid."""
    columns = arrow_columns(schema)
    fresh, before, after = _statements(step, schema, vocab)
    state = as_in_force(former, columns) if former is not None else columns.empty_table()
    known = _column(former, TAU)
    limits = np.append(_column(former, UNTIL), np.full(fresh.num_rows, NEVER))
    rows = pa.concat_tables([state, fresh])
    by_offset = np.argsort(np.asarray(rows.column(vocab.offset_column)), kind="stable")
    rows, limits = rows.take(pa.array(by_offset)), limits[by_offset]
    ops = np.asarray(rows.column(vocab.operation_type_column)).astype(np.int64)
    if changelog is False and ops.any():
        raise Invalid("an input that only grows holds corrections or retractions", rule="append-only")
    times, _ = event_times(rows, vocab)
    old = len(known)
    taus = np.append(known, np.full(fresh.num_rows, NEVER))[by_offset]
    since, then = (np.append(np.full(old, -NEVER), side)[by_offset] for side in (before, after))
    keys = row_codes(rows.select(step.life.keys))
    taus = effective_times(ops, times, since, then, keys, taus)
    offsets = np.asarray(rows.column(vocab.offset_column)).astype(np.int64)
    ranks = offsets if changelog is not False else np.argsort(np.lexsort((offsets, times)))
    speaks = ops != CORRECT_FROM
    until = np.full(len(taus), NEVER, np.int64)
    until[speaks] = valid_until(keys[speaks], ranks[speaks], taus[speaks], limits[speaks])
    version = positive(ops) & (taus < until)
    kept = version & (until >= step.kept_from)
    seen = version & (until >= step.seen_from) & (taus < step.seen_until)
    state = rows.append_column(TAU, pa.array(taus)).append_column(UNTIL, pa.array(until))
    return Versions(_view(state.filter(pa.array(seen)), step.life.clamped), state.filter(pa.array(kept)))


def _view(versions: pa.Table, dated: bool) -> pa.Table:
    plain = versions.drop_columns([TAU, UNTIL])
    if not dated:
        return plain
    ends = pc.min_element_wise(versions.column(UNTIL), _FAR)
    stamp = pa.timestamp("us", "UTC")
    return plain.append_column(VALID_FROM, versions.column(TAU).cast(stamp)).append_column(VALID_TO, ends.cast(stamp))


def _column(table: pa.Table | None, name: str) -> np.ndarray:
    return np.empty(0, np.int64) if table is None else np.asarray(table.column(name)).astype(np.int64)


def _statements(step: VersionStep, schema: st.StructType, vocab: Vocabulary) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """New rows that are accepted, and the watermarks before and after the block of each."""
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
