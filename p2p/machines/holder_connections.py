"""Chooses the next dataset of interest for which the node connects to more holders. Sans-IO.

In a large network only nodes that want a dataset pass on its statements. So a node that wants a dataset stays connected
to peers that serve it. It keeps two: with one each, two nodes connected only to each other would hear nothing. Now and
then it adds one at random, because both may have lost the publisher, or may lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from chain.backoff import Backoff
from chain.ids import DatasetId

ENOUGH: Final = 2
"""Connected peers wanted for each dataset, by what they say they serve."""
NEXT: Final = Backoff(first=60.0, most=1800.0)
"""Pause between two attempts for one dataset; each may ask six peers, whether or not they find others."""
ALONE: Final = Backoff(first=60.0, most=300.0)
"""The same while no connected peer serves it."""
LOOKED_AT: Final = 64
"""Datasets that are checked in one step."""
MAX_KEPT: Final = 65_536
"""Datasets of which the last attempt is remembered."""


class Meet(msgspec.Struct, frozen=True):
    """Asks the driver to connect to ``most`` further peers that serve this dataset."""

    dataset: DatasetId
    most: int


class _Search(msgspec.Struct, frozen=True):
    at: float
    found: int
    times: int
    """Attempts in a row that found nobody or were not needed."""


class HolderConnections:
    def __init__(self) -> None:
        self._looks: dict[DatasetId, _Search] = {}
        self._at = 0

    def step(self, wanted: Sequence[DatasetId], serving: Callable[[DatasetId], int], now: float) -> Meet | None:
        """Returns the next dataset that is due, each in turn;
        ``serving`` counts connected peers that say they serve it."""
        for _ in range(min(LOOKED_AT, len(wanted))):
            self._at = (self._at + 1) % len(wanted)
            dataset = wanted[self._at]
            found = serving(dataset)
            last = self._looks.get(dataset)
            lost = last is not None and found < last.found
            if last is None or lost or now >= last.at + (NEXT if found else ALONE).whole(last.times):
                times = 1 if last is None or lost else last.times + 1
                self._keep(dataset, _Search(now, found, times))
                return Meet(dataset, max(1, ENOUGH - found))
        return None

    def note_met(self, dataset: DatasetId, found: int) -> None:
        """Records that ``found`` connected peers serve the dataset after an attempt."""
        last = self._looks[dataset]
        times = 1 if found < ENOUGH and found > last.found else last.times
        self._looks[dataset] = _Search(last.at, found, times)

    def _keep(self, dataset: DatasetId, look: _Search) -> None:
        self._looks.pop(dataset, None)
        self._looks[dataset] = look
        if len(self._looks) > MAX_KEPT:
            del self._looks[next(iter(self._looks))]
