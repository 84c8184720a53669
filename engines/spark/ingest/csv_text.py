"""Parses CSV text to rows of exact types with pyarrow.csv; a fault names file, line, column, text, and the remedy.

Pure over bytes: the columns of a file are determined once (``csv_head``), then every range is parsed with them. Columns
of times are read as text first, for pyarrow takes either zoned or naive times, and a file may hold both.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv
from pyarrow.csv import InvalidRow

from chain.data.uuids import is_marked, named
from chain.errors import Invalid
from chain.wording import a, agree, plural
from engines.spark.ingest.dialect import CsvDialect
from engines.spark.ingest.quoting import unescape
from engines.spark.ingest.text_columns import (
    Misfit,
    RowFault,
    check_present,
    check_utf8,
    misfit_fault,
    to_instants,
    to_uuids,
    type_name,
)

if TYPE_CHECKING:
    import _csv

_BAD_VALUE: Final = re.compile(r"In CSV column #(\d+): Row #(\d+): ")
NO_NUMBER: Final = r"^\s*(?:[+-]?0[0-9xX]|\+)"
"""Matches texts that would change if they were read as numbers and written again."""
_HEXADECIMAL: Final = r"^\s*[+-]?0[xX]"
_TOO_LARGE: Final = r"^\s*[+-]?[\d.]+(?:[eE][+-]?\d+)?\s*$"


class CsvHead(NamedTuple):
    """The known properties of a CSV file before its rows are parsed.

    ``names`` are its columns in file order; ``schema`` holds the wanted columns, in the wanted order; rows begin at
    byte ``body``. ``remarks``: assumptions that were made, to be shown to people.
    """

    names: tuple[str, ...]
    schema: pa.Schema
    body: int
    remarks: tuple[str, ...] = ()
    located: bool = True
    """Whether faults are reported with line and value. If not, only those of the first record are, and others with the
    record's number alone: to find a line takes work in proportion to the text before it."""


def parse_csv(data: bytes, head: CsvHead, dialect: CsvDialect, place: str, lines_before: int = 0) -> pa.Table:
    """Parses all records of ``data`` as a table of ``head.schema``.

    Raises Invalid; its line is counted from the file's start, ``lines_before`` lines before this range.
    """
    data = unescape(data, dialect)
    if not data.strip(b"\r\n"):
        return head.schema.empty_table()
    bad: list[InvalidRow] = []
    types = {field.name: _read_as(field, place, dialect) for field in head.schema}
    try:
        table = read_values(data, head.names, types, dialect, bad)
    except pa.ArrowInvalid as error:
        raise _explain(error, bad, data, head, dialect, place, lines_before) from error
    columns = []
    for field in head.schema:
        column = table.column(field.name)
        try:
            if dialect.infer:
                _check_guess(data, head, field, dialect)
            _check_numbers(data, head, column, field, dialect)
            check_present(column, field)
            columns.append(to_uuids(column) if is_marked(field) else _convert(column, field.type, dialect))
        except Misfit as misfit:
            line = lines_before + (line_of_record(data, misfit.row + 1, dialect) if head.located else 0)
            if dialect.infer and misfit.value:
                raise guessed_wrongly(f"{place}:{line}", field, misfit.value) from misfit
            fault = misfit_fault(f"{place}:{line}", field.name, named(field).type, misfit.value)
            if misfit.value and dialect.spelling.applies(field.type):
                fault.hint = dialect.spelling.hint(misfit.value, field.type) or fault.hint
            raise RowFault(fault, misfit.row) from misfit
    schema = pa.schema([field.with_type(column.type) for field, column in zip(head.schema, columns, strict=True)])
    return pa.Table.from_arrays(columns, schema=schema)


def _convert(column: pa.ChunkedArray, kind: pa.DataType, dialect: CsvDialect) -> pa.ChunkedArray:
    """Converts a column of text to a type. Raises Misfit."""
    if dialect.spelling.applies(kind):
        return dialect.spelling.values(column, kind)
    return to_instants(column, kind) if pa.types.is_timestamp(kind) else column.cast(kind)


def _check_guess(data: bytes, head: CsvHead, field: pa.Field, dialect: CsvDialect) -> None:
    """Raises Misfit at the first text that would change as a number, in a column whose type was guessed."""
    if not (pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_decimal(field.type)):
        return
    texts = read_values(data, head.names, dict.fromkeys(head.names, pa.string()), dialect, [], only=[field.name])
    found = pc.index(pc.match_substring_regex(texts.column(0), NO_NUMBER), True).as_py()
    if found >= 0:
        raise Misfit(found, texts.column(0)[found].as_py())


def _check_numbers(data: bytes, head: CsvHead, column: pa.ChunkedArray, field: pa.Field, dialect: CsvDialect) -> None:
    """Raises Misfit for texts that only pyarrow takes for numbers (hexadecimal), and for numbers that a
    double cannot hold."""
    if pa.types.is_string(column.type):
        return
    if pa.types.is_integer(field.type) and _may_be_hexadecimal(data):
        wrong = _HEXADECIMAL
    elif pa.types.is_floating(field.type) and pc.any(pc.is_inf(column)).as_py():
        wrong = _TOO_LARGE
    else:
        return
    texts = read_values(data, head.names, dict.fromkeys(head.names, pa.string()), dialect, [], only=[field.name])
    bad = pc.match_substring_regex(texts.column(0), wrong)
    if wrong is _TOO_LARGE:
        bad = pc.and_(bad, pc.is_inf(column))
    found = pc.index(bad, True).as_py()
    if found >= 0:
        raise Misfit(found, texts.column(0)[found].as_py())


def _may_be_hexadecimal(data: bytes) -> bool:
    """One letter is found far faster than two."""
    return (b"x" in data and b"0x" in data) or (b"X" in data and b"0X" in data)


def guessed_wrongly(place: str, field: pa.Field, value: str) -> Invalid:
    """Makes the error for a value of a column whose type was guessed from the first rows."""
    return Invalid(
        f"column {field.name!r}: {value[:80]!r} is not {a(type_name(field.type))}, as the first rows made it look",
        rule="read-infer",
        hint="give a schema; String keeps leading zeros and signs",
        place=place,
    )


def _read_as(field: pa.Field, place: str, dialect: CsvDialect) -> pa.DataType:
    type_ = field.type
    if pa.types.is_nested(type_) or pa.types.is_duration(type_):
        raise Invalid(
            f"column {field.name!r}: CSV cannot hold {a(type_name(type_))}",
            rule="read-csv-type",
            hint="declare it String and build the value in preprocess",
            place=place,
        )
    if pa.types.is_timestamp(type_) or dialect.spelling.applies(type_) or is_marked(field):
        return pa.string()
    return pa.float32() if pa.types.is_float16(type_) else type_


def read_values(
    data: bytes,
    names: Sequence[str],
    types: Mapping[str, pa.DataType],
    dialect: CsvDialect,
    bad: list[InvalidRow],
    only: Sequence[str] = (),
    skip: bool = False,
) -> pa.Table:
    """Reads text without escapes; rows of another length go to ``bad``, or raise ArrowInvalid without ``skip``."""

    def keep(row: InvalidRow) -> str:
        bad.append(row)
        return "skip" if skip else "error"

    return pc_csv.read_csv(
        pa.BufferReader(data),
        pc_csv.ReadOptions(column_names=list(names), use_threads=False, block_size=len(data) + 1),
        pc_csv.ParseOptions(
            delimiter=dialect.separator,
            quote_char=dialect.quote,
            newlines_in_values=dialect.whole,
            invalid_row_handler=keep,
        ),
        pc_csv.ConvertOptions(
            column_types=dict(types),
            include_columns=list(only),
            null_values=["", *filter(None, (dialect.null, *dialect.words))],
            strings_can_be_null=True,
            true_values=["true", "True", "TRUE", "1"],
            false_values=["false", "False", "FALSE", "0"],
        ),
    )


def _explain(
    error: pa.ArrowInvalid,
    bad: list[InvalidRow],
    data: bytes,
    head: CsvHead,
    dialect: CsvDialect,
    place: str,
    lines_before: int,
) -> Invalid:
    if bad:
        row = bad[0]
        line = lines_before + (line_of_record(data, row.number or 1, dialect) if head.located else 0)
        fault = count_fault(row, head.names, dialect, f"{place}:{line}")
        return fault if row.number is None else RowFault(fault, row.number - 1)
    check_utf8(data, place, lines_before)
    match = _BAD_VALUE.match(str(error))
    if match is None:
        return Invalid(f"not CSV: {error}", rule="read-csv", place=place)
    column = int(match[1])
    wanted = head.located or int(match[2]) == 1
    line, record = _record(data, int(match[2]), dialect) if wanted else (0, [])
    name = head.names[column]
    value = record[column] if column < len(record) else "?"
    here, field = f"{place}:{lines_before + line}", head.schema.field(name)
    fault = guessed_wrongly(here, field, value) if dialect.infer else misfit_fault(here, name, field.type, value)
    return RowFault(fault, int(match[2]) - 1)


def count_fault(row: InvalidRow, names: Sequence[str], dialect: CsvDialect, place: str) -> Invalid:
    """Makes the error for a record that has more or fewer values than there are columns."""
    are = agree(row.expected_columns, "is", "are")
    return Invalid(
        f"{plural(row.actual_columns, 'column')} where {row.expected_columns} {are} expected: {row.text[:80]!r}",
        rule="read-columns",
        hint=f"the columns are {', '.join(names)}; put quotes around values that hold {dialect.separator!r}",
        place=place,
    )


def line_of_record(data: bytes, row: int, dialect: CsvDialect) -> int:
    """Returns the line on which record ``row`` begins."""
    return _record(data, row, dialect)[0]


def _record(data: bytes, row: int, dialect: CsvDialect) -> tuple[int, list[str]]:
    """Returns record ``row`` (from 1, not counting empty lines) and the line, from 1, on which it
    begins. Only for messages."""
    text = io.StringIO(data.decode("utf-8", "replace"), newline="")
    records = reader(text, dialect)
    seen, line = 0, 1
    try:
        for record in records:
            if record:
                seen += 1
                if seen == row:
                    return line, record
            line = records.line_num + 1
    except csv.Error:
        pass
    return line, []


def reader(text: Iterable[str], dialect: CsvDialect) -> _csv.Reader:
    """Returns a reader of text without escapes. Only for heads and messages."""
    return csv.reader(text, delimiter=dialect.separator, quotechar=dialect.quote)
