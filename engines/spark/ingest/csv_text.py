"""Parses CSV text to rows of exact types with pyarrow.csv; a fault names file, line, column, text, and the remedy.

Pure over bytes: the columns of a file are determined once, from its head, then every range is parsed with them. Columns
of times are read as text first, for pyarrow takes either zoned or naive times, and a file may hold both.

A header is compared with the schema. Equal names match wherever they stand, also if only case, blanks and punctuation
differ. Columns with other names in the file are taken by position, as in the reference, and reported, provided others
match and none stands in another's position; a header in which nothing matches is of another file, or is a row of data.
"""

from __future__ import annotations

import bisect
import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv
from pyarrow.csv import InvalidRow

from chain.data.uuids import is_marked, named
from chain.errors import Invalid
from chain.repeats import repeated
from chain.wording import a, agree, listed, plural, some
from engines.spark.ingest.dialect import CsvDialect
from engines.spark.ingest.quoting import record_end, unescape
from engines.spark.ingest.ranges import View
from engines.spark.ingest.text_columns import (
    Misfit,
    RowFault,
    check_present,
    check_size,
    check_utf8,
    misfit_fault,
    text_of,
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


INFER_ROWS: Final = 1000
"""Rows from which types are guessed, as in the reference."""
MAX_HEAD: Final = 4 << 20
"""Bytes within which the header and the sampled rows must end."""
BOM: Final = b"\xef\xbb\xbf"
MAX_DIGITS: Final = 38
_EXACT_DIGITS: Final = 15
"""Whole numbers of up to so many digits are exact as a double."""
_ALIKE: Final = 3
"""Shortest name that is taken for a shorter form of a name which begins with it."""
_SEPARATORS: Final = ";\t|,"


def read_head(view: View, dialect: CsvDialect, wanted: pa.Schema | None, place: str) -> CsvHead:
    """Reads the header of a nonempty file. Raises Invalid, naming columns, if they are not those ``wanted``."""
    skip = len(BOM) if view[: len(BOM)] == BOM else 0
    first, body = _first_record(view, skip, dialect, place)
    here = f"{place}:1"
    check_size(first if dialect.header else [""] * len(first), here)
    if not dialect.header:
        if wanted is None:
            names = [f"column_{number}" for number in range(1, len(first) + 1)]
            return CsvHead(tuple(names), _guess(view, skip, names, dialect, place), skip)
        if first and [_plain(name) for name in first] == [_plain(name) for name in wanted.names]:
            raise Invalid(
                "the first line names the columns, and would be read as a row of data",
                rule="read-header",
                hint="say `header: true` in the read step",
                place=here,
            )
        return CsvHead(tuple(wanted.names), wanted, skip)
    _check_names(first, dialect, wanted, here)
    if wanted is None:
        return CsvHead(tuple(first), _guess(view, body, first, dialect, place), body)
    names = _match_names(first, wanted, dialect, here)
    renamed = [f"{one!r} as {other!r}" for one, other in zip(first, names, strict=True) if _plain(one) != _plain(other)]
    remarks = (f"{place}: columns matched by their position: {some(renamed)}",) if renamed else ()
    return CsvHead(tuple(names), wanted, body, remarks)


def _check_names(header: list[str], dialect: CsvDialect, wanted: pa.Schema | None, here: str) -> None:
    if not header:
        raise Invalid(
            "no header: all lines are empty",
            rule="read-header",
            hint="check that the file is complete; an empty file is skipped",
            place=here,
        )
    if twice := repeated(header):
        raise Invalid(
            f"columns named twice: {listed(twice)}",
            rule="read-columns",
            hint="say `header: false`, name all columns in the schema, and drop the first row in preprocess",
            place=here,
        )
    other = next((each for each in _SEPARATORS if len(header) == 1 and each in header[0]), None)
    if other is not None and other != dialect.separator and (wanted is None or len(wanted.names) > 1):
        raise Invalid(
            f"the header is one column, {header[0][:80]!r}",
            rule="read-separator",
            hint=f"if the columns are separated by {other!r}, say so: `separator: {other!r}`",
            place=here,
        )
    if wanted is None and not all(name.strip() for name in header):
        number = next(number for number, name in enumerate(header, 1) if not name.strip())
        raise Invalid(
            f"column {number} of the header has no name",
            rule="read-columns",
            hint="name all columns in a schema; a separator at the end of each line makes a column too",
            place=here,
        )


def _match_names(header: list[str], schema: pa.Schema, dialect: CsvDialect, here: str) -> list[str]:
    """Returns the schema's names for the file's columns, in the order of the file. Raises Invalid."""
    wanted: list[str] = schema.names
    if set(header) == set(wanted):
        return header
    plain, there = {_plain(name): name for name in wanted}, [_plain(name) for name in header]
    if len(plain) == len(wanted) and sorted(there) == sorted(plain):
        return [plain[name] for name in there]
    known = set(there)
    missing = [name for short, name in plain.items() if short not in known]
    extra = [name for name, short in zip(header, there, strict=True) if short not in plain]
    parts = [f"missing {listed(missing)}"] if missing else []
    parts += [f"not in the schema: {listed(extra)}"] if extra else []
    hint = "call the columns of the read schema as the file does, and rename them in preprocess"
    if len(header) != len(wanted):
        is_header = any(_plain(name) in plain for name in header)
        raise Invalid(
            f"the header has {plural(len(header), 'column')} and the schema {len(wanted)}; {'; '.join(parts)}",
            rule="read-columns",
            hint="make the read schema list the columns of the file"
            if is_header
            else "if this line is not the header, declare the lines before it: `skipRows: 1`, or `comment: '#'`",
            place=here,
        )
    among = _Alike(wanted)
    swapped = [
        f"{one[:80]!r} where the schema has {other!r}"
        for one, other in zip(header, wanted, strict=True)
        if not _alike(one, other) and one in among
    ]
    if swapped:
        found = "; ".join([some(swapped, between="; "), *parts])
        raise Invalid(f"the header has {found}", rule="read-columns", hint=hint, place=here)
    if not any(map(_alike, header, wanted)):
        if _is_data(header, schema, dialect):
            raise Invalid(
                f"the first line is a row of data, and would be lost as a header: {', '.join(header)[:80]!r}",
                rule="read-header",
                hint="say `header: false` in the read step",
                place=here,
            )
        raise Invalid(
            f"no column of the header is in the schema; {'; '.join(parts)}", rule="read-columns", hint=hint, place=here
        )
    return wanted


def _plain(name: str) -> str:
    """Returns a name without case, blanks and punctuation; a name of nothing else is returned as it is."""
    return "".join(filter(str.isalnum, name.casefold())) or name


def _alike(one: str, other: str) -> bool:
    short, long = sorted((_plain(one), _plain(other)), key=len)
    return short == long or (len(short) >= _ALIKE and long.startswith(short))


class _Alike:
    """Names, to be asked whether one of them is alike (``_alike``), without comparing it with each."""

    def __init__(self, names: Sequence[str]) -> None:
        self._sorted = sorted({_plain(name) for name in names})
        self._there = frozenset(self._sorted)
        self._lengths = sorted({len(name) for name in self._sorted if len(name) >= _ALIKE})

    def __contains__(self, name: str) -> bool:
        plain = _plain(name)
        if plain in self._there:
            return True
        after = bisect.bisect_left(self._sorted, plain)
        if len(plain) >= _ALIKE and after < len(self._sorted) and self._sorted[after].startswith(plain):
            return True
        return any(plain[:length] in self._there for length in self._lengths if length < len(plain))


def _is_data(values: list[str], schema: pa.Schema, dialect: CsvDialect) -> bool:
    """Whether the values fit the schema, if it is one that some texts do not fit."""
    line = io.StringIO(newline="")
    csv.writer(line, delimiter=dialect.separator, quotechar=dialect.quote).writerow(values)
    typed = [field for field, value in zip(schema, values, strict=True) if value and not pa.types.is_string(field.type)]
    try:
        parse_csv(line.getvalue().encode(), CsvHead(tuple(schema.names), schema, 0), dialect, "")
    except Invalid:
        return False
    return bool(typed)


def _first_record(view: View, start: int, dialect: CsvDialect, place: str) -> tuple[list[str], int]:
    """Returns the first record that is not an empty line, and the position of the byte after it."""
    while start < len(view):
        end = record_end(view, start, dialect)
        if end - start > MAX_HEAD:
            raise Invalid(f"the first line is longer than {MAX_HEAD} bytes", rule="read-csv", place=f"{place}:1")
        text = text_of(unescape(bytes(view[start:end]), dialect), place)
        try:
            values = next(
                csv.reader(io.StringIO(text, newline=""), delimiter=dialect.separator, quotechar=dialect.quote)
            )
        except csv.Error as error:
            raise Invalid(f"the first line is not CSV: {error}", rule="read-csv", place=f"{place}:1") from error
        if values:
            return values, end
        start = end
    return [], len(view)


def _guess(view: View, start: int, names: Sequence[str], dialect: CsvDialect, place: str) -> pa.Schema:
    """Returns a schema of strings, or, if inference is requested, with types guessed from the first rows."""
    strings = pa.schema([(name, pa.string()) for name in names])
    sample = unescape(_sample(view, start, dialect), dialect) if dialect.infer else b""
    if not sample.strip():
        return strings
    whole = msgspec.structs.replace(dialect, escape=None, infer=False, whole=True)
    try:
        texts = read_values(sample, names, dict.fromkeys(names, pa.string()), whole, [])
        guessed = read_values(sample, names, {}, whole, []).schema
    except pa.ArrowInvalid as error:
        raise Invalid(
            f"types cannot be guessed: {error}", rule="read-infer", hint="give a schema", place=place
        ) from error
    return pa.schema([(field.name, _guess_type(field.type, texts.column(field.name))) for field in guessed])


def _sample(view: View, start: int, dialect: CsvDialect) -> bytes:
    end = start
    for _ in range(INFER_ROWS):
        if end >= len(view) or end - start > MAX_HEAD:
            break
        end = record_end(view, end, dialect)
    return bytes(view[start:end])


def _guess_type(type_: pa.DataType, texts: pa.ChunkedArray) -> pa.DataType:
    """Returns a type of the format that keeps every text exactly; a column without any value is text."""
    if pa.types.is_timestamp(type_):
        return pa.timestamp("ms", "UTC")
    if pa.types.is_null(type_) or pa.types.is_binary(type_) or pa.types.is_time(type_):
        return pa.string()
    if not (pa.types.is_integer(type_) or pa.types.is_floating(type_)):
        return type_
    if _any(texts, NO_NUMBER):
        return pa.string()
    if pa.types.is_integer(type_) or not _any(texts, rf"^\s*-?\d{{{_EXACT_DIGITS + 1},}}\s*$"):
        return type_
    if _any(texts, r"[^-\d\s]") or _any(texts, rf"\d{{{MAX_DIGITS + 1},}}"):
        return pa.string()
    return pa.decimal128(MAX_DIGITS, 0)


def _any(texts: pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())
