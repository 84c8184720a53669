"""Makes the parts that answer queries: those of the node's owner, and those of others over permitted data."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import trio

from chain.errors import Fault
from chain.ids import DatasetId
from config.model import Settings
from engines.provision.warm import EnginePool
from engines.query.reader import QueryProcesses
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.node.component_settings import query_isolation
from odfd.queries.doors import Door, DoorNeeds, open_doors
from odfd.queries.folds import FoldStore
from odfd.queries.inputs import QueryInputs
from odfd.queries.planning import Planner
from odfd.runtime.supervision import Life
from odfd.services.maintenance.engine import NodeEngine
from odfd.services.queries.answer_proofs import Signer
from odfd.services.queries.engine_queries import EngineQueries
from odfd.services.queries.fold_cache import FoldCache
from odfd.services.queries.projections import ProjectionTables
from odfd.services.queries.public_queries import PublicQueries, ReaderQueries
from odfd.services.queries.service import QueryService
from odfd.store.catalog import DatasetEntry
from odfd.store.directory import FOLDS, STAGING, StateDirectory
from odfd.trust.judgement.trust_evaluator import TrustEvaluator


def queries_of(
    home: StateDirectory,
    shown: tuple[Callable[[DatasetEntry], wire.DatasetView], TrustEvaluator],
    computes: tuple[QueryProcesses, NodeEngine],
    served: Callable[[DatasetId], int],
    settings: Settings,
    context: Context,
) -> tuple[QueryService, PublicQueries, ProjectionTables]:
    """Makes the query services, which share processes, known slices, and folds."""

    def failed(dataset: DatasetId, fault: Fault) -> None:
        context.logger.info("a fold is not kept", dataset=str(dataset), fault=str(fault), rule=fault.rule)

    processes, engine = computes
    planner = Planner(
        home, *shown, lambda name, asker: projections.named(name, asker), lambda name: projections.is_declared(name)
    )
    inputs = QueryInputs(home)
    store = FoldStore(home.folder(FOLDS), settings.query.folds_mib << 20)
    folding = FoldCache(home, store, processes, inputs, failed)
    room = home.folder(STAGING), settings.query.temporary_mib << 20
    by_engines = EngineQueries(EnginePool({"spark": (engine,)}), engine.warm, inputs, *room)
    queries = QueryService(
        planner, processes, inputs, Signer(home.keys.node_key, context.clock.now, *room), folding, by_engines
    )
    projections = ProjectionTables(home, queries, context.clock, settings.query.temporary_mib << 20)
    public = PublicQueries(home, queries, served, proves=settings.http.prove)
    return queries, public, projections


def doors_of(
    settings: Settings, home: StateDirectory, queries: QueryService, public: PublicQueries, context: Context
) -> Mapping[str, Door]:
    """Makes the doors that the settings open, by name."""
    return open_doors(
        DoorNeeds(
            settings=settings,
            public=public,
            readers=ReaderQueries(home, queries, public),
            isolate=lambda: query_isolation(settings),
            version=context.version,
            logger=context.logger,
        )
    )


async def run_readers(readers: QueryProcesses, life: Life) -> None:
    """Runs the query processes until asked to stop; ready once queries are answered."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(readers.run)
        await readers.serving.wait()
        life.ready()
        await life.stopping.wait()
        nursery.cancel_scope.cancel()
