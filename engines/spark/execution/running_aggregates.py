"""Computes running aggregates, whose state is what a key's settled rows add up to, not those rows.

State is a table for each window operator, by key. For a function over all rows so far it keeps the value; for a
function over the last n or the first n rows, what each of these adds; for a function over all rows but the last n,
both. A transaction puts its new rows after the kept ones, and one query over both gives the value of every new row.
Spec: docs/spec/engine-semantics.md#running, #state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from engines.spark.analysis.tables import LISTS
from engines.spark.analysis.window_functions import PICKED
from engines.spark.catalyst.plans import HIDDEN_ROW
from engines.spark.catalyst.running_windows import (
    COLUMN,
    DEFAULT,
    KEY,
    LAG,
    NTH,
    ORDER,
    PART,
    VALUE,
    Stage,
    Staged,
    WindowPart,
)
from engines.spark.rows.changelog import row_codes
from engines.spark.rows.tables import frame_of_rows
from engines.spark.state.files import BucketedTable, Kept, StoredTable, hashes_of

RUNNING: Final = "running"
_PLACE: Final = "__odf_place"
"""Column with the number of a row among the rows of its key, from 1."""
_SO_FAR: Final = "__odf_so_far"
"""Prefix of columns with the value that a function, whose frame ends before the row,
would have if it ended with the row."""


def run_over_history(
    session: SparkSession, query: Staged, windows: int, former: Mapping[str, StoredTable],
    emit_from: int | None, emit_until: int,
) -> tuple[pa.Table, dict[str, Kept]]:  # fmt: skip
    """Returns rows with ``emit_from <= time < emit_until`` (microseconds), and the new state. Raises Invalid."""
    state: dict[str, Kept] = {}
    for number in range(windows):
        stage = query.stage()
        fresh = stage.rows if number else _between(stage.rows, emit_from, emit_until)
        rows, kept = _advance(session, f"{RUNNING}:{number}", stage, fresh, former)
        state.update(kept)
        query = query.fill(rows)
    return query.result(), state


def keep_unchanged(former: Mapping[str, StoredTable]) -> dict[str, Kept]:
    """Returns the state after a transaction that settles nothing."""
    return {name: each for name, each in former.items() if name.startswith(f"{RUNNING}:")}


def _between(rows: pa.Table, since: int | None, until: int) -> pa.Table:
    times = rows.column(f"{ORDER}0").cast(pa.timestamp("us")).cast(pa.int64())
    inside = pc.less(times, until)
    return rows.filter(inside if since is None else pc.and_(inside, pc.greater_equal(times, since)))


def _advance(
    session: SparkSession, name: str, stage: Stage, fresh: pa.Table, former: Mapping[str, StoredTable]
) -> tuple[pa.Table, dict[str, Kept]]:
    """Computes one window operator: returns the new rows with the value of each function, and the new state."""
    keys = [each for each in fresh.column_names if each.startswith(KEY)]
    fresh = fresh.append_column(HIDDEN_ROW, pa.array(np.zeros(fresh.num_rows, np.int64)))
    columns = [*keys, *(f"{PART}{at}" for at in range(len(stage.parts))), HIDDEN_ROW]
    schema = pa.schema([fresh.schema.field(column).with_nullable(True) for column in columns]).remove_metadata()
    shelf = BucketedTable(name, schema, former)
    opened = [each.select(columns).cast(schema) for each in shelf.take(_hashes(fresh, keys))]
    old = pa.concat_tables([schema.empty_table(), *opened])
    codes = row_codes(pa.concat_tables([old, fresh.select(columns).cast(schema)]).select(keys))
    touched = np.isin(codes[: old.num_rows], codes[old.num_rows :])
    before = old.filter(pa.array(touched))
    both = pa.concat_tables([_add_missing_columns(before, fresh.schema), fresh.cast(_nullable(fresh.schema))])
    seen = frame_of_rows(session, both).selectExpr(*_texts(stage, keys, fresh.column_names)).toArrow()
    new = np.asarray(seen.column(HIDDEN_ROW)) == 0
    shown = [each for each in seen.column_names if each.startswith((COLUMN, VALUE))]
    still = [old.filter(pa.array(~touched)), _last(seen, keys, stage.parts, schema)]
    state = shelf.keep(pa.concat_tables(still), partial(_hashes, keys=keys))
    return seen.filter(pa.array(new)).select(shown), state


def _hashes(rows: pa.Table, keys: Sequence[str]) -> np.ndarray:
    return hashes_of(rows.select(keys))


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def _add_missing_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Adds the columns of ``schema`` that the rows lack, as nulls."""
    known = set(rows.column_names)
    columns = [rows.column(f.name) if f.name in known else pa.nulls(rows.num_rows, f.type) for f in schema]
    return pa.table(columns, schema=_nullable(schema))


def _texts(stage: Stage, keys: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Returns the expressions to select over kept and new rows in order: columns, values,
    and row numbers within the key."""
    partition = f"partition by {', '.join(keys)} " if keys else ""
    order = [HIDDEN_ROW, *(f"{ORDER}{at} {direction}" for at, direction in enumerate(stage.directions))]
    by = f"{partition}order by {', '.join(order)}"
    defaults = [f"{DEFAULT}{at}" if f"{DEFAULT}{at}" in columns else "" for at in range(len(stage.parts))]
    values = [
        f"{_value(part, f'{PART}{at}', by, default)} as {VALUE}{at}"
        for at, (part, default) in enumerate(zip(stage.parts, defaults, strict=True))
    ]
    values += [
        f"{_value(replace(part, until=0), f'{PART}{at}', by, '')} as {_SO_FAR}{at}"
        for at, part in enumerate(stage.parts)
        if part.preceding is None and part.until
    ]
    wanted = [column for column in columns if not column.startswith(ORDER)]
    return [*wanted, *values, f"row_number() over ({by}) as {_PLACE}"]


def _value(part: WindowPart, column: str, by: str, default: str) -> str:
    passing = " ignore nulls" if part.passes_nulls else ""
    if part.function == LAG:
        otherwise = f", {default}" if default else ""
        return f"cast(lag({column}, {part.preceding}{otherwise}){passing} over ({by}) as {part.kind})"
    low = "unbounded" if part.preceding is None else str(part.preceding)
    high = f"{part.until} preceding" if part.until else "current row"
    frame = f"{by} {'range' if part.by_range else 'rows'} between {low} preceding and {high}"
    if part.function == LISTS:
        return f"array_sort(flatten(collect_list({column}) over ({frame})))"
    if part.function == NTH:
        return f"cast(nth_value({column}, {part.place}){passing} over ({frame}) as {part.kind})"
    value = f"{part.function}({column}{', true' if part.passes_nulls else ''}) over ({frame})"
    return f"cast({f'coalesce({value}, 0)' if part.counts else value} as {part.kind})"


def _last(seen: pa.Table, keys: Sequence[str], parts: Sequence[WindowPart], schema: pa.Schema) -> pa.Table:
    """Returns the last rows of each key, numbered backwards from -1: as many as the longest frame reaches back."""
    codes, places = row_codes(seen.select(keys)), np.asarray(seen.column(_PLACE)).astype(np.int64)
    lengths = np.zeros(int(codes.max(initial=-1)) + 1, np.int64)
    np.maximum.at(lengths, codes, places)
    numbers = places - lengths[codes] - 1
    kept = np.flatnonzero(numbers >= -max(map(_reach, parts)))
    rows = seen.take(pa.array(kept)).set_column(
        seen.column_names.index(HIDDEN_ROW), HIDDEN_ROW, pa.array(numbers[kept])
    )
    for at, part in enumerate(parts):
        name = f"{PART}{at}"
        if _has_places_of_its_own(part):
            values = seen.column(name)
            found = _find_sources(part, np.asarray(values.is_valid()), codes, numbers, kept)
            value = values.take(pa.array(found, mask=found < 0))
        elif part.preceding is None:
            value = _so_far(part, at, rows, schema.field(name).type)
        else:
            continue
        rows = rows.set_column(rows.column_names.index(name), name, value)
    return rows.select(schema.names).cast(schema)


def _reach(part: WindowPart) -> int:
    """Returns how many rows of a key are kept for a function."""
    return max(1, part.until + part.place) if part.preceding is None else part.preceding


def _so_far(part: WindowPart, at: int, rows: pa.Table, kind: pa.DataType) -> pa.ChunkedArray:
    """Returns the kept values of a function over all rows so far.

    The last row that the frame of the next row holds has the function's value so far; rows before it have null, and
    rows after it what each adds. For first and last values every row has the value so far, since null may be a value.
    """
    value = rows.column(f"{_SO_FAR if part.until else VALUE}{at}")
    if part.function in PICKED.values():
        return value
    behind = np.asarray(rows.column(HIDDEN_ROW)) + max(1, part.until)
    value = pc.if_else(pa.array(behind < 0), pa.scalar(None, kind), value)
    return pc.if_else(pa.array(behind > 0), rows.column(f"{PART}{at}"), value)


def _has_places_of_its_own(part: WindowPart) -> bool:
    """Whether the values that count may be those of other rows than the last."""
    return part.preceding is None if part.function == NTH else part.function == LAG and part.passes_nulls


def _find_sources(
    part: WindowPart, valid: np.ndarray, codes: np.ndarray, numbers: np.ndarray, kept: np.ndarray
) -> np.ndarray:
    """Returns for each row of ``kept`` the row whose value it gets, -1: none.

    A function that looks for the first n values of all rows, or for the last n that are not null, gets just these,
    whatever rows they came from: only this function reads the column. Rows that the frame of the next row does not hold
    yet keep their own values.
    """
    before = numbers <= -max(1, part.until if part.function == NTH else 0)
    counted = np.flatnonzero(before & valid if part.passes_nulls else before)
    wanted = part.place if part.function == NTH else -(part.preceding or 0)
    found, held = kept.astype(np.int64), before[kept]
    found[held] = _lined_up(codes, numbers, counted, kept[held], wanted)
    return found


def _lined_up(codes: np.ndarray, numbers: np.ndarray, counted: np.ndarray, kept: np.ndarray, most: int) -> np.ndarray:
    """Returns for each row of ``kept`` the row that gives its value, -1: none.

    The values of each key (``codes``) are the first ``most`` of the rows ``counted``, given to its first rows; or the
    last ``-most`` of them, given to its last rows.
    """
    sign = 1 if most > 0 else -1
    values, places = (each[np.lexsort((sign * numbers[each], codes[each]))] for each in (counted, kept))
    value_rank, place_rank = _ranks(codes[values]), _ranks(codes[places])
    few = value_rank < abs(most)
    width = max(len(codes), 1)
    wanted = codes[values[few]] * width + value_rank[few]
    given = codes[places] * width + place_rank
    at = np.searchsorted(wanted, given)
    at[at == len(wanted)] = 0
    found = np.full(len(codes), -1, np.int64)
    if len(wanted):
        found[places] = np.where(wanted[at] == given, values[few][at], -1)
    lined_up: np.ndarray = found[kept]
    return lined_up


def _ranks(sorted_codes: np.ndarray) -> np.ndarray:
    """Returns the position of each element within its run of equal codes, from 0."""
    if not len(sorted_codes):
        return np.empty(0, np.int64)
    begins = np.flatnonzero(np.append(True, sorted_codes[1:] != sorted_codes[:-1]))
    lengths = np.diff(np.append(begins, len(sorted_codes)))
    ranks: np.ndarray = np.arange(len(sorted_codes)) - np.repeat(begins, lengths)
    return ranks
