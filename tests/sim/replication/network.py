"""A simulated network that replicates: the real machines of some nodes, what they hold, and how they lie if they do.

Messages pass the real codecs on every hop; nodes crash and lose what was not synced. The invariants are checked
whenever something becomes visible and every fifty steps; at the end the faults stop and all honest nodes must converge.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, cast

from chain.errors import Invalid, NotFound
from chain.ids import DatasetId
from chain.multihash import Multihash
from p2p.budget.buckets import Budget, Rate, Relaying
from p2p.driver import serve
from p2p.driver.statements import GOSSIP_RATE
from p2p.machines import reconcile, request_queue, transfer
from p2p.machines.declined import Seen
from p2p.peers.book import BAD_BYTES, FLOOD, GARBAGE, UNRELIABLE, PeerBook
from p2p.ports import Judgement, Library, PeerId, StatementRef, Topic
from p2p.wire import chains, objects, trust
from p2p.wire.frames import PREFIX
from sim.kernel import Links, Process, Simulation, Weather, torn
from sim.replication import transfers
from sim.replication.transfers import Run
from worlds.mutation import mutated

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


class Node(Process):
    """A node of the swarm. Chains and whole objects survive ``crash``; of the rest only what was synced does."""

    def __init__(self, world: World, name: PeerId, lie: str) -> None:
        super().__init__(world, name)
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

    # Life

    def start(self) -> None:
        super().start()
        lot = self.rng
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
        self.elsewhere: set[tuple[object, PeerId]] = set()
        """Who was found to hold another history of a chain."""
        self.questions: dict[int, tuple[Run, transfer.Ask]] = {}
        self.turn = 0
        self.soon(0.1, 5.0, self.entropy)
        self.soon(1.0, 20.0, self.save)
        if self.lie == "nag":
            self.soon(0.1, 1.0, self.nag)
        if self.lie == FLOODS:
            self.soon(0.01, 0.1, self.flood)
        self.want()

    def crash(self, away: float) -> None:
        """The process ends, and now and then the machine with it: then what was not synced is lost, or zeros."""
        lot = self.rng
        self.runs, self.questions = {}, {}
        if lot.random() < 0.7:
            for part in self.begun.values():
                part[:] = torn(part, lot)
            since = self.world.now - lot.uniform(0, 5)
            for sid in [sid for sid, at in self.heard_at.items() if at > since and sid not in self.own]:
                del self.board[sid], self.heard_at[sid]
            self.saved = self.saved[: lot.randint(0, len(self.saved))]
        super().crash(away)

    def clock(self) -> float:
        """Its own, which begins anywhere and runs a little fast or slow."""
        return self._offset + self._rate * self.world.now

    def wakes(self, at: float) -> float:
        """The world's time of a time of its own."""
        return (at - self._offset) / self._rate

    def save(self) -> None:
        self.saved = self.book.snapshot(self.clock())
        self.soon(5.0, 20.0, self.save)

    def others(self) -> list[PeerId]:
        return [peer for peer in self.links if not self.book.is_shut_out(peer, self.clock())]

    # What is held: of a Library and a StatementStore what the questions of this world reach

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
            at = self.rng.randrange(len(found))
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
        lot = self.rng
        return mutated(lot, body, body) if self.lie == "mangle" and lot.random() < 0.5 else body

    def nag(self) -> None:
        """Answers that nobody asked for, questions that are none, statements that nobody signed; to anyone."""
        self.soon(0.1, 1.0, self.nag)
        lot = self.rng
        peer, number, kind = lot.choice(self.links), lot.getrandbits(32), lot.randrange(4)
        life = self.world.nodes[peer].life
        if kind == 0:
            body = objects.encode_bytes(objects.ObjectBytes(request=number, size=9, offset=0, data=b"unwanted!"))
            self.world.send("nagging", self.name, peer, Node.answered, self.name, body, number, life)
        elif kind == 1:
            dataset = lot.choice(list(self.world.chains))
            ask = chains.encode_range(chains.BlockRange(request=number, dataset=dataset, start=lot.getrandbits(40)))
            said = mutated(lot, ask, ask) if lot.random() < 0.2 else ask
            self.world.send("nagging", self.name, peer, Node.asked, self.name, chains.PROTOCOL, said)
        elif kind == 2:
            body = trust.encode(trust.SumAsk())
            question = Question(mutated(lot, body, body), self.name, reconcile.Reconcile([]), -1)
            self.world.send("nagging", self.name, peer, Node.told_of, question)
        else:
            self.world.send("nagging", self.name, peer, Node.gossiped, lot.randbytes(40), self.name)

    def flood(self) -> None:
        self.soon(0.01, 0.1, self.flood)
        envelope = b"idle %s" % self.rng.randbytes(16)
        self.world.idle.add(envelope)
        for peer in self.links:
            self.world.send("flood", self.name, peer, Node.gossiped, envelope, self.name)

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
            self.world.send("gossip", self.name, peer, Node.gossiped, self.says(envelope), self.name)

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
        self.soon(3.0, 8.0, self.entropy)
        if peers := self.others():
            self.turn += 1
            machine = reconcile.Reconcile(self.refs())
            self.follow(machine, self.rng.choice(peers), self.turn, machine.start())

    def follow(self, machine: reconcile.Reconcile, peer: PeerId, turn: int, effects: list[reconcile.Effect]) -> None:
        for effect in effects:
            match effect:
                case reconcile.Fetch(ask):
                    question = Question(self.says(trust.encode(ask)), self.name, machine, turn)
                    self.world.send("reconcile", self.name, peer, Node.told_of, question)
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
        self.world.send("reconcile", self.name, question.asker, Node.heard, question, self.name, told)

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
            packed = len(lacks) > 1 and not self.runs and self.rng.random() < 0.5
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
            self.world.send("answer", self.name, asker, Node.answered, self.name, b"\x81garbage", number, life)
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
                    self.soon(0.001, 0.02, self.read, asker, request)
                case request_queue.RefuseRequest(asker, refused):
                    assert self.lie or self.world.nodes[asker.peer].lie, f"an honest asker was refused: {refused}"
                    self.blame(asker.peer, FLOOD)

    def read(self, asker: request_queue.RequestStream, request: request_queue.Request) -> None:
        self.asker = asker.peer
        body = self.says(bytes(serve.answer(cast(Library, self), request, deque())[PREFIX:]))
        self.serve(request_queue.ReadDone(asker, len(body)))
        answer = self.name, body, request.request, self.world.nodes[asker.peer].life
        send = partial(self.world.send, "answer", self.name, asker.peer, Node.answered, *answer)
        if self.lie == "late":
            self.soon(1.0, 60.0, send)
        else:
            send()
        self.soon(0.001, 0.05, self.serve, request_queue.AnswerWritten(asker))

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


STORM = 60.0
"""Seconds of virtual time with faults."""
CALM = 900.0
"""Seconds in which all must have converged after them."""
LATENCY = (0.005, 0.2)
"""Seconds of a message, at least and at most."""


@dataclass(frozen=True)
class Plan:
    """What a world is made of; chance decides the rest."""

    nodes: int
    liars: int
    datasets: int
    heads: int
    """Of each dataset, at most."""
    blocks: int
    """Of each head, at most."""
    degree: int | None = None
    """Links of a node, about; ``None``: everyone is linked with everyone."""
    loss: float = 0.0
    doubling: float = 0.0
    cuts: int = 0
    crashes: int = 0
    things: tuple[int, ...] = (0, 10, 700, 701, 3000)
    """Bytes of an object, one of these."""
    floods: int = 0
    """Of the liars, those who flood."""
    looks: Rate = GOSSIP_RATE
    """Statements of one peer that are looked at."""


def drawn(lot: Random) -> Plan:
    """A small world with any mixture of faults."""
    count = lot.randint(3, 6)
    return Plan(
        nodes=count,
        liars=lot.randint(0, count - 2),
        datasets=lot.randint(1, 2),
        heads=4,
        blocks=40,
        loss=lot.choice([0.0, 0.02, 0.15]),
        doubling=lot.choice([0.0, 0.05]),
        cuts=lot.randint(0, 4),
        crashes=lot.randint(0, 3),
    )


class World(Simulation):
    """One run; a function of its seed and its plan."""

    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        super().__init__(seed)
        self.plan = plan or drawn(self.rng)
        self.links = Links(self, Weather(LATENCY, self.plan.loss, self.plan.doubling))
        self.chains: dict[DatasetId, list[bytes]] = {}
        self.things: dict[Multihash, bytes] = {}
        self.signed: dict[bytes, tuple[DatasetId, int, bytes]] = {}
        self.idle: set[bytes] = set()
        """Signed too, and of no dataset that anybody wants."""
        self.overruns: Counter[PeerId] = Counter()
        """Messages that somebody dropped since this neighbour sent too many."""
        self.told_at: dict[bytes, float] = {}
        """When an envelope was signed."""
        self._populate()
        self._plan_faults()

    def _populate(self) -> None:
        lot, plan = self.rng, self.plan
        drawn_lots = lot.sample(range(plan.nodes), plan.liars)
        lying, flooding = set(drawn_lots), set(drawn_lots[: plan.floods])
        names = [PeerId(f"n{number}") for number in range(plan.nodes)]
        self.nodes = {
            name: Node(self, name, FLOODS if number in flooding else lot.choice(LIES) if number in lying else "")
            for number, name in enumerate(names)
        }
        self.honest = [node for node in self.nodes.values() if not node.lie]
        self._link()
        for node in self.nodes.values():
            node.start()
        for number in range(plan.datasets):
            publisher = self.honest[number % min(2, len(self.honest))]
            dataset = DatasetId.from_public_key(hashlib.sha3_256(b"dataset %d" % number).digest())
            self.chains[dataset] = []
            for _ in range(lot.randint(1, plan.heads)):
                self.at(lot.uniform(0, STORM * 0.8), self.publish, publisher, dataset)

    def _link(self) -> None:
        """Liars may be anywhere, but the honest ones hang together: a ring, and links by lot."""
        if self.plan.degree is None:
            for node in self.nodes.values():
                node.links = [name for name in self.nodes if name != node.name]
            return
        pairs = {frozenset((one.name, self.honest[at - 1].name)) for at, one in enumerate(self.honest)}
        names = list(self.nodes)
        while len(pairs) < self.plan.nodes * self.plan.degree // 2:
            pairs.add(frozenset(self.rng.sample(names, 2)))
        for one, other in sorted(sorted(pair) for pair in pairs):
            self.nodes[one].links.append(other)
            self.nodes[other].links.append(one)

    def _plan_faults(self) -> None:
        for _ in range(self.plan.cuts):
            self.at(self.rng.uniform(1, STORM), self.cut)
        for _ in range(self.plan.crashes):
            self.at(self.rng.uniform(1, STORM), self.crash)
        self.at(STORM, self.links.calm)

    def publish(self, publisher: Node, dataset: DatasetId) -> None:
        if not publisher.is_up:
            self.after(1.0, self.publish, publisher, dataset)
            return
        chain = self.chains[dataset]
        for _ in range(self.rng.randint(1, self.plan.blocks)):
            thing = self.rng.randbytes(self.rng.choice(self.plan.things))
            self.things[Multihash.sha3_256(thing)] = thing
            publisher.things[Multihash.sha3_256(thing)] = thing
            block = linked(chain[-1] if chain else b"", "." * self.rng.choice([5, 60, 300, 2000]), thing)
            chain.append(block)
        publisher.chains[dataset] = list(chain)
        envelope = b"head %s %d " % (str(dataset).encode(), len(chain)) + hashlib.sha3_256(chain[-1]).digest()
        self.signed[envelope] = (dataset, len(chain), hashlib.sha3_256(chain[-1]).digest())
        self.told_at[envelope] = self.now
        publisher.own.add(Multihash.sha3_256(envelope))
        publisher.learn(envelope, publisher.name)

    def crash(self) -> None:
        self.rng.choice(list(self.nodes.values())).crash(self.rng.uniform(0.1, 10))

    def cut(self) -> None:
        one, other = self.rng.sample(list(self.nodes), 2)
        self.links.cut(one, other, self.rng.uniform(1, 30))
        if self.rng.random() < 0.5:
            self.links.reset(one, other)

    def send(self, what: str, src: PeerId, dst: PeerId, work: Callable[..., None], *args: Any) -> None:
        """``work``: a method of the node that gets it."""
        node = self.nodes[dst]
        self.links.send(what, src, dst, node.in_life(work), node, *args)

    def converged(self) -> bool:
        return all(
            node.chains.get(dataset, []) == chain for node in self.honest for dataset, chain in self.chains.items()
        ) and all(name in node.things for node in self.honest for name in self.things)

    def converge(self) -> float:
        """Run until all honest nodes have all; the virtual time. Fails when they do not get there."""
        while self.now < STORM or not self.converged():
            assert self.now < STORM + CALM, f"not converged: {[node.missing() for node in self.honest]}"
            for _ in range(50):
                self.step()
            self.check_some()
        for node in self.honest:
            node.check()
        return self.now

    def check_some(self) -> None:
        """All of a small world; of a large one a few nodes at a time."""
        few = self.honest if len(self.honest) <= 6 else self.rng.sample(self.honest, 6)
        for node in few:
            node.check()
