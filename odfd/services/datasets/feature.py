"""Makes what manages datasets: their states, plans, checks and deletion, rewritten histories, and holds of readers."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import trio

from chain.ids import DatasetId
from odfd.runtime.hanging_calls import in_loop
from odfd.runtime.subjects import about
from odfd.services.datasets.controller import DatasetController
from odfd.services.datasets.damage import DamageRegistry
from odfd.services.datasets.deletion import DatasetDeletion
from odfd.services.datasets.history_rewrite import HistoryRewriteService
from odfd.services.datasets.holds import HoldService
from odfd.services.datasets.planning import DatasetPlanning
from odfd.services.datasets.service import DatasetService
from odfd.services.datasets.unmanaged import UnmanagedService
from odfd.services.datasets.verification import EngineMigrationService, VerificationService
from odfd.services.execution.feature import ExecutionFeature
from odfd.services.feature import Feature, Ground, worker
from odfd.services.flows.feature import FlowsFeature
from odfd.services.judgement.feature import JudgementFeature
from odfd.services.node_events import DamageFound, DatasetDescribed, DatasetMoved, HoldReleased, VisibilityChanged
from odfd.services.publishing.feature import PublishingFeature
from odfd.services.transfer.feature import TransferFeature
from odfd.services.views.data_sizes import DataSizes
from odfd.services.views.dataset_states import DatasetStates
from odfd.services.views.feature import ViewsFeature


class DatasetsFeature(Feature):
    def __init__(
        self,
        ground: Ground,
        judgement: JudgementFeature,
        execution: ExecutionFeature,
        views: ViewsFeature,
        transfer: TransferFeature,
        publishing: PublishingFeature,
        flows: FlowsFeature,
    ) -> None:
        home, context, bus = ground.home, ground.context, ground.bus
        self._ground, self._transfer, self._publishing = ground, transfer, publishing
        self.states = DatasetStates(home, views.views, DataSizes(home), transfer.counts)
        self.damage = DamageRegistry(home, context.clock, bus)
        self.deletion = DatasetDeletion(home, self.states, transfer.scheduler, context, self.change_visibility)
        self.verification = VerificationService(
            home, execution.transform_deps, context.board, self.damage, transfer.scheduler
        )
        self.rewriting = HistoryRewriteService(
            home,
            judgement.committer,
            transfer.scheduler,
            context,
            lambda dataset: bus.publish(DatasetMoved(dataset)),
            transfer.following.apart,
        )
        unmanaged = UnmanagedService(home, transfer.import_export, context)
        planning = DatasetPlanning(
            home,
            execution.transform_deps.engines,
            lambda: execution.ingest_deps.settings,
            context.events,
            unmanaged.adopt,
            self._follow_name,
        )
        described = in_loop(lambda dataset: bus.publish(DatasetDescribed(dataset)))
        released = in_loop(lambda dataset: bus.publish(HoldReleased(dataset)))
        self.operations = (
            DatasetService(home, self.states),
            self.verification,
            self.rewriting,
            unmanaged,
            EngineMigrationService(home, execution.transform_deps, judgement.committer, context.board, context.events),
            HoldService(home, context, lambda: secrets.token_hex(8), released),
        )
        self.controllers = (DatasetController(home, self.states, described, flows.service, planning, self.deletion),)
        self.children = (worker("sizes", self.states.summing.run),)
        bus.subscribe(self._tell_of_damage, DamageFound)

    @in_loop
    def change_visibility(self, dataset: DatasetId) -> None:
        """Has announcements follow at once after a dataset was published, made private, added or removed."""
        self._ground.home.visibility.note_change()
        self._ground.bus.publish(VisibilityChanged(dataset))

    def _tell_of_damage(self, found: DamageFound) -> None:
        context, spot = self._ground.context, found.spot
        name = self._ground.home.name_of(found.dataset)

        def tell() -> None:
            context.logger.error("damaged on disk", dataset=name, block=spot.sequence, found=spot.message)
            text = f"block #{spot.sequence}: {spot.message}"
            context.events.emit("damage.found", name, text, about=about(found.dataset), rule=spot.rule)

        self._ground.bus.call_soon(tell)

    async def _follow_name(self, dataset: DatasetId) -> None:
        """Lets the mirrors of a dataset and its card have its new name."""

        def list_chains() -> Sequence[DatasetId]:
            with self._ground.home.catalog() as catalog:
                entry = catalog.find(dataset)
                return () if entry is None else catalog.chains_of(entry)

        await self._transfer.scheduler.reread(await trio.to_thread.run_sync(list_chains))
        self._publishing.cards.visibility_changed(dataset)
