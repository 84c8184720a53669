"""Runs one ingest request from end to end: parse, preprocess, shape, merge, write the slice, report.

A request has a scratch directory beside its output, made at its start and deleted at its end. Faults of data, schema or
query are answers (``InvalidQuery``); faults of the machine are raised for the service to report.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException

from chain.data.arrow_schema import from_arrow, to_arrow
from chain.data.parquet import SliceWriter, write_slice
from chain.data.quarantine import arrow_schema, quarantined
from chain.errors import Invalid
from chain.instant import DAY, MILLISECOND, SECOND, Instant
from chain.model.events import OffsetInterval
from chain.model.read_options import quarantine_of
from chain.model.source import Transform, primary_key
from engines.contract import (
    MAX_REMARKS,
    HistoryNeeded,
    IngestAnswer,
    IngestBatchRequest,
    InvalidQuery,
    QuarantineTarget,
    RowCounts,
    SkippedFile,
    Success,
    bounded_list,
)
from engines.request_control import RequestControl
from engines.spark.analysis.source_declarations import SourceDeclarations, read_source
from engines.spark.ingest import range_tasks
from engines.spark.ingest.encodings import with_guess
from engines.spark.ingest.history import History, SlicesMissing
from engines.spark.ingest.merge import MergeContext, PassedOver, merge
from engines.spark.ingest.parse import ParsedRows, SourceFile, empty_sources, give_back, parse_sources, read_schema
from engines.spark.ingest.row_checks import (
    RowOrigin,
    behind,
    check_keys,
    check_not_ahead,
    check_present,
    checked_keys,
    greatest,
    locate,
    missing_fault,
    null_key_fault,
)
from engines.spark.ingest.shape import (
    check_columns,
    coerce_guessed,
    fill_times,
    finish_rows,
    fit_schema,
    no_rows,
    prepare_batch,
)
from engines.spark.ingest.source_files import OpenedSources, bounds_of, open_sources
from engines.spark.ingest.streamed import Streamed, rows_in_parts, stream_slice
from engines.spark.ingest.text_columns import NO_EVENT_TIME, Absence, check_made, check_read, no_key
from engines.spark.sql.diagnostics import blames_data, blames_query, fault_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from engines.spark.runtime.session import OpenSession

NO_BYTES: Final = "it is empty"
LARGE: Final = 4 << 20
"""Bytes of a slice that took memory which is worth being given back."""


def run_ingest(
    session: SparkSession | OpenSession, request: IngestBatchRequest, control: RequestControl, *, spread: bool = False
) -> IngestAnswer:
    """Runs an ingest; ``session`` is this request's alone, or opens one when Spark is needed.

    ``spread``: Spark's tasks run on other machines. Raises Environment, and Spark's faults that are not the query's.
    """
    output = Path(request.new_data_path)
    opened = functools.cache(session if callable(session) else lambda: session)
    try:
        with tempfile.TemporaryDirectory(prefix="ingest-", dir=output.parent) as scratch:
            return _ingest(opened, request, control, Path(scratch), spread=spread)
    except SlicesMissing as missing:
        return HistoryNeeded(hashes=missing.names)
    except Invalid as fault:
        return InvalidQuery.of(fault)
    finally:
        if output.exists() and output.stat().st_size > LARGE:
            give_back()


def _ingest(
    session: OpenSession, request: IngestBatchRequest, control: RequestControl, scratch: Path, *, spread: bool
) -> Success:
    vocab, force = request.vocab, None if request.schema is None else to_arrow(request.schema)
    query, declared = read_source(request.preprocess)
    keys = checked_keys(request)
    sources = open_sources(_sources(request), request.read, scratch, bounds_of(request), control.check)
    control.check()
    parse = functools.partial(parse_sources, session, sources.files, sources.step, scratch, spread=spread)
    parts = _parse(parse, request, sources, keys, control, strict=query is None and not request.fills_event_time)
    control.check()
    empty = tuple(SkippedFile(name=name, reason=NO_BYTES) for name in empty_sources(sources.files))
    if parts is None:
        return _nothing(request, empty, sources.remarks)
    origin = RowOrigin(session, parts, query, scratch, vocab.event_time)
    check_read(parts.schema, ", ".join(source.name for source in _sources(request)), queried=query is not None)
    guessed = query is None and read_schema(request.read) is None
    history = History.of(request, force)
    rows = rows_in_parts(request, origin, control, guessed=guessed)
    if rows is not None:
        if query is None and vocab.event_time not in parts.schema.names:
            _check_may_lack(request, guessed)
        control.stage("writing")
        control.progress()
        limit = None if declared.ahead is None else Instant(request.system_time + declared.ahead + declared.behind)
        if (done := stream_slice(rows, history, limit)) is not None:
            return _answer_streamed(request, parts, declared, done, empty)
    batch = _rows(origin) if rows is None else rows.whole()
    control.check()
    if query is not None:
        check_made(batch.schema)
    if not parts.typed and not batch.num_rows:
        if force is None:
            return _nothing(request, empty, parts.remarks)
        batch, guessed = no_rows(vocab, request.merge, force), False
    if vocab.event_time not in batch.column_names:
        _check_may_lack(request, guessed)
    elif query is not None and not request.fills_event_time:
        check_present(batch, origin)
    if guessed:
        batch = coerce_guessed(batch, vocab, request.merge)
    batch = prepare_batch(batch, vocab, request.merge, force)
    check_columns(batch.schema, vocab, force)
    batch, untimed = _add_keys(request, batch, keys, origin)
    merged = merge(MergeContext(session, scratch, vocab), batch, history, request.merge)
    control.check()
    times = merged.rows.column(vocab.event_time).filter(merged.fresh)
    late = 0 if request.prev_watermark is None else behind(times, request.prev_watermark)
    counts = _counts_of(parts, batch.num_rows, merged.passed_over, late, times.null_count + untimed, empty)
    table = finish_rows(merged, vocab, request.system_time, request.source_event_time, request.next_offset)
    mark = _watermark(request, declared, batch, table, origin)
    table = fit_schema(table, force)
    control.stage("writing")
    control.progress()
    if table.num_rows:
        write_slice(table, Path(request.new_data_path))
    if counts.quarantined and request.quarantine is not None:
        _write_quarantine(parts, request.quarantine, request.system_time)
    return _success(request, table.schema, table.num_rows, mark, counts)


def _answer_streamed(
    request: IngestBatchRequest,
    parts: ParsedRows,
    declared: SourceDeclarations,
    done: Streamed,
    empty: tuple[SkippedFile, ...],
) -> Success:
    """The answer for rows that were written as they came."""
    counts = _counts_of(parts, done.rows, PassedOver(), done.late, done.untimed, empty)
    if counts.quarantined and request.quarantine is not None:
        _write_quarantine(parts, request.quarantine, request.system_time)
    mark = advance_watermark(request.prev_watermark, Instant(done.latest - declared.behind))
    return _success(request, done.schema, done.rows, mark, counts)


def _counts_of(
    parts: ParsedRows, shaped: int, passed_over: PassedOver, late: int, untimed: int, empty: tuple[SkippedFile, ...]
) -> RowCounts:
    rows, aside = sum(parts.rows), sum(parts.bad)
    counts = _counts(rows, shaped, passed_over, late, untimed, empty)
    return msgspec.structs.replace(counts, read=rows + aside, quarantined=aside, remarks=parts.remarks[:MAX_REMARKS])


def _nothing(request: IngestBatchRequest, skipped: tuple[SkippedFile, ...], remarks: tuple[str, ...] = ()) -> Success:
    """Returns the answer for files that hold nothing, not even the types of a first schema."""
    counts = _counts(0, 0, PassedOver(), 0, 0, skipped)
    return Success(
        new_watermark=request.prev_watermark,
        late=0,
        rows=msgspec.structs.replace(counts, remarks=remarks[:MAX_REMARKS]),
        prev_data_bounds_hash=request.prev_data_bounds_hash,
    )


def _parse(
    parse: Callable[[Mapping[str, Absence], RequestControl], ParsedRows | None],
    request: IngestBatchRequest,
    sources: OpenedSources,
    keys: Sequence[str],
    control: RequestControl,
    *,
    strict: bool,
) -> ParsedRows | None:
    """Parses the sources. ``strict``: each row must have an event time if its file has a column of them.

    The parsers check keys only if records are set aside; if not, all rows without a key are reported together, later.
    """
    name = request.vocab.event_time
    aside = request.preprocess is None and quarantine_of(request.read.schema) is not None
    required = {key: no_key(key) for key in keys if aside} | ({name: NO_EVENT_TIME} if strict else {})
    try:
        parts = parse(required, control)
        return None if parts is None else parts._replace(remarks=(*sources.remarks, *parts.remarks))
    except Invalid as fault:
        guessed = with_guess(fault, sources.files)
        told = missing_fault(guessed, name) if strict else guessed
        raise null_key_fault(told, keys) from fault


def _add_keys(
    request: IngestBatchRequest, batch: pa.Table, keys: Sequence[str], origin: RowOrigin
) -> tuple[pa.Table, int]:
    """Returns the batch with the keys by which its rows are looked up, and the number of rows without event time.

    If the event time is part of the key, it is the one that will be written: that of the source, if a row has none.
    Raises Invalid.
    """
    name, untimed = origin.column, 0
    if name in primary_key(request.merge):
        untimed = batch.column(name).null_count
        given = request.source_event_time
        batch = fill_times(batch, name, request.system_time if given is None else given)
    check_keys(batch, keys, origin)
    return batch, untimed


def _check_may_lack(request: IngestBatchRequest, guessed: bool) -> None:
    """Raises Invalid for files without event times if other files have some, unless declared."""
    if guessed and request.needs_event_time:
        raise Invalid(
            f"the file has no column {request.vocab.event_time!r}, and the rows before it have one",
            rule="event-time-missing",
            hint="add it, or say which time all rows of the file have: --event-time 2024-05-01T12:30:00Z",
            place=", ".join(source.name for source in _sources(request)),
        )


def _watermark(
    request: IngestBatchRequest, declared: SourceDeclarations, batch: pa.Table, table: pa.Table, origin: RowOrigin
) -> Instant | None:
    """Advances the watermark by the rows of ``table``. Raises Invalid if that would be too far ahead of the clock."""
    before = request.prev_watermark
    latest = greatest(table.column(request.vocab.event_time))
    if latest is None:
        return before
    mark = advance_watermark(before, Instant(latest - declared.behind))
    limit = None if declared.ahead is None else Instant(request.system_time + declared.ahead)
    if limit is not None and mark > limit and (before is None or mark > before):
        reached = Instant(max(limit, limit if before is None else before) + declared.behind)
        days = (latest - declared.behind - request.system_time) // (DAY * SECOND) + 1
        check_not_ahead(batch, latest, reached, days, request.source_event_time, origin)
    return mark


def _write_quarantine(parts: ParsedRows, target: QuarantineTarget, time: Instant) -> None:
    """Writes the records that were set aside, in the order of the files, one range at a time."""
    offset = target.next_offset
    with SliceWriter(Path(target.path), arrow_schema()) as writer:
        for task, count in zip(parts.tasks, parts.bad, strict=True):
            if count:
                writer.write(quarantined(pq.read_table(range_tasks.bad_part(task)), offset, time, target.follows))
                offset += count


def _counts(
    read: int, shaped: int, passed_over: PassedOver, late: int, untimed: int, skipped: tuple[SkippedFile, ...]
) -> RowCounts:
    """Counts the rows, except those written, which the receiver counts in the slice."""
    return RowCounts(
        read=read,
        shaped=shaped,
        **passed_over._asdict(),
        late=late,
        untimed=untimed,
        quarantined=0,
        skipped=bounded_list(skipped),
    )


def _success(
    request: IngestBatchRequest, schema: pa.Schema, rows: int, mark: Instant | None, counts: RowCounts
) -> Success:
    interval = None
    if rows:
        interval = OffsetInterval(start=request.next_offset, end=request.next_offset + rows - 1)
    return Success(
        new_offset_interval=interval,
        new_watermark=mark,
        schema=request.schema or from_arrow(schema),
        late=counts.late,
        rows=counts,
        prev_data_bounds_hash=request.prev_data_bounds_hash,
    )


def advance_watermark(before: Instant | None, to: Instant) -> Instant:
    """Advances a watermark in whole milliseconds; late rows do not move it back."""
    here = Instant(to // MILLISECOND * MILLISECOND)
    return here if before is None else max(before, here)


def _rows(origin: RowOrigin) -> pa.Table:
    """Returns the batch in input order. Raises Invalid."""
    parts = origin.parts
    filled = [path for path, rows in zip(parts.paths, parts.rows, strict=True) if rows]
    if origin.query is not None:
        try:
            return origin.query_paths(filled)
        except PySparkException as fault:
            if not blames_query(fault):
                raise
            raise _of_preprocess(fault, origin.query, origin) from fault
    tables = [pq.read_table(path, memory_map=True).cast(parts.schema) for path in filled]
    return pa.concat_tables([parts.schema.empty_table(), *tables])


def _of_preprocess(fault: PySparkException, query: Transform, origin: RowOrigin) -> Invalid:
    """Makes the fault of a query, with its place; if a value is at fault, with file and line of the first one."""
    told = fault_of(fault, query)
    if not blames_data(fault):
        told.place = _in_preprocess(told)
        return told
    last: PySparkException | None = None

    def fails(paths: list[Path]) -> bool:
        nonlocal last
        last = None
        try:
            origin.query_paths(paths)
        except PySparkException as again:
            if again.getCondition() != fault.getCondition():
                raise
            last = again
        return last is not None

    place = locate(origin, fails)
    if last is not None:  # the fault of the row found; the row that Spark met first is up to chance
        told = fault_of(last, query)
    return Invalid(f"{_in_preprocess(told)}: {told.message}", rule=told.rule, hint=told.hint, place=place)


def _in_preprocess(told: Invalid) -> str:
    return f"preprocess, {told.place}" if told.place else "preprocess"


def _sources(request: IngestBatchRequest) -> list[SourceFile]:
    names = request.source_names or tuple(Path(path).name for path in request.source_paths)
    if len(names) != len(request.source_paths):
        raise Invalid("source_names and source_paths differ in length", rule="ingest-request")
    return [SourceFile(Path(path), name) for path, name in zip(request.source_paths, names, strict=True)]
