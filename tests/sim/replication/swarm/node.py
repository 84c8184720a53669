"""One node's machines, what it holds, and how it lies if it does."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chain.errors import Invalid, NotFound
from chain.ids import DatasetId
from chain.multihash import Multihash
from p2p.budget.buckets import Budget, Relaying
from p2p.driver import serve
from p2p.machines import reconcile, request_queue, transfer
from p2p.machines.declined import Seen
from p2p.peers.book import BAD_BYTES, FLOOD, GARBAGE, UNRELIABLE, PeerBook
from p2p.ports import Judgement, PeerId, StatementRef, Topic
from p2p.wire import chains, objects, trust
from p2p.wire.frames import PREFIX
from worlds.mutation import mutated

from . import transfers

if TYPE_CHECKING:
    from .transfers import Run
    from .world import World

LIES = (
    "flip", "fork", "short", "garbage", "silent", "wrong-size", "forged", "mangle", "nag", "two-faced", "late", "old",
)  # fmt: skip
"""``old`` lies to nobody: it holds the history that an owner gave up, and who wants the new one may not blame it."""
FLOODS = "flood"
"""Signs on and on what nobody can call bad; of those a world has as many as its plan says."""
SEEN = 100
"""Envelopes that a node remembers to have met."""


def linked(before: bytes, text: str, thing: bytes) -> bytes:
    return hashlib.sha3_256(before).digest() + Multihash.sha3_256(thing) + text.encode()


@dataclass
class Question:
    """One question of a round of anti-entropy under way."""

    body: bytes
    asker: PeerId
    machine: reconcile.Reconcile
    turn: int
    answered: bool = False


class Node:
    """A node of the swarm. Chains and whole objects survive ``crash``; of the rest only what was synced does."""

    def __init__(self, world: World, name: PeerId, lie: str) -> None:
        self.world, self.name, self.lie = world, name, lie
        self.chains: dict[DatasetId, list[bytes]] = {}
        self.things: dict[Multihash, bytes] = {}
        self.begun: dict[Multihash, bytearray] = {}
        self.board: dict[Multihash, bytes] = {}
        self.own: set[Multihash] = set()
        """Statements that it signed: journalled before they are told."""
        self.heard_at: dict[Multihash, float] = {}
        self.links: list[PeerId] = []
        self.saved = b"[]"
        """The peer book on its disk."""
        self.asker = PeerId("")
        """Who is being answered, for who has two faces."""
        self.life = 0

    # Life

    def start(self) -> None:
        lot = self.world.rng
        self.life += 1
        self._rate, self._offset = lot.uniform(0.9, 1.1), lot.uniform(0, 1e6)
        self.serving = request_queue.RequestQueue(readers=2)
        self.seen = Seen(SEEN)
        self.looks = Budget[PeerId](self.world.plan.looks)
        self.relaying = Relaying(self.world.plan.looks)
        self.book = PeerBook(lot)
        try:
            self.book.restore(self.saved, self.clock())
        except Invalid:
            self.saved = b"[]"
        self.runs: dict[object, Run] = {}
        self.elsewhere: set[tuple[DatasetId, PeerId]] = set()
        """Who was found to hold another history of a chain."""
        self.questions: dict[int, tuple[Run, transfer.Ask]] = {}
        self.turn = 0
        self.retry(self.entropy, 0.1, 5.0)
        self.retry(self.save, 1.0, 20.0)
        if self.lie == "nag":
            self.retry(self.nag, 0.1, 1.0)
        if self.lie == FLOODS:
            self.retry(self.flood, 0.01, 0.1)
        self.want()

    def crash(self) -> None:
        """The process ends, and now and then the machine with it: then what was not synced is lost, or zeros."""
        lot, life = self.world.rng, self.life
        self.life += 1
        self.runs, self.questions = {}, {}
        if lot.random() < 0.7:
            for part in self.begun.values():
                synced = lot.randint(0, len(part))
                part[synced:] = bytes(len(part) - synced) if lot.random() < 0.5 else b""
            since = self.world.now - lot.uniform(0, 5)
            for sid in [sid for sid, at in self.heard_at.items() if at > since and sid not in self.own]:
                del self.board[sid], self.heard_at[sid]
            self.saved = self.saved[: lot.randint(0, len(self.saved))]
        self.world.after(lot.uniform(0.1, 10), lambda: self.start() if self.life == life + 1 else None)

    def clock(self) -> float:
        """Its own, which begins anywhere and runs a little fast or slow."""
        return self._offset + self._rate * self.world.now

    def wakes(self, at: float) -> float:
        """The world's time of a time of its own."""
        return (at - self._offset) / self._rate

    def save(self) -> None:
        self.saved = self.book.snapshot(self.clock())
        self.retry(self.save, 5.0, 20.0)

    def retry(self, work: Callable[[], None], least: float, most: float) -> None:
        life = self.life
        wait = self.world.rng.uniform(least, most)
        self.world.after(wait, lambda: work() if self.life == life else None)

    def others(self) -> list[PeerId]:
        return [peer for peer in self.links if not self.book.is_shut_out(peer, self.clock())]

    # What is held: a Library and a Noticeboard

    def size(self, dataset: DatasetId) -> int:
        size = len(self.world.chains.get(dataset, ()) if self.lie else self.chains.get(dataset, ()))
        return size // 2 if self.lie == "short" else size

    def blocks(self, dataset: DatasetId, start: int, max_bytes: int) -> Sequence[bytes]:
        if not self.lie:
            return self.chains[dataset][start : start + 20]
        if self.lie in ("fork", "old") or (self.lie == "two-faced" and int(self.asker[1:]) % 2):
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

    def object_part(self, name: Multihash, offset: int, into: memoryview) -> tuple[int, int]:
        data = self.read_object(name, offset, len(into))
        into[: len(data)] = data
        return self.object_size(name) or 0, len(data)

    def to(self, _peer: PeerId) -> Node:
        return self

    def parts(self, _ask: object) -> None:
        """Tells nobody."""

    pieces = parts

    def small_objects(self, names: Sequence[Multihash], largest: int) -> Iterator[bytes]:
        for name in names:
            size = self.object_size(name)
            if size is None or size > largest:
                return
            yield self.read_object(name, 0, size)

    def refs(self, datasets: Sequence[DatasetId] | None = None) -> Sequence[StatementRef]:
        held = [StatementRef(sid, DatasetId.parse(e.split()[1].decode())) for sid, e in self.board.items()]
        return [ref for ref in held if not datasets or ref.dataset in datasets]

    def envelope(self, sid: Multihash) -> tuple[Topic, bytes] | None:
        if self.lie == "forged":
            return Topic.HEADS, b"head of nothing"
        return (Topic.HEADS, self.board[sid]) if sid in self.board else None

    # How it speaks

    def says(self, body: bytes) -> bytes:
        """A liar may say anything in any message."""
        lot = self.world.rng
        return mutated(lot, body, body) if self.lie == "mangle" and lot.random() < 0.5 else body

    def nag(self) -> None:
        """Answers that nobody asked for, questions that are none, statements that nobody signed; to anyone."""
        self.retry(self.nag, 0.1, 1.0)
        lot = self.world.rng
        peer, number, kind = lot.choice(self.links), lot.getrandbits(32), lot.randrange(4)
        life = self.world.nodes[peer].life
        if kind == 0:
            body = objects.encode_bytes(objects.ObjectBytes(request=number, size=9, offset=0, data=b"unwanted!"))
            self.world.send("nagging", self.name, peer, lambda node: node.answered(self.name, body, number, life))
        elif kind == 1:
            dataset = lot.choice(list(self.world.chains))
            ask = chains.encode_range(chains.BlockRange(request=number, dataset=dataset, start=lot.getrandbits(40)))
            said = mutated(lot, ask, ask) if lot.random() < 0.2 else ask
            self.world.send("nagging", self.name, peer, lambda node: node.asked(self.name, chains.PROTOCOL, said))
        elif kind == 2:
            body = trust.encode(trust.SumAsk())
            question = Question(mutated(lot, body, body), self.name, reconcile.Reconcile([]), -1)
            self.world.send("nagging", self.name, peer, lambda node: node.told_of(question))
        else:
            self.world.send("nagging", self.name, peer, lambda node: node.gossiped(lot.randbytes(40), self.name))

    def flood(self) -> None:
        self.retry(self.flood, 0.01, 0.1)
        envelope = b"idle %s" % self.world.rng.randbytes(16)
        self.world.idle.add(envelope)
        for peer in self.links:
            self.world.send("flood", self.name, peer, lambda node: node.gossiped(envelope, self.name))

    # Statements

    def learn(self, envelope: bytes, sender: PeerId) -> Judgement:
        """Judge, keep, pass on, and ask for what it speaks of."""
        if envelope in self.world.idle:
            self.pass_on(envelope, sender)
            return Judgement.ACCEPT
        if envelope not in self.world.signed:
            return Judgement.REJECT
        sid = Multihash.sha3_256(envelope)
        if sid in self.board:
            return Judgement.IGNORE
        self.board[sid] = envelope
        self.heard_at[sid] = self.world.now
        self.pass_on(envelope, sender)
        self.want()
        return Judgement.ACCEPT

    def pass_on(self, envelope: bytes, sender: PeerId) -> None:
        if sender != self.name and not self.relaying.passes(sender, self.clock()):
            return
        for peer in self.others():
            said = self.says(envelope)
            self.world.send("gossip", self.name, peer, lambda node, said=said: node.gossiped(said, self.name))

    def gossiped(self, envelope: bytes, sender: PeerId) -> None:
        if Multihash.sha3_256(envelope) in self.seen:
            return
        if not self.looks.spend(sender, self.clock()):
            self.overrun_by(sender)
            return
        if self.seen.add(Multihash.sha3_256(envelope)):
            self.judge(envelope, sender)

    def overrun_by(self, sender: PeerId) -> None:
        """What is too much is dropped, and that is all."""
        self.world.overruns[sender] += 1

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
                    question = Question(self.says(trust.encode(ask)), self.name, machine, turn)
                    self.world.send("reconcile", self.name, peer, lambda node, asked=question: node.told_of(asked))
                case reconcile.Show(statements):
                    for signed in statements:
                        self.judge(signed.envelope, peer)
                case reconcile.Done():
                    pass

    def told_of(self, question: Question) -> None:
        if self.lie in ("silent", "garbage"):
            return
        try:
            ask = trust.decode_ask(question.body)
        except Invalid:
            self.blame(question.asker, GARBAGE)
            return
        told = self.says(trust.encode(reconcile.answer(ask, self.refs, self.envelope)))
        self.world.send("reconcile", self.name, question.asker, lambda node: node.heard(question, self.name, told))

    def heard(self, question: Question, peer: PeerId, told: bytes) -> None:
        # A stream brings an answer once: what a doubled message would bring again does not exist on it.
        if self.turn != question.turn or question.answered:
            return
        question.answered = True
        try:
            effects = question.machine.handle(trust.decode_tell(told))
        except Invalid:
            self.blame(peer, GARBAGE)
            return
        self.follow(question.machine, peer, question.turn, effects)

    def blame(self, peer: PeerId, weight: float) -> None:
        honest = self.world.nodes[peer].lie in ("", "old")
        assert weight <= UNRELIABLE or not honest, f"{self.name} accuses the honest {peer}"
        self.book.penalise(peer, weight, self.clock())

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
                transfers.ChainRun(self, dataset, size, last).begin()
        for dataset, chain in self.chains.items():
            names = dict.fromkeys(Multihash.from_bytes(block[32:66]) for block in chain)
            lacks = tuple(name for name in names if name not in self.things and name not in self.runs)
            packed = len(lacks) > 1 and not self.runs and self.world.rng.random() < 0.5
            if packed:
                transfers.PackRun(self, dataset, lacks).begin()
            for name in () if packed else names:
                if name not in self.things and name not in self.runs and len(self.runs) < 6:
                    transfers.ObjectRun(self, name, len(self.world.things[name])).begin()
            assert dataset in self.world.chains

    def asked(self, asker: PeerId, protocol: str, body: bytes) -> None:
        if self.lie == "silent":
            return
        if self.lie == "garbage":
            life, number = self.world.nodes[asker].life, int.from_bytes(body[1:5], "big")
            lie = b"\x81garbage"
            self.world.send("answer", self.name, asker, lambda node: node.answered(self.name, lie, number, life))
            return
        try:
            request = chains.decode_range(body) if protocol == chains.PROTOCOL else objects.decode_request(body)
        except Invalid:
            self.blame(asker, GARBAGE)
            return
        self.serve(request_queue.Asked(request_queue.RequestStream(asker, 1), request))

    def serve(self, event: request_queue.Input) -> None:
        for effect in self.serving.handle(event):
            match effect:
                case request_queue.ReadRequest(asker, request):
                    self.retry(lambda a=asker, r=request: self.read(a, r), 0.001, 0.02)
                case request_queue.RefuseRequest(asker, refused):
                    assert self.lie or self.world.nodes[asker.peer].lie, f"an honest asker was refused: {refused}"
                    self.blame(asker.peer, FLOOD)

    def read(self, asker: request_queue.RequestStream, request: request_queue.Request) -> None:
        self.asker = asker.peer
        body = self.says(bytes(serve.answer(self, request, deque())[PREFIX:]))
        self.serve(request_queue.ReadDone(asker, len(body)))
        life = self.world.nodes[asker.peer].life
        number = request.request

        def send() -> None:
            self.world.send("answer", self.name, asker.peer, lambda node: node.answered(self.name, body, number, life))

        if self.lie == "late":
            self.retry(send, 1.0, 60.0)
        else:
            send()
        self.retry(lambda: self.serve(request_queue.AnswerWritten(asker)), 0.001, 0.05)

    def answered(self, peer: PeerId, body: bytes, number: int, life: int) -> None:
        if self.life != life or number not in self.questions or self.questions[number][1].peer != peer:
            return
        run, ask = self.questions.pop(number)
        try:
            event = run.understood(ask, body)
        except Invalid as error:
            self.blame(peer, GARBAGE)
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
        assert len(self.seen) <= SEEN
        assert len(self.book) <= len(self.world.nodes)
        for run in self.runs.values():
            assert run.machine.held <= run.shape.window + 2200, "more in memory than the window and one block"
