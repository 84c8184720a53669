"""Implements ``contract.Engine`` over processes that are started and stopped on demand, unnoticed by callers.

A query can break its engine process, never the node: other requests in it raise EngineLost, and the next one gets a new
process. ``Isolation`` decides which requests share one. A request that lost a process which it shared is repeated
once, in one of its own, as another's may have ended it; else the coordinator decides, and a transaction id makes a
retry safe. ``run`` owns everything started and lives as long as the daemon.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import trio

from chain.errors import Environment, Invalid
from chain.ids import DatasetId
from engines.contract import (
    STARTING,
    Engine,
    EngineIdentity,
    EngineInternalError,
    EngineProgress,
    IngestAnswer,
    IngestBatchRequest,
    MigrateOutcome,
    MigrateRequest,
    OnProgress,
    ProvenanceOutcome,
    ProvenanceRequest,
    RawQueryOutcome,
    RawQueryRequest,
    TransformOutcome,
    TransformRequest,
    ValidateRequest,
    ValidateResponse,
    ignore_progress,
)
from engines.errors import ALIVE, DEADLINE, JVM_LOST, SESSION, EngineFault, EngineLost, LimitExceeded
from engines.provision.processes import EngineProcess, Processes
from engines.provision.settings import Isolation, OnEvent, StartStatus, WarmSettings

if TYPE_CHECKING:
    from engines.client import GrpcEngine

A = TypeVar("A")
REPEATING: Final = 4
"""Most requests that are repeated at once, each in a process of its own: as many as one process works on."""
Work: TypeAlias = "Callable[[GrpcEngine], Awaitable[A]]"


class EnginePool:
    """The engines of this node, by the name that a transform states, compared without case, and by their digests."""

    def __init__(self, engines: Mapping[str, Sequence[Engine]]) -> None:
        """``engines``: for each name the engine that new work gets, then others."""
        self._engines = {name.casefold(): tuple(each) for name, each in engines.items()}

    def engine(self, name: str) -> Engine:
        """Returns the engine of that name for what pins none. Raises Invalid for one that this node does not have."""
        return self._find_named(name)[0]

    async def find_pinned(self, name: str, digest: str | None) -> tuple[Engine, EngineIdentity]:
        """Returns the engine of that name with a digest, or else the first one; and what it is. Raises as ``engine``.

        The caller compares the digests: what may be done with another engine depends on the work.
        """
        found = [(each, await each.identity()) for each in self._find_named(name)]
        return next((each for each in found if each[1].digest == digest), found[0])

    def _find_named(self, name: str) -> tuple[Engine, ...]:
        found = self._engines.get(name.casefold())
        if not found:
            known = ", ".join(sorted(self._engines)) or "none"
            raise Invalid(f"no engine called {name!r} here", rule="engine-known", hint=f"this node has: {known}")
        return found


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """An engine process that takes requests now."""

    pid: int
    dataset: str
    """The only dataset for which it works; empty: any."""
    busy: bool
    session: str
    """State of what only some requests need (``engines.contract.SESSION_STATES``)."""


class _Delegating(ABC):
    """Implements the methods of ``contract.Engine`` by passing each to the client of some process."""

    def __init__(self, settings: WarmSettings) -> None:
        self._settings = settings

    async def identity(self) -> EngineIdentity:
        """Returns the configured identity; starts nothing."""
        return self._settings.identity

    async def validate(self, request: ValidateRequest) -> ValidateResponse:
        return await self._with(None, lambda engine: engine.validate(request), ignore_progress)

    async def transform(self, request: TransformRequest, on_progress: OnProgress = ignore_progress) -> TransformOutcome:
        return await self._with(request.dataset_id, lambda engine: engine.transform(request, on_progress), on_progress)

    async def ingest(self, request: IngestBatchRequest, on_progress: OnProgress = ignore_progress) -> IngestAnswer:
        needs = request.preprocess is not None
        return await self._with(
            request.dataset_id, lambda engine: engine.ingest(request, on_progress), on_progress, session=needs
        )

    async def raw_query(self, request: RawQueryRequest, on_progress: OnProgress = ignore_progress) -> RawQueryOutcome:
        return await self._with(None, lambda engine: engine.raw_query(request, on_progress), on_progress)

    async def migrate(self, request: MigrateRequest, on_progress: OnProgress = ignore_progress) -> MigrateOutcome:
        return await self._with(request.dataset_id, lambda engine: engine.migrate(request, on_progress), on_progress)

    async def derive_provenance(
        self, request: ProvenanceRequest, on_progress: OnProgress = ignore_progress
    ) -> ProvenanceOutcome:
        return await self._with(
            request.dataset_id, lambda engine: engine.derive_provenance(request, on_progress), on_progress
        )

    @abstractmethod
    async def _with(
        self, dataset: DatasetId | None, work: Work[A], on_progress: OnProgress, *, session: bool = True
    ) -> A:
        """Returns the result of ``work``, which is about ``dataset``, and reports when a process, or a session that the
        work needs for certain, has to be started."""


class WarmEngine(_Delegating):
    """One engine of this machine; usable while ``run`` runs."""

    def __init__(self, settings: WarmSettings, on_event: OnEvent) -> None:
        super().__init__(settings)
        self._processes = Processes(settings, on_event)
        self._repeating = trio.CapacityLimiter(REPEATING)

    async def run(self, *, task_status: StartStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Runs until cancelled; then stops every process and removes its folders."""
        await self._processes.run(task_status=task_status)

    def running(self) -> tuple[RunningEngine, ...]:
        """Lists the processes that take requests now; none of those of ``fresh``."""
        return tuple(
            RunningEngine(process.pid, tenant, process.leases > 0, process.session)
            for tenant, process in self._processes.running().items()
        )

    async def warm(self) -> None:
        """Starts the shared process and its session, for a request that will come soon. A failure is that request's."""
        with contextlib.suppress(Environment):
            async with self._processes.lease("") as process:
                await process.open_session()

    @asynccontextmanager
    async def fresh(self) -> AsyncIterator[Engine]:
        """Runs a process for the caller alone; other processes in use stay.

        If an unused one would exceed the limit it is ended first, as two at once cost twice the memory. Raises
        EngineLost.
        """
        async with self._processes.fresh() as process:
            yield _Held(self._settings, process)

    def drop(self, dataset: DatasetId, why: str) -> None:
        """Ends the process that works for a dataset, since a cancelled request may continue in it forever.

        Other requests in it raise EngineLost, and may be sent again.
        """
        process = self._processes.running().get(self._tenant(dataset))
        if process is not None:
            process.leave(why)

    def _tenant(self, dataset: DatasetId | None) -> str:
        """Returns the tenant of a dataset; requests that concern none share one tenant."""
        apart = self._settings.isolation is Isolation.DATASET and dataset is not None
        return str(dataset) if apart else ""

    async def _with(
        self, dataset: DatasetId | None, work: Work[A], on_progress: OnProgress, *, session: bool = True
    ) -> A:
        def starting() -> None:
            on_progress(EngineProgress(stage=STARTING))

        async with self._processes.lease(self._tenant(dataset), starting) as process:
            shared, place = process.leases > 1, process.begun
            try:
                return await _Held(self._settings, process)._with(dataset, work, on_progress, session=session)
            except EngineLost as lost:
                if lost.rule != ALIVE or not (shared or process.begun > place or process.left):
                    raise
        # Each in a process of its own, so that the one that ended the other ends no request but itself.
        async with self._repeating, self._processes.fresh() as own:
            starting()
            return await _Held(self._settings, own)._with(dataset, work, on_progress, session=session)


class _Held(_Delegating):
    """A ``contract.Engine`` over one process that a caller holds."""

    def __init__(self, settings: WarmSettings, process: EngineProcess) -> None:
        super().__init__(settings)
        self._process = process

    async def _with(
        self, _dataset: DatasetId | None, work: Work[A], on_progress: OnProgress, *, session: bool = True
    ) -> A:
        process = self._process
        assert process.client is not None
        try:
            if session:
                await process.open_session(lambda: on_progress(EngineProgress(stage=STARTING)))
            answer = await work(process.client)
        except LimitExceeded as fault:
            if fault.rule == DEADLINE:
                process.leave("a request was over its time")
            raise
        except EngineFault as fault:
            if fault.backtrace:
                process.note_failure(fault.message, fault.backtrace)
            raise
        except EngineLost as lost:
            if lost.rule in (JVM_LOST, SESSION):
                raise
            # The socket breaks a moment before the process is reaped; its last output makes the better message.
            with trio.move_on_after(self._settings.limits.grace):
                await process.gone.wait()
            name, lack = self._settings.name, process.lack
            raise EngineLost(
                f"the {name} engine ran out of memory at work: {lack} ({process.epitaph})"
                if lack
                else f"the {name} engine was lost at work ({process.epitaph})",
                rule=ALIVE,
                hint="allow it more with engine.heap-mib, or give it smaller files or records (ingest.record-bytes)"
                if lack
                else process.left or "signal 9 is mostly a lack of memory; else see its lines in the log",
            ) from lost
        finally:
            # The caller was cancelled; work of its thread goes on, and nothing can stop it from outside.
            if trio.current_effective_deadline() == -math.inf:
                process.note_cancelled()
            if session:
                process.session_used = trio.current_time()
        if isinstance(answer, EngineInternalError):
            process.note_failure(answer.message, answer.backtrace or "")
        return answer
