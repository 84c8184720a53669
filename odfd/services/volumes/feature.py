"""Makes what moves slices to volumes and back."""

from __future__ import annotations

from collections.abc import Iterator

from odfd.services.feature import UNLABELLED, Feature, Ground, Reading, worker
from odfd.services.node_events import (
    DatasetDescribed,
    DatasetMoved,
    ResourceTouched,
    StatementSigned,
    VisibilityChanged,
)
from odfd.services.volumes.worker import VolumeController, VolumeWorker
from odfd.store.catalog import Labels


class VolumesFeature(Feature):
    def __init__(self, ground: Ground, labels: Labels) -> None:
        bus = ground.bus
        self.volumes = VolumeWorker(
            ground.home, ground.context, lambda name: bus.publish(ResourceTouched("PersistentVolume", name)), labels
        )
        self.children = (worker("volumes", self.volumes.run),)
        self.controllers = (VolumeController(ground.home, self.volumes),)
        touch = self.volumes.loop.touch
        bus.subscribe(lambda each: touch(each.dataset), StatementSigned, VisibilityChanged, soon=True)
        bus.subscribe(lambda each: touch(each.dataset), DatasetMoved)
        bus.subscribe(lambda each: self.volumes.touch(each.dataset), DatasetDescribed)

    def gauges(self) -> Iterator[Reading]:
        moves = self.volumes
        failed = sum(state.fault is not None for state in moves.states.values())
        yield "odfd_volumes", len(moves.states) - failed, {"state": "ready"}
        yield "odfd_volumes", failed, {"state": "failed"}
        yield "odfd_volume_slices_total", moves.moved, {"way": "out"}
        yield "odfd_volume_slices_total", moves.returned, {"way": "back"}
        yield "odfd_volume_waiting", sum(state.waiting for state in moves.states.values()), UNLABELLED
        yield "odfd_volume_fetched_bytes_total", moves.volumes.fetched, UNLABELLED
        yield "odfd_volume_cache_bytes", moves.volumes.cached_bytes(), UNLABELLED
