"""A text cut into its records, for taking out those that cannot be read: where each begins, and on which line.

Pure over bytes. Places are found with numpy, but for CSV in which some quotes are letters, and for elements of
documents, which are walked through.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np

from chain.errors import Invalid
from engines.spark.ingest.dialect import CsvDialect
from engines.spark.ingest.quoting import quote_marks, record_pattern
from engines.spark.ingest.records import BOM, Items, flat, starts_in
from engines.spark.ingest.setting_aside import Records

_LF: Final = 10
_CR: Final = 13


def csv_records(data: bytes, dialect: CsvDialect, lines_before: int) -> Records:
    """Records of CSV behind the header; empty lines are none, and stand at the end of the record before them."""
    text = np.frombuffer(data, np.uint8)
    marks = quote_marks(data, dialect) if dialect.whole else np.array([], np.int64)
    if marks is None:
        found = re.compile(record_pattern(dialect)).finditer(data)
        starts = (match.start() for match in found if match.end() > match.start())
        firsts = np.array([start for start in starts if data[start] not in (_LF, _CR)], np.int64)
    else:
        ends = np.flatnonzero((text == _LF) | (text == _CR))
        firsts = _behind(ends[np.searchsorted(marks, ends) % 2 == 0], len(data))
    return Records(data, np.append(firsts, len(data)), *_in_lines(data, firsts, lines_before), {})


def line_records(data: bytes, lines_before: int) -> Records:
    """JSON objects that stand one a line; blank lines are none."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _LF)
    starts = _behind(ends, len(data))
    if len(starts):
        stops = np.append(starts[1:], len(data))
        spans = zip(starts.tolist(), stops.tolist(), strict=True)
        filled = [bool(data[start:stop].strip()) for start, stop in spans]
        starts = starts[np.array(filled, bool)]
    if len(starts) and data.startswith(BOM):
        starts[0] = max(int(starts[0]), len(BOM))
    return Records(data, np.append(starts, len(data)), *_in_lines(data, starts, lines_before), {})


def feature_line_records(data: bytes, lines_before: int, own_id: bool) -> Records:
    """GeoJSON features that stand one a line, each as the object that its columns make."""
    lines = line_records(data, lines_before)
    spans = zip(lines.starts[:-1].tolist(), lines.starts[1:].tolist(), strict=True)
    made = _flattened([data[start:stop] for start, stop in spans], None, own_id)
    return _joined(*made, lines.raw, lines.lines)


def item_records(data: bytes, items: Items) -> Records:
    """Elements of a document's array."""
    return _joined(list(map(bytes, items.texts)), {}, *_in_document(data, items.texts))


def feature_records(data: bytes, items: Items, own_id: bool) -> Records:
    """Features of a collection, each as the object that its columns make."""
    made = _flattened(items.texts, items.crs, own_id)
    return _joined(*made, *_in_document(data, items.texts))


Raw = Callable[[int], bytes]
Lines = Callable[[np.ndarray], np.ndarray]


def _behind(ends: np.ndarray, size: int) -> np.ndarray:
    """Where lines begin that hold something, of a text of ``size`` bytes with line ends at ``ends``."""
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


def _flattened(
    texts: Sequence[bytes | msgspec.Raw], crs: object, own_id: bool
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


def _joined(texts: list[bytes], broken: dict[int, Invalid], raw: Raw, lines: Lines) -> Records:
    ends = np.cumsum(np.fromiter((len(text) + 1 for text in texts), np.int64, len(texts)))
    return Records(b"".join(text + b"\n" for text in texts), np.append([0], ends), raw, lines, broken)
