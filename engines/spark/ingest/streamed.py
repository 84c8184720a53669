"""Writes rows that are only appended as they come, a part at a time, in little memory.

Most large sources are so, also a ledger's while it has no key within the range of theirs. Rows that are sorted by their
times already are written at once; others are sorted on disk. The slice is the one that ``run`` would write of the whole
batch, byte by byte, since a writer's bytes do not depend on how rows are handed to it. What is wrong with any row is
left to ``run``, which knows all rows when it tells of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import PySparkException

from chain.data.arrow_schema import to_arrow
from chain.data.parquet import SliceWriter
from chain.errors import Environment, Invalid
from chain.instant import Instant
from chain.model.source import MergeAppend, MergeLedger, Transform, primary_key
from engines.contract import IngestBatchRequest
from engines.footers import ColumnBounds
from engines.request_control import RequestControl
from engines.spark.ingest.history import History, ranges_of
from engines.spark.ingest.merge import all_new, check_primary_key
from engines.spark.ingest.parse import ParsedRows
from engines.spark.ingest.preprocess import preprocess_in_turns
from engines.spark.ingest.range_tasks import write_part
from engines.spark.ingest.row_checks import RowOrigin, behind, checked_keys, greatest
from engines.spark.ingest.shape import (
    ascending,
    check_columns,
    coerce_guessed,
    fill_times,
    finish_rows,
    fit_schema,
    prepare_batch,
    time_values,
)
from engines.spark.ingest.text_columns import NULL_KEY, check_made

LEAST: Final = 1 << 20
"""Rows below which all of them may as well be held at once: those of a row group."""
WINDOW: Final = 1 << 18
"""Rows that are merged at once, about."""
SAMPLED: Final = 1 << 8
"""One row of so many gives its time to the sample, by which windows are cut."""


class Streamed(NamedTuple):
    """A slice that is written, without its rows."""

    schema: pa.Schema
    rows: int
    latest: Instant
    late: int
    untimed: int
    """Rows that had no event time, and were given one."""


class _Seen(NamedTuple):
    """What is known of all rows before they are written."""

    latest: Instant
    late: int
    untimed: int
    sorted: bool
    keys: dict[str, ColumnBounds]
    """Ranges of the columns of a primary key."""


class RowsInParts(NamedTuple):
    """Rows of a request in files of a few each, in their order."""

    request: IngestBatchRequest
    parts: ParsedRows
    control: RequestControl
    scratch: Path
    guessed: bool
    queried: bool

    @property
    def column(self) -> str:
        return self.request.vocab.event_time

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(primary_key(self.request.merge))

    @property
    def given(self) -> Instant:
        """The time of rows that have none."""
        time = self.request.source_event_time
        return self.request.system_time if time is None else time

    @property
    def force(self) -> pa.Schema | None:
        return None if self.request.schema is None else to_arrow(self.request.schema)

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """Yields the rows, or these columns of them, as a dataset has them; times may be null. Raises Invalid."""
        vocab, merge, force = self.request.vocab, self.request.merge, self.force
        for part in _tables(self.parts, columns):
            self.control.check()
            yield prepare_batch(coerce_guessed(part, vocab, merge) if self.guessed else part, vocab, merge, force)

    def whole(self) -> pa.Table:
        """Returns all rows as they are in the parts."""
        return pa.concat_tables([self.parts.schema.empty_table(), *_tables(self.parts)])

    def sort(self) -> Iterator[pa.Table]:
        """Yields the rows in the order of their times, none of which is null. Raises Invalid, Environment."""
        runs = ExternalSort(self.scratch, self.column)
        for batch in self.batches():
            check_columns(batch.schema, self.request.vocab, self.force)
            runs.add(fill_times(batch, self.column, self.given))
        for batch in runs.merge():
            self.control.check()
            yield batch


def rows_in_parts(
    request: IngestBatchRequest, origin: RowOrigin, control: RequestControl, *, guessed: bool = False
) -> RowsInParts | None:
    """Returns the rows on disk, those of a query after it was run over a part at a time; ``None`` if they may not be
    streamed, as far as is known without them, or the query may change their order.

    ``guessed``: the types of columns are those that were found in the files. Raises Environment.
    """
    parts, query = origin.parts, origin.query
    if not isinstance(request.merge, MergeAppend | MergeLedger) or not parts.typed or sum(parts.rows) < LEAST:
        return None
    if query is not None:
        try:
            parts = _query_parts(origin, query, control)
        except (Invalid, PySparkException):
            return None  # told of all rows
    if not sum(parts.rows):
        return None
    return RowsInParts(request, parts, control, origin.scratch, guessed, query is not None)


def stream_slice(rows: RowsInParts, history: History, limit: Instant | None = None) -> Streamed | None:
    """Writes the slice; ``None``, and no file, where ``run`` must tell what is wrong, or a ledger may have their keys.

    ``limit``: of event times. Raises Environment, SlicesMissing.
    """
    try:
        seen = _scan(rows)
        is_lacking = seen.untimed and rows.queried and not rows.request.fills_event_time
        if is_lacking or (limit is not None and seen.latest > limit):
            return None
        if rows.keys and history.overlapping(seen.keys):
            return None
        return _write(rows, seen)
    except Invalid:
        return None


def _query_parts(origin: RowOrigin, query: Transform, control: RequestControl) -> ParsedRows:
    """Returns the rows of a query, as parts on disk, of a row group or more each; none if it may change their order.

    Raises Invalid, and what Spark raises.
    """
    made: list[Path] = []
    counts: list[int] = []
    schema = origin.parts.schema
    for table in preprocess_in_turns(origin.session(), _groups(origin.parts), origin.parts.schema, query):
        control.check()
        schema = table.schema
        check_made(schema)
        made.append(origin.scratch / f"made-{len(made)}.parquet")
        counts.append(write_part([table], schema, made[-1]))
    return ParsedRows(schema, tuple(made), tuple(counts))


def _groups(parts: ParsedRows) -> list[list[Path]]:
    """Returns the parts that have rows, in groups of ``LEAST`` rows or a part more."""
    groups: list[list[Path]] = []
    held = LEAST
    for path, rows in zip(parts.paths, parts.rows, strict=True):
        if rows:
            if held >= LEAST:
                groups.append([])
                held = 0
            groups[-1].append(path)
            held += rows
    return groups


def _scan(rows: RowsInParts) -> _Seen:
    """Reads only the event times and keys, or only the first column if there are none. Raises Invalid."""
    before, needed = rows.request.prev_watermark, checked_keys(rows.request)
    names = rows.parts.schema.names
    latest: list[Instant | None] = []
    keys: dict[str, ColumnBounds] = {}
    late, untimed, sorted_, last = 0, 0, True, None
    for batch in rows.batches([name for name in names if name in (rows.column, *rows.keys)] or names[:1]):
        own = batch.column(rows.column)
        untimed += own.null_count
        batch = fill_times(batch, rows.column, rows.given)
        times = batch.column(rows.column)
        if rows.keys:
            check_primary_key(batch, rows.keys)
            keys = _widen(keys, ranges_of(batch.select(list(dict.fromkeys(rows.keys)))))
        if any(batch.column(name).null_count for name in needed):
            raise Invalid("a row has no key", rule=NULL_KEY)
        late += 0 if before is None else behind(times if rows.column in rows.keys else own, before)
        latest.append(greatest(times))
        sorted_ = sorted_ and ascending(times) and (last is None or not pc.less(times[0], last).as_py())
        last = times[-1]
    return _Seen(max(time for time in latest if time is not None), late, untimed, sorted_, keys)


def _widen(one: dict[str, ColumnBounds], other: dict[str, ColumnBounds]) -> dict[str, ColumnBounds]:
    both = {
        name: ColumnBounds(min(one[name].low, other[name].low), max(one[name].high, other[name].high))
        for name in one.keys() & other.keys()
    }
    return one | other | both


def _write(rows: RowsInParts, seen: _Seen) -> Streamed:
    """Raises Invalid, Environment."""
    request = rows.request
    offset, writer = request.next_offset, None
    with ExitStack() as stack:
        for batch in rows.batches() if seen.sorted else rows.sort():
            check_columns(batch.schema, request.vocab, rows.force)
            merged = all_new(batch, (rows.column,))
            whole = finish_rows(merged, request.vocab, request.system_time, request.source_event_time, offset)
            table = fit_schema(whole, rows.force)
            if writer is None:
                writer = stack.enter_context(SliceWriter(Path(request.new_data_path), table.schema))
            writer.write(table)
            offset += table.num_rows
    assert writer is not None, "there are rows"
    return Streamed(table.schema, offset - request.next_offset, seen.latest, seen.late, seen.untimed)


def _tables(parts: ParsedRows, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """Yields the rows in input order, at most those of a row group at once."""
    schema = parts.schema if columns is None else pa.schema([parts.schema.field(name) for name in columns])
    for path, rows in zip(parts.paths, parts.rows, strict=True):
        if rows:
            with pq.ParquetFile(path, memory_map=True) as file:
                for group in range(file.num_row_groups):
                    yield file.read_row_group(group, columns=columns).cast(schema)


class ExternalSort:
    """Takes rows of one schema in parts, and gives them sorted by a column of times without nulls."""

    def __init__(self, folder: Path, column: str) -> None:
        self._folder = folder
        self._column = column
        self._paths: list[Path] = []

    def add(self, rows: pa.Table) -> None:
        """Sorts one part of the input, which follows those added before. Raises Environment if the disk refuses."""
        order = np.argsort(time_values(rows.column(self._column)), kind="stable")
        path = self._folder / f"run-{len(self._paths)}.arrow"
        try:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
                writer.write_table(rows.take(pa.array(order)).combine_chunks())
        except OSError as error:
            raise Environment(
                f"cannot write {path}: {error}", rule="disk", hint="check that the disk is not full"
            ) from error
        self._paths.append(path)

    def merge(self) -> Iterator[pa.Table]:
        """Yields all rows in order, a window at a time; rows of equal times stay in input order."""
        runs = [pa.ipc.open_file(pa.memory_map(str(path))).read_all() for path in self._paths]
        times = [time_values(run.column(self._column)) for run in runs]
        sample = np.sort(np.concatenate([own[::SAMPLED] for own in times]))
        begun = np.zeros(len(runs), np.int64)
        for mark in np.unique(sample[:: max(1, WINDOW // SAMPLED)]):
            before = np.array([np.searchsorted(own, mark, "left") for own in times])
            yield from self._sort(_pieces(runs, begun, before))
            # Rows of this time may be many; they are in order as they stand.
            begun = np.array([np.searchsorted(own, mark, "right") for own in times])
            same = _pieces(runs, before, begun)
            yield from (same.slice(low, WINDOW) for low in range(0, same.num_rows, WINDOW))
        yield from self._sort(_pieces(runs, begun, np.array([len(own) for own in times])))

    def _sort(self, rows: pa.Table) -> Iterator[pa.Table]:
        if rows.num_rows:
            yield rows.take(pa.array(np.argsort(time_values(rows.column(self._column)), kind="stable")))


def _pieces(runs: list[pa.Table], starts: np.ndarray, stops: np.ndarray) -> pa.Table:
    """Returns the rows from ``starts`` to ``stops`` of the runs, one after another, without copying them."""
    pieces = [run.slice(low, high - low) for run, low, high in zip(runs, starts, stops, strict=True) if high > low]
    return pa.concat_tables(pieces) if pieces else runs[0].slice(0, 0)
