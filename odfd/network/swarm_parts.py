"""Tells peers that fetch a dataset which of its objects are here, and offers those of own datasets to each in turn.

A mirror offers all that it has, also before the blocks are committed. A publisher offers each object to one asker at a
time (``p2p.machines.seeding``). Called from worker threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

from cachetools import LRUCache

from chain.errors import NotFound
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from chain.store.base import ChainStore
from chain.store.database import Database
from odfd.datasets.arriving import Arriving
from odfd.datasets.holdings import Holdings
from odfd.trust.ledger.log import Ledger
from p2p.machines.seeding import Seeding
from p2p.ports import Parts, PartsAsk, PeerId

MAX_SEEDED: Final = 64
"""Own datasets whose askers are remembered."""


class SwarmParts:
    """The answers of one node. Whether a peer may know of a dataset is asked before."""

    def __init__(
        self,
        database: Database,
        chains: ChainStore,
        arriving: Arriving,
        own: Callable[[DatasetId], bool],
        clock: Callable[[], Instant],
    ) -> None:
        """``own``: whether this node publishes a dataset."""
        self.arriving = arriving
        self._database = database
        self._chains = chains
        self._own = own
        self._clock = clock
        self._seedings: LRUCache[DatasetId, Seeding] = LRUCache(MAX_SEEDED)
        self._lock = threading.Lock()

    def parts(self, asker: PeerId | None, ask: PartsAsk, served: int) -> Parts | None:
        """``served``: blocks of the dataset that this asker may have."""
        whole = (1 << ask.count) - 1
        step = self.arriving.of(ask.dataset)
        under_way = step if step is not None and step.tip == ask.tip else None
        has = self._stored(ask, served, is_same=under_way is not None)
        if under_way is not None:
            has |= _moved(under_way.have, under_way.start - ask.start) & whole
        if not has:
            return None
        if asker is None or has != whole or not self._own(ask.dataset):
            return Parts(has=has, offers=has)
        with self._lock:
            seeding = self._seedings.setdefault(ask.dataset, Seeding())
            offers = seeding.offer(asker, ask.have << ask.start, whole << ask.start, self._clock() / SECOND)
            return Parts(has=has, offers=offers >> ask.start, given=seeding.given)

    def gave(self, peer: PeerId | None, datasets: Iterable[DatasetId], count: int) -> None:
        """Notes that bytes of an object of these datasets are given to a peer."""
        if peer is None or not self._seedings:
            return
        with self._lock:
            for dataset in datasets:
                if (seeding := self._seedings.get(dataset)) is not None:
                    seeding.gave(peer, count, self._clock() / SECOND)

    def _stored(self, ask: PartsAsk, served: int, *, is_same: bool) -> int:
        """Blocks of the question whose data is here and committed."""
        if served <= ask.start or not (is_same or self._is_of(ask, served)):
            return 0
        first, stop = 0, served
        if not self._own(ask.dataset):
            with self._database.read() as connection:
                first = Holdings(connection).extent(ask.dataset).first
                stop = min(served, Ledger(connection).chain(ask.dataset).data)
        first, stop = max(first, ask.start) - ask.start, min(stop - ask.start, ask.count)
        return ((1 << stop) - 1) >> first << first if stop > first else 0

    def _is_of(self, ask: PartsAsk, served: int) -> bool:
        """Whether the question is of the history that is here."""
        if served < ask.tip.size:
            return False
        try:
            return self._chains.chain(ask.dataset).block_at(ask.tip.size - 1).hash.digest == ask.tip.last
        except NotFound:
            return False


def _moved(bits: int, by: int) -> int:
    return bits << by if by >= 0 else bits >> -by
