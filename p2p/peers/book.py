"""Keeps the peer book: which peers are known, their addresses and scores, and when to dial each next.

Plain state, not a service: the driver owns a book, gives it the time and saves its snapshot. The book never dials and
never decides what to fetch. It is bounded: when full, the least useful stranger is forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from chain.backoff import Backoff, Chance
from chain.errors import Invalid
from p2p.ports import PeerId, PeerView

MAX_PEERS: Final = 4096
"""Peers in the book: far above any mesh, and a snapshot of about 1 MiB."""
MAX_ADDRESSES: Final = 8
"""Addresses kept per peer, the newest first."""
MAX_ADDRESS: Final = 256
"""Characters of one multiaddr; real ones have 80."""
REDIAL: Final = Backoff(first=1.0, most=300.0)
"""Pause between two dials, from a second to five minutes: a peer that is down for a day costs 300 dials."""
HALF_LIFE: Final = 600.0
"""Seconds in which a penalty loses half of its weight."""
SHUT_OUT: Final = -100.0
"""Score at which a peer is shut out: ten bad blocks in ten minutes."""
LET_IN: Final = -50.0
"""Score from which a peer that was shut out is let in again: one half-life later."""
BAD_BYTES: Final = 10.0
"""Weight of bytes that miss their hash or break a rule: happens by accident once at most."""
GARBAGE: Final = 20.0
"""Weight of a message that does not belong to the protocol or exceeds a limit."""
FLOOD: Final = 1.0
"""Weight of one message beyond the budget."""
UNRELIABLE: Final = 0.5
"""Weight of a silence or a broken promise, which may be the fault of the network,
or of others who keep the peer busy."""
DOUBTED: Final = -20.0
"""Score below which weights up to ``UNRELIABLE`` do not lower it,
so that no peer is shut out for the actions of others."""


class Score(msgspec.Struct, frozen=True):
    """A peer's behaviour towards this node, fading with time. It is no evidence for others. Spec:
    docs/spec/trust.md#bundles.

    Zero is a stranger. Penalties lower it, fade by half every ten minutes, and at the threshold the peer is shut out;
    by the same fading it is let in again later. ``value`` is as of ``at`` (seconds of one clock, monotonic or not).
    """

    value: float = 0.0
    at: float = 0.0
    shut_out: bool = False

    def as_of(self, now: float) -> Score:
        value = self.value * 0.5 ** (max(0.0, now - self.at) / HALF_LIFE)
        return Score(value, now, value <= SHUT_OUT or (self.shut_out and value < LET_IN))

    def lower(self, weight: float, now: float) -> Score:
        """Returns the score after a penalty; a negative weight counts as none."""
        faded = self.as_of(now)
        value = max(faded.value - max(0.0, weight), 10 * SHUT_OUT)
        if weight <= UNRELIABLE:
            value = max(value, min(faded.value, DOUBTED))
        return Score(value, now, faded.shut_out or value <= SHUT_OUT)


class BookEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One peer. ``last_seen`` is wall time in nanoseconds, ``dial_after`` is in seconds of the book's own clock."""

    peer: PeerId
    addresses: tuple[str, ...] = ()
    score: Score = Score()
    last_seen: int | None = None
    connected: bool = False
    bootstrap: bool = False
    failures: int = 0
    dial_after: float = 0.0


class SavedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry in a snapshot: the parts that outlive the process, without values of its clock."""

    peer: PeerId
    addresses: tuple[str, ...] = ()
    last_seen: int | None = None
    score: float = 0.0


class PeerBook:
    def __init__(self, rng: Chance) -> None:
        self._rng = rng
        self._entries: dict[PeerId, BookEntry] = {}
        self.found = 0
        """Number of peers that got a first address so far; by it the owner of the book sees that there is a new one."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, peer: PeerId) -> BookEntry:
        """Returns a peer's entry, an empty one for an unknown peer."""
        return self._entries.get(peer) or BookEntry(peer=peer)

    def learn(self, peer: PeerId, addresses: Sequence[str], *, bootstrap: bool = False) -> None:
        """Records addresses to try, newest first; too long ones are ignored."""
        entry = self.get(peer)
        fresh = [address for address in addresses if len(address) <= MAX_ADDRESS]
        merged = tuple(dict.fromkeys([*fresh, *entry.addresses]))[:MAX_ADDRESSES]
        self.found += bool(merged and not entry.addresses)
        self._put(msgspec.structs.replace(entry, addresses=merged, bootstrap=entry.bootstrap or bootstrap))

    def note_connected(self, peer: PeerId, wall: int) -> None:
        self._put(msgspec.structs.replace(self.get(peer), connected=True, last_seen=wall, failures=0, dial_after=0.0))

    def note_disconnected(self, peer: PeerId, wall: int) -> None:
        self._put(msgspec.structs.replace(self.get(peer), connected=False, last_seen=wall))

    def dial_failed(self, peer: PeerId, now: float) -> float:
        """Records a failed dial; returns the seconds until the next try."""
        entry = self.get(peer)
        wait = REDIAL.wait(entry.failures + 1, self._rng)
        self._put(msgspec.structs.replace(entry, failures=entry.failures + 1, dial_after=now + wait))
        return wait

    def penalise(self, peer: PeerId, weight: float, now: float) -> bool:
        """Records a penalty; returns whether the peer is shut out now."""
        entry = self.get(peer)
        score = entry.score.lower(weight, now)
        self._put(msgspec.structs.replace(entry, score=score))
        return score.shut_out

    def is_shut_out(self, peer: PeerId, now: float) -> bool:
        return self.get(peer).score.as_of(now).shut_out

    def connected_peers(self) -> list[PeerId]:
        return [entry.peer for entry in self._entries.values() if entry.connected]

    def acquaintances(self, now: float) -> list[BookEntry]:
        """Lists the peers met before that may be dialled now, the latest met first."""
        met = [
            entry
            for entry in self._entries.values()
            if entry.last_seen
            and entry.addresses
            and not entry.connected
            and entry.dial_after <= now
            and not entry.score.as_of(now).shut_out
        ]
        return sorted(met, key=lambda entry: -(entry.last_seen or 0))

    def views(self, now: float) -> list[PeerView]:
        """Lists peers as shown to people: connected first, then the latest seen."""
        ranked = sorted(self._entries.values(), key=lambda entry: (not entry.connected, -(entry.last_seen or 0)))
        return [_view(entry, entry.score.as_of(now)) for entry in ranked]

    def snapshot(self, now: float) -> bytes:
        kept = []
        for entry in self._entries.values():
            score = entry.score.as_of(now).value
            if entry.addresses or score < -1.0:
                saved = SavedEntry(peer=entry.peer, addresses=entry.addresses, last_seen=entry.last_seen, score=score)
                kept.append(saved)
        return msgspec.json.encode(kept)

    def restore(self, snapshot: bytes, now: float) -> None:
        """Adds the peers of a snapshot. Raises Invalid, and then adds nothing."""
        try:
            saved = msgspec.json.decode(snapshot, type=list[SavedEntry])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Invalid(
                f"the saved peer book cannot be read: {error}",
                rule="peer-book",
                hint="delete it; the bootstrap peers of the network are enough to start again",
            ) from error
        for one in saved[:MAX_PEERS]:
            score = Score(0.0, now).lower(-one.score, now)
            self._put(BookEntry(peer=one.peer, last_seen=one.last_seen, score=score))
            self.learn(one.peer, one.addresses)

    def _put(self, entry: BookEntry) -> None:
        if entry.peer not in self._entries and len(self._entries) >= MAX_PEERS:
            self._forget_one()
        self._entries[entry.peer] = entry

    def _forget_one(self) -> None:
        """Forgets the unconnected peer seen longest ago; misbehaving ones are kept longer than others."""
        idle = (entry for entry in self._entries.values() if not entry.connected and not entry.bootstrap)
        victim = min(idle, key=lambda entry: (entry.score.value < -1.0, entry.last_seen or 0), default=None)
        if victim is not None:
            del self._entries[victim.peer]


def _view(entry: BookEntry, score: Score) -> PeerView:
    return PeerView(
        peer=entry.peer,
        addresses=entry.addresses,
        connected=entry.connected,
        score=round(score.value, 3),
        last_seen=entry.last_seen,
        blocked=score.shut_out,
    )
