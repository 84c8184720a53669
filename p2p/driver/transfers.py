"""Performs the effects of a ``PartTransfer`` machine: sends questions to peers, has parts checked, and keeps its timer.

A run is made for one chain or object to fetch, and ends with it. Questions are tasks in the run's own nursery, so
ending the run for any reason ends them. Parts are checked in a worker thread, one after the other, while more arrive.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

import msgspec
import trio

from chain.errors import Fault, Invalid, Remote
from p2p.driver.fetch_jobs import TransferJob
from p2p.driver.peer_penalties import PeerPenalties
from p2p.errors import Misbehaviour, PeerFault
from p2p.machines.transfer import (
    Accepted,
    Ask,
    Completed,
    Deliver,
    Denied,
    Effect,
    Finish,
    Finished,
    GaveUp,
    Input,
    Joined,
    PartRejected,
    PartTransfer,
    Penalise,
    Tick,
    TransferShape,
    WakeAt,
)
from p2p.pace import Pace
from p2p.ports import PeerId

LEAST_PART: Final = 16 << 10
"""Bytes of a part under the lowest rate cap; a question costs about 50."""
PARTS_AHEAD: Final = 4
"""Parts under way when there is a rate cap."""
MAX_NAMED: Final = 5
"""Peers whose reasons are named in a fault; there may be hundreds."""


class TransferRun:
    """Runs one ``PartTransfer`` machine. ``run`` returns when everything is here and good."""

    def __init__(
        self, errand: TransferJob, machine: PartTransfer, standing: PeerPenalties, paces: Sequence[Pace]
    ) -> None:
        self._errand = errand
        self._paces = paces
        self._machine = machine
        self._standing = standing
        self._unasked = deque[Ask]()
        self._wake = self._sleeps_until = math.inf
        self._woken = trio.Event()
        self._court: deque[Deliver | Finish] = deque()
        """Deliveries that wait to be checked."""
        self._said: deque[Accepted] = deque()
        """Verdicts that the machine has not processed yet."""
        self._given: Counter[PeerId] = Counter()
        """Bytes of each peer that passed the check."""
        self._judges = self._is_over = False
        self._end: Completed | GaveUp | None = None
        self._fault: Fault | None = None

    async def run(self, peers: Sequence[PeerId]) -> None:
        """Performs the transfer. Raises Remote if no peer completes it, and other faults of the check (a full disk)."""
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as self._nursery:
            try:
                self._feed(Joined(tuple(peers)))
                while self._end is None and self._fault is None:
                    await self._sleep()
                    self._receive()
                    if trio.current_time() >= self._wake:
                        self._feed(Tick({peer: self._errand.links.arriving(peer) for peer in self._machine.asked}))
            finally:
                self._is_over = True
            self._nursery.cancel_scope.cancel()
        if self._fault is not None:
            raise self._fault
        if isinstance(self._end, GaveUp):
            raise _nobody(self._errand.what, self._end)

    async def _sleep(self) -> None:
        self._woken, self._sleeps_until = trio.Event(), self._wake
        with trio.move_on_at(self._wake):
            await self._woken.wait()

    def _feed(self, event: Input) -> None:
        """Gives an event to the machine, from any task:
        a channel would cost two turns of the event loop for each answer."""
        self._wake = math.inf
        for effect in self._machine.handle(event, trio.current_time()):
            self._perform(effect)
        if self._end is not None or self._wake < self._sleeps_until:
            self._wake_up()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Ask():
                self._unasked.append(effect)
                self._nursery.start_soon(self._ask_next)
            case Deliver() | Finish():
                self._court.append(effect)
                if not self._judges:
                    self._judges = True
                    self._nursery.start_soon(self._judge_all)
            case Penalise(peer, reason, judged=True):
                self._errand.accuse(peer, reason)
            case Penalise(peer, reason, weight):
                self._standing.penalise(peer, f"{self._errand.what}: {reason}", weight)
            case WakeAt(at):
                self._wake = at
            case Completed() | GaveUp():
                self._end = effect

    async def _ask_next(self) -> None:
        """Sends the next question in order, whichever task trio runs first, because parts are checked in order."""
        ask = self._unasked.popleft()
        try:
            event: Input = await self._errand.ask(ask)
        except PeerFault as fault:
            if isinstance(fault, Misbehaviour):
                self._standing.blame(fault)
            event = Denied(ask.peer, ask.ask, fault.message, final=isinstance(fault, Misbehaviour))
        self._feed(event)

    async def _judge_all(self) -> None:
        """Checks deliveries as long as there are any."""
        while self._court:
            await self._keep_pace(self._court[0])
            try:
                event = await trio.to_thread.run_sync(self._judge_some)
            except Fault as fault:
                self._fault = fault
                self._wake_up()
                return
            self._receive()
            if isinstance(event, Finished):
                self._standing.gave(self._given)
            if isinstance(event, PartRejected):
                # Parts of several peers were checked together: the false one is found by asking again
                # (test_the_liar_is_found_and_nobody_else_accused).
                self._court.clear()
                self._given.clear()
            if event is not None:
                self._feed(event)
        self._judges = False

    def _judge_some(self) -> Finished | PartRejected | None:
        """Checks deliveries in a worker thread, until none is left or a rate cap applies.
        Raises Fault if no peer is to blame."""
        is_first = True
        while self._court and not self._is_over and (is_first or not self._is_paced):
            effect, is_first = self._court.popleft(), False
            try:
                if isinstance(effect, Finish):
                    self._errand.finish()
                    return Finished()
                self._errand.judge(effect.peer, effect.start, effect.payloads)
                self._given[effect.peer] += _size(effect)
            except Invalid as error:
                return PartRejected(error.message, self._errand.resume_at())
            self._said.append(Accepted())
            self._token.run_sync_soon(self._wake_up, idempotent=True)
        return None

    def _wake_up(self) -> None:
        self._woken.set()

    def _receive(self) -> None:
        while self._said:
            self._feed(self._said.popleft())

    @property
    def _is_paced(self) -> bool:
        return any(pace.rate for pace in self._paces)

    async def _keep_pace(self, effect: Deliver | Finish) -> None:
        """Delays a part that has arrived, to keep to the rate caps;
        further questions wait too, so no peer seems slow for it."""
        if isinstance(effect, Finish) or not self._is_paced:
            return
        size, now = _size(effect), trio.current_time()
        due = max(pace.take(size, now) for pace in self._paces)
        if due > now:
            await trio.sleep_until(due)


def _size(part: Deliver) -> int:
    """Returns the bytes of a delivery."""
    return sum(sum(map(len, payload)) if isinstance(payload, tuple) else len(payload) for payload in part.payloads)


def fit_to_rate(shape: TransferShape, rate: int) -> TransferShape:
    """Adapts a shape to a rate cap: parts of about a second's worth, and few of them under way."""
    if not rate:
        return shape
    part = min(shape.most_bytes, max(LEAST_PART, rate))
    units = part if shape.most_units == shape.most_bytes else shape.most_units
    window = min(shape.window, PARTS_AHEAD * part)
    return msgspec.structs.replace(shape, most_units=units, most_bytes=part, window=window)


def _nobody(what: str, end: GaveUp) -> Remote:
    if not end.reasons:
        return Remote(f"{what}: no peer to ask", rule="no-peer", hint="connect to one that has it")
    told = "; ".join(f"{peer}: {reason}" for peer, reason in end.reasons[:MAX_NAMED])
    more = f"; and {len(end.reasons) - MAX_NAMED} more" if len(end.reasons) > MAX_NAMED else ""
    hint = "other peers may have it: odfctl peer list, or try again later"
    return PeerFault(end.reasons[0][0], f"{what}: no peer could give it: {told}{more}", rule="no-peer", hint=hint)
