"""Calls an engine over gRPC: the client side of the port ``contract.Engine``, with async trio callers and blocking gRPC
calls in threads.

Every call has a deadline. When the caller's trio scope is cancelled, the call is cancelled on the engine's side too;
the thread then ends by itself, so nothing is abandoned. Never starts or restarts an engine (``engines.provision``
does), and never retries: a transaction id makes a retry safe, but whether it makes sense is for the coordinator to
decide. One per engine process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import grpc
import msgspec
import trio

from chain.errors import Environment, Fault, Invalid
from chain.store.files import DAMAGED
from engines import codec
from engines.contract import (
    DerivationNeeded,
    EngineIdentity,
    EngineInternalError,
    EngineProgress,
    IdentityRequest,
    IngestAnswer,
    IngestBatchRequest,
    InvalidQuery,
    MigrateOutcome,
    MigrateRequest,
    OnProgress,
    ProvenanceOutcome,
    ProvenanceRequest,
    RawQueryOutcome,
    RawQueryRequest,
    RawQuerySuccess,
    SessionRequest,
    SessionState,
    Success,
    TransformOutcome,
    TransformRequest,
    ValidateRequest,
    ValidateResponse,
    ignore_progress,
)
from engines.errors import (
    ALIVE,
    DEADLINE,
    DISK,
    JVM_LOST,
    MEMORY,
    SESSION,
    TRACE,
    EngineFault,
    EngineLost,
    LimitExceeded,
    engine_failed,
)
from engines.io_plan import (
    CHECKPOINT,
    DATA,
    QUARANTINE,
    IoPlan,
    SandboxView,
    plan_ingest,
    plan_migrate,
    plan_provenance,
    plan_raw_query,
    plan_transform,
)
from engines.request_control import CallLimits
from engines.staging import Staging

Q = TypeVar("Q", bound=msgspec.Struct)
A = TypeVar("A", bound=msgspec.Struct)
T = TypeVar("T")


class _Call(Protocol):
    def __iter__(self) -> Iterator[bytes]: ...

    def cancel(self) -> bool: ...


_FAULTS: Final[dict[str, type[Environment] | type[LimitExceeded]]] = {
    JVM_LOST: EngineLost,
    SESSION: EngineLost,
    DEADLINE: LimitExceeded,
    MEMORY: LimitExceeded,
    DISK: LimitExceeded,
    DAMAGED: Environment,
}
"""Rule of an EngineInternalError -> the exception raised in its place: a coordinator knows the kind of failure."""
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", codec.MAX_MESSAGE),
    ("grpc.max_send_message_length", codec.MAX_MESSAGE),
    # A socket path is no valid authority, and an engine's traffic must never go to a proxy meant for the web.
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    # Engines come and go at one address; a shared subchannel would remember the dead one's back-off.
    ("grpc.use_local_subchannel_pool", 1),
)


class GrpcEngine:
    """The ``contract.Engine`` at ``unix:PATH`` or ``HOST:PORT``. ``close`` makes calls in flight raise EngineLost."""

    def __init__(self, address: str, staging: Staging, view: SandboxView, limits: CallLimits | None = None) -> None:
        self._limits = limits or CallLimits()
        self._address = address
        self._staging = staging
        self._view = view
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        self._threads = trio.CapacityLimiter(self._limits.calls)

    def close(self) -> None:
        self._channel.close()

    async def identity(self) -> EngineIdentity:
        return await self._ask(codec.IDENTITY, IdentityRequest())

    async def session(self, *, starts: bool) -> SessionState:
        """Returns whether requests that need more than the process find it; ``starts``: makes it so first."""
        return await self._ask(codec.SESSION, SessionRequest(starts=starts))

    async def validate(self, request: ValidateRequest) -> ValidateResponse:
        return await self._ask(codec.VALIDATE, request)

    async def transform(self, request: TransformRequest, on_progress: OnProgress = ignore_progress) -> TransformOutcome:
        request = msgspec.structs.replace(request, reads_extensions=True)
        outcome: TransformOutcome = await self._work(codec.TRANSFORM, plan_transform(request, self._view), on_progress)
        return outcome

    async def ingest(self, request: IngestBatchRequest, on_progress: OnProgress = ignore_progress) -> IngestAnswer:
        outcome: IngestAnswer = await self._work(codec.INGEST, plan_ingest(request, self._view), on_progress)
        return outcome

    async def raw_query(self, request: RawQueryRequest, on_progress: OnProgress = ignore_progress) -> RawQueryOutcome:
        request = msgspec.structs.replace(request, reads_extensions=True)
        outcome: RawQueryOutcome = await self._work(codec.RAW_QUERY, plan_raw_query(request, self._view), on_progress)
        return outcome

    async def migrate(self, request: MigrateRequest, on_progress: OnProgress = ignore_progress) -> MigrateOutcome:
        outcome: MigrateOutcome = await self._work(codec.MIGRATE, plan_migrate(request, self._view), on_progress)
        return outcome

    async def derive_provenance(
        self, request: ProvenanceRequest, on_progress: OnProgress = ignore_progress
    ) -> ProvenanceOutcome:
        plan = plan_provenance(request, self._view)
        outcome: ProvenanceOutcome = await self._work(codec.PROVENANCE, plan, on_progress)
        return outcome

    async def _ask(self, method: codec.Method[Q, A], request: Q) -> A:
        ask = self._channel.unary_stream(method.path)
        call = ask(method.encode_request(request), timeout=self._limits.question)
        return await self._drain(call, partial(_only_answer, method))

    async def _work(self, method: codec.Method[Any, Any], plan: IoPlan[Any], on_progress: OnProgress) -> Any:
        """Lays out the files, calls the engine and collects its outputs. After EngineLost the files stay: a retry may
        find the answer."""
        start = self._channel.unary_stream(method.path)
        try:
            await trio.to_thread.run_sync(self._staging.lay, plan)
            call = start(method.encode_request(plan.request), timeout=self._limits.work)
            outcome = await self._drain(call, partial(_last_answer, method, on_progress))
            if isinstance(outcome, Success | RawQuerySuccess):
                await trio.to_thread.run_sync(self._collect, plan, outcome)
        except EngineLost:
            raise
        except BaseException:
            await self._clear(plan)
            raise
        await self._clear(plan)
        if isinstance(outcome, InvalidQuery | EngineInternalError | DerivationNeeded):
            outcome = msgspec.structs.replace(outcome, message=plan.in_host_terms(outcome.message))
        if isinstance(outcome, InvalidQuery):
            parts = {name: getattr(outcome, name) for name in ("hint", "place")}
            told = {name: plan.in_host_terms(text) for name, text in parts.items() if text}
            outcome = msgspec.structs.replace(outcome, **told)
        if isinstance(outcome, EngineInternalError) and outcome.rule in _FAULTS:
            raise _FAULTS[outcome.rule](outcome.message, rule=outcome.rule)
        return outcome

    async def _clear(self, plan: IoPlan[Any]) -> None:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._staging.clear, plan)

    def _collect(self, plan: IoPlan[Any], outcome: Success | RawQuerySuccess) -> None:
        names = {output.name for output in plan.outputs}
        if isinstance(outcome, RawQuerySuccess) or outcome.new_offset_interval is not None:
            self._staging.collect(plan, DATA)
        for name in names & {CHECKPOINT, QUARANTINE}:
            if self._staging.has(plan, name):
                self._staging.collect(plan, name)

    async def _drain(self, call: _Call, read: Callable[[_Call], T]) -> T:
        """Reads the call to its end in a thread. Cancelling the trio scope cancels the call, which ends the thread."""
        result: T | Exception | None = None

        def work() -> T | Exception:
            try:
                return read(call)
            except grpc.RpcError as error:
                return _fault(error, self._address)
            except Fault as fault:
                return fault
            finally:
                call.cancel()

        async with trio.open_nursery() as nursery:
            # gRPC blocks the thread, which trio cannot cancel: cancelling the call ends it.
            nursery.start_soon(_cancel_with_scope, call)
            result = await trio.to_thread.run_sync(work, limiter=self._threads)
            nursery.cancel_scope.cancel()
        # The call may have ended because of the cancellation, and its fault would hide that.
        await trio.lowlevel.checkpoint_if_cancelled()
        if isinstance(result, Exception):
            raise result
        return result


async def _cancel_with_scope(call: _Call) -> None:
    try:
        await trio.sleep_forever()
    finally:
        call.cancel()


def _only_answer(method: codec.Method[Any, A], call: _Call) -> A:
    answer = next(iter(call), None)
    if answer is None:
        raise EngineFault(f"the engine gave no answer to {method.path}", rule="engine-contract")
    return _decode(method, answer)


def _last_answer(method: codec.Method[Any, Any], on_progress: OnProgress, call: _Call) -> Any:
    for raw in call:
        answer = _decode(method, raw).value
        if not isinstance(answer, EngineProgress):
            return answer
        trio.from_thread.run_sync(on_progress, answer)
    raise EngineFault(f"the engine ended {method.path} without an answer", rule="engine-contract")


def _decode(method: codec.Method[Any, A], raw: bytes) -> A:
    try:
        return method.decode_response(raw)
    except Invalid as error:
        raise EngineFault(
            f"the engine's answer to {method.path} is not one: {error}", rule="engine-contract"
        ) from error


def _fault(error: Any, address: str) -> Fault:
    code, said = error.code(), error.details() or ""
    match code:
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            fault: Fault = LimitExceeded(
                "the engine did not finish in time", rule=DEADLINE, hint="raise the engine's deadline, or do less"
            )
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            fault = LimitExceeded(f"over a limit of the engine: {said}", rule="engine-limit")
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
            fault = EngineLost(f"the engine at {address} is gone: {said}", rule=ALIVE)
        case grpc.StatusCode.UNIMPLEMENTED:
            fault = EngineFault(f"the engine does not do this: {said}", rule="engine-contract")
        case grpc.StatusCode.INTERNAL if TRACE in said:
            message, _, trace = said.partition(TRACE)
            return engine_failed(message, trace.strip())  # without its cause, which repeats the trace
        case _:
            fault = EngineFault(f"the engine failed ({code.name.lower()}): {said}", rule="engine-contract")
    fault.__cause__ = error
    return fault
