"""Divides the time of a core among peers, at four levels: connection, key, address prefix, and all unknown peers.

A new key costs nothing, an address something, a block of addresses more. So a stranger is charged at all levels, and
what one block of addresses uses is bounded however many keys it shows. Peers that a person chose (its own, listed
validators) are charged at the first two levels only, and may use more. Publishers of mirrored datasets, which a person
chose to follow but not to trust, are charged at these two levels and in a budget that all publishers share. Strangers
cannot use either. One ``WorkBudget`` for each host; sans-IO.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple

import msgspec
from cachetools import FIFOCache

from p2p.address import prefix_of
from p2p.budget.buckets import Rate
from p2p.ports import PeerId

MAX_BUCKETS: Final = 8192
"""Buckets remembered at once, of all levels. The one longest unused is forgotten first: it has long been full again."""
SECOND: Final = 1_000_000.0
"""One second of one core in microseconds, the unit of all costs below."""
YAMUX_FRAME: Final = 2.5
"""Parsing one frame of the muxer and noting its content."""
STREAM: Final = 1_500.0
"""Opening a stream: a task, and the negotiation of its protocol."""
HANDSHAKE: Final = 10_000.0
"""Accepting a connection: noise, the muxer, and what the library asks of each new connection."""
MEETING: Final = 20_000.0
"""Comparing statements with a new peer, and exchanging presences of other peers."""
GOSSIP_FRAME: Final = 100.0
"""Parsing one frame of gossip, and waking its reader."""
GOSSIP_ENTRY: Final = 5.0
"""Handling a subscription, or one name in a control part of a gossip frame."""
GOSSIP_MESSAGE: Final = 400.0
"""Verifying the signature of a message, judging its content, and passing it on."""
GOSSIP_BYTE: Final = 0.05
"""Parsing one byte of a frame that turns out to be invalid."""
RANGE: Final = 200.0
"""Reading a range of a chain or object and writing it to a stream. The disk time of reads is divided by turns instead.
"""
SMALL_OBJECT: Final = 20.0
"""Looking up and reading one of the small objects that are sent together."""
SUMS: Final = 500.0
"""Answering with sums or a listing; ``LISTED`` is added for each statement."""
LISTED: Final = 2.0
"""Looking at one statement held here; sums and listings look at all of them."""
ENVELOPE: Final = 20.0
"""Finding one statement by its name."""
PROOF: Final = 5_000.0
"""Proving something of a chain; the first proof of a long chain reads all its hashes."""
STATEMENT: Final = GOSSIP_MESSAGE
"""Verifying, judging and storing a statement that we asked for."""
SITE_ANSWER: Final = 1_000.0
"""Reading a small file of a dataset for a visitor of the site."""
SITE_PACK: Final = 20_000.0
"""Packing a thousand blocks into one file for a visitor of the site."""
SITE_QUESTION: Final = 300_000.0
"""Planning a visitor's query and computing its rows in a separate process, approximately."""
PRESENCE: Final = 400.0
"""Reading a presence, verifying its signature, and keeping it."""
PEERS_QUESTION: Final = 3_000.0
"""Looking up who serves sixteen datasets, and sending sixty-four presences."""
SWARM_QUESTION: Final = 1_000.0
"""To look up which objects of some blocks are here, and what is offered to the asker."""
PIECE_LIST: Final = 10_000.0
"""To tell the hashes of an object's pieces. The first question reads all of the object, for whoever asks after it."""


RELAY_QUESTION: Final = 2_000.0
"""Looking up whether a peer is served, making its reservation or its circuit, and signing the answer."""
CARRIED: Final = 100.0
"""Moving a piece of a circuit from one connection to another."""
CARRIED_BYTE: Final = 0.006
"""Decrypting and encrypting each byte of such a piece."""


class Party(NamedTuple):
    connection: int
    """A number unique to each connection."""
    peer: PeerId
    host: str
    """The IP address at the other end; empty if there is none."""


class WorkShares(msgspec.Struct, frozen=True, kw_only=True):
    """The microseconds of a core that one party of each level may cause, per second and at once."""

    connection: Rate = Rate(per_second=0.05 * SECOND, burst=0.4 * SECOND)
    peer: Rate = Rate(per_second=0.05 * SECOND, burst=0.4 * SECOND)
    host: Rate = Rate(per_second=0.06 * SECOND, burst=0.5 * SECOND)
    """Limit of one address: a /32 of IPv4, a /128 of IPv6."""
    prefix: Rate = Rate(per_second=0.08 * SECOND, burst=0.6 * SECOND)
    """Limit of one block: a /24 of IPv4, a /48 of IPv6. Five of them together leave room for other unknown peers."""
    strangers: Rate = Rate(per_second=0.50 * SECOND, burst=6.0 * SECOND)
    """Limit of all unchosen peers together: half of a core stays free whatever they do."""
    publishers: Rate = Rate(per_second=0.20 * SECOND, burst=2.0 * SECOND)
    """Limit of all publishers of mirrored datasets together."""
    chosen: float = 4.0
    """The factor by which connections and keys of peers that a person chose may use more."""


class WorkBudget:
    """Tracks how much work each peer and address may still cause.

    The node sets ``chosen``, ``publishers`` and ``chosen_hosts``, since it knows the peers that a person chose.

    Work is charged by the costs above before it is done; what a handler is then measured to have used beyond them is
    charged afterwards. The costs may be wrong by a factor of a few: they divide a core among peers and measure nothing.
    """

    def __init__(self, shares: WorkShares | None = None) -> None:
        self._shares = shares or WorkShares()
        self._levels: FIFOCache[Hashable, tuple[float, float]] = FIFOCache(MAX_BUCKETS)
        self.chosen: frozenset[PeerId] = frozenset()
        self.publishers: frozenset[PeerId] = frozenset()
        self.chosen_hosts: frozenset[str] = frozenset()
        """Addresses of chosen peers: a connection from one of them is let in before it has shown its key."""

    def charge(self, party: Party, cost: float, now: float) -> float:
        """Takes ``cost`` microseconds at every level, in advance if need be;
        returns the seconds until all of them are paid.

        The caller waits so long before it does the work, and reads nothing more of the party meanwhile. So a party owes
        at most one piece of work for each of its readers.
        """
        return self._take(self._buckets(party), cost, now)

    def admit(self, host: str, cost: float, now: float, patience: float) -> float | None:
        """Charges like ``charge``, for an address whose key is not known yet.

        Returns ``None`` and takes nothing if the wait would exceed ``patience``. So repeated attempts from one address
        put no debt on others of its block.
        """
        buckets = self._of_strangers(host)
        if host in self.chosen_hosts:
            buckets = [(("host", host), self._shares.host.times(self._shares.chosen))]
        if any(cost - self._level(bucket, rate, now) > patience * rate.per_second for bucket, rate in buckets):
            return None
        return self._take(buckets, cost, now)

    def _take(self, buckets: list[tuple[Hashable, Rate]], cost: float, now: float) -> float:
        wait = 0.0
        for bucket, rate in buckets:
            level = self._level(bucket, rate, now) - cost
            self._levels[bucket] = (level, now)
            wait = max(wait, -level / rate.per_second)
        return wait

    def allows(self, party: Party, now: float) -> bool:
        """Whether work for the party could begin without waiting."""
        return all(self._level(bucket, rate, now) > 0 for bucket, rate in self._buckets(party))

    def _buckets(self, party: Party) -> list[tuple[Hashable, Rate]]:
        shares = self._shares
        if party.peer in self.chosen:
            return [
                (("connection", party.connection), shares.connection.times(shares.chosen)),
                (("peer", party.peer), shares.peer.times(shares.chosen)),
            ]
        by_key: list[tuple[Hashable, Rate]] = [
            (("connection", party.connection), shares.connection),
            (("peer", party.peer), shares.peer),
        ]
        if party.peer in self.publishers:
            return [*by_key, ("publishers", shares.publishers)]
        return [*by_key, *self._of_strangers(party.host)]

    def _of_strangers(self, host: str) -> list[tuple[Hashable, Rate]]:
        shares = self._shares
        return [
            (("host", host), shares.host),
            (("prefix", prefix_of(host)), shares.prefix),
            ("strangers", shares.strangers),
        ]

    def _level(self, bucket: Hashable, rate: Rate, now: float) -> float:
        return rate.level(self._levels.get(bucket), now)
