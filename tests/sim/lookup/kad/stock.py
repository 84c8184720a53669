"""Plain Kademlia, as libp2p has it, to compare with: one path, no bounds by address, records that nobody signs.

Nearer is better everywhere, what was told is believed, a late answer keeps its place among the parallel ones, and each
record is kept whoever brings it, and returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chain.backoff import Chance
from chain.errors import Invalid
from p2p.lookup.node import NEAREST, Finding, LookupNode
from p2p.lookup.region import Region
from p2p.lookup.search import Search, SearchLimits
from p2p.lookup.table import Table, TableLimits
from p2p.wire.contact import Contact, place_of, place_of_node
from p2p.wire.lookup import Find, Nodes, Store, StoreAnswer, Stored, decode_record
from p2p.wire.presence import Presence

ANY = 1 << 30
SEARCH = SearchLimits(
    paths=1,
    parallel=10,
    haste=3.0,
    credit=ANY,
    of_block=ANY,
    of_operator=ANY,
    of_part=ANY,
    counted_of_part=ANY,
    asked=ANY,
    kept=ANY,
)
"""Ten at a time, as go-libp2p."""
TABLE = TableLimits(of_block=NEAREST, of_block_in_all=ANY, in_all=ANY, failures=1)


class StockNode(LookupNode):
    def __init__(self, network: str, key: bytes, rng: Chance, secret: bytes) -> None:
        super().__init__(network, key, rng, secret, Table(place_of_node(key), TABLE))
        self.kept: dict[bytes, dict[bytes, bytes]] = {}

    def find(self, ask: Find, asker: bytes, ip: bytes, now: float, wall: int) -> Nodes | None:
        self._meet(ask.own, asker, ip)
        near = self.table.nearest(place_of(ask.key), NEAREST)
        return Nodes(contacts=tuple(near), records=tuple(self.kept.get(ask.key, {}).values()))

    def store(self, ask: Store, asker: bytes, ip: bytes, now: float, wall: int) -> StoreAnswer:
        self._meet(ask.own, asker, ip)
        self.kept.setdefault(ask.key, {})[decode_record(ask.record).key] = ask.record
        return StoreAnswer(outcome=Stored.KEPT)

    def search(self, target: int, now: float, limits: SearchLimits = SEARCH) -> Search:
        self.table.looking(target, now)
        return Search(Region(target), self.key, self.table.nearest(target, NEAREST), self._rng, SEARCH)


class StockFinding(Finding):
    def answered(self, contact: Contact, answer: Nodes, wall: int) -> Sequence[Presence] | None:
        fresh: list[Any] = []
        for raw in answer.records:
            try:
                found = decode_record(raw)
            except Invalid:
                continue
            if found.key not in self.providers:
                self.providers[found.key] = found
                fresh.append(found)
        self.search.answered(contact, answer.contacts)
        return fresh
