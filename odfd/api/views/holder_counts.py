"""Counts the peers that hold each dataset: the number shown as ``peers`` in every table and answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet

from chain.ids import DatasetId
from odfd.mirrors.scheduler import MirrorScheduler
from p2p.ports import PeerId


class HolderCounts:
    """Counts connected peers that claim to serve a dataset, by their answer to a mirror or by their presence.

    What a peer says of itself is not checked; a peer that is not connected does not count, whatever it said before.
    """

    def __init__(
        self,
        scheduler: MirrorScheduler,
        serving: Callable[[Iterable[DatasetId]], Mapping[DatasetId, AbstractSet[PeerId]]],
    ) -> None:
        """``serving``: as ``odfd.network.membership.Membership.serving``."""
        self._scheduler = scheduler
        self._serving = serving

    def of(self, datasets: Iterable[DatasetId]) -> dict[DatasetId, int]:
        """Counts the holders of each of ``datasets`` in one pass over connected peers."""
        return {dataset: len(peers) for dataset, peers in self.peers(datasets).items()}

    def peers(self, datasets: Iterable[DatasetId]) -> dict[DatasetId, AbstractSet[PeerId]]:
        """The peers themselves."""
        wanted = tuple(datasets)
        told, asked = self._serving(wanted), self._scheduler.holders(wanted)
        nobody: frozenset[PeerId] = frozenset()
        return {each: told.get(each, nobody) | asked.get(each, nobody) for each in wanted}
