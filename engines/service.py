"""Serves the engine contract: a gRPC server around one synchronous ``Handler``.

Does what every engine needs: framing, limits, one transaction at a time per dataset, the same answer to the same
transaction id, heartbeats, cancellation when the caller goes away or its deadline passes, and an
``EngineInternalError`` with a backtrace for whatever the handler raises. Never looks into a query and never ends the
process. Made by an engine's entry point; lives until ``stop``. ODF specification: schemas/engine.proto.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import queue
import re
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

import grpc

from chain.errors import Fault, Invalid
from engines import codec
from engines.contract import (
    EngineIdentity,
    EngineInternalError,
    IngestAnswer,
    IngestBatchRequest,
    IngestResponseRoot,
    InvalidQuery,
    MigrateOutcome,
    MigrateRequest,
    MigrateResponseRoot,
    ProvenanceOutcome,
    ProvenanceRequest,
    ProvenanceResponseRoot,
    RawQueryOutcome,
    RawQueryRequest,
    RawQueryResponseRoot,
    SessionRequest,
    SessionState,
    Success,
    TransformOutcome,
    TransformRequest,
    TransformResponseRoot,
    ValidateRequest,
    ValidateResponse,
)
from engines.errors import DEADLINE, DISK, MAX_BACKTRACE, MEMORY, TRACE
from engines.listen_address import READY, cannot_listen, check_free, parse_address
from engines.request_control import RequestControl

MAX_STATUS: Final = 3_000
"""Most characters of a message in the status of a call, which gRPC bounds."""
MAX_LINES: Final = 10
"""Most lines of an exception's own message; the backtrace has all."""
_IN_JAVA: Final = re.compile(r"\s+(at |\.\.\. \d+ more)|Driver stacktrace:|\s*\Z")
"""Matches stack trace lines of Java, which are many and useless to a user."""
_NO_ROOM: Final = {errno.ENOSPC, errno.EDQUOT}


class Handler(Protocol):
    """The port of an engine's work. Called from worker threads; one call at a time per dataset.

    Faults of the query are returned (``InvalidQuery``); anything raised is reported as ``EngineInternalError``.
    """

    def identity(self) -> EngineIdentity: ...

    def session(self, request: SessionRequest) -> SessionState: ...

    def validate(self, request: ValidateRequest) -> ValidateResponse: ...

    def transform(self, request: TransformRequest, control: RequestControl) -> TransformOutcome: ...

    def ingest(self, request: IngestBatchRequest, control: RequestControl) -> IngestAnswer: ...

    def raw_query(self, request: RawQueryRequest, control: RequestControl) -> RawQueryOutcome: ...

    def migrate(self, request: MigrateRequest, control: RequestControl) -> MigrateOutcome: ...
    def derive_provenance(self, request: ProvenanceRequest, control: RequestControl) -> ProvenanceOutcome: ...


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Bounds of one engine process."""

    jobs: int = 4
    """Requests worked on at once; Spark schedules their tasks on the same cores."""
    waiting: int = 28
    """Requests that may wait beyond those; more are refused with RESOURCE_EXHAUSTED."""
    heartbeat: float = 1.0
    """Seconds between two progress reports of a request."""
    remembered: int = 256
    """Transactions whose answers are kept for a caller that asks again."""
    deadline: float | None = None
    """Most seconds for a request with its waiting, whatever its caller allows; ``None``: the caller's deadline."""


@dataclass(frozen=True, slots=True)
class _Route:
    """How one streaming method is handled: codec, handler method, response root, dataset of a request, output paths."""

    method: codec.Method[Any, Any]
    work: Callable[[Any, RequestControl], Any]
    root: Callable[..., Any]
    dataset: Callable[[Any], bytes]
    outputs: Callable[[Any], tuple[str, ...]]


class _Turns:
    """Locks by key (dataset), with one holder each; a waiter gives up after ``patience`` seconds to send a heartbeat,
    and tries again."""

    def __init__(self) -> None:
        self._busy: set[bytes] = set()
        self._changed = threading.Condition()

    def take(self, key: bytes, patience: float) -> bool:
        with self._changed:
            if not self._changed.wait_for(lambda: key not in self._busy, patience):
                return False
            self._busy.add(key)
            return True

    def give(self, key: bytes) -> None:
        with self._changed:
            self._busy.discard(key)
            self._changed.notify_all()


class _Memory:
    """Remembers successful answers by transaction id, for as long as their output files exist."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._answers: OrderedDict[str, tuple[bytes, Success, tuple[str, ...]]] = OrderedDict()
        self._lock = threading.Lock()

    def recall(self, transaction: str | None, request: bytes) -> Success | None:
        with self._lock:
            known = self._answers.get(transaction or "")
        if known is None or known[0] != request or not all(Path(path).is_file() for path in known[2]):
            return None
        return known[1]

    def keep(self, transaction: str | None, request: bytes, outcome: object, outputs: tuple[str, ...]) -> None:
        if not transaction or not isinstance(outcome, Success):
            return
        written = tuple(path for path in outputs if Path(path).is_file())
        with self._lock:
            self._answers[transaction] = request, outcome, written
            self._answers.move_to_end(transaction)
            if len(self._answers) > self._size:
                self._answers.popitem(last=False)


class _Service(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    def __init__(self, handler: Handler, limits: ServiceLimits) -> None:
        self._limits = limits
        self._turns = _Turns()
        self._memory = _Memory(limits.remembered)
        self.pool = ThreadPoolExecutor(limits.jobs, thread_name_prefix="engine-job")
        self.controls: set[RequestControl] = set()
        self._left: dict[Future[bytes], float] = {}
        """Requests at work whose caller has gone, and since when."""
        streams = (
            _Route(codec.TRANSFORM, handler.transform, TransformResponseRoot, _dataset, _transform_outputs),
            _Route(codec.INGEST, handler.ingest, IngestResponseRoot, _dataset, _data_output),
            _Route(codec.RAW_QUERY, handler.raw_query, RawQueryResponseRoot, _query_output, lambda _: ()),
            _Route(codec.MIGRATE, handler.migrate, MigrateResponseRoot, _dataset, lambda _: ()),
            _Route(codec.PROVENANCE, handler.derive_provenance, ProvenanceResponseRoot, _question_key, lambda _: ()),
        )
        self._streams = {route.method.path: route for route in streams}
        self._unary: dict[str, tuple[codec.Method[Any, Any], Callable[[Any], Any]]] = {
            codec.VALIDATE.path: (codec.VALIDATE, handler.validate),
            codec.IDENTITY.path: (codec.IDENTITY, lambda _: handler.identity()),
            codec.SESSION.path: (codec.SESSION, lambda request: self._session(handler, request)),
        }

    def service(self, details: Any) -> Any:
        """Looks up a method for gRPC; ``None`` is UNIMPLEMENTED. Bytes stay undecoded here, so that we name errors."""
        if route := self._streams.get(details.method):
            return grpc.unary_stream_rpc_method_handler(lambda raw, context: self._stream(route, raw, context))
        if unary := self._unary.get(details.method):
            return grpc.unary_unary_rpc_method_handler(lambda raw, context: self._one(*unary, raw, context))
        return None

    def _one(self, method: codec.Method[Any, Any], work: Callable[[Any], Any], raw: bytes, context: Any) -> bytes:
        request = _decode(method, raw, context)
        if isinstance(request, SessionRequest) and not request.starts:
            return method.encode_response(work(request))  # it is also asked whether the pool is stuck
        future = self.pool.submit(work, request)
        error = future.exception()
        if error is not None:
            context.abort(grpc.StatusCode.INTERNAL, f"{_message_of(error)}\n{TRACE}\n{_backtrace(error)[-MAX_STATUS:]}")
        return method.encode_response(future.result())

    def _session(self, handler: Handler, request: SessionRequest) -> SessionState:
        now = time.monotonic()
        waits = [now - since for future, since in list(self._left.items()) if not future.done()]
        state = handler.session(request)
        return SessionState(state=state.state, message=state.message, lingering=round(1000 * max(waits, default=0)))

    def _leave(self, future: Future[bytes]) -> None:
        """Cancels work for which nobody waits; if it has begun, it goes on until it asks its control."""
        if not future.cancel():
            self._left[future] = time.monotonic()
            future.add_done_callback(lambda _: self._left.pop(future, None))

    def _stream(self, route: _Route, raw: bytes, context: Any) -> Iterator[bytes]:
        request = _decode(route.method, raw, context)
        signals: queue.SimpleQueue[None] = queue.SimpleQueue()
        control = RequestControl(lambda: signals.put(None))
        control.register_cancel(lambda: signals.put(None))

        def alive() -> bytes:
            return route.method.encode_response(route.root(value=control.how_far()))

        end = None if self._limits.deadline is None else time.monotonic() + self._limits.deadline
        future: Future[bytes] | None = None
        self.controls.add(control)
        try:
            # False: the call is over already, so nobody will cancel it later.
            if not context.add_callback(control.cancel):
                return
            key = route.dataset(request)
            while not self._turns.take(key, self._limits.heartbeat):
                yield alive()
                if control.cancelled.is_set():
                    return
                if _is_over(end):
                    yield self._too_late(route)
                    return
            future = self.pool.submit(self._work, route, request, hashlib.sha3_256(raw).digest(), control)
            # When the work ends, not the call: work that was cancelled goes on until it asks its control.
            future.add_done_callback(lambda _: self._turns.give(key))
            future.add_done_callback(lambda _: signals.put(None))
            while not future.done():
                with contextlib.suppress(queue.Empty):
                    signals.get(timeout=self._patience(end))
                if control.cancelled.is_set():
                    return
                if _is_over(end) and not future.done():
                    control.cancel()
                    yield self._too_late(route)
                    return
                if not future.done():
                    yield alive()
            yield _answer(route, future)
        finally:
            self.controls.discard(control)
            if future is not None and not future.done():
                self._leave(future)

    def _patience(self, end: float | None) -> float:
        """Returns the seconds until the next heartbeat or the deadline ``end``, whichever is sooner."""
        beat = self._limits.heartbeat
        return beat if end is None else max(0.0, min(beat, end - time.monotonic()))

    def _too_late(self, route: _Route) -> bytes:
        said = f"the request took longer than {self._limits.deadline:g} s and was stopped"
        return route.method.encode_response(route.root(value=EngineInternalError(message=said, rule=DEADLINE)))

    def _work(self, route: _Route, request: Any, digest: bytes, control: RequestControl) -> bytes:
        """Works on a request and returns the encoded answer: a failure to encode counts as the handler's fault."""
        transaction = getattr(request, "transaction_id", None)
        known = self._memory.recall(transaction, digest)
        if known is not None:
            return route.method.encode_response(route.root(value=known))
        control.check()
        try:
            outcome = route.work(request, control)
        finally:
            # gRPC cancels at the end of every call, and then there is nothing left to stop.
            control.finish()
        if isinstance(outcome, InvalidQuery) and not getattr(request, "reads_extensions", True):
            outcome = outcome.whole
        answer = route.method.encode_response(route.root(value=outcome))
        self._memory.keep(transaction, digest, outcome, route.outputs(request))
        return answer


class EngineServer:
    """A running service. ``address`` is the address that clients dial."""

    def __init__(self, server: Any, service: _Service, address: str) -> None:
        self._server = server
        self._service = service
        self.address = address

    @property
    def ready_line(self) -> str:
        """The line that the engine process prints once, to report its address to its parent."""
        return READY + self.address

    def wait(self) -> None:
        """Waits until ``stop``."""
        self._server.wait_for_termination()

    def stop(self, grace: float = 0.0) -> None:
        """Refuses new requests, cancels those in flight after ``grace`` seconds, and waits until they have ended."""
        self._server.stop(grace).wait()
        for control in list(self._service.controls):
            control.cancel()
        self._service.pool.shutdown(wait=True, cancel_futures=True)


def serve(handler: Handler, listen: str, limits: ServiceLimits | None = None) -> EngineServer:
    """Starts to serve at ``unix:PATH`` or ``HOST:PORT`` (port 0: any free one). Raises Environment when it cannot."""
    limits = limits or ServiceLimits()
    address = parse_address(listen)
    check_free(address)
    service = _Service(handler, limits)
    calls = limits.jobs + limits.waiting
    server = grpc.server(
        ThreadPoolExecutor(calls, thread_name_prefix="engine-call"),
        handlers=(service,),
        # gRPC would queue further calls without a bound, in memory.
        maximum_concurrent_rpcs=calls,
        options=(
            ("grpc.max_receive_message_length", codec.MAX_MESSAGE),
            ("grpc.max_send_message_length", codec.MAX_MESSAGE),
            # With it a second engine could bind the same port, and the kernel would share the calls out among both.
            ("grpc.so_reuseport", 0),
        ),
    )
    try:
        port = server.add_insecure_port(str(address))
    except RuntimeError as error:
        raise cannot_listen(address, False, "gRPC could not have it") from error
    server.start()
    return EngineServer(server, service, str(address) if address.path is not None else f"{address.host}:{port}")


def _is_over(end: float | None) -> bool:
    return end is not None and time.monotonic() >= end


def _decode(method: codec.Method[Any, Any], raw: bytes, context: Any) -> Any:
    try:
        return method.decode_request(raw)
    except Invalid as error:
        return _refuse(context, str(error))


def _refuse(context: Any, message: str) -> NoReturn:
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
    raise AssertionError("abort raises")


def _answer(route: _Route, future: Future[bytes]) -> bytes:
    error = future.exception()
    if error is None:
        return future.result()
    failed = EngineInternalError(message=_message_of(error), backtrace=_backtrace(error), rule=_rule(error))
    return route.method.encode_response(route.root(value=failed))


def _rule(error: BaseException) -> str | None:
    if isinstance(error, MemoryError):
        return MEMORY
    if _is_full_disk(error):
        return DISK
    return (error.rule or None) if isinstance(error, Fault) else None


def _is_full_disk(error: BaseException | None) -> bool:
    """Whether the error was caused by a full disk."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return True
        error = error.__cause__
    return False


def _message_of(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "the request needs more memory than the engine has; give it more, or ask for less at once"
    if _is_full_disk(error):
        return "the disk of the engine is full; free some space, or ask for less at once"
    if isinstance(error, Fault):
        return f"{error} ({error.hint})" if error.hint else str(error)
    lines = [line for line in str(error).splitlines() if not _IN_JAVA.match(line)]
    return "\n".join([f"{type(error).__name__}: {''.join(lines[:1])}", *lines[1:MAX_LINES]])


def _backtrace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-MAX_BACKTRACE:]


def _dataset(request: TransformRequest | IngestBatchRequest | MigrateRequest) -> bytes:
    return bytes(request.dataset_id)


def _query_output(request: RawQueryRequest) -> bytes:
    return request.output_data_path.encode()


def _transform_outputs(request: TransformRequest) -> tuple[str, ...]:
    return request.new_data_path, request.new_checkpoint_path


def _data_output(request: IngestBatchRequest) -> tuple[str, ...]:
    aside = request.quarantine
    return (request.new_data_path,) if aside is None else (request.new_data_path, aside.path)


def _question_key(request: ProvenanceRequest) -> bytes:
    """Returns the lock key of a provenance question: not the dataset's, since it reads only finished blocks and need
    not wait for a transaction."""
    return b"provenance " + bytes(request.dataset_id)
