"""Makes the portals, through which rows of private datasets go to others."""

from __future__ import annotations

from odfd.services.execution.feature import ExecutionFeature
from odfd.services.feature import Feature, Ground
from odfd.services.portals.service import PortalController, PortalService
from odfd.services.trust.feature import TrustFeature


class PortalsFeature(Feature):
    def __init__(self, ground: Ground, execution: ExecutionFeature, trust: TrustFeature) -> None:
        self.portals = PortalService(ground.home, execution.ingest_deps, ground.context, trust.observer.note)
        self.operations = (self.portals,)
        self.controllers = (PortalController(ground.home, self.portals),)
