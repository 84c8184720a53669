"""Remembers what each peer told that was of no use here, so that anti-entropy does not fetch it again and again.

Three bounds (docs/spec/trust.md#gossip): a statement that a peer gave, taken or not, is not asked of it again for a
while; sums that led to nothing new are not followed again for a while; and bytes that were of no use, however new each
time, are so many for each peer, and for each network of peers that nobody named, since keys are free. All of it in
memory, and forgotten with the process.
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
"""Before a peer is asked again for what it gave."""
OF_ONE: Final = 4096
"""Statements remembered of one peer."""
PEERS: Final = 16
"""Peers of which any are: some 16 MiB at worst."""
USELESS: Final = Rate(per_second=8 << 10, burst=6 << 20)
"""Bytes of one peer, listings among them, that brought nothing. A listing of 65,536 statements has 5 MB."""
OF_NETWORK: Final = 4
"""Times as much of all peers of one network."""
LISTED: Final = 256
"""Bytes that listing and framing a statement takes at most, given back for one that was taken."""
ALWAYS: Final = 20 << 10
"""Bytes of an answer that cost nothing: 256 sums have as many, and each round asks for them."""
WIDE: Final = Rate(per_second=192.0, burst=8 << 20)
"""Bytes of answers in wide rounds, sums apart: where two nodes keep the same, whatever they keep, they cost nothing.
In a large network a newcomer hears 8 MiB, which is half of what it keeps of datasets it does not want."""


class RoundPeer(msgspec.Struct, frozen=True, kw_only=True):
    peer: PeerId
    network: str = ""
    """Empty for a peer that a person named."""
    is_asked: bool = False
    """Whether it is for some datasets that a caller waits for. Such rounds have a budget of their own."""


class KnownAnswers:
    def __init__(self) -> None:
        self._told: FIFOCache[PeerId, Declined[bytes]] = FIFOCache(PEERS)
        self._of_peers = UselessBytes[tuple[PeerId, bool]](USELESS)
        self._of_networks = UselessBytes[tuple[str, bool]](USELESS.times(OF_NETWORK))

    def may_begin(self, teller: RoundPeer, now: float) -> bool:
        """Whether a round may come to its end: a peer that has used up its bytes rests until half of them are back."""
        if teller.is_asked:
            return self.may_go_on(teller, now)
        return self.may_go_on(teller, now) and self._of_peers.left((teller.peer, False), now) > USELESS.burst / 2

    def may_go_on(self, teller: RoundPeer, now: float) -> bool:
        within = not teller.network or self._of_networks.left((teller.network, teller.is_asked), now) > 0
        return within and self._of_peers.left((teller.peer, teller.is_asked), now) > 0

    def cost(self, teller: RoundPeer, size: float, now: float) -> None:
        self._of_peers.cost((teller.peer, teller.is_asked), size, now)
        if teller.network:
            self._of_networks.cost((teller.network, teller.is_asked), size, now)

    def taken(self, teller: RoundPeer, size: int, now: float) -> None:
        self.cost(teller, -(size * 4 / 3 + LISTED), now)

    def is_known(self, teller: RoundPeer, name: bytes, now: float) -> bool:
        """Whether a statement, or sums, lately came of a peer."""
        told = self._told.get(teller.peer)
        return not teller.is_asked and told is not None and told.rests(name, now)

    def came(self, teller: RoundPeer, names: Iterable[bytes], now: float) -> None:
        if teller.peer not in self._told:
            self._told[teller.peer] = Declined(PAUSES, OF_ONE)
        for name in names:
            self._told[teller.peer].note(name, now)


class RoundScope:
    """Decides the scope of anti-entropy rounds: all that the peer keeps or, once that is costly, only what is needed.

    Wide rounds, over all, tell of datasets that nobody wants here yet. What they cost grows with the network, so their
    bytes are so many, of all peers together. Once these are used up, rounds go over datasets of interest alone, until
    half of them are back: those cost what grows with this node alone. In memory, and forgotten with the process.
    """

    def __init__(self) -> None:
        self._left: tuple[float, float] | None = None
        self._is_spent = False
        self._after: DatasetId | None = None
        self._wanted: Sequence[DatasetId] = ()
        self._next = 0

    def is_wide(self, now: float) -> bool:
        """Whether the next round may go over all."""
        if self._is_spent and WIDE.level(self._left, now) >= WIDE.burst / 2:
            self._is_spent = False
        return not self._is_spent

    def cost(self, size: int, now: float) -> None:
        """An answer of ``size`` bytes came in a wide round."""
        left = WIDE.level(self._left, now) - size
        self._left = (left, now)
        self._is_spent = self._is_spent or left <= 0

    def turn(self, interests: Sequence[DatasetId]) -> list[DatasetId]:
        """Returns the datasets of interest for the next round: one question's worth, all of them in turn."""
        found = self._wanted = sorted(set(interests))
        first = 0 if self._after is None else bisect_right(found, self._after)
        chosen = [*found[first:], *found[:first]][:MAX_DATASETS]
        self._after = chosen[-1] if chosen else None
        return chosen

    @property
    def wanted(self) -> Sequence[DatasetId]:
        """The datasets of interest at the last round over them; empty while rounds are wide."""
        return self._wanted if self._is_spent else ()

    def next_wanted(self) -> DatasetId | None:
        """Returns the next dataset of interest, each in turn, whose holder is asked next."""
        if not self.wanted:
            return None
        self._next = (self._next + 1) % len(self._wanted)
        return self._wanted[self._next]
