"""One ingest request from end to end: parse, preprocess, shape, merge, write the slice, say what came of it.

A request owns one scratch directory beside its output, made at its start and gone at its end. What is wrong with data,
schema or query is an answer (``InvalidQuery``); what is wrong with the machine is raised for the service to report.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import PySparkException, PythonException

from chain.data.arrow_schema import from_arrow, to_arrow
from chain.data.parquet import to_instant, write_slice
from chain.errors import Invalid
from chain.instant import MILLISECOND, Instant, to_millis
from chain.model.events import OffsetInterval
from chain.multihash import Multihash
from engines.contract import (
    MAX_REMARKS,
    MAX_SKIPPED,
    IngestRequest,
    InvalidQuery,
    RowCounts,
    SkippedFile,
    Success,
    TransformOutcome,
)
from engines.spark.ingest.history import History
from engines.spark.ingest.merge import Desk, PassedOver, merge
from engines.spark.ingest.parse import Parts, Source, empty_sources, parse_sources, read_schema
from engines.spark.ingest.preprocess import preprocess
from engines.spark.ingest.shape import check_columns, coerce_guessed, finished, fitted, prepared
from engines.spark.ingest.texts import INSTANT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SQL_STATES_OF_QUERIES: Final = ("0", "2", "3", "4")
"""Classes of SQLSTATE that blame the query or its data; XX and 5x blame the engine."""


NO_BYTES: Final = "it is empty"


class Control(Protocol):
    """The part of a request's control that is used here."""

    def check(self) -> None:
        """Raises when nobody waits for the answer any more."""

    def progress(self) -> None: ...


def run_ingest(spark: SparkSession, request: IngestRequest, control: Control) -> TransformOutcome:
    """``spark`` is a session of this request alone: views are made in it.

    Raises Environment, and Spark's faults that are not the query's.
    """
    output = Path(request.new_data_path)
    try:
        with tempfile.TemporaryDirectory(prefix="ingest-", dir=output.parent) as scratch:
            return _ingest(spark, request, control, Path(scratch))
    except Invalid as fault:
        return InvalidQuery(message=fault.message, rule=fault.rule, hint=fault.hint, place=fault.place)
    except PySparkException as fault:
        if isinstance(fault, PythonException) or (fault.getSqlState() or "X")[0] not in _SQL_STATES_OF_QUERIES:
            raise
        return InvalidQuery(message=_first_lines(str(fault)))


def _ingest(spark: SparkSession, request: IngestRequest, control: Control, scratch: Path) -> Success:
    vocab, force = request.vocab, None if request.schema is None else to_arrow(request.schema)
    parts = parse_sources(spark, _sources(request), request.read, scratch)
    control.check()
    empty = tuple(SkippedFile(name=name, reason=NO_BYTES) for name in empty_sources(_sources(request)))
    if parts is None:
        return Success(new_watermark=request.prev_watermark, late=0, rows=_counts(0, 0, PassedOver(), 0, 0, empty))
    batch = _rows(spark, request, parts)
    control.check()
    if request.preprocess is None and read_schema(request.read) is None:
        batch = coerce_guessed(batch, vocab, request.merge)
    batch = prepared(batch, vocab, request.merge, force)
    check_columns(batch.schema, vocab, force)
    history = _history(request, force)
    merged = merge(Desk(spark, scratch, vocab), batch, history, request.merge)
    control.check()
    times = merged.rows.column(vocab.event_time_column).filter(merged.fresh)
    late = 0 if request.prev_watermark is None else behind(times, request.prev_watermark)
    counts = _counts(sum(parts.rows), batch.num_rows, merged.passed_over, late, times.null_count, empty)
    counts = msgspec.structs.replace(counts, remarks=parts.remarks[:MAX_REMARKS])
    table = finished(merged, vocab, request.system_time, request.source_event_time, request.next_offset)
    table = fitted(table, force)
    control.progress()
    if table.num_rows:
        write_slice(table, Path(request.new_data_path))
    return msgspec.structs.replace(_success(request, table), late=late, rows=counts)


def _counts(
    read: int, shaped: int, passed_over: PassedOver, late: int, untimed: int, skipped: tuple[SkippedFile, ...]
) -> RowCounts:
    """What was written is for whoever gets the slice to count."""
    return RowCounts(
        read=read,
        shaped=shaped,
        **passed_over._asdict(),
        late=late,
        untimed=untimed,
        quarantined=0,
        skipped=skipped[:MAX_SKIPPED],
    )


def _history(request: IngestRequest, force: pa.Schema | None) -> History:
    hashes = [Multihash.parse(text) for text in request.prev_data_hashes]
    if hashes and len(hashes) != len(request.prev_data_paths):
        raise Invalid("not every earlier slice has a hash", rule="history-complete")
    return History(force, [Path(path) for path in request.prev_data_paths], hashes)


def _success(request: IngestRequest, table: pa.Table) -> Success:
    schema = request.schema or from_arrow(table.schema)
    if not table.num_rows:
        return Success(new_watermark=request.prev_watermark, schema=schema)
    start = request.next_offset
    return Success(
        new_offset_interval=OffsetInterval(start=start, end=start + table.num_rows - 1),
        new_watermark=watermark(table.column(request.vocab.event_time_column), request.prev_watermark),
        schema=schema,
    )


def watermark(times: pa.ChunkedArray, before: Instant | None) -> Instant | None:
    """The greatest event time so far; late rows do not move it back."""
    latest = pc.max(times)
    if not latest.is_valid:
        return before
    here = Instant(to_instant(latest.value, times.type) // MILLISECOND * MILLISECOND)
    return here if before is None else max(before, here)


def behind(times: pa.ChunkedArray, watermark: Instant) -> int:
    """How many of the times are before the watermark. A date counts as its first moment."""
    kind = times.type if pa.types.is_timestamp(times.type) else INSTANT
    limit = pa.scalar(to_millis(watermark), pa.int64()).cast(INSTANT).cast(kind)
    return int(pc.sum(pc.less(times.cast(kind), limit)).as_py() or 0)


def _rows(spark: SparkSession, request: IngestRequest, parts: Parts) -> pa.Table:
    """The batch in input order."""
    filled: Sequence[Path] = [path for path, rows in zip(parts.paths, parts.rows, strict=True) if rows]
    if request.preprocess is not None:
        return preprocess(spark, filled, parts.schema, request.preprocess)
    tables = [pq.read_table(path, memory_map=True) for path in filled]
    return pa.concat_tables([parts.schema.empty_table(), *tables])


def _sources(request: IngestRequest) -> list[Source]:
    names = request.source_names or tuple(Path(path).name for path in request.source_paths)
    if len(names) != len(request.source_paths):
        raise Invalid("source_names and source_paths differ in length", rule="ingest-request")
    return [Source(Path(path), name) for path, name in zip(request.source_paths, names, strict=True)]


def _first_lines(text: str) -> str:
    """Spark's message without the plan or the Java stack behind it."""
    kept = text.split("JVM stacktrace:")[0].split("\n== ")[0].split(";\n")[0]
    return kept.strip()[:2000]
