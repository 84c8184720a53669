"""Defines the kinds of things fetched from peers (a chain, an object, small objects): how to request and check parts.

A ``TransferJob`` is made for each thing to fetch, a ``TransferRun`` performs it; units are blocks, bytes or objects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

import msgspec
import trio

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.multihash import Multihash
from p2p.driver.exchange import Exchanges, Reply
from p2p.driver.peer_penalties import Histories, PeerPenalties
from p2p.errors import Misbehaviour
from p2p.machines.transfer import Arrived, Ask, Denied, Payload, TransferShape
from p2p.peers.book import BAD_BYTES
from p2p.ports import ChainSink, ObjectSink, PackSink, PeerId
from p2p.wire import chains, objects
from p2p.wire.chains import BlockRange, Blocks, ChainReply
from p2p.wire.limits import MAX_OBJECT_READ, MAX_PACK, MAX_PACK_BYTES, MAX_RANGE_BLOCKS, MAX_RANGE_BYTES
from p2p.wire.objects import ObjectBytes, ObjectPack, ObjectRange, ObjectReply, ObjectsAsk
from p2p.wire.refusal import PeerRefusal, RefusalReason

Question = TypeVar("Question", BlockRange, ObjectRange, ObjectsAsk)
Answer = TypeVar("Answer", Blocks, ObjectBytes, ObjectPack)
CHAIN_SHAPE: Final = TransferShape(most_units=MAX_RANGE_BLOCKS, most_bytes=MAX_RANGE_BYTES, unit_bytes=600.0)
OBJECT_SHAPE: Final = TransferShape(most_units=MAX_OBJECT_READ, most_bytes=MAX_OBJECT_READ)
PACK_SHAPE: Final = TransferShape(most_units=MAX_PACK, most_bytes=MAX_PACK_BYTES, unit_bytes=2048.0)


class Links(Protocol):
    def arriving(self, peer: PeerId) -> int:
        """Returns how many bytes of an incomplete answer of ``peer`` have arrived."""


class TransferJob(Protocol):
    """A thing to fetch: how to ask one peer for a part of it, and how parts are checked."""

    @property
    def what(self) -> str:
        """Returns the name of the thing in messages."""

    @property
    def links(self) -> Links:
        """Returns the streams on which answers arrive."""

    async def ask(self, ask: Ask) -> Arrived | Denied:
        """Asks a peer for a part. Raises PeerFault."""

    def judge(self, peer: PeerId, start: int, payloads: Sequence[Payload]) -> None:
        """Checks parts, in a worker thread. Raises Invalid."""

    def finish(self) -> None:
        """Checks the whole, in a worker thread. Raises Invalid."""

    def resume_at(self) -> int:
        """Returns the next unit wanted, after Invalid was raised."""

    def accuse(self, peer: PeerId, reason: str) -> None:
        """Reports that data of this peer alone failed the check."""


class ChainFetch:
    def __init__(
        self,
        links: Exchanges[ChainReply],
        nursery: trio.Nursery,
        dataset: DatasetId,
        sink: ChainSink,
        histories: Histories,
    ) -> None:
        self.links = links
        self._histories = histories
        self._nursery = nursery
        self._dataset = dataset
        self._sink = sink

    @property
    def what(self) -> str:
        return f"chain {self._dataset.short}"

    async def ask(self, ask: Ask) -> Arrived | Denied:
        wanted = BlockRange(request=0, dataset=self._dataset, start=ask.start, max_blocks=ask.units)
        answer = await ask_range(self.links, self._nursery, ask.peer, wanted)
        if isinstance(answer, PeerRefusal):
            return _deny(ask, answer)
        return Arrived(
            peer=ask.peer,
            ask=ask.ask,
            payload=answer.blocks,
            units=len(answer.blocks),
            bytes=sum(map(len, answer.blocks)),
            available=answer.size,
        )

    def judge(self, peer: PeerId, start: int, payloads: Sequence[Payload]) -> None:
        for payload in payloads:
            assert isinstance(payload, tuple)
            self._sink.append(peer, start, payload)
            start += len(payload)

    def finish(self) -> None:
        self._sink.finish()

    def resume_at(self) -> int:
        return self._sink.size

    def accuse(self, peer: PeerId, reason: str) -> None:
        """Starts a task that asks the peer whether it holds the chain at all,
        and penalises it; may outlast the transfer."""
        self._nursery.start_soon(self._histories.accuse, peer, self._dataset, self._sink.tip, f"{self.what}: {reason}")


class ObjectFetch:
    def __init__(
        self,
        links: Exchanges[ObjectReply],
        nursery: trio.Nursery,
        name: Multihash,
        size: int,
        sink: ObjectSink,
        standing: PeerPenalties,
    ) -> None:
        self.links = links
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
        answer = await ask_read(self.links, self._nursery, ask.peer, wanted)
        if isinstance(answer, PeerRefusal):
            return _deny(ask, answer)
        if answer.size != self._size:
            text = f"has {self._name.short} with {answer.size} bytes, and not {self._size}"
            raise Misbehaviour(ask.peer, text, rule="object-size")
        count = len(answer.data)
        return Arrived(peer=ask.peer, ask=ask.ask, payload=answer.data, units=count, bytes=count, available=answer.size)

    def judge(self, peer: PeerId, start: int, payloads: Sequence[Payload]) -> None:
        if start != self._sink.received:
            raise Invalid(
                f"{self.what}: byte {start}, of {peer}, came where {self._sink.received} is next", rule="object-order"
            )
        for payload in payloads:
            assert not isinstance(payload, tuple)
            self._sink.write(payload)

    def finish(self) -> None:
        self._sink.finish()

    def resume_at(self) -> int:
        return self._sink.received

    def accuse(self, peer: PeerId, reason: str) -> None:
        self._standing.penalise(peer, f"{self.what}: {reason}", BAD_BYTES)


class PackFetch:
    """Fetches small objects into a ``PackSink``; units are objects."""

    def __init__(
        self,
        links: Exchanges[ObjectReply],
        nursery: trio.Nursery,
        names: Sequence[Multihash],
        sink: PackSink,
        standing: PeerPenalties,
    ) -> None:
        self.links = links
        self._standing = standing
        self._nursery = nursery
        self._names = names
        self._sink = sink

    @property
    def what(self) -> str:
        return f"{len(self._names)} small objects"

    async def ask(self, ask: Ask) -> Arrived | Denied:
        wanted = ObjectsAsk(request=0, names=tuple(self._names[ask.start : ask.start + ask.units]))
        answer = await ask_some(self.links, self._nursery, ask.peer, wanted)
        if isinstance(answer, PeerRefusal):
            return _deny(ask, answer)
        count = len(answer.objects)
        size = sum(map(len, answer.objects))
        return Arrived(
            peer=ask.peer, ask=ask.ask, payload=answer.objects, units=count, bytes=size, available=len(self._names)
        )

    def judge(self, peer: PeerId, start: int, payloads: Sequence[Payload]) -> None:
        if start != self._sink.received:
            text = f"{self.what}: #{start}, of {peer}, came where #{self._sink.received} is next"
            raise Invalid(text, rule="object-order")
        for payload in payloads:
            assert isinstance(payload, tuple)
            self._sink.take(payload)

    def finish(self) -> None:
        """Does nothing: each object was checked when it came."""

    def resume_at(self) -> int:
        return self._sink.received

    def accuse(self, peer: PeerId, reason: str) -> None:
        self._standing.penalise(peer, f"{self.what}: {reason}", BAD_BYTES)


async def ask_range(
    links: Exchanges[ChainReply], nursery: trio.Nursery, peer: PeerId, ask: BlockRange
) -> Blocks | PeerRefusal:
    """Asks one peer for blocks. Raises PeerFault, a Misbehaviour if the answer does not fit the question."""
    return await _ask(links, nursery, peer, ask, chains.encode_range, Blocks, chains.check_answer)


async def ask_read(
    links: Exchanges[ObjectReply], nursery: trio.Nursery, peer: PeerId, ask: ObjectRange
) -> ObjectBytes | PeerRefusal:
    """Asks one peer for bytes of an object, like ``ask_range``."""
    return await _ask(links, nursery, peer, ask, objects.encode_read, ObjectBytes, objects.check_answer)


async def ask_some(
    links: Exchanges[ObjectReply], nursery: trio.Nursery, peer: PeerId, ask: ObjectsAsk
) -> ObjectPack | PeerRefusal:
    """Asks one peer for small objects, like ``ask_range``."""
    return await _ask(links, nursery, peer, ask, objects.encode_some, ObjectPack, objects.check_pack)


async def _ask(
    links: Exchanges[Reply],
    nursery: trio.Nursery,
    peer: PeerId,
    ask: Question,
    encode: Callable[[Question], bytes],
    kind: type[Answer],
    check: Callable[[Question, Answer], None],
) -> Answer | PeerRefusal:
    exchange = await links.to(peer, nursery)
    answer = await exchange.ask(lambda number: encode(msgspec.structs.replace(ask, request=number)))
    if isinstance(answer, PeerRefusal):
        return answer
    # Before its content is used (test_an_answer_to_another_kind_of_question_is_a_violation).
    if not isinstance(answer, kind):
        raise Misbehaviour(
            peer, f"answered with {type(answer).__name__} what asks for {kind.__name__}", rule="reply-kind"
        )
    try:
        check(ask, answer)
    except Invalid as error:
        raise Misbehaviour(peer, error.message, rule=error.rule) from error
    return answer


def _deny(ask: Ask, refusal: PeerRefusal) -> Denied:
    # A peer that lacks a part, or is busy, may have it later in the same transfer.
    return Denied(ask.peer, ask.ask, describe(refusal), final=refusal.reason is RefusalReason.NOT_SERVED)


def describe(refusal: PeerRefusal) -> str:
    said = {
        RefusalReason.UNKNOWN: "does not have it",
        RefusalReason.NOT_SERVED: "does not serve it",
        RefusalReason.BUSY: "is too busy",
        RefusalReason.MALFORMED: "did not understand the request",
        RefusalReason.BROKEN: "cannot read it",
    }[refusal.reason]
    return f"{said} ({refusal.text})" if refusal.text else said
