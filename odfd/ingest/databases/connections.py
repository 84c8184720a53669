"""Connects to databases of each kind, and answers statements with Arrow tables. Blocking.

Every connection reads in one transaction that can write nothing. A new kind of database is a subclass of ``Database``,
its row in ``KINDS``, and its server in ``tests/contract/odfd/test_databases.py``.
"""

from __future__ import annotations

import datetime as dt
import sqlite3
import urllib.parse
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import pyarrow as pa

from chain.errors import Fault, Invalid, Remote
from odfd.ingest.databases.job import RULE


class Database(ABC):
    """One connection, in one transaction that only reads."""

    quote: str = '"'

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def placeholder(self, number: int) -> str:
        """How a statement names its parameter with this number, from 1."""

    @abstractmethod
    def table(self, statement: str, values: Sequence[Any] = ()) -> pa.Table:
        """Raises Invalid for a statement that is refused, Remote for a connection that broke."""

    def quoted(self, name: str) -> str:
        return f"{self.quote}{name.replace(self.quote, self.quote * 2)}{self.quote}"


class Sqlite(Database):
    """A file of this machine, opened to be read; its writers go on meanwhile."""

    def __init__(self, url: str) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(url).path)
        try:
            self._base = sqlite3.connect(f"file:{urllib.parse.quote(path)}?mode=ro", uri=True, isolation_level=None)
            for each in ("PRAGMA trusted_schema = OFF", "PRAGMA query_only = ON", "BEGIN"):
                self._base.execute(each)
        except sqlite3.Error as error:
            raise Remote(f"cannot open the database: {error}", rule=RULE, hint="is it an SQLite file?") from error

    def close(self) -> None:
        self._base.close()

    def placeholder(self, number: int) -> str:
        return f"?{number}"

    def table(self, statement: str, values: Sequence[Any] = ()) -> pa.Table:
        try:
            cursor = self._base.execute(statement, [_as_sqlite(value) for value in values])
            names = [each[0] for each in cursor.description or ()]
            rows = cursor.fetchall()
        except sqlite3.Error as error:
            raise _refused(error) from error
        return _columns(names, rows)


def _as_sqlite(value: Any) -> Any:
    """SQLite has no times: they are texts there, and a cursor of texts."""
    return value.isoformat() if isinstance(value, dt.date) else value


def _columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Raises Invalid for a column of values of several types."""
    columns = {}
    for name, values in zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True):
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowException, OverflowError, ValueError) as error:
            raise Invalid(
                f"column {name!r} holds values of several types: {error}",
                rule="column-type",
                hint=f"say one in the query: cast({name} as text) as {name}",
            ) from error
    if len(columns) < len(names):
        raise _twice(names)
    return pa.table(columns)


def _twice(names: Sequence[str]) -> Invalid:
    again = next(name for name in names if list(names).count(name) > 1)
    return Invalid(
        f"the query gives two columns called {again!r}", rule="column-name", hint="name them apart: select … as …"
    )


class Postgres(Database):
    """By the driver of Apache Arrow, which reads PostgreSQL's binary form."""

    def __init__(self, url: str) -> None:
        from adbc_driver_postgresql import dbapi  # 20 MB that a daemon has no use for

        self._error = dbapi.Error
        try:
            self._connection = dbapi.connect(url)
            self._cursor = self._connection.cursor()
            self._cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        except dbapi.Error as error:
            raise Remote(f"the database does not answer: {_words(error)}", rule=RULE, hint=_REACH) from error

    def close(self) -> None:
        self._cursor.close()
        self._connection.close()

    def placeholder(self, number: int) -> str:
        return f"${number}"

    def table(self, statement: str, values: Sequence[Any] = ()) -> pa.Table:
        try:
            self._cursor.execute(statement, values or None)
            found: pa.Table = self._cursor.fetch_arrow_table()
        except self._error as error:
            raise _refused(error) from error
        if len(set(found.column_names)) < found.num_columns:
            raise _twice(found.column_names)
        return found


_REACH: Final = "look at host, port, user and password of its url, and whether it takes connections from this machine"
KINDS: Final[Mapping[str, type[Database]]] = {"sqlite": Sqlite, "postgresql": Postgres, "postgres": Postgres}
"""By the scheme of a URL."""


def connect(url: str) -> Database:
    """Raises Remote, Invalid."""
    return KINDS[urllib.parse.urlsplit(url).scheme](url)  # type: ignore[call-arg]


def _refused(error: Exception) -> Fault:
    return Invalid(
        f"the database refuses the query: {_words(error)}", rule=RULE, hint="try it in the database's own shell"
    )


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
