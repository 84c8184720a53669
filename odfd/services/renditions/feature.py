"""Makes what handles renditions of collections, and what publishes datasets with all their renditions."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import trio

from chain.errors import Refused
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.card import Card
from chain.statements.statement import HeadStatement
from engines.query.views import quote_name
from odfd.control import wire
from odfd.datasets.engine_pins import ENGINE_CHANGED, way
from odfd.queries.askers import Asker, Bound
from odfd.services.datasets.feature import DatasetsFeature
from odfd.services.execution.feature import ExecutionFeature
from odfd.services.feature import Feature, Ground, worker
from odfd.services.judgement.feature import JudgementFeature
from odfd.services.node_events import DatasetMoved, HoldReleased, StatementHeard, StatementSigned
from odfd.services.peers.feature import PeersFeature
from odfd.services.publishing.feature import PublishingFeature
from odfd.services.publishing.visibility import VisibilityService
from odfd.services.queries.feature import QueriesFeature
from odfd.services.renditions.derived import DerivedRenditions
from odfd.services.renditions.differences import RenditionDifferences
from odfd.services.renditions.effects import RenditionEffects
from odfd.services.renditions.handover_follower import HandoverFollower
from odfd.services.renditions.origins import RenditionOrigins
from odfd.services.renditions.service import RenditionService
from odfd.services.renditions.upkeep import RenditionUpkeep
from odfd.services.transfer.feature import TransferFeature
from odfd.services.views.feature import ViewsFeature
from odfd.transform.driver import Committed, Ran
from odfd.transform.plan import Blocked, Rejected
from odfd.transform.recovery import run_recovering

_ALL_OFFSETS: Final = 1 << 40
"""Most bytes of a file of offsets, which has one for each row."""


class RenditionsFeature(Feature):
    def __init__(
        self,
        ground: Ground,
        judgement: JudgementFeature,
        execution: ExecutionFeature,
        views: ViewsFeature,
        peers: PeersFeature,
        transfer: TransferFeature,
        queries: QueriesFeature,
        publishing: PublishingFeature,
        datasets: DatasetsFeature,
    ) -> None:
        home, context, bus, clock = ground.home, ground.context, ground.bus, ground.context.clock
        deps, committer = execution.ingest_deps, judgement.committer
        self._home, self._readers = home, views.views.readers
        self._queries, self._transform_deps = queries.queries, execution.transform_deps
        effects = RenditionEffects(home, deps, committer, transfer.keeping, clock, home.visibility, self._list_readers)
        visibility = VisibilityService(
            home,
            home.visibility,
            context,
            datasets.change_visibility,
            lambda dataset, signed: bus.publish(StatementSigned(dataset, signed)),
            peers.membership.peers,
            lambda: peers.membership.networks,
            committer.sign_upper,
            publishing.cards.visibility_changed,
            effects.say_handovers,
        )
        origins = RenditionOrigins(home, deps, committer, clock, effects, self._write_standing)
        publish_moved = lambda dataset: bus.publish(DatasetMoved(dataset))  # noqa: E731
        self.upkeep, delete = RenditionUpkeep(home, effects, context), datasets.deletion.delete_rendition
        self.renditions = RenditionService(
            home,
            effects,
            origins,
            DerivedRenditions(home, clock, effects, origins, self._list_readers, self._derive),
            self.upkeep,
            RenditionDifferences(home, deps.settings.staging, committer, clock, effects, self._write, delete),
            context,
            delete,
            lambda: secrets.token_hex(8),
            visibility.show_to_others,
            publish_moved,
        )
        self.handovers = HandoverFollower(
            home, transfer.scheduler, context, self._list_derived, self.renditions.hand_over_readers, publish_moved
        )
        self.operations = self.renditions, visibility
        self.children = worker("handovers", self.handovers.loop.run), worker("renditions", self.upkeep.loop.run)
        bus.subscribe(self._hear, StatementHeard)
        bus.subscribe(lambda each: self.handovers.loop.touch(each.dataset), DatasetMoved)
        bus.subscribe(lambda _: self.upkeep.loop.poke(), HoldReleased)

    def _hear(self, heard: StatementHeard) -> None:
        """Wakes what follows handovers where an owner says that a collection goes on elsewhere, or has other shards."""
        match heard.predicate:
            case HeadStatement(collection=collection) if collection is not None:
                self.handovers.loop.touch(heard.dataset)
            case Card(claims=claims, shards=shards) if claims is not None and shards is not None:
                self.handovers.loop.touch(heard.dataset)

    def _list_readers(self, dataset: DatasetId) -> list[DatasetId]:
        return [other.id for other in self._readers.of(dataset)]

    def _list_derived(self, source: DatasetId) -> Sequence[str]:
        """Returns the names of this node's own datasets that derive from one."""
        return [each.name for each in self._readers.of(source) if self._home.keys.has_dataset_key(each.id)]

    async def _derive(self, dataset: DatasetId) -> None:
        outcome: Ran = await run_recovering(self._transform_deps, dataset)
        while isinstance(outcome, Committed):
            outcome = await run_recovering(self._transform_deps, dataset)
        if isinstance(outcome, Rejected | Blocked):
            name = await trio.to_thread.run_sync(self._home.name_of, dataset)
            why = outcome.message if isinstance(outcome, Rejected) else outcome.reason
            hint = way(name) if outcome.rule == ENGINE_CHANGED else outcome.hint
            raise Refused(f"{name} is not derived: {why}", rule=outcome.rule or "transform", hint=hint)

    async def _write(self, sql: str, bound: Mapping[str, Bound], target: Path) -> None:
        await self._queries.keep(wire.QueryRequest(sql=sql), Asker(bound=bound), target, _ALL_OFFSETS)

    async def _write_standing(self, dataset: DatasetId, block: Multihash, column: str, target: Path) -> None:
        sql = f"SELECT {quote_name(column)} FROM current.d"  # noqa: S608  it is quoted
        await self._write(sql, {"d": Bound(dataset, block)}, target)
