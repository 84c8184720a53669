"""Performs what a ``Transfer`` machine wants: questions to peers, parts to a judge, one timer.

A run is made for one wanted chain or object and ends with it. Questions are tasks in the run's own nursery, so ending
the run for any reason ends them; the judge works in a worker thread, one part at a time, while more parts arrive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

import msgspec
import trio

from chain.errors import Fault, Invalid, Remote
from chain.ids import DatasetId
from chain.multihash import Multihash
from p2p.driver.histories import Histories
from p2p.driver.links import Links
from p2p.driver.standing import Standing
from p2p.errors import PeerFault, Violation
from p2p.machines.transfer import (
    Accepted,
    Arrived,
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
from p2p.peers.pace import Pace
from p2p.peers.score import BAD_BYTES
from p2p.ports import ChainSink, ObjectSink, PeerId
from p2p.wire import chains, objects
from p2p.wire.chains import BlockRange, Blocks, ChainReply
from p2p.wire.limits import MAX_OBJECT_READ, MAX_RANGE_BLOCKS, MAX_RANGE_BYTES
from p2p.wire.objects import ObjectBytes, ObjectRange, ObjectReply
from p2p.wire.refusal import Reason, Refusal

Question = TypeVar("Question", BlockRange, ObjectRange)
Answer = TypeVar("Answer", Blocks, ObjectBytes)
CHAIN_SHAPE: Final = Shape(most_units=MAX_RANGE_BLOCKS, most_bytes=MAX_RANGE_BYTES, unit_bytes=600.0)
OBJECT_SHAPE: Final = Shape(most_units=MAX_OBJECT_READ, most_bytes=MAX_OBJECT_READ)
LEAST_PART: Final = 16 << 10
"""Bytes of a part under the lowest cap: a question costs some 50."""
PARTS_AHEAD: Final = 4
"""Parts under way under a cap."""
MAX_EVENTS: Final = 64
"""Events that wait for the machine; it has at most 17 questions and one judge, so that this is never full."""
MAX_NAMED: Final = 5
"""Peers whose reasons are told in a fault; there may be hundreds."""


class Errand(Protocol):
    """What is wanted: how to ask one peer for a part, and who judges parts."""

    @property
    def what(self) -> str:
        """For messages."""

    async def ask(self, ask: Ask) -> Arrived | Denied:
        """Raises PeerFault."""

    def judge(self, peer: PeerId, start: int, payload: Payload) -> None:
        """In a worker thread. Raises Invalid."""

    def finish(self) -> None:
        """In a worker thread. Raises Invalid."""

    def resume_at(self) -> int:
        """The next unit wanted, after Invalid."""

    def accuse(self, peer: PeerId, reason: str) -> None:
        """A judge found that what this peer alone gave is not what is wanted."""


class ChainErrand:
    """A chain into a ``ChainSink``."""

    def __init__(
        self,
        links: Links[ChainReply],
        nursery: trio.Nursery,
        dataset: DatasetId,
        sink: ChainSink,
        histories: Histories,
    ) -> None:
        self._links = links
        self._histories = histories
        self._nursery = nursery
        self._dataset = dataset
        self._sink = sink

    @property
    def what(self) -> str:
        return f"chain {self._dataset.short}"

    async def ask(self, ask: Ask) -> Arrived | Denied:
        wanted = BlockRange(request=0, dataset=self._dataset, start=ask.start, max_blocks=ask.units)
        answer = await ask_range(self._links, self._nursery, ask.peer, wanted)
        if isinstance(answer, Refusal):
            return _denied(ask, answer)
        return Arrived(
            peer=ask.peer,
            ask=ask.ask,
            payload=answer.blocks,
            units=len(answer.blocks),
            bytes=sum(map(len, answer.blocks)),
            available=answer.size,
        )

    def judge(self, peer: PeerId, start: int, payload: Payload) -> None:
        assert isinstance(payload, tuple)
        self._sink.append(peer, start, payload)

    def finish(self) -> None:
        self._sink.finish()

    def resume_at(self) -> int:
        return self._sink.size

    def accuse(self, peer: PeerId, reason: str) -> None:
        """The question whether it holds the chain at all may outlast the transfer."""
        self._nursery.start_soon(self._histories.accuse, peer, self._dataset, self._sink.tip, f"{self.what}: {reason}")


class ObjectErrand:
    """An object into an ``ObjectSink``."""

    def __init__(
        self,
        links: Links[ObjectReply],
        nursery: trio.Nursery,
        name: Multihash,
        size: int,
        sink: ObjectSink,
        standing: Standing,
    ) -> None:
        self._links = links
        self._standing = standing
        self._nursery = nursery
        self._name = name
        self._sink = sink
        self._size = size

    @property
    def what(self) -> str:
        return f"object {self._name.short}"

    async def ask(self, ask: Ask) -> Arrived | Denied:
        wanted = ObjectRange(request=0, name=self._name, offset=ask.start, length=ask.units)
        answer = await ask_read(self._links, self._nursery, ask.peer, wanted)
        if isinstance(answer, Refusal):
            return _denied(ask, answer)
        if answer.size != self._size:
            text = f"has {self._name.short} with {answer.size} bytes, and not {self._size}"
            raise Violation(ask.peer, text, rule="object-size")
        count = len(answer.data)
        return Arrived(peer=ask.peer, ask=ask.ask, payload=answer.data, units=count, bytes=count, available=answer.size)

    def judge(self, peer: PeerId, start: int, payload: Payload) -> None:
        assert isinstance(payload, bytes)
        if start != self._sink.received:
            raise Invalid(
                f"{self.what}: byte {start}, of {peer}, came where {self._sink.received} is next", rule="object-order"
            )
        self._sink.write(payload)

    def finish(self) -> None:
        self._sink.finish()

    def resume_at(self) -> int:
        return self._sink.received

    def accuse(self, peer: PeerId, reason: str) -> None:
        self._standing.penalise(peer, f"{self.what}: {reason}", BAD_BYTES)


async def ask_range(links: Links[ChainReply], nursery: trio.Nursery, peer: PeerId, ask: BlockRange) -> Blocks | Refusal:
    """One question to one peer. Raises PeerFault; an answer that does not fit the question is a Violation."""
    return await _ask(links, nursery, peer, ask, chains.encode_range, chains.check_answer)


async def ask_read(
    links: Links[ObjectReply], nursery: trio.Nursery, peer: PeerId, ask: ObjectRange
) -> ObjectBytes | Refusal:
    """As ``ask_range``, for bytes of an object."""
    return await _ask(links, nursery, peer, ask, objects.encode_read, objects.check_answer)


async def _ask(
    links: Links[Answer | Refusal],
    nursery: trio.Nursery,
    peer: PeerId,
    ask: Question,
    encode: Callable[[Question], bytes],
    check: Callable[[Question, Answer], None],
) -> Answer | Refusal:
    exchange = await links.to(peer, nursery)
    answer = await exchange.ask(lambda number: encode(msgspec.structs.replace(ask, request=number)))
    if isinstance(answer, Refusal):
        return answer
    try:
        check(ask, answer)
    except Invalid as error:
        raise Violation(peer, error.message, rule=error.rule) from error
    return answer


def _denied(ask: Ask, refusal: Refusal) -> Denied:
    return Denied(ask.peer, ask.ask, describe(refusal), final=refusal.reason is Reason.NOT_SERVED)


def describe(refusal: Refusal) -> str:
    """For people."""
    said = {
        Reason.UNKNOWN: "does not have it",
        Reason.NOT_SERVED: "does not serve it",
        Reason.BUSY: "is too busy",
        Reason.MALFORMED: "did not understand the question",
        Reason.BROKEN: "cannot read it",
    }[refusal.reason]
    return f"{said} ({refusal.text})" if refusal.text else said


class TransferRun:
    """One machine at work. ``run`` returns when all is here and good."""

    def __init__(self, errand: Errand, machine: Transfer, standing: Standing, pace: Pace) -> None:
        self._errand = errand
        self._pace = pace
        self._machine = machine
        self._standing = standing
        self._events, self._inbox = trio.open_memory_channel[Input](MAX_EVENTS)
        self._wake = math.inf
        self._end: Completed | GaveUp | None = None
        self._fault: Fault | None = None

    async def run(self, peers: Sequence[PeerId]) -> None:
        """Raises Remote when nobody could give it, and what the judge raises beside Invalid (a full disk)."""
        async with trio.open_nursery() as nursery:
            self._feed(Joined(tuple(peers)), nursery)
            while self._end is None and self._fault is None:
                event: Input = Tick()
                with trio.move_on_at(self._wake):
                    event = await self._inbox.receive()
                self._feed(event, nursery)
            nursery.cancel_scope.cancel()
        if self._fault is not None:
            raise self._fault
        if isinstance(self._end, GaveUp):
            raise _nobody(self._errand.what, self._end)

    def _feed(self, event: Input, nursery: trio.Nursery) -> None:
        self._wake = math.inf
        for effect in self._machine.handle(event, trio.current_time()):
            self._perform(effect, nursery)

    def _perform(self, effect: Effect, nursery: trio.Nursery) -> None:
        match effect:
            case Ask():
                nursery.start_soon(self._ask, effect)
            case Deliver() | Finish():
                nursery.start_soon(self._judge, effect)
            case Penalise(peer, reason, judged=True):
                self._errand.accuse(peer, reason)
            case Penalise(peer, reason, weight):
                self._standing.penalise(peer, f"{self._errand.what}: {reason}", weight)
            case WakeAt(at):
                self._wake = at
            case Completed() | GaveUp():
                self._end = effect

    async def _ask(self, ask: Ask) -> None:
        try:
            event: Input = await self._errand.ask(ask)
        except PeerFault as fault:
            if isinstance(fault, Violation):
                self._standing.blame(fault)
            event = Denied(ask.peer, ask.ask, fault.message, final=isinstance(fault, Violation))
        await self._events.send(event)

    async def _keep_pace(self, payload: Payload) -> None:
        """A part that is here waits, and with it, by the window, the questions for more: no peer seems slow for it."""
        size = len(payload) if isinstance(payload, bytes) else sum(map(len, payload))
        await trio.sleep_until(self._pace.take(size, trio.current_time()))

    async def _judge(self, effect: Deliver | Finish) -> None:
        event: Input
        try:
            if isinstance(effect, Finish):
                await trio.to_thread.run_sync(self._errand.finish)
                event = Finished()
            else:
                await self._keep_pace(effect.payload)
                await trio.to_thread.run_sync(self._errand.judge, effect.peer, effect.start, effect.payload)
                event = Accepted()
        except Invalid as error:
            event = Rejected(error.message, await trio.to_thread.run_sync(self._errand.resume_at))
        except Fault as fault:
            self._fault = fault
            event = Tick()
        await self._events.send(event)


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
