"""Connects to databases of each kind, and runs statements that return Arrow tables. Blocking.

Every connection reads in one transaction that can write nothing. A new kind of database is a subclass of ``Database``,
its row in ``KINDS``, and its server in ``tests/contract/odfd/test_databases.py``.
"""

from __future__ import annotations

import datetime as dt
import sqlite3
import ssl
import urllib.parse
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from chain.errors import Fault, Invalid, Remote
from chain.libraries import pa
from chain.repeats import repeated
from odfd.ingest.databases.job import RULE


class Database(ABC):
    """One connection to a database, in one transaction that only reads."""

    quote: str = '"'

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def placeholder(self, number: int) -> str:
        """Returns the mark for the parameter with this number, from 1, in a statement."""

    @abstractmethod
    def table(self, statement: str, values: Sequence[Any] = ()) -> pa.Table:
        """Runs a statement and returns its rows. Raises Invalid if it is refused, Remote if the connection broke."""

    def quote_name(self, name: str) -> str:
        return f"{self.quote}{name.replace(self.quote, self.quote * 2)}{self.quote}"


class Sqlite(Database):
    """Reads an SQLite file of this machine; other processes may write to it meanwhile."""

    def __init__(self, url: str) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(url).path)
        try:
            self._base = sqlite3.connect(f"file:{urllib.parse.quote(path)}?mode=ro", uri=True, isolation_level=None)
            # Views and generated columns of a file of others may call functions: of an untrusted schema, harmless ones
            # alone.
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
            raise _refusal(error) from error
        return _columns(names, rows)


def _as_sqlite(value: Any) -> Any:
    """Returns times as texts: SQLite has no type for them, so a cursor over times compares texts."""
    return value.isoformat() if isinstance(value, dt.date) else value


def _columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Builds a table of rows. Raises Invalid for a column with values of several types, or two columns of one name."""
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
    again = repeated(names)[0]
    return Invalid(
        f"the query gives two columns called {again!r}", rule="column-name", hint="name them apart: select … as …"
    )


class Postgres(Database):
    """Reads PostgreSQL by the driver of Apache Arrow, which decodes PostgreSQL's binary form."""

    def __init__(self, url: str) -> None:
        from adbc_driver_postgresql import dbapi  # 20 MB that a daemon does not need

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
            raise _refusal(error) from error
        if len(set(found.column_names)) < found.num_columns:
            raise _twice(found.column_names)
        return found


class Mysql(Database):
    """Reads MySQL and MariaDB. Instants are requested in UTC; the driver escapes values in the server's own way."""

    quote = "`"
    _MARK: Final = "\0"
    """Stands for a parameter until the percent signs of the query are escaped; no text of YAML has this character."""

    def __init__(self, url: str) -> None:
        import pymysql  # a daemon does not need it

        self._error = pymysql.MySQLError
        parts = urllib.parse.urlsplit(url)
        context = _tls(parts)
        try:
            self._connection = pymysql.connect(
                host=parts.hostname or "",
                port=parts.port or _MYSQL_PORT,
                user=urllib.parse.unquote(parts.username or ""),
                password=urllib.parse.unquote(parts.password or ""),
                database=urllib.parse.unquote(parts.path.removeprefix("/")),
                charset="utf8mb4",
                ssl=context,
                ssl_disabled=context is None,
            )
            with self._connection.cursor() as cursor:
                cursor.execute("SET time_zone = '+00:00'")
                # At any other level MySQL ignores WITH CONSISTENT SNAPSHOT.
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        except (pymysql.MySQLError, OSError, ValueError) as error:
            raise Remote(f"the database does not answer: {_words(error)}", rule=RULE, hint=_REACH) from error

    def close(self) -> None:
        self._connection.close()

    def placeholder(self, number: int) -> str:  # noqa: ARG002  they go by their order
        return self._MARK

    def table(self, statement: str, values: Sequence[Any] = ()) -> pa.Table:
        try:
            with self._connection.cursor() as cursor:
                if values:
                    cursor.execute(statement.replace("%", "%%").replace(self._MARK, "%s"), list(values))
                else:
                    cursor.execute(statement)
                described, rows = cursor.description or (), cursor.fetchall()
        except self._error as error:
            raise _refusal(error) from error
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(described)
        return pa.table({each[0]: _mysql_column(each, values) for each, values in zip(described, columns, strict=True)})


_MYSQL_PORT: Final = 3306
_DIGITS: Final = 38


_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_MODES: Final = ("verify-identity", "required", "disabled")


def _tls(parts: urllib.parse.SplitResult) -> ssl.SSLContext | None:
    """Makes the TLS context for ``?ssl-mode=…``; ``None``: without TLS. Raises Invalid for other options.

    Certificates are checked unless the URL names another mode; the driver alone would not check them. Without an
    option, a connection to this machine itself is without TLS.
    """
    options = urllib.parse.parse_qsl(parts.query, keep_blank_values=True)
    mode = "disabled" if (parts.hostname or "") in _LOOPBACK else "verify-identity"
    if options:
        mode = options[0][1] if len(options) == 1 and options[0][0] == "ssl-mode" else ""
    if mode not in _MODES:
        hint = f"leave them out, or ssl-mode={', '.join(_MODES)}"
        raise Invalid(f"options {parts.query[:200]!r} of the URL are not known", rule=RULE, hint=hint)
    if mode == "disabled":
        return None
    context = ssl.create_default_context()
    if mode == "required":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _mysql_column(described: Sequence[Any], values: Sequence[Any]) -> pa.Array:
    """Converts a column to the type that the server declares, so that it is the same in each batch. Raises Invalid."""
    kind = _mysql_type(described[1], described[5])
    if kind is None:
        kind = pa.binary() if any(isinstance(each, bytes) for each in values) else pa.string()
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, ValueError) as error:
        name = described[0]
        raise Invalid(
            f"column {name!r} does not fit {kind}: {error}",
            rule="column-type",
            hint=f"say in the query what it is: cast({name} as char) as {name}",
        ) from error


def _mysql_type(code: int, scale: int) -> pa.DataType | None:
    """Returns the type for a column's type code; ``None``: texts or bytes."""
    from pymysql.constants import FIELD_TYPE as KIND

    if code in (KIND.TINY, KIND.SHORT, KIND.LONG, KIND.LONGLONG, KIND.INT24, KIND.YEAR):
        return pa.int64()
    if code in (KIND.DECIMAL, KIND.NEWDECIMAL):
        return pa.decimal128(_DIGITS, scale)
    if code in (KIND.FLOAT, KIND.DOUBLE):
        return pa.float64()
    if code == KIND.DATE:
        return pa.date32()
    if code in (KIND.DATETIME, KIND.TIMESTAMP):
        return pa.timestamp("us", "UTC" if code == KIND.TIMESTAMP else None)
    return pa.duration("us") if code == KIND.TIME else None


_REACH: Final = "look at host, port, user and password of its url, and whether it takes connections from this machine"
KINDS: Final[Mapping[str, type[Database]]] = {
    "sqlite": Sqlite,
    "postgresql": Postgres,
    "postgres": Postgres,
    "mysql": Mysql,
}
"""The class of database by the scheme of a URL."""


def connect(url: str) -> Database:
    """Connects to the database of a URL, by its scheme. Raises Remote, Invalid."""
    return KINDS[urllib.parse.urlsplit(url).scheme](url)  # type: ignore[call-arg]


def _refusal(error: Exception) -> Fault:
    return Invalid(
        f"the database refuses the query: {_words(error)}", rule=RULE, hint="try it in the database's own shell"
    )


def _words(error: Exception) -> str:
    """Returns the text of an error on one line, without the number that drivers such as MySQL's have before it."""
    match error.args:
        case (int(), str(said)):
            text = said
        case _:
            text = str(error)
    return " ".join(text.split())[:300]
