"""Searches for the nodes nearest to a key over several disjoint paths (S/Kademlia).
Sans-IO: one object for each search.

Each path asks the nearest nodes it knows of, and no node is asked by two paths, so a liar spoils only its own path.
After some failures among the nodes that one node named, the others that only it named are asked last, so that invented
nodes cost little time. A slow question delays no other. Nodes in the region of the key count as equally near, and are
asked in a random order (``p2p.lookup.table``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from chain.backoff import Chance
from p2p.lookup.table import Region
from p2p.wire.contact import LookupContact


class SearchLimits(msgspec.Struct, frozen=True, kw_only=True):
    paths: int = 3
    """Number of disjoint paths: d of S/Kademlia."""
    parallel: int = 3
    """Open questions of one path: alpha of Kademlia."""
    nearest: int = 20
    """Number of nodes to find: k of Kademlia."""
    haste: float = 0.7
    """Seconds after which another node is asked beside one that has not answered; a dial takes five round trips."""
    patience: float = 3.0
    """Seconds after which a question counts as failed."""
    asked: int = 96
    """Limit of nodes that answer, and of nodes that do not; a search among honest nodes asks about thirty."""
    kept: int = 64
    """Nodes that a path keeps for later questions, the nearest ones."""
    credit: int = 3
    """The excess of failures over answers, among the nodes that one node named, from which on it is less trusted."""
    doubted: int = 9
    """Less trusted nodes that do not answer, after which no more of them are asked: each takes ``patience``, and liars
    invent as many as are asked."""
    of_block: int = 2
    """Nodes of one /24 or /48 that are asked, not counting those that did not answer."""
    of_operator: int = 8
    """Nodes of one /16 or /32 that are asked, not counting those that did not answer."""
    of_part: int = 6
    """Nodes of one part of the space that are asked, not counting those that did not answer. If all that crowd beside
    the key were asked, the search would have found enough, and ask nobody who knows the others."""
    counted_of_part: int = 3
    """Nodes of one part that count among the ``nearest`` after which a search goes no farther."""


LIMITS: Final = SearchLimits()


@dataclass(slots=True)
class _Candidate:
    contact: LookupContact
    distance: int
    lot: float
    """A random number that orders equally near nodes."""
    block: bytes
    operator: bytes
    part: int | None
    """The part of the space in which it is (``p2p.lookup.table``)."""
    tellers: list[bytes]
    """Keys of the nodes that named it; empty: known from our own table."""


@dataclass(slots=True)
class _Question:
    candidate: _Candidate
    path: int
    began: float
    is_doubtful: bool


@dataclass(slots=True)
class _Teller:
    open: int = 0
    failed: int = 0
    answered: int = 0


@dataclass(slots=True)
class _Path:
    waiting: dict[LookupContact, _Candidate] = field(default_factory=dict)


class Search:
    """A search: call ``step`` at first, and whenever something happened or ``wake`` says, until it is ``done``."""

    def __init__(
        self, region: Region, me: bytes, seeds: Sequence[LookupContact], rng: Chance, limits: SearchLimits = LIMITS
    ) -> None:
        self._region = region
        self._me = me
        self._rng = rng
        self._limits = limits
        self._paths = [_Path() for _ in range(limits.paths)]
        self._asked: set[LookupContact] = set()
        self._open: dict[LookupContact, _Question] = {}
        self._heard: set[bytes] = set()
        """Keys of the nodes that answered."""
        self._tellers: dict[bytes, _Teller] = {}
        self._blocks: Counter[bytes] = Counter()
        self._parts: Counter[int | None] = Counter()
        self._answered: list[tuple[int, LookupContact]] = []
        """The nodes that answered, by distance, without regard to the region."""
        self._farthest: int | None = None
        """The distance of the last of the ``nearest`` nodes that answered, if few of each part count; ``None``: fewer
        answered."""
        self.failures = 0
        self._doubted = 0
        """Failures among nodes that only unreliable nodes named."""
        for at, seed in enumerate(seeds):
            self._offer(at % limits.paths, [seed], None)

    # Events

    def step(self, now: float) -> list[LookupContact]:
        """Returns the nodes to ask now; the caller reports ``note_answer`` or ``note_failure`` for each."""
        chosen: list[LookupContact] = []
        for at in range(len(self._paths)):
            while not self._is_spent and self._busy(at, now) < self._limits.parallel:
                candidate = self._next(at)
                if candidate is None:
                    break
                self._ask(at, candidate, now)
                chosen.append(candidate.contact)
        return chosen

    def note_answer(self, contact: LookupContact, contacts: Iterable[LookupContact]) -> None:
        """Records the answer of a node, which named others."""
        question = self._open.pop(contact, None)
        if question is None or contact.key in self._heard:
            return
        self._heard.add(contact.key)
        for teller in question.candidate.tellers:
            self._tellers[teller].open -= 1
            self._tellers[teller].answered += 1
        self._answered.append((contact.place ^ self._region.target, contact))
        self._answered.sort(key=_first)
        self._farthest = self._count()
        self._offer(question.path, contacts, contact.key)

    def note_failure(self, contact: LookupContact) -> None:
        """Records that a node did not answer, or gave no valid answer."""
        question = self._open.pop(contact, None)
        if question is None:
            return
        self.failures += 1
        self._doubted += question.is_doubtful
        for teller in question.candidate.tellers:
            self._tellers[teller].open -= 1
            self._tellers[teller].failed += 1
        self._blocks[contact.block] -= 1
        self._blocks[contact.operator] -= 1
        self._parts[question.candidate.part] -= 1

    def late(self, now: float) -> list[LookupContact]:
        """Lists nodes whose time to answer is over; the caller reports them as failed."""
        end = now - self._limits.patience
        return [each.candidate.contact for each in self._open.values() if each.began <= end]

    def wake(self, now: float) -> float | None:
        """Returns the time at which ``late`` or ``step`` may have something new by itself; ``None``: never."""
        haste, patience = self._limits.haste, self._limits.patience
        turns = [each.began + (haste if now < each.began + haste else patience) for each in self._open.values()]
        return min(turns, default=None)

    @property
    def done(self) -> bool:
        """Whether no question is open and no node is left to ask."""
        if self._open:
            return False
        return self._is_spent or all(self._next(at) is None for at in range(len(self._paths)))

    @property
    def _is_spent(self) -> bool:
        limit = self._limits.asked
        return self.failures >= limit or len(self._asked) - self.failures >= limit

    @property
    def asked(self) -> int:
        return len(self._asked)

    def is_in_region(self, contact: LookupContact) -> bool:
        """Whether a node is as near to the place as any need be."""
        return not self._region.distance(contact.place)

    def choose(self, most: int) -> list[LookupContact]:
        """Returns the nodes that answered: all in the region, or ``most`` random ones of these,
        and then the nearest others until there are enough."""
        region = self._region
        inside = [contact for _, contact in self._answered if not region.distance(contact.place)]
        while len(inside) > most:
            inside.pop(int(self._rng.random() * len(inside)))
        last = self._farthest
        near = (contact for distance, contact in self._answered if last is None or distance <= last)
        return inside + [contact for contact in near if region.distance(contact.place)]

    def _count(self) -> int | None:
        parts: Counter[int | None] = Counter()
        count = 0
        for distance, contact in self._answered:
            part = self._region.part(contact.place)
            parts[part] += 1
            count += part is None or parts[part] <= self._limits.counted_of_part
            if count == self._limits.nearest:
                return distance
        return None

    # The next nodes to ask

    def _offer(self, path: int, contacts: Iterable[LookupContact], teller: bytes | None) -> None:
        waiting = self._paths[path].waiting
        if teller is not None:
            self._tellers.setdefault(teller, _Teller())
        for contact in contacts:
            if contact.key == self._me or contact in self._asked or contact.key in self._heard:
                continue
            known = waiting.get(contact)
            if known is None:
                distance, part = self._region.distance(contact.place), self._region.part(contact.place)
                tellers = [] if teller is None else [teller]
                waiting[contact] = _Candidate(
                    contact, distance, self._rng.random(), contact.block, contact.operator, part, tellers
                )
            elif teller is not None and known.tellers:
                known.tellers.append(teller)
        if len(waiting) > self._limits.kept:
            kept = sorted(waiting.values(), key=_order)[: self._limits.kept]
            self._paths[path].waiting = {each.contact: each for each in kept}

    def _next(self, at: int) -> _Candidate | None:
        """Returns the nearest node worth asking on a path; ``None``: none at present.

        Nodes that only unreliable nodes named come last and one at a time, and not at all once enough have answered, or
        too many of them did not.
        """
        best: _Candidate | None = None
        doubtful: _Candidate | None = None
        for each in self._worth_asking(at):
            if self._is_credible(each):
                best = each if best is None or _order(each) < _order(best) else best
            elif best is None:
                doubtful = each if doubtful is None or _order(each) < _order(doubtful) else doubtful
        if best is not None:
            return best
        is_last_hope = len(self._answered) < self._limits.nearest and self._doubted < self._limits.doubted
        return doubtful if is_last_hope and all(each.path != at for each in self._open.values()) else None

    def _worth_asking(self, at: int) -> Iterator[_Candidate]:
        """Cheap reasons against a node are looked for first: this is most of what a search costs."""
        limits, blocks, parts, heard, farthest = self._limits, self._blocks, self._parts, self._heard, self._farthest
        for contact, each in self._paths[at].waiting.items():
            if contact.key in heard:
                continue
            if each.distance and farthest is not None and each.distance >= farthest:
                continue  # neither in the region, nor nearer than the farthest of the ``nearest`` that answered
            if blocks.get(each.block, 0) >= limits.of_block or blocks.get(each.operator, 0) >= limits.of_operator:
                continue
            if each.part is not None and parts.get(each.part, 0) >= limits.of_part:
                continue
            if contact not in self._asked:
                yield each

    def _is_credible(self, candidate: _Candidate) -> bool:
        if not candidate.tellers:
            return True
        credit = self._limits.credit
        tellers = (self._tellers[teller] for teller in candidate.tellers)
        return any(teller.failed + teller.open < credit + teller.answered for teller in tellers)

    def _busy(self, path: int, now: float) -> int:
        """Returns the number of open questions of a path that are not late."""
        soon = now - self._limits.haste
        return sum(each.path == path and each.began > soon for each in self._open.values())

    def _ask(self, path: int, candidate: _Candidate, now: float) -> None:
        contact = candidate.contact
        del self._paths[path].waiting[contact]
        self._asked.add(contact)
        self._open[contact] = _Question(candidate, path, now, not self._is_credible(candidate))
        self._blocks[candidate.block] += 1
        self._blocks[candidate.operator] += 1
        self._parts[candidate.part] += 1
        for teller in candidate.tellers:
            self._tellers[teller].open += 1


def _order(candidate: _Candidate) -> tuple[int, float]:
    return candidate.distance, candidate.lot


def _first(pair: tuple[int, LookupContact]) -> int:
    return pair[0]
