"""Finds the records of a text that cannot be read, so that all others can be.

Runs only after a text was refused. The text is cut into records, and the parser tries each distinct text of a column
once: this finds most bad records at once, with the columns at fault. The rest is parsed as usual. If the parser still
refuses it, it is halved, and refused halves are halved again, until each refused record stands alone. So a record is
bad exactly when the parser refuses it alone. The work grows with the text, and with the number of different texts that
cannot be read. Pure over bytes.

A record has one text for each column. Records that share a text share one trial, and of texts that the parser surely
refuses alike only one is tried. The verdict on a text is the parser's on a record that holds nothing else, so its place
in the file does not matter.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.csv import InvalidRow

from chain.errors import Invalid
from chain.wording import plural
from engines.spark.ingest import csv_text, json_text
from engines.spark.ingest.dialect import CsvDialect
from engines.spark.ingest.json_text import JsonTable
from engines.spark.ingest.quoting import unescape
from engines.spark.ingest.record_split import RecordCut
from engines.spark.ingest.records import object_lines
from engines.spark.ingest.text_columns import NOT_NULL, NULL_KEY, Absence, RowFault, misfit_fault

_SIGNS: Final = "0123456789+-"
_FLOATS: Final = _SIGNS + ".eE" + "infatyINFATY"
_FOREIGN: Final = b"?"
"""A text that is no value of any type whose values consist of few characters."""
_NULL: Final = b"null"
_KINDS: Final = {
    **{bytes([digit]): b"0" for digit in b"-0123456789"},
    b"t": b"true",
    b"f": b"true",
    b'"': b'""',
    b"{": b"{}",
    b"[": b"[]",
}
"""First byte of a JSON value -> a value of the same kind."""


class Texts(NamedTuple):
    """The texts of columns in some records.

    ``numbers``: those records; ``columns``: by name, a text (binary, never null) for each record; ``refused``: records
    with another number of values, with the fault; ``unclear``: records that cannot be taken apart into texts.
    """

    numbers: np.ndarray
    columns: Mapping[str, pa.Array]
    refused: dict[int, Invalid]
    unclear: np.ndarray


class Cells(Protocol):
    """Takes records of a format apart into texts, and tries single texts."""

    def texts(self, cut: RecordCut, numbers: np.ndarray, names: Sequence[str]) -> Texts:
        """Returns the texts of the records with these numbers."""

    def alike(self, field: pa.Field, texts: pa.Array, /) -> pa.Array:
        """Returns for each text a substitute that the parser accepts as ``field`` exactly when it accepts the text."""

    def alone(self, field: pa.Field, texts: pa.Array, /) -> pa.Array:
        """Returns for each text a record with only that text in ``field``."""

    def parse(self, data: bytes, schema: pa.Schema) -> JsonTable:
        """Parses records made by ``alone``, for a schema of one field. Raises Invalid."""

    def explain(self, field: pa.Field, text: bytes, fault: Invalid, /) -> Invalid:
        """Describes the fault of a text, given the parser's ``fault`` of its substitute."""


class CsvCells(NamedTuple):
    """Splits CSV records; ``names``: columns in the order of the file."""

    dialect: CsvDialect
    names: tuple[str, ...]
    place: str

    def texts(self, cut: RecordCut, numbers: np.ndarray, names: Sequence[str]) -> Texts:
        """Returns the texts of records. If the parser sees more or fewer records than were cut, all are unclear."""
        data = unescape(cut.some(numbers), self.dialect)
        if not len(numbers) or not data.strip(b"\r\n"):
            return _unclear(numbers, names)
        bad: list[InvalidRow] = []
        binary = dict.fromkeys(self.names, pa.binary())
        table = csv_text.read_values(data, self.names, binary, self.dialect, bad, names, skip=True)
        if table.num_rows + len(bad) != len(numbers) or any(row.number is None for row in bad):
            return _unclear(numbers, names)
        at = np.fromiter((row.number - 1 for row in bad), np.int64, len(bad))
        faults = (csv_text.count_fault(row, self.names, self.dialect, self.place) for row in bad)
        columns = {name: _one_chunk(pc.fill_null(table.column(name), b"")) for name in names}
        refused = dict(zip(numbers[at].tolist(), faults, strict=True))
        return Texts(np.delete(numbers, at), columns, refused, numbers[:0])

    def alike(self, field: pa.Field, texts: pa.Array) -> pa.Array:
        """Substitutes one invalid character for all texts that contain one, which always fails; strings
        accept any text."""
        foreign = _with_foreign(field.type)
        if pa.types.is_string(field.type) and _is_utf8(texts):
            return pc.if_else(pc.equal(texts, pa.scalar(b"", texts.type)), texts, pa.scalar(_FOREIGN, texts.type))
        if foreign is None:
            return texts
        return pc.if_else(pc.match_substring_regex(texts, foreign), pa.scalar(_FOREIGN, texts.type), texts)

    def alone(self, _: pa.Field, texts: pa.Array, /) -> pa.Array:
        quote = self.dialect.quote.encode()
        return _around(quote, pc.replace_substring(texts, quote, quote * 2), quote + b"\n")

    def parse(self, data: bytes, schema: pa.Schema) -> JsonTable:
        head = csv_text.CsvHead(tuple(schema.names), schema, 0, located=False)
        plain = msgspec.structs.replace(self.dialect, escape=None, whole=True)
        return JsonTable(csv_text.parse_csv(data, head, plain, self.place), {})

    def explain(self, field: pa.Field, text: bytes, fault: Invalid) -> Invalid:
        if fault.rule != "read-value":
            return fault
        return misfit_fault(self.place, field.name, field.type, text.decode("utf-8", "replace"))


class JsonCells(NamedTuple):
    """Takes JSON objects apart into the texts of their members."""

    place: str

    def texts(self, cut: RecordCut, numbers: np.ndarray, names: Sequence[str]) -> Texts:
        """Marks as unclear any record that is not one object, or whose columns are in another order."""
        decoder, places = _members(tuple(names)), [f"c{number}" for number in range(len(names))]
        rows, clear = _decode(decoder, cut, numbers)
        columns = {
            name: pa.array(list(map(bytes, map(attrgetter(place), rows))), pa.large_binary())
            for name, place in zip(names, places, strict=True)
        }
        return Texts(numbers[clear], columns, {}, numbers[~clear])

    def alike(self, field: pa.Field, texts: pa.Array) -> pa.Array:
        """Substitutes for a value of another kind than the column's a fixed one of that kind, which
        fails for its kind alone."""
        kind = _kind(field.type)
        if kind is None or not len(texts):
            return texts
        firsts = pc.binary_slice(texts, 0, 1)
        for first in firsts.unique():
            other = _KINDS.get(first.as_py(), kind)
            if other != kind:
                texts = pc.if_else(pc.equal(firsts, first), pa.scalar(other, texts.type), texts)
        return texts

    def alone(self, field: pa.Field, texts: pa.Array) -> pa.Array:
        return _around(b"{" + msgspec.json.encode(field.name) + b":", texts, b"}\n")

    def parse(self, data: bytes, schema: pa.Schema) -> JsonTable:
        return json_text.parse_json(object_lines(data), schema, self.place)

    def explain(self, _field: pa.Field, _text: bytes, fault: Invalid, /) -> Invalid:
        return fault


def _unclear(numbers: np.ndarray, names: Sequence[str]) -> Texts:
    return Texts(numbers[:0], dict.fromkeys(names, pa.array([], pa.binary())), {}, numbers)


def _is_utf8(texts: pa.Array) -> bool:
    try:
        texts.cast(pa.large_string() if pa.types.is_large_binary(texts.type) else pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _around(before: bytes, texts: pa.Array, behind: bytes) -> pa.Array:
    large = pa.large_binary()
    return pc.binary_join_element_wise(
        pa.scalar(before, large), texts.cast(large), pa.scalar(behind, large), pa.scalar(b"", large)
    )


@functools.cache
def _members(names: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
    """Makes a decoder of the members with these names, undecoded; null for those that are absent."""
    places = [f"c{number}" for number in range(len(names))]
    row = msgspec.defstruct(
        "Row",
        [(place, msgspec.Raw, msgspec.Raw(_NULL)) for place in places],
        rename=dict(zip(places, names, strict=True)),
    )
    return msgspec.json.Decoder(row)


def _decode(decoder: msgspec.json.Decoder[Any], cut: RecordCut, numbers: np.ndarray) -> tuple[list[Any], np.ndarray]:
    """Decodes the records that are one object each, and marks which those are."""
    clear = np.ones(len(numbers), bool)
    try:
        rows = decoder.decode_lines(cut.some(numbers))
        if len(rows) == len(numbers):
            return rows, clear
    except (msgspec.DecodeError, RecursionError):
        pass
    rows = []
    for at, text in enumerate(cut.each(numbers)):
        try:
            rows.append(decoder.decode(text))
        except (msgspec.DecodeError, RecursionError):
            clear[at] = False
    return rows, clear


def _kind(type_: pa.DataType) -> bytes | None:
    """Returns a JSON value of the kind that values of this type have; ``None`` if there are several kinds."""
    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        return b"0"
    if pa.types.is_boolean(type_):
        return b"true"
    texts = (pa.types.is_string, pa.types.is_binary, pa.types.is_timestamp, pa.types.is_date)
    return b'""' if any(is_one(type_) for is_one in texts) else None


@functools.cache
def _with_foreign(type_: pa.DataType) -> str | None:
    """Returns a pattern of ASCII texts with a character that no value of the type has; ``None``: any
    character may occur."""
    if pa.types.is_integer(type_):
        own = _SIGNS
    elif pa.types.is_floating(type_):
        own = _FLOATS
    elif pa.types.is_decimal(type_):
        own = _SIGNS + ".eE"
    elif pa.types.is_boolean(type_):
        own = "truefalsTRUEFALS01"
    elif pa.types.is_date(type_):
        own = _SIGNS
    elif pa.types.is_timestamp(type_):
        own = _SIGNS + ".:, tTzZ"
    else:
        return None
    foreign = "".join(re.escape(chr(code)) for code in range(0x21, 0x7F) if chr(code) not in own)
    return rf"\A[ -~]*[{foreign}][ -~]*\z"


BAD: Final = pa.schema(
    [
        pa.field("record", pa.int64(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
        pa.field("column", pa.string()),
        pa.field("raw", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("rule", pa.string(), nullable=False),
    ]
)
"""One row for a record that was set aside. ``record``: its number in its range, from 0; ``line``: of the file, from 1;
``column``: the first at fault, null if the record as a whole is."""
MAX_RAW: Final = 1 << 20
"""Most characters of a record that are kept."""
OF_RECORDS: Final = frozenset(
    {
        "event-time-missing",
        "not-null",
        NULL_KEY,
        "read-columns",
        "read-csv",
        "read-encoding",
        "read-geojson",
        "read-json",
        "read-json-depth",
        "read-value",
    }
)
"""Rules that a single record can break; breaking another rule means that the file, or its description, is at fault."""
LIMIT: Final = "quarantine-limit"

Parse = Callable[[bytes, pa.Schema], JsonTable]
"""Parses all records of a text as rows of a schema. Raises Invalid."""


class RecordParser(NamedTuple):
    """How the records of a text are parsed."""

    schema: pa.Schema
    parse: Parse
    cells: Cells
    needed: Mapping[str, Absence] = MappingProxyType({})
    """Columns that must have values for another reason than the schema, with that reason."""


class SetAside(NamedTuple):
    """The result of parsing: rows of the good records, and ``BAD`` rows of the others."""

    good: JsonTable
    bad: pa.Table
    records: int | None = None
    """Number of records in the text, each of which is one row; ``None``: the text was not split."""

    @property
    def agrees(self) -> bool:
        """Whether the parser finds the same records as the split did."""
        return self.records is None or self.good.table.num_rows + self.bad.num_rows == self.records


class _Bad(NamedTuple):
    """Records that cannot be read: by number, the fault; and the columns at fault, in the order of the schema."""

    faults: dict[int, Invalid]
    columns: dict[int, list[tuple[str, Invalid]]]


def without_bad(cut: RecordCut, reader: RecordParser, name: str, limit: int) -> SetAside:
    """Separates bad records; ``name``: of the file. Raises Invalid for more than ``limit``, and for
    faults of no record."""
    every = np.arange(cut.size)
    bad = _bad_texts(cut, _others(every, cut.broken), reader)
    bad.faults.update(cut.broken)
    good: JsonTable | None = None
    while good is None:
        if len(bad.faults) > limit:
            first = min(bad.faults)
            line = cut.lines(np.array([first])).tolist()[0]
            raise too_many(f"more than {plural(limit, 'record')}", bad.faults[first].message, f"{name}:{line}")
        left = _others(every, bad.faults)
        try:
            good = reader.parse(cut.some(left), reader.schema)
        except Invalid as fault:
            if fault.rule not in OF_RECORDS:
                raise
            missed = _find_refused(cut, left, reader.schema, reader.parse, limit - len(bad.faults))
            if not missed:
                raise
            bad.faults.update(missed)
    return SetAside(good, _bad_rows(cut, bad, name), cut.size)


def _bad_texts(cut: RecordCut, among: np.ndarray, reader: RecordParser) -> _Bad:
    """Finds the bad ones of the records with these numbers by their texts: with another number of values, or with a
    text that is no value of its column. Records that cannot be taken apart into texts are tried one by one."""
    texts = reader.cells.texts(cut, among, reader.schema.names)
    faults, columns = dict(texts.refused), dict[int, list[tuple[str, Invalid]]]()
    faults.update(_find_refused(cut, texts.unclear, reader.schema, reader.parse, None))
    for field in reader.schema:
        for at, fault in _at_fault(field, texts.columns[field.name], reader):
            number = int(texts.numbers[at])
            columns.setdefault(number, []).append((field.name, fault))
            faults.setdefault(number, fault)
    return _Bad(faults, columns)


def _at_fault(field: pa.Field, column: pa.Array, reader: RecordParser) -> Iterator[tuple[int, Invalid]]:
    """Yields the positions of texts in a column that are no values of it, with the fault."""
    texts = reader.cells.alike(field, column).dictionary_encode()
    asked = reader.cells.alone(field, texts.dictionary)
    refused = _find_refused(_as_cut(asked), np.arange(len(asked)), pa.schema([field]), reader.cells.parse, None)
    codes = texts.indices.to_numpy()
    for at in np.flatnonzero(np.isin(codes, np.fromiter(refused, np.int64, len(refused)))).tolist():
        fault = reader.cells.explain(field, column[at].as_py(), refused[int(codes[at])])
        if fault.rule == NOT_NULL and field.name in reader.needed:
            why = reader.needed[field.name]
            fault = Invalid(why.message, rule=why.rule)
        yield at, fault


def _as_cut(texts: pa.LargeBinaryArray) -> RecordCut:
    """Joins records one after the other, as a split text; their places in a file are not needed."""
    _, ends, data = texts.buffers()
    starts = np.frombuffer(ends, np.int64, len(texts) + 1, texts.offset * 8)
    text = b"" if data is None else data.to_pybytes()
    return RecordCut(text, starts, lambda _: b"", lambda numbers: numbers, {})


def _others(numbers: np.ndarray, without: dict[int, Invalid]) -> np.ndarray:
    return np.setdiff1d(numbers, np.fromiter(without, np.int64, len(without)), assume_unique=True)


def _find_refused(
    cut: RecordCut, among: np.ndarray, schema: pa.Schema, parse: Parse, limit: int | None
) -> dict[int, Invalid]:
    """Returns the faults of those records that the parser refuses alone; stops shortly after ``limit``."""
    bad: dict[int, Invalid] = {}
    parts = [among] if len(among) else []
    while parts:
        part = parts.pop()
        fault = _fault(cut, part, schema, parse)
        if fault is None:
            continue
        if len(part) == 1:
            bad[int(part[0])] = fault
        else:
            part, found = _without_first(cut, part, schema, parse, fault)
            bad |= found
            middle = len(part) // 2
            parts += [each for each in (part[middle:], part[:middle]) if len(each)]
        if limit is not None and len(bad) > limit:
            break
    return bad


def _without_first(
    cut: RecordCut, part: np.ndarray, schema: pa.Schema, parse: Parse, fault: Invalid
) -> tuple[np.ndarray, dict[int, Invalid]]:
    """Tries the record that a fault names by itself, and removes it if it is bad. If a line holds several records, the
    parser counts otherwise, and another record is at fault."""
    if not isinstance(fault, RowFault) or not fault.row < len(part):
        return part, {}
    own = _fault(cut, part[fault.row : fault.row + 1], schema, parse)
    return (part, {}) if own is None else (np.delete(part, fault.row), {int(part[fault.row]): own})


def _fault(cut: RecordCut, part: np.ndarray, schema: pa.Schema, parse: Parse) -> Invalid | None:
    """Returns the fault of some records, if the parser refuses them. Raises Invalid for a fault of no record."""
    try:
        parse(cut.some(part), schema)
    except Invalid as fault:
        if fault.rule not in OF_RECORDS:
            raise
        return fault
    return None


def _bad_rows(cut: RecordCut, bad: _Bad, name: str) -> pa.Table:
    rows, numbers = [], np.array(sorted(bad.faults), np.int64)
    for number, line in zip(numbers.tolist(), cut.lines(numbers).tolist(), strict=True):
        blamed = bad.columns.get(number, [])
        text, left_out = show_record(cut.raw(number))
        reasons = [fault.message for _, fault in blamed] or [bad.faults[number].message]
        rows.append(
            {
                "record": number,
                "file": name,
                "line": line,
                "column": blamed[0][0] if blamed else None,
                "raw": text,
                "reason": "; ".join([*reasons, *left_out]),
                "rule": bad.faults[number].rule,
            }
        )
    return pa.Table.from_pylist(rows, schema=BAD)


def show_record(raw: bytes) -> tuple[str, Sequence[str]]:
    """Returns a record as text, and remarks on what was left out."""
    text = raw.decode("utf-8", "backslashreplace")
    if len(text) <= MAX_RAW:
        return text, ()
    return text[:MAX_RAW], (f"the record has {len(text):,} characters, and the first {MAX_RAW:,} are kept",)


def too_many(what: str, first: str, place: str) -> Invalid:
    """Makes the error for more bad records than may be set aside."""
    return Invalid(
        f"{what} cannot be read, more than the quarantine dataset may take; the first: {first}",
        rule=LIMIT,
        hint="repair the file or the schema; onError: {quarantine: {maxRows: N, maxPercent: N}} "
        "limits the quarantine dataset",
        place=place,
    )
