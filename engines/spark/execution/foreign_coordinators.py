"""Serves coordinators that do not send blocks: derives blocks from their requests, keeps open rows in the checkpoint.

Such a coordinator gives only new slices, and the watermarks of its blocks with their system times. Slices carry the
system time of their block, so each watermark finds its place among them. The coordinator cannot mount again the rows
that are needed again, so they are written into the checkpoint, and into slices of their own for the next transaction.
Spec: docs/spec/engine-semantics.md#state; ODF engine contract.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as st

from chain.data.parquet import open_slice, write_slice
from chain.errors import Invalid
from chain.instant import Instant, from_millis
from chain.wording import plural
from engines.contract import InputBlock, TransformRequestInput, Vocab
from engines.spark.analysis.monotone import EARLIEST, MILLISECOND
from engines.spark.planning.transaction import SliceRead
from engines.spark.rows.tables import event_times, microseconds, read_rows
from engines.spark.state.files import State

_OPEN: Final = "open"
_NANOS: Final = 1_000_000
"""Nanoseconds in a millisecond."""


def blocks_of(given: TransformRequestInput, state: State, lateness: int, folder: Path) -> tuple[InputBlock, ...]:
    """Returns the blocks of an input: rows kept in the state as reopened blocks, then new slices and watermarks in the
    order of their system times.

    ``folder``: where the kept rows are written as slices, for as long as the transaction lasts. Raises Invalid.
    """
    known = {item.alias: item.w for item in state.checkpoint.inputs} if state.checkpoint is not None else {}
    stated = known.get(given.query_alias)
    before = None if stated is None else from_millis(stated + lateness // MILLISECOND)
    kept = _laid_out(given, state, folder)
    return (*kept, *_in_order(given, before))


def _in_order(given: TransformRequestInput, before: Instant | None) -> Iterator[InputBlock]:
    marks = sorted(given.explicit_watermarks, key=lambda mark: (mark.system_time, mark.event_time))
    at = 0
    slices = [_looked_at(Path(path), given.vocab) for path in given.data_paths]
    _check_offsets(given, sum(rows for _, rows in slices))
    for path, (made, _) in zip(given.data_paths, slices, strict=True):
        while at < len(marks) and made is not None and _millis(marks[at].system_time) < made:
            after = _greater(before, marks[at].event_time)
            yield InputBlock(watermark_before=before, watermark_after=after)
            before, at = after, at + 1
        later = before
        while at < len(marks) and made is not None and _millis(marks[at].system_time) == made:
            later, at = _greater(later, marks[at].event_time), at + 1
        yield InputBlock(data_path=path, watermark_before=before, watermark_after=later)
        before = later
    for mark in marks[at:]:
        after = _greater(before, mark.event_time)
        yield InputBlock(watermark_before=before, watermark_after=after)
        before = after


def _greater(one: Instant | None, other: Instant) -> Instant:
    return other if one is None else max(one, other)


def _millis(instant: Instant) -> int:
    """Converts nanoseconds, in which blocks have their times, to milliseconds as in rows;
    truncates, as the reference does."""
    return instant // _NANOS


def _check_offsets(given: TransformRequestInput, rows: int) -> None:
    """Raises Invalid if the slices hold more or fewer rows than the request states: missing rows would be missing for
    ever.

    The reference (0.265) was seen to send such requests when it verifies a derivation of several transactions
    (docs/how-to/kamu.md).
    """
    told = given.offset_interval
    if told is not None and rows != told.end - told.start + 1:
        raise Invalid(
            f"input {given.dataset_alias}: its rows {told.start} to {told.end} are announced, and"
            f" {plural(len(given.data_paths), 'slice')} given with {rows}",
            rule="input-offsets",
            hint="it is the coordinator that lost them; with kamu verify: verify it with odfctl",
        )


def _looked_at(path: Path, vocab: Vocab) -> tuple[int | None, int]:
    """Returns when the slice's block was made, milliseconds (``None`` without rows), and the number
    of rows. Raises Invalid."""
    with open_slice(path) as source:
        if vocab.system_time not in source.schema.names:
            raise Invalid(f"slice {path.name} has no column {vocab.system_time}", rule="input-vocabulary")
        for batch in source.batches(columns=[vocab.system_time]):
            latest = pc.max(microseconds(batch.column(0))).as_py()
            if latest is not None:
                return int(latest) // MILLISECOND, source.rows
    return None, source.rows


def _laid_out(given: TransformRequestInput, state: State, folder: Path) -> list[InputBlock]:
    found: list[InputBlock] = []
    for name in sorted(state.tables, key=_place):
        kind, _, rest = name.partition(":")
        place, _, alias = rest.partition(":")
        if kind != _OPEN or alias != given.query_alias:
            continue
        path = folder / f"open-{_digest(given.query_alias)}-{len(found)}"
        write_slice(state.tables[name], path)
        mark = int(place)
        found.append(
            InputBlock(
                data_path=str(path),
                watermark_before=None if mark == EARLIEST else from_millis(mark // MILLISECOND),
                reopened=True,
            )
        )
    return found


def _digest(alias: str) -> str:
    """Returns a file name for an alias, which may hold any characters."""
    return hashlib.sha3_256(alias.encode()).hexdigest()[:16]


def _place(name: str) -> tuple[int, str]:
    kind, _, rest = name.partition(":")
    return (int(rest.partition(":")[0]) if kind == _OPEN else 0, name)


def kept_rows(
    kept: Mapping[str, tuple[SliceRead, ...]], schemas: Mapping[str, st.StructType], vocabs: Mapping[str, Vocab]
) -> dict[str, pa.Table]:
    """Returns tables for the state: the rows that are needed again, by input and the watermark before their blocks."""
    found: dict[str, list[pa.Table]] = {}
    for alias, reads in kept.items():
        for read in reads:
            rows = read_rows(read.paths, schemas[alias])
            times, timed = event_times(rows, vocabs[alias])
            if read.low > EARLIEST:
                rows = rows.filter(pa.array(timed & (times >= np.int64(read.low))))
            found.setdefault(f"{_OPEN}:{read.before}:{alias}", []).append(rows)
    return {name: pa.concat_tables(tables) for name, tables in found.items()}
