"""Plans the transfer of units ``[start, target)`` in order, from several peers that may be slow, silent or lying.

A chain (units are blocks) and an object (units are bytes) are both an interval of which peers send parts. A verifier
behind the driver takes the parts in order and says whether they are good. The machine decides which peer is asked for
which part, keeps parts that come early within a window, moves requests from stalling peers to others, and finds the
liar. It never looks into a part. One machine per transfer; it ends with ``Completed`` or ``GaveUp``.

Blame: a part may be bad only because an earlier one, of another peer, was. When the verifier rejects parts of several
peers, none is accused: the machine returns to the position that the verifier names and takes everything from one peer
at a time, so that the next rejected part is that peer's alone.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from chain.backoff import Chance
from p2p.machines.providers import DEPTH, LEAST, PATIENCE, SPAN, Provider, TrackRecords, TransferProviders
from p2p.peers.book import BAD_BYTES, GARBAGE, UNRELIABLE
from p2p.ports import PeerId

Interval: TypeAlias = tuple[int, int]
"""``(start, stop)``: units ``start <= n < stop``."""


class Intervals:
    """Keeps the spans that are still to be requested; spans are taken from the low end and may be put back."""

    def __init__(self, start: int, stop: int) -> None:
        self._spans: list[Interval] = [(start, stop)] if start < stop else []

    def __bool__(self) -> bool:
        return bool(self._spans)

    @property
    def first(self) -> int:
        """Returns the lowest unit to be requested. There must be one."""
        return self._spans[0][0]

    def add(self, span: Interval) -> None:
        heapq.heappush(self._spans, span)

    def take(self, units: int) -> Interval:
        """Removes and returns the lowest span, or its first ``units`` units. There must be one."""
        start, stop = heapq.heappop(self._spans)
        if stop - start > units:
            heapq.heappush(self._spans, (start + units, stop))
            stop = start + units
        return start, stop


HEDGE: Final = 2.0
"""Seconds after which the part is requested from one more idle peer, and again after as long."""
MAX_HEDGES: Final = 3
"""Further peers asked, at most, while bytes of the part keep arriving."""
STILL: Final = 0.5
"""Seconds without a byte of the part after which as many further peers are asked as have been asked already."""
USUAL: Final = 4.0
"""Replaces ``STILL`` by so many times the usual answer time of the next best peer, if that is known."""
SOON: Final = 0.1
"""Seconds that this is at least."""
MAX_STILL: Final = 16
"""Peers asked for one part at most. Silent ones cost nothing, and no more than a window of bytes can arrive."""


def hedges(asked: Sequence[tuple[float, float]], usual: float | None) -> tuple[float, int]:
    """Returns the time at which more peers are asked if there is no progress until then, and how many.

    The number is 0 if ``MAX_STILL`` were asked already: at that time they are given up and others asked in their place.
    ``asked``: for each asked peer, the time of the question and the time at which its answer last progressed.
    ``usual``: seconds that the next best peer usually takes; ``None``: not known.
    """
    count = len(asked)
    if not count:
        return math.inf, 0
    if count >= MAX_STILL:
        return max(map(max, asked)) + HEDGE, 0
    wait = STILL if usual is None else min(max(SOON, USUAL * usual), HEDGE)
    still = max(map(max, asked)) + wait
    moving = max(since for since, _ in asked) + HEDGE if count <= MAX_HEDGES else math.inf
    return (moving, 1) if moving < still else (still, min(count, MAX_STILL - count))


WINDOW: Final = 16 << 20
"""Bytes requested or waiting for their turn. With answers of 1 MiB that is 16, enough for 10 Gbit/s at 10 ms."""
AT_ONCE: Final = 4 << 20
"""Bytes that are given to the verifier together."""
MAX_UNVERIFIED: Final = 2
"""Deliveries that the verifier has not answered: the one that it checks, and the next."""
MAX_REWINDS: Final = 8
"""Times the verifier may send us back before we give up; a liar among eight peers is found by then."""

DRIPPED: Final = f"it gave less than {LEAST:,} bytes in {SPAN:g} s"

Payload: TypeAlias = bytes | memoryview | tuple[bytes, ...]


class TransferShape(msgspec.Struct, frozen=True, kw_only=True):
    """How parts are requested: ``most_units`` and ``most_bytes`` in one answer;
    ``unit_bytes`` is the first estimate."""

    most_units: int
    most_bytes: int
    unit_bytes: float = 1.0
    window: int = WINDOW
    patience: float = PATIENCE
    """Seconds for which a peer with open questions may be silent."""


class Arrived(msgspec.Struct, frozen=True, kw_only=True):
    """Event: an answer of ``units`` units from the requested start; the sender has ``available`` units in total."""

    peer: PeerId
    ask: int
    payload: Payload
    units: int
    bytes: int
    available: int


class Denied(msgspec.Struct, frozen=True):
    """Event: a peer refused, or gave no valid answer. ``final``: asking it again later would not help."""

    peer: PeerId
    ask: int
    reason: str
    final: bool = False


class Joined(msgspec.Struct, frozen=True):
    """Event: peers that may have it. All peers known at first come in one event,
    so that they share the first questions."""

    peers: tuple[PeerId, ...]


class Left(msgspec.Struct, frozen=True):
    peer: PeerId
    reason: str = "it cannot be reached"


class Accepted(msgspec.Struct, frozen=True):
    """Event: the verifier accepted the oldest delivery."""


class PartRejected(msgspec.Struct, frozen=True):
    """Event: the verifier rejected a part or, after ``Finish``, the whole; the transfer continues at ``resume_at``."""

    reason: str
    resume_at: int


class Finished(msgspec.Struct, frozen=True):
    """Event: the verifier found the whole good."""


class Tick(msgspec.Struct, frozen=True):
    """Event: time has passed; ``arriving``: bytes of unfinished answers that have arrived, by peer."""

    arriving: Mapping[PeerId, int] = {}


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Effect: ask ``peer`` for units from ``start`` on; its answer or failure is reported with the same ``ask``."""

    peer: PeerId
    ask: int
    start: int
    units: int


class Deliver(msgspec.Struct, frozen=True):
    """Effect: pass the next parts to the verifier, in order, which replies ``Accepted`` or ``PartRejected``.

    Contains all next parts that one peer sent, up to ``AT_ONCE`` bytes: more arrives while the verifier works, and a
    call for each part would double its cost. Up to ``MAX_UNVERIFIED`` deliveries are open, so that the verifier never
    waits for the next; after ``PartRejected`` the open ones are void.
    """

    peer: PeerId
    start: int
    payloads: tuple[Payload, ...]


class Finish(msgspec.Struct, frozen=True):
    """Effect: have the verifier check the whole; it has all parts."""


class Penalise(msgspec.Struct, frozen=True):
    """Effect: penalise this peer, which alone is to blame."""

    peer: PeerId
    reason: str
    weight: float
    judged: bool = False
    """Whether the verifier rejected its parts: they are well formed, but not the wanted ones."""


class WakeAt(msgspec.Struct, frozen=True):
    """Effect: send a ``Tick`` at this time; replaces the one requested before."""

    at: float


class Completed(msgspec.Struct, frozen=True):
    """Effect, the last: all units are here and good."""


class GaveUp(msgspec.Struct, frozen=True):
    """Effect, the last: no peer is left to ask. ``reasons`` has each peer's last failure."""

    reasons: tuple[tuple[PeerId, str], ...]


Input: TypeAlias = Arrived | Denied | Joined | Left | Accepted | PartRejected | Finished | Tick
Effect: TypeAlias = Ask | Deliver | Finish | Penalise | WakeAt | Completed | GaveUp


class _Flight(msgspec.Struct, frozen=True):
    peer: PeerId
    span: Interval
    since: float


class _Part(msgspec.Struct, frozen=True):
    """An answer that waits for its turn."""

    peer: PeerId
    units: int
    bytes: int
    payload: Payload


class PartTransfer:
    """Plans the transfer of one chain or object. ``inherited``: units before ``start`` came from an unknown sender."""

    def __init__(
        self,
        start: int,
        target: int,
        shape: TransferShape,
        rng: Chance,
        records: TrackRecords | None = None,
        *,
        inherited: bool = False,
    ) -> None:
        self._shape = shape
        self._target = target
        self._unit_bytes = shape.unit_bytes
        self._providers = TransferProviders(rng, shape.patience, records)
        self._todo = Intervals(start, target)
        self._cursor = start
        self._flights: dict[int, _Flight] = {}
        self._parts: dict[int, _Part] = {}
        self._held = 0
        self._next_ask = 0
        self._judged: deque[PeerId] = deque()
        """The providers of the deliveries that are being verified, in order."""
        self._finishing = False
        self._contributors: set[PeerId] = set()
        """The providers of parts that were accepted or rejected."""
        self._inherited = inherited
        self._solo: PeerId | None = None
        self._alone: set[PeerId] = set()
        """The providers that were asked alone since the last time all had been."""
        self._rewinds = 0
        self.over = False
        """Whether the machine has ended; it then ignores events."""

    @property
    def _is_judging(self) -> bool:
        return bool(self._judged) or self._finishing

    @property
    def held(self) -> int:
        return self._held

    @property
    def asked(self) -> set[PeerId]:
        return {flight.peer for flight in self._flights.values()}

    def handle(self, event: Input, now: float) -> list[Effect]:
        if self.over:
            return []
        effects: list[Effect] = []
        match event:
            case Joined(peers):
                for peer in peers:
                    self._providers.join(peer, now)
            case Left(peer, reason):
                self._drop_flights_of(peer)
                self._providers.drop(peer, reason)
            case Arrived():
                effects += self._take(event, now)
            case Denied(peer, ask, reason, final):
                self._deny(peer, ask, reason, final, now)
            case Accepted():
                self._contributors.add(self._judged.popleft())
            case PartRejected(reason, resume_at):
                effects += self._reject(reason, resume_at)
                if self.over:
                    return effects
            case Finished():
                self._providers.gave(self._contributors)
                self.over = True
                return [Completed()]
            case Tick(arriving):
                for flight in self._flights.values():
                    self._providers.of(flight.peer).note_progress(now, flight.since, arriving.get(flight.peer, 0))
                effects += self._drop_stalled(now)
        return effects + self._advance(now)

    # Events

    def _take(self, answer: Arrived, now: float) -> list[Effect]:
        flight = self._flights.pop(answer.ask, None)
        if flight is None or flight.peer != answer.peer:
            return []
        start, stop = flight.span
        provider = self._providers.of(answer.peer)
        if answer.units > stop - start or (answer.units == 0 and answer.available > start):
            self._put_back(flight.span)
            self._drop_flights_of(answer.peer)
            reason = f"asked for {stop - start} units from {start} on, it sent {answer.units}"
            self._providers.drop(answer.peer, reason)
            return [Penalise(answer.peer, reason, GARBAGE)]
        provider.note_answer(now, answer.units, answer.bytes, answer.available, now - flight.since)
        if answer.units == 0:
            self._put_back(flight.span)
            self._providers.note_failure(answer.peer, f"it has no more than {answer.available} units", now)
            return []
        if start < self._cursor or start in self._parts:
            return []
        if provider.drips():
            self._drop_flights_of(answer.peer)
            self._providers.drop(answer.peer, DRIPPED)
        self._forget_rivals(flight, now)
        if start + answer.units < stop:
            self._todo.add((start + answer.units, stop))
        self._unit_bytes += (answer.bytes / answer.units - self._unit_bytes) * 0.5
        self._parts[start] = _Part(answer.peer, answer.units, answer.bytes, answer.payload)
        self._held += answer.bytes
        return []

    def _deny(self, peer: PeerId, ask: int, reason: str, final: bool, now: float) -> None:
        flight = self._flights.pop(ask, None)
        if flight is None or flight.peer != peer:
            return
        self._put_back(flight.span)
        if final:
            self._drop_flights_of(peer)
            self._providers.drop(peer, reason)
        else:
            self._providers.note_failure(peer, reason, now)

    def _reject(self, reason: str, resume_at: int) -> list[Effect]:
        self._contributors.update([*self._judged][:1])
        blamed = next(iter(self._contributors)) if len(self._contributors) == 1 and not self._inherited else None
        self._flights.clear()
        self._parts.clear()
        self._held = 0
        self._contributors.clear()
        self._judged.clear()
        self._finishing = self._inherited = False
        self._cursor = resume_at
        self._todo = Intervals(resume_at, self._target)
        self._rewinds += 1
        if self._rewinds > MAX_REWINDS:
            self._providers.drop_all(reason)
            self.over = True
            return [GaveUp(self._providers.reasons())]
        if blamed is None:
            self._ask_another_alone()
            return []
        self._providers.drop(blamed, reason)
        return [Penalise(blamed, reason, BAD_BYTES, judged=True)]

    def _drop_stalled(self, now: float) -> list[Effect]:
        """Penalises peers that have open questions and were silent for too long; their questions go to others."""
        effects: list[Effect] = []
        for peer in self._providers.silent(self.asked, now):
            self._drop_flights_of(peer)
            self._providers.note_failure(peer, "it did not answer in time", now)
            self._providers.note_missed(peer, now)
            effects.append(Penalise(peer, "it did not answer in time", UNRELIABLE))
        return effects

    def _drop_flights_of(self, peer: PeerId) -> None:
        for ask in [ask for ask, flight in self._flights.items() if flight.peer == peer]:
            self._put_back(self._flights.pop(ask).span)

    def _put_back(self, span: Interval) -> None:
        """Marks a span to be requested again, unless it is here or another peer was asked for it."""
        if span[0] >= self._cursor and span[0] not in self._parts and not self._rivals(span):
            self._todo.add(span)

    def _rivals(self, span: Interval) -> list[int]:
        return [ask for ask, flight in self._flights.items() if flight.span[0] == span[0]]

    def _forget_rivals(self, winner: _Flight, now: float) -> None:
        """Drops other requests of the same span; a peer that was asked before the winner gets a miss."""
        for ask in self._rivals(winner.span):
            rival = self._flights.pop(ask)
            if rival.since < winner.since:
                self._providers.note_missed(rival.peer, now)

    def _questions(self, peer: PeerId) -> int:
        return sum(1 for flight in self._flights.values() if flight.peer == peer)

    # Next steps

    def _advance(self, now: float) -> list[Effect]:
        effects = self._judge()
        if self._todo and not self._flights and not self._is_judging:
            # No question is open: peers that lack the next unit count as failed, and are asked again after a rest.
            for provider in self._providers.lacking(self._todo.first, now):
                self._providers.note_failure(provider.peer, f"it has no more than {provider.available} units", now)
        effects += self._ask(now) + self._hedge(now)
        if not self._is_judging and not self._flights and not self._providers.hopeful():
            self.over = True
            return [*effects, GaveUp(self._providers.reasons())]
        return effects + self._wake(now)

    def _judge(self) -> list[Effect]:
        if self._cursor >= self._target:
            if self._is_judging:
                return []
            self._finishing = True
            return [Finish()]
        effects: list[Effect] = []
        while len(self._judged) < MAX_UNVERIFIED and (first := self._parts.get(self._cursor)) is not None:
            effects.append(self._deliver(first))
        return effects

    def _deliver(self, first: _Part) -> Deliver:
        start, size, payloads = self._cursor, 0, list[Payload]()
        while (part := self._parts.get(self._cursor)) is not None and part.peer == first.peer:
            if payloads and size + part.bytes > AT_ONCE:
                break
            del self._parts[self._cursor]
            self._cursor += part.units
            size += part.bytes
            payloads.append(part.payload)
        self._held -= size
        self._judged.append(first.peer)
        return Deliver(first.peer, start, tuple(payloads))

    def _ask(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        promised = self._held + len(self._flights) * self._shape.most_bytes
        while self._todo and (
            promised + self._shape.most_bytes <= self._shape.window or self._todo.first == self._cursor
        ):
            provider = self._pick(self._todo.first, now)
            if provider is None:
                break
            units = max(1, min(self._shape.most_units, int(self._shape.most_bytes / max(1.0, self._unit_bytes))))
            effects.append(self._question(provider, self._todo.take(units), now))
            promised += self._shape.most_bytes
        return effects

    def _pick(self, start: int, now: float) -> Provider | None:
        ready = [one for one in self._providers.ready(start, now) if self._questions(one.peer) < self._depth(one)]
        if self._solo is not None:
            if self._is_of_no_use(self._solo, now):
                self._ask_another_alone()
            ready = [provider for provider in ready if provider.peer == self._solo]
        waits = self._providers.some_proven()
        return min(
            ready, key=lambda one: (waits and not one.is_first, self._questions(one.peer), one.doubt()), default=None
        )

    def _depth(self, provider: Provider) -> int:
        """Returns how many parts are requested at a time: one from a peer without a record if others have one."""
        return DEPTH if provider.proven or not self._providers.some_proven() else 1

    def _is_of_no_use(self, peer: PeerId, now: float) -> bool:
        """Whether another peer may replace the one that is asked alone.

        Only one that contributed nothing is replaced: of two contributors, none could be blamed.
        """
        if not self._providers.is_hopeful(peer):
            return True
        gave_nothing = not (self._contributors or self._judged or self._parts or self._questions(peer))
        return gave_nothing and self._providers.is_resting(peer, now)

    def _ask_another_alone(self) -> None:
        """Chooses the next peer to be asked alone, the least doubtful first: a silent one could cost a minute."""
        self._solo = self._providers.least_doubtful(self._alone)
        if self._solo in self._alone:
            self._alone.clear()
        if self._solo is not None:
            self._alone.add(self._solo)

    def _question(self, provider: Provider, span: Interval, now: float) -> Ask:
        ask = self._next_ask
        self._next_ask += 1
        if not self._questions(provider.peer):
            provider.heard = now
        self._flights[ask] = _Flight(provider.peer, span, now)
        return Ask(peer=provider.peer, ask=ask, start=span[0], units=span[1] - span[0])

    def _hedge(self, now: float) -> list[Effect]:
        """Asks more peers for the part that blocks all others, if it is late."""
        (at, count), late = self._hedges(now), self._late()
        if now < at:
            return []
        if not count:
            self._leave({flight.peer for flight in late}, now)
            return self._ask(now)
        return [self._question(one, late[0].span, now) for one in self._idle(now)[:count]]

    def _leave(self, peers: Collection[PeerId], now: float) -> None:
        """Gives up on those of ``peers`` that never gave anything; they rest and get a miss."""
        for peer in sorted(peers):
            if not self._providers.of(peer).proven:
                self._drop_flights_of(peer)
                self._providers.note_failure(peer, "it let us wait", now)
                self._providers.note_missed(peer, now)

    def _hedges(self, now: float) -> tuple[float, int]:
        """Returns when to ask more peers for the late part, and how many; never if there are none."""
        if not (late := self._late()) or not (idle := self._idle(now)):
            return math.inf, 0
        usual = self._providers.usual(idle[0].peer) if idle[0].proven else None
        return hedges([(flight.since, self._providers.of(flight.peer).moved) for flight in late], usual)

    def _late(self) -> list[_Flight]:
        """Lists the open questions for the part that blocks all others."""
        if self._solo is not None or self._is_judging or self._cursor in self._parts:
            return []
        return [flight for flight in self._flights.values() if flight.span[0] == self._cursor]

    def _idle(self, now: float) -> list[Provider]:
        """Lists further peers that could be asked for that part, best first;
        a proven peer may have other questions open."""
        at_it = {flight.peer for flight in self._late()}
        ready = self._providers.ready(self._cursor, now)
        idle = [one for one in ready if self._questions(one.peer) < (DEPTH if one.proven else 1)]
        others = [one for one in idle if one.peer not in at_it]
        return sorted(others, key=lambda one: (not one.proven, self._questions(one.peer), one.doubt()))

    def _wake(self, now: float) -> list[Effect]:
        times = self._providers.wake_times(self.asked, now)
        if now < (at := self._hedges(now)[0]) < math.inf:
            times.append(at)
        return [WakeAt(min(times))] if times else []
