"""Converts a sheet of an xlsx or ods table to CSV; row 7 becomes line 7, and an empty row an empty line."""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections.abc import Iterator
from typing import Any

from python_calamine import CalamineError, CalamineWorkbook

from chain.errors import Invalid
from engines.spark.ingest.foreign.job import RULE, Conversion, one_of


def sheet_text(job: Conversion) -> Iterator[bytes]:
    """Yields the sheet as CSV text. Raises Invalid."""
    try:
        book = CalamineWorkbook.from_path(job.path)
        name = one_of(job.options.sheet, list(book.sheet_names), "sheet", "sheet", job.name)
        rows = book.get_sheet_by_name(name).to_python(skip_empty_area=False)
    except (CalamineError, OSError, ValueError) as error:
        raise Invalid(
            f"not a table of an office program that can be read: {error}",
            rule=RULE,
            hint="xlsx, xls and ods are read; check that the file is complete, and has no password",
            place=job.name,
        ) from error
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\n")
    for number, row in enumerate(rows, 1):
        if any(cell != "" for cell in row):
            writer.writerow([_text(cell, f"{job.name}:{number}") for cell in row])
        else:
            line.write("\n")
        yield line.getvalue().encode()
        line.seek(0)
        line.truncate()


def _text(cell: Any, place: str) -> str:
    """Formats a cell for CSV, with all digits. Numbers of such tables are doubles; whole ones are
    written without a point."""
    match cell:
        case bool():
            return "true" if cell else "false"
        case float():
            return str(int(cell)) if cell.is_integer() and abs(cell) < 1 << 53 else repr(cell)
        case dt.datetime() | dt.date() | dt.time():
            return cell.isoformat()
        case dt.timedelta():
            return str(cell.total_seconds())
        case str():
            if cell.startswith("#") and cell.endswith(("!", "?", "/A")):
                raise Invalid(
                    f"a cell holds the error {cell}",
                    rule=RULE,
                    hint="repair the formula, and save the table",
                    place=place,
                )
            return cell
    return str(cell)
