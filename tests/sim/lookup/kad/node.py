"""An honest node: the real machine, with a driver in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chain.statements.keys import SigningKey
from p2p.lookup.node import Announce, Announcing, Check, Finding, LookupNode, Refresh
from p2p.lookup.search import Search
from p2p.wire.contact import Contact, place_of
from p2p.wire.lookup import Find, Nodes, Store, StoreAnswer
from p2p.wire.presence import Presence

from .addresses import Spot
from .world import NETWORK, SimNode, World

TICK = 5.0
DIALLED = 8
"""Providers that a seeker dials at a time, as ``p2p.driver.discovery``."""
DIAL_PATIENCE = 3.0


class Honest(SimNode):
    def __init__(self, world: World, key: SigningKey, ip: bytes, spot: Spot) -> None:
        super().__init__(world, key, ip, spot)
        self.machine = self.made()
        self.own = (ip, self.contact.port)
        part = world.plan.upkeep if world.now <= 0 else max(world.plan.upkeep, world.plan.upkeep_of_new)
        self.is_kept = world.lot.random() < part
        """Whether it does more than answering."""
        self.is_cut_off = False
        """Whether all bootstrap nodes of a newcomer lie or are silent: it hears of no honest node."""
        self._upkeep: Run | None = None
        """The search that is under way for itself: one at a time, as ``p2p.driver.lookups``."""
        self.datasets: set[bytes] = set()
        """Keys of what it really serves."""
        world.after(world.lot.random() * TICK, self._tick)

    def made(self) -> LookupNode:
        return LookupNode(NETWORK, self.key.public, self.world.lot, self.world.lot.randbytes(16))

    def finding(self, key: bytes) -> Finding:
        return Finding(self.machine, key, self.world.now)

    def publish(self, key: bytes) -> None:
        """Announces a dataset now."""
        self.serve({*self.datasets, key})
        self.machine.publication._plan(key, self.world.now)
        if not self.is_kept:
            self.is_kept = True
            self._tick()

    def serve(self, keys: set[bytes]) -> None:
        self.datasets = keys
        self.machine.publication.wanted(keys, self.world.now)

    def answer(self, ask: Find | Store, asker: SimNode) -> Nodes | StoreAnswer | None:
        world = self.world
        if isinstance(ask, Find):
            return self.machine.find(ask, asker.key.public, asker.contact.ip, world.now, world.wall)
        return self.machine.store(ask, asker.key.public, asker.contact.ip, world.now, world.wall)

    def bootstrap(self, contacts: list[Contact]) -> None:
        there = [self.world.at.get((contact.ip, contact.port)) for contact in contacts]
        self.is_cut_off = not any(type(one) in (Honest, Stock) and one.answers(self.world.now) for one in there if one)
        for contact in contacts:
            self.machine.introduce(contact)

    # The driver

    def _tick(self) -> None:
        if not self.is_alive:
            return
        world = self.world
        if not self.is_kept:
            return
        is_free = self.answers(world.now) and (self._upkeep is None or self._upkeep.is_over)
        work = self.machine.work(world.now) if is_free else None
        if isinstance(work, Check):
            Probe(self, work.contact, work.target)
        elif isinstance(work, Refresh):
            search = self.machine.refresh(work.target, world.now)
            is_own = work.target == self.machine.place
            self._upkeep = Run(
                self, work.target, search, self.machine.joined if is_own else ignore, "own" if is_own else "refresh"
            )
        elif isinstance(work, Announce):
            self._upkeep = Announcement(self, Announcing(self.machine, work.key, world.now))
        self.machine.records.expire(world.wall)
        world.after(TICK if self.machine._has_searched else 1.0, self._tick)

    def seek(self, key: bytes, holder: bytes, end: Callable[[Seek], None]) -> None:
        Seek(self, key, holder, end)


def ignore(_search: Search) -> None:
    """What a search found is in the table."""


class Probe:
    """One question, to see whether a node is there."""

    def __init__(self, node: Honest, contact: Contact, target: int) -> None:
        self._node, self._contact, self._is_over = node, contact, False
        ask = Find(key=target.to_bytes(32, "big"), own=node.own)
        node.world.ask(node, contact, ask, self._heard, why="check")
        node.world.after(3.0, self._late)

    def _heard(self, answer: Nodes) -> None:
        if not self._is_over:
            self._is_over = True
            self._node.machine.heard(self._contact, answer.contacts, self._node.world.now)

    def _late(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._node.machine.failed(self._contact)


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
            self.search.failed(contact)
            self.node.machine.failed(contact)
        for contact in self.search.step(world.now):
            world.figures["find"] += 1
            ask = self.question(contact)
            world.ask(
                self.node, contact, ask, lambda answer, contact=contact: self._heard(contact, answer), why=self.why
            )
        if self.search.done:
            self.is_over = True
            self._done(self.search)
        elif (at := self.search.wake(world.now)) is not None and not world.now < self._wake <= at:
            self._wake = at
            world.after(max(0.0, at - world.now) + 0.001, self.go_on)

    def question(self, contact: Contact) -> Find | Store:
        return Find(key=self._key, own=self.node.own)

    def _heard(self, contact: Contact, answer: Any) -> None:
        if self.is_over:
            return
        if self.take(contact, answer):
            self.node.machine.heard(contact, answer.contacts, self.node.world.now)
        self.go_on()

    def take(self, contact: Contact, answer: Any) -> bool:
        self.search.answered(contact, answer.contacts)
        return True

    def stop(self) -> None:
        self.is_over = True


class Announcement(Run):
    """A search for keepers, which are brought the record."""

    def __init__(self, node: Honest, work: Announcing) -> None:
        self._work = work
        self._record = node.record(work.key)
        super().__init__(node, place_of(work.key), work.search, self._rest, "announce")

    def question(self, contact: Contact) -> Find | Store:
        is_brought = self._work.key in self.node.datasets and self._work.is_brought_to(contact)
        return self._store() if is_brought else super().question(contact)

    def _store(self) -> Store:
        return Store(key=self._work.key, record=self._record, own=self.node.own)

    def take(self, contact: Contact, answer: Any) -> bool:
        if isinstance(answer, StoreAnswer):
            self._brought(contact, answer)
        return super().take(contact, answer)

    def _brought(self, contact: Contact, answer: StoreAnswer) -> None:
        self.node.world.figures[f"store {answer.outcome.name}"] += 1
        self._work.brought(contact, answer)
        if self._work.keepers:
            self.node.machine.publication.announced(self._work.key, self.node.world.now, self._work.keepers)

    def _rest(self, _search: Search) -> None:
        if self._work.key not in self.node.datasets:
            return
        for contact in self._work.rest():
            self.node.world.ask(
                self.node,
                contact,
                self._store(),
                lambda answer, contact=contact: self._brought(contact, answer),
                why=self.why,
            )


class Seek(Run):
    """A search for a holder that is left once a holder shows that it serves the dataset."""

    def __init__(self, node: Honest, key: bytes, holder: bytes, end: Callable[[Seek], None]) -> None:
        self.finding = node.finding(key)
        self._holder, self._end = holder, end
        self.began = node.world.now
        self.found_at: float | None = None
        """When the true holder's record was here,"""
        self.reached_at: float | None = None
        """and when it was dialled and had answered."""
        self._waiting: list[Presence] = []
        self._dialling = 0
        self._is_told = False
        self._is_searched = False
        super().__init__(node, int.from_bytes(key, "big"), self.finding.search, self._searched, "seek")

    def take(self, contact: Contact, answer: Nodes) -> bool:
        world = self.node.world
        new = self.finding.answered(contact, answer, world.wall)
        if new is None:
            world.figures["forged"] += 1
            self.node.machine.failed(contact)
            return False
        for provider in new:
            if provider.key == self._holder:
                self.found_at = world.now
            self._waiting.append(provider)
        self._dial()
        return True

    def _dial(self) -> None:
        world = self.node.world
        while self._waiting and self._dialling < DIALLED and self.reached_at is None:
            provider = self._waiting.pop(0)
            self._dialling += 1
            there = next((one for one in self._nodes_of(provider)), None)
            if there is None or not there.is_alive or not there.answers(world.now):
                world.after(DIAL_PATIENCE, self._dialled, None)
            else:
                trip = self.node.spot.round_trip(there.spot, world.lot)
                world.after(6 * trip, self._dialled, provider if self._serves(there) else None)

    def _nodes_of(self, provider: Presence) -> list[SimNode]:
        from p2p.address import parse_address

        address = parse_address(provider.addresses[0])
        ip = address.ip
        there = self.node.world.at.get((ip.packed if ip else b"", address.port))
        return [] if there is None or there.contact.key != provider.key else [there]

    def _serves(self, there: SimNode) -> bool:
        return type(there) in (Honest, Stock) and self.finding.key in there.datasets

    def _dialled(self, provider: Presence | None) -> None:
        self._dialling -= 1
        if provider is not None and self.reached_at is None:
            self.reached_at = self.node.world.now
            self.stop()
            self._tell()
            return
        self._dial()
        self._tell_if_over()

    def _searched(self, _search: Search) -> None:
        self._is_searched = True
        self._tell_if_over()

    def _tell_if_over(self) -> None:
        if self._is_searched and not self._dialling and not self._waiting:
            self._tell()

    def _tell(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._end(self)


class Stock(Honest):
    """The same node by the rules of plain Kademlia; see ``stock``."""

    def made(self) -> LookupNode:
        from .stock import StockNode

        return StockNode(NETWORK, self.key.public, self.world.lot, b"")

    def finding(self, key: bytes) -> Any:
        from .stock import StockFinding

        return StockFinding(self.machine, key, self.world.now)
