"""Tracks the peers of one transfer: which may be asked now, which are resting, which are excluded, and why."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from chain.backoff import Backoff, Chance
from p2p.machines.track_records import TrackRecords
from p2p.ports import PeerId

DEPTH: Final = 4
"""Questions under way at one peer: the next answer travels while one is written and one is checked."""
PATIENCE: Final = 15.0
"""Seconds that a peer with questions of ours may say nothing, unless said otherwise; 1 MiB in it is 70 KiB/s."""
MAX_FAILURES: Final = 5
"""Failures in a row after which a peer is out of this transfer: with the rests between them about a minute."""
SPAN: Final = 60.0
"""Seconds of waiting for one peer, in which it gives at least"""
LEAST: Final = 64 << 10
"""bytes, or is out of this transfer: one that drips answers would hold it for ever, since each of them is in time."""
REST: Final = Backoff(first=0.5, most=30.0)
"""Rest after a failure, in seconds."""
TRIED: Final = 0.25
"""Part of the transfers in which a peer without a record, and without a miss, is asked like one that has one: else
whoever published something would serve it to all for ever."""
LEAST_RATE: Final = 4 << 10
"""Bytes a second below which an answer on its way does not move: a part of 1 MiB would take four minutes."""


@dataclass(slots=True)
class Provider:
    """One peer's part in one transfer. ``available`` is what it last said to have, ``None`` before.

    ``lot`` breaks ties, drawn anew for each transfer, so that no peer is everybody's first choice.
    """

    peer: PeerId
    lot: float
    proven: bool = False
    """Whether it gave what proved true before, or has answered here; ``tried``: asked as if, by its lot."""
    tried: bool = False
    misses: int = 0
    slowness: int = 0
    failures: int = 0
    ready_at: float = 0.0
    heard: float = 0.0
    moved: float = 0.0
    """When an answer of it was last seen to move."""
    arriving: int = 0
    """Bytes of an unfinished answer that were here then."""
    waited: float = 0.0
    """Seconds that we waited for it, resting included, since it last gave ``LEAST`` bytes in ``SPAN``,"""
    given: int = 0
    """and what it gave in them."""
    took: float = 0.0
    """Seconds that its last answer took."""
    available: int | None = None
    out: bool = False
    reason: str = "it was not asked"

    @property
    def is_first(self) -> bool:
        """Whether the peer is asked before others have as many requests as they take."""
        return self.proven or self.tried

    def doubt(self) -> tuple[int, int, bool, int, float]:
        """Less is better: failures in a row, misses, whether it never gave anything, how slow it is, then the lot."""
        return self.failures, self.misses, not self.is_first, self.slowness, self.lot

    def looked(self, now: float, since: float, arriving: int) -> None:
        """So many bytes of an answer are here; the question is of ``since``, and whole answers take some away."""
        if arriving < self.arriving or arriving - self.arriving >= LEAST_RATE * (now - max(since, self.moved)) > 0:
            self.moved, self.arriving = now, arriving

    def answered(self, now: float, units: int, size: int, available: int, took: float) -> None:
        """``took``: seconds since it was asked."""
        if units:
            self.failures = 0
            self.proven = True
            self.took = took
        self.waited += now - self.heard
        self.given += size
        self.heard = now
        self.available = available

    def drips(self) -> bool:
        """Whether it gave too little in all of a span. Asked after each answer with something in it."""
        if self.waited < SPAN:
            return False
        given, self.waited, self.given = self.given, 0.0, 0
        return given < LEAST


class Providers:
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

    def missed(self, peer: PeerId, now: float) -> None:
        """Notes that another peer delivered what this one was late with."""
        self._records.missed(peer, now)
        provider = self._all[peer]
        provider.misses, provider.tried = self._records.misses(peer, now), False
        provider.proven = self._records.is_proven(peer, now)

    def gave(self, peers: Collection[PeerId]) -> None:
        for peer in peers:
            self._records.gave(peer, self._all[peer].took)

    def usual(self, peer: PeerId) -> float | None:
        """Seconds of its answers, of this transfer or of those before."""
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

    def failed(self, peer: PeerId, reason: str, now: float) -> None:
        """One failure: a rest, or after too many of them out. What fails while it rests is the same failure."""
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
        """Peers that may be asked for unit ``start`` now: they have it, and are not resting."""
        return [one for one in self._awake(now) if one.available is None or one.available > start]

    def lacking(self, start: int, now: float) -> list[Provider]:
        """Lists peers that could be asked but stated that they do not reach ``start``."""
        return [one for one in self._awake(now) if one.available is not None and one.available <= start]

    def _awake(self, now: float) -> list[Provider]:
        return [one for one in self._all.values() if not one.out and one.ready_at <= now]

    def silent(self, asked: set[PeerId], now: float) -> list[PeerId]:
        """Lists those of ``asked`` that are late; the sum is that of ``wake_times``, to the last bit."""
        return [peer for peer in sorted(asked) if now >= self._all[peer].heard + self._patience]

    def wake_times(self, asked: set[PeerId], now: float) -> list[float]:
        """Lists the times at which one of ``asked`` is late, or a resting peer is ready."""
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
        """Picks the least doubtful peer that is not excluded; one of ``but`` only if there is no other."""
        left = [one for one in self._all.values() if not one.out]
        best = min(left, key=lambda one: (one.peer in but, one.doubt()), default=None)
        return best.peer if best else None

    def reasons(self) -> tuple[tuple[PeerId, str], ...]:
        return tuple((one.peer, one.reason) for one in self._all.values())
