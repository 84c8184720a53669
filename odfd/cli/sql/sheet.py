"""Writes rows as a spreadsheet (xlsx), row by row in bounded memory.

A sheet holds less than a dataset: numbers of 15 digits, times from 1900 on to the millisecond, texts of 32,767
characters, 1,048,576 rows. A value that is no number or time of a sheet is written as text, and counted; if there are
too many rows, another sheet begins; a text that is too long is refused. Texts stay texts, even if they begin like
formulas.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, BinaryIO, Final, Literal

import xlsxwriter
from xlsxwriter.exceptions import FileCreateError

from chain.errors import Invalid
from chain.wording import agree
from odfd.cli import formatting

MOST_ROWS: Final = 1_048_575
"""Rows of a sheet, below its heading."""
MOST_COLUMNS: Final = 16_384
MOST_TEXT: Final = 32_767
_DIGITS: Final = 15
_FIRST_DAY: Final = dt.date(1900, 3, 1)
"""Before it, sheets count a day that did not exist."""
_TO_MILLISECONDS: Final = len("2024-01-01T00:00:00.123")
_NUMBERS: Final = ("decimal", "int", "uint", "halffloat", "float", "double")
"""Prefixes of types whose values are numbers, or texts in JSON if it has no such number."""
_HINT: Final = "--format csv or parquet has no such limit"
_Kind = Literal["text", "date", "time", "number"]


class SheetWriter:
    """Writes a workbook of one answer. ``columns``: names and Arrow's type names. Raises Invalid for too many."""

    def __init__(self, out: BinaryIO, columns: Sequence[tuple[str, str]], most_rows: int = MOST_ROWS) -> None:
        if len(columns) > MOST_COLUMNS:
            raise Invalid(
                f"a sheet has at most {MOST_COLUMNS:,} columns, and these are {len(columns):,}",
                rule="export-sheet", hint=_HINT,
            )  # fmt: skip
        self._names = [name for name, _ in columns]
        self._kinds = [_kind(kind) for _, kind in columns]
        self._most = most_rows
        self._book = xlsxwriter.Workbook(out, {"constant_memory": True})
        self._book.use_zip64()
        self._formats = {
            "date": self._book.add_format({"num_format": "yyyy-mm-dd"}),
            "time": self._book.add_format({"num_format": "yyyy-mm-dd hh:mm:ss.000"}),
        }
        self._as_text = dict.fromkeys(self._names, 0)
        self._sheets, self._is_closed = 0, False
        self._begin()

    def write(self, rows: Iterable[Sequence[Any]]) -> None:
        """Writes rows of JSON values. Raises Invalid for a text that is too long for a cell."""
        for row in rows:
            if self._row > self._most:
                self._begin()
            for column, value in enumerate(row):
                if value is not None:
                    self._cell(column, value)
            self._row += 1

    def close(self) -> None:
        """Completes the workbook. Raises OSError. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            try:
                self._book.close()
            except FileCreateError as error:
                raise OSError(str(error)) from error

    def remarks(self) -> list[str]:
        """Lists losses of the sheets against the dataset."""
        parts = [
            f"{formatting.plural(count, 'value')} of {name} {agree(count, 'is', 'are')} text:"
            " no number or time of a sheet is the same"
            for name, count in self._as_text.items()
            if count
        ]
        if self._sheets > 1:
            parts.append(f"{self._sheets} sheets: one has at the most {formatting.plural(self._most, 'row')}")
        return parts

    def _begin(self) -> None:
        self._sheets += 1
        self._sheet = self._book.add_worksheet(f"rows {self._sheets}")
        self._sheet.freeze_panes(1, 0)
        for column, name in enumerate(self._names):
            self._text(0, column, name)
        self._row = 1

    def _cell(self, column: int, value: Any) -> None:
        if isinstance(value, bool):
            self._sheet.write_boolean(self._row, column, value)
            return
        number = _number(value, self._kinds[column])
        if isinstance(number, dt.date | dt.datetime):
            self._sheet.write_datetime(self._row, column, number, self._formats[self._kinds[column]])
        elif number is not None:
            self._sheet.write_number(self._row, column, number)
        else:
            self._as_text[self._names[column]] += not isinstance(value, str) or self._kinds[column] != "text"
            self._text(self._row, column, formatting.cell(value))

    def _text(self, row: int, column: int, text: str) -> None:
        if len(text) > MOST_TEXT:
            raise Invalid(
                f"a cell of a sheet has at most {MOST_TEXT:,} characters, and {self._names[column][:60]!r}"
                f" in row {row:,} has {len(text):,}",
                rule="export-sheet", hint=_HINT,
            )  # fmt: skip
        self._sheet.write_string(row, column, text)


def _kind(arrow: str) -> _Kind:
    if arrow.startswith("date"):
        return "date"
    if arrow.startswith("timestamp"):
        return "time"
    return "number" if arrow.startswith(_NUMBERS) else "text"


def _number(value: Any, kind: _Kind) -> Any:
    """Returns the value as a sheet stores it; ``None`` if a sheet has no such value."""
    if isinstance(value, int | float):
        return value if _fits(value) else None
    if kind == "text" or not isinstance(value, str):
        return None
    try:
        return _FROM_TEXT[kind](value)
    except (ValueError, ArithmeticError):
        return None


def _fits(value: float) -> bool:
    return len(str(abs(value)).rstrip("0")) <= _DIGITS if isinstance(value, int) else math.isfinite(value)


def _date(text: str) -> dt.date | None:
    day = dt.date.fromisoformat(text)
    return day if day >= _FIRST_DAY else None


def _time(text: str) -> dt.datetime | None:
    """Parses a time; ``None`` if a sheet cannot hold it. A time with a zone is in UTC, as the text has it."""
    bare = text.removesuffix("Z").replace(" ", "T")
    if len(bare) > _TO_MILLISECONDS and bare[_TO_MILLISECONDS:].strip("0"):
        return None
    at = dt.datetime.fromisoformat(bare[:_TO_MILLISECONDS])
    return at if at.date() >= _FIRST_DAY and at.tzinfo is None else None


def _finite(text: str) -> float | None:
    number = decimal.Decimal(text)
    return float(number) if number.is_finite() and len(number.normalize().as_tuple().digits) <= _DIGITS else None


_FROM_TEXT: Final[dict[str, Callable[[str], Any]]] = {"date": _date, "time": _time, "number": _finite}
