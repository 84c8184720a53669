"""Implements a small engine in this process, without Spark, for tests of all around engines: daemons start at once.

It understands ``select * from ALIAS``, which passes on what is corrected and retracted, ingest of plain files with
append or ledger merge, and nothing else; the rest is an InvalidQuery, as for any query that an engine cannot run. What
it does understand it does by the rules: real slices, offsets, watermarks, schemas. Deterministic; keeps nothing between
calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
import trio

from chain.data.arrow_schema import from_arrow, to_arrow
from chain.data.ddl import parse_ddl
from chain.data.evolution import as_in_force, enlarged
from chain.data.parquet import open_slice, write_slice
from chain.data.quarantine import arrow_schema, quarantined
from chain.errors import Invalid
from chain.instant import Instant, to_millis
from chain.model.changelog import says_changelog, with_changelog
from chain.model.events import OffsetInterval
from chain.model.read_options import quarantine_of
from chain.model.schema import DataSchema
from chain.model.source import MergeAppend, MergeLedger, ReadCsv, ReadNdJson, ReadParquet, Transform
from engines.codec import VALIDATE
from engines.contract import (
    DerivationNeeded,
    Diagnostic,
    EngineIdentity,
    EngineProgress,
    HistoryNeeded,
    IngestAnswer,
    IngestBatchRequest,
    InvalidQuery,
    MigrateOutcome,
    MigrateRequest,
    OnProgress,
    ProvenanceOutcome,
    ProvenancePath,
    ProvenanceRequest,
    ProvenanceRow,
    ProvenanceSuccess,
    RawQueryOutcome,
    RawQueryRequest,
    RawQuerySuccess,
    RecordProvenance,
    RowCounts,
    Severity,
    Success,
    TransformOutcome,
    TransformRequest,
    ValidateRequest,
    ValidateResponse,
    Vocab,
    ignore_progress,
)
from engines.footers import NAME, read_bounds
from odfd.ingest.source_manifest import renamed_columns

R = TypeVar("R")
_BAD: Final = pa.schema([arrow_schema().field(name) for name in ("file", "line", "column", "raw", "reason", "rule")])
_CORRECT_TO: Final = 3
INSTANT: Final = pa.timestamp("ms", "UTC")
_IDENTITY_QUERY: Final = re.compile(
    r"\s*select\s+\*\s+from\s+[`\"]?([A-Za-z0-9_. \-]+)[`\"]?(?:\s+(?:as\s+)?`.+`)?\s*;?\s*\Z", re.I
)


class FakeEngine:
    """``contract.Engine``. ``name`` is what its identity says."""

    def __init__(self, name: str = "spark") -> None:
        self._name = name
        self.digest = "sha256:" + "0" * 64
        """What it says that it is; another one is another engine, as after an upgrade."""

    async def identity(self) -> EngineIdentity:
        return EngineIdentity(name=self._name, version="0", digest=self.digest, sandbox="none", platform="linux/amd64")

    async def validate(self, request: ValidateRequest) -> ValidateResponse:
        request = VALIDATE.decode_request(VALIDATE.encode_request(request))  # what cannot be sent is no request
        try:
            alias = _alias(request.transform)
        except Invalid as fault:
            refusal = Diagnostic(code="shape-not-supported", severity=Severity.ERROR, message=str(fault))
            return ValidateResponse(ok=False, diagnostics=(refusal,))
        given = next((each for each in request.inputs if each.query_alias == alias), None)
        if given is None:
            unknown = Diagnostic(code="unknown-input", severity=Severity.ERROR, message=f"no input called {alias!r}")
            return ValidateResponse(ok=False, diagnostics=(unknown,))
        mode = None if request.preprocess else "log"
        return ValidateResponse(ok=True, mode=mode, schema=given.schema, determinism="strict")

    async def transform(self, request: TransformRequest, on_progress: OnProgress = ignore_progress) -> TransformOutcome:
        on_progress(EngineProgress())
        return await trio.to_thread.run_sync(_answered, _transform, request)

    async def ingest(self, request: IngestBatchRequest, on_progress: OnProgress = ignore_progress) -> IngestAnswer:
        on_progress(EngineProgress())
        if request.prev_data_bounds is not None and (missing := _not_given(request)):
            return HistoryNeeded(hashes=missing)
        outcome = await trio.to_thread.run_sync(_answered, _ingest, request)
        if isinstance(outcome, Success):
            outcome = msgspec.structs.replace(outcome, prev_data_bounds_hash=request.prev_data_bounds_hash)
        return outcome

    async def raw_query(self, request: RawQueryRequest, on_progress: OnProgress = ignore_progress) -> RawQueryOutcome:
        on_progress(EngineProgress())
        return await trio.to_thread.run_sync(_raw_query, request)

    async def migrate(self, request: MigrateRequest, on_progress: OnProgress = ignore_progress) -> MigrateOutcome:
        """It keeps no state, so the next query goes on from the next block, if it gives the same columns."""
        on_progress(EngineProgress())
        try:
            return await trio.to_thread.run_sync(_migrated, request)
        except Invalid as fault:
            return InvalidQuery.of(fault)

    async def derive_provenance(
        self, request: ProvenanceRequest, on_progress: OnProgress = ignore_progress
    ) -> ProvenanceOutcome:
        on_progress(EngineProgress())
        try:
            return await trio.to_thread.run_sync(_provenance, request)
        except Invalid as fault:
            return InvalidQuery.of(fault)


def _not_given(request: IngestBatchRequest) -> tuple[str, ...]:
    """It looks at all slices that there are."""
    known = read_bounds(Path(request.prev_data_bounds or "")).column(NAME).to_pylist()
    return tuple(name for name in known if name not in request.prev_data_hashes)


def _answered(work: Callable[[R], TransformOutcome], request: R) -> TransformOutcome:
    try:
        return work(request)
    except Invalid as fault:
        return InvalidQuery.of(fault)
    except pa.ArrowInvalid as fault:
        return InvalidQuery(message=str(fault))


def _alias(transform: Transform) -> str:
    queries = [step.query for step in transform.queries or ()] or [transform.query or ""]
    match = _IDENTITY_QUERY.match(queries[0]) if len(queries) == 1 else None
    if match is None:
        raise Invalid(f"not a query of the small engine: {queries[0][:60]!r}", hint="it knows `select * from ALIAS`")
    return match[1]


def _transform(request: TransformRequest) -> TransformOutcome:
    alias = _alias(request.transform)
    if len(request.query_inputs) != 1 or request.query_inputs[0].query_alias != alias:
        raise Invalid(f"no input called {alias!r}", hint="the small engine reads exactly one input")
    given = request.query_inputs[0]
    watermark = max((each.event_time for each in given.explicit_watermarks), default=None)
    known = _read(given.schema_file)
    rows = pa.concat_tables([known, *(as_in_force(_read(path), known.schema) for path in given.data_paths)])
    made = _system_columns(_visible(rows, given.vocab), request.vocab, request.next_offset, request.system_time)
    slice_ = _doing(made, request.vocab, rows.column(given.vocab.operation_type))
    answer = _written(slice_, request.output_schema, Path(request.new_data_path), request.next_offset, watermark)
    said = says_changelog(answer.schema)
    if answer.schema is not None and given.changelog and (request.output_schema is None or said is False):
        told = with_changelog(answer.schema, True, by_time=bool(given.by_time))
        answer = msgspec.structs.replace(answer, schema=told)
    elif answer.schema is not None and given.changelog is False and request.output_schema is None:
        answer = msgspec.structs.replace(answer, schema=with_changelog(answer.schema, False))
    return msgspec.structs.replace(answer, late=0, rows=RowCounts(late=0, untimed=0))


def _migrated(request: MigrateRequest) -> MigrateOutcome:
    alias = _alias(request.transform)
    given = next((each for each in request.query_inputs if each.query_alias == alias), None)
    if given is None:
        raise Invalid(f"no input called {alias!r}")
    rows = _visible(_read(given.schema_file), given.vocab)
    made = _system_columns(rows, request.vocab, request.next_offset, request.system_time).schema
    try:
        return Success(schema=enlarged(request.output_schema, made))
    except Invalid as fault:
        return DerivationNeeded(message=str(fault))


def _ingest(request: IngestBatchRequest) -> TransformOutcome:
    query = None if request.preprocess is None else (request.preprocess.queries or ())[-1].query
    columns = None if query is None else renamed_columns(query)
    if not isinstance(request.read, ReadCsv | ReadParquet | ReadNdJson) or (query is not None and columns is None):
        raise Invalid("the small engine reads plain CSV, NdJson and Parquet", hint="use the Spark engine")
    bad: list[dict[str, object]] = []
    rows = pa.concat_tables(_good(Path(path), request.read, bad) for path in request.source_paths)
    if columns is not None:
        rows = rows.select(list(columns)).rename_columns(list(columns.values()))
    name = request.vocab.event_time
    timed = name in rows.column_names
    if timed:
        rows = rows.set_column(rows.column_names.index(name), name, rows.column(name).cast(INSTANT))
    else:
        time = request.source_event_time if request.source_event_time is not None else request.system_time
        rows = rows.add_column(0, name, pa.repeat(pa.scalar(to_millis(time), INSTANT), rows.num_rows))
    rows, counts = _merged(rows, request)
    rows = rows.select([name, *(other for other in rows.column_names if other != name)])
    greatest = pc.max(rows.column(name).cast(pa.int64())).as_py()
    known = [Instant(greatest * 1_000_000)] if greatest is not None else []
    if request.prev_watermark is not None:
        known.append(request.prev_watermark)
    slice_ = _system_columns(rows, request.vocab, request.next_offset, request.system_time)
    path = Path(request.new_data_path)
    answer = _written(slice_, request.schema, path, request.next_offset, max(known, default=None))
    before = request.prev_watermark
    late = 0 if before is None else pc.sum(pc.less(rows.column(name), pa.scalar(to_millis(before), INSTANT))).as_py()
    counts = msgspec.structs.replace(
        counts,
        read=(counts.read or 0) + len(bad),
        late=late or 0,
        untimed=0 if timed else rows.num_rows,
        quarantined=len(bad),
    )
    if bad and request.quarantine is not None:
        target, told = request.quarantine, pa.Table.from_pylist(bad, schema=_BAD)
        write_slice(quarantined(told, target.next_offset, request.system_time, target.follows), Path(target.path))
    return msgspec.structs.replace(answer, late=late or 0, rows=counts)


def _merged(rows: pa.Table, request: IngestBatchRequest) -> tuple[pa.Table, RowCounts]:
    """What is news, and what became of the rest."""
    counts = RowCounts(read=rows.num_rows, shaped=rows.num_rows, unchanged=0, conflicting=0, superseded=0)
    match request.merge:
        case MergeAppend():
            return rows, counts
        case MergeLedger(primary_key=keys):
            missing = [key for key in keys if key not in rows.column_names]
            if missing:
                raise Invalid(f"no key column {missing[0]!r}", hint=f"there are: {', '.join(rows.column_names)}")
            if not request.allows_null_keys and any(rows.column(key).null_count for key in keys):
                raise Invalid("a row has no value in the primary key", rule="primary-key-null")
            known = _standing(request, keys, rows.column_names)
            fresh, conflicting = [], 0
            for number, row in enumerate(rows.to_pylist()):
                first = known.setdefault(tuple(row[key] for key in keys), row)
                if first is row:
                    fresh.append(number)
                conflicting += first != row
            same = rows.num_rows - len(fresh) - conflicting
            return rows.take(pa.array(fresh, pa.int64())), msgspec.structs.replace(
                counts, unchanged=same, conflicting=conflicting
            )
        case other:
            raise Invalid(f"the small engine does not merge by {type(other).__name__}", hint="use the Spark engine")


def _good(path: Path, read: ReadCsv | ReadParquet | ReadNdJson, bad: list[dict[str, object]]) -> pa.Table:
    """Lines that can be read; where the source says so the others are added to ``bad``, else refused."""
    if isinstance(read, ReadParquet):
        return pq.read_table(path)
    if isinstance(read, ReadNdJson):
        return _ndjson(path, read)
    if quarantine_of(read.schema) is None:
        return _csv(path, read)
    head, *lines = path.read_text().splitlines()
    one = path.with_name(f".{path.name}")
    kept = [_lines(one, read, [head])]
    try:
        for number, line in enumerate(lines, 2):
            try:
                kept.append(_lines(one, read, [head, line]))
            except pa.ArrowInvalid as error:
                row = {"file": path.name, "line": number, "raw": line, "reason": str(error), "rule": "read-value"}
                bad.append({**row, "column": None})
    finally:
        one.unlink()
    return pa.concat_tables(kept)


def _lines(path: Path, read: ReadCsv, lines: list[str]) -> pa.Table:
    path.write_text("".join(f"{line}\n" for line in lines))
    return _csv(path, read)


def _standing(
    request: IngestBatchRequest, keys: Sequence[str], columns: Sequence[str]
) -> dict[tuple[object, ...], dict[str, object]]:
    """By key the first row that was said of it, or the last where one was taken back; empty where nothing stands."""
    known: dict[tuple[object, ...], dict[str, object]] = {}
    op = request.vocab.operation_type
    for path in request.prev_data_paths:
        for row in _read(path).to_pylist():
            said = {name: row[name] for name in columns}
            key = tuple(row[name] for name in keys)
            known[key] = said if row[op] == _CORRECT_TO else {} if row[op] else known.get(key, said)
    return known


def _csv(path: Path, read: ReadCsv) -> pa.Table:
    schema = read.schema or (parse_ddl(read.ddl_schema) if read.ddl_schema else None)
    columns = to_arrow(schema).remove_metadata() if schema is not None else None
    names = columns.names if columns is not None and not read.header else None
    options = pyarrow.csv.ReadOptions(use_threads=False, column_names=names)
    convert = pyarrow.csv.ConvertOptions(
        column_types=columns, null_values=[read.null_value or ""], strings_can_be_null=True
    )
    parse = pyarrow.csv.ParseOptions(delimiter=read.separator or ",")
    return pyarrow.csv.read_csv(path, options, parse, convert)


def _ndjson(path: Path, read: ReadNdJson) -> pa.Table:
    schema = read.schema or (parse_ddl(read.ddl_schema) if read.ddl_schema else None)
    columns = to_arrow(schema).remove_metadata() if schema is not None else None
    alone = pyarrow.json.ReadOptions(use_threads=False)
    return pyarrow.json.read_json(path, alone, parse_options=pyarrow.json.ParseOptions(explicit_schema=columns))


def _read(path: str) -> pa.Table:
    with open_slice(Path(path)) as file:
        return file.read().replace_schema_metadata(None)


def _visible(rows: pa.Table, own: Vocab) -> pa.Table:
    """Without the system columns of the input, its event time first."""
    system = {own.offset, own.operation_type, own.system_time}
    kept = [name for name in rows.column_names if name not in system]
    kept.sort(key=lambda name: name != own.event_time)
    return rows.select(kept)


def _system_columns(rows: pa.Table, vocab: Vocab, offset: int, system_time: Instant) -> pa.Table:
    count = rows.num_rows
    columns = {
        pa.field(vocab.offset, pa.int64(), nullable=False): pa.array(np.arange(offset, offset + count)),
        pa.field(vocab.operation_type, pa.int32(), nullable=False): pa.repeat(pa.scalar(0, pa.int32()), count),
        pa.field(vocab.system_time, INSTANT, nullable=False): pa.repeat(
            pa.scalar(to_millis(system_time), INSTANT), count
        ),
    }
    schema = pa.schema([*columns, *rows.schema])
    return pa.Table.from_arrays([*columns.values(), *rows.columns], schema=schema)


def _doing(slice_: pa.Table, vocab: Vocab, ops: pa.ChunkedArray) -> pa.Table:
    """With what each row does to those before it."""
    place = slice_.column_names.index(vocab.operation_type)
    return slice_.set_column(place, slice_.schema.field(place), ops.cast(pa.int32()))


def _written(slice_: pa.Table, force: DataSchema | None, path: Path, offset: int, watermark: Instant | None) -> Success:
    if force is not None:
        wanted = to_arrow(force).remove_metadata()
        if slice_.schema.names != wanted.names:
            raise Invalid("columns differ from those of the dataset", hint="make a new dataset")
        slice_ = slice_.cast(wanted)
    interval = None
    if slice_.num_rows:
        write_slice(slice_, path)
        interval = OffsetInterval(start=offset, end=offset + slice_.num_rows - 1)
    schema = force or from_arrow(slice_.schema)
    return Success(new_offset_interval=interval, new_watermark=watermark, schema=schema)


def _raw_query(request: RawQueryRequest) -> RawQueryOutcome:
    try:
        alias = _alias(request.transform)
    except Invalid as fault:
        return InvalidQuery.of(fault)
    views = {"input": request.input_data_paths} if request.views is None else {}
    views |= {view.name: view.data_paths for view in request.views or ()}
    if alias not in views:
        return InvalidQuery(message=f"no view called {alias!r}", rule="unknown-input", hint=f"there is {list(views)}")
    rows = pa.concat_tables(_read(path) for path in views[alias])
    write_slice(rows, Path(request.output_data_path))
    return RawQuerySuccess(num_records=rows.num_rows)


def _provenance(request: ProvenanceRequest) -> ProvenanceSuccess:
    """Records stand in the order of the rows that they repeat."""
    _alias(request.transform)
    (given,) = request.query_inputs
    fresh = [block.data_path for block in given.blocks or () if block.data_path is not None and not block.reopened]
    inside = [offset for path in fresh for offset in _read(path).column(given.vocab.offset).to_pylist()]
    mine = _read(request.data_path)
    offsets = mine.column(request.vocab.offset).to_pylist()
    if request.column is not None and request.column not in mine.column_names:
        raise Invalid(f"the records have no column {request.column!r}", rule="provenance-column")
    records = []
    for offset in request.offsets:
        row = ProvenanceRow(input=0, offset=inside[offsets.index(offset)], role="value", path=0)
        rows = (row,) if request.limit else ()
        records.append(RecordProvenance(offset=offset, op=0, rows=rows, count=1))
    return ProvenanceSuccess(mode="log", paths=(ProvenancePath(input=0),), records=tuple(records))
