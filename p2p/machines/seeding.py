"""Decides which objects a publisher offers to whom, so that each leaves it about once while others pass it on.

Each of those who fetch a dataset tells which of its blocks it has. A block that nobody has is offered to one of them at
a time; one that somebody has is left to that one, and offered again only if no further copy appears for a while: then
who has it may not give it. The number of blocks on offer follows the line: it grows while they are taken soon. Nothing
is refused here: an offer is advice, which an honest fetcher follows because all have the whole sooner then.

Sans-IO: one machine for each dataset, ``now`` comes in. Bits are blocks by their number, as in ``PartsAsk``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from p2p.ports import PeerId

WINDOW: Final = 8.0
"""Blocks on offer at once, of all askers, to begin with."""
WINDOWS: Final = (2.0, 65_536.0)
"""The least and the most blocks on offer at once."""
FAST: Final = 3.0
"""Seconds from offer to copy below which the window widens."""
SLOW: Final = 10.0
"""Seconds from offer to copy above which the window narrows."""
GROWTH: Final = 1.5
SHRINKAGE: Final = 0.7
STALL: Final = 20.0
"""Seconds without a byte given to an asker, or without a question of it, after which its offer goes to others."""
REST: Final = 60.0
"""Seconds until an asker that let an offer lapse has another, doubled each time."""
SPREAD: Final = 20.0
"""Seconds within which a copy leads to another; or twice as long as it took to give a block here, if that is longer."""
LONGEST: Final = 3600.0
"""Seconds after which an offer lapses though bytes are given."""
MAX_ASKERS: Final = 256
MAX_RESTS: Final = 6


@dataclass(slots=True)
class _Asker:
    have: int = 0
    offered: int = 0
    count: int = 0
    """Blocks in the offer when it was made."""
    since: float = 0.0
    """When the offer was made."""
    given: float = 0.0
    """When it was last given something."""
    at: float = 0.0
    """When it last asked."""
    rests_until: float = 0.0
    lapses: int = 0
    told: int = 0
    """Blocks that it was offered."""


class Seeding:
    """The offers of one dataset at its publisher."""

    def __init__(self) -> None:
        self._askers: dict[PeerId, _Asker] = {}
        self._window = WINDOW
        self._usual = 0.0
        """Seconds from an offer to its being shown."""
        self._shown = 0
        """Blocks that some asker showed."""
        self._recent = self._before = 0
        """Blocks that a second asker showed, in this span and in the one before."""
        self._turned = 0.0
        self.given = 0
        """Bytes given to askers."""
        self.offered = 0
        """Blocks offered to askers, each to each asker once."""

    def gave(self, peer: PeerId, amount: int, now: float) -> None:
        """Notes that bytes were given to a peer; others than askers do not matter."""
        if (asker := self._askers.get(peer)) is not None:
            asker.given = now
            self.given += amount

    def offer(self, peer: PeerId, have: int, wanted: int, now: float) -> int:
        """Returns what ``peer`` may take here, of the ``wanted`` blocks that it asks about and lacks."""
        self._turn(now)
        asker = self._askers.get(peer) or self._admit(peer, now)
        self._note(asker, have, now)
        asker.at = now
        for other in self._askers.values():
            self._lapse(other, now)
        offers = self._offers(asker, wanted & ~have, now)
        self.offered += (offers & ~asker.told).bit_count()
        asker.told |= offers
        return offers

    def _offers(self, asker: _Asker, lacking: int, now: float) -> int:
        active = [each for each in self._askers.values() if now - each.at < STALL]
        if len(active) == 1:
            asker.offered, asker.count, asker.since = _lowest(lacking, int(self._window)), int(self._window), now
            return lacking
        if not asker.offered and now >= asker.rests_until:
            self._choose(asker, lacking, len(active), now)
        return asker.offered & lacking

    def _admit(self, peer: PeerId, now: float) -> _Asker:
        if len(self._askers) >= MAX_ASKERS:
            oldest = min(self._askers, key=lambda each: self._askers[each].at)
            del self._askers[oldest]
        asker = self._askers[peer] = _Asker(at=now)
        return asker

    def _turn(self, now: float) -> None:
        """Begins a new span: what grew in neither the last nor this one is offered again."""
        if now - self._turned >= max(SPREAD, 2 * self._usual):
            self._before, self._recent, self._turned = self._recent, 0, now

    def _note(self, asker: _Asker, have: int, now: float) -> None:
        new = have & ~asker.have
        asker.have |= have
        self._shown |= new
        self._recent |= new
        if not asker.offered:
            return
        asker.offered &= ~have
        if not asker.offered:
            took = now - asker.since
            self._usual = took if not self._usual else self._usual + (took - self._usual) / 4
            asker.lapses = 0
            if took <= FAST:
                self._window = min(WINDOWS[1], self._window + max(1.0, (GROWTH - 1) * asker.count))
            elif took > SLOW:
                self._window = max(WINDOWS[0], self._window * SHRINKAGE)

    def _lapse(self, asker: _Asker, now: float) -> None:
        heard = max(asker.since, asker.given)
        if asker.offered and (now - min(asker.at, heard) > STALL or now - asker.since > LONGEST):
            asker.offered = 0
            asker.rests_until = now + REST * 2 ** min(asker.lapses, MAX_RESTS)
            asker.lapses += 1

    def _choose(self, asker: _Asker, lacking: int, active: int, now: float) -> None:
        outstanding = 0
        for other in self._askers.values():
            outstanding |= other.offered
        room = int(self._window) - outstanding.bit_count()
        count = min(room, max(1, int(self._window) // active))
        if count <= 0:
            return
        free = lacking & ~outstanding
        fresh = _lowest(free & ~self._shown, count)
        stuck = free & self._shown & ~self._recent & ~self._before
        asker.offered = fresh | _lowest(stuck, count - fresh.bit_count())
        asker.count, asker.since = asker.offered.bit_count(), now


def _lowest(bits: int, count: int) -> int:
    """Returns the lowest ``count`` of the bits."""
    if count <= 0:
        return 0
    if bits.bit_count() <= count:
        return bits
    low, high = 0, bits.bit_length()
    while low < high:
        middle = (low + high) // 2
        if (bits & ((1 << middle) - 1)).bit_count() < count:
            low = middle + 1
        else:
            high = middle
    return bits & ((1 << low) - 1)
