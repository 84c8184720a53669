"""Tracks the peers of one transfer: which may be asked now, which are resting, which are excluded, and why.

Remembers how each peer served this node in earlier transfers, so that productive peers are asked before slow ones. A
bad record only means that a peer is asked later; it is still asked if no other is left. Bytes count for a peer once
they are verified; a delay counts against it once another peer has delivered in its place. New keys cost nothing, so a
delay by a key without a record counts against all such keys of its address block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import msgspec
from cachetools import LRUCache

from chain.backoff import Backoff, Chance
from p2p.ports import PeerId

MOST: Final = 4096
"""Peers remembered, and blocks of addresses; counted separately, so that new keys evict no proven peer."""
MISSES: Final = 2
"""Misses in a row after which a peer's earlier deliveries no longer count."""
FADES: Final = 600.0
"""Seconds after which misses are forgotten."""
SHARE: Final = 0.5
"""Weight of the latest answer time in the average."""
ALIKE: Final = 0.05
"""Seconds up to which peers count as equally fast; above that each doubling counts as one step slower."""


class Misses(msgspec.Struct, frozen=True):
    """The number of misses in a row, and the time of the last one."""

    count: int = 0
    at: float = -math.inf


class TrackRecords:
    """Keeps the records of all peers. ``network_of`` returns the network of a connected peer, empty for any other."""

    def __init__(self, network_of: Callable[[PeerId], str] = lambda _: "") -> None:
        self._network_of = network_of
        self._usual: LRUCache[PeerId, float] = LRUCache(MOST)
        self._misses: LRUCache[str, Misses] = LRUCache(MOST)

    def gave(self, peer: PeerId, seconds: float) -> None:
        """Notes that a peer delivered correct data, ``seconds`` after the question."""
        usual = self._usual.get(peer, seconds)
        self._usual[peer] = usual + SHARE * (seconds - usual)
        self._misses.pop(peer, None)

    def note_missed(self, peer: PeerId, now: float) -> None:
        """Notes that a peer was late with a part that another peer delivered."""
        stranger = peer not in self._usual
        for name in (peer, *([self._network_of(peer)] if stranger else [])):
            if name:
                self._misses[name] = Misses(self._count(name, now) + 1, now)

    def usual(self, peer: PeerId) -> float | None:
        """Returns the seconds that its answers usually take; ``None``: it never gave correct data."""
        return self._usual.get(peer)

    def is_proven(self, peer: PeerId, now: float) -> bool:
        return peer in self._usual and self._count(peer, now) < MISSES

    def misses(self, peer: PeerId, now: float) -> int:
        """Returns the recent misses of a peer; for one without a record, those of its address block too."""
        if self.is_proven(peer, now):
            return 0
        return self._count(peer, now) + (0 if peer in self._usual else self._count(self._network_of(peer), now))

    def slowness(self, peer: PeerId) -> int:
        """Returns how slow a peer usually is, in doublings of ``ALIKE``; 0 for a fast or an unknown peer."""
        return max(0, round(math.log2(max(self._usual.get(peer, ALIKE), ALIKE) / ALIKE)))

    def _count(self, name: str, now: float) -> int:
        found = self._misses.get(name, Misses())
        return found.count if now - found.at < FADES else 0


DEPTH: Final = 4
"""Questions under way at one peer: while one answer is checked and one written, the next is already travelling."""
PATIENCE: Final = 15.0
"""Seconds for which a peer with open questions may be silent, by default; 1 MiB in them is 70 KiB/s."""
MAX_FAILURES: Final = 5
"""Failures in a row after which a peer is excluded from this transfer: about a minute, with the rests between them."""
SPAN: Final = 60.0
"""Seconds of waiting for one peer in which it must give at least ``LEAST`` bytes."""
LEAST: Final = 64 << 10
"""Bytes that a peer must give in ``SPAN`` seconds, or it is excluded from this transfer. Otherwise a peer that gives
little, but always in time, could hold the transfer for ever."""
REST: Final = Backoff(first=0.5, most=30.0)
"""Rest of a peer after a failure, in seconds."""
TRIED: Final = 0.25
"""Part of the transfers in which a peer without a record and without a miss is treated like one with a record. Without
this, the publisher would have to serve everybody for ever."""
LEAST_RATE: Final = 4 << 10
"""Bytes a second below which an answer counts as not moving: a part of 1 MiB would take four minutes."""


@dataclass(slots=True)
class Provider:
    """One peer's state in one transfer. ``available``: the number of units that it last said it has, ``None`` before
    that.

    ``lot`` breaks ties and is drawn anew for each transfer, so that no peer is everybody's first choice.
    """

    peer: PeerId
    lot: float
    proven: bool = False
    """Whether it gave correct data before, or has answered here. ``tried``: treated as such, because of its ``lot``."""
    tried: bool = False
    misses: int = 0
    slowness: int = 0
    failures: int = 0
    ready_at: float = 0.0
    heard: float = 0.0
    moved: float = 0.0
    """The time at which an answer of it was last seen to move."""
    arriving: int = 0
    """Bytes of an unfinished answer that had arrived at that time."""
    waited: float = 0.0
    """Seconds that we waited for it, rests included, in the current ``SPAN``."""
    given: int = 0
    """Bytes that it gave in the current ``SPAN``."""
    took: float = 0.0
    """Seconds that its last answer took."""
    available: int | None = None
    out: bool = False
    reason: str = "it was not asked"

    @property
    def is_first(self) -> bool:
        """Whether the peer gets all its questions before other peers get any."""
        return self.proven or self.tried

    def doubt(self) -> tuple[int, int, bool, int, float]:
        """Returns a sort key, smallest first: failures in a row, misses,
        whether it never gave anything, slowness, lot."""
        return self.failures, self.misses, not self.is_first, self.slowness, self.lot

    def note_progress(self, now: float, since: float, arriving: int) -> None:
        """Notes that ``arriving`` bytes of an unfinished answer are here; the question was sent at ``since``.

        The number falls when a whole answer has been taken, which counts as progress too.
        """
        if arriving < self.arriving or arriving - self.arriving >= LEAST_RATE * (now - max(since, self.moved)) > 0:
            self.moved, self.arriving = now, arriving

    def note_answer(self, now: float, units: int, size: int, available: int, took: float) -> None:
        """Notes an answer of ``units`` units and ``size`` bytes; ``took``: seconds since the question."""
        if units:
            self.failures = 0
            self.proven = True
            self.took = took
        self.waited += now - self.heard
        self.given += size
        self.heard = now
        self.available = available

    def drips(self) -> bool:
        """Whether it gave less than ``LEAST`` bytes in a whole ``SPAN``. Called after each answer that has content."""
        if self.waited < SPAN:
            return False
        given, self.waited, self.given = self.given, 0.0, 0
        return given < LEAST


class TransferProviders:
    def __init__(self, rng: Chance, patience: float = PATIENCE, records: TrackRecords | None = None) -> None:
        self._records = records or TrackRecords()
        self._rng = rng
        self._patience = patience
        self._all: dict[PeerId, Provider] = {}

    def join(self, peer: PeerId, now: float) -> None:
        proven, misses = self._records.is_proven(peer, now), self._records.misses(peer, now)
        lot = self._rng.random()
        known = Provider(peer, lot, proven, not misses and lot < TRIED, misses, self._records.slowness(peer))
        self._all.setdefault(peer, known)

    def note_missed(self, peer: PeerId, now: float) -> None:
        """Notes that another peer delivered a part that this peer was late with."""
        self._records.note_missed(peer, now)
        provider = self._all[peer]
        provider.misses, provider.tried = self._records.misses(peer, now), False
        provider.proven = self._records.is_proven(peer, now)

    def gave(self, peers: Collection[PeerId]) -> None:
        for peer in peers:
            self._records.gave(peer, self._all[peer].took)

    def usual(self, peer: PeerId) -> float | None:
        """Returns the seconds that the peer's answers take, from this transfer or earlier ones; ``None``: not known."""
        return self._all[peer].took or self._records.usual(peer)

    def of(self, peer: PeerId) -> Provider:
        return self._all[peer]

    def drop(self, peer: PeerId, reason: str) -> None:
        if provider := self._all.get(peer):
            provider.out, provider.reason = True, reason

    def drop_all(self, reason: str) -> None:
        for provider in self._all.values():
            if not provider.out:
                self.drop(provider.peer, reason)

    def note_failure(self, peer: PeerId, reason: str, now: float) -> None:
        """Notes a failure: the peer rests, or is excluded after too many.
        Failures during a rest count as the same one."""
        provider = self._all[peer]
        if provider.ready_at > now:
            return
        provider.failures += 1
        provider.reason = reason
        provider.available = None
        provider.ready_at = now + REST.wait(provider.failures, self._rng)
        provider.waited += provider.ready_at - now
        if provider.failures >= MAX_FAILURES:
            self.drop(peer, reason)

    def ready(self, start: int, now: float) -> list[Provider]:
        """Lists the peers that may be asked for unit ``start`` now: they may have it, and are not resting."""
        return [one for one in self._awake(now) if one.available is None or one.available > start]

    def lacking(self, start: int, now: float) -> list[Provider]:
        """Lists peers that could be asked now but said that they do not have unit ``start``."""
        return [one for one in self._awake(now) if one.available is not None and one.available <= start]

    def _awake(self, now: float) -> list[Provider]:
        return [one for one in self._all.values() if not one.out and one.ready_at <= now]

    def silent(self, asked: set[PeerId], now: float) -> list[PeerId]:
        """Lists those of ``asked`` that are late. Computes the time exactly as ``wake_times`` does, to the last bit."""
        return [peer for peer in sorted(asked) if now >= self._all[peer].heard + self._patience]

    def wake_times(self, asked: set[PeerId], now: float) -> list[float]:
        """Lists the times at which one of ``asked`` becomes late, or a resting peer becomes ready."""
        silences = [self._all[peer].heard + self._patience for peer in asked]
        rests = [one.ready_at for one in self._all.values() if not one.out and one.ready_at > now]
        return silences + rests

    def some_proven(self) -> bool:
        return any(provider.proven and not provider.out for provider in self._all.values())

    def hopeful(self) -> bool:
        return any(not provider.out for provider in self._all.values())

    def is_hopeful(self, peer: PeerId) -> bool:
        return peer in self._all and not self._all[peer].out

    def is_resting(self, peer: PeerId, now: float) -> bool:
        return self._all[peer].ready_at > now

    def least_doubtful(self, but: Collection[PeerId]) -> PeerId | None:
        """Returns the least doubtful peer that is not excluded; one of ``but`` only if there is no other."""
        left = [one for one in self._all.values() if not one.out]
        best = min(left, key=lambda one: (one.peer in but, one.doubt()), default=None)
        return best.peer if best else None

    def reasons(self) -> tuple[tuple[PeerId, str], ...]:
        return tuple((one.peer, one.reason) for one in self._all.values())
