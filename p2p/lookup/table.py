"""Keeps the nodes that one node may ask, in k-buckets: many near its own place, few of each part far from it.

Only a node that answered our own question becomes an entry, with the address at which it answered. A node that merely
asked, or that others named, is a suggestion, tried when there is room. An old entry that answers is never replaced:
those that stayed longest stay, and newcomers cannot push them out. Each block of addresses has few entries, in a bucket
and in total, so that many keys at few addresses remain few entries.

Measures the distance of nodes from a key; all nodes in a region around the key count as equally near. A key costs
nothing, so an attacker computes keys until their places are nearer to a dataset's than any honest node's. So within the
region of a place in which as many nodes are expected as keep a record, nearer is no better: a searching node asks there
in random order, and an answering node chooses at random.

A region is divided into parts of equal size, and the rest of the space into as large ones. Keys computed to be nearest
to a place lie in one part, or in few, while honest nodes are spread over all. So a part has few turns in a search and
in an answer, whatever is crowded in it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final

import msgspec

from chain.backoff import Chance
from p2p.wire.contact import BITS, LookupContact

PARTS: Final = 16
"""Parts of a region. Where 20 nodes are expected, a part has 1.25, and more than 6 with a probability of 0.0003."""


class Region(msgspec.Struct, frozen=True):
    target: int
    radius: int = 0
    """The size of the region; 0: no region, nearer is better everywhere."""

    def distance(self, place: int) -> int:
        """Returns the XOR of both places; 0 within the region."""
        distance = place ^ self.target
        return distance if distance >= self.radius else 0

    def part(self, place: int) -> int | None:
        """Returns the number of the part in which a place is, below ``PARTS`` within the region;
        ``None``: there is no region."""
        return (place ^ self.target) * PARTS // self.radius if self.radius else None


class TableLimits(msgspec.Struct, frozen=True, kw_only=True):
    bucket: int = 20
    """Entries of a bucket: k of Kademlia."""
    spare: int = 20
    """Suggestions kept for a bucket."""
    of_block: int = 2
    """Entries of one /24 or /48 in a bucket."""
    of_block_in_all: int = 8
    """Entries of one /24 or /48 in all buckets."""
    in_all: int = 1024
    """Entries in total; a network of a million nodes fills about 350."""
    told_of_part: int = 2
    """Entries of one part of the space that are named in an answer, and that a search begins with."""
    counted_of_part: int = 4
    """Entries of one part of our region that count when its size is estimated: more are there with a probability of
    0.01, or because somebody crowds beside a key near us."""
    failures: int = 2
    """Unanswered questions in a row after which an entry is removed, even if none replaces it."""


LIMITS: Final = TableLimits()


@dataclass(slots=True)
class _Entry:
    contact: LookupContact
    place: int
    heard: float
    failures: int = 0


@dataclass(slots=True)
class _Bucket:
    entries: OrderedDict[bytes, _Entry] = field(default_factory=OrderedDict)
    """Entries by key, the one that answered longest ago first."""
    spare: OrderedDict[bytes, LookupContact] = field(default_factory=OrderedDict)
    looked: float = 0.0
    """The time at which the last search for a place in this bucket began."""


_nearness: Final = itemgetter(0, 1)


class RoutingTable:
    """The routing table of the node whose place is ``me``."""

    def __init__(self, me: int, limits: TableLimits = LIMITS) -> None:
        self._me = me
        self._limits = limits
        self._buckets: dict[int, _Bucket] = {}
        self._blocks: Counter[bytes] = Counter()
        self._count = 0
        self._spaced: int | None = None
        """The last result of ``_spacing``, valid while the same nodes are known."""
        self.settled = False
        """Whether a search for our own place has ended, so that our neighbours are known."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[LookupContact]:
        return (entry.contact for bucket in self._buckets.values() for entry in bucket.entries.values())

    @property
    def spares(self) -> int:
        return sum(len(bucket.spare) for bucket in self._buckets.values())

    def note_answer(self, contact: LookupContact, now: float) -> None:
        """Records that a node answered our question at this address."""
        place = contact.place
        if place == self._me:
            return
        bucket = self._bucket(place)
        entry = bucket.entries.get(contact.key)
        if entry is not None and entry.contact == contact:
            entry.heard, entry.failures = now, 0
            bucket.entries.move_to_end(contact.key)
            return
        if entry is not None:
            self._drop(bucket, contact.key)  # it moved: at another address it is judged like a new one
        bucket.spare.pop(contact.key, None)
        if self._has_room(bucket, contact):
            bucket.entries[contact.key] = _Entry(contact, place, now)
            self._blocks[contact.block] += 1
            self._count += 1
            self._spaced = None
        else:
            self._suggest(bucket, contact)

    def suggest(self, contact: LookupContact) -> None:
        """Notes a node that was not asked yet."""
        place = contact.place
        if place == self._me:
            return
        bucket = self._bucket(place)
        if contact.key not in bucket.entries and bucket.spare.get(contact.key) != contact:
            self._suggest(bucket, contact)

    def _suggest(self, bucket: _Bucket, contact: LookupContact) -> None:
        """Keeps the newest suggestions, and of one block only the newest: making suggestions costs others nothing."""
        if self._limits.of_block < self._limits.bucket:
            block = contact.block
            for key in [key for key, one in bucket.spare.items() if one.block == block]:
                del bucket.spare[key]
        bucket.spare[contact.key] = contact
        while len(bucket.spare) > self._limits.spare:
            bucket.spare.popitem(last=False)

    def note_failure(self, key: bytes, place: int) -> None:
        """Records that a node did not answer. It is removed at once if suggestions wait for its entry."""
        bucket = self._buckets.get(self._index(place))
        if bucket is None:
            return
        bucket.spare.pop(key, None)
        entry = bucket.entries.get(key)
        if entry is None:
            return
        entry.failures += 1
        if entry.failures >= self._limits.failures or bucket.spare:
            self._drop(bucket, key)

    def _drop(self, bucket: _Bucket, key: bytes) -> None:
        block = bucket.entries.pop(key).contact.block
        self._count -= 1
        self._spaced = None
        self._blocks[block] -= 1
        if not self._blocks[block]:
            del self._blocks[block]

    def _has_room(self, bucket: _Bucket, contact: LookupContact) -> bool:
        limits, block = self._limits, contact.block
        if len(bucket.entries) >= limits.bucket or self._count >= limits.in_all:
            return False
        if self._blocks[block] >= limits.of_block_in_all:
            return False
        return sum(entry.contact.block == block for entry in bucket.entries.values()) < limits.of_block

    def nearest(self, target: int, count: int) -> list[LookupContact]:
        """Lists the entries nearest to a place, nearest first."""
        found: list[LookupContact] = []
        for group in self._by_distance(target):
            near = sorted(group, key=lambda entry: entry.place ^ target)
            found += [entry.contact for entry in near[: count - len(found)]]
            if len(found) >= count:
                break
        return found

    def _by_distance(self, target: int) -> Iterator[Iterable[_Entry]]:
        """Yields groups of entries, each group nearer than the next, without looking at all entries."""
        index = self._index(target)
        known = sorted(self._buckets)
        if index in self._buckets:
            yield self._buckets[index].entries.values()
        yield [entry for at in known if at < index for entry in self._buckets[at].entries.values()]
        for at in known:
            if at > index:
                yield self._buckets[at].entries.values()

    def around(self, region: Region, count: int, rng: Chance) -> list[LookupContact]:
        """Returns entries near a place: random ones of those in its region and then the nearest, few of each part."""
        entries = (entry for bucket in self._buckets.values() for entry in bucket.entries.values())
        near = [(region.distance(entry.place), rng.random(), entry) for entry in entries]
        near.sort(key=_nearness)
        chosen: list[LookupContact] = []
        crowded: list[LookupContact] = []
        parts: Counter[int | None] = Counter()
        for _, _, entry in near:
            if len(chosen) == count:
                return chosen
            part = region.part(entry.place)
            parts[part] += 1
            is_crowded = part is not None and parts[part] > self._limits.told_of_part
            (crowded if is_crowded else chosen).append(entry.contact)
        return [*chosen, *crowded][:count]

    def region(self, target: int, count: int) -> Region:
        """Returns the region of a place in which ``count`` nodes are expected, by the density of nodes near us.

        It has no radius before this node is ``settled``, since it does not know its neighbours yet.
        """
        return Region(target, self._spacing() * count if self.settled else 0)

    def _spacing(self) -> int:
        """Returns the average size of the space for each node near us; 0: too few nodes are known.

        It is measured in the region of ours from which on all larger ones have enough nodes, if few of each part count:
        not in the smallest, since this node may be among those that crowd beside a key.
        """
        if self._spaced is None:
            self._spaced = self._measured_spacing(self._limits.bucket)
        return self._spaced

    def _measured_spacing(self, count: int) -> int:
        distances = sorted(one.place ^ self._me for one in self)
        ends = sorted(self._buckets)
        while ends and self._count_below(distances, 1 << ends[-1]) >= count:
            least = ends.pop()
            if not ends or self._count_below(distances, 1 << ends[-1]) < count:
                within = (distance for distance in distances if distance >> (least - 1))
                enough = (each for each in within if self._count_below(distances, each + 1) >= count)
                return next(enough, 1 << least) // count
        return distances[-1] // count if len(distances) >= count else 0

    def _count_below(self, distances: list[int], radius: int) -> int:
        """Returns how many of the sorted distances are below a radius, few of each part of that region."""
        region, most = Region(0, radius), self._limits.counted_of_part
        parts = Counter(region.part(distance) for distance in distances[: bisect_left(distances, radius)])
        return sum(min(most, of_part) for of_part in parts.values())

    def size(self) -> int:
        """Estimates how many nodes there are."""
        spacing = self._spacing()
        return (1 << BITS) // spacing if spacing else self._count + 1

    def longest_silent(self, now: float, since: float) -> LookupContact | None:
        """Returns the entry that answered longest ago, if that was at least ``since`` seconds before ``now``."""
        firsts = [next(iter(bucket.entries.values())) for bucket in self._buckets.values() if bucket.entries]
        oldest = min(firsts, key=lambda entry: entry.heard, default=None)
        return oldest.contact if oldest is not None and oldest.heard <= now - since else None

    def suggestion(self, rng: Chance) -> LookupContact | None:
        """Removes and returns a suggestion for a bucket with room: the newest one of a random bucket."""
        fitting = [
            bucket for bucket in self._buckets.values() if bucket.spare and len(bucket.entries) < self._limits.bucket
        ]
        if not fitting:
            return None
        return fitting[int(rng.random() * len(fitting))].spare.popitem()[1]

    def refresh(self, now: float, since: float, rng: Chance) -> int | None:
        """Returns a random place in the part of the space searched longest ago;
        ``None`` if all were within ``since`` seconds."""
        lowest = min((self._index(one.place) for one in self.nearest(self._me, self._limits.bucket)), default=BITS)
        stale = [at for at in range(max(1, lowest), BITS + 1) if self._last_look(at) <= now - since]
        if not stale:
            return None
        return self._draw(min(stale, key=self._last_look), rng)

    def beside(self, place: int, rng: Chance) -> int:
        """Returns a random place in the part of the space in which ``place`` is."""
        return self._draw(self._index(place), rng)

    def _draw(self, index: int, rng: Chance) -> int:
        low = 1 << (index - 1)
        return self._me ^ (low | int(rng.random() * low))

    def _last_look(self, index: int) -> float:
        bucket = self._buckets.get(index)
        return -1e9 if bucket is None else bucket.looked

    def looking(self, target: int, now: float) -> None:
        """Records that a search for a place begins."""
        if target != self._me:
            self._bucket(target).looked = now

    def _bucket(self, place: int) -> _Bucket:
        return self._buckets.setdefault(self._index(place), _Bucket())

    def _index(self, place: int) -> int:
        """Returns the number, from 1 on, of the highest bit in which a place differs from ours."""
        return (place ^ self._me).bit_length()
