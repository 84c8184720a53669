"""Converts tables of an SQLite file to lines of JSON: read only, with nothing of the file run."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Final

import msgspec

from chain.errors import Invalid
from engines.spark.ingest.foreign.job import RULE, Conversion, one_of

_LENGTH: Final = 64 << 20
"""Bytes of one value."""


def opened_base(job: Conversion) -> sqlite3.Connection:
    """Raises sqlite3.Error."""
    base = sqlite3.connect(f"file:{job.path}?mode=ro&immutable=1", uri=True)
    base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LENGTH)
    base.execute("PRAGMA trusted_schema = OFF")
    base.execute("PRAGMA cell_size_check = ON")
    return base


def all_rows(base: sqlite3.Connection, table: str) -> tuple[list[str], Iterator[tuple[object, ...]]]:
    """Names of the columns of a table, and its rows in the order of the file."""
    quoted = table.replace('"', '""')
    rows = base.execute(f'SELECT * FROM "{quoted}"')  # noqa: S608  a name that the file has, quoted
    return [each[0] for each in rows.description], rows


def check_plain(values: Mapping[str, object], place: str) -> None:
    """Raises Invalid for a value that JSON does not hold."""
    for name, value in values.items():
        lost = "bytes" if isinstance(value, bytes) else ""
        if isinstance(value, float) and not math.isfinite(value):
            lost = str(value)
        if lost:
            raise Invalid(
                f"column {name!r} holds {lost}, which JSON does not",
                rule="column-type",
                hint="leave the column out, or write it as a text, where the file is written",
                place=place,
            )


def table_text(job: Conversion) -> Iterator[bytes]:
    """Raises Invalid."""
    try:
        with closing(opened_base(job)) as base:
            listed = base.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~'"
            )
            tables = sorted(name for (name,) in listed)
            names, rows = all_rows(base, one_of(job.options.table, tables, "table", "table", job.name))
            for number, row in enumerate(rows, 1):
                values = dict(zip(names, row, strict=True))
                check_plain(values, f"{job.name}:{number}")
                yield msgspec.json.encode(values) + b"\n"
    except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:
        raise Invalid(
            f"not an SQLite database that can be read: {error}",
            rule=RULE,
            hint="is the whole file there, and were its changes written out of the log (-wal)?",
            place=job.name,
        ) from error
