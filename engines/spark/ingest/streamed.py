"""Writes rows that are appended in the order of their times as they come, a part at a time, in little memory.

Most large sources are so: a merge that compares nothing, and rows that are sorted already. The slice is the one that
``run`` would write of the whole batch, byte by byte, since a writer's bytes do not depend on how rows are handed to it.
What is not so, and what is wrong with any row, is left to ``run``, which knows all rows when it tells of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from chain.data.arrow_schema import to_arrow
from chain.data.parquet import SliceWriter, to_instant
from chain.errors import Invalid
from chain.instant import Instant
from chain.model.source import MergeAppend
from engines.contract import IngestRequest
from engines.request_control import RequestControl
from engines.spark.ingest.merge import all_new
from engines.spark.ingest.parse import Parts
from engines.spark.ingest.row_checks import behind
from engines.spark.ingest.shape import ascending, check_columns, finished, fitted, prepared

LEAST: Final = 1 << 20
"""Rows below which all of them may as well be held at once: those of a row group."""


class Streamed(NamedTuple):
    """A slice that is written, without its rows."""

    schema: pa.Schema
    rows: int
    latest: Instant
    late: int


class _Times(NamedTuple):
    latest: Instant
    late: int


def may_stream(request: IngestRequest, parts: Parts) -> bool:
    """Whether the rows, which no query makes, may be written as they come, by what is known without them."""
    return (
        isinstance(request.merge, MergeAppend)
        and parts.typed
        and sum(parts.rows) >= LEAST
        and request.vocab.event_time_column in parts.schema.names
    )


def streamed(
    request: IngestRequest, parts: Parts, control: RequestControl, limit: Instant | None = None
) -> Streamed | None:
    """Writes the slice of a request that may be streamed; ``None``, and no file, where its rows are not so.

    ``limit``: of event times.

    Raises Environment.
    """
    try:
        times = _times(request, parts, control)
        if times is None or (limit is not None and times.latest > limit):
            return None
        return _written(request, parts, times, control)
    except Invalid:
        return None


def _times(request: IngestRequest, parts: Parts, control: RequestControl) -> _Times | None:
    """``None`` unless each row has a time that is not before the one above it. Raises Invalid."""
    name = request.vocab.event_time_column
    last: pa.Scalar | None = None
    late = 0
    for part in _tables(parts, [name]):
        control.check()
        times = _prepared(part, request, None).column(name)
        if times.null_count or not ascending(times) or (last is not None and pc.less(times[0], last).as_py()):
            return None
        last = times[-1]
        late += 0 if request.prev_watermark is None else behind(times, request.prev_watermark)
    assert last is not None, "there are rows"
    return _Times(Instant(to_instant(last.value, last.type)), late)


def _written(request: IngestRequest, parts: Parts, times: _Times, control: RequestControl) -> Streamed:
    """Raises Invalid, Environment."""
    force = None if request.schema is None else to_arrow(request.schema)
    offset, writer = request.next_offset, None
    with ExitStack() as stack:
        for part in _tables(parts):
            control.check()
            batch = _prepared(part, request, force)
            check_columns(batch.schema, request.vocab, force)
            merged = all_new(batch, (request.vocab.event_time_column,))
            whole = finished(merged, request.vocab, request.system_time, request.source_event_time, offset)
            rows = fitted(whole, force)
            if writer is None:
                writer = stack.enter_context(SliceWriter(Path(request.new_data_path), rows.schema))
            writer.write(rows)
            offset += rows.num_rows
    assert writer is not None, "there are rows"
    return Streamed(rows.schema, offset - request.next_offset, times.latest, times.late)


def _prepared(part: pa.Table, request: IngestRequest, force: pa.Schema | None) -> pa.Table:
    known = force if force is not None or request.schema is None else to_arrow(request.schema)
    return prepared(part, request.vocab, request.merge, known)


def _tables(parts: Parts, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """Parts that have rows, in input order."""
    schema = parts.schema if columns is None else pa.schema([parts.schema.field(name) for name in columns])
    for path, rows in zip(parts.paths, parts.rows, strict=True):
        if rows:
            yield pq.read_table(path, memory_map=True, columns=columns).cast(schema)
