"""Makes what computes: the node's engine, the processes of queries, and the dependencies of ingests and transforms."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from functools import partial

import trio

from engines.provision.warm import EnginePool
from engines.query.reader import QueryProcesses
from odfd.ingest.driver import IngestDependencies
from odfd.ingest.slices import SliceIndex
from odfd.obs.metric_table import ENGINE_STATES
from odfd.runtime.supervision import Child, Life
from odfd.services.execution.engine import NodeEngine
from odfd.services.execution.options import (
    engine_environ,
    ingest_settings,
    query_isolation,
    query_limits,
    spark_options,
)
from odfd.services.execution.quarantine import QuarantineDatasets
from odfd.services.execution.transforms import TransformCheck
from odfd.services.feature import UNLABELLED, Feature, Ground, Reading
from odfd.services.judgement.feature import JudgementFeature
from odfd.services.node_events import EngineChanged, SettingsChanged
from odfd.store import captures
from odfd.store.directory import SEGMENTS, STAGING
from odfd.transform.driver import TransformDependencies


class ExecutionFeature(Feature):
    def __init__(self, ground: Ground, judgement: JudgementFeature, engine: NodeEngine | None = None) -> None:
        """``engine`` replaces the one of the settings."""
        home, context, bus, settings = ground.home, ground.context, ground.bus, ground.settings
        self.engine = engine or NodeEngine(
            spark_options(settings, home),
            engine_environ(settings, os.environ),
            context.logger,
            lambda: bus.publish(EngineChanged()),
        )
        self.readers = QueryProcesses(
            home.directory / "readers",
            lambda: query_isolation(ground.settings),
            query_limits(settings),
            lambda why: context.logger.info("processes of queries are not forked", why=why),
        )
        now, committer = context.clock.now, judgement.committer
        self.ingest_deps = IngestDependencies(
            store=home.chains,
            objects=home.objects,
            engine=self.engine,
            committer=committer,
            now=now,
            settings=ingest_settings(settings, home, os.environ),
            index=SliceIndex(home.folder(SEGMENTS)),
            quarantines=QuarantineDatasets(home, committer, now),
            is_captured=partial(captures.is_captured_in, home.database),
            shards=home.shards_of,
        )
        self.transform_deps = TransformDependencies(
            chains=home.chains,
            objects=home.objects,
            engines=EnginePool({"spark": (self.engine,)}),
            committer=committer,
            now=now,
            staging=home.folder(STAGING),
            rows=settings.engine.transaction_rows,
            usable=judgement.count_usable,
        )
        self.check = TransformCheck(home, self.engine)
        self.children = Child("engine", self.engine.run), Child("queries", partial(run_readers, self.readers))
        bus.subscribe(partial(self._reload, ground), SettingsChanged)

    def _reload(self, ground: Ground, changed: SettingsChanged) -> None:
        self.ingest_deps.settings = ingest_settings(changed.settings, ground.home, os.environ)

    def gauges(self) -> Iterator[Reading]:
        view = self.engine.view()
        for state in ENGINE_STATES:
            yield "odfd_engine_state", view.state == state, {"state": state}
        processes = Counter(process.state for process in view.processes)
        for busy in ("idle", "busy"):
            yield "odfd_engine_processes", processes[busy], {"state": busy}
        yield "odfd_queries_running", self.readers.counts[1], UNLABELLED


async def run_readers(readers: QueryProcesses, life: Life) -> None:
    """Runs the query processes until asked to stop; ready once queries are answered."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(readers.run)
        await readers.serving.wait()
        life.ready()
        await life.stopping.wait()
        nursery.cancel_scope.cancel()
