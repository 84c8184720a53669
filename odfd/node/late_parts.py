"""Lists the services of a node that parts made before them call."""

from __future__ import annotations

from odfd.resources.controller import Controllers
from odfd.runtime.http import Application
from odfd.runtime.late import LatePart
from odfd.services.renditions.service import RenditionService
from odfd.services.resources.declarations import DeclarationService
from odfd.services.tasks.flow_tasks import FlowTasks
from odfd.smart.ports import SmartBackend


class LateParts:
    """Each is filled by what makes it; ``check`` is called before anything runs."""

    def __init__(self) -> None:
        self.controllers: LatePart[Controllers] = LatePart("controllers")
        self.declarations: LatePart[DeclarationService] = LatePart("declarations")
        self.performing: LatePart[FlowTasks] = LatePart("performing")
        self.renditions: LatePart[RenditionService] = LatePart("renditions")
        self.api: LatePart[Application] = LatePart("api")
        self.smart_backend: LatePart[SmartBackend] = LatePart("smart backend")

    def check(self) -> None:
        """Raises RuntimeError if one was forgotten."""
        for late in vars(self).values():
            late()
