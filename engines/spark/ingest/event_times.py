"""Event times of a batch: none is missing unless the source says so, none far ahead of its block without being asked.

A row that is at fault is told with its file and line. Where a query stands between file and row, the row of the file
is found by asking the query again about halves of the files, which is done for a fault only.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable
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
from chain.model.source import Transform
from engines.spark.ingest import range_tasks
from engines.spark.ingest.parse import Parts
from engines.spark.ingest.preprocess import preprocess
from engines.spark.ingest.text_columns import INSTANT, NO_EVENT_TIME, instant_type, misfit_fault

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOWN: Final = 3
"""Rows told of those at fault."""
_FILL: Final = (
    "mend them; or say which time such rows have: `eventTime` in fetch, `--event-time`, or coalesce(…) in preprocess"
)

Wrong = Callable[[pa.Table], pa.ChunkedArray]
"""Which of some rows are at fault."""


class Origin(NamedTuple):
    """Where the rows of a batch come from."""

    spark: SparkSession
    parts: Parts
    query: Transform | None
    scratch: Path
    column: str
    """Of event times."""


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
    filled = [number for number, rows in enumerate(origin.parts.rows) if rows]
    names = ", ".join(dict.fromkeys(origin.parts.tasks[number].name for number in filled[:SHOWN]))
    try:
        while len(filled) > 1:
            half = filled[: len(filled) // 2]
            filled = half if _gives([origin.parts.paths[each] for each in half], origin, wrong) else filled[len(half) :]
        task, rows = origin.parts.tasks[filled[0]], pq.read_table(origin.parts.paths[filled[0]])
        low, high = 0, rows.num_rows
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if _gives([_staged(rows, low, middle, origin)], origin, wrong) else (middle, high)
        return range_tasks.place_of(task, low) if _gives([_staged(rows, low, high, origin)], origin, wrong) else names
    except (Invalid, PySparkException):
        return names  # a query that cannot be asked about some of its rows


def _staged(rows: pa.Table, low: int, high: int, origin: Origin) -> Path:
    path = origin.scratch / f"sought-{low}-{high}.parquet"
    pq.write_table(rows.slice(low, high - low), path, compression="none")
    return path


def _gives(paths: list[Path], origin: Origin, wrong: Wrong) -> bool:
    """Whether the query makes a row at fault of these rows alone."""
    assert origin.query is not None
    made = preprocess(origin.spark, paths, origin.parts.schema, origin.query)
    return bool(pc.any(wrong(made)).as_py())


def rows_have(count: int) -> str:
    return "a row has" if count == 1 else f"{count:,} rows have"
