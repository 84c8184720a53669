"""Connects to a database, runs one query in its own process, and writes its rows as a Parquet file.

It reads the rows after a position in the order of the cursor. A full batch ends where the cursor's value changes, so a
row with the same value as the last one taken is never skipped. All statements run in one transaction of the database,
so they see the same moment, and it can write nothing. A new kind of database is a subclass of ``SourceDatabase``, its
row in ``KINDS``, and its server in ``tests/contract/odfd/test_databases.py``.
"""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import sqlite3
import ssl
import sys
import urllib.parse
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Self

import msgspec

from chain.errors import Fault, Invalid, Refused, Remote
from chain.libraries import pa, pc, pq
from chain.repeats import repeated
from chain.wording import plural
from odfd.ingest.source_process import SourceJob, SourceResult, run_job, serve

RULE: Final = "source-sql"
CURSOR_RULE: Final = "source-cursor"
_MAX_TEXT: Final = 4 << 10
"""Characters of one cursor value, which is written to each block."""
Position = dict[str, tuple[str, str]]
"""By cursor column, in the cursor's order: the type and the value as texts."""


class QueryJob(SourceJob, frozen=True, kw_only=True):
    """The request to run a query. ``url`` has its secrets filled in."""

    url: str
    query: str
    cursor: tuple[str, ...]
    after: Position | None
    """The position of the last row that was taken; ``None``: from the start."""
    batch_rows: int
    columns: Annotated[bytes, "an Arrow schema, as IPC"] = b""
    """Declared columns: their types are given to values for which a database has no type."""


class QueryResult(SourceResult, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of the querying process. ``digest`` is that of the rows' file."""

    rows: int = 0
    more: bool = False
    """Whether there are more rows after these."""
    last: Position | None = None
    rule: str = RULE


def encode_position(position: Position) -> str:
    return msgspec.json.encode(position).decode()


def decode_position(text: str, cursor: Sequence[str]) -> Position:
    """Decodes the position in a source state. Raises Refused if it is of other cursor columns, Invalid."""
    try:
        found = msgspec.json.decode(text, type=Position)
    except msgspec.DecodeError as error:
        raise Invalid(f"the chain's position in the source cannot be read: {error}", rule=CURSOR_RULE) from error
    if list(found) != list(cursor):
        raise Refused(
            f"the chain is at a position by {', '.join(found)}, and the source now goes by {', '.join(cursor)}",
            rule=CURSOR_RULE,
            hint="write the cursor as before, or begin again: `odfctl reset` drops the ingested blocks",
        )
    return found


def position_of(table: pa.Table, cursor: Sequence[str], row: int) -> Position:
    """Returns the position of one row. Raises Invalid for a value that cannot be ordered exactly."""
    return {name: _encode_value(name, table.column(name)[row]) for name in cursor}


def _encode_value(name: str, value: pa.Scalar) -> tuple[str, str]:
    kind = value.type
    found = value.as_py() if not pa.types.is_timestamp(kind) else value.cast(pa.timestamp("us", kind.tz)).as_py()
    if found is None:
        raise Invalid(
            f"cursor column {name!r} has no value in some rows, which no pull would find again",
            rule=CURSOR_RULE,
            hint=f"leave such rows out in the query (where {name} is not null), or name another column",
        )
    if pa.types.is_integer(kind):
        return "int64", str(found)
    if pa.types.is_date32(kind):
        return "date32", found.isoformat()
    if pa.types.is_timestamp(kind):
        return ("timestamp" if kind.tz is None else "timestamptz"), found.replace(tzinfo=None).isoformat()
    if pa.types.is_string(kind) and len(found) <= _MAX_TEXT:
        return "string", found
    raise Invalid(
        f"cursor column {name!r} is {kind}, by which nothing is ordered to the last digit",
        rule=CURSOR_RULE,
        hint="whole numbers, texts up to 4,096 characters, dates and timestamps can be a cursor",
    )


def value_at(kind: str, text: str) -> Any:
    """Returns a value of a position as a Python object, for a database. Raises Invalid."""
    try:
        match kind:
            case "int64":
                return int(text)
            case "string":
                return text
            case "date32":
                return dt.date.fromisoformat(text)
            case "timestamp":
                return dt.datetime.fromisoformat(text)
            case "timestamptz":
                return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)
    except ValueError as error:
        raise Invalid(f"the chain's position in the source cannot be read: {error}", rule=CURSOR_RULE) from error
    raise Invalid(f"the chain's position in the source is of an unknown type {kind!r}", rule=CURSOR_RULE)


class SourceDatabase(ABC):
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


class Sqlite(SourceDatabase):
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
            raise Remote(
                f"cannot open the database: {error}", rule=RULE, hint="check that it is an SQLite file"
            ) from error

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


class Postgres(SourceDatabase):
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


class Mysql(SourceDatabase):
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
        kind = pa.binary() if any(isinstance(value, bytes) for value in values) else pa.string()
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, ValueError) as error:
        name = described[0]
        raise Invalid(
            f"column {name!r} does not fit {kind}: {error}",
            rule="column-type",
            hint=f"state its type in the query: cast({name} as char) as {name}",
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
KINDS: Final[Mapping[str, type[SourceDatabase]]] = {
    "sqlite": Sqlite,
    "postgresql": Postgres,
    "postgres": Postgres,
    "mysql": Mysql,
}
"""The class of database by the scheme of a URL."""


def connect(url: str) -> SourceDatabase:
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


def answer(job: QueryJob) -> QueryResult:
    """Runs the query and writes its rows; a fault becomes an answer."""
    return run_job(job, _query, QueryResult, "lower batchRows, or select fewer columns")


def _query(job: QueryJob) -> QueryResult:
    with connect(job.url) as base:
        return _write(job, *_batch(base, job))


def _batch(base: SourceDatabase, job: QueryJob) -> tuple[pa.Table, bool]:
    """Returns the rows of one batch, and whether more follow. Raises Invalid, Refused."""
    # On lines of its own: a comment at the end of the query (-- …) would take in the bracket.
    inner = f"SELECT * FROM (\n{job.query.strip().rstrip(';')}\n) AS q"  # noqa: S608  the query is the owner's own
    if not job.cursor:
        return base.table(inner), False
    names = [base.quote_name(name) for name in job.cursor]
    _refuse_nulls(base, inner, names, job.cursor)
    after = [] if job.after is None else [value_at(*each) for each in job.after.values()]
    marks = [base.placeholder(number) for number in range(1, len(after) + 1)]
    beyond = f" WHERE {_row(names)} > {_row(marks)}" if after else ""
    order = f" ORDER BY {', '.join(names)} LIMIT {job.batch_rows}"
    found = base.table(f"{inner}{beyond}{order}", after)
    there = set(found.column_names)
    missing = [name for name in job.cursor if name not in there]
    if missing:
        raise Invalid(f"the query gives no column {missing[0]!r}, its cursor", rule=CURSOR_RULE, hint="select it too")
    if found.num_rows < job.batch_rows:
        return found, False
    return _whole_groups(found, job.cursor), True


def _row(parts: Sequence[str]) -> str:
    return f"({', '.join(parts)})" if len(parts) > 1 else parts[0]


def _refuse_nulls(base: SourceDatabase, inner: str, names: Sequence[str], cursor: Sequence[str]) -> None:
    """Raises Invalid if a cursor column has nulls, which are neither before nor after any position."""
    empty = " OR ".join(f"{name} IS NULL" for name in names)
    if base.table(f"{inner} WHERE {empty} LIMIT 1").num_rows:
        raise Invalid(
            f"{' or '.join(cursor)} has no value in some rows, which no pull would find again",
            rule=CURSOR_RULE,
            hint="leave such rows out in the query (where … is not null), or name another column",
        )


def _whole_groups(found: pa.Table, cursor: Sequence[str]) -> pa.Table:
    """Drops the rows at the end of a full batch that share the last cursor value, as more may follow.

    Raises Refused if that would leave no row.
    """
    last = position_of(found, cursor, -1)
    same: pa.ChunkedArray | None = None
    for name in cursor:
        column = found.column(name).combine_chunks()
        equal = pc.equal(column, column[-1])
        same = equal if same is None else pc.and_(same, equal)
    kept = found.num_rows - (pc.sum(same).as_py() or 0)
    if not kept:
        shown = ", ".join(f"{name} {text}" for name, (_, text) in last.items())
        raise Refused(
            f"a batch of {plural(found.num_rows, 'row')} has one cursor ({shown}), so nothing says which come next",
            rule=CURSOR_RULE,
            hint="add a column to the cursor that distinguishes them, like [changed, id], or raise batchRows",
        )
    return found.slice(0, kept)


def _write(job: QueryJob, found: pa.Table, more: bool) -> QueryResult:
    """Writes rows as a Parquet file. Raises Invalid, Refused, Environment."""
    table = _cast(found, job)
    target, digest = Path(job.target), hashlib.sha3_256()
    plain = {"use_dictionary": False}  # so that the footer tells how much memory the rows take
    with pq.ParquetWriter(target, table.schema, compression="zstd", compression_level=1, **plain) as writer:
        for part in table.to_batches(max_chunksize=64 << 10):
            writer.write_batch(part)
            if target.stat().st_size > job.limit:
                raise Refused(
                    f"its rows are larger than {job.limit:,} bytes",
                    rule="max-source-bytes",
                    hint="lower batchRows, or raise ingest.source-bytes of the settings",
                )
    digest.update(target.read_bytes())
    last: Position | None = None
    if job.cursor and found.num_rows:
        last = position_of(found, job.cursor, -1)
    return QueryResult(rows=table.num_rows, more=more, last=last, digest=digest.hexdigest())


def _cast(found: pa.Table, job: QueryJob) -> pa.Table:
    """Gives values for which a database has no type the declared types. Raises Invalid."""
    declared = pa.ipc.read_schema(pa.py_buffer(job.columns)) if job.columns else pa.schema([])
    known = set(declared.names)
    fields, columns = [], []
    for field, column in zip(found.schema, found.columns, strict=True):
        wanted = declared.field(field.name).type if field.name in known else None
        if pa.types.is_null(field.type) and wanted is None:
            wanted = pa.string() if not found.num_rows else None
            if wanted is None:
                raise Invalid(
                    f"column {field.name!r} has no value in any row, so nothing says its type",
                    rule="column-type",
                    hint="declare the columns: ddlSchema of the read step",
                )
        bare = column.type.storage_type if isinstance(column.type, pa.BaseExtensionType) else column.type
        if bare != column.type:
            column = column.cast(bare)
        if wanted is not None and bare != wanted and (pa.types.is_null(bare) or _is_spelled(bare, wanted)):
            column = _as_declared(field.name, column, wanted)
        fields.append(pa.field(field.name, column.type))
        columns.append(column)
    return pa.table(columns, schema=pa.schema(fields))


def _as_declared(name: str, column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """Casts a column to a declared type. Times without a zone are taken as UTC, as in files. Raises Invalid."""
    kinds = [[wanted], [pa.timestamp(wanted.unit), wanted]] if pa.types.is_timestamp(wanted) else [[wanted]]
    for last, steps in zip((*[False] * (len(kinds) - 1), True), kinds, strict=True):
        try:
            return functools.reduce(lambda found, kind: found.cast(kind), steps, column)
        except pa.ArrowException as error:
            if last:
                raise Invalid(
                    f"column {name!r} does not fit {wanted}: {error}", rule="column-type", hint="declare another type"
                ) from error
    raise AssertionError("the last step returns or raises")


def _is_spelled(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column of texts holds exact values of the declared type: some databases send numerics and times so."""
    types = pa.types
    exact = types.is_decimal(wanted) or types.is_timestamp(wanted) or types.is_date(wanted)
    return bool(types.is_string(found) and exact)


def main() -> int:
    """Runs the process. Returns its exit code."""
    return serve(QueryJob, answer)


if __name__ == "__main__":
    sys.exit(main())
