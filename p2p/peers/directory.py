"""Keeps the presences that others reported: the newest of each peer, bounded fairly by who reported them (ADR 6).

Plain state, like the book: the driver owns a directory and gives it the time. It never dials; whether a peer is at an
address is found out by dialling, as the handshake proves the key. Nothing here outlives the process: the book keeps the
peers that we have met.
"""

from __future__ import annotations

import heapq
import ipaddress
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import msgspec

from chain.backoff import Chance
from chain.errors import Invalid
from p2p.address import PeerAddress, parse_address
from p2p.ip import Allows, IpNetwork, within
from p2p.ports import Judgement, PeerId
from p2p.wire import presence as wire
from p2p.wire.presence import Presence

MAX_PRESENCES: Final = 4096
"""Presences kept: a mebibyte, and as much again for each hundred thousand tags."""
MAX_TAGS_KEPT: Final = 131_072
"""Tags of all presences together, 32 of each; the index by tag takes 300 bytes for each."""
WEIGHT: Final = 32
"""The weight of a presence in tags, when sources are compared by how much they reported."""
MAX_SKEW: Final = 600_000
"""Milliseconds that a clock may be ahead of ours; with more its presences would outlive those of others."""
LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
_HERE: Final = ("localhost",)


class _Known(msgspec.Struct, frozen=True):
    """A presence as it came, and the source of the first one of this peer."""

    presence: Presence
    raw: bytes
    source: str


class Directory:
    """Presences of one network by peer, without our own (``me``). No operation takes time in proportion to its size."""

    def __init__(self, network: str, me: PeerId, capacity: int = MAX_PRESENCES, most_tags: int = MAX_TAGS_KEPT) -> None:
        self._network = network
        self._me = me
        self._capacity = capacity
        self._most_tags = most_tags
        self._known: dict[PeerId, _Known] = {}
        self._tagged: dict[int, set[PeerId]] = {}
        self._more: set[PeerId] = set()
        self._tags = 0
        self._brought: dict[str, OrderedDict[PeerId, None]] = {}
        self._weights: dict[str, int] = {}
        self._crowds: list[tuple[int, str]] = []
        """A heap of sources by weight, the heaviest first; an entry with an outdated weight is skipped."""
        self._expiring: list[tuple[int, PeerId]] = []
        """A heap of presences by expiry; outdated entries are skipped."""

    def __len__(self) -> int:
        return len(self._known)

    def admit(self, raw: bytes, sender: str, now: int) -> Judgement:
        """Judges a presence from ``sender``, a block of addresses (keys cost nothing). ``now``: milliseconds."""
        try:
            presence = wire.decode(raw)
        except Invalid:
            return Judgement.REJECT
        if presence.expires <= now or presence.issued > now + MAX_SKEW:
            return Judgement.IGNORE
        peer = presence.peer
        known = self._known.get(peer)
        if peer == self._me or (known is not None and known.presence.issued >= presence.issued):
            return Judgement.IGNORE
        if not wire.is_signed(raw, presence, self._network):
            return Judgement.REJECT
        source = known.source if known else sender
        self.forget(peer)
        self._make_room(len(presence.tags), source, now)
        self._keep(_Known(presence, raw, source))
        return Judgement.ACCEPT

    def _keep(self, known: _Known) -> None:
        presence, source = known.presence, known.source
        peer = presence.peer
        self._known[peer] = known
        for tag in presence.tags:
            self._tagged.setdefault(tag, set()).add(peer)
        self._tags += len(presence.tags)
        if presence.more:
            self._more.add(peer)
        self._brought.setdefault(source, OrderedDict())[peer] = None
        self._weigh(source, WEIGHT + len(presence.tags))
        heapq.heappush(self._expiring, (presence.expires, peer))
        if len(self._expiring) > 2 * self._capacity:
            self._expiring = [(each.presence.expires, peer) for peer, each in self._known.items()]
            heapq.heapify(self._expiring)

    def _weigh(self, source: str, more: int) -> None:
        weight = self._weights.get(source, 0) + more
        if not weight:
            del self._weights[source], self._brought[source]
            return
        self._weights[source] = weight
        heapq.heappush(self._crowds, (-weight, source))
        if len(self._crowds) > 2 * self._capacity:
            self._crowds = [(-weight, source) for source, weight in self._weights.items()]
            heapq.heapify(self._crowds)

    def of(self, peer: PeerId, now: int) -> Presence | None:
        """Returns a peer's unexpired presence, if any."""
        known = self._known.get(peer)
        return known.presence if known is not None and known.presence.expires > now else None

    def raw_of(self, peer: PeerId, now: int) -> bytes | None:
        """Returns a peer's unexpired presence as the peer signed it, if any."""
        known = self._known.get(peer)
        return known.raw if known is not None and known.presence.expires > now else None

    def holders(self, tag: int, now: int) -> list[Presence]:
        """Lists presences that name this dataset, latest first; then those of peers that serve more than they name."""
        tagged = self._tagged.get(tag, set())
        sure = [known.presence for known in self._living(tagged, now)]
        perhaps = [known.presence for known in self._living(self._more - tagged, now)]
        return [*sorted(sure, key=lambda one: -one.issued), *perhaps]

    def naming(self, tag: int, peers: Iterable[PeerId]) -> list[PeerId]:
        """Lists those of ``peers`` whose last presence, expired or not, names this dataset."""
        tagged = self._tagged.get(tag, ())
        return [peer for peer in peers if peer in tagged]

    def tell(self, ask: wire.PeersAsk, asker: PeerId, now: int, rng: Chance) -> list[bytes]:
        """Answers a question: returns at most as many raw presences as were asked for,
        random ones if there are more."""
        found = set().union(*(self._tagged.get(tag, ()) for tag in ask.tags)) if ask.tags else self._known
        fitting = (known.raw for known in self._living(lots(list(found), rng), now) if known.presence.peer != asker)
        return list(islice(fitting, ask.wanted))

    def strangers(self, met: set[PeerId], now: int) -> list[Presence]:
        """Lists presences that can be dialled and are not among ``met``."""
        return [
            known.presence
            for peer, known in self._known.items()
            if peer not in met and known.presence.expires > now and known.presence.addresses
        ]

    def forget(self, peer: PeerId) -> None:
        """Drops a peer's presence, because it was wrong or to make room."""
        known = self._known.pop(peer, None)
        if known is None:
            return
        tags = known.presence.tags
        for tag in tags:
            tagged = self._tagged[tag]
            tagged.discard(peer)
            if not tagged:
                del self._tagged[tag]
        self._tags -= len(tags)
        self._more.discard(peer)
        del self._brought[known.source][peer]
        self._weigh(known.source, -WEIGHT - len(tags))

    def _living(self, peers: Iterable[PeerId], now: int) -> Iterator[_Known]:
        return (known for known in map(self._known.__getitem__, peers) if known.presence.expires > now)

    def _is_full(self, tags: int) -> bool:
        return len(self._known) >= self._capacity or self._tags + tags > self._most_tags

    def _make_room(self, tags: int, sender: str, now: int) -> None:
        """Makes room: drops expired presences, then the oldest reports of the source that reported most.

        So a source that invents thousands of peers only fills room that nobody else needs.
        """
        while self._is_full(tags) and self._expiring and self._expiring[0][0] <= now:
            ends, peer = heapq.heappop(self._expiring)
            known = self._known.get(peer)
            if known is not None and known.presence.expires == ends:
                self.forget(peer)
        while self._known and self._is_full(tags):
            self.forget(next(iter(self._brought[self._heaviest(sender)])))

    def _heaviest(self, sender: str) -> str:
        """Returns the source that weighs most; of equal ones, the one that reports now."""
        while -self._crowds[0][0] != self._weights.get(self._crowds[0][1]):
            heapq.heappop(self._crowds)
        weight, crowd = self._crowds[0]
        return sender if self._weights.get(sender) == -weight else crowd


def lots(pool: list[PeerId], rng: Chance) -> Iterator[PeerId]:
    """Yields all of ``pool`` in a uniformly random order."""
    for at in range(len(pool)):
        other = at + int(rng.random() * (len(pool) - at))
        pool[at], pool[other] = pool[other], pool[at]
        yield pool[at]


def networks(texts: Iterable[str]) -> tuple[IpNetwork, ...]:
    """Parses networks. Raises ValueError, which names the wrong one."""
    return tuple(ipaddress.ip_network(text) for text in texts)


class AddressFilter:
    """Decides at which addresses a node dials a peer that others named.

    Anybody can name any address for a peer, also one of this machine or its local network, and each dial makes a
    connection there. So peers named by others are dialled only on the Internet, and in networks that a setting names. A
    node whose owner named nothing beyond this machine has all its peers there, and dials them there. ``inside``:
    networks that a setting names; ``None``: no such setting.
    """

    def __init__(self, inside: Iterable[str] | None, bootstrap: Iterable[str]) -> None:
        self._said = None if inside is None else within(networks(inside))
        self._is_local = True
        for address in bootstrap:
            self.name(address)

    def name(self, address: str) -> None:
        self._is_local = self._is_local and _is_local(address)

    def allows(self, ours: Iterable[str]) -> Allows:
        """Returns which addresses may be dialled; ``ours``: the addresses at which others reach this node."""
        if self._said is not None:
            return self._said
        return within(networks(LOOPBACK) if self._is_local and all(map(_is_local, ours)) else ())

    def again(self, known: Iterable[str], ours: Iterable[str]) -> Allows:
        """Allows also the addresses at which a known peer was met;
        a DNS name is not enough, as it may now mean another address."""
        met = {address.ip for address in map(_parse, known) if address is not None}
        others = self.allows(ours)
        return lambda ip: ip in met or others(ip)


def _is_local(text: str) -> bool:
    address = _parse(text)
    if address is None:
        return False
    return address.host in _HERE if address.ip is None else address.ip.is_loopback


def _parse(text: str) -> PeerAddress | None:
    try:
        return parse_address(text)
    except Invalid:
        return None
