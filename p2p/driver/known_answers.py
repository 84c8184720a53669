"""Remembers which answers of each peer were of no use here, so that anti-entropy does not fetch them again and again.

Three bounds (docs/spec/trust.md#gossip): a statement that a peer gave, accepted or not, is not requested from it again
for a while; sums that led to nothing new are not followed again for a while; and the useless bytes of each peer, and of
each network of peers that nobody named (since keys are free), are limited, even if they are new each time. All of it is
in memory, and is forgotten with the process.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from cachetools import FIFOCache

from chain.backoff import Backoff
from chain.ids import DatasetId
from p2p.budget.buckets import Rate
from p2p.machines.declined import Declined, UselessBytes
from p2p.ports import PeerId
from p2p.wire.limits import MAX_DATASETS

PAUSES: Final = Backoff(first=300.0, most=3600.0)
"""Pauses before a peer is asked again for something that it gave."""
OF_ONE: Final = 4096
"""Statements remembered of one peer."""
PEERS: Final = 16
"""Peers of which statements are remembered: some 16 MiB at worst."""
USELESS: Final = Rate(per_second=8 << 10, burst=6 << 20)
"""Useless bytes of one peer, listings included. A listing of 65,536 statements has 5 MB."""
OF_NETWORK: Final = 4
"""The limit of all peers of one network, as a multiple of that of one peer."""
LISTED: Final = 256
"""Bytes that listing and framing a statement takes at most; credited back for an accepted statement."""
ALWAYS: Final = 20 << 10
"""Bytes of an answer that are free: 256 sums have as many, and each round asks for them."""
WIDE: Final = Rate(per_second=64.0, burst=8 << 20)
"""Bytes of answers in wide rounds, without sums: between two nodes that hold the same they cost nothing. In a large
network a newcomer receives 8 MiB, half of what it keeps of datasets that it does not want."""


class RoundPeer(msgspec.Struct, frozen=True, kw_only=True):
    peer: PeerId
    network: str = ""
    """The peer's network; empty for a peer that a person named."""
    is_asked: bool = False
    """Whether the round is about datasets that a caller waits for. Such rounds have a budget of their own."""


class KnownAnswers:
    def __init__(self) -> None:
        self._told: FIFOCache[PeerId, Declined[bytes]] = FIFOCache(PEERS)
        self._of_peers = UselessBytes[tuple[PeerId, bool]](USELESS)
        self._of_networks = UselessBytes[tuple[str, bool]](USELESS.times(OF_NETWORK))

    def may_begin(self, teller: RoundPeer, now: float) -> bool:
        """Whether a round with the peer may begin: one that has used up its bytes rests until half of them are back."""
        if teller.is_asked:
            return self.may_go_on(teller, now)
        return self.may_go_on(teller, now) and self._of_peers.room_for((teller.peer, False), now) > USELESS.burst / 2

    def may_go_on(self, teller: RoundPeer, now: float) -> bool:
        within = not teller.network or self._of_networks.room_for((teller.network, teller.is_asked), now) > 0
        return within and self._of_peers.room_for((teller.peer, teller.is_asked), now) > 0

    def cost(self, teller: RoundPeer, size: float, now: float) -> None:
        self._of_peers.cost((teller.peer, teller.is_asked), size, now)
        if teller.network:
            self._of_networks.cost((teller.network, teller.is_asked), size, now)

    def note_taken(self, teller: RoundPeer, size: int, now: float) -> None:
        self.cost(teller, -(size * 4 / 3 + LISTED), now)

    def is_known(self, teller: RoundPeer, name: bytes, now: float) -> bool:
        """Whether the peer gave this statement, or these sums, lately; never in a round that a caller waits for."""
        told = self._told.get(teller.peer)
        return not teller.is_asked and told is not None and told.rests(name, now)

    def came(self, teller: RoundPeer, names: Iterable[bytes], now: float) -> None:
        if teller.peer not in self._told:
            self._told[teller.peer] = Declined(PAUSES, OF_ONE)
        for name in names:
            self._told[teller.peer].note(name, now)


class RoundScope:
    """Decides the scope of anti-entropy rounds: all that the peer keeps or, once that is costly, only what is needed.

    Wide rounds, over all datasets, bring statements of datasets that nobody wants here yet. Their cost grows with the
    network, so the bytes of all wide rounds together are limited. Once these are used up, rounds cover only the
    datasets of interest until half of the bytes are back; the cost of those grows with this node alone. In memory, and
    forgotten with the process.
    """

    def __init__(self) -> None:
        self._left: tuple[float, float] | None = None
        self._is_spent = False
        self._after: DatasetId | None = None
        self._wanted: Sequence[DatasetId] = ()
        self._next = 0

    def is_wide(self, now: float) -> bool:
        """Whether the next round may cover all datasets."""
        if self._is_spent and WIDE.level(self._left, now) >= WIDE.burst / 2:
            self._is_spent = False
        return not self._is_spent

    def cost(self, size: int, now: float) -> None:
        """Charges an answer of ``size`` bytes in a wide round."""
        left = WIDE.level(self._left, now) - size
        self._left = (left, now)
        self._is_spent = self._is_spent or left <= 0

    def turn(self, interests: Sequence[DatasetId]) -> list[DatasetId]:
        """Returns the datasets of interest for the next round: as many as fit in one question, all of them in turn."""
        found = self._wanted = sorted(set(interests))
        first = 0 if self._after is None else bisect_right(found, self._after)
        chosen = [*found[first:], *found[:first]][:MAX_DATASETS]
        self._after = chosen[-1] if chosen else None
        return chosen

    @property
    def wanted(self) -> Sequence[DatasetId]:
        """The datasets of interest at the last round over these; empty while rounds are wide."""
        return self._wanted if self._is_spent else ()

    def next_wanted(self) -> DatasetId | None:
        """Returns the dataset of interest, each in turn, of which a holder is asked next;
        ``None`` while rounds are wide."""
        if not self.wanted:
            return None
        self._next = (self._next + 1) % len(self._wanted)
        return self._wanted[self._next]
