"""Finds unreadable values in all records at once: the parser tries each distinct text of a column once.

A record has one text for each column. Records that share a text share one trial, and of texts that the parser surely
refuses alike only one is tried. The verdict on a text is the parser's on a record that holds nothing else, so its place
in the file does not matter. Pure over bytes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.csv import InvalidRow

from chain.errors import Invalid
from engines.spark.ingest import csv_text, json_text
from engines.spark.ingest.dialect import CsvDialect
from engines.spark.ingest.json_text import JsonTable
from engines.spark.ingest.quoting import unescape
from engines.spark.ingest.record_split import RecordCut
from engines.spark.ingest.records import object_lines
from engines.spark.ingest.text_columns import misfit_fault

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
