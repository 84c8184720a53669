"""Tells the states of datasets: cached views with what changes without a new block, such as holders and failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from chain.errors import Fault
from chain.ids import DatasetId
from odfd.control import wire
from odfd.datasets import failing
from odfd.runtime.reconcile_loop import UNTIL_POKED, ReconcileLoop
from odfd.services.views.data_sizes import PAUSE_SECONDS, DataSizes
from odfd.services.views.holder_counts import HolderCounts
from odfd.services.views.views import DatasetViews, with_failure
from odfd.store.directory import StateDirectory


class _Beside(NamedTuple):
    """Views, and in the same order the ids of their datasets; failures by did, and sizes of data."""

    views: Sequence[wire.DatasetView]
    datasets: Sequence[DatasetId]
    failures: Mapping[str, Fault]
    sizes: Mapping[DatasetId, int]


class DatasetStates:
    """The states of the datasets of a node."""

    def __init__(self, home: StateDirectory, views: DatasetViews, sizes: DataSizes, holders: HolderCounts) -> None:
        self.views, self.sizes = views, sizes
        self._home, self._holders = home, holders
        self.summing = ReconcileLoop(self._sum)
        """Sums the sizes of long chains in the background; rests until a state needs one."""

    def complete(self, views: Sequence[wire.DatasetView]) -> Sequence[wire.DatasetView]:
        """Returns views with holders, failures, and the sum of data sizes. Blocking."""
        found = self._beside(views)
        if self.sizes.is_behind:
            self.summing.poke()
        counts = self._holders.of(found.datasets)
        return [
            with_failure(
                msgspec.structs.replace(view, peers=counts[dataset], bytes=found.sizes.get(dataset)),
                found.failures.get(view.id),
            )
            for view, dataset in zip(found.views, found.datasets, strict=True)
        ]

    def _beside(self, views: Sequence[wire.DatasetView]) -> _Beside:
        datasets = [DatasetId.parse(view.id) for view in views]
        with self._home.database.read() as connection:
            failures = failing.all_of(connection)
        return _Beside(views, datasets, failures, self.sizes.of(datasets))

    def _sum(self) -> float:
        self.sizes.step()
        return PAUSE_SECONDS if self.sizes.is_behind else UNTIL_POKED
