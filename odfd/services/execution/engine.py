"""Starts, replaces and reports on the node's engine, and explains the absence of one.

A node without Java, or with no sandbox that its policy accepts, still mirrors and verifies; a request to its engine is
refused with the reason. The node tries again to start one, at growing intervals: a full disk does not stay full.
"""

from __future__ import annotations

import contextvars
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final

import trio

from chain.errors import Fault
from chain.ids import DatasetId
from engines.contract import (
    Engine,
    EngineIdentity,
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
from engines.errors import NOT_INSTALLED, EngineLost
from engines.provision.host import HostEngine, SparkOptions, spark_engine
from engines.provision.settings import ENGINE_FAILED, Isolation
from engines.provision.warm import WarmEngine
from odfd.control import wire
from odfd.runtime.supervision import Life, Logger
from odfd.runtime.tasks import outside

SOONEST: Final = 10.0
"""Seconds until an engine that was not found is searched again; doubles each time."""
LATEST: Final = 600.0


class NodeEngine:
    """The node's engine; implements ``engines.contract.Engine``. Started as a child task (``run``)."""

    def __init__(
        self, options: SparkOptions, environ: Mapping[str, str], logger: Logger, changed: Callable[[], None]
    ) -> None:
        """``changed``: called when an engine, or the reason why there is none, is found."""
        # A task that waits for the start computes nothing yet, so a stopping daemon does not wait for it.
        self._options = replace(options, while_starting=partial(outside, "the start of the engine"))
        self._environ = environ
        self._logger = logger
        self._host: HostEngine | None = None
        self._why_not: Fault | None = None
        self._known = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._is_warming = False
        self._changed = changed

    async def run(self, life: Life) -> None:
        """Finds the available engine, and keeps it running until stopped. The node also runs without one."""
        life.ready()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep)
            await life.stopping.wait()
            # The stop may come at any moment of the engine's start: whatever is under way is abandoned.
            nursery.cancel_scope.cancel()

    async def _keep(self) -> None:
        pause = SOONEST
        while (host := await self._find()) is None:
            await trio.sleep(pause)
            pause = min(2 * pause, LATEST)
        self._report_host(host)
        async with trio.open_nursery() as nursery:
            await nursery.start(host.engine.run)  # type: ignore[arg-type]  # trio cannot name what it passes
            # Set only now: the tasks that waited for it want to use it.
            self._host, self._why_not, self._nursery = host, None, nursery
            self._known.set()
            self._changed()

    async def _find(self) -> HostEngine | None:
        """Finds the engine; reports once if there is none."""
        try:
            return await spark_engine(self._options, self._environ, self._report)
        except Fault as fault:
            # The search is repeated for as long as the node runs, and the same reason need not be logged each time.
            if str(self._why_not) != str(fault):
                say = self._logger.info if fault.rule == NOT_INSTALLED else self._logger.error
                say("no engine", fault=str(fault), rule=fault.rule, hint=fault.hint)
            self._why_not = fault
            self._known.set()
            self._changed()
            return None

    def _report_host(self, host: HostEngine) -> None:
        for remark in host.choice.remarks:
            self._logger.info("containers of the sandbox", found=remark)
        for refusal in host.choice.passed_over:
            self._logger.info("sandbox level passed over", verdict=str(refusal))
        for weakness in host.choice.verdict.unbounded:
            self._logger.error("the sandbox has no such limit", verdict=weakness, hint="see odfctl doctor")
        if host.identity.sandbox == "none":
            hint = "odfctl docs cluster says what confines them" if host.cluster else "install bubblewrap"
            self._logger.error("queries run without a sandbox", hint=f"{hint}; see odfctl doctor")

    def _report(self, event: str, facts: Mapping[str, object]) -> None:
        (self._logger.error if event == ENGINE_FAILED else self._logger.info)(event, **facts)

    def view(self) -> wire.EngineView:
        """Returns the present state, for people."""
        if self._host is None:
            return self._absent()
        identity = self._host.identity
        running = self._host.engine.running()
        return wire.EngineView(
            name=f"{identity.name} {identity.version}",
            digest=identity.digest,
            sandbox=identity.sandbox,
            state="busy" if any(one.busy for one in running) else "idle" if running else "stopped",
            isolation=self._options.isolation.value,
            processes=tuple(
                wire.EngineProcess(
                    pid=one.pid, dataset=one.dataset or None, state="busy" if one.busy else "idle", session=one.session
                )
                for one in running
            ),
        )

    def _absent(self) -> wire.EngineView:
        isolation, why = self._options.isolation.value, self._why_not
        if why is None:
            return wire.EngineView(name="spark", state="starting", isolation=isolation)
        if why.rule == NOT_INSTALLED:  # the state says what is wrong
            return wire.EngineView(name="spark", state="not-installed", isolation=isolation, message=why.hint)
        message = f"{why}: {why.hint}" if why.hint else str(why)
        return wire.EngineView(name="spark", state="failed", isolation=isolation, message=message)

    @property
    def host(self) -> HostEngine | None:
        return self._host

    @property
    def digests(self) -> Collection[str] | None:
        """The digests of the engines here; ``None``: not known yet, or there is none."""
        return None if self._host is None else (self._host.identity.digest,)

    @property
    def why_not(self) -> Fault | None:
        return self._why_not

    @asynccontextmanager
    async def fresh(self) -> AsyncIterator[Engine]:
        """Runs a new engine process for this caller alone. Raises EngineLost."""
        async with (await self._engine()).fresh() as engine:
            yield engine

    def warm(self) -> None:
        """Starts what queries and transforms need of the shared engine process, in the background, if it is not there.

        A failure is told by the request that needs it. With a process for each dataset nothing is started: the one in
        question is not known here.
        """
        if self._nursery is None or self._is_warming or self._options.isolation is not Isolation.SHARED:
            return
        self._is_warming = True
        # Without the context of the requester: log lines must not name its task, as others use the process.
        contextvars.Context().run(self._nursery.start_soon, self._warm)

    async def _warm(self) -> None:
        try:
            assert self._host is not None
            await self._host.engine.warm()
        finally:
            self._is_warming = False

    def drop(self, dataset: DatasetId, why: str) -> None:
        """Ends the process that works for a dataset; requests of others to it are repeated."""
        if self._host is not None:
            self._host.engine.drop(dataset, why)

    async def _engine(self) -> WarmEngine:
        async with outside("what engine there is"):
            await self._known.wait()
        if self._host is None:
            why = self._why_not
            assert why is not None
            raise EngineLost(f"this node has no engine: {why}", rule=why.rule or "engine", hint=why.hint)
        return self._host.engine

    async def identity(self) -> EngineIdentity:
        return await (await self._engine()).identity()

    async def validate(self, request: ValidateRequest) -> ValidateResponse:
        return await (await self._engine()).validate(request)

    async def transform(self, request: TransformRequest, on_progress: OnProgress = ignore_progress) -> TransformOutcome:
        return await (await self._engine()).transform(request, on_progress)

    async def ingest(self, request: IngestBatchRequest, on_progress: OnProgress = ignore_progress) -> IngestAnswer:
        return await (await self._engine()).ingest(request, on_progress)

    async def raw_query(self, request: RawQueryRequest, on_progress: OnProgress = ignore_progress) -> RawQueryOutcome:
        return await (await self._engine()).raw_query(request, on_progress)

    async def migrate(self, request: MigrateRequest, on_progress: OnProgress = ignore_progress) -> MigrateOutcome:
        return await (await self._engine()).migrate(request, on_progress)

    async def derive_provenance(
        self, request: ProvenanceRequest, on_progress: OnProgress = ignore_progress
    ) -> ProvenanceOutcome:
        return await (await self._engine()).derive_provenance(request, on_progress)
