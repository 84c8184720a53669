"""Makes what keeps resources as they are declared: manifests, sets of secrets and values, and the reconciler of all."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from odfd.flows.tasks import RUN
from odfd.flows.tasks import TYPE as TASK
from odfd.resources.controller import Controllers
from odfd.runtime.tasks import TaskEnded, TasksChanged
from odfd.services.feature import Feature, Ground, ListResources, worker
from odfd.services.judgement.feature import JudgementFeature
from odfd.services.node_events import ApplyEnded, DatabaseWritten, ResourceTouched, VisibilityChanged
from odfd.services.resources.apply import ApplyOperation
from odfd.services.resources.declarations import DeclarationService, Surroundings
from odfd.services.resources.history import HistoryService
from odfd.services.resources.planning import PartsKeeper, Planning
from odfd.services.resources.reconciler import Reconciler
from odfd.services.resources.set_controllers import SecretController, SetController
from odfd.services.resources.types import TYPES, SchemaService


class SetsFeature(Feature):
    """Sets of secrets and values, which other resources refer to."""

    def __init__(self, ground: Ground) -> None:
        self.keeper = PartsKeeper(ground.home, ground.context.clock, lambda: str(uuid.uuid4()))
        self.controllers = SecretController(self.keeper, ground.home.secrets), SetController(self.keeper)


class ResourcesFeature(Feature):
    """It is made last, since it has the controllers of all others."""

    def __init__(
        self,
        ground: Ground,
        judgement: JudgementFeature,
        controllers: Controllers,
        undeclared: Mapping[str, ListResources],
        sets: SetsFeature,
    ) -> None:
        home, context, bus = ground.home, ground.context, ground.bus
        self.reconciler = reconciler = Reconciler(home, context, TYPES, controllers)
        self.declarations = DeclarationService(
            home, context, sets.keeper, Surroundings(controllers, undeclared, reconciler.wait_undone)
        )
        planning = Planning(home, context, sets.keeper, controllers)
        self.operations = (
            self.declarations,
            ApplyOperation(judgement.committer, context, planning, self.declarations),
            SchemaService(),
            HistoryService(home, context, self.declarations),
        )
        self.children = (worker("reconciler", reconciler.run),)
        bus.subscribe(lambda each: reconciler.touch(each.type, each.name), ResourceTouched)
        bus.subscribe(lambda each: reconciler.touch(RUN if each.task.kind == "run" else TASK, each.task.id), TaskEnded)
        bus.subscribe(lambda _: context.events.nudge(), TasksChanged)
        bus.subscribe(lambda _: reconciler.regrant(), VisibilityChanged)
        bus.subscribe(lambda _: reconciler.loop.poke(), DatabaseWritten, soon=True)
        bus.subscribe(lambda _: reconciler.loop.poke(), ApplyEnded)
