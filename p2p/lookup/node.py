"""Takes part in the lookup for one node:
answers others, and says whom to ask to maintain its table and records. Sans-IO.

The caller sends the questions and answers, and provides time and randomness. All state is bounded: see the limits of
the table, the records, and the budgets.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import msgspec

from chain.backoff import Chance
from p2p.budget.buckets import Budget, Rate
from p2p.lookup import search as searching
from p2p.lookup.records import ProviderRecords, judge_record
from p2p.lookup.search import Search, SearchLimits
from p2p.lookup.table import RoutingTable
from p2p.ports import Judgement
from p2p.wire.contact import LookupContact, block_of, place_of, place_of_node
from p2p.wire.limits import MAX_LOOKUP_CONTACTS, MAX_LOOKUP_RECORDS
from p2p.wire.lookup import At, Find, Nodes, Store, StoreAnswer, StoreOutcome
from p2p.wire.presence import Presence

REPEAT: Final = 5400.0
"""Seconds after which a record is brought again: some of its keepers have gone, and nearer nodes have come. If half of
all nodes are replaced in an hour, a third of the keepers is left then; the record lives longer than this."""
PAUSE: Final = 1.5
"""Seconds between two announcements: 3,600 datasets in ``REPEAT``; a node with more announces each one less often."""
FEW: Final = 10
"""With fewer keepers a record is brought again after ``SOON`` seconds."""
SOON: Final = 240.0
"""Seconds until then: the node had just joined and knew few others, or its network is small."""
RETRY: Final = 60.0
"""Seconds after which an announcement that reached nobody is repeated."""


class RecordPublication:
    def __init__(self, rng: Chance) -> None:
        self._rng = rng
        self._due: dict[bytes, float] = {}
        self._queue: list[tuple[float, bytes]] = []
        """A heap of times and keys; an entry that differs from ``_due`` is outdated and skipped."""
        self._next = 0.0

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: object) -> bool:
        return key in self._due

    def want(self, keys: Iterable[bytes], now: float) -> None:
        """Sets the keys to announce: new ones are due at once, missing ones are dropped."""
        wanted = set(keys)
        for key in self._due.keys() - wanted:
            del self._due[key]
        for key in sorted(wanted - self._due.keys()):
            self._plan(key, now)

    def take(self, now: float) -> bytes | None:
        """Returns the next key to announce, if one is due;
        it is due again after ``RETRY`` unless ``note_announced`` is called."""
        if now < self._next:
            return None
        while self._queue and self._queue[0][0] <= now:
            at, key = heapq.heappop(self._queue)
            if self._due.get(key) == at:
                self._next = now + PAUSE
                self._plan(key, now + RETRY)
                return key
        return None

    def note_announced(self, key: bytes, now: float, keepers: int) -> None:
        """Records that ``keepers`` nodes keep a record of the key;
        it is due again after ``REPEAT``, less a random part."""
        if key in self._due:
            self._plan(key, now + (SOON if keepers < FEW else REPEAT) * (0.75 + 0.25 * self._rng.random()))

    def _plan(self, key: bytes, at: float) -> None:
        self._due[key] = at
        heapq.heappush(self._queue, (at, key))
        if len(self._queue) > 4 * len(self._due) + 64:
            self._queue = [(at, key) for key, at in self._due.items()]
            heapq.heapify(self._queue)


NEAREST: Final = 20
"""Nodes that keep a record: k of Kademlia."""
FAR: Final = 8
"""A node keeps a record if it expects fewer than so many times ``NEAREST`` nodes nearer to the key; generous, because
the estimates of nodes differ."""
FIND_RATE: Final = Rate(per_second=4.0, burst=64.0)
"""Questions of one peer that are answered."""
STORE_RATE: Final = Rate(per_second=1.0, burst=128.0)
"""Records that one peer may bring; in a small network one node keeps all records of another."""
CHECK: Final = 1800.0
"""Seconds after its last answer when an entry of the table is asked again."""
REFRESH: Final = 7200.0
"""Seconds after which a part of the space is searched again, if no entry in it was asked meanwhile."""
OWN_PLACE: Final = 3600.0
"""Seconds between two searches for the node's own place, which find new neighbours."""
REFRESHING: Final = SearchLimits(nearest=8)
"""Limits of a search that only refreshes a part of the space: what it hears of is asked later, one question each."""
TURN: Final = 5.0
"""Seconds between two questions that only maintain the table."""
YOUNG: Final = 1.0
"""The same for a node that just joined, until each part of the space was searched."""
INTRODUCED: Final = 8
"""Nodes known from elsewhere that a newcomer asks before it searches. If it began with one that lies, it would hear of
liars and invented nodes only, and these would take the places of all other suggestions."""


class CheckContact(msgspec.Struct, frozen=True):
    """Asks the driver to ask this node for a place: to see whether it answers, and to learn of nodes near that."""

    contact: LookupContact
    target: int


class Refresh(msgspec.Struct, frozen=True):
    """Asks the driver to search for a place, to learn of nodes near it."""

    target: int


class Announce(msgspec.Struct, frozen=True):
    """Asks the driver to search for a key, and to bring a record of it to the nodes found."""

    key: bytes


Work: TypeAlias = CheckContact | Refresh | Announce


class LookupNode:
    def __init__(self, network: str, key: bytes, rng: Chance, secret: bytes, table: RoutingTable | None = None) -> None:
        """``key``: the node's public key. ``secret``: random bytes, of this process."""
        self.network = network
        self.key = key
        self.place = place_of_node(key)
        self._rng = rng
        self.table = RoutingTable(self.place) if table is None else table
        self.records = ProviderRecords(network, secret)
        self.publication = RecordPublication(rng)
        self._finds = Budget[bytes](FIND_RATE)
        self._stores = Budget[bytes](STORE_RATE)
        self._introduced: list[LookupContact] = []
        self._greeted = 0
        """Those of ``_introduced`` that were asked."""
        self._turn = 0.0
        self._own_search = -OWN_PLACE
        self._is_turn_to_search = False
        self._has_searched = False
        """Whether every part of the space was searched once."""
        self.refused = 0
        """Questions that were not answered because too many came."""

    # Questions from others

    def find(self, ask: Find, asker: bytes, ip: bytes, now: float, wall: int) -> Nodes | None:
        """Answers a question; ``None``: the peer asked too often. ``ip``: its packed address, empty if it comes by a
        relay. ``wall``: milliseconds since the epoch."""
        if not self._finds.spend(asker, now):
            self.refused += 1
            return None
        self._meet(ask.own, asker, ip)
        records = self.records.of(ask.key, MAX_LOOKUP_RECORDS, wall, self._rng)
        return Nodes(contacts=self._near(ask.key, asker), records=records)

    def store(self, ask: Store, asker: bytes, ip: bytes, now: float, wall: int) -> StoreAnswer:
        """Keeps a record if it may, and names nodes near its key, so that no question has to come first."""
        if not self._stores.spend(asker, now):
            self.refused += 1
            return StoreAnswer(outcome=StoreOutcome.BUSY)
        self._meet(ask.own, asker, ip)
        near = self._near(ask.key, asker)
        if not self._is_near(place_of(ask.key)):
            return StoreAnswer(outcome=StoreOutcome.FAR, contacts=near)
        outcome = self.records.keep(ask.key, ask.record, asker, block_of(ip, asker), wall, self._rng)
        return StoreAnswer(outcome=outcome, contacts=near)

    def _near(self, key: bytes, asker: bytes) -> tuple[LookupContact, ...]:
        """Returns random ones of the nodes in the region of a key, or the nearest."""
        region = self.table.region(place_of(key), NEAREST)
        near = self.table.around(region, MAX_LOOKUP_CONTACTS, self._rng)
        return tuple(one for one in near if one.key != asker)

    def _meet(self, own: At | None, asker: bytes, ip: bytes) -> None:
        """Suggests the asker to the table, but only at the address from which it came."""
        if own is not None and own[0] == ip:
            self.table.suggest(LookupContact(asker, *own))

    def _is_near(self, target: int) -> bool:
        region = self.table.region(target, FAR * NEAREST)
        if region.radius:
            return not region.distance(self.place)
        nearer = self.table.nearest(target, NEAREST)
        return len(nearer) < NEAREST or nearer[-1].place ^ target > self.place ^ target

    # Questions to others

    def introduce(self, contact: LookupContact) -> None:
        """Notes a node that is known from elsewhere, such as a bootstrap node."""
        is_room = not self.table.settled and len(self._introduced) < INTRODUCED
        if is_room and contact not in self._introduced:
            self._introduced.append(contact)
        self.table.suggest(contact)

    def search(self, target: int, now: float, limits: SearchLimits = searching.LIMITS) -> Search:
        """Begins a search for the nodes nearest to a place."""
        self.table.looking(target, now)
        region = self.table.region(target, limits.nearest)
        return Search(region, self.key, self.table.around(region, NEAREST, self._rng), self._rng, limits)

    def refresh(self, target: int, now: float) -> Search:
        """Begins the search that ``Refresh`` asks for: for all neighbours, or for a few nodes of another part."""
        return self.search(target, now, searching.LIMITS if target == self.place else REFRESHING)

    def note_answer(self, contact: LookupContact, told: Iterable[LookupContact], now: float) -> None:
        """Records that a node answered our question, and suggests the nodes that it named."""
        self.table.note_answer(contact, now)
        for other in told:
            if other.key != self.key:
                self.table.suggest(other)

    def note_failure(self, contact: LookupContact) -> None:
        self.table.note_failure(contact.key, contact.place)

    def note_joined(self, search: Search) -> None:
        """Records that a search for our own place ended."""
        self.table.settled = self.table.settled or bool(search.choose(1))

    def work(self, now: float) -> Work | None:
        """Returns the next thing to do for the node itself; called about every second."""
        is_alone = not len(self.table) and not self.table.spares
        if is_alone and self._greeted == len(self._introduced):
            return None
        if not self.table.settled:
            if now < self._turn:
                return None
            self._turn = now + YOUNG
            if self._greeted < len(self._introduced):
                self._greeted += 1
                return CheckContact(self._introduced[self._greeted - 1], self.place)
            contact = self.table.suggestion(self._rng) if not len(self.table) else None
            return Refresh(self.place) if contact is None else CheckContact(contact, self.place)
        key = self.publication.take(now)
        if key is not None:
            return Announce(key)
        return self._upkeep(now) if now >= self._turn else None

    def _upkeep(self, now: float) -> Work | None:
        """Returns maintenance of the table: alternately a search in a neglected part of the space, and a question to a
        new or long silent node."""
        self._is_turn_to_search = not self._is_turn_to_search
        target = self.table.refresh(now, REFRESH, self._rng)
        self._turn = now + (TURN if self._has_searched else YOUNG)
        self._has_searched = self._has_searched or target is None
        if now >= self._own_search + OWN_PLACE:
            self._own_search = now
            return Refresh(self.place)
        if target is not None and self._is_turn_to_search:
            return Refresh(target)
        contact = self.table.suggestion(self._rng) or self.table.longest_silent(now, CHECK)
        return None if contact is None else self._check(contact, now)

    def _check(self, contact: LookupContact, now: float) -> CheckContact:
        """Asks an entry for its own part of the space, so that one question does for a search there."""
        target = self.table.beside(contact.place, self._rng)
        self.table.looking(target, now)
        return CheckContact(contact, target)


class Announcing:
    """One search for the nodes that keep a record.

    A node of the key's region is brought the record at once, and names others in its answer; so it is dialled once, and
    a search that takes long delays no record. Nodes outside of the region are brought it when the search has ended, if
    too few are inside.
    """

    def __init__(self, node: LookupNode, key: bytes, now: float) -> None:
        self.key = key
        self.search = node.search(place_of(key), now)
        self._brought: set[bytes] = set()
        """Keys of the nodes that were brought the record and answered."""
        self.keepers = 0
        """Nodes that keep it."""

    def is_brought_to(self, contact: LookupContact) -> bool:
        """Whether the question to a node brings the record: else the node is only asked whom it knows."""
        return self.search.is_in_region(contact)

    def note_answer(self, contact: LookupContact, answer: StoreAnswer) -> None:
        """Records the answer of a node that was brought the record, in the search or after it."""
        self._brought.add(contact.key)
        self.keepers += answer.outcome is StoreOutcome.KEPT

    def rest(self) -> list[LookupContact]:
        """Returns the nodes to which the record is brought after the search."""
        return [one for one in self.search.choose(NEAREST) if one.key not in self._brought]


class ProviderSearch:
    """One search for the providers of the dataset of a key."""

    def __init__(self, node: LookupNode, key: bytes, now: float, own: Search | None = None) -> None:
        self._network = node.network
        self.key = key
        self.search = own or node.search(place_of(key), now)
        self._seen: set[bytes] = set()
        self.providers: dict[bytes, Presence] = {}
        """The newest record of each provider, by the provider's key."""
        self.forged = 0
        """Records without a valid signature."""

    def take_answer(self, contact: LookupContact, answer: Nodes, wall: int) -> Sequence[Presence] | None:
        """Takes an answer, and returns the providers that are new;
        ``None`` if a record in it has no valid signature."""
        fresh: list[Presence] = []
        for raw in answer.records:
            if raw in self._seen:
                continue
            found = judge_record(raw, self._network, self.key, wall)
            if found is Judgement.REJECT:
                self.forged += 1
                self.search.note_failure(contact)
                return None
            self._seen.add(raw)
            if isinstance(found, Judgement):
                continue
            known = self.providers.get(found.key)
            if known is None or known.issued < found.issued:
                self.providers[found.key] = found
                fresh += [found] if known is None else []
        self.search.note_answer(contact, answer.contacts)
        return fresh
