"""Checks event times and keys of a batch: missing ones and times far ahead are faults unless permitted.

A row at fault is reported with its file and line. If a query stands between file and row, the row of the file is found
by running the query again over halves of the files, which is done for a fault only.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import PySparkException

from chain import instant
from chain.data.parquet import to_instant
from chain.errors import Invalid
from chain.instant import Instant
from chain.model.read_options import quarantine_of
from chain.model.source import Transform, primary_key
from chain.wording import agree
from engines.contract import IngestBatchRequest
from engines.spark.ingest import range_tasks
from engines.spark.ingest.parse import ParsedRows
from engines.spark.ingest.preprocess import preprocess
from engines.spark.ingest.text_columns import (
    NO_EVENT_TIME,
    NOT_NULL,
    NULL_KEY,
    instant_type,
    millis_type,
    misfit_fault,
    no_key,
)

_FILL: Final = (
    "repair them; or declare which time such rows have: `eventTime` in fetch, `--event-time`, or "
    "coalesce(…) in preprocess"
)
Wrong = Callable[[pa.Table], pa.ChunkedArray]
"""Marks which of some rows are at fault."""
if TYPE_CHECKING:
    from engines.spark.runtime.session import OpenSession
SHOWN: Final = 3
"""Most rows, or files, named in a message of those at fault."""
Fails = Callable[[list[Path]], bool]
"""Whether the query fails on the rows of these parts alone."""


class RowOrigin(NamedTuple):
    session: OpenSession
    parts: ParsedRows
    query: Transform | None
    scratch: Path
    column: str
    """Name of the column of event times."""

    def query_paths(self, paths: list[Path]) -> pa.Table:
        """Runs the query over these parts alone. Raises Invalid, and what Spark raises."""
        assert self.query is not None
        return preprocess(self.session(), paths, self.parts.schema, self.query)


def locate(origin: RowOrigin, fails: Fails) -> str:
    """Returns file and line of the first row for which ``fails`` holds; names of files if no single row fails."""
    filled = [number for number, rows in enumerate(origin.parts.rows) if rows]
    names = _list_names(list(dict.fromkeys(origin.parts.tasks[number].name for number in filled)))
    try:
        while len(filled) > 1:
            half = filled[: len(filled) // 2]
            filled = half if fails([origin.parts.paths[each] for each in half]) else filled[len(half) :]
        task, rows = origin.parts.tasks[filled[0]], pq.read_table(origin.parts.paths[filled[0]])
        low, high = 0, rows.num_rows
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fails([_stage(rows, low, middle, origin)]) else (middle, high)
        return range_tasks.place_of(task, low) if fails([_stage(rows, low, high, origin)]) else names
    except (Invalid, PySparkException):
        return names  # the query does not run over only some of its rows


def _stage(rows: pa.Table, low: int, high: int, origin: RowOrigin) -> Path:
    path = origin.scratch / f"sought-{low}-{high}.parquet"
    pq.write_table(rows.slice(low, high - low), path, compression="none")
    return path


def _list_names(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def missing_fault(fault: Invalid, column: str) -> Invalid:
    """Rewords the parsers' fault of an empty value, if it is of an event time that only this node requires."""
    empty = misfit_fault("", column, millis_type(), "")
    if (fault.rule, fault.message) != (empty.rule, empty.message):
        return fault
    return Invalid(NO_EVENT_TIME.message, rule=NO_EVENT_TIME.rule, hint=_FILL, place=fault.place)


def check_present(batch: pa.Table, origin: RowOrigin) -> None:
    """Raises Invalid if a query gave a row without event time."""
    times = batch.column(origin.column)
    if times.null_count:
        places = places_of(origin, batch, lambda some: pc.is_null(some.column(origin.column)))
        raise Invalid(
            f"{rows_have(times.null_count)} no event time", rule=NO_EVENT_TIME.rule, hint=_FILL, place=", ".join(places)
        )


def check_not_ahead(
    batch: pa.Table, latest: Instant, limit: Instant, days: int, source_time: Instant | None, origin: RowOrigin
) -> None:
    """Raises the Invalid that the ``latest`` time is past ``limit``, naming the rows at fault, or the source of the
    time.

    ``days``: how many days ahead of the clock would have to be permitted.
    """

    def is_ahead(some: pa.Table) -> pa.ChunkedArray:
        return pc.fill_null(after(some.column(origin.column), limit), False)

    count = int(pc.sum(is_ahead(batch)).as_py() or 0)
    hint = "repair them; if such times are meant, begin the source's preprocess with SET odf.ahead = '{} days' or 'any'"
    if not count:
        said = instant.render(source_time) if source_time is not None else instant.render(latest)
        raise Invalid(
            f"rows without event time would take {said}, which is too far ahead of the clock for a watermark",
            rule="event-time-ahead",
            hint="is it mistyped, in --event-time or in the name of the file? " + hint.format(days),
        )
    raise Invalid(
        f"{rows_have(count)} an event time up to {instant.render(latest)}, and the watermark may not go"
        f" past {instant.render(limit)}",
        rule="event-time-ahead",
        hint=hint.format(days),
        place=", ".join(places_of(origin, batch, is_ahead)),
    )


def after(times: pa.ChunkedArray, limit: Instant) -> pa.ChunkedArray:
    """Marks the times later than ``limit``. A date counts as its first moment; null stays null."""
    kind = _instants(times)
    return pc.greater(times.cast(kind).cast(pa.int64()), _units(limit, kind))


def behind(times: pa.ChunkedArray, watermark: Instant) -> int:
    """Counts the times before the watermark."""
    kind = _instants(times)
    return int(pc.sum(pc.less(times.cast(kind).cast(pa.int64()), _units(watermark, kind))).as_py() or 0)


def greatest(times: pa.ChunkedArray) -> Instant | None:
    """Returns the latest of the times that are not null."""
    latest = pc.max(times)
    return Instant(to_instant(latest.value, times.type)) if latest.is_valid else None


def _instants(times: pa.ChunkedArray) -> pa.DataType:
    return instant_type(times.type) if pa.types.is_timestamp(times.type) else millis_type()


def _units(time: Instant, kind: pa.DataType) -> pa.Scalar:
    """Returns a time as a number in the unit of ``kind``."""
    return pa.scalar(time // to_instant(1, kind), pa.int64())


def places_of(origin: RowOrigin, batch: pa.Table, wrong: Wrong) -> list[str]:
    """Lists files and lines of the first faulty rows; names of files where the lines are unknown."""
    if origin.query is not None:
        return [_locate_rows(origin, wrong)]
    rows = pc.indices_nonzero(wrong(batch).combine_chunks())[:SHOWN].to_pylist()
    filled = [(task, rows) for task, rows in zip(origin.parts.tasks, origin.parts.rows, strict=True) if rows]
    ends = list(itertools.accumulate(count for _, count in filled))
    found = []
    for row in rows:
        part = bisect.bisect_right(ends, row)
        found.append(range_tasks.place_of(filled[part][0], row - (ends[part - 1] if part else 0)))
    return found


def _locate_rows(origin: RowOrigin, wrong: Wrong) -> str:
    """Returns the place of the first row of a file for which the query gives a faulty row."""
    return locate(origin, lambda paths: bool(pc.any(wrong(origin.query_paths(paths))).as_py()))


def rows_have(count: int) -> str:
    return "a row has" if count == 1 else f"{count:,} rows have"


def checked_keys(request: IngestBatchRequest) -> tuple[str, ...]:
    """Returns the columns that need a value in every row. Observers follow the writer's quarantine setting."""
    if request.allows_null_keys and quarantine_of(request.read.schema) is None:
        return ()
    return tuple(dict.fromkeys(primary_key(request.merge)))


def check_keys(batch: pa.Table, keys: Sequence[str], origin: RowOrigin) -> None:
    """Raises Invalid for rows without a value in one of the columns ``keys`` of the batch.

    A ledger would append a row without a key again each time it is read. The reference writes such rows; here they are
    refused as SQL's PRIMARY KEY refuses them. Rows that are written already stay.
    """
    there = set(batch.column_names)
    lacking = [name for name in keys if name in there and batch.column(name).null_count]
    if not lacking:
        return

    def without_key(rows: pa.Table) -> pa.ChunkedArray:
        found = pa.chunked_array([pa.repeat(not set(lacking) <= set(rows.column_names), rows.num_rows)])
        for name in set(lacking) & set(rows.column_names):
            found = pc.or_(found, pc.is_null(rows.column(name)))
        return found

    count = pc.sum(without_key(batch)).as_py()
    names, are = " or ".join(map(repr, lacking)), agree(len(lacking), "is", "are")
    raise Invalid(
        f"{rows_have(count)} no value in {names}, which {are} in the primary key",
        rule=NULL_KEY,
        hint=_hint(lacking[-1]),
        place=", ".join(places_of(origin, batch, without_key)),
    )


def null_key_fault(fault: Invalid, keys: Sequence[str]) -> Invalid:
    """Rewords the parsers' fault of an empty value, if it is of a key."""
    for name in keys:
        empty = misfit_fault("", name, pa.null(), "")
        if (fault.rule, fault.message) == (NOT_NULL, empty.message):
            return Invalid(no_key(name).message, rule=NULL_KEY, hint=_hint(name), place=fault.place)
    return fault


def _hint(name: str) -> str:
    return (
        f"repair them, or give a value for null in preprocess, as coalesce({name}, '') as {name}; or leave such "
        "rows out there, or write them to a quarantine dataset with onError: quarantine"
    )
