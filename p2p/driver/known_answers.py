"""Remembers what each peer told that was of no use here, so that anti-entropy does not fetch it again and again.

Three bounds (docs/spec/trust.md#gossip): a statement that a peer gave, taken or not, is not asked of it again for a
while; sums that led to nothing new are not followed again for a while; and bytes that were of no use, however new each
time, are so many for each peer, and for each network of peers that nobody named, since keys are free. All of it in
memory, and forgotten with the process.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from cachetools import FIFOCache

from chain.backoff import Backoff
from p2p.budget.buckets import Rate
from p2p.machines.declined import Declined, UselessBytes
from p2p.ports import PeerId

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


class RoundPeer(msgspec.Struct, frozen=True, kw_only=True):
    peer: PeerId
    network: str = ""
    """Empty for a peer that a person named."""
    is_asked: bool = False
    """Whether for some datasets, which somebody waits for. Such rounds have bytes of their own."""


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
