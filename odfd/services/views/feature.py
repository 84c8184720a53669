"""Makes the views of datasets, which the API, the page and the flows show and select by."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from chain.ids import DatasetId
from odfd.services.execution.feature import ExecutionFeature
from odfd.services.feature import Feature, Ground, Reading, cache, worker
from odfd.services.judgement.feature import JudgementFeature
from odfd.services.node_events import DatabaseWritten, EngineChanged, PolicyChanged, ResourceTouched
from odfd.services.views.views import DatasetViews


class ViewsFeature(Feature):
    def __init__(
        self,
        ground: Ground,
        judgement: JudgementFeature,
        execution: ExecutionFeature,
        refused_by: Callable[[DatasetId], str],
    ) -> None:
        """``refused_by``: as for ``DatasetViews``."""
        self._ground = ground
        self.views = DatasetViews(ground.home, judgement.evaluator, refused_by, lambda: execution.engine.digests)
        self.children = (worker("views", self.views.refresher.loop.run),)
        poke = self.views.refresher.loop.poke
        ground.bus.subscribe(lambda _: poke(), PolicyChanged)
        ground.bus.subscribe(lambda _: poke(), DatabaseWritten, soon=True)
        ground.bus.subscribe(self._touch_blocked, EngineChanged)

    def _touch_blocked(self, _: EngineChanged) -> None:
        self._ground.context.events.nudge()
        for name in self.views.cache.list_blocked():
            self._ground.bus.publish(ResourceTouched("Dataset", name))

    def gauges(self) -> Iterator[Reading]:
        yield from cache("dataset-views", self.views.cache.kept)
