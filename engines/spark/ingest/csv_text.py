"""CSV text to rows of exact types, by pyarrow.csv; a fault names file, line, column, the text, and what to do.

Pure over bytes: the header and the columns of a file are read once by who plans, then every range is parsed with them.
Columns of times are read as text first, for pyarrow takes either zoned or naive times, and a file may hold both.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.csv as pc_csv

from chain.errors import Invalid
from engines.spark.ingest.dialect import CsvDialect
from engines.spark.ingest.ranges import View
from engines.spark.ingest.texts import Misfit, check_present, misfit_fault, to_instants, type_name

if TYPE_CHECKING:
    import _csv

INFER_ROWS: Final = 1000
"""Rows looked at to guess types, as the reference does."""
MAX_HEAD: Final = 4 << 20
"""Bytes in which the header and the sampled rows must end."""
_BAD_VALUE: Final = re.compile(r"In CSV column #(\d+): Row #(\d+): ")


class Head:
    """What is known of a CSV file before its rows are parsed.

    ``names`` are its columns in file order; ``schema`` holds the columns wanted, in the order wanted; rows begin at
    byte ``body``.
    """

    def __init__(self, names: Sequence[str], schema: pa.Schema, body: int) -> None:
        self.names = tuple(names)
        self.schema = schema
        self.body = body


def read_head(view: View, dialect: CsvDialect, wanted: pa.Schema | None, place: str) -> Head:
    """Columns of a file that is not empty. Raises Invalid, naming columns, when they are not those ``wanted``."""
    skip = 3 if view[:3] == b"\xef\xbb\xbf" else 0
    first, body = _first_record(view, skip, dialect, place)
    if not dialect.header:
        if wanted is not None:
            return Head(wanted.names, wanted, skip)
        names = [f"column_{number}" for number in range(1, len(first) + 1)]
        return Head(names, _guess(view, skip, names, dialect, place), skip)
    repeated = sorted({name for name in first if first.count(name) > 1})
    if repeated:
        raise Invalid(f"columns named twice: {', '.join(repeated)}", rule="read-columns", place=f"{place}:1")
    if wanted is None:
        return Head(first, _guess(view, body, first, dialect, place), body)
    return Head(_matched(first, wanted.names, f"{place}:1"), wanted, body)


def _matched(header: list[str], wanted: list[str], place: str) -> list[str]:
    """Names of the file's columns as the schema calls them.

    Equal sets match by name. Else columns match by place, as in the reference, so long as no name stands in both at
    different places: that would be a silent swap.
    """
    if set(header) == set(wanted):
        return header
    missing = [name for name in wanted if name not in header]
    extra = [name for name in header if name not in wanted]
    swapped = [name for index, name in enumerate(wanted[: len(header)]) if name in header and header[index] != name]
    if len(header) == len(wanted) and not swapped:
        return wanted
    parts = [f"missing {', '.join(map(repr, missing))}"] if missing else []
    parts += [f"not in the schema: {', '.join(map(repr, extra))}"] if extra else []
    raise Invalid(
        f"the header has {len(header)} columns and the schema {len(wanted)}; {'; '.join(parts)}",
        rule="read-columns",
        hint="make the read schema list the columns of the file",
        place=place,
    )


def _first_record(view: View, start: int, dialect: CsvDialect, place: str) -> tuple[list[str], int]:
    """The first record that is not an empty line, and the byte after it."""
    text = io.StringIO(_utf8(bytes(view[start : start + MAX_HEAD]), place), newline="")
    taken: list[str] = []

    def counted() -> Iterator[str]:
        for line in text:
            taken.append(line)
            yield line

    try:
        for record in _reader(counted(), dialect):
            if record:
                return record, start + len("".join(taken).encode())
    except csv.Error as error:
        raise Invalid(f"the first line is not CSV: {error}", rule="read-csv", place=f"{place}:1") from error
    return [], len(view)


def _guess(view: View, start: int, names: Sequence[str], dialect: CsvDialect, place: str) -> pa.Schema:
    """Strings, unless inference is asked for: then the types of the first rows."""
    strings = pa.schema([(name, pa.string()) for name in names])
    if not dialect.infer:
        return strings
    sample = bytes(view[start : start + MAX_HEAD])
    newline = sample.rfind(b"\n")
    if len(view) - start > MAX_HEAD and newline >= 0:
        sample = sample[: newline + 1]
    sample = b"\n".join(sample.split(b"\n", INFER_ROWS)[:INFER_ROWS]) if not dialect.whole else sample
    if not sample.strip():
        return strings
    try:
        guessed = _read(sample, names, {}, dialect, []).schema
    except pa.ArrowInvalid as error:
        raise Invalid(
            f"types cannot be guessed: {error}", rule="read-infer", hint="give a schema", place=place
        ) from error
    return pa.schema([(field.name, _plain(field.type)) for field in guessed])


def _plain(type_: pa.DataType) -> pa.DataType:
    """Guessed types as the format knows them; a column without any value is text."""
    if pa.types.is_timestamp(type_):
        return pa.timestamp("ms", "UTC")
    return pa.string() if pa.types.is_null(type_) or pa.types.is_binary(type_) or pa.types.is_time(type_) else type_


def parse_csv(data: bytes, head: Head, dialect: CsvDialect, place: str, lines_before: int = 0) -> pa.Table:
    """All records of ``data`` as a table of ``head.schema``.

    Raises Invalid; its line is counted from the file's start, ``lines_before`` lines before this range.
    """
    if not data.strip():
        return head.schema.empty_table()
    bad: list[pc_csv.InvalidRow] = []
    types = {field.name: _read_as(field, place) for field in head.schema}
    try:
        table = _read(data, head.names, types, dialect, bad)
    except pa.ArrowInvalid as error:
        raise _explained(error, bad, data, head, dialect, place, lines_before) from error
    columns = []
    for field in head.schema:
        column = table.column(field.name)
        try:
            check_present(column, field)
            columns.append(
                to_instants(column, field.type) if pa.types.is_timestamp(field.type) else column.cast(field.type)
            )
        except Misfit as misfit:
            line = lines_before + _line_of(data, misfit.row + 1, dialect)
            raise misfit_fault(f"{place}:{line}", field.name, field.type, misfit.value) from misfit
    schema = pa.schema([field.with_type(column.type) for field, column in zip(head.schema, columns, strict=True)])
    return pa.Table.from_arrays(columns, schema=schema)


def _read_as(field: pa.Field, place: str) -> pa.DataType:
    type_ = field.type
    if pa.types.is_nested(type_) or pa.types.is_duration(type_):
        raise Invalid(
            f"column {field.name!r}: CSV cannot hold a {type_name(type_)}",
            rule="read-csv-type",
            hint="declare it String and build the value in preprocess",
            place=place,
        )
    if pa.types.is_timestamp(type_):
        return pa.string()
    return pa.float32() if pa.types.is_float16(type_) else type_


def _read(
    data: bytes,
    names: Sequence[str],
    types: dict[str, pa.DataType],
    dialect: CsvDialect,
    bad: list[pc_csv.InvalidRow],
) -> pa.Table:
    def keep(row: pc_csv.InvalidRow) -> str:
        bad.append(row)
        return "error"

    return pc_csv.read_csv(
        pa.BufferReader(data),
        pc_csv.ReadOptions(column_names=list(names), use_threads=False, block_size=len(data) + 1),
        pc_csv.ParseOptions(
            delimiter=dialect.separator,
            quote_char=dialect.quote,
            escape_char=dialect.escape or False,
            newlines_in_values=dialect.whole,
            invalid_row_handler=keep,
        ),
        pc_csv.ConvertOptions(
            column_types=types,
            null_values=[dialect.null] if dialect.null == "" else ["", dialect.null],
            strings_can_be_null=True,
            true_values=["true", "True", "TRUE", "1"],
            false_values=["false", "False", "FALSE", "0"],
        ),
    )


def _explained(
    error: pa.ArrowInvalid,
    bad: list[pc_csv.InvalidRow],
    data: bytes,
    head: Head,
    dialect: CsvDialect,
    place: str,
    lines_before: int,
) -> Invalid:
    if bad:
        row = bad[0]
        line = lines_before + _line_of(data, row.number or 1, dialect)
        return Invalid(
            f"{row.actual_columns} columns where {row.expected_columns} are expected: {row.text[:80]!r}",
            rule="read-columns",
            hint=f"the columns are {', '.join(head.names)}; put quotes around values that hold {dialect.separator!r}",
            place=f"{place}:{line}",
        )
    match = _BAD_VALUE.match(str(error))
    if match is None:
        return Invalid(f"not CSV: {error}", rule="read-csv", place=place)
    column = int(match[1])
    line, record = _record(data, int(match[2]), dialect)
    name = head.names[column]
    value = record[column] if column < len(record) else "?"
    return misfit_fault(f"{place}:{lines_before + line}", name, head.schema.field(name).type, value)


def _line_of(data: bytes, row: int, dialect: CsvDialect) -> int:
    """Line on which record ``row`` begins."""
    return _record(data, row, dialect)[0]


def _record(data: bytes, row: int, dialect: CsvDialect) -> tuple[int, list[str]]:
    """Record ``row`` (from 1, empty lines not counted) and the line, from 1, it begins on. Only for messages."""
    text = io.StringIO(data.decode("utf-8", "replace"), newline="")
    reader = _reader(text, dialect)
    seen, line = 0, 1
    try:
        for record in reader:
            if record:
                seen += 1
                if seen == row:
                    return line, record
            line = reader.line_num + 1
    except csv.Error:
        pass
    return line, []


def _reader(text: Iterable[str], dialect: CsvDialect) -> _csv.Reader:
    return csv.reader(text, delimiter=dialect.separator, quotechar=dialect.quote, escapechar=dialect.escape)


def _utf8(data: bytes, place: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if error.start >= len(data) - 4 and len(data) == MAX_HEAD:
            return data[: error.start].decode()
        line = data.count(b"\n", 0, error.start) + 1
        raise Invalid(
            f"not UTF-8: byte {data[error.start]:#04x}",
            rule="read-encoding",
            hint="convert the file to utf8",
            place=f"{place}:{line}",
        ) from error
