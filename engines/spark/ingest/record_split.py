"""Splits a text into its records, to take out those that cannot be read: where each begins, and on which line.

Pure over bytes. Positions are found with numpy, except in CSV where some quotes are plain characters, and for elements
of documents, which are walked through.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from chain.errors import Invalid
from engines.spark.ingest.dialect import CsvDialect
from engines.spark.ingest.quoting import quote_marks, record_pattern
from engines.spark.ingest.records import BOM, Items, OwnId, flat, starts_in

_LF: Final = 10
_CR: Final = 13
_BLANKS: Final = np.frombuffer(b" \t\n\r\v\f", np.uint8)


class RecordCut(NamedTuple):
    """A text split into records: number ``n`` (from 0) has bytes ``starts[n] <= b < starts[n + 1]``."""

    text: bytes
    starts: np.ndarray
    raw: Callable[[int], bytes]
    """Returns a record as it is in the file."""
    lines: Callable[[np.ndarray], np.ndarray]
    """Returns the lines of the file, from 1, on which records with these numbers begin."""
    broken: dict[int, Invalid]
    """Records that could not be converted to a text for the parser; their text is empty."""

    @property
    def size(self) -> int:
        return len(self.starts) - 1

    def some(self, numbers: np.ndarray) -> bytes:
        """Joins the records with these ascending numbers; adjacent ones are copied in one piece."""
        if not len(numbers):
            return b""
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        firsts = numbers[np.concatenate(([0], breaks))]
        lasts = numbers[np.concatenate((breaks - 1, [len(numbers) - 1]))]
        view = memoryview(self.text)
        spans = zip(self.starts[firsts].tolist(), self.starts[lasts + 1].tolist(), strict=True)
        return b"".join(view[start:stop] for start, stop in spans)

    def each(self, numbers: np.ndarray) -> Iterator[memoryview]:
        """Yields the records with these numbers, one by one."""
        view = memoryview(self.text)
        for start, stop in zip(self.starts[numbers].tolist(), self.starts[numbers + 1].tolist(), strict=True):
            yield view[start:stop]


def csv_records(data: bytes, dialect: CsvDialect, lines_before: int) -> RecordCut:
    """Splits CSV after the header; empty lines are no records, and belong to the record before them."""
    text = np.frombuffer(data, np.uint8)
    marks = quote_marks(data, dialect) if dialect.whole else np.array([], np.int64)
    if marks is None:
        found = re.compile(record_pattern(dialect)).finditer(data)
        starts = (match.start() for match in found if match.end() > match.start())
        firsts = np.array([start for start in starts if data[start] not in (_LF, _CR)], np.int64)
    else:
        ends = np.flatnonzero((text == _LF) | (text == _CR))
        firsts = _behind(ends[np.searchsorted(marks, ends) % 2 == 0], len(data))
    return RecordCut(data, np.append(firsts, len(data)), *_in_lines(data, firsts, lines_before), {})


def line_records(data: bytes, lines_before: int) -> RecordCut:
    """Splits JSON objects, one per line; blank lines are no records."""
    text = np.frombuffer(data, np.uint8)
    starts = _behind(np.flatnonzero(text == _LF), len(data))
    stops = np.append(starts[1:], len(data))
    blank = np.isin(text[starts], _BLANKS)
    for line in np.flatnonzero(blank).tolist():
        blank[line] = not data[starts[line] : stops[line]].strip()
    starts = starts[~blank]
    if len(starts) and data.startswith(BOM):
        starts[0] = max(int(starts[0]), len(BOM))
    return RecordCut(data, np.append(starts, len(data)), *_in_lines(data, starts, lines_before), {})


def feature_line_records(data: bytes, lines_before: int, own_id: OwnId) -> RecordCut:
    """Splits GeoJSON features, one per line, and converts each to the object of its columns."""
    lines = line_records(data, lines_before)
    spans = zip(lines.starts[:-1].tolist(), lines.starts[1:].tolist(), strict=True)
    made = _flatten([data[start:stop] for start, stop in spans], None, own_id)
    return _join(*made, lines.raw, lines.lines)


def item_records(data: bytes, items: Items) -> RecordCut:
    return _join(list(map(bytes, items.texts)), {}, *_in_document(data, items.texts))


def feature_records(data: bytes, items: Items, own_id: OwnId) -> RecordCut:
    """Splits the features of a collection, and converts each to the object of its columns."""
    made = _flatten(items.texts, items.crs, own_id)
    return _join(*made, *_in_document(data, items.texts))


Raw = Callable[[int], bytes]
Lines = Callable[[np.ndarray], np.ndarray]


def _behind(ends: np.ndarray, size: int) -> np.ndarray:
    """Returns the starts of the lines that are not empty, in a text of ``size`` bytes with line ends at ``ends``."""
    starts, stops = np.append([0], ends + 1), np.append(ends, size)
    return starts[stops > starts]


def _in_lines(data: bytes, starts: np.ndarray, lines_before: int) -> tuple[Raw, Lines]:
    bounds = np.append(starts, len(data))

    def raw(number: int) -> bytes:
        return data[bounds[number] : bounds[number + 1]].rstrip(b"\r\n")

    return raw, _line_counter(data, starts, lines_before)


def _in_document(data: bytes, items: Sequence[bytes | msgspec.Raw]) -> tuple[Raw, Lines]:
    text = data.removeprefix(BOM)
    return lambda number: bytes(items[number]), _line_counter(text, np.array(starts_in(text, items), np.int64), 0)


def _line_counter(data: bytes, starts: np.ndarray, lines_before: int) -> Lines:
    def lines(numbers: np.ndarray) -> np.ndarray:
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _LF)
        return np.asarray(np.searchsorted(ends, starts[numbers]) + lines_before + 1)

    return lines


def _flatten(
    texts: Sequence[bytes | msgspec.Raw], crs: object, own_id: OwnId
) -> tuple[list[bytes], dict[int, Invalid]]:
    made: list[bytes] = []
    broken: dict[int, Invalid] = {}
    for number, text in enumerate(texts):
        try:
            made.append(flat(bytes(text).strip(), crs, own_id))
        except Invalid as fault:
            made.append(b"")
            broken[number] = fault
    return made, broken


def _join(texts: list[bytes], broken: dict[int, Invalid], raw: Raw, lines: Lines) -> RecordCut:
    ends = np.cumsum(np.fromiter((len(text) + 1 for text in texts), np.int64, len(texts)))
    return RecordCut(b"".join(text + b"\n" for text in texts), np.append([0], ends), raw, lines, broken)
