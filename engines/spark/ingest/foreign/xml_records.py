"""Converts record elements of XML to CSV: a column for each element and attribute below, named by its path.

The record of line 7 becomes line 7, where the records' lines allow it. An element that occurs twice in a record is
refused, for a column holds one value. Document types are refused, and with them everything that XML can expand.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from typing import Final
from xml.parsers import expat

from chain.errors import Invalid
from engines.spark.ingest.foreign.job import RULE, Conversion

CHUNK: Final = 1 << 18
DEPTH: Final = 100
MAX_COLUMNS: Final = 2000
Row = tuple[int, dict[str, str]]


class RecordReader:
    """Feeds bytes to a parser and returns the records that are complete. ``path``: from the root, like
    ``feed/entry``."""

    def __init__(self, path: str, name: str) -> None:
        self._path = path.strip("/").split("/")
        self._name = name
        self._stack: list[str] = []
        self._texts: list[list[str]] = []
        self._record: dict[str, str] = {}
        self._line = 0
        self._whole: list[Row] = []
        self._parser = parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.StartDoctypeDeclHandler = self._doctype

    def feed(self, data: bytes) -> list[Row]:
        """Feeds bytes; empty ``data`` means the end. Returns the records completed by them. Raises Invalid."""
        try:
            self._parser.Parse(data, not data)
        except expat.ExpatError as error:
            raise Invalid(
                f"not XML: {expat.ErrorString(error.code)} in column {error.offset + 1}",
                rule="read-xml",
                hint="check that the file is complete",
                place=f"{self._name}:{error.lineno}",
            ) from error
        whole, self._whole = self._whole, []
        return whole

    def _fault(self, message: str, hint: str) -> Invalid:
        return Invalid(message, rule="read-xml", hint=hint, place=f"{self._name}:{self._parser.CurrentLineNumber}")

    def _doctype(self, *_: object) -> None:
        raise self._fault("a document type, which may expand to anything", "leave out <!DOCTYPE …> where it is written")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._stack.append(tag.rpartition(":")[2])
        self._texts.append([])
        if len(self._stack) > DEPTH:
            raise self._fault(f"elements of more than {DEPTH} levels", "check that it is the right file")
        if self._stack == self._path:
            self._record, self._line = {}, self._parser.CurrentLineNumber
        if self._stack[: len(self._path)] == self._path:
            inside = self._stack[len(self._path) :]
            for name, value in attributes.items():
                self._put("/".join([*inside, f"@{name.rpartition(':')[2]}"]), value)

    def _end(self, _: str) -> None:
        text = "".join(self._texts.pop()).strip()
        inside = self._stack[len(self._path) :]
        if self._stack[: len(self._path)] == self._path and text:
            self._put("/".join(inside) or ".", text)
        if self._stack == self._path:
            self._whole.append((self._line, self._record))
        self._stack.pop()

    def _text(self, data: str) -> None:
        if self._stack[: len(self._path)] == self._path:
            self._texts[-1].append(data)

    def _put(self, name: str, value: str) -> None:
        if name in self._record:
            raise self._fault(
                f"{name!r} occurs more than once in a record, and a column holds one value",
                f"say record: {'/'.join([*self._path, *name.split('/')[:1]])} to have a row of each",
            )
        self._record[name] = value


def record_text(job: Conversion) -> Iterator[bytes]:
    """Yields the records as CSV text. Raises Invalid."""
    path = job.options.record
    if not path:
        raise Invalid(
            "kind: Xml, and no record is said",
            rule=RULE,
            hint="say which elements are rows, from the root: record: feed/entry",
            place=job.name,
        )
    columns: dict[str, None] = {}
    for _, record in _records(job, path):
        columns.update(dict.fromkeys(record))
        if len(columns) > MAX_COLUMNS:
            raise Invalid(
                f"records of more than {MAX_COLUMNS} columns",
                rule=RULE,
                hint="check that `record` names the right elements",
                place=job.name,
            )
    names = list(columns)
    if not names:
        raise Invalid(
            f"no record {path}", rule="read-part", hint="the path begins with the root element", place=job.name
        )
    yield _line(names)
    at = 2
    for line, record in _records(job, path):
        yield b"\n" * (line - at)
        text = _line([record.get(name, "") for name in names])
        yield text
        at = max(line, at) + text.count(b"\n")


def _records(job: Conversion, path: str) -> Iterator[Row]:
    reader = RecordReader(path, job.name)
    with job.source.open("rb") as file:
        more: Callable[[], bytes] = lambda: file.read(CHUNK)  # noqa: E731
        while data := more():
            yield from reader.feed(data)
        yield from reader.feed(b"")


def _line(values: list[str]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(values)
    return out.getvalue().encode()
