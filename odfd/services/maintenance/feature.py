"""Makes what keeps the node well and tells how it is: collection, backups, the doctor, the status, its own types."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from odfd.control import wire
from odfd.runtime.supervision import Child
from odfd.services.access.feature import AccessFeature
from odfd.services.execution.feature import ExecutionFeature
from odfd.services.feature import Feature, Ground, worker
from odfd.services.flows.feature import FlowsFeature
from odfd.services.judgement.feature import JudgementFeature
from odfd.services.maintenance.backups import BackupService
from odfd.services.maintenance.dependencies import Dependencies
from odfd.services.maintenance.doctor import Doctor
from odfd.services.maintenance.former_containers import remove_former_containers
from odfd.services.maintenance.garbage_collection import GarbageCollector
from odfd.services.maintenance.incident_keeper import IncidentKeeper
from odfd.services.maintenance.own_resources import OwnController, OwnResources
from odfd.services.maintenance.probes import ClockProbe, TrustProbes, pins_probe
from odfd.services.maintenance.status import RunningParts, StatusService
from odfd.services.network.feature import NetworkFeature
from odfd.services.peers.feature import PeersFeature
from odfd.services.queries.feature import QueriesFeature
from odfd.services.resources.node_types import ENGINE, NODE
from odfd.services.transfer.feature import TransferFeature
from odfd.services.trust.feature import TrustFeature
from odfd.services.views.feature import ViewsFeature
from odfd.services.volumes.feature import VolumesFeature


class MaintenanceFeature(Feature):
    def __init__(  # noqa: PLR0913  # it tells of all features
        self,
        ground: Ground,
        judgement: JudgementFeature,
        execution: ExecutionFeature,
        views: ViewsFeature,
        peers: PeersFeature,
        transfer: TransferFeature,
        queries: QueriesFeature,
        trust: TrustFeature,
        access: AccessFeature,
        volumes: VolumesFeature,
        flows: FlowsFeature,
        network: NetworkFeature,
    ) -> None:
        home, context, settings = ground.home, ground.context, ground.settings
        _log_recovery(ground)
        self.collection = GarbageCollector(home, context, settings.node.collect_hours, peers.quota.concerns)
        clock = ClockProbe(home, context.clock.now, judgement.jumps.ahead)
        probes = TrustProbes(home, judgement.evaluator, home.visibility, lambda: judgement.effective_policy.profile)
        doctor = Doctor(
            home,
            home.visibility,
            judgement.heads.troubles,
            {"clock": clock, **probes.all(), "engine pins": partial(pins_probe, views.views.all)},
            lambda: ground.settings.limits.disk_reserve_bytes,
        )
        dependencies = Dependencies(
            home,
            transfer.remotes,
            volumes.volumes,
            lambda: ground.settings,
            peers.membership,
            network.site,
            context.readiness,
        )
        servers = {"http": network.site, "api": access.remote, **queries.doors}

        def list_urls() -> Mapping[str, tuple[str, ...]]:
            """Lists the addresses at which others reach this node, by the table of settings or the door."""
            return {name: tuple(server.urls) for name, server in servers.items() if server is not None}

        def describe_reach() -> wire.NodeState:
            urls = list_urls()
            return wire.NodeState(
                node_id=str(home.keys.node_key().did),
                peer_id=peers.membership.peer_id,
                version=context.version,
                listen=tuple(peers.membership.addresses()),
                networks=tuple(each.name for each in peers.membership.networks),
                http=urls.get("http"),
                flight=urls.get("flight"),
                api=urls.get("api"),
            )

        running = RunningParts(
            execution.engine,
            peers.membership,
            list_urls,
            trust.journal_recovery,
            flows.service,
            network.mirrors,
            judgement.evaluator.me,
        )
        status = StatusService(home, views.views, doctor, dependencies, running, context, settings.node.name)
        own = OwnResources(
            home, settings, context.clock.now(), execution.engine.view, execution.readers, describe_reach
        )
        self.operations = status, self.collection, BackupService(home, self.collection, context)
        self.controllers = OwnController(ENGINE, own.engine_states), OwnController(NODE, own.node_states)
        self.undeclared = {NODE: own.nodes, ENGINE: own.engines}
        taking = execution.ingest_deps.settings
        former = Child("containers", partial(remove_former_containers, taking, context.logger))
        self.children = (
            *(() if taking.container == "never" else (former,)),
            worker("collection", self.collection.run),
            worker("dependencies", dependencies.loop.run),
            worker("incidents", IncidentKeeper(home.database, context.events).run),
        )


def _log_recovery(ground: Ground) -> None:
    """Logs what the start found and settled; the doctor reports it too."""
    found, logger = ground.home.recovery, ground.context.logger
    if found.is_full or found.lost:
        logger.error("the start found trouble", found=str(found), pages=found.lost)
    for room, here, now in found.brought_forward:
        logger.info("tables of an older version brought forward", tables=room, version=here, to=now)
    for line in found.converted:
        logger.info("declared again", change=line)
    for name in found.settled:
        logger.info("an import that was cut off is settled", dataset=name)
    for trouble in found.unsettled:
        logger.error("a dataset cannot be settled", trouble=trouble)
