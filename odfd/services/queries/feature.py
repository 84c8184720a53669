"""Makes what answers queries: those of the node's owner, and those of others over permitted data; and projections."""

from __future__ import annotations

from collections.abc import Iterator

from chain.errors import Fault
from chain.ids import DatasetId
from engines.provision.warm import EnginePool
from odfd.queries.doors import DoorNeeds, open_doors
from odfd.queries.folds import FoldStore
from odfd.queries.inputs import QueryInputs
from odfd.queries.planning import Planner
from odfd.services.execution.feature import ExecutionFeature
from odfd.services.execution.options import query_isolation
from odfd.services.feature import Feature, Ground, Reading, queue
from odfd.services.judgement.feature import JudgementFeature
from odfd.services.peers.feature import PeersFeature
from odfd.services.queries.answer_proofs import Signer
from odfd.services.queries.engine_queries import EngineQueries
from odfd.services.queries.fold_cache import FoldCache
from odfd.services.queries.projections import ProjectionController, ProjectionTables
from odfd.services.queries.public_queries import PublicQueries, ReaderQueries
from odfd.services.queries.service import QueryService
from odfd.services.views.feature import ViewsFeature
from odfd.store.directory import FOLDS, STAGING


class QueriesFeature(Feature):
    """The services share processes, known slices, and folds."""

    def __init__(
        self,
        ground: Ground,
        judgement: JudgementFeature,
        execution: ExecutionFeature,
        views: ViewsFeature,
        peers: PeersFeature,
    ) -> None:
        home, context, settings = ground.home, ground.context, ground.settings

        def failed(dataset: DatasetId, fault: Fault) -> None:
            context.logger.info("a fold is not kept", dataset=str(dataset), fault=str(fault), rule=fault.rule)

        planner = Planner(
            home,
            views.views.cache.dataset,
            judgement.evaluator,
            lambda name, asker: self.projections.find(name, asker),
            lambda name: self.projections.is_declared(name),
        )
        inputs, readers, engine = QueryInputs(home), execution.readers, execution.engine
        store = FoldStore(home.folder(FOLDS), settings.query.folds_mib << 20)
        folding = FoldCache(home, store, readers, inputs, failed)
        room = home.folder(STAGING), settings.query.temporary_mib << 20
        by_engines = EngineQueries(EnginePool({"spark": (engine,)}), engine.warm, inputs, *room)
        signer = Signer(home.keys.node_key, context.clock.now, *room)
        self._readers = readers
        self.queries = QueryService(planner, readers, inputs, signer, folding, by_engines)
        self.projections: ProjectionTables = ProjectionTables(
            home, self.queries, context.clock, settings.query.temporary_mib << 20
        )
        self.public_queries = PublicQueries(home, self.queries, peers.library.size, proves=settings.http.prove)
        self.doors = open_doors(
            DoorNeeds(
                settings=settings,
                public=self.public_queries,
                readers=ReaderQueries(home, self.queries, self.public_queries),
                isolate=lambda: query_isolation(settings),
                version=context.version,
                logger=context.logger,
            )
        )
        self.operations = (self.queries,)
        self.controllers = (ProjectionController(self.projections),)

    def gauges(self) -> Iterator[Reading]:
        yield from queue("queries", self.queries.turns.waiting + self._readers.counts[0])
