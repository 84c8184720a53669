"""Honest nodes: the real machine, with a driver in virtual time; and stock Kademlia in the same driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import Any

from chain.backoff import Chance
from chain.errors import Invalid
from chain.statements.keys import SigningKey
from p2p.address import parse_address
from p2p.lookup.node import (
    NEAREST,
    OWN_PLACE,
    REFRESH,
    REPEAT,
    TURN,
    YOUNG,
    Announce,
    Announcing,
    CheckContact,
    LookupNode,
    ProviderSearch,
    Refresh,
    Work,
)
from p2p.lookup.search import Search, SearchLimits
from p2p.lookup.table import Region, RoutingTable, TableLimits
from p2p.wire.contact import LookupContact, block_of, place_of, place_of_node
from p2p.wire.lookup import Find, Nodes, Store, StoreAnswer, StoreOutcome, decode_record
from p2p.wire.presence import Presence
from sim.lookup.sizes import deep_size
from sim.lookup.world import NETWORK, Member, Quest, SimNode, Spot, World, address, fill

TICK = 5.0


class Honest(Member):
    refreshed = REFRESH
    """Seconds after which a part of the space is searched again."""

    def __init__(self, world: World, key: SigningKey, ip: bytes, spot: Spot) -> None:
        super().__init__(world, key, ip, spot)
        self.machine = self.made()
        self.own = (ip, self.contact.port)
        part = world.plan.upkeep if world.now <= 0 else max(world.plan.upkeep, world.plan.upkeep_of_new)
        self.is_kept = world.dice.random() < part
        self._upkeep: Run | None = None
        """The search that is under way for itself: one at a time, as ``p2p.driver.lookups``."""
        world.after(world.dice.random() * TICK, self._tick)

    def made(self) -> LookupNode:
        return LookupNode(NETWORK, self.key.public, self.world.dice, self.world.dice.randbytes(16))

    def finding(self, key: bytes) -> ProviderSearch:
        return ProviderSearch(self.machine, key, self.world.now)

    @property
    def is_settled(self) -> bool:
        return self.machine.table.settled

    def publish(self, key: bytes) -> None:
        super().publish(key)
        self.machine.publication._plan(key, self.world.now)
        if not self.is_kept:
            self.is_kept = True
            self._tick()

    def serve(self, keys: set[bytes]) -> None:
        super().serve(keys)
        self.machine.publication.want(keys, self.world.now)

    def spread(self) -> None:
        for key in list(self.machine.publication._due):
            self.machine.publication._plan(key, self.world.now + self.world.dice.random() * 0.875 * REPEAT)

    def warm(self, known: list[LookupContact], places: list[int]) -> None:
        dice, table = self.world.dice, self.machine.table
        fill(table, self.machine.place, places, known, dice)
        table.settled = self.machine._has_searched = True
        self.machine._own_search = -dice.random() * OWN_PLACE
        for bucket in table._buckets.values():
            bucket.looked = -dice.random() * self.refreshed

    def bootstrap(self, contacts: list[LookupContact]) -> None:
        super().bootstrap(contacts)
        for contact in contacts:
            self.machine.introduce(contact)

    def answer(self, ask: Find | Store, asker: SimNode) -> Nodes | StoreAnswer | None:
        world = self.world
        if isinstance(ask, Find):
            return self.machine.find(ask, asker.key.public, asker.contact.ip, world.now, world.wall)
        return self.machine.store(ask, asker.key.public, asker.contact.ip, world.now, world.wall)

    def memory(self) -> int:
        """Bytes of its table and records, once it keeps its share of all that others announced."""
        world = self.world
        announced = max(1, world.figures["announced"])
        share = world.plan.published * max(1.0, world.figures["store KEPT"] / announced)
        for _ in range(int(share) - self._records()):
            signer, key, ip = SigningKey(world.dice.randbytes(32)), world.dice.randbytes(32), address(world.dice)
            self._keep(key, self.record(key, signer), signer.public, block_of(ip, signer.public))
        return deep_size(self._state())

    def _keep(self, key: bytes, record: bytes, provider: bytes, block: bytes) -> None:
        self.machine.records.keep(key, record, provider, block, self.world.wall, self.world.dice)

    def _records(self) -> int:
        return len(self.machine.records)

    def _state(self) -> list[Any]:
        return [self.machine.table, self.machine.records, self.machine.publication]

    # The driver

    def _tick(self) -> None:
        if not self.is_alive:
            return
        world = self.world
        if not self.is_kept:
            return
        is_free = self.answers(world.now) and (self._upkeep is None or self._upkeep.is_over)
        work = self.machine.work(world.now) if is_free else None
        if isinstance(work, CheckContact):
            Probe(self, work.contact, work.target)
        elif isinstance(work, Refresh):
            search = self.machine.refresh(work.target, world.now)
            is_own = work.target == self.machine.place
            self._upkeep = Run(
                self,
                work.target,
                search,
                self.machine.note_joined if is_own else ignore,
                "own" if is_own else "refresh",
            )
        elif isinstance(work, Announce):
            self._upkeep = Announcement(self, Announcing(self.machine, work.key, world.now))
        self.machine.records.expire(world.wall)
        world.after(TICK if self.machine._has_searched else 1.0, self._tick)

    def seek(self, key: bytes, holder: bytes, end: Callable[[Quest], None]) -> None:
        Seek(self, key, holder, end)


def ignore(_search: Search) -> None:
    """What a search found is in the table."""


class Probe:
    """One question, to see whether a node is there."""

    def __init__(self, node: Honest, contact: LookupContact, target: int) -> None:
        self._node, self._contact, self._is_over = node, contact, False
        ask = Find(key=target.to_bytes(32, "big"), own=node.own)
        node.world.ask(node, contact, ask, self._heard, why="check")
        node.world.after(3.0, self._late)

    def _heard(self, answer: Nodes) -> None:
        if not self._is_over:
            self._is_over = True
            self._node.machine.note_answer(self._contact, answer.contacts, self._node.world.now)

    def _late(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._node.machine.note_failure(self._contact)


class Run:
    """Carries the questions of one search."""

    def __init__(self, node: Honest, target: int, search: Search, done: Callable[[Search], None], why: str) -> None:
        self.node, self.search, self.why = node, search, why
        self._key = target.to_bytes(32, "big")
        self._done = done
        self.is_over = False
        self._wake = -1.0
        self.go_on()

    def go_on(self) -> None:
        if self.is_over or not self.node.is_alive:
            return
        world = self.node.world
        for contact in self.search.late(world.now):
            self.search.note_failure(contact)
            self.node.machine.note_failure(contact)
        for contact in self.search.step(world.now):
            world.figures["find"] += 1
            ask = self.question(contact)
            world.ask(self.node, contact, ask, partial(self._heard, contact), why=self.why)
        if self.search.done:
            self.is_over = True
            self._done(self.search)
        elif (at := self.search.wake(world.now)) is not None and not world.now < self._wake <= at:
            self._wake = at
            world.after(max(0.0, at - world.now) + 0.001, self.go_on)

    def question(self, contact: LookupContact) -> Find | Store:
        return Find(key=self._key, own=self.node.own)

    def _heard(self, contact: LookupContact, answer: Any) -> None:
        if self.is_over:
            return
        if self.take(contact, answer):
            self.node.machine.note_answer(contact, answer.contacts, self.node.world.now)
        self.go_on()

    def take(self, contact: LookupContact, answer: Any) -> bool:
        self.search.note_answer(contact, answer.contacts)
        return True

    def stop(self) -> None:
        self.is_over = True


class Announcement(Run):
    """A search for keepers, which are brought the record."""

    def __init__(self, node: Honest, work: Announcing) -> None:
        self._work = work
        self._record = node.record(work.key)
        node.world.figures["announced"] += 1
        super().__init__(node, place_of(work.key), work.search, self._rest, "announce")

    def question(self, contact: LookupContact) -> Find | Store:
        is_brought = self._work.key in self.node.datasets and self._work.is_brought_to(contact)
        return self._store() if is_brought else super().question(contact)

    def _store(self) -> Store:
        return Store(key=self._work.key, record=self._record, own=self.node.own)

    def take(self, contact: LookupContact, answer: Any) -> bool:
        if isinstance(answer, StoreAnswer):
            self._brought(contact, answer)
        return super().take(contact, answer)

    def _brought(self, contact: LookupContact, answer: StoreAnswer) -> None:
        self.node.world.figures[f"store {answer.outcome.name}"] += 1
        self._work.note_answer(contact, answer)
        if self._work.keepers:
            self.node.machine.publication.note_announced(self._work.key, self.node.world.now, self._work.keepers)

    def _rest(self, _search: Search) -> None:
        if self._work.key not in self.node.datasets:
            return
        for contact in self._work.rest():
            heard = partial(self._brought, contact)
            self.node.world.ask(self.node, contact, self._store(), heard, why=self.why)


class Seek(Run):
    """The questions of a seek, asked until a holder was reached."""

    def __init__(self, node: Honest, key: bytes, holder: bytes, end: Callable[[Quest], None]) -> None:
        self._finding, self._quest = node.finding(key), Quest(node, key, holder, self._told)
        self._end = end
        super().__init__(node, int.from_bytes(key, "big"), self._finding.search, self._searched, "seek")

    def take(self, contact: LookupContact, answer: Nodes) -> bool:
        new = self._finding.take_answer(contact, answer, self.node.world.wall)
        if new is None:
            self.node.world.figures["forged"] += 1
            self.node.machine.note_failure(contact)
            return False
        for provider in new:
            self._quest.heard_of(located(provider))
        return True

    def _searched(self, _search: Search) -> None:
        self._quest.searched()

    def _told(self, quest: Quest) -> None:
        quest.asked = self.search.asked
        self.stop()
        self._end(quest)


def located(provider: Presence) -> LookupContact:
    said = parse_address(provider.addresses[0])
    return LookupContact(provider.key, said.ip.packed if said.ip else b"", said.port)


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
    """Kademlia as Maymounkov and Mazières describe it, to compare with: k is 20, alpha 3, and what is told is believed.

    A search has one path and no bounds by address; nearer is better everywhere, and a question that nobody answers
    keeps its place among the three until its patience ends. Whoever asks or answers becomes an entry if its bucket has
    room; else it waits in the bucket's cache, and replaces an entry that does not answer. Each part of the space in
    which nothing was looked for in an hour is searched. A record is kept whoever brings it, and nobody signs it. A
    search does not halt at the first record, as the paper's does for values, but goes on until the holder was reached,
    as libp2p's: else one liar on the way would end it.
    """

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
