"""A simulated network: the real machines of some nodes under a reactor with one seeded source of chance.

The reactor replaces sockets, disks, timers and threads: an inbox ordered by virtual time. Messages pass the real codecs
on every hop; they are delayed, lost, doubled and reordered; links are cut and nodes crash. The invariants are checked
whenever something becomes visible and every fifty steps; at the end the faults stop and all honest nodes must converge.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from chain.errors import Invalid, NotFound
from chain.ids import DatasetId
from chain.multihash import Multihash
from p2p.driver import reading
from p2p.machines import reconcile, serving, transfer
from p2p.machines.seen import Seen
from p2p.machines.transfer import Shape, Transfer
from p2p.peers.book import PeerBook
from p2p.peers.score import BAD_BYTES
from p2p.ports import Judgement, PeerId, StatementRef, Topic
from p2p.wire import chains, objects, trust
from p2p.wire.chains import BlockRange, Blocks
from p2p.wire.objects import ObjectRange
from p2p.wire.refusal import Reason, Refusal

CHAIN = Shape(most_units=12, most_bytes=1500, unit_bytes=100.0, window=6000)
OBJECT = Shape(most_units=700, most_bytes=700, window=2800)
STORM = 60.0
"""Seconds of virtual time with faults."""
CALM = 900.0
"""Seconds in which all must have converged after them."""
LIES = ("flip", "fork", "short", "garbage", "silent", "wrong-size", "forged")


def linked(before: bytes, text: str, thing: bytes) -> bytes:
    return hashlib.sha3_256(before).digest() + Multihash.sha3_256(thing) + text.encode()


class World:
    """Virtual time, the network between nodes, and what was really published."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.cuts: set[frozenset[PeerId]] = set()
        self.loss = self.rng.choice([0.0, 0.02, 0.15])
        self.doubling = self.rng.choice([0.0, 0.05])
        self.chains: dict[DatasetId, list[bytes]] = {}
        self.things: dict[Multihash, bytes] = {}
        self.signed: dict[bytes, tuple[DatasetId, int, bytes]] = {}
        count = self.rng.randint(3, 6)
        lying = self.rng.sample(range(count), self.rng.randint(0, count - 2))
        names = [PeerId(f"n{number}") for number in range(count)]
        self.nodes = {
            name: Node(self, name, self.rng.choice(LIES) if number in lying else "")
            for number, name in enumerate(names)
        }
        self.honest = [node for node in self.nodes.values() if not node.lie]
        for node in self.nodes.values():
            node.start()
        for publisher in self.honest[: self.rng.randint(1, 2)]:
            dataset = DatasetId.from_public_key(bytes([ord("A") + len(self.chains)]) * 32)
            self.chains[dataset] = []
            for _ in range(self.rng.randint(1, 4)):
                self.at(self.rng.uniform(0, STORM * 0.8), lambda p=publisher, d=dataset: self.publish(p, d))
        for _ in range(self.rng.randint(0, 4)):
            self.at(self.rng.uniform(1, STORM), self.cut)
        for _ in range(self.rng.randint(0, 3)):
            self.at(self.rng.uniform(1, STORM), lambda: self.rng.choice(list(self.nodes.values())).crash())
        self.at(STORM, self.calm)

    def at(self, when: float, work: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (max(when, self.now), self._count, work))

    def after(self, wait: float, work: Callable[[], None]) -> None:
        self.at(self.now + wait, work)

    def publish(self, publisher: Node, dataset: DatasetId) -> None:
        chain = self.chains[dataset]
        for _ in range(self.rng.randint(1, 40)):
            thing = self.rng.randbytes(self.rng.choice([0, 10, 700, 701, 3000]))
            self.things[Multihash.sha3_256(thing)] = thing
            publisher.things[Multihash.sha3_256(thing)] = thing
            block = linked(chain[-1] if chain else b"", "." * self.rng.choice([5, 60, 300, 2000]), thing)
            chain.append(block)
        publisher.chains[dataset] = list(chain)
        envelope = b"head %s %d " % (str(dataset).encode(), len(chain)) + hashlib.sha3_256(chain[-1]).digest()
        self.signed[envelope] = (dataset, len(chain), hashlib.sha3_256(chain[-1]).digest())
        publisher.learn(envelope, publisher.name)

    def cut(self) -> None:
        one, other = self.rng.sample(list(self.nodes), 2)
        self.cuts.add(frozenset((one, other)))
        self.after(self.rng.uniform(1, 30), lambda: self.cuts.discard(frozenset((one, other))))

    def calm(self) -> None:
        self.loss = self.doubling = 0.0
        self.cuts.clear()

    def send(self, src: PeerId, dst: PeerId, work: Callable[[Node], None]) -> None:
        if frozenset((src, dst)) in self.cuts or self.rng.random() < self.loss:
            return
        life = self.nodes[dst].life
        for _ in range(2 if self.rng.random() < self.doubling else 1):
            self.after(
                self.rng.uniform(0.005, 0.2),
                lambda: work(self.nodes[dst]) if self.nodes[dst].life == life else None,
            )

    def converged(self) -> bool:
        return all(
            node.chains.get(dataset, []) == chain for node in self.honest for dataset, chain in self.chains.items()
        ) and all(name in node.things for node in self.honest for name in self.things)

    def step(self) -> None:
        self.now, _, work = heapq.heappop(self._queue)
        work()

    def converge(self) -> float:
        """Run until all honest nodes have all; the virtual time. Fails when they do not get there."""
        steps = 0
        while self.now < STORM or not self.converged():
            assert self.now < STORM + CALM, f"not converged: {[node.missing() for node in self.honest]}"
            self.step()
            steps += 1
            if steps % 50 == 0:
                self.check_all()
        self.check_all()
        return self.now

    def check_all(self) -> None:
        for node in self.honest:
            node.check()


@dataclass
class Question:
    """One question of a round of anti-entropy under way."""

    body: bytes
    asker: PeerId
    machine: reconcile.Reconcile
    turn: int
    answered: bool = False


class Node:
    """One node's machines, and what it holds. What is durable survives ``crash``: chains, objects, begun objects."""

    def __init__(self, world: World, name: PeerId, lie: str) -> None:
        self.world, self.name, self.lie = world, name, lie
        self.chains: dict[DatasetId, list[bytes]] = {}
        self.things: dict[Multihash, bytes] = {}
        self.begun: dict[Multihash, bytearray] = {}
        self.board: dict[Multihash, bytes] = {}
        self.life = 0

    # Life

    def start(self) -> None:
        self.life += 1
        self.serving = serving.Serving(readers=2)
        self.seen = Seen(100)
        self.book = PeerBook(self.world.rng)
        self.runs: dict[object, Run] = {}
        self.questions: dict[int, tuple[Run, transfer.Ask]] = {}
        self.round: Any = None
        self.turn = 0
        self.retry(lambda: self.entropy(), 0.1, 5.0)
        self.want()

    def crash(self) -> None:
        life = self.life
        self.life += 1
        self.runs, self.questions = {}, {}
        self.world.after(self.world.rng.uniform(0.1, 10), lambda: self.start() if self.life == life + 1 else None)

    def retry(self, work: Callable[[], None], least: float, most: float) -> None:
        life = self.life
        wait = self.world.rng.uniform(least, most)
        self.world.after(wait, lambda: work() if self.life == life else None)

    def others(self) -> list[PeerId]:
        return [p for p in self.world.nodes if p != self.name and not self.book.is_shut_out(p, self.world.now)]

    # What is held: a Library and a Noticeboard

    def size(self, dataset: DatasetId) -> int:
        size = len(self.world.chains.get(dataset, ()) if self.lie else self.chains.get(dataset, ()))
        return size // 2 if self.lie == "short" else size

    def blocks(self, dataset: DatasetId, start: int, max_bytes: int) -> Sequence[bytes]:
        if not self.lie:
            return self.chains[dataset][start : start + 20]
        if self.lie == "fork":
            lies: list[bytes] = []
            for number in range(start + 20):
                lies.append(linked(lies[-1] if lies else b"", f"lie {number}", b""))
            return lies[start : self.size(dataset)]
        found = list(self.world.chains[dataset][start : start + 20])
        if self.lie == "flip" and found:
            at = self.world.rng.randrange(len(found))
            found[at] = bytes([found[at][0] ^ 1]) + found[at][1:]
        return found

    def object_size(self, name: Multihash) -> int | None:
        held = self.world.things if self.lie else self.things
        return len(held[name]) + (self.lie == "wrong-size") if name in held else None

    def read_object(self, name: Multihash, offset: int, length: int) -> bytes:
        held = self.world.things if self.lie else self.things
        if name not in held:
            raise NotFound("not here")
        data = (held[name] + b"?")[offset : offset + length]
        return bytes(len(data)) if self.lie in ("flip", "fork") else data

    def refs(self, datasets: Sequence[DatasetId] | None = None) -> Sequence[StatementRef]:
        held = [StatementRef(sid, DatasetId.parse(e.split()[1].decode())) for sid, e in self.board.items()]
        return [ref for ref in held if not datasets or ref.dataset in datasets]

    def envelope(self, sid: Multihash) -> tuple[Topic, bytes] | None:
        if self.lie == "forged":
            return Topic.HEADS, b"head of nothing"
        return (Topic.HEADS, self.board[sid]) if sid in self.board else None

    # Statements

    def learn(self, envelope: bytes, sender: PeerId) -> Judgement:
        """Judge, keep, pass on, and wish for what it speaks of."""
        if envelope not in self.world.signed:
            return Judgement.REJECT
        sid = Multihash.sha3_256(envelope)
        if sid in self.board:
            return Judgement.IGNORE
        self.board[sid] = envelope
        for peer in self.others():
            self.world.send(self.name, peer, lambda node: node.gossiped(envelope, self.name))
        self.want()
        return Judgement.ACCEPT

    def gossiped(self, envelope: bytes, sender: PeerId) -> None:
        if self.seen.add(Multihash.sha3_256(envelope)):
            self.judge(envelope, sender)

    def judge(self, envelope: bytes, sender: PeerId) -> None:
        if self.learn(envelope, sender) is Judgement.REJECT:
            self.blame(sender, BAD_BYTES)

    def entropy(self) -> None:
        self.retry(self.entropy, 3.0, 8.0)
        if peers := self.others():
            self.turn += 1
            machine = reconcile.Reconcile(self.refs())
            self.follow(machine, self.world.rng.choice(peers), self.turn, machine.start())

    def follow(self, machine: reconcile.Reconcile, peer: PeerId, turn: int, effects: list[reconcile.Effect]) -> None:
        for effect in effects:
            match effect:
                case reconcile.Fetch(ask):
                    question = Question(trust.encode(ask), self.name, machine, turn)
                    self.world.send(self.name, peer, lambda node, asked=question: node.told_of(asked))
                case reconcile.Show(statements):
                    for signed in statements:
                        self.judge(signed.envelope, peer)
                case reconcile.Done():
                    pass

    def told_of(self, question: Question) -> None:
        if self.lie in ("silent", "garbage"):
            return
        told = trust.encode(reconcile.answer(trust.decode_ask(question.body), self.refs, self.envelope))

        def heard(node: Node) -> None:
            # A stream brings an answer once: what a doubled message would bring again does not exist on it.
            if node.turn == question.turn and not question.answered:
                question.answered = True
                effects = question.machine.handle(trust.decode_tell(told))
                node.follow(question.machine, self.name, question.turn, effects)

        self.world.send(self.name, question.asker, heard)

    def blame(self, peer: PeerId, weight: float) -> None:
        assert weight < BAD_BYTES or self.world.nodes[peer].lie, f"{self.name} accuses the honest {peer}"
        self.book.penalise(peer, weight, self.world.now)

    # Chains and objects

    def want(self) -> None:
        """Start what is missing and not under way."""
        if self.lie:
            return
        heads: dict[DatasetId, tuple[int, bytes]] = {}
        for envelope in self.board.values():
            dataset, size, last = self.world.signed[envelope]
            heads[dataset] = max(heads.get(dataset, (0, b"")), (size, last))
        for dataset, (size, last) in heads.items():
            if len(self.chains.get(dataset, [])) < size and dataset not in self.runs:
                ChainRun(self, dataset, size, last).begin()
        for dataset, chain in self.chains.items():
            for block in chain:
                name = Multihash.from_bytes(block[32:66])
                if name not in self.things and name not in self.runs and len(self.runs) < 6:
                    ObjectRun(self, name, len(self.world.things[name])).begin()
            assert dataset in self.world.chains

    def asked(self, asker: PeerId, body: bytes) -> None:
        if self.lie == "silent":
            return
        if self.lie == "garbage":
            life, number = self.world.nodes[asker].life, int.from_bytes(body[1:5], "big")
            self.world.send(self.name, asker, lambda node: node.answered(self.name, b"\x81garbage", number, life))
            return
        request = chains.decode_range(body) if len(body) == 55 else objects.decode_read(body)
        self.serve(serving.Asked(serving.Asker(asker, 1), request))

    def serve(self, event: serving.Input) -> None:
        for effect in self.serving.handle(event):
            match effect:
                case serving.Read(asker, request):
                    self.retry(lambda a=asker, r=request: self.read(a, r), 0.001, 0.02)
                case serving.Refuse(asker, refused):
                    raise AssertionError(f"an honest asker was refused: {refused}")

    def read(self, asker: serving.Asker, request: serving.Request) -> None:
        body = reading.answer(self, request)
        self.serve(serving.ReadDone(asker, len(body)))
        life = self.world.nodes[asker.peer].life
        self.world.send(self.name, asker.peer, lambda node: node.answered(self.name, body, request.request, life))
        self.retry(lambda: self.serve(serving.Written(asker)), 0.001, 0.05)

    def answered(self, peer: PeerId, body: bytes, number: int, life: int) -> None:
        run, ask = self.questions.pop(number, (None, None))
        if run is None or ask is None or ask.peer != peer or self.life != life:
            return
        try:
            event = run.understood(ask, body)
        except Invalid as error:
            self.blame(peer, 20.0)
            event = transfer.Denied(peer, ask.ask, error.message, final=True)
        run.feed(event)

    # Invariants

    def missing(self) -> tuple[PeerId, dict[str, int], int]:
        chains_held = {dataset.short: len(held) for dataset, held in self.chains.items()}
        return self.name, chains_held, len(self.world.things) - len(self.things)

    def check(self) -> None:
        for dataset, chain in self.chains.items():
            assert chain == self.world.chains[dataset][: len(chain)], f"{self.name} holds what was never published"
        for name, thing in self.things.items():
            assert thing == self.world.things[name], f"{self.name} shows wrong bytes"
        for run in self.runs.values():
            assert run.machine.held <= run.shape.window + 2200, "more in memory than the window and one block"


class Run:
    """One transfer of a node: what the driver's ``TransferRun`` does, under the reactor."""

    shape: Shape
    key: object

    def __init__(self, node: Node, start: int, target: int, *, inherited: bool) -> None:
        self.node, self.world, self.life = node, node.world, node.life
        self.machine = Transfer(start, target, self.shape, node.world.rng, inherited=inherited)
        self.target = target
        self.alarm = 0

    def begin(self) -> None:
        self.node.runs[self.key] = self
        self.feed(transfer.Joined(tuple(self.node.others())))

    def feed(self, event: transfer.Input) -> None:
        if self.node.life != self.life or self.machine.over:
            return
        self.alarm += 1
        for effect in self.machine.handle(event, self.world.now):
            self.perform(effect)

    def perform(self, effect: transfer.Effect) -> None:
        match effect:
            case transfer.Ask():
                number = self.world.rng.getrandbits(32)
                self.node.questions[number] = (self, effect)
                body = self.encoded(effect, number)
                self.world.send(self.node.name, effect.peer, lambda node: node.asked(self.node.name, body))
            case transfer.Deliver():
                self.world.after(self.world.rng.uniform(0, 0.05), lambda: self.judged(lambda: self.take(effect)))
            case transfer.Finish():
                self.world.after(self.world.rng.uniform(0, 0.05), lambda: self.judged(self.finish))
            case transfer.Penalise(peer, _, weight):
                self.node.blame(peer, weight)
            case transfer.WakeAt(at):
                alarm = self.alarm
                self.world.at(at, lambda: self.feed(transfer.Tick()) if alarm == self.alarm else None)
            case transfer.Completed() | transfer.GaveUp():
                del self.node.runs[self.key]
                self.node.retry(self.node.want, 0.1, 1.0 if isinstance(effect, transfer.Completed) else 10.0)

    def judged(self, work: Callable[[], transfer.Input]) -> None:
        if self.node.life != self.life:
            return
        try:
            event = work()
        except Invalid as error:
            event = transfer.Rejected(error.message, self.resume_at())
        self.feed(event)

    def encoded(self, ask: transfer.Ask, number: int) -> bytes: ...
    def understood(self, ask: transfer.Ask, body: bytes) -> transfer.Input: ...
    def take(self, part: transfer.Deliver) -> transfer.Input: ...
    def finish(self) -> transfer.Input: ...
    def resume_at(self) -> int: ...


class ChainRun(Run):
    """Blocks are staged until the last one is the one that was signed."""

    shape = CHAIN

    def __init__(self, node: Node, dataset: DatasetId, size: int, last: bytes) -> None:
        self.key = self.dataset = dataset
        self.last = last
        self.held = node.chains.setdefault(dataset, [])
        self.staged: list[bytes] = []
        super().__init__(node, len(self.held), size, inherited=False)

    def ranged(self, ask: transfer.Ask, number: int) -> BlockRange:
        most = self.shape.most_bytes
        return BlockRange(request=number, dataset=self.dataset, start=ask.start, max_blocks=ask.units, max_bytes=most)

    def encoded(self, ask: transfer.Ask, number: int) -> bytes:
        return chains.encode_range(self.ranged(ask, number))

    def understood(self, ask: transfer.Ask, body: bytes) -> transfer.Input:
        reply = chains.decode_chain_reply(body)
        if isinstance(reply, Refusal):
            return transfer.Denied(ask.peer, ask.ask, reply.reason.name, final=reply.reason is Reason.NOT_SERVED)
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
        assert isinstance(part.payload, tuple)
        for block in part.payload:
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
        if isinstance(reply, Refusal):
            return transfer.Denied(ask.peer, ask.ask, reply.reason.name)
        objects.check_answer(self.ranged(ask, 0), reply)
        if reply.size != self.target:
            raise Invalid("another size than its block says")
        count = len(reply.data)
        return transfer.Arrived(
            peer=ask.peer, ask=ask.ask, payload=reply.data, units=count, bytes=count, available=reply.size
        )

    def take(self, part: transfer.Deliver) -> transfer.Input:
        assert isinstance(part.payload, bytes)
        assert part.start == len(self.part), "a gap"
        self.part += part.payload
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


@pytest.fixture
def world() -> Callable[[int], World]:
    return World
