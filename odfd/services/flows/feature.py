"""Makes what runs flows when they are due."""

from __future__ import annotations

from chain.instant import SECOND
from odfd.services.feature import Feature, Ground, worker
from odfd.services.flows.service import CheckSource, FlowController, FlowService
from odfd.services.flows.worker import FlowWorker, FollowSettings, Perform
from odfd.services.node_events import (
    ApplyEnded,
    DatasetMoved,
    PolicyChanged,
    ResourceTouched,
    StatementHeard,
    StatementSigned,
    VisibilityChanged,
)
from odfd.store.catalog import Labels
from odfd.store.flow_runs import TYPE


class FlowsFeature(Feature):
    def __init__(self, ground: Ground, perform: Perform, labels: Labels, check_source: CheckSource) -> None:
        """``perform``: as for ``FlowWorker``. ``check_source``: as for ``FlowService``."""
        bus = ground.bus
        self.flows = FlowWorker(
            ground.home,
            ground.context,
            lambda: _follow(ground),
            perform,
            lambda name: bus.publish(ResourceTouched(TYPE, name)),
            labels,
        )
        self.service = FlowService(ground.home, self.flows, ground.context, check_source)
        self.operations = (self.service,)
        self.children = (worker("flows", self.flows.run),)
        self.controllers = (FlowController(self.service),)
        self.undeclared = {TYPE: self.service.list_undeclared}
        loop = self.flows.loop
        bus.subscribe(lambda each: loop.touch(each.dataset), StatementHeard, DatasetMoved)
        bus.subscribe(lambda each: loop.touch(each.dataset), StatementSigned, VisibilityChanged, soon=True)
        bus.subscribe(lambda _: loop.touch_all(), PolicyChanged)
        bus.subscribe(lambda _: self.flows.applied(), ApplyEnded)


def _follow(ground: Ground) -> FollowSettings:
    flows = ground.settings.flows
    return FollowSettings(flows.follow, int(flows.cooldown_seconds * SECOND))
