"""Seals rows that no other hash covers with a short hash of their own, so that a flipped bit is found.

Blocks, objects and statements are named by their hash, and the log of the ledger is linked; intents, conclusions and
places are not. Such a table is declared as ``Sealed``, and read and written through that. A seal detects damage, not
tampering: whoever can write the file can write seals. Rows from before their table had seals carry none and are
trusted. Indexes are not covered; SQLite's own check compares those (``Database.damage``).
"""

from __future__ import annotations

import functools
import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from chain.errors import Environment

ROW_DAMAGED: Final = "stored-row-damaged"
_SIZE: Final = 8
"""Bytes of a seal: a flipped bit goes unnoticed once in 2^64."""
Value: TypeAlias = int | str | bytes | None
Row: TypeAlias = tuple[Any, ...]


_DECLARED: Final[dict[str, Sealed]] = {}
"""Every table with seals, by its name."""


def sealed_tables(connection: sqlite3.Connection) -> list[Sealed]:
    """Returns the tables of a database that have seals, by its schema, so that whoever checks all misses none."""
    named = connection.execute(
        "SELECT t.name FROM sqlite_master t JOIN pragma_table_info(t.name) c WHERE t.type = 'table' AND c.name = 'seal'"
    )
    return [_DECLARED[name] for (name,) in named.fetchall()]


class Sealed(msgspec.Struct, frozen=True):
    """A table with seals. ``columns`` are those that a seal covers, the row's key first."""

    table: str
    columns: tuple[str, ...]
    hint: str
    """Advice for people on a damaged row."""

    def __post_init__(self) -> None:
        _DECLARED[self.table] = self

    @property
    def step(self) -> str:
        """The migration step that adds seals to the table."""
        return f"ALTER TABLE {self.table} ADD COLUMN seal BLOB;"

    def put(self, connection: sqlite3.Connection, *values: Value) -> None:
        """Writes a row, replacing one of the same key; ``values`` in the order of ``columns``."""
        connection.execute(_writing(self.table, self.columns), (*values, _seal(self.table, values)))

    def rows(self, connection: sqlite3.Connection, where: str = "TRUE", values: Sequence[Value] = ()) -> Iterator[Row]:
        """Yields rows with all ``columns``; ``where`` may include order and limit. Raises Environment: ROW_DAMAGED."""
        for row, whole in self._looked_at(connection, where, values):
            if not whole:
                raise Environment(f"{self._name(row)} is damaged on disk", rule=ROW_DAMAGED, hint=self.hint)
            yield row

    def one(self, connection: sqlite3.Connection, where: str, values: Sequence[Value]) -> Row | None:
        return next(self.rows(connection, where, values), None)

    def look(self, connection: sqlite3.Connection, where: str, values: Sequence[Value]) -> tuple[Row | None, bool]:
        """Returns the first row, damaged or not, and whether its seal is valid; for callers that can do without it."""
        return next(self._looked_at(connection, where, values), (None, True))

    def whole(self, connection: sqlite3.Connection) -> Iterator[Row]:
        """Yields the rows whose seal is valid, and skips damaged ones."""
        return (row for row, whole in self._looked_at(connection, "TRUE", ()) if whole)

    def every(
        self, connection: sqlite3.Connection, where: str = "TRUE", values: Sequence[Value] = ()
    ) -> Iterator[tuple[Row, bool]]:
        """Yields all rows, each with whether its seal is valid."""
        return self._looked_at(connection, where, values)

    def damaged(self, connection: sqlite3.Connection) -> Iterator[str]:
        """Yields the names of the damaged rows; reads the whole table."""
        for row, whole in self._looked_at(connection, "TRUE", ()):
            if not whole:
                yield self._name(row)

    def forget(self, connection: sqlite3.Connection, dataset: bytes) -> int:
        """Deletes the rows of a dataset, damaged ones too; returns how many."""
        return connection.execute(f"DELETE FROM {self.table} WHERE dataset = ?", (dataset,)).rowcount  # noqa: S608

    def forget_damaged(self, connection: sqlite3.Connection, where: str, values: Sequence[Value]) -> int:
        """Deletes damaged rows that can be made again; returns how many."""
        found = [row for row, whole in self._looked_at(connection, where, values) if not whole]
        for row in found:
            same = " AND ".join(f"{column} IS ?" for column in self.columns)
            connection.execute(f"DELETE FROM {self.table} WHERE {same}", row)  # noqa: S608
        return len(found)

    def _looked_at(
        self, connection: sqlite3.Connection, where: str, values: Sequence[Value]
    ) -> Iterator[tuple[tuple[Value, ...], bool]]:
        reading = _reading(self.table, self.columns)
        for *row, seal in connection.execute(f"{reading} WHERE {where}", values):
            yield tuple(row), seal is None or seal == _seal(self.table, row)

    def _name(self, row: Sequence[Value]) -> str:
        key = row[0]
        shown = f"{key[:8].hex()}…" if isinstance(key, bytes) else str(key)[:60]
        return f"row {shown} of {self.table}"


@functools.cache
def _writing(table: str, columns: tuple[str, ...]) -> str:
    names, places = ", ".join((*columns, "seal")), ", ".join("?" * (len(columns) + 1))
    return f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({places})"  # noqa: S608  both are declared


@functools.cache
def _reading(table: str, columns: tuple[str, ...]) -> str:
    return f"SELECT {', '.join((*columns, 'seal'))} FROM {table}"  # noqa: S608  both are declared


def _seal(table: str, values: Sequence[Value]) -> bytes:
    # One update of the hash for a row takes a third of the time that one for each value does, and telling the types
    # apart here takes half of the time that a function for each value does.
    parts = [table.encode()]
    for value in values:
        # Values as SQLite returns them: instants are integers and names are bytes.
        if value is None:
            parts.append(b"n0:")
        elif isinstance(value, str):
            raw = value.encode()
            parts += (b"t%d:" % len(raw), raw)
        elif isinstance(value, bytes):
            parts += (b"b%d:" % len(value), value)
        else:
            raw = b"%d" % value
            parts += (b"i%d:" % len(raw), raw)
    return hashlib.sha3_256(b"".join(parts)).digest()[:_SIZE]
