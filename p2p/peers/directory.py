"""Keeps the presences that others reported: the newest of each peer, bounded fairly by who reported them (ADR 0006).

A value with changes, like the book: the driver owns one and gives it the time. It never dials; that somebody is at an
address is found out by dialling, where the handshake proves the key. Nothing here outlives the process: what is kept
over restarts are the peers that we have met, in the book.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from chain.backoff import Chance
from chain.errors import Invalid
from p2p.ports import Judgement, PeerId
from p2p.wire import presence as wire
from p2p.wire.presence import Presence

MAX_PRESENCES: Final = 4096
"""Presences kept: 25 MiB if every one were of the largest size, about 1 MiB in practice."""
MAX_SKEW: Final = 600_000
"""Milliseconds that a clock may be ahead of ours: more, and its presences would outlive those of others."""


class _Known(msgspec.Struct, frozen=True):
    """A presence as it came, and who brought the first one of this peer."""

    presence: Presence
    raw: bytes
    source: PeerId


class Directory:
    """Presences of one network by peer. ``me`` is never in it."""

    def __init__(self, network: str, me: PeerId, capacity: int = MAX_PRESENCES) -> None:
        self._network = network
        self._me = me
        self._capacity = capacity
        self._known: dict[PeerId, _Known] = {}
        self._brought: dict[PeerId, OrderedDict[PeerId, None]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def admit(self, raw: bytes, sender: PeerId, now: int) -> Judgement:
        """Look at a presence that ``sender`` told; ``now`` is in milliseconds since the epoch."""
        try:
            said = wire.decode(raw)
        except Invalid:
            return Judgement.REJECT
        if said.expires <= now or said.issued > now + MAX_SKEW:
            return Judgement.IGNORE
        peer = said.peer
        known = self._known.get(peer)
        if peer == self._me or (known is not None and known.presence.issued >= said.issued):
            return Judgement.IGNORE
        if not wire.is_signed(raw, said, self._network):
            return Judgement.REJECT
        if known is None:
            self._make_room(sender, now)
            self._brought.setdefault(sender, OrderedDict())[peer] = None
        self._known[peer] = _Known(said, raw, known.source if known else sender)
        return Judgement.ACCEPT

    def of(self, peer: PeerId, now: int) -> Presence | None:
        """``None`` when it never told, or told long ago."""
        known = self._known.get(peer)
        return known.presence if known is not None and known.presence.expires > now else None

    def holders(self, tag: int, now: int) -> list[Presence]:
        """Who says it serves this dataset, the latest first; after them those who serve more than they tell."""
        living = [known.presence for known in self._living(now)]
        sure = [one for one in living if _has(one.tags, tag)]
        perhaps = [one for one in living if one.more and not _has(one.tags, tag)]
        return [*sorted(sure, key=lambda one: -one.issued), *perhaps]

    def tell(self, ask: wire.PeersAsk, asker: PeerId, now: int, rng: Chance) -> list[bytes]:
        """The answer to a question: no more than was asked for, and drawn by lot where there are more."""
        fitting = [
            known.raw
            for peer, known in self._known.items()
            if known.presence.expires > now
            and peer != asker
            and (not ask.tags or any(_has(known.presence.tags, tag) for tag in ask.tags))
        ]
        return drawn(fitting, ask.wanted, rng)

    def strangers(self, met: set[PeerId], now: int) -> list[Presence]:
        """Those that can be dialled and are not among ``met``."""
        return [
            known.presence for known in self._living(now) if known.presence.addresses and known.presence.peer not in met
        ]

    def forget(self, peer: PeerId) -> None:
        """It is not where it says it is."""
        known = self._known.pop(peer, None)
        if known is not None:
            brought = self._brought[known.source]
            del brought[peer]
            if not brought:
                del self._brought[known.source]

    def _living(self, now: int) -> Iterator[_Known]:
        return (known for known in self._known.values() if known.presence.expires > now)

    def _make_room(self, sender: PeerId, now: int) -> None:
        """Drop what has expired; then, of the source that brought most, what it brought first.

        So one peer that invents thousands of others fills no more than the room that nobody else needs.
        """
        if len(self._known) < self._capacity:
            return
        for peer in [peer for peer, known in self._known.items() if known.presence.expires <= now]:
            self.forget(peer)
        if len(self._known) >= self._capacity:
            crowd = max(self._brought, key=lambda source: (len(self._brought[source]), source == sender))
            self.forget(next(iter(self._brought[crowd])))


def _has(tags: Sequence[int], tag: int) -> bool:
    at = bisect_left(tags, tag)
    return at < len(tags) and tags[at] == tag


def drawn(lots: list[bytes], count: int, rng: Chance) -> list[bytes]:
    """``count`` of ``lots``, each as likely as the others."""
    for at in range(min(count, len(lots))):
        other = at + int(rng.random() * (len(lots) - at))
        lots[at], lots[other] = lots[other], lots[at]
    return lots[:count]
