"""Divides the time of a core among peers, at four levels: connection, key, address prefix, and all unknown peers.

A key costs nothing, an address something, a block of addresses more: so a stranger is charged at all levels, and what
one block of addresses takes is bounded whatever number of keys it shows. Peers that a person chose (its own, listed
validators) are charged at the first two levels alone, and with more; publishers of mirrored datasets, whom a person
chose to follow and not to trust, at those and in a room that is theirs together. No stranger touches either room. One
``WorkBudget`` for each host; sans-IO.
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
"""Buckets remembered at once, of all levels; the one longest unused is forgotten, when it has long been full again."""
SECOND: Final = 1_000_000.0
"""Of one core."""
YAMUX_FRAME: Final = 2.5
"""To parse one frame of the muxer and to note what it says."""
STREAM: Final = 1_500.0
"""To open a stream: a task, and the negotiation of its protocol."""
HANDSHAKE: Final = 10_000.0
"""Of one who dials us: noise, the muxer, and what the library asks of each new connection."""
MEETING: Final = 20_000.0
"""To compare statements with a new peer, and to tell each other of others."""
GOSSIP_FRAME: Final = 100.0
"""To parse one frame of gossip, and to wake who reads it."""
GOSSIP_ENTRY: Final = 5.0
"""A subscription, or one name in a control part."""
GOSSIP_MESSAGE: Final = 400.0
"""To verify the signature of a message, and to judge and pass on what it says."""
GOSSIP_BYTE: Final = 0.05
"""To parse a byte of a frame that turns out to be none."""
RANGE: Final = 200.0
"""Reads a range of a chain or object and writes it to a stream. Reads cost disk time, divided by turns."""
SMALL_OBJECT: Final = 20.0
"""To look one up of those that go together, and to read it."""
SUMS: Final = 500.0
"""To tell sums or a listing, and"""
LISTED: Final = 2.0
"""for each statement that is held here: all of them are looked at."""
ENVELOPE: Final = 20.0
"""To find one statement by its name."""
PROOF: Final = 5_000.0
"""To prove something of a chain; the first proof of a long one reads all its hashes."""
STATEMENT: Final = GOSSIP_MESSAGE
"""To verify a statement that we asked for, to judge it, and to write it where it is kept."""
SITE_ANSWER: Final = 1_000.0
"""To read a small file of a dataset for a visitor of the site,"""
SITE_PACK: Final = 20_000.0
"""and to put a thousand blocks into one."""
SITE_QUESTION: Final = 300_000.0
"""To plan a query of a visitor and to compute its rows in a process of its own, about."""
PRESENCE: Final = 400.0
"""To read a presence, to verify that its peer signed it, and to keep it."""
PEERS_QUESTION: Final = 3_000.0
"""To look up who serves sixteen datasets, and to tell of sixty-four peers."""
SWARM_QUESTION: Final = 1_000.0
"""To look up which objects of some blocks are here, and what is offered to the asker."""
PIECE_LIST: Final = 10_000.0
"""To tell the hashes of an object's pieces. The first question reads all of the object, for whoever asks after it."""


RELAY_QUESTION: Final = 2_000.0
"""To look up whether a peer is served, to reserve for it or to lead it to another, and to sign that."""
CARRIED: Final = 100.0
"""To move a piece of a circuit from one connection to another,"""
CARRIED_BYTE: Final = 0.006
"""and to open and to seal each byte of it."""


class Party(NamedTuple):
    connection: int
    """A number of its own for each connection."""
    peer: PeerId
    host: str
    """The IP address at the other end; empty where there is none."""


class WorkShares(msgspec.Struct, frozen=True, kw_only=True):
    """Microseconds of a core for each second, and at once, that one of each level may cause."""

    connection: Rate = Rate(per_second=0.05 * SECOND, burst=0.4 * SECOND)
    peer: Rate = Rate(per_second=0.05 * SECOND, burst=0.4 * SECOND)
    host: Rate = Rate(per_second=0.06 * SECOND, burst=0.5 * SECOND)
    """Of one address: a /32 of IPv4, a /128 of IPv6."""
    prefix: Rate = Rate(per_second=0.08 * SECOND, burst=0.6 * SECOND)
    """Of one block: a /24, a /48. Five of them together leave room for other unknown peers."""
    strangers: Rate = Rate(per_second=0.50 * SECOND, burst=6.0 * SECOND)
    """Of all unchosen peers: half of a core is left whatever they do."""
    publishers: Rate = Rate(per_second=0.20 * SECOND, burst=2.0 * SECOND)
    """Of all publishers of mirrored datasets."""
    chosen: float = 4.0
    """Times as much for the connections and keys of peers that a person chose."""


class WorkBudget:
    """Tracks what each party may still cause.

    ``chosen`` and the rest are set by the node, which knows the peers that a person chose.

    Work is charged by the costs above before it is done; what a handler is then measured to have taken beyond them is
    charged after. They need to be right within a factor of a few: they divide a core among peers, they measure nothing.
    """

    def __init__(self, shares: WorkShares | None = None) -> None:
        self._shares = shares or WorkShares()
        self._levels: FIFOCache[Hashable, tuple[float, float]] = FIFOCache(MAX_BUCKETS)
        self.chosen: frozenset[PeerId] = frozenset()
        self.publishers: frozenset[PeerId] = frozenset()
        self.chosen_hosts: frozenset[str] = frozenset()
        """The addresses of such peers: who dials us from one is let in before it has shown its key."""

    def charge(self, party: Party, cost: float, now: float) -> float:
        """Take ``cost`` microseconds at every level, of those to come if need be; seconds until all of them are paid.

        Whoever charges waits so long before it does the work, and reads nothing more of the party meanwhile. So a
        party owes one piece of work at most for each of its readers.
        """
        return self._take(self._buckets(party), cost, now)

    def admit(self, host: str, cost: float, now: float, patience: float) -> float | None:
        """Charges like ``charge``, for an address whose key is not known yet.

        ``None`` where it would have to wait longer than ``patience``: nothing is taken, so that whoever comes again and
        again is not owed for by others of the same block.
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
        """Whether work for the party would begin at once."""
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
