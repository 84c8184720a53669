"""Counts the peers that hold each dataset: the number shown as ``peers`` in every table and answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from chain.ids import DatasetId
from odfd.mirrors.scheduler import MirrorScheduler
from odfd.runtime.hanging_calls import in_loop
from p2p.ports import PeerId


class Spread(NamedTuple):
    """How independently a dataset is held: by how many peers, in how many blocks of addresses."""

    peers: int
    places: int


class HolderCounts:
    """Counts connected peers that claim to serve a dataset, by their answer to a mirror or by their presence.

    A peer's claim is not checked. A peer that is no longer connected does not count.
    """

    def __init__(
        self,
        scheduler: MirrorScheduler,
        serving: Callable[[Iterable[DatasetId]], Mapping[DatasetId, AbstractSet[PeerId]]],
        share_of: Callable[[PeerId], str],
    ) -> None:
        """``serving`` and ``share_of``: see ``odfd.network.membership.Membership``."""
        self._scheduler = scheduler
        self._serving = serving
        self._share_of = share_of

    def of(self, datasets: Iterable[DatasetId]) -> dict[DatasetId, int]:
        """Counts the holders of each of ``datasets`` in one pass over connected peers."""
        return {dataset: len(peers) for dataset, peers in self.peers(datasets).items()}

    @in_loop
    def spread(self, datasets: Iterable[DatasetId]) -> dict[DatasetId, Spread]:
        """Counts the holders, and the address blocks that they are in, since one operator may control a whole block."""
        return {
            dataset: Spread(len(peers), len(set(map(self._share_of, peers))))
            for dataset, peers in self.peers(datasets).items()
        }

    @in_loop
    def peers(self, datasets: Iterable[DatasetId]) -> dict[DatasetId, AbstractSet[PeerId]]:
        """Returns the holders of each of ``datasets``."""
        wanted = tuple(datasets)
        told, asked = self._serving(wanted), self._scheduler.holders(wanted)
        nobody: frozenset[PeerId] = frozenset()
        return {each: told.get(each, nobody) | asked.get(each, nobody) for each in wanted}
