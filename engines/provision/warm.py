"""``WarmEngine``: a ``contract.Engine`` over processes that come and go, so that nobody else knows of them.

A query can take down its engine process, never the node: that request raises EngineLost, the next one finds a new
process. Failures to start are paced by a growing pause. Requests are never retried here; a transaction id makes it
safe for a coordinator to do so. ``run`` owns everything started and lives as long as the daemon.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import trio

from chain.errors import Environment, Fault, Invalid
from engines.client import GrpcEngine
from engines.contract import (
    Engine,
    EngineIdentity,
    IngestRequest,
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
)
from engines.errors import JVM_LOST, EngineLost
from engines.provision.process import EngineProcess
from engines.provision.settings import OnEvent, Started, WarmSettings

A = TypeVar("A")


class EnginePool:
    """Engines by the name that a transform says, compared without case."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._engines = {name.casefold(): engine for name, engine in engines.items()}

    def engine(self, name: str) -> Engine:
        """Raises Invalid for an engine that this node does not have."""
        engine = self._engines.get(name.casefold())
        if engine is None:
            known = ", ".join(sorted(self._engines)) or "none"
            raise Invalid(f"no engine called {name!r} here", rule="engine-known", hint=f"this node has: {known}")
        return engine


class WarmEngine:
    """One engine of this machine; usable while ``run`` runs."""

    def __init__(self, settings: WarmSettings, on_event: OnEvent) -> None:
        self._settings = settings
        self._on_event = on_event
        self._nursery: trio.Nursery | None = None
        self._process: EngineProcess | None = None
        self._starting = trio.Lock()
        self._started = 0
        self._failures = 0
        self._not_before = -float("inf")

    async def run(self, *, task_status: Started = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled; then every process is stopped and its folders are removed."""
        await trio.to_thread.run_sync(_empty, self._settings.scratch)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = self._process = None

    @property
    def pid(self) -> int | None:
        """Of the process that takes requests now, if there is one."""
        process = self._process
        return None if process is None or process.is_leaving else process.pid

    @asynccontextmanager
    async def fresh(self) -> AsyncIterator[Engine]:
        """A process of the caller's own, from its start to its end; whoever uses the shared one keeps it.

        When nobody uses the shared one it goes first: two at once cost twice the memory. Raises EngineLost.
        """
        async with self._starting:
            shared = self._process
            if shared is not None and not shared.leases:
                shared.leave("a fresh one is wanted")
                await shared.gone.wait()
            process = await self._start()
            process.leases += 1
        try:
            yield _Held(self._settings, process)
        finally:
            process.leave("done")
            with trio.CancelScope(shield=True):
                await process.gone.wait()

    async def identity(self) -> EngineIdentity:
        """Computed from what would run; starts nothing."""
        return self._settings.identity

    async def validate(self, request: ValidateRequest) -> ValidateResponse:
        async with self._lease() as engine:
            return await engine.validate(request)

    async def transform(self, request: TransformRequest, on_progress: OnProgress = lambda: None) -> TransformOutcome:
        async with self._lease() as engine:
            return await engine.transform(request, on_progress)

    async def ingest(self, request: IngestRequest, on_progress: OnProgress = lambda: None) -> TransformOutcome:
        async with self._lease() as engine:
            return await engine.ingest(request, on_progress)

    async def raw_query(self, request: RawQueryRequest, on_progress: OnProgress = lambda: None) -> RawQueryOutcome:
        async with self._lease() as engine:
            return await engine.raw_query(request, on_progress)

    async def migrate(self, request: MigrateRequest, on_progress: OnProgress = lambda: None) -> MigrateOutcome:
        async with self._lease() as engine:
            return await engine.migrate(request, on_progress)

    async def derive_provenance(
        self, request: ProvenanceRequest, on_progress: OnProgress = lambda: None
    ) -> ProvenanceOutcome:
        async with self._lease() as engine:
            return await engine.derive_provenance(request, on_progress)

    @asynccontextmanager
    async def _lease(self) -> AsyncIterator[Engine]:
        async with self._starting:
            process = self._process
            if process is None or not await self._answers(process):
                process = self._process = await self._start()
            process.leases += 1
        try:
            yield _Held(self._settings, process)
        finally:
            process.leases -= 1
            process.last_used = trio.current_time()

    async def _answers(self, process: EngineProcess) -> bool:
        """Whether a process may be given work: after a silence it has to show that it still answers."""
        limits = self._settings.limits
        if process.is_leaving:
            return False
        if process.leases or trio.current_time() - process.last_used < limits.silence:
            return True
        assert process.client is not None
        with trio.move_on_after(limits.pulse):
            try:
                await process.client.identity()
            except Fault:
                pass
            else:
                return not process.is_leaving
        process.leave("silent")
        return False

    async def _start(self) -> EngineProcess:
        limits = self._settings.limits
        if self._nursery is None:
            raise EngineLost(f"the {self._settings.name} engine is not being run", rule="engine-run")
        wait = self._not_before - trio.current_time()
        if wait > 0:
            raise EngineLost(
                f"the {self._settings.name} engine failed to start {self._failures} times in a row",
                rule="engine-start",
                hint=f"next attempt in {wait:.0f} s",
            )
        began = trio.current_time()
        self._started += 1
        process = EngineProcess(self._settings, self._settings.scratch / str(self._started), self._on_event)
        self._nursery.start_soon(self._own, process)
        try:
            with trio.move_on_after(limits.start):
                await process.ready.wait()
        finally:
            if process.client is None:
                process.leave("did not become ready")
        if process.client is None:
            await process.gone.wait()
            self._failures += 1
            pause = min(limits.backoff_first * 2 ** (self._failures - 1), limits.backoff_most)
            self._not_before = trio.current_time() + pause
            raise EngineLost(
                f"the {self._settings.name} engine did not start ({process.epitaph})",
                rule="engine-start",
                hint="`odfctl doctor` tries each of its parts",
            )
        self._failures = 0
        facts = {"pid": process.pid, "sandbox": self._settings.sandbox.level.value}
        seconds = round(trio.current_time() - began, 3)
        self._on_event("engine-started", {"engine": self._settings.name, **facts, "seconds": seconds})
        return process

    async def _own(self, process: EngineProcess) -> None:
        """An engine that cannot be forked concerns its requester, who sees it gone, not the daemon's tree."""
        try:
            await process.run()
        except Environment as fault:
            process.note(str(fault))
            self._on_event("engine-start-failed", {"engine": self._settings.name, "reason": str(fault)})


class _Held:
    """A ``contract.Engine`` over one process, which somebody holds so long."""

    def __init__(self, settings: WarmSettings, process: EngineProcess) -> None:
        self._settings = settings
        self._process = process

    async def identity(self) -> EngineIdentity:
        return self._settings.identity

    async def validate(self, request: ValidateRequest) -> ValidateResponse:
        return await self._with(lambda engine: engine.validate(request))

    async def transform(self, request: TransformRequest, on_progress: OnProgress = lambda: None) -> TransformOutcome:
        return await self._with(lambda engine: engine.transform(request, on_progress))

    async def ingest(self, request: IngestRequest, on_progress: OnProgress = lambda: None) -> TransformOutcome:
        return await self._with(lambda engine: engine.ingest(request, on_progress))

    async def raw_query(self, request: RawQueryRequest, on_progress: OnProgress = lambda: None) -> RawQueryOutcome:
        return await self._with(lambda engine: engine.raw_query(request, on_progress))

    async def migrate(self, request: MigrateRequest, on_progress: OnProgress = lambda: None) -> MigrateOutcome:
        return await self._with(lambda engine: engine.migrate(request, on_progress))

    async def derive_provenance(
        self, request: ProvenanceRequest, on_progress: OnProgress = lambda: None
    ) -> ProvenanceOutcome:
        return await self._with(lambda engine: engine.derive_provenance(request, on_progress))

    async def _with(self, work: Callable[[GrpcEngine], Awaitable[A]]) -> A:
        process = self._process
        assert process.client is not None
        try:
            return await work(process.client)
        except EngineLost as lost:
            if lost.rule == JVM_LOST:
                raise
            # The socket breaks a moment before the process is reaped; its last words make the better message.
            with trio.move_on_after(self._settings.limits.grace):
                await process.gone.wait()
            raise EngineLost(
                f"the {self._settings.name} engine was lost at work ({process.epitaph})",
                rule="engine-alive",
                hint="signal 9 is mostly a lack of memory: give it more heap; else see its lines in the log",
            ) from lost


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
