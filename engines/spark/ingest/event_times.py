"""Checks event times of a batch: none missing unless the source says so, none far ahead of its block unasked.

A row that is at fault is told with its file and line.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from chain import instant
from chain.data.parquet import to_instant
from chain.errors import Invalid
from chain.instant import Instant
from engines.spark.ingest import range_tasks
from engines.spark.ingest.origin import SHOWN, Origin, sought
from engines.spark.ingest.text_columns import INSTANT, NO_EVENT_TIME, instant_type, misfit_fault

_FILL: Final = (
    "mend them; or say which time such rows have: `eventTime` in fetch, `--event-time`, or coalesce(…) in preprocess"
)

Wrong = Callable[[pa.Table], pa.ChunkedArray]
"""Which of some rows are at fault."""


def missing_fault(fault: Invalid, column: str) -> Invalid:
    """What the parsers say of an empty value, where it is an event time that nothing else asks for."""
    empty = misfit_fault("", column, INSTANT, "")
    if (fault.rule, fault.message) != (empty.rule, empty.message):
        return fault
    return Invalid(NO_EVENT_TIME.message, rule=NO_EVENT_TIME.rule, hint=_FILL, place=fault.place)


def check_present(batch: pa.Table, origin: Origin) -> None:
    """Raises Invalid for a row that a query gave no event time."""
    times = batch.column(origin.column)
    if times.null_count:
        places = places_of(origin, batch, lambda some: pc.is_null(some.column(origin.column)))
        raise Invalid(
            f"{rows_have(times.null_count)} no event time",
            rule=NO_EVENT_TIME.rule,
            hint=_FILL,
            place=", ".join(places),
        )


def check_not_ahead(
    batch: pa.Table, latest: Instant, limit: Instant, days: int, source_time: Instant | None, origin: Origin
) -> None:
    """Raises Invalid, for the ``latest`` time is past ``limit``: with the rows that are, or where it comes from.

    ``days``: how far ahead of the clock would have to be permitted.
    """

    def is_ahead(some: pa.Table) -> pa.ChunkedArray:
        return pc.fill_null(after(some.column(origin.column), limit), False)

    count = int(pc.sum(is_ahead(batch)).as_py() or 0)
    hint = "mend them; if such times are meant, begin the source's preprocess with SET odf.ahead = '{} days' or 'any'"
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
    """Which of the times are later than ``limit``. A date counts as its first moment; null stays null."""
    kind = _instants(times)
    return pc.greater(times.cast(kind).cast(pa.int64()), _units(limit, kind))


def behind(times: pa.ChunkedArray, watermark: Instant) -> int:
    """How many of the times are before the watermark."""
    kind = _instants(times)
    return int(pc.sum(pc.less(times.cast(kind).cast(pa.int64()), _units(watermark, kind))).as_py() or 0)


def _instants(times: pa.ChunkedArray) -> pa.DataType:
    return instant_type(times.type) if pa.types.is_timestamp(times.type) else INSTANT


def _units(time: Instant, kind: pa.DataType) -> pa.Scalar:
    """A time as a number of the unit of ``kind``."""
    return pa.scalar(time // to_instant(1, kind), pa.int64())


def places_of(origin: Origin, batch: pa.Table, wrong: Wrong) -> list[str]:
    """Files and lines of the first rows at fault; names of files where the lines cannot be told."""
    if origin.query is not None:
        return [_sought(origin, wrong)]
    rows = pc.indices_nonzero(wrong(batch).combine_chunks())[:SHOWN].to_pylist()
    filled = [(task, rows) for task, rows in zip(origin.parts.tasks, origin.parts.rows, strict=True) if rows]
    ends = list(itertools.accumulate(count for _, count in filled))
    found = []
    for row in rows:
        part = bisect.bisect_right(ends, row)
        found.append(range_tasks.place_of(filled[part][0], row - (ends[part - 1] if part else 0)))
    return found


def _sought(origin: Origin, wrong: Wrong) -> str:
    """The first row of a file for which the query gives a row at fault."""
    return sought(origin, lambda paths: bool(pc.any(wrong(origin.asked(paths))).as_py()))


def rows_have(count: int) -> str:
    return "a row has" if count == 1 else f"{count:,} rows have"
