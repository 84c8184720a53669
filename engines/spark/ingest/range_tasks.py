"""Parses one range of a source file, in a thread of the engine or in a Spark worker; declares task and result.

A task reads its bytes, makes rows of exact types and writes them as one part, under a temporary name first, because
Spark may run a task twice. Rows never go back through Spark; counts and faults do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from chain.errors import Environment, Invalid
from chain.model.read_options import Quarantine
from engines.spark.ingest import csv_text, json_text, parquet_rows, record_split, records
from engines.spark.ingest.bad_records import BAD, OF_RECORDS, CsvCells, JsonCells, RecordParser, SetAside, without_bad
from engines.spark.ingest.dialect import CsvDialect
from engines.spark.ingest.json_text import JsonTable
from engines.spark.ingest.ranges import Range
from engines.spark.ingest.record_split import RecordCut
from engines.spark.ingest.records import JsonRecords, OwnId
from engines.spark.ingest.text_columns import Absence

ANSWER: Final = pa.schema(
    [("task", pa.int64()), ("rows", pa.int64()), ("bad", pa.int64()), ("unknown", pa.binary()), ("fault", pa.binary())]
)
"""Schema of the results that tasks return to the driver."""
_READ: Final = 1 << 20


class CsvFormat(msgspec.Struct, frozen=True):
    dialect: CsvDialect
    names: tuple[str, ...]
    """Columns in the order of the file."""


class JsonLinesFormat(msgspec.Struct, frozen=True): ...


class JsonDocumentFormat(msgspec.Struct, frozen=True):
    sub_path: str | None = None


class FeaturesFormat(msgspec.Struct, frozen=True):
    per_line: bool
    own_id: OwnId = "told"


class ParquetFormat(msgspec.Struct, frozen=True): ...


Format: TypeAlias = CsvFormat | JsonLinesFormat | JsonDocumentFormat | FeaturesFormat | ParquetFormat


class RangeTask(msgspec.Struct, frozen=True, kw_only=True):
    """Parses ``span`` of ``path`` into rows of ``schema`` and writes them to ``part``."""

    path: str
    name: str
    """The file's name in messages."""
    span: Range
    format: Format
    schema: pa.Schema
    part: str
    quarantine: Quarantine | None = None
    """If given, records that cannot be read are set aside, and written beside the part."""
    needed: dict[str, Absence] = {}
    """Columns that need a value only for the given reason; in ``schema`` they are declared as not nullable."""


class TaskFault(msgspec.Struct, frozen=True):
    """An Invalid in transfer from a worker to the driver."""

    message: str
    rule: str
    hint: str
    place: str

    def to_invalid(self) -> Invalid:
        return Invalid(self.message, rule=self.rule, hint=self.hint, place=self.place)


def perform(batches: Iterator[pa.RecordBatch], tasks: tuple[RangeTask, ...]) -> Iterator[pa.RecordBatch]:
    """Implements ``mapInArrow``: each incoming row is the number of a task."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield pa.RecordBatch.from_pylist([{"task": number, **_answer(tasks[number])}], schema=ANSWER)


def perform_all(tasks: tuple[RangeTask, ...], threads: int = 1, check: Callable[[], None] = lambda: None) -> pa.Table:
    """Runs all tasks in threads of this process; each holds one range at a time. Returns their results, in order.

    ``check`` is called before each task: what it raises ends the work.
    """

    def one(number: int) -> dict[str, object]:
        check()
        return {"task": number, **_answer(tasks[number])}

    with ThreadPoolExecutor(min(threads, len(tasks)), thread_name_prefix="parse") as pool:
        try:
            return pa.Table.from_pylist(list(pool.map(one, range(len(tasks)))), schema=ANSWER)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _answer(task: RangeTask) -> dict[str, object]:
    try:
        written = parse_to_part(task)
    except Invalid as error:
        fault = TaskFault(error.message, error.rule, error.hint, error.place)
        return {"rows": 0, "bad": 0, "unknown": None, "fault": msgspec.json.encode(fault)}
    unknown = msgspec.json.encode(written.unknown) if written.unknown else None
    return {"rows": written.rows, "bad": written.bad, "unknown": unknown, "fault": None}


class WrittenRows(NamedTuple):
    """How many rows, and records that were set aside, were written; fields that no column has, by number of records."""

    rows: int
    bad: int
    unknown: Mapping[str, int]


def parse_to_part(task: RangeTask) -> WrittenRows:
    """Writes the rows, and the records that were set aside. Raises Invalid for faults of the source, Environment."""
    if isinstance(task.format, ParquetFormat):
        unknown: Counter[str] = Counter()
        rows = write_part(_counting(_parquet(task), unknown), task.schema, Path(task.part))
        return WrittenRows(rows, 0, unknown)
    done = parse_or_quarantine(task)
    if done.bad.num_rows:
        write_part([done.bad], done.bad.schema, bad_part(task))
    rows = write_part([done.good.table], done.good.table.schema, Path(task.part))
    return WrittenRows(rows, done.bad.num_rows, done.good.unknown)


def _parquet(task: RangeTask) -> Iterator[JsonTable]:
    return parquet_rows.batches(Path(task.path), task.name, task.span, task.schema)


def _counting(tables: Iterable[JsonTable], unknown: Counter[str]) -> Iterator[pa.Table]:
    """Yields the rows; adds the numbers of fields without a column to ``unknown``."""
    for table in tables:
        unknown.update(table.unknown)
        yield table.table


def bad_part(task: RangeTask) -> Path:
    """Returns the path for the records that a task sets aside, if there are any."""
    return Path(f"{task.part}.bad")


def write_part(tables: Iterable[pa.Table], schema: pa.Schema, path: Path) -> int:
    """Writes rows that this request reads again; returns their number. Raises Environment if the disk refuses."""
    staged, rows = path.with_name(f".{path.name}"), 0
    try:
        with pq.ParquetWriter(
            staged, schema, compression="none", use_dictionary=False, write_statistics=False
        ) as writer:
            for table in tables:
                writer.write_table(table)
                rows += table.num_rows
        staged.rename(path)
    except OSError as error:
        raise Environment(
            f"cannot write {path}: {error}", rule="disk", hint="check that the disk is not full"
        ) from error
    return rows


def parse_or_quarantine(task: RangeTask) -> SetAside:
    """Returns rows of the task's range, and records that cannot be read if they may be set aside. Raises Invalid."""
    try:
        return SetAside(parse(task), BAD.empty_table())
    except Invalid as fault:
        if task.quarantine is None or fault.rule not in OF_RECORDS:
            raise
        done = without_bad(_cut(task), _reader(task), task.name, task.quarantine.max_rows)
        if isinstance(task.format, CsvFormat) and not done.agrees:
            raise
        return done


def _cut(task: RangeTask) -> RecordCut:
    """Splits the range into records. Raises Invalid for a document that cannot be split."""
    data = _bytes(task)
    match task.format:
        case CsvFormat(dialect):
            return record_split.csv_records(data, dialect, _newlines_before(task))
        case FeaturesFormat(per_line=True, own_id=own_id):
            return record_split.feature_line_records(data, _newlines_before(task), own_id)
        case FeaturesFormat(own_id=own_id):
            return record_split.feature_records(data, records.feature_items(data, task.name), own_id)
        case JsonDocumentFormat(sub_path):
            return record_split.item_records(data, records.array_items(data, sub_path, task.name))
    return record_split.line_records(data, _newlines_before(task))


def _reader(task: RangeTask) -> RecordParser:
    if isinstance(task.format, CsvFormat):
        dialect, names = task.format.dialect, task.format.names

        def parse_csv(data: bytes, schema: pa.Schema) -> JsonTable:
            head = csv_text.CsvHead(names, schema, 0, located=False)
            return JsonTable(csv_text.parse_csv(data, head, dialect, task.name), {})

        return RecordParser(task.schema, parse_csv, CsvCells(dialect, names, task.name), task.needed)
    cells = JsonCells(task.name)
    return RecordParser(task.schema, cells.parse, cells, task.needed)


def parse(task: RangeTask) -> JsonTable:
    """Returns the rows of the task's range. Raises Invalid, also if no field of a file is in the schema."""
    table = _parse(task)
    if task.span.start == 0:  # the beginning tells what a file is of; later ranges may lack what is rare
        json_text.check_matches(table, task.schema, task.name)
    return table


def _parse(task: RangeTask) -> JsonTable:
    match task.format:
        case ParquetFormat():
            unknown: Counter[str] = Counter()
            return JsonTable(
                pa.concat_tables([task.schema.empty_table(), *_counting(_parquet(task), unknown)]), unknown
            )
        case CsvFormat(dialect, names):
            head = csv_text.CsvHead(names, task.schema, 0)
            return _parse_located(
                task, lambda data, before: JsonTable(csv_text.parse_csv(data, head, dialect, task.name, before), {})
            )
        case JsonLinesFormat():
            return _parse_located(task, partial(_objects, task))
    return json_text.parse_json(records_of(task.format, _bytes(task), task.name), task.schema, task.name)


def _objects(task: RangeTask, data: bytes, before: int) -> JsonTable:
    return json_text.parse_json(records.object_lines(data, before), task.schema, task.name)


def records_of(format_: Format, data: bytes, name: str, limit: int | None = None) -> JsonRecords:
    """Returns the objects, or the first ``limit``, of a JSON document, or of GeoJSON. Raises Invalid."""
    match format_:
        case JsonDocumentFormat(sub_path):
            return records.array_records(data, sub_path, name, limit)
        case FeaturesFormat(per_line=True, own_id=own_id):
            return records.feature_per_line(data, name, own_id)
        case FeaturesFormat(own_id=own_id):
            return records.feature_records(data, name, own_id, limit)
    return records.object_lines(data)


def _parse_located(task: RangeTask, parse_at: Callable[[bytes, int], JsonTable]) -> JsonTable:
    """Parses with lines counted from the range; only if there is a fault, again with lines counted from
    the file's start."""
    data = _bytes(task)
    try:
        return parse_at(data, 0)
    except Invalid:
        if task.span.start == 0:
            raise
        return parse_at(data, _newlines_before(task))


def place_of(task: RangeTask, row: int) -> str:
    """Formats the place of row ``row`` (from 0) of a task in its file, with the line if the format has lines."""
    if bad_part(task).exists():
        for bad in pq.read_table(bad_part(task), columns=["record"]).column(0).to_pylist():
            row += bad <= row
        return f"{task.name}:{_cut(task).lines(np.array([row]))[0]}"
    match task.format:
        case ParquetFormat():
            return f"{task.name}: row {parquet_rows.before(Path(task.path), task.name, task.span) + row + 1}"
        case CsvFormat(dialect):
            line = csv_text.line_of_record(_bytes(task), row + 1, dialect)
        case _:
            line = records_of(task.format, _bytes(task), task.name).line_of(row)
    return f"{task.name}:{_newlines_before(task) + line}"


def _bytes(task: RangeTask) -> bytes:
    try:
        with Path(task.path).open("rb") as source:
            source.seek(task.span.start)
            return source.read(task.span.stop - task.span.start)
    except OSError as error:
        raise Environment(f"cannot read {task.name}: {error.strerror}", rule="disk") from error


def _newlines_before(task: RangeTask) -> int:
    count, left = 0, task.span.start
    with Path(task.path).open("rb") as source:
        while left > 0:
            block = source.read(min(_READ, left))
            if not block:
                break
            count += block.count(b"\n")
            left -= len(block)
    return count
