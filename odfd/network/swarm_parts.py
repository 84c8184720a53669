"""Tells peers that fetch a dataset which of its objects are here, and offers those of own datasets to each in turn.

A mirror offers all that it has, also before the blocks are committed. A publisher offers each object to one asker at a
time (``p2p.machines.seeding``), and of a large object each piece (ADR 65). Called from worker threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from cachetools import LRUCache

from chain.errors import NotFound
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from chain.multihash import Multihash
from chain.store.base import ObjectStore
from odfd.datasets.uncommitted_objects import UncommittedObjects
from odfd.store.directory import StateDirectory
from odfd.store.holdings import Holdings
from odfd.store.ledger.log import Ledger
from p2p.machines.seeding import Seeding
from p2p.ports import HeldParts, PartsAsk, PeerId, PiecesAsk
from p2p.wire.swarm import LARGE_OBJECT, PieceList

MAX_SEEDED: Final = 64
"""Most own datasets whose askers are remembered."""
MAX_DIVIDED: Final = 256
"""Most large objects of own datasets whose askers are remembered."""


class SwarmParts:
    """The answers of one node. Whether a peer may know of a dataset is asked before."""

    def __init__(
        self,
        home: StateDirectory,
        arriving: UncommittedObjects,
        clock: Callable[[], Instant],
    ) -> None:
        self._key, self._own = home.keys.node_key, home.keys.has_dataset_key
        self._divided: LRUCache[Multihash, Seeding] = LRUCache(MAX_DIVIDED)
        self.arriving = arriving
        self._database, self._chains = home.database, home.chains
        self._clock = clock
        self._seedings: LRUCache[DatasetId, Seeding] = LRUCache(MAX_SEEDED)
        self._lock = threading.Lock()

    def parts(self, asker: PeerId | None, ask: PartsAsk, served: int) -> HeldParts | None:
        """``served``: blocks of the dataset that this asker may have."""
        whole = (1 << ask.count) - 1
        step = self.arriving.of(ask.dataset)
        under_way = step if step is not None and step.tip == ask.tip else None
        has = self._find_stored(ask, served, is_same=under_way is not None)
        if under_way is not None:
            has |= _shift(under_way.have, under_way.start - ask.start) & whole
        if not has:
            return None
        if asker is None or has != whole or not self._own(ask.dataset):
            return HeldParts(has=has, offers=has)
        with self._lock:
            seeding = self._seedings.setdefault(ask.dataset, Seeding())
            made = self._offer(seeding, asker, ask.have << ask.start, whole << ask.start)
            return HeldParts(has=has, offers=made.offers >> ask.start, given=made.given)

    def pieces(self, asker: PeerId | None, ask: PiecesAsk, objects: ObjectStore) -> HeldParts | None:
        """The pieces of an object that this asker may have, where the list of them is the one that it names."""
        if (file := self.arriving.file(ask.name)) is not None:
            has = file.have if file.list.root == ask.root else 0
            return HeldParts(has=has, offers=has) if has else None
        made = self._list(ask.name, ask.size, objects)
        if made is None or made.root != ask.root:
            return None
        whole = (1 << made.count) - 1
        if asker is None or not self._own(ask.dataset):
            return HeldParts(has=whole, offers=whole)
        with self._lock:
            seeding = self._divided.setdefault(ask.name, Seeding())
            return self._offer(seeding, asker, ask.have, whole)

    def piece_list(
        self, dataset: DatasetId, name: Multihash, size: int, objects: ObjectStore
    ) -> tuple[bytes, bytes] | None:
        """The hashes of pieces, signed by the publisher's node: by this one, or as it was told."""
        made = self._list(name, size, objects) if self._own(dataset) else self.arriving.lists.get(name)
        if made is None or made.size != size:
            return None
        if not made.signature and self._own(dataset):
            made = self.arriving.lists.sign(made, self._key())
        return (made.hashes, made.signature) if made.signature else None

    def _list(self, name: Multihash, size: int, objects: ObjectStore) -> PieceList | None:
        """Of an object that is here whole."""
        if size < LARGE_OBJECT or not objects.has(name) or objects.size(name) != size:
            return None
        return self.arriving.lists.of(name, size, partial(objects.path, name))

    def gave(self, peer: PeerId | None, datasets: Iterable[DatasetId], name: Multihash, count: int) -> None:
        """Notes that bytes of an object of these datasets are given to a peer."""
        if peer is None or not (self._seedings or self._divided):
            return
        with self._lock:
            seedings = [self._seedings.get(dataset) for dataset in datasets]
            for seeding in (*seedings, self._divided.get(name)):
                if seeding is not None:
                    before = seeding.given
                    seeding.gave(peer, count, self._clock() / SECOND)
                    self.arriving.counts.bytes_given += seeding.given - before

    def _offer(self, seeding: Seeding, asker: PeerId, have: int, wanted: int) -> HeldParts:
        """Under the lock."""
        before = seeding.offered
        offers = seeding.offer(asker, have, wanted, self._clock() / SECOND)
        self.arriving.counts.offered += seeding.offered - before
        return HeldParts(has=wanted, offers=offers, given=seeding.given)

    def _find_stored(self, ask: PartsAsk, served: int, *, is_same: bool) -> int:
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


def _shift(bits: int, by: int) -> int:
    return bits << by if by >= 0 else bits >> -by
