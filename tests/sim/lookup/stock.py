"""Kademlia as Maymounkov and Mazières describe it, to compare with: k is 20, alpha 3, and what is told is believed.

A search has one path and no bounds by address; nearer is better everywhere, and a question that nobody answers keeps
its place among the three until its patience ends. Whoever asks or answers becomes an entry if its bucket has room; else
it waits in the bucket's cache, and replaces an entry that does not answer. Each part of the space in which nothing was
looked for in an hour is searched. A record is kept whoever brings it, and nobody signs it. A search does not halt at
the first record, as the paper's does for values, but goes on until the holder was reached, as libp2p's: else one liar
on the way would end it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from chain.backoff import Chance
from chain.errors import Invalid
from p2p.lookup.node import NEAREST, TURN, YOUNG, LookupNode, ProviderSearch, Refresh, Work
from p2p.lookup.search import Search, SearchLimits
from p2p.lookup.table import Region, RoutingTable, TableLimits
from p2p.wire.contact import LookupContact, place_of, place_of_node
from p2p.wire.lookup import Find, Nodes, Store, StoreAnswer, StoreOutcome, decode_record
from p2p.wire.presence import Presence
from sim.lookup.node import Honest
from sim.lookup.world import NETWORK

ANY = 1 << 30
SEARCH = SearchLimits(
    paths=1,
    parallel=3,
    haste=3.0,
    credit=ANY,
    of_block=ANY,
    of_operator=ANY,
    of_part=ANY,
    counted_of_part=ANY,
    asked=ANY,
    kept=ANY,
    doubted=ANY,
)
TABLE = TableLimits(of_block=NEAREST, of_block_in_all=ANY, in_all=ANY, failures=1)


REFRESHED = 3600.0
"""Seconds after which a part of the space in which nothing was looked for is searched."""


class StockTable(RoutingTable):
    def note_failure(self, key: bytes, place: int) -> None:
        """An entry that does not answer is replaced by the one of the bucket's cache that was seen last."""
        super().note_failure(key, place)
        bucket = self._bucket(place)
        if bucket.spare and len(bucket.entries) < TABLE.bucket:
            self.note_answer(bucket.spare.popitem()[1], 0.0)


class StockSearch(Search):
    """A node is asked once, at the address that was told of it first."""

    def _offer(self, path: int, contacts: Iterable[LookupContact], teller: bytes | None) -> None:
        fresh = [each for each in contacts if each.key not in self._known]
        self._known.update(each.key for each in fresh)
        super()._offer(path, fresh, teller)

    @cached_property
    def _known(self) -> set[bytes]:
        return set()


class StockNode(LookupNode):
    def __init__(self, network: str, key: bytes, rng: Chance, secret: bytes) -> None:
        super().__init__(network, key, rng, secret, StockTable(place_of_node(key), TABLE))
        self.kept: dict[bytes, dict[bytes, bytes]] = {}

    def find(self, ask: Find, asker: bytes, ip: bytes, now: float, wall: int) -> Nodes | None:
        self._seen(ask, asker, now)
        near = self.table.nearest(place_of(ask.key), NEAREST)
        return Nodes(contacts=tuple(near), records=tuple(self.kept.get(ask.key, {}).values()))

    def store(self, ask: Store, asker: bytes, ip: bytes, now: float, wall: int) -> StoreAnswer:
        self._seen(ask, asker, now)
        self.kept.setdefault(ask.key, {})[decode_record(ask.record).key] = ask.record
        return StoreAnswer(outcome=StoreOutcome.KEPT)

    def _seen(self, ask: Find | Store, asker: bytes, now: float) -> None:
        if ask.own is not None:
            self.table.note_answer(LookupContact(asker, *ask.own), now)

    def note_answer(self, contact: LookupContact, told: Iterable[LookupContact], now: float) -> None:
        """Only who answered is an entry; whom it named was asked in the search, or not."""
        self.table.note_answer(contact, now)

    def search(self, target: int, now: float, limits: SearchLimits = SEARCH) -> Search:
        self.table.looking(target, now)
        return StockSearch(Region(target), self.key, self.table.nearest(target, NEAREST), self._rng, SEARCH)

    def _upkeep(self, now: float) -> Work | None:
        target = self.table.refresh(now, REFRESHED, self._rng)
        self._turn = now + (TURN if self._has_searched else YOUNG)
        self._has_searched = self._has_searched or target is None
        return None if target is None else Refresh(target)


class StockFinding(ProviderSearch):
    def take_answer(self, contact: LookupContact, answer: Nodes, wall: int) -> Sequence[Presence] | None:
        fresh: list[Any] = []
        for raw in answer.records:
            try:
                found = decode_record(raw)
            except Invalid:
                continue
            if found.key not in self.providers:
                self.providers[found.key] = found
                fresh.append(found)
        self.search.note_answer(contact, answer.contacts)
        return fresh


class Stock(Honest):
    """A node with these rules, in the same driver."""

    refreshed = REFRESHED

    def made(self) -> StockNode:
        return StockNode(NETWORK, self.key.public, self.world.dice, b"")

    def finding(self, key: bytes) -> StockFinding:
        return StockFinding(self.machine, key, self.world.now)

    def _keep(self, key: bytes, record: bytes, provider: bytes, block: bytes) -> None:
        self._kept.setdefault(key, {})[provider] = record

    def _records(self) -> int:
        return sum(map(len, self._kept.values()))

    def _state(self) -> list[Any]:
        return [*super()._state(), self._kept]

    @property
    def _kept(self) -> dict[bytes, dict[bytes, bytes]]:
        assert isinstance(self.machine, StockNode)
        return self.machine.kept
