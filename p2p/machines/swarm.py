"""Plans from whom a mirror takes which objects of a dataset, while others fetch the same (ADR 61).

The objects are divided into pieces: runs of blocks. Peers tell which blocks they have and which they offer. What a
publisher offers is taken first, since nobody else has it; then what fewest others have, equally rare pieces by lot, so
that mirrors hold different pieces and have something to give. Each piece is taken from one peer, so that who is to
blame is known: a peer that offered a piece and did not give it is left after the second time. A piece that is slow to
come is taken from another peer when nothing else is to do; what came of it stays.

Sans-IO: peers' words, outcomes and ``now`` come in; ``plan`` says what to begin and what to leave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from chain.backoff import Chance
from chain.libraries import np
from p2p.ports import HeldParts, PeerId

if TYPE_CHECKING:
    from numpy.typing import NDArray

AT_ONCE: Final = 8
"""Pieces on their way at once."""
OF_ONE: Final = 2
"""Pieces on their way from one peer, where another has something too."""
STRIKES: Final = 2
"""Pieces that a peer offered and did not give, after which it is left."""
PATIENCE: Final = 90.0
"""Seconds without news, after which the rest is fetched without a plan."""
ALONE: Final = 5.0
"""The same where nobody is left to take anything from."""
SLOW: Final = 10.0
"""Least seconds after which a piece may be taken from another peer, too."""
TIMES: Final = 4.0
"""How many times the usual time of a piece pass before it may be taken from another peer, too."""


class SwarmPiece(NamedTuple):
    """Blocks ``start <= number < stop``, counted from the first of the plan, and the bytes of their objects."""

    start: int
    stop: int
    size: int


class TakePiece(NamedTuple):
    """Take a piece from a peer; the outcome comes back by ``got`` or ``note_failure``."""

    piece: int
    peer: PeerId


class Leave(NamedTuple):
    """Stop taking a piece from a peer: another has it too. No outcome is expected."""

    piece: int
    peer: PeerId


@dataclass(slots=True)
class _Flight:
    peer: PeerId
    since: float


@dataclass(slots=True)
class _Member:
    has: NDArray[np.bool_]
    offers: NDArray[np.bool_]
    lot: float
    said: HeldParts | None = None
    is_seed: bool = False
    """Whether it offers less than it has: then what it offers is nobody else's."""
    given: int = 0
    strikes: int = 0
    is_proven: bool = False
    avoid: set[int] = field(default_factory=set)
    """Pieces that are not asked of it again."""

    def free(self) -> NDArray[np.bool_]:
        """Returns the pieces that it offers and may be asked for."""
        if not self.avoid:
            return self.offers
        offers = self.offers.copy()
        offers[list(self.avoid)] = False
        return offers


class Swarm:
    """The plan of one mirror for some blocks of a dataset."""

    def __init__(
        self, pieces: Sequence[SwarmPiece], have: Sequence[int], rng: Chance, publisher: PeerId | None, now: float
    ) -> None:
        """``pieces`` cover the blocks without a gap; ``have``: numbers of those that are here."""
        self.pieces = pieces
        self._rng = rng
        self._publisher = publisher
        self._starts = np.array([piece.start for piece in pieces])
        self._blocks = pieces[-1].stop
        self._todo = np.ones(len(pieces), bool)
        self._here = 0
        """Bits of the blocks whose objects are here."""
        for piece in have:
            self._finish(piece)
        self._holders = np.zeros(len(pieces), np.int32)
        self._members: dict[PeerId, _Member] = {}
        self._out: set[PeerId] = set()
        self._flights: dict[int, _Flight] = {}
        self._usual = 0.0
        self._of_one = OF_ONE
        self._news = now

    @property
    def done(self) -> bool:
        return not self._todo.any()

    def is_hopeless(self, now: float) -> bool:
        """Whether nothing is on its way, and nobody is asked or nobody whose word counts told anything new for long."""
        quiet = now - self._news
        return not self._flights and (quiet > PATIENCE or (quiet > ALONE and not self._members))

    @property
    def left(self) -> frozenset[PeerId]:
        """Peers that are asked for nothing more."""
        return frozenset(self._out)

    def have(self) -> int:
        """Bits of the blocks whose objects are here."""
        return self._here

    def _finish(self, piece: int) -> None:
        start, stop, _ = self.pieces[piece]
        self._todo[piece] = False
        self._here |= ((1 << (stop - start)) - 1) << start

    def wants_word(self, peer: PeerId) -> bool:
        """Whether a peer that gives by offers has nothing more on offer that is not on its way."""
        member = self._members.get(peer)
        return member is not None and member.is_seed and not bool((member.offers & self._todo).any())

    def take_parts(self, peer: PeerId, parts: HeldParts, now: float) -> None:
        """Takes over what a peer says it has."""
        if peer in self._out:
            return
        if (known := self._members.get(peer)) is not None and known.said == parts:
            return
        has, offers = self._whole(parts.has), self._whole(parts.offers)
        member = self._members.get(peer)
        if member is None:
            none = np.zeros(len(self.pieces), bool)
            member = self._members[peer] = _Member(none, none, self._rng.random())
        counts = member.is_proven or peer == self._publisher
        if counts and (bool((has & ~member.has).any()) or (peer == self._publisher and parts.given > member.given)):
            self._news = now
        self._holders -= self._free(member)
        member.has, member.offers, member.given, member.said = has, offers, parts.given, parts
        member.is_seed = parts.has != parts.offers
        self._holders += self._free(member)

    def went(self, peer: PeerId) -> list[int]:
        """Forgets a peer that is gone; returns the pieces that were on their way from it, which others may give now."""
        if (member := self._members.pop(peer, None)) is not None:
            self._holders -= self._free(member)
        pieces = [piece for piece, flight in self._flights.items() if flight.peer == peer]
        for piece in pieces:
            del self._flights[piece]
        return pieces

    def got(self, piece: int, now: float) -> None:
        """Notes that all of a piece is here and verified."""
        flight = self._flights.pop(piece, None)
        self._finish(piece)
        self._news = now
        if flight is None:
            return
        took = now - flight.since
        self._usual = took if not self._usual else self._usual + (took - self._usual) / 4
        if (member := self._members.get(flight.peer)) is not None:
            member.strikes, member.is_proven = 0, True

    def note_failure(self, piece: int, peer: PeerId) -> None:
        """Notes that a peer did not give what it offered, or gave something else."""
        flight = self._flights.get(piece)
        if flight is not None and flight.peer == peer:
            del self._flights[piece]
        if (member := self._members.get(peer)) is None:
            return
        member.avoid.add(piece)
        member.strikes += 1
        if member.strikes >= STRIKES:
            self._out.add(peer)
            self.went(peer)

    def plan(self, now: float) -> list[TakePiece | Leave]:
        """Decides what to begin, and what to leave to take it from another."""
        made: list[TakePiece | Leave] = []
        giving = sum(bool((member.free() & self._todo).any()) for member in self._members.values())
        self._of_one = OF_ONE if giving > 1 else AT_ONCE
        while len(self._flights) < AT_ONCE:
            take = self._take_offer() or self._rarest()
            if take is None:
                left = self._late(now)
                if left is None:
                    break
                made.append(left)
                continue
            self._flights[take.piece] = _Flight(take.peer, now)
            made.append(take)
        return made

    def _open(self) -> NDArray[np.bool_]:
        left = self._todo.copy()
        left[list(self._flights)] = False
        return left

    def _take_offer(self) -> TakePiece | None:
        open_ = self._open()
        for peer, member in self._members.items():
            if member.is_seed and self._questions(peer) < self._of_one:
                wanted = member.free() & open_
                if wanted.any():
                    return TakePiece(int(wanted.argmax()), peer)
        return None

    def _rarest(self) -> TakePiece | None:
        open_ = self._open()
        busy = Counter(flight.peer for flight in self._flights.values())
        free = [(peer, each) for peer, each in self._members.items() if not each.is_seed]
        idle = [(peer, each) for peer, each in free if busy[peer] < self._of_one]
        if not idle or not open_.any():
            return None
        reachable = np.zeros(len(self.pieces), bool)
        for _, member in idle:
            reachable |= member.free()
        wanted = np.flatnonzero(open_ & reachable)
        if not len(wanted):
            return None
        counts = self._holders[wanted]
        rare = wanted[counts == counts.min()]
        piece = int(rare[int(self._rng.random() * len(rare))])
        givers = [(peer, each) for peer, each in idle if each.offers[piece] and piece not in each.avoid]
        peer, _ = min(givers, key=lambda one: (busy[one[0]], one[1].strikes, one[1].lot))
        return TakePiece(piece, peer)

    def _late(self, now: float) -> Leave | None:
        """A piece that is slow to come, and that an idle peer has too."""
        limit = max(SLOW, TIMES * self._usual)
        for piece, flight in self._flights.items():
            if now - flight.since <= limit:
                continue
            for peer, member in self._members.items():
                is_other = peer != flight.peer and not member.is_seed and not self._questions(peer)
                if is_other and member.offers[piece] and piece not in member.avoid:
                    del self._flights[piece]
                    if (slow := self._members.get(flight.peer)) is not None:
                        slow.avoid.add(piece)
                    return Leave(piece, flight.peer)
        return None

    def _questions(self, peer: PeerId) -> int:
        return sum(flight.peer == peer for flight in self._flights.values())

    def _free(self, member: _Member) -> NDArray[np.int32]:
        """Pieces that a member gives to anybody."""
        given = np.zeros(len(self.pieces), bool) if member.is_seed else member.offers
        return given.astype(np.int32)

    def _whole(self, bits: int) -> NDArray[np.bool_]:
        """Pieces of which all blocks are in a map."""
        raw = np.frombuffer(bits.to_bytes((self._blocks + 7) // 8, "little"), np.uint8)
        blocks = np.unpackbits(raw, count=self._blocks, bitorder="little")
        return np.minimum.reduceat(blocks, self._starts).astype(bool)


def pieces_of(sizes: Sequence[Sequence[int]], most: int, small: int) -> list[SwarmPiece]:
    """Divides blocks, of which each brings objects of ``sizes``, into pieces.

    A piece ends before it has more than ``most`` bytes or ``small`` objects, unless it is one block.
    """
    pieces: list[SwarmPiece] = []
    start, size, objects = 0, 0, 0
    for number, each in enumerate(sizes):
        if number > start and (size + sum(each) > most or objects + len(each) > small):
            pieces.append(SwarmPiece(start, number, size))
            start, size, objects = number, 0, 0
        size += sum(each)
        objects += len(each)
    return [*pieces, SwarmPiece(start, len(sizes), size)] if sizes else pieces
