"""Makes what performs declared tasks, the runs of flows among them, and shows tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from odfd.flows.tasks import TYPE
from odfd.services.datasets.feature import DatasetsFeature
from odfd.services.feature import Feature, Ground
from odfd.services.ingest.feature import IngestFeature
from odfd.services.ingest.sources import SourceReader
from odfd.services.maintenance.feature import MaintenanceFeature
from odfd.services.tasks.declared_tasks import FlowRunController, TaskController, TaskService, live_tasks
from odfd.services.tasks.flow_tasks import FlowTasks
from odfd.services.transfer.feature import TransferFeature
from odfd.services.webhooks.feature import WebhooksFeature


class TasksFeature(Feature):
    def __init__(
        self,
        ground: Ground,
        transfer: TransferFeature,
        webhooks: WebhooksFeature,
        ingest: IngestFeature,
        datasets: DatasetsFeature,
        maintenance: MaintenanceFeature,
        delete: Callable[[str, str], Awaitable[object]],
    ) -> None:
        """``delete``: deletes a resource, given its type and name."""
        home, context = ground.home, ground.context
        self.performing = FlowTasks(
            home,
            context.board,
            ingest.pulling,
            datasets.verification,
            datasets.rewriting,
            maintenance.collection,
            webhooks.webhooks,
            transfer.pushing,
            SourceReader(home),
            context.clock.now,
            {},
        )
        self.tasks = TaskService(context.board, home, delete, context.events)
        self.operations = (self.tasks,)
        self.controllers = (
            FlowRunController(home, self.performing, context.clock),
            TaskController(home, self.performing, context.clock),
        )
        node = str(home.keys.node_key().did)
        self.undeclared = {TYPE: live_tasks(context.board, node, context.clock.now())}
