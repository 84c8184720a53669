"""Makes what takes rows in: pulls, push endpoints, raw bytes, gaps, and the sources that manifests declare."""

from __future__ import annotations

import secrets
from functools import partial

from odfd.services.execution.feature import ExecutionFeature
from odfd.services.feature import Feature, Ground
from odfd.services.flows.feature import FlowsFeature
from odfd.services.ingest.gaps import GapService
from odfd.services.ingest.ingest_pull import IngestPullService
from odfd.services.ingest.promises import advance_upper
from odfd.services.ingest.push_endpoints import EndpointService
from odfd.services.ingest.raw import RawService
from odfd.services.ingest.raw_chains import RawChains
from odfd.services.ingest.sources import SourceController
from odfd.services.judgement.feature import JudgementFeature
from odfd.services.node_events import ResourceTouched
from odfd.services.portals.feature import PortalsFeature
from odfd.services.resources.set_controllers import SetValues
from odfd.services.resources.views import GetResource
from odfd.services.transfer.feature import TransferFeature
from odfd.services.trust.feature import TrustFeature
from odfd.services.views.feature import ViewsFeature
from odfd.store.directory import UPLOADS
from odfd.store.uploads import Uploads
from odfd.transform.pending import ahead


class IngestFeature(Feature):
    def __init__(
        self,
        ground: Ground,
        judgement: JudgementFeature,
        execution: ExecutionFeature,
        views: ViewsFeature,
        transfer: TransferFeature,
        trust: TrustFeature,
        flows: FlowsFeature,
        portals: PortalsFeature,
        get: GetResource,
    ) -> None:
        home, context, bus, deps = ground.home, ground.context, ground.bus, execution.ingest_deps
        committer = judgement.committer
        self.pulling = IngestPullService(
            home=home,
            deps=deps,
            transform=execution.transform_deps,
            scheduler=transfer.scheduler,
            context=context,
            uploads=Uploads(
                home.folder(UPLOADS),
                lambda: ground.settings.limits.upload_bytes,
                lambda: secrets.token_hex(8),
                lambda: ground.settings.limits.disk_reserve_bytes,
            ),
            import_export=transfer.import_export,
            repairing=transfer.repairing,
            values=SetValues(home).of,
            promise=partial(advance_upper, home, context.clock.now, judgement.jumps.ahead, committer.sign_upper),
            derivatives=views.views.readers,
            portals=portals.portals,
            ahead=partial(ahead, home.chains, home.keys.has_dataset_key, execution.engine.warm),
            unheld=views.views.unheld,
            turned=lambda name: bus.publish(ResourceTouched("Dataset", name)),
        )
        self.endpoints = EndpointService(home, context, flows.flows.arrived, get)
        self.operations = (
            self.pulling,
            self.endpoints,
            RawService(home, deps, context, RawChains(home, committer, trust.observer, context)),
            GapService(home, self.pulling.dependencies, context),
        )
        self.controllers = (SourceController(home, lambda: deps.settings),)
