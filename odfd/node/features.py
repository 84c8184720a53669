"""Lists the features of a node, each made from the ground and from those before it.

Tests replace the engine, the membership and IPFS, with which the node computes and reaches others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from odfd.control.assembly import Context
from odfd.network.membership import Membership
from odfd.resources.controller import Controllers
from odfd.runtime.http import Application
from odfd.runtime.late import LatePart
from odfd.services.access.feature import AccessFeature
from odfd.services.datasets.feature import DatasetsFeature
from odfd.services.execution.engine import NodeEngine
from odfd.services.execution.feature import ExecutionFeature
from odfd.services.feature import Feature, Ground, InForce
from odfd.services.flows.feature import FlowsFeature
from odfd.services.ingest.feature import IngestFeature
from odfd.services.ingest.sources import SourceReader
from odfd.services.judgement.feature import JudgementFeature
from odfd.services.lineage.feature import LineageFeature
from odfd.services.maintenance.feature import MaintenanceFeature
from odfd.services.network.feature import NetworkFeature
from odfd.services.peers.feature import PeersFeature
from odfd.services.portals.feature import PortalsFeature
from odfd.services.publishing.feature import PublishingFeature
from odfd.services.queries.feature import QueriesFeature
from odfd.services.renditions.feature import RenditionsFeature
from odfd.services.resources.feature import ResourcesFeature, SetsFeature
from odfd.services.tasks.feature import TasksFeature
from odfd.services.transfer.feature import TransferFeature
from odfd.services.trust.feature import TrustFeature
from odfd.services.views.feature import ViewsFeature
from odfd.services.volumes.feature import VolumesFeature
from odfd.services.webhooks.feature import WebhooksFeature
from odfd.smart.ports import SmartBackend
from odfd.store.directory import StateDirectory
from p2p.ip import Allows, is_global
from p2p.kubo.rpc import IpfsDaemon

PREPARED: Final = ("Network", "Peer", "Validator", "Mirror")
"""Types that an apply prepares first, in this order: a mirror needs the peers and networks that it is fetched from."""


class NodeFeatures:
    """The features of one node, in the order of their dependencies."""

    def __init__(
        self,
        home: StateDirectory,
        in_force: InForce,
        context: Context,
        engine: NodeEngine | None = None,
        membership: Callable[..., Membership] = Membership,
        ipfs: IpfsDaemon | None = None,
        may_dial: Allows = is_global,
    ) -> None:
        """``may_dial`` says which addresses of sources that other nodes declared may be dialled."""
        self.ground = ground = Ground(home, in_force, context)
        # What asks a feature that is made after it, and needs an answer: the bus brings none.
        self.api, self.smart_backend = LatePart[Application]("api"), LatePart[SmartBackend]("smart backend")
        fetching, performing = LatePart[TransferFeature]("transfer"), LatePart[TasksFeature]("tasks")
        resources = LatePart[ResourcesFeature]("resources")
        get = lambda type_, ref: resources().declarations.get(type_, ref)  # noqa: E731
        labels = lambda each: resources().declarations.labels_of(each)  # noqa: E731
        delete = lambda type_, name: resources().declarations.delete(type_, name)  # noqa: E731

        self.judgement = JudgementFeature(ground, labels)
        self.execution = ExecutionFeature(ground, self.judgement, engine)
        self.views = ViewsFeature(
            ground, self.judgement, self.execution, lambda dataset: fetching().scheduler.refused_by(dataset)
        )
        self.peers = PeersFeature(ground, self.judgement, self.views, membership)
        self.transfer = TransferFeature(ground, self.judgement, self.views, self.peers, ipfs)
        fetching.fill(self.transfer)
        self.queries = QueriesFeature(ground, self.judgement, self.execution, self.views, self.peers)
        self.trust = TrustFeature(
            ground, self.judgement, self.execution, self.views, self.peers, self.transfer, may_dial
        )
        self.publishing = PublishingFeature(ground, self.judgement, self.peers, self.transfer)
        self.access = AccessFeature(ground)
        self.sets = SetsFeature(ground)
        self.webhooks = WebhooksFeature(ground, labels)
        self.volumes = VolumesFeature(ground, labels)
        self.flows = FlowsFeature(
            ground,
            lambda plan, record: performing().performing.run(plan, record),
            labels,
            SourceReader(home).check_taken,
        )
        self.portals = PortalsFeature(ground, self.execution, self.trust)
        self.ingest = IngestFeature(
            ground, self.judgement, self.execution, self.views, self.transfer, self.trust, self.flows, self.portals, get
        )
        self.datasets = DatasetsFeature(
            ground, self.judgement, self.execution, self.views, self.transfer, self.publishing, self.flows
        )
        self.renditions = RenditionsFeature(
            ground,
            self.judgement,
            self.execution,
            self.views,
            self.peers,
            self.transfer,
            self.queries,
            self.publishing,
            self.datasets,
        )
        self.network = NetworkFeature(
            ground,
            self.judgement,
            self.views,
            self.peers,
            self.transfer,
            self.trust,
            self.publishing,
            self.queries,
            self.renditions,
            get,
            delete,
            self.smart_backend,
        )
        self.lineage = LineageFeature(ground, self.execution, self.views)
        self.maintenance = MaintenanceFeature(
            ground,
            self.judgement,
            self.execution,
            self.views,
            self.peers,
            self.transfer,
            self.queries,
            self.trust,
            self.access,
            self.volumes,
            self.flows,
            self.network,
        )
        self.tasks = TasksFeature(
            ground, self.transfer, self.webhooks, self.ingest, self.datasets, self.maintenance, delete
        )
        performing.fill(self.tasks)
        self.resources = ResourcesFeature(
            ground,
            self.judgement,
            self._list_controllers(),
            {type_: call for each in self.all for type_, call in each.undeclared.items()},
            self.sets,
        )
        resources.fill(self.resources)

    @property
    def all(self) -> tuple[Feature, ...]:
        return tuple(each for each in vars(self).values() if isinstance(each, Feature))

    def _list_controllers(self) -> Controllers:
        made = {controller.type: controller for feature in self.all for controller in feature.controllers}
        return Controllers([*(made.pop(type_) for type_ in PREPARED), *made.values()])
