"""Remembers who asked for statements on which datasets lately: what is said of these next is sent to them.

A node that mirrors, validates or witnesses a dataset asks its neighbours for it by id, in each round of anti-entropy
over what it wants. That question is its subscription: nothing else is said, and it ends by itself. Sans-IO.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from cachetools import FIFOCache

from chain.ids import DatasetId
from p2p.ports import PeerId

LASTS: Final = 3600.0
"""Seconds for which a question counts: rounds come to each of twenty neighbours more often."""
MAX_ASKED: Final = 1024
"""Datasets and keys of one peer, the latest; as many as a presence names."""
MAX_PEERS: Final = 256
"""Peers that are remembered: above what may be connected."""


class ImpliedSubscriptions:
    """Questions of the last hour."""

    def __init__(self) -> None:
        self._asked: FIFOCache[PeerId, FIFOCache[DatasetId, float]] = FIFOCache(MAX_PEERS)

    def note(self, peer: PeerId, datasets: Iterable[DatasetId], now: float) -> None:
        asked = self._asked.get(peer)
        if asked is None:
            asked = FIFOCache(MAX_ASKED)
        self._asked[peer] = asked  # who asks again is the youngest
        for dataset in datasets:
            asked[dataset] = now

    def of(self, subjects: Collection[DatasetId], peers: Iterable[PeerId], now: float) -> set[PeerId]:
        """Those of ``peers`` that asked for one of ``subjects``."""
        found = ((peer, self._asked.get(peer)) for peer in peers)
        return {
            peer
            for peer, asked in found
            if asked is not None and any(asked.get(each, -LASTS) > now - LASTS for each in subjects)
        }
