"""Performs what a ``Transfer`` machine wants: questions to peers, parts to a judge, one timer.

A run is made for one wanted chain or object and ends with it. Questions are tasks in the run's own nursery, so ending
the run for any reason ends them; the judge works in a worker thread, one part at a time, while more parts arrive.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec
import trio

from chain.errors import Fault, Invalid, Remote
from p2p.driver.errands import Errand
from p2p.driver.standing import Standing
from p2p.errors import PeerFault, Violation
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
    Payload,
    Penalise,
    Rejected,
    Shape,
    Tick,
    Transfer,
    WakeAt,
)
from p2p.pace import Pace
from p2p.ports import PeerId

LEAST_PART: Final = 16 << 10
"""Bytes of a part under the lowest cap: a question costs some 50."""
PARTS_AHEAD: Final = 4
"""Parts under way under a cap."""
MAX_NAMED: Final = 5
"""Peers whose reasons are told in a fault; there may be hundreds."""


class TransferRun:
    """One machine at work. ``run`` returns when all is here and good."""

    def __init__(self, errand: Errand, machine: Transfer, standing: Standing, paces: Sequence[Pace]) -> None:
        self._errand = errand
        self._paces = paces
        self._machine = machine
        self._standing = standing
        self._unasked = deque[Ask]()
        self._wake = self._sleeps_until = math.inf
        self._woken = trio.Event()
        self._judged: Deliver | Finish | None = None
        """What is before the judge, or will be next."""
        self._judges = False
        self._end: Completed | GaveUp | None = None
        self._fault: Fault | None = None

    async def run(self, peers: Sequence[PeerId]) -> None:
        """Raises Remote when nobody could give it, and what the judge raises beside Invalid (a full disk)."""
        async with trio.open_nursery() as self._nursery:
            self._feed(Joined(tuple(peers)))
            while self._end is None and self._fault is None:
                await self._sleep()
                if trio.current_time() >= self._wake:
                    self._feed(Tick())
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
        """From whichever task has it: a channel would cost two turns of the loop for each answer."""
        self._wake = math.inf
        for effect in self._machine.handle(event, trio.current_time()):
            self._perform(effect)
        if self._end is not None or self._wake < self._sleeps_until:
            self._woken.set()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Ask():
                self._unasked.append(effect)
                self._nursery.start_soon(self._ask_next)
            case Deliver() | Finish():
                self._judged = effect
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
        """What comes first is asked first, whichever task trio runs first: the judge takes parts in order."""
        ask = self._unasked.popleft()
        try:
            event: Input = await self._errand.ask(ask)
        except PeerFault as fault:
            if isinstance(fault, Violation):
                self._standing.blame(fault)
            event = Denied(ask.peer, ask.ask, fault.message, final=isinstance(fault, Violation))
        self._feed(event)

    async def _judge_all(self) -> None:
        """While there is more at once: what the judge waits for is what all wait for."""
        while self._judged is not None:
            effect, self._judged = self._judged, None
            try:
                event = await self._judge(effect)
            except Fault as fault:
                self._fault = fault
                self._woken.set()
                return
            self._feed(event)
        self._judges = False

    async def _judge(self, effect: Deliver | Finish) -> Input:
        """Raises Fault for what is nobody's fault but this node's."""
        try:
            if isinstance(effect, Finish):
                await trio.to_thread.run_sync(self._errand.finish)
                return Finished()
            await self._keep_pace(effect.payloads)
            await trio.to_thread.run_sync(self._errand.judge, effect.peer, effect.start, effect.payloads)
            return Accepted()
        except Invalid as error:
            return Rejected(error.message, await trio.to_thread.run_sync(self._errand.resume_at))

    async def _keep_pace(self, payloads: Sequence[Payload]) -> None:
        """A part that is here waits, and with it, by the window, the questions for more: no peer seems slow for it."""
        size = sum(sum(map(len, each)) if isinstance(each, tuple) else len(each) for each in payloads)
        now = trio.current_time()
        due = max(pace.take(size, now) for pace in self._paces)
        if due > now:
            await trio.sleep_until(due)


def paced(shape: Shape, rate: int) -> Shape:
    """Asks for about a second's worth at once, and keeps a few of them under way, where there is a cap."""
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
    hint = "others may have it: see the peers, or try again later"
    return PeerFault(end.reasons[0][0], f"{what}: no peer could give it: {told}{more}", rule="no-peer", hint=hint)
