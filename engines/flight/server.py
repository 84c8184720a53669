"""Serves Flight SQL over gRPC: pyarrow's threads call ``FlightSql``, and faults become gRPC statuses with a message.

The header ``authorization`` identifies the caller: a bearer token, or a name with a token as password, which a
handshake returns as a bearer token. The node decides what a token may read.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as flight

from chain.errors import Environment, Fault, Invalid, NotFound, Refused
from engines.flight.messages import CANCELLED, CLASSES, MAX_MESSAGE, parse_message, unpack_any
from engines.flight.service import MAX_PARAMETERS_BYTES, FlightAnswer, FlightSql, Seen

LOOK_SECONDS: Final = 0.5
"""Seconds between checks whether clients are still connected."""
MAX_BATCH: Final = 3 << 20
"""Most bytes of a batch: clients in Go and Rust take messages of 4 MiB unless told otherwise, and ADBC's of 16."""
_ALIGNED: Final = 64
"""Rows at whose multiples a batch is divided if possible, as bits are then not moved."""
ANONYMOUS: Final = "anonymous"
_TOKENS: Final = "flight-tokens"
_CREATE, _CLOSE = "CreatePreparedStatement", "ClosePreparedStatement"
_CANCEL, _CANCEL_QUERY = "CancelFlightInfo", "CancelQuery"
ACTIONS: Final = {
    _CREATE: "prepares a statement",
    _CLOSE: "forgets a prepared statement",
    _CANCEL: "ends an answer",
    _CANCEL_QUERY: "the same, for older clients",
    "odfd.query": "asks as POST /node/v1alpha1/query does",
    "odfd.datasets": "lists datasets",
}


OWN_ACTIONS: Final = {"odfd.query": "/query", "odfd.datasets": "/datasets"}
"""Actions of our own -> the node's path to which they are passed on."""


class FlightCaller(flight.ServerMiddleware):  # type: ignore[misc]
    """The caller of one request. ``token`` is empty without authorization."""

    def __init__(self, token: str, answered: dict[str, str]) -> None:
        self.token, self._answered = token, answered

    def sending_headers(self) -> dict[str, str]:
        return self._answered


class Callers(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def start_call(self, _info: Any, headers: dict[str, list[str]]) -> FlightCaller:
        said = next((values[0] for name, values in headers.items() if name.lower() == "authorization" and values), "")
        token = token_of(said)
        basic = said[:6].lower() == "basic "
        return FlightCaller(token, {"authorization": f"Bearer {token or ANONYMOUS}"} if basic else {})


class NoHandshake(flight.ServerAuthHandler):  # type: ignore[misc]
    def authenticate(self, _outgoing: Any, _incoming: Any) -> None: ...

    def is_valid(self, _token: Any) -> str:
        return ""


def token_of(header: str) -> str:
    """Returns the token in ``authorization``; empty if absent. Another scheme gives a token that never matches.

    Arrow's Go library, which ADBC uses, writes Base64 without its padding.
    """
    kind, _, rest = header.strip().partition(" ")
    if kind.lower() == "basic":
        try:
            padded = rest.rstrip("=") + "=" * (-len(rest.rstrip("=")) % 4)
            _, _, rest = base64.b64decode(padded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            rest = "?"
        kind = "bearer"
    if not header or (kind.lower() == "bearer" and rest in ("", ANONYMOUS)):
        return ""
    return rest[:1000] if kind.lower() == "bearer" else "?"


class FlightSqlServer(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, location: str, service: FlightSql) -> None:
        super().__init__(location, auth_handler=NoHandshake(), middleware={"caller": Callers()})
        self._service = service
        self._under_way = RunningAnswers()
        watcher = threading.Thread(target=self._watch, name="flight clients", daemon=True)
        watcher.start()

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        with self._under_way.seeing(context) as seen, translated_faults():
            schema, ticket = self._service.info(_command(descriptor), _token(context), seen)
            return flight.FlightInfo(schema, descriptor, [flight.FlightEndpoint(ticket, [])], -1, -1)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        with self._under_way.seeing(context) as seen, translated_faults():
            return flight.SchemaResult(self._service.columns(_command(descriptor), _token(context), seen))

    def do_get(self, context: Any, ticket: Any) -> Any:
        with self._under_way.seeing(context) as seen, translated_faults():
            answer = self._service.fetch(ticket.ticket, _token(context), seen)
            return flight.GeneratorStream(answer.schema, self._batches(answer, context, ticket.ticket))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with translated_faults():
            name, message = unpack_any(_command(descriptor))
            if name != "CommandPreparedStatementQuery":
                raise Invalid("rows are taken as parameters alone", rule="flight-command", hint="a node is not written")
            batches, size = [], 0
            for chunk in reader:
                size += chunk.data.nbytes
                if size > MAX_PARAMETERS_BYTES:
                    raise Invalid(f"parameters have at most {MAX_PARAMETERS_BYTES:,} bytes", rule="flight-size")
                batches.append(chunk.data)
            handle = message.prepared_statement_handle
            self._service.bind(handle, pa.Table.from_batches(batches, reader.schema), _token(context))
            result = CLASSES["DoPutPreparedStatementResult"](prepared_statement_handle=handle)
            writer.write(pa.py_buffer(result.SerializeToString()))

    def do_action(self, context: Any, action: Any) -> Any:
        body = action.body.to_pybytes() if action.body is not None else b""
        if action.type in OWN_ACTIONS:
            return self._pass_on(context, OWN_ACTIONS[action.type], body)
        with self._under_way.seeing(context) as seen, translated_faults():
            acted = self._perform(action.type, body, _token(context), seen)
            return [flight.Result(pa.py_buffer(each)) for each in acted]

    def _pass_on(self, context: Any, path: str, body: bytes) -> Iterator[Any]:
        with self._under_way.seeing(context) as seen, translated_faults():
            for data in self._service.pass_on(path, body, _token(context), seen):
                yield flight.Result(pa.py_buffer(data))

    def list_actions(self, _context: Any) -> list[Any]:
        return list(ACTIONS.items())

    def list_flights(self, _context: Any, _criteria: Any) -> Any:
        return iter(())

    def _perform(self, kind: str, body: bytes, token: str, seen: Seen) -> list[bytes]:
        if kind == _CREATE:
            handle, schema, parameters = self._service.prepare(_request(kind, body).query, token, seen)
            result = CLASSES["ActionCreatePreparedStatementResult"](
                prepared_statement_handle=handle,
                dataset_schema=schema.serialize().to_pybytes(),
                parameter_schema=parameters.serialize().to_pybytes() if len(parameters) else b"",
                is_update=False,
            )
            return [_any(result)]
        if kind == _CLOSE:
            self._service.close(_request(kind, body).prepared_statement_handle, token)
            return []
        if kind == _CANCEL:
            self._cancel(parse_message("CancelFlightInfoRequest", body).info, token)
            return [CLASSES["CancelFlightInfoResult"](status=CANCELLED).SerializeToString()]
        if kind == _CANCEL_QUERY:
            self._cancel(_request(kind, body).info, token)
            return [_any(CLASSES["ActionCancelQueryResult"](result=CANCELLED))]
        raise Invalid(f"the action {kind[:60]} is not understood here", rule="flight-action", hint="a node is read")

    def _cancel(self, info: bytes, token: str) -> None:
        try:
            endpoints = flight.FlightInfo.deserialize(info).endpoints
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise Invalid("the answer is not a FlightInfo", rule="flight-message") from error
        for endpoint in endpoints:
            self._under_way.interrupt(self._service.cancel(endpoint.ticket.ticket, token))

    def _batches(self, answer: FlightAnswer, context: Any, ticket: bytes) -> Iterator[pa.RecordBatch]:
        if answer.begun is None:
            yield from itertools.chain.from_iterable(map(pieces, answer.batches))
            return
        handle = self._service.handle_of(ticket, _token(context))
        with self._under_way.watch(answer.begun, context, handle), translated_faults():
            yield from itertools.chain.from_iterable(map(pieces, answer.batches))

    def _watch(self) -> None:
        stopped = threading.Event()
        while not stopped.wait(LOOK_SECONDS):
            self._under_way.leave()
            self._service.forget()


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a batch in batches of at most ``MAX_BATCH`` bytes; a larger row is a batch of its own."""
    half = batch.num_rows // 2 & -_ALIGNED or batch.num_rows // 2
    if batch.nbytes <= MAX_BATCH or not half:
        yield batch
        return
    for piece in (batch.slice(0, half), batch.slice(half)):
        if piece.nbytes < batch.nbytes:
            yield from pieces(piece)
        else:  # its bytes are those of a dictionary
            yield piece


class RunningAnswers:
    """Answers that are being fetched. If a client disconnects, its answer is interrupted, and with it
    the node's query."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[int, tuple[Any, Any, str]] = {}

    @contextmanager
    def seeing(self, context: Any) -> Iterator[Callable[[Any], None]]:
        """Interrupts responses that are started within it when the client disconnects."""
        noted: list[int] = []

        def register(begun: Any) -> None:
            with self._lock:
                self._all[id(begun)] = (begun, context, "")
            noted.append(id(begun))

        try:
            yield register
        finally:
            with self._lock:
                for each in noted:
                    self._all.pop(each, None)

    @contextmanager
    def watch(self, begun: Any, context: Any, handle: str) -> Iterator[None]:
        with self._lock:
            self._all[id(begun)] = (begun, context, handle)
        try:
            yield
        finally:
            with self._lock:  # the call may end after this, so its context is no longer checked
                self._all.pop(id(begun), None)
            begun.close()

    def leave(self) -> None:
        with self._lock:
            for begun, context, _ in self._all.values():
                if context.is_cancelled():
                    begun.interrupt()

    def interrupt(self, handle: str) -> None:
        with self._lock:
            for begun, _, each in self._all.values():
                if handle and each == handle:
                    begun.interrupt()


@contextmanager
def translated_faults() -> Iterator[None]:
    """Converts faults raised within it to gRPC status errors."""
    try:
        yield
    except Fault as fault:
        raise _status(fault)(words(fault)) from None
    except (OSError, ValueError, pa.ArrowException) as error:
        raise flight.FlightUnavailableError(f"the answer was cut off: {error}") from None


def keep_traces() -> None:
    """Keeps Python tracebacks in the log of the process, since pyarrow would append them to the message for clients."""

    def name_of(kind: Any, value: Any = None, trace: Any = None, **_: Any) -> list[str]:
        error = kind if value is None else value
        if not isinstance(error, pa.ArrowException | flight.FlightError):
            text = "".join(traceback.TracebackException(type(error), error, trace).format())
            sys.stderr.write(text)
        return [type(error).__name__]

    traceback.format_exception = name_of  # type: ignore[assignment]


def words(fault: Fault) -> str:
    """Formats a fault as one line: what is wrong and where, what to do, the rule."""
    place = f" ({fault.place})" if fault.place else ""
    hint = f"; {fault.hint}" if fault.hint else ""
    return f"{fault.message}{place}{hint}{f' [{fault.rule}]' if fault.rule else ''}"


def _status(fault: Fault) -> Callable[[str], Exception]:
    if isinstance(fault, Refused) and fault.rule == _TOKENS:
        return flight.FlightUnauthenticatedError  # type: ignore[no-any-return]
    if isinstance(fault, NotFound):
        return pa.ArrowKeyError  # type: ignore[no-any-return]
    if isinstance(fault, Invalid):
        return pa.ArrowInvalid  # type: ignore[no-any-return]
    if fault.rule == "query-deadline":
        return flight.FlightTimedOutError  # type: ignore[no-any-return]
    if isinstance(fault, Refused) and fault.rule != "query-busy":
        return flight.FlightUnauthorizedError  # type: ignore[no-any-return]
    assert isinstance(fault, Environment | Refused)
    return flight.FlightUnavailableError  # type: ignore[no-any-return]


def _command(descriptor: Any) -> bytes:
    """Returns the command of a descriptor. Raises Invalid for one without."""
    if descriptor.descriptor_type is not flight.DescriptorType.CMD or len(descriptor.command) > MAX_MESSAGE:
        raise Invalid("a flight is named by a command of Flight SQL", rule="flight-command", hint="no paths are known")
    return bytes(descriptor.command)


def _request(kind: str, body: bytes) -> Any:
    """Parses the request of an action. Raises Invalid."""
    name, message = unpack_any(body)
    if name != f"Action{kind}Request":
        raise Invalid(f"{name} is no request of {kind}", rule="flight-action")
    return message


def _any(message: Any) -> bytes:
    from google.protobuf import any_pb2

    wrapped = any_pb2.Any()
    wrapped.Pack(message)
    return bytes(wrapped.SerializeToString())


def _token(context: Any) -> str:
    return str(context.get_middleware("caller").token)
