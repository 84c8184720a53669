"""Remembers which statements and other identifiers this node declined to fetch, why, and until when. Sans-IO.

A declined identifier is not requested again before its pause ends, and the pause doubles with each refusal. So a peer
that keeps offering it costs an occasional question, not its bytes. Bounded: the entry declined longest ago is forgotten
first. ``UselessBytes`` limits, per peer, the bytes of content that is always new and never useful.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, NamedTuple, TypeVar

from cachetools import FIFOCache

from chain.backoff import Backoff
from p2p.budget.buckets import Rate

K = TypeVar("K", bound=Hashable)
MAX_PEERS: Final = 4096
SEEN: Final = 65_536
"""Ids remembered (docs/spec/trust.md#gossip): at 50 a second from a peer, twenty minutes; about 10 MiB."""


class _Entry(NamedTuple):
    until: float
    times: int
    why: str


class Declined(Generic[K]):
    """Remembers declined identifiers; ``pauses`` defines how long each is not requested."""

    def __init__(self, pauses: Backoff, capacity: int) -> None:
        self._pauses = pauses
        self._entries: FIFOCache[K, _Entry] = FIFOCache(capacity)

    def __len__(self) -> int:
        return len(self._entries)

    def note(self, name: K, now: float, why: str = "") -> float:
        """Notes that ``name`` was declined once more; returns the time until which it is not requested."""
        before = self._entries.pop(name, None)
        times = 1 if before is None else before.times + 1
        until = now + self._pauses.whole(times)
        self._entries[name] = _Entry(until, times, why)
        return until

    def why(self, name: K, now: float) -> str | None:
        """Returns why ``name`` is not requested at present; ``None`` if it may be fetched."""
        entry = self._entries.get(name)
        return entry.why if entry is not None and now < entry.until else None

    def rests(self, name: K, now: float) -> bool:
        return self.why(name, now) is not None

    def forget(self, name: K) -> None:
        self._entries.pop(name, None)


class UselessBytes(Generic[K]):
    """Limits the useless bytes of each sender to ``rate``; useful bytes are credited back."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._levels: FIFOCache[K, tuple[float, float]] = FIFOCache(MAX_PEERS)

    def room_for(self, sender: K, now: float) -> float:
        """Returns how many bytes the sender may still send; may be below zero by one answer."""
        level, at = self._levels.get(sender, (self._rate.burst, now))
        return min(self._rate.burst, level + max(0.0, now - at) * self._rate.per_second)

    def cost(self, sender: K, size: float, now: float) -> None:
        """Charges ``size`` bytes that came; a negative size credits back bytes that were useful."""
        self._levels[sender] = (min(self._rate.burst, self.room_for(sender, now) - size), now)


class Seen:
    """Remembers ids seen lately, at most ``capacity``; the least recently seen is forgotten first."""

    def __init__(self, capacity: int = SEEN) -> None:
        self._ids: FIFOCache[bytes, None] = FIFOCache(capacity)

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, name: bytes) -> bool:
        """Notes ``name`` as the most recently seen; returns whether it is new."""
        new = name not in self._ids
        self._ids[name] = None
        return new

    def __contains__(self, name: bytes) -> bool:
        return name in self._ids
