"""Translates calls of Flight SQL to calls of the node. Opens no socket, and knows nothing of gRPC.

Commands about metadata are answered from the node's list of datasets; statements are sent to the node, and their rows
passed on as they come. An answer that was begun for a FlightInfo waits a few seconds to be fetched; a ticket that comes
later, or again, runs the query anew at the same cut.
"""

from __future__ import annotations

import datetime as dt
import decimal
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec
import pyarrow as pa

from chain.errors import Invalid, NotFound
from chain.wording import plural
from engines.flight import metadata
from engines.flight.messages import pack_any, unpack_any
from engines.flight.metadata import ListedDataset

MOST_HELD: Final = 2
HELD_SECONDS: Final = 10.0
"""Seconds for which an answer that was begun waits to be fetched: each occupies a process of the node."""
MAX_PARAMETERS_BYTES: Final = 1 << 20
_PLAIN: Final = (str, int, float, bool, type(None))
MOST_STATEMENTS: Final = 256
STATEMENT_SECONDS: Final = 3600.0
"""Seconds without use after which a prepared statement is forgotten."""
T = TypeVar("T")


class RunningAnswer(Protocol):
    """An answer whose batches come once, as they are computed; iteration raises if it is cut off."""

    told: Any
    schema: pa.Schema

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...

    def interrupt(self) -> None: ...

    def close(self) -> None: ...


Seen = Callable[[Any], None]
"""Called with an answer before it begins, since the caller may leave during the wait."""


def nobody(_: Any) -> None:
    """Ignores responses; the default for callers that do not observe them."""


class NodePort(Protocol):
    """The port through which Flight SQL reaches the node."""

    def query(self, body: dict[str, Any], seen: Seen) -> RunningAnswer: ...

    def datasets(self, token: str) -> list[ListedDataset]: ...

    def pass_on(self, path: str, body: dict[str, Any], seen: Seen) -> Iterator[bytes]: ...


class FlightAnswer(NamedTuple):
    """A response; ``begun`` is the running answer, to be closed at the end, ``None`` for a table of metadata."""

    schema: pa.Schema
    batches: Any
    begun: RunningAnswer | None = None


class FlightSql:
    """Implements Flight SQL for all clients of one node. Safe to use from many threads."""

    def __init__(self, node: NodePort, version: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._node, self._version, self._clock = node, version, clock
        self._statements: HandleStore[FlightStatement] = HandleStore(MOST_STATEMENTS, STATEMENT_SECONDS)
        self._held: HandleStore[FlightAnswer] = HandleStore(MOST_HELD, HELD_SECONDS, _close)

    def info(self, command: bytes, token: str, seen: Seen = nobody) -> tuple[pa.Schema, bytes]:
        """Returns the columns of an answer, and the ticket that fetches it."""
        name, message = unpack_any(command)
        if name == "CommandStatementQuery":
            return self._begin((message.query, None), token, seen)
        if name == "CommandPreparedStatementQuery":
            statement = self._statement(message.prepared_statement_handle, token)
            return self._begin((statement.sql, statement.parameters), token, seen)
        return self._describe(name, message, token).schema, command

    def columns(self, command: bytes, token: str, seen: Seen = nobody) -> pa.Schema:
        """Returns the columns of an answer without running the query."""
        name, message = unpack_any(command)
        if name == "CommandStatementQuery":
            return self._columns(message.query, token, seen)[0]
        if name == "CommandPreparedStatementQuery":
            statement = self._statement(message.prepared_statement_handle, token)
            return pa.ipc.read_schema(pa.py_buffer(statement.schema))
        return self._describe(name, message, token).schema

    def fetch(self, ticket: bytes, token: str, seen: Seen = nobody) -> FlightAnswer:
        """Fetches the rows of a ticket. The caller closes what was begun."""
        name, message = unpack_any(ticket)
        if name != "TicketStatementQuery":
            return self._describe(name, message, token)
        wanted = _ticket(message)
        held = self._held.take(_mine(token, wanted.held)) if wanted.held else None
        return held or self._ask((wanted.sql, wanted.parameters), token, wanted.pins, seen)

    def prepare(self, query: str, token: str, seen: Seen = nobody) -> tuple[bytes, pa.Schema, pa.Schema]:
        schema, names = self._columns(query, token, seen)
        handle = uuid.uuid4().hex
        kept = FlightStatement(token=token, sql=query, schema=schema.serialize().to_pybytes())
        self._statements.put(_mine(token, handle), kept, self._clock())
        return handle.encode(), schema, pa.schema([pa.field(name, pa.utf8()) for name in names])

    def bind(self, handle: bytes, rows: pa.Table, token: str) -> None:
        """Binds parameters: by name, if the columns have names and the statement has named
        parameters; else by position."""
        statement = self._statement(handle, token)
        if rows.num_rows != 1:
            raise Invalid(
                f"{plural(rows.num_rows, 'row')} of parameters came", rule="flight-parameters", hint="one at a time"
            )
        values = [_plain(column[0].as_py()) for column in rows.columns]
        is_named = all(name and not name.isdecimal() for name in rows.column_names) and "$" in statement.sql
        statement.parameters = dict(zip(rows.column_names, values, strict=True)) if is_named else values

    def close(self, handle: bytes, token: str) -> None:
        self._statements.take(_mine(token, _text(handle)))

    def cancel(self, ticket: bytes, token: str) -> str:
        """Ends the unfetched answer of a ticket. Returns the handle, since the answer may be in transfer."""
        handle = self.handle_of(ticket, token)
        held = self._held.take(handle)
        if held is not None:
            _close(held)
        return handle

    def handle_of(self, ticket: bytes, token: str) -> str:
        """Returns the handle of the answer that was begun for a ticket; empty if none was. Raises Invalid."""
        name, message = unpack_any(ticket)
        return _mine(token, _ticket(message).held) if name == "TicketStatementQuery" else ""

    def pass_on(self, path: str, request: bytes, token: str, seen: Seen = nobody) -> Iterator[bytes]:
        """Passes on a request of our client, and the node's bytes in return. Raises Invalid."""
        try:
            said = msgspec.json.decode(request or b"null", type=dict[str, Any] | None)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Invalid("the request is not understood", rule="flight-message") from error
        return self._node.pass_on(path, {"token": token} | ({} if said is None else {"request": said}), seen)

    def forget(self) -> None:
        now = self._clock()
        self._statements.forget(now)
        self._held.forget(now)

    def _statement(self, handle: bytes, token: str) -> FlightStatement:
        return self._statements.get(_mine(token, _text(handle)), self._clock())

    def _begin(self, asked: tuple[str, Any], token: str, seen: Seen) -> tuple[pa.Schema, bytes]:
        answer = self._ask(asked, token, [], seen)
        assert answer.begun is not None
        held = uuid.uuid4().hex
        self._held.put(_mine(token, held), answer, self._clock())
        ticket = Ticket(sql=asked[0], parameters=asked[1], pins=answer.begun.told.pins, held=held)
        return answer.schema, pack_any("TicketStatementQuery", statement_handle=msgspec.json.encode(ticket))

    def _ask(self, asked: tuple[str, Any], token: str, pins: list[dict[str, Any]], seen: Seen) -> FlightAnswer:
        request = {"sql": asked[0], "parameters": asked[1], "pins": pins}
        rows = self._node.query({"token": token, "request": request}, seen)
        return FlightAnswer(rows.schema, rows, rows)

    def _columns(self, sql: str, token: str, seen: Seen) -> tuple[pa.Schema, list[str]]:
        rows = self._node.query({"token": token, "request": {"sql": sql}, "unbound": True}, seen)
        try:
            return rows.schema, rows.told.parameters
        finally:
            rows.close()

    def _describe(self, name: str, message: Any, token: str) -> FlightAnswer:
        """Answers a command about metadata. Raises Invalid for a command that fetches nothing."""
        match name:
            case "CommandGetCatalogs":
                table = metadata.CATALOGS.empty_table()
            case "CommandGetDbSchemas":
                table = metadata.schemas(*_optional(message, "catalog", "db_schema_filter_pattern"))
            case "CommandGetTableTypes":
                table = metadata.table_types()
            case "CommandGetTables":
                table = metadata.tables(self._node.datasets(token), message)
            case "CommandGetPrimaryKeys":
                table = metadata.primary_keys(self._node.datasets(token), message)
            case "CommandGetExportedKeys" | "CommandGetImportedKeys" | "CommandGetCrossReference":
                table = metadata.FOREIGN_KEYS.empty_table()
            case "CommandGetSqlInfo":
                table = metadata.sql_info(list(message.info), self._version)
            case "CommandGetXdbcTypeInfo":
                table = metadata.types(*_optional(message, "data_type"))
            case _:
                raise Invalid(f"{name} fetches nothing", rule="flight-command", hint="ask with CommandStatementQuery")
        return FlightAnswer(table.schema, table.to_batches())


def _ticket(message: Any) -> Ticket:
    """Decodes a ticket. Raises Invalid."""
    try:
        return msgspec.json.decode(message.statement_handle, type=Ticket)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid("not a ticket of this node", rule="flight-ticket", hint="ask for its FlightInfo") from error


def _optional(message: Any, *fields: str) -> list[Any]:
    return [getattr(message, field) if message.HasField(field) else None for field in fields]


def _mine(token: str, handle: str) -> str:
    return f"{token} {handle}"


def _text(handle: bytes) -> str:
    """Decodes a handle. Raises NotFound for one that is not ours."""
    try:
        return handle.decode("ascii")
    except UnicodeDecodeError as error:
        raise NotFound("no such statement is kept", rule="flight-statement", hint="prepare it again") from error


def _close(answer: FlightAnswer) -> None:
    if answer.begun is not None:
        answer.begun.close()


def _plain(value: object) -> object:
    """Converts a parameter to a JSON value. Raises Invalid."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise Invalid(
        f"a parameter cannot be a {type(value).__name__}", rule="flight-parameters", hint="numbers, text, times"
    )


class FlightStatement(msgspec.Struct, kw_only=True):
    """A prepared statement. ``schema``: Arrow IPC of its columns."""

    token: str
    sql: str
    schema: bytes = b""
    parameters: list[Any] | dict[str, Any] | None = None


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """The ticket of an answer; fetching it again gives the same rows."""

    sql: str
    parameters: list[Any] | dict[str, Any] | None = None
    pins: list[dict[str, Any]] = []
    held: str = ""
    """Handle of the answer that was begun for it; empty: none was."""


class HandleStore(Generic[T]):
    """Holds a limited number of values by handle; drops the least recently used first. Safe to use from many threads.

    A handle includes its caller's token.
    """

    def __init__(self, most: int, seconds: float, drop: Callable[[T], None] = lambda _: None) -> None:
        self._most, self._seconds, self._drop = most, seconds, drop
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, T]] = OrderedDict()

    def put(self, handle: str, value: T, now: float) -> None:
        with self._lock:
            self._kept[handle] = (now, value)
            self._kept.move_to_end(handle)
            gone = [self._kept.popitem(last=False)[1][1] for _ in range(len(self._kept) - self._most)]
        for each in gone:
            self._drop(each)

    def get(self, handle: str, now: float) -> T:
        """Returns a value and notes its use. Raises NotFound."""
        with self._lock:
            found = self._kept.get(handle)
            if found is not None:
                self._kept[handle] = (now, found[1])
                self._kept.move_to_end(handle)
        if found is None:
            raise NotFound("no such statement is kept", rule="flight-statement", hint="prepare it again")
        return found[1]

    def take(self, handle: str) -> T | None:
        with self._lock:
            found = self._kept.pop(handle, None)
        return None if found is None else found[1]

    def forget(self, now: float) -> None:
        with self._lock:
            old = [handle for handle, (at, _) in self._kept.items() if now - at >= self._seconds]
            gone = [self._kept.pop(handle)[1] for handle in old]
        for each in gone:
            self._drop(each)
