"""Parses source files in parts: cuts them into ranges, which are parsed with Arrow, in the order of the input.

This process looks only at heads of files (columns, a sample for types) and at where they may be cut. Ranges of CSV,
Parquet of few bytes of rows and small texts are parsed in its threads, since Arrow lets them run at once; others, and
those of an engine on a cluster, are one Spark job. Parts are numbered, so input order is (part, row). The caller owns
the directory of parts and removes it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from chain.data.arrow_schema import to_arrow
from chain.data.ddl import parse_ddl
from chain.errors import Environment, Invalid
from chain.model.read_options import Quarantine, quarantine_of
from chain.model.source import ReadCsv, ReadGeoJson, ReadJson, ReadNdGeoJson, ReadNdJson, ReadParquet, ReadStep
from chain.wording import size
from engines.contract import EngineProgress
from engines.request_control import RequestControl
from engines.spark.ingest import parquet_rows, range_tasks
from engines.spark.ingest.bad_records import too_many
from engines.spark.ingest.csv_text import BOM, read_head
from engines.spark.ingest.dialect import CsvDialect, check_text_options, csv_dialect
from engines.spark.ingest.encodings import check_text
from engines.spark.ingest.json_text import INFER_ROWS, guess_json
from engines.spark.ingest.parquet_rows import parquet_ranges
from engines.spark.ingest.quoting import Quotes, check_quotes, record_pattern
from engines.spark.ingest.range_tasks import Format, RangeTask
from engines.spark.ingest.ranges import TARGET, WINDOW, Range, View, line_ranges
from engines.spark.ingest.records import array_items, feature_items, object_lines
from engines.spark.ingest.text_columns import Absence
from engines.spark.ingest.unpack import SourceFile as SourceFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from engines.spark.runtime.session import OpenSession


def give_back() -> None:
    """Returns free memory of Arrow's pool and of the C library to the system. Takes some milliseconds."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc alone
    if trim is not None:
        trim(0)


MAX_WHOLE: Final = 1 << 30
"""Most bytes of a file that cannot be cut: Arrow parses it in one block, whose size it counts in 31 bits."""
SMALL: Final = 1 << 20
"""Bytes of text up to which parsing takes less time than a Spark job, and far less than the start of a worker."""
MAX_HERE: Final = 2 * TARGET
"""Most bytes of a range that is parsed in this process: a longer one could take memory that other requests need."""


_TOLD_FIELDS: Final = 10
_ROW: Final = re.compile(rb"\S")
_RECORD_SIZE: Final = "record-size"


class Planned(NamedTuple):
    """How one file is to be read: its columns, its format, and the ranges that are parsed separately."""

    schema: pa.Schema
    format: Format
    spans: list[Range]
    remarks: tuple[str, ...] = ()
    """Assumptions that were made, to be shown to people."""
    typed: bool = True
    """False if types were to be guessed, and there is no row to guess them from."""


class ParsedRows(NamedTuple):
    """Parsed rows on disk, in input order."""

    schema: pa.Schema
    paths: tuple[Path, ...]
    rows: tuple[int, ...]
    remarks: tuple[str, ...] = ()
    """Assumptions that were made, to be shown to people."""
    tasks: tuple[RangeTask, ...] = ()
    """The task that made each part."""
    bad: tuple[int, ...] = ()
    """Number of records of each part that were set aside."""
    typed: bool = True
    """False if types were to be guessed, and no file has a row; ``schema`` then has only names."""


def read_schema(step: ReadStep) -> pa.Schema | None:
    """Returns the schema that a read step declares, or ``None``. Raises Invalid."""
    if step.schema is not None and step.ddl_schema:
        raise Invalid("schema and ddlSchema are both given", rule="read-one-schema", hint="keep one of them")
    if step.schema is not None and step.schema.fields:
        return to_arrow(step.schema)
    return to_arrow(parse_ddl(step.ddl_schema)) if step.ddl_schema else None


def parse_sources(
    session: OpenSession,
    sources: Sequence[SourceFile],
    step: ReadStep,
    folder: Path,
    required: Mapping[str, Absence] = MappingProxyType({}),
    control: RequestControl | None = None,
    *,
    spread: bool = False,
) -> ParsedRows | None:
    """Parses all sources into parts under ``folder``; returns ``None`` when they are empty.

    ``session`` is opened for a Spark job only; ``spread``: its tasks run on other machines, which share the work.
    ``required``: columns that, if
    present, must have a value in every row, with the reason for messages (rule ``not-null``); in the parts' schema they
    may still be nullable. A file of no bytes is no input, so it does not empty a snapshot; a header without rows, or
    ``[]``, does. Such a file decides no types: if types are guessed, other files decide them. Records that cannot be
    read are set aside if the step says so, within its bounds. Raises Invalid for faults of a file or its description,
    naming file, line and column.
    """
    quarantine = quarantine_of(step.schema)
    wanted = read_schema(step)
    todo: list[RangeTask] = []
    planned = False
    needed: dict[str, Absence] = {}
    untyped: pa.Schema | None = None
    remarks: list[str] = []
    for source in sources:
        if _size(source) == 0:
            continue
        found, format_, spans, said, typed = plan_file(source, step, wanted)
        if not typed:
            untyped = found if untyped is None else untyped
            remarks.append(f"{source.name}: there are no rows, so no types are guessed from it")
            continue
        wanted = found
        needed |= {name: required[name] for name in required if name in _nullable(wanted)}
        wanted = _with_nullable(wanted, required, False)
        planned = True
        remarks += said
        path, name, schema = str(source.path), source.name, wanted
        for span in spans:
            part = str(folder / f"part-{len(todo):06d}.parquet")
            todo.append(
                RangeTask(
                    path=path,
                    name=name,
                    span=span,
                    format=format_,
                    schema=schema,
                    part=part,
                    quarantine=quarantine,
                    needed=needed,
                )
            )
    if not planned and untyped is not None:
        return ParsedRows(untyped, (), (), tuple(remarks), typed=False)
    if wanted is None or not planned:
        return None
    control = control or RequestControl()
    with control.measuring(functools.partial(_how_far, todo)):
        rows, bad, unknown = _run(None if _is_here(todo, spread) else session, tuple(todo), control)
    if quarantine is not None:
        _check_share(quarantine, todo, rows, bad)
    if unknown:
        remarks.append(_passed_over(unknown))
    return ParsedRows(
        _with_nullable(wanted, needed, True),
        tuple(Path(task.part) for task in todo),
        rows,
        tuple(remarks),
        tuple(todo),
        bad,
    )


def _how_far(todo: Sequence[RangeTask]) -> EngineProgress:
    """Reports progress by the parts that are written: a part exists once its range is parsed."""
    sizes = [task.span.stop - task.span.start for task in todo]
    done = (size for task, size in zip(todo, sizes, strict=True) if Path(task.part).exists())
    return EngineProgress(bytes_read=sum(done), bytes_total=sum(sizes))


def _passed_over(unknown: Mapping[str, int]) -> str:
    """Describes the fields that the schema does not name, and in how many records each is."""
    told = [f"{name} ({count})" for name, count in Counter(unknown).most_common(_TOLD_FIELDS)]
    more = f" and {len(unknown) - len(told)} more" if len(unknown) > len(told) else ""
    return f"fields that the schema does not name (records): {', '.join(told)}{more}"


def _nullable(schema: pa.Schema) -> set[str]:
    return {field.name for field in schema if field.nullable}


def _with_nullable(schema: pa.Schema, names: Container[str], nullable: bool) -> pa.Schema:
    fields = [field.with_nullable(nullable) if field.name in names else field for field in schema]
    return pa.schema(fields, schema.metadata)


def empty_sources(sources: Sequence[SourceFile]) -> list[str]:
    """Returns the names of the files that are no input because they have no bytes."""
    return [source.name for source in sources if _size(source) == 0]


def _check_share(quarantine: Quarantine, todo: Sequence[RangeTask], rows: Sequence[int], bad: Sequence[int]) -> None:
    """Raises Invalid for a file of which too large a share of the records was set aside."""
    of_file: dict[str, list[int]] = {}
    for task, good, aside in zip(todo, rows, bad, strict=True):
        counts = of_file.setdefault(task.path, [0, 0])
        counts[0] += good
        counts[1] += aside
    for task, aside in zip(todo, bad, strict=True):
        good, all_bad = of_file[task.path]
        share = 100 * all_bad > quarantine.max_percent * (good + all_bad)
        if aside and (share or not good or all_bad > quarantine.max_rows):
            first = pq.read_table(range_tasks.bad_part(task)).slice(0, 1).to_pylist()[0]
            what = f"{all_bad:,} of {good + all_bad:,} records"
            raise too_many(what, first["reason"], f"{first['file']}:{first['line']}")


def _run(
    session: OpenSession | None, todo: tuple[RangeTask, ...], control: RequestControl
) -> tuple[tuple[int, ...], tuple[int, ...], Mapping[str, int]]:
    """Returns rows of each range, its set-aside records, and all unknown fields. Raises the first fault in order.

    Without a ``session`` the ranges are parsed in this process.
    """
    if not todo:
        return (), (), {}
    if session is None:
        answers = range_tasks.perform_all(todo, os.cpu_count() or 1, control.check)
        if len(todo) > 1:
            give_back()
    else:
        answers = _on_spark(session(), todo)
    for fault in answers.column("fault").drop_null().slice(0, 1):
        raise msgspec.json.decode(fault.as_py(), type=range_tasks.TaskFault).to_invalid()
    unknown: Counter[str] = Counter()
    for text in answers.column("unknown").drop_null().to_pylist():
        unknown.update(msgspec.json.decode(text, type=dict[str, int]))
    return tuple(answers.column("rows").to_pylist()), tuple(answers.column("bad").to_pylist()), unknown


def _is_here(todo: Sequence[RangeTask], spread: bool) -> bool:
    """Whether the ranges are to be parsed in this process.

    CSV, but for a long range, and Parquet, of which a thread holds some rows; not much JSON: parts of it are parsed by
    Python, a thread at a time.
    """
    sizes = [task.span.stop - task.span.start for task in todo]
    if all(isinstance(task.format, range_tasks.CsvFormat) for task in todo) and not spread:
        return max(sizes, default=0) <= MAX_HERE
    if all(isinstance(task.format, range_tasks.ParquetFormat) for task in todo):
        return (
            not spread
            or sum(parquet_rows.estimate_decoded(Path(task.path), task.name, task.span) for task in todo) <= SMALL
        )
    texts = all(not isinstance(task.format, range_tasks.ParquetFormat) for task in todo)
    return texts and sum(sizes) <= SMALL


def _on_spark(spark: SparkSession, todo: tuple[RangeTask, ...]) -> pa.Table:
    """Runs one Spark job with a task per range; returns the results in input order."""
    numbers = spark.range(0, len(todo), 1, len(todo))
    work = functools.partial(range_tasks.perform, tasks=todo)
    declared = "task long, rows long, bad long, unknown binary, fault binary"
    return numbers.mapInArrow(work, declared).toArrow().sort_by("task")


def _size(source: SourceFile) -> int:
    try:
        return source.path.stat().st_size
    except OSError as error:
        raise Environment(f"cannot read {source.name}: {error.strerror}", rule="disk") from error


def plan_file(source: SourceFile, step: ReadStep, wanted: pa.Schema | None) -> Planned:
    """Plans how one nonempty file is read; the types guessed from the first file apply to the others.
    Raises Invalid."""
    declared = read_schema(step) is not None
    with _map_file(source) as view:
        if isinstance(step, ReadParquet):
            footer, columns = parquet_rows.describe_file(source.path, source.name)
            schema = wanted or columns
            return Planned(schema, range_tasks.ParquetFormat(), parquet_ranges(footer, len(view)))
        check_text(view, str(step.__struct_config__.tag), source.name)
        _check_records(view, step, source.record_bytes, source.name)
        match step:
            case ReadCsv():
                return _plan_csv(view, csv_dialect(step), wanted, declared, source)
            case ReadNdJson():
                check_text_options(step.encoding, step.date_format, step.timestamp_format)
                schema = wanted or guess_json(object_lines(_sample(view)), source.name)
                spans = line_ranges(view, 0)
                return Planned(schema, range_tasks.JsonLinesFormat(), spans, typed=declared or bool(schema.names))
            case ReadJson():
                check_text_options(step.encoding, step.date_format, step.timestamp_format)
                return _plan_document(
                    view, range_tasks.JsonDocumentFormat(step.sub_path), wanted, declared, source.name
                )
            case ReadGeoJson() | ReadNdGeoJson():
                format_ = range_tasks.FeaturesFormat(
                    per_line=isinstance(step, ReadNdGeoJson), own_id="column" if declared else "told"
                )
                return _plan_document(view, format_, wanted, declared, source.name)
    raise Invalid(f"unknown read step {type(step).__name__}", rule="read-kind")


def _check_records(view: View, step: ReadStep, most: int, name: str) -> None:
    """Raises Invalid for a record of more than ``most`` bytes; of CSV, for one that is longer without its quotes."""
    if len(view) <= most:
        return
    match step:
        case ReadCsv():
            check_lines(view, most, name, (b"\n", b"\r"))
        case ReadNdJson() | ReadNdGeoJson():
            check_lines(view, most, name)
        case ReadJson(sub_path=path):
            check_items(view, array_items(bytes(view), path, name).texts, most, name)
        case ReadGeoJson():
            check_items(view, feature_items(bytes(view), name).texts, most, name)


def _plan_csv(view: View, dialect: CsvDialect, wanted: pa.Schema | None, declared: bool, source: SourceFile) -> Planned:
    name = source.name
    start = len(BOM) if view[: len(BOM)] == BOM else 0
    quotes = check_quotes(view, start, dialect, name)
    whole = quotes is not Quotes.IN_LINES
    if whole:
        check_quoted(view, start, dialect, source.record_bytes, name)
    dialect = msgspec.structs.replace(dialect, whole=whole, infer=dialect.infer and not declared)
    if dialect.infer and (dialect.spelling.decimal or dialect.spelling.thousands):
        raise Invalid(
            "decimal and thousands are of declared columns, and types are to be guessed here",
            rule="read-option",
            hint="declare the schema; odfctl new NAME FILE writes one",
            place=name,
        )
    head = read_head(view, dialect, wanted, name)
    spans = [Range(head.body, len(view))] if whole else line_ranges(view, head.body)
    if any(span.stop - span.start > MAX_WHOLE for span in spans):
        raise Invalid(
            f"more than {MAX_WHOLE >> 20} MiB that cannot be cut, because quoted values may hold line ends",
            rule="read-whole",
            hint="split the file",
            place=name,
        )
    typed = wanted is not None or (bool(head.names) if not dialect.infer else _ROW.search(view, head.body) is not None)
    return Planned(head.schema, range_tasks.CsvFormat(dialect, head.names), spans, head.remarks, typed)


def _plan_document(view: View, format_: Format, wanted: pa.Schema | None, declared: bool, name: str) -> Planned:
    schema = wanted
    if schema is None:
        features = isinstance(format_, range_tasks.FeaturesFormat)
        guessing = msgspec.structs.replace(format_, own_id="ignored") if features else format_
        schema = guess_json(range_tasks.records_of(guessing, bytes(view), name, INFER_ROWS), name)
        if features:
            schema = pa.schema(sorted(schema, key=lambda field: field.name))
    return Planned(schema, format_, [Range(0, len(view))], typed=declared or bool(schema.names))


def _sample(view: View) -> bytes:
    end = 0
    for _ in range(INFER_ROWS):
        newline = view.find(b"\n", end)
        if newline < 0:
            return bytes(view[:])
        end = newline + 1
    return bytes(view[:end])


@contextlib.contextmanager
def _map_file(source: SourceFile) -> Iterator[mmap.mmap]:
    try:
        file = source.path.open("rb")
    except OSError as error:
        raise Environment(f"cannot read {source.name}: {error.strerror}", rule="disk") from error
    with file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        yield view


def check_lines(view: View, most: int, place: str, ends: Sequence[bytes] = (b"\n",)) -> None:
    """Raises Invalid, with the line, for a line of more than ``most`` bytes.

    Looks back from where the longest line would end, so that few of the bytes are read.
    """
    at = 0
    while len(view) - at > most:
        end = max(view.rfind(end, at, at + most + 1) for end in ends)
        if end < 0:
            after = min((found for end in ends if (found := view.find(end, at)) >= 0), default=len(view))
            raise _too_long(view, at, after - at, most, place)
        at = end + 1


def check_quoted(view: View, start: int, dialect: CsvDialect, most: int, place: str) -> None:
    """Raises Invalid, with its first line, for a record of CSV whose quoted values make it longer than ``most``."""
    for record in re.compile(record_pattern(dialect)).finditer(view, start) if len(view) > most else ():
        if record.end() - record.start() > most:
            raise _too_long(view, record.start(), record.end() - record.start(), most, place)


def check_items(view: View, items: Sequence[bytes | msgspec.Raw], most: int, place: str) -> None:
    """Raises Invalid for an element of a document of more than ``most`` bytes."""
    longest = max(items, key=len, default=b"")
    if len(longest) > most:
        raise _too_long(view, view.find(bytes(longest)), len(longest), most, place)


def _too_long(view: View, at: int, length: int, most: int, place: str) -> Invalid:
    before = sum(view[start : min(start + WINDOW, at)].count(b"\n") for start in range(0, at, WINDOW))
    return Invalid(
        f"a record of {size(length)}, and {size(most)} is the most",
        rule=_RECORD_SIZE,
        hint="is another kind of file, separator or quote meant? ingest.record-bytes of the settings allows more, "
        "of which the engine needs several times as much memory",
        place=f"{place}:{before + 1}",
    )
