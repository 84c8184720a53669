"""A network of thousands of nodes: where they are, what travels between them, and whom a member dials when it seeks."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from typing import Any

from chain.statements.keys import SigningKey
from p2p.lookup.node import CHECK
from p2p.lookup.table import RoutingTable
from p2p.wire.contact import BITS, LookupContact, place_of_node
from p2p.wire.lookup import Find, Nodes, Store, StoreAnswer, seal_record
from p2p.wire.presence import Presence
from sim.kernel import Simulation

NETWORK = "public"
START = 1_800_000_000_000
"""Milliseconds since the epoch, when a run begins."""
RECORD_LIFETIME = 7200
FIND_BYTES, STORE_BYTES, CONTACT_BYTES = 4 + 41, 4 + 41, 39
BOOTSTRAPS = 3
BUCKET = 20
PORT = 4150
CLOUDS = 24
"""Blocks of a /16 in which three nodes of ten are."""
ROUND_TRIPS = 5
"""Of a dial: TCP, two of multistream-select, noise, the muxer's choice and the stream's, some of them in one."""
HANDSHAKE = 1400
"""Bytes each way of a dial, as counted on loopback: 480 and 560 of noise, names of protocols and yamux, and in sixteen
and nineteen packets the headers of TCP and IP."""

UNANSWERED = 180
"""Bytes sent to an address at which nobody is: the first packet of TCP and its repetitions in three seconds."""


# Where nodes are: addresses as they are spread over the Internet, and distances in time


@dataclass(frozen=True, slots=True)
class Spot:
    """A point of a flat world of two round trips of 0.19 s at most."""

    x: float
    y: float

    def round_trip(self, other: Spot, lot: Random) -> float:
        dx, dy = abs(self.x - other.x), abs(self.y - other.y)
        far: float = (min(dx, 1 - dx) ** 2 + min(dy, 1 - dy) ** 2) ** 0.5
        return (0.015 + 0.25 * far) * (0.9 + 0.3 * lot.random())


def spot(lot: Random) -> Spot:
    return Spot(lot.random(), lot.random())


def address(lot: Random) -> bytes:
    if lot.random() < 0.3:
        return bytes([52, lot.randrange(CLOUDS), lot.randrange(256), lot.randrange(1, 255)])
    return bytes([lot.randrange(60, 96), lot.randrange(256), lot.randrange(256), lot.randrange(1, 255)])


def rented(blocks: int, each: int, lot: Random) -> Iterator[bytes]:
    """Addresses of an attacker: ``each`` in each of so many /24, of which eight are in a /16."""
    for at in range(blocks):
        for host in range(each):
            yield bytes([62 + at // 2048, at // 8 % 256, at % 8 * 16 + lot.randrange(16), host + 1])


@dataclass(frozen=True)
class Plan:
    nodes: int
    minutes: float = 20.0
    """That pass before datasets are published and looked for,"""
    measured: float = 20.0
    """and while they are."""
    silent: float = 0.2
    """Part of the nodes that do not answer: half never, half from some time of the measured minutes on."""
    lying: float = 0.1
    churn: float = 0.5
    """Part of the nodes that is replaced in an hour."""
    published: int = 10
    """Datasets that each honest node announces, for the traffic."""
    sought: int = 20
    """Datasets held by one node that are looked for,"""
    seekers: int = 25
    """each by so many."""
    warm: bool = True
    """Tables are filled from outside first; else everybody joins by bootstrap nodes."""
    eclipses: int = 0
    """Of the sought datasets, those whose key is attacked,"""
    attackers: int = 0
    """by so many nodes"""
    attack_blocks: int = 1
    """in so many /24 each."""
    forged: int = 0
    """Holders that have nothing, and whose records the attackers answer with."""
    poisoners: int = 0
    """Peers in different /24 that claim to serve each attacked dataset."""
    way: str = "lookup"
    """How a holder is found: ``lookup``, ``stock`` Kademlia, or ``gossip`` of all presences to all."""
    upkeep: float = 1.0
    """Part of the nodes that keep their tables and announce; the others only answer. It saves the time of a run."""
    upkeep_of_new: float = 0.1
    """The same of nodes that come later, at least."""
    stale: float = 0.0
    """Part of the nodes in warm tables that are gone."""


class World(Simulation):
    """``rng`` draws who is there, where, and how long: the same for each way of finding a holder."""

    def __init__(self, seed: int, plan: Plan) -> None:
        super().__init__(seed)
        self.plan = plan
        self.dice = Random(f"{seed} dice")
        """What nodes draw for themselves, and how long a message takes."""
        self.reached: dict[tuple[bytes, int], SimNode] = {}
        """Whom one reaches at an address."""
        self.alive: list[SimNode] = []
        self.figures: Counter[str] = Counter()
        self.moved = 0
        """Bytes that were sent and that were received, by all."""
        self.costs: Counter[str] = Counter()
        """The same by what it is for,"""
        self.dials: Counter[str] = Counter()
        """and connections that were opened."""
        self.net: Any = None
        """What the nodes share in a model of gossip."""
        self.fakes: list[tuple[int, bytes]] = []
        """Keys that nobody has, by place: what liars invent nodes from."""

    @property
    def wall(self) -> int:
        return START + int(self.now * 1000)

    # Nodes

    def add(self, make: Callable[[World, SigningKey, bytes, Spot], SimNode], ip: bytes | None = None) -> SimNode:
        key = SigningKey(self.rng.randbytes(32))
        while ip is None or (ip, PORT) in self.reached:
            ip = address(self.rng)
        node = make(self, key, ip, spot(self.rng))
        self.enter(node)
        return node

    def enter(self, node: SimNode) -> None:
        self.reached[node.contact.ip, node.contact.port] = node
        node.rank = len(self.alive)
        self.alive.append(node)

    def leave(self, node: SimNode) -> None:
        node.is_alive = False
        node.left()
        del self.reached[node.contact.ip, node.contact.port]
        last = self.alive.pop()
        if last is not node:
            self.alive[node.rank] = last
            last.rank = node.rank

    def lifetime(self) -> float:
        rate = -math.log(1 - self.plan.churn) / 3600
        return self.rng.expovariate(rate)

    def invent(self, count: int) -> None:
        keys = (sha256(b"fake %d" % at).digest() for at in range(count))
        self.fakes = sorted((place_of_node(key), key) for key in keys)

    def invented(self, target: int, count: int) -> list[bytes]:
        """Keys whose places are nearest to a target, about."""
        at = bisect_left(self.fakes, (target, b""))
        near = sorted(self.fakes[max(0, at - count) : at + count], key=lambda pair: pair[0] ^ target)
        return [key for _, key in near[:count]]

    # What travels

    def ask(
        self,
        asker: SimNode,
        contact: LookupContact,
        ask: Find | Store,
        heard: Callable[[Any], None],
        *,
        why: str = "",
        warm: bool = False,
    ) -> None:
        """Asks whoever is at an address; ``heard`` gets the answer, or is never called. ``warm``: over a connection
        that is open already."""
        size = FIND_BYTES if isinstance(ask, Find) else STORE_BYTES + len(ask.record)
        sent = Sent(asker, ask, heard, why, 0 if warm else HANDSHAKE)
        self.dials[why] += not warm
        there = self.reached.get((contact.ip, contact.port))
        if there is None or there.contact.key != contact.key or not there.answers(self.now):
            self._moves(asker, why, UNANSWERED)
            return
        self._moves(asker, why, size + sent.opening)
        trip = asker.spot.round_trip(there.spot, self.dice)
        dial = 0.0 if warm else ROUND_TRIPS * trip
        self.after(dial + trip / 2, self._arrive, sent, there, size + sent.opening, trip / 2)

    def _moves(self, node: SimNode, why: str, size: int, *, is_received: bool = False) -> None:
        if is_received:
            node.received += size
        else:
            node.sent += size
        self.moved += size
        self.costs[why] += size

    def spend(self, why: str, size: int) -> None:
        """Counts bytes that one sends and another receives."""
        self.moved += 2 * size
        self.costs[why] += 2 * size

    def _arrive(self, sent: Sent, there: SimNode, size: int, back: float) -> None:
        if not there.is_alive or not there.answers(self.now):
            return
        self._moves(there, sent.why, size, is_received=True)
        answer = there.answer(sent.ask, sent.asker)
        if answer is None:
            return
        size = answer_size(answer) + sent.opening
        self._moves(there, sent.why, size)
        self.after(back, self._return, sent, answer, size)

    def _return(self, sent: Sent, answer: Any, size: int) -> None:
        if sent.asker.is_alive:
            self._moves(sent.asker, sent.why, size, is_received=True)
            sent.heard(answer)


@dataclass(frozen=True, slots=True)
class Sent:
    """A question under way."""

    asker: SimNode
    ask: Find | Store
    heard: Callable[[Any], None]
    why: str
    opening: int
    """Bytes of the connection's handshake, each way."""


class SimNode:
    """A node at an address; subclasses answer."""

    def __init__(self, world: World, key: SigningKey, ip: bytes, spot: Spot) -> None:
        self.world = world
        self.key = key
        self.contact = LookupContact(key.public, ip, PORT)
        self.spot = spot
        self.born = world.now
        self.rank = 0
        self.is_alive = True
        self.silent_from = math.inf
        self.sent = self.received = 0

    def answers(self, now: float) -> bool:
        return now < self.silent_from

    def has(self, key: bytes) -> bool:
        """Whether it really serves the dataset of a key."""
        return False

    def left(self) -> None:
        """It is gone."""

    def answer(self, ask: Find | Store, asker: SimNode) -> Nodes | StoreAnswer | None:
        raise NotImplementedError

    def record(self, key: bytes, signer: SigningKey | None = None) -> bytes:
        signer = signer or self.key
        said = Presence(
            key=signer.public,
            issued=self.world.wall,
            lifetime=RECORD_LIFETIME,
            addresses=(self.contact.address.transport,),
        )
        return seal_record(said, NETWORK, key, signer)


def answer_size(answer: Nodes | StoreAnswer) -> int:
    if isinstance(answer, StoreAnswer):
        return 4 + 3 + CONTACT_BYTES * len(answer.contacts)
    return 4 + 3 + CONTACT_BYTES * len(answer.contacts) + sum(2 + len(one) for one in answer.records)


def fill(table: RoutingTable, me: int, places: list[int], contacts: list[LookupContact], lot: Random) -> None:
    """Fills a table from ``contacts`` at ``places``, which ascend, as if all had been met: some a bucket by lot."""
    for index in range(BITS, 0, -1):
        half = 1 << (index - 1)
        low = ((me >> (index - 1)) ^ 1) << (index - 1)
        start, end = bisect_left(places, low), bisect_left(places, low + half)
        for at in lot.sample(range(start, end), min(BUCKET, end - start)):
            table.note_answer(contacts[at], -lot.random() * CHECK)
        own = me >> (index - 1) << (index - 1)
        if bisect_left(places, own + half) - bisect_left(places, own) <= 1:
            return


DIALLED = 8
"""Providers that a seeker dials at a time, as ``p2p.driver.discovery``."""
DIAL_PATIENCE = 3.0


class Member(SimNode):
    is_honest = True
    """Liars and poisoners are not: they serve nothing, whatever they say."""

    def __init__(self, world: World, key: SigningKey, ip: bytes, spot: Spot) -> None:
        super().__init__(world, key, ip, spot)
        self.datasets: set[bytes] = set()
        """Keys of what it announces."""
        self.is_kept = True
        """Whether it does more than answering."""
        self.is_cut_off = False
        """Whether all bootstrap nodes of a newcomer lie or are silent: it hears of no honest node."""

    @property
    def is_settled(self) -> bool:
        """Whether it has joined."""
        raise NotImplementedError

    def has(self, key: bytes) -> bool:
        return self.is_honest and key in self.datasets

    def serve(self, keys: set[bytes]) -> None:
        self.datasets = keys

    def publish(self, key: bytes) -> None:
        """Announces a dataset now."""
        self.serve({*self.datasets, key})

    def spread(self) -> None:
        """It has announced its datasets before, at any time."""

    def bootstrap(self, contacts: list[LookupContact]) -> None:
        """Joins by these members."""
        there = [self.world.reached.get((contact.ip, contact.port)) for contact in contacts]
        honest = (one for one in there if isinstance(one, Member) and one.is_honest)
        self.is_cut_off = not any(one.answers(self.world.now) for one in honest)

    def warm(self, known: list[LookupContact], places: list[int]) -> None:
        """Knows of the others what one knows after a long time. ``known`` at ``places``, which ascend."""
        raise NotImplementedError

    def seek(self, key: bytes, holder: bytes, end: Callable[[Quest], None]) -> None:
        raise NotImplementedError

    def memory(self) -> int:
        """Bytes of what it knows of others."""
        raise NotImplementedError


class Quest:
    """One seek, by whatever way the seeker hears of holders. ``end`` is called once, when it is reached or given up."""

    def __init__(self, node: SimNode, key: bytes, holder: bytes, end: Callable[[Quest], None]) -> None:
        self.node, self.key = node, key
        self._holder, self._end = holder, end
        self.began = node.world.now
        self.asked = 0
        """Questions to others, without the dials of holders."""
        self.found_at: float | None = None
        """When the true holder's record was here,"""
        self.reached_at: float | None = None
        """and when it was dialled and had answered."""
        self._waiting: list[LookupContact] = []
        self._dialling = 0
        self._is_told = False
        self._is_searched = False

    def heard_of(self, holder: LookupContact) -> None:
        if holder.key == self._holder and self.found_at is None:
            self.found_at = self.node.world.now
        self._waiting.append(holder)
        self._dial()

    def searched(self) -> None:
        """Nobody is left to ask."""
        self._is_searched = True
        self._tell_if_over()

    def _dial(self) -> None:
        world = self.node.world
        while self._waiting and self._dialling < DIALLED and self.reached_at is None:
            contact = self._waiting.pop(0)
            self._dialling += 1
            there = world.reached.get((contact.ip, contact.port))
            if there is None or there.contact.key != contact.key or not there.answers(world.now):
                world.after(DIAL_PATIENCE, self._dialled, False)
            else:
                trip = self.node.spot.round_trip(there.spot, world.dice)
                world.after(6 * trip, self._dialled, there.has(self.key))

    def _dialled(self, serves: bool) -> None:
        self._dialling -= 1
        if serves and self.reached_at is None:
            self.reached_at = self.node.world.now
            self._tell()
            return
        self._dial()
        self._tell_if_over()

    def _tell_if_over(self) -> None:
        if self._is_searched and not self._dialling and not self._waiting:
            self._tell()

    def _tell(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._end(self)
