"""What a node does to bring a chain or an object here: its driver's part, under the reactor."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.multihash import Multihash
from p2p.machines import transfer
from p2p.machines.transfer import PartTransfer, TransferShape
from p2p.peers.book import UNRELIABLE
from p2p.ports import PeerId
from p2p.wire import chains, objects
from p2p.wire.chains import BlockRange, Blocks
from p2p.wire.objects import ObjectBytes, ObjectPack, ObjectRange, ObjectsAsk
from p2p.wire.refusal import PeerRefusal, RefusalReason

if TYPE_CHECKING:
    from sim.replication.network import Node

CHAIN = TransferShape(most_units=12, most_bytes=1500, unit_bytes=100.0, window=6000)
PACK = TransferShape(most_units=3, most_bytes=6000, unit_bytes=700.0, window=24_000)
OBJECT = TransferShape(most_units=700, most_bytes=700, window=2800)


class Run(ABC):
    """One transfer of a node: what the driver's ``TransferRun`` does, under the reactor."""

    shape: TransferShape
    key: object
    protocol: str

    def __init__(self, node: Node, start: int, target: int, *, inherited: bool) -> None:
        self.node, self.world, self.life = node, node.world, node.life
        self.machine = PartTransfer(start, target, self.shape, node.rng, inherited=inherited)
        self.target = target
        self.court: deque[transfer.Deliver | transfer.Finish] = deque()
        self.alarm = 0

    def begin(self) -> None:
        self.node.runs[self.key] = self
        elsewhere = self.node.elsewhere
        fit = [peer for peer in self.node.others() if (self.key, peer) not in elsewhere or self.shows(peer)]
        self.feed(transfer.Joined(tuple(fit)))

    def feed(self, event: transfer.Input) -> None:
        if self.node.life != self.life or self.machine.over:
            return
        self.alarm += 1
        for effect in self.machine.handle(event, self.node.clock()):
            self.perform(effect)

    def perform(self, effect: transfer.Effect) -> None:
        match effect:
            case transfer.Ask():
                number = self.node.rng.getrandbits(32)
                self.node.questions[number] = (self, effect)
                body, name = self.node.says(self.encoded(effect, number)), self.node.name
                self.world.send("question", name, effect.peer, type(self.node).asked, name, self.protocol, body)
            case transfer.Deliver() | transfer.Finish():
                self.court.append(effect)
                if len(self.court) == 1:
                    self.call_next()
            case transfer.Penalise(peer, _, judged=True) if not self.shows(peer):
                self.node.blame(peer, UNRELIABLE)
                self.node.elsewhere.add((self.key, peer))
            case transfer.Penalise(peer, _, weight):
                self.node.blame(peer, weight)
            case transfer.WakeAt(at):
                alarm = self.alarm
                self.world.at(self.node.wakes(at), lambda: self.feed(transfer.Tick()) if alarm == self.alarm else None)
            case transfer.Completed() | transfer.GaveUp():
                del self.node.runs[self.key]
                self.node.soon(0.1, 1.0 if isinstance(effect, transfer.Completed) else 10.0, self.node.want)

    def call_next(self) -> None:
        """What is before the judge is judged one by one."""
        if self.court:
            self.node.soon(0, 0.05, self.judge)

    def judge(self) -> None:
        effect = self.court[0]
        try:
            event = self.take(effect) if isinstance(effect, transfer.Deliver) else self.finish()
        except Invalid as error:
            event = transfer.PartRejected(error.message, self.resume_at())
            self.court.clear()
            self.feed(event)
            return
        self.feed(event)
        self.court.popleft()
        self.call_next()

    def shows(self, peer: PeerId) -> bool:
        """Whether a peer has what is wanted, so that wrong bytes of it are lies (``p2p.driver.peer_penalties``)."""
        return True

    @abstractmethod
    def encoded(self, ask: transfer.Ask, number: int) -> bytes: ...
    @abstractmethod
    def understood(self, ask: transfer.Ask, body: bytes) -> transfer.Input: ...
    @abstractmethod
    def take(self, part: transfer.Deliver) -> transfer.Input: ...
    @abstractmethod
    def finish(self) -> transfer.Input: ...
    @abstractmethod
    def resume_at(self) -> int: ...


def _units(part: transfer.Deliver) -> Iterator[bytes]:
    for payload in part.payloads:
        assert isinstance(payload, tuple)
        yield from payload


class ChainRun(Run):
    """Blocks are staged until the last one is the one that was signed."""

    shape = CHAIN
    protocol = chains.PROTOCOL

    def __init__(self, node: Node, dataset: DatasetId, size: int, last: bytes) -> None:
        self.key = self.dataset = dataset
        self.last = last
        self.held = node.chains.setdefault(dataset, [])
        self.staged: list[bytes] = []
        super().__init__(node, len(self.held), size, inherited=False)

    def shows(self, peer: PeerId) -> bool:
        last = self.world.nodes[peer].blocks(self.dataset, self.target - 1, 1)[:1]
        return [hashlib.sha3_256(block).digest() for block in last] == [self.last]

    def ranged(self, ask: transfer.Ask, number: int) -> BlockRange:
        most = self.shape.most_bytes
        return BlockRange(request=number, dataset=self.dataset, start=ask.start, max_blocks=ask.units, max_bytes=most)

    def encoded(self, ask: transfer.Ask, number: int) -> bytes:
        return chains.encode_range(self.ranged(ask, number))

    def understood(self, ask: transfer.Ask, body: bytes) -> transfer.Input:
        reply = chains.decode_chain_reply(body)
        if isinstance(reply, PeerRefusal):
            return transfer.Denied(ask.peer, ask.ask, reply.reason.name, final=reply.reason is RefusalReason.NOT_SERVED)
        chains.check_answer(self.ranged(ask, 0), reply)
        assert isinstance(reply, Blocks)
        return transfer.Arrived(
            peer=ask.peer,
            ask=ask.ask,
            payload=reply.blocks,
            units=len(reply.blocks),
            bytes=sum(map(len, reply.blocks)),
            available=reply.size,
        )

    def take(self, part: transfer.Deliver) -> transfer.Input:
        assert part.start == len(self.held) + len(self.staged), "a gap"
        for block in _units(part):
            before = [*self.held[-1:], *self.staged[-1:]]
            if block[:32] != hashlib.sha3_256(before[-1] if before else b"").digest():
                self.staged.clear()
                raise Invalid("it does not follow")
            self.staged.append(block)
        return transfer.Accepted()

    def finish(self) -> transfer.Input:
        whole = [*self.held, *self.staged]
        self.staged.clear()
        if hashlib.sha3_256(whole[-1]).digest() != self.last:
            raise Invalid("not what was signed")
        self.held[:] = whole
        self.node.check()
        return transfer.Finished()

    def resume_at(self) -> int:
        return len(self.held)


class ObjectRun(Run):
    """Bytes are appended to a file that survives a crash."""

    shape = OBJECT
    protocol = objects.PROTOCOL

    def __init__(self, node: Node, name: Multihash, size: int) -> None:
        self.key = self.name = name
        self.part = node.begun.setdefault(name, bytearray())
        super().__init__(node, len(self.part), size, inherited=bool(self.part))

    def ranged(self, ask: transfer.Ask, number: int) -> ObjectRange:
        return ObjectRange(request=number, name=self.name, offset=ask.start, length=ask.units)

    def encoded(self, ask: transfer.Ask, number: int) -> bytes:
        return objects.encode_read(self.ranged(ask, number))

    def understood(self, ask: transfer.Ask, body: bytes) -> transfer.Input:
        reply = objects.decode_object_reply(body)
        if isinstance(reply, PeerRefusal):
            return transfer.Denied(ask.peer, ask.ask, reply.reason.name)
        if not isinstance(reply, ObjectBytes):
            raise Invalid("an answer to another question")
        objects.check_answer(self.ranged(ask, 0), reply)
        if reply.size != self.target:
            raise Invalid("another size than its block says")
        count = len(reply.data)
        return transfer.Arrived(
            peer=ask.peer, ask=ask.ask, payload=reply.data, units=count, bytes=count, available=reply.size
        )

    def take(self, part: transfer.Deliver) -> transfer.Input:
        assert part.start == len(self.part), "a gap"
        for payload in part.payloads:
            assert not isinstance(payload, tuple)
            self.part += payload
        return transfer.Accepted()

    def finish(self) -> transfer.Input:
        data = bytes(self.part)
        self.part.clear()
        if Multihash.sha3_256(data) != self.name:
            raise Invalid("the bytes do not hash to the name")
        self.node.things[self.name] = data
        return transfer.Finished()

    def resume_at(self) -> int:
        return len(self.part)


class PackRun(Run):
    """Small objects, each kept as soon as it is good. Whatever nobody gives so is asked for alone."""

    shape = PACK
    protocol = objects.PROTOCOL

    def __init__(self, node: Node, dataset: DatasetId, names: tuple[Multihash, ...]) -> None:
        self.key = ("pack", dataset)
        self.names = names
        self.received = 0
        super().__init__(node, 0, len(names), inherited=False)

    def wanted(self, ask: transfer.Ask, number: int) -> ObjectsAsk:
        return ObjectsAsk(request=number, names=self.names[ask.start : ask.start + ask.units])

    def encoded(self, ask: transfer.Ask, number: int) -> bytes:
        return objects.encode_some(self.wanted(ask, number))

    def understood(self, ask: transfer.Ask, body: bytes) -> transfer.Input:
        reply = objects.decode_object_reply(body)
        if isinstance(reply, PeerRefusal):
            return transfer.Denied(ask.peer, ask.ask, reply.reason.name)
        if not isinstance(reply, ObjectPack):
            raise Invalid("an answer to another question")
        objects.check_pack(self.wanted(ask, 0), reply)
        count, size = len(reply.objects), sum(map(len, reply.objects))
        return transfer.Arrived(
            peer=ask.peer, ask=ask.ask, payload=reply.objects, units=count, bytes=size, available=self.target
        )

    def take(self, part: transfer.Deliver) -> transfer.Input:
        assert part.start == self.received, "a gap"
        for data in _units(part):
            if Multihash.sha3_256(data) != self.names[self.received]:
                raise Invalid("the bytes do not hash to the name")
            self.node.things[self.names[self.received]] = data
            self.received += 1
        return transfer.Accepted()

    def finish(self) -> transfer.Input:
        return transfer.Finished()

    def resume_at(self) -> int:
        return self.received
