"""Who is in a network of trust and who publishes what when; links lose, are cut and eclipsed.

Every ask and answer of anti-entropy passes the real codec and the real machine; gossip is a hint that may be lost. A
round is a minute: each node sits down once in it, and asks two neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import ceil, log2
from random import Random

import msgspec

from chain import instant
from chain.errors import Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.statements.checkpoint import TreeCheckpoint
from chain.statements.cosignature import Cosignature
from chain.statements.envelope import Signed
from chain.statements.keys import SigningKey
from chain.statements.proof import Proof
from chain.statements.statement import HeadStatement
from odfd.policy.policy import load_policy
from odfd.policy.witness_quorum import Witnesses
from p2p.machines.reconcile import Done, Effect, Fetch, Reconcile, Show, answer
from p2p.ports import Judgement, PeerId, StatementRef, Topic
from p2p.wire import trust
from sim.kernel import Links, Simulation, Weather
from sim.trust.fabric import (
    START,
    STRICT,
    Branch,
    Machine,
    RememberedJournal,
    cosigned,
    digest,
    head_of,
    key_of,
    opened,
)
from sim.trust.liars import MIXED, PLOTS, Liar
from sim.trust.node import STEPS_A_SITTING, Book, Node
from sim.trust.promises import Broken, Promises

ROUND = 60.0
"""Seconds of virtual time."""
CONTACTS = 3
"""Peers asked in a round (docs/spec/trust.md#gossip)."""
EVENTS = 5
"""Rounds in which things are published."""
UNREPEATABLE = ("unrepeatable-1", "unrepeatable-2", "unrepeatable-3", "unrepeatable-4", "unrepeatable-5")
KINDS = ("honest", "honest-too", "lie", "forged-state", "fork", "restored", "stray-epoch")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is not left to the seed."""

    faulty: int = 0
    """Groups beyond f that lie together."""
    recipe: str = STRICT
    """Else: all but one of the datasets have such a query, and everybody takes it for strict."""
    nodes: int | None = None
    kinds: tuple[str, ...] | None = None
    plot: str | None = None
    heal: int | None = None


ANY = Plan()


@dataclass
class Source:
    """A dataset's publisher."""

    kind: str
    branches: list[Branch]
    homes: list[Node]
    at: int
    """The round of its deed."""
    journal: RememberedJournal = field(default_factory=RememberedJournal)
    heads: list[tuple[Branch, Signed]] = field(default_factory=list)
    name: str = ""
    cosignatures: list[Cosignature] = field(default_factory=list)

    @property
    def dataset(self) -> DatasetId:
        return self.branches[0].dataset

    @property
    def honest(self) -> bool:
        return self.kind not in ("lie", "forged-state", "fork")

    @property
    def forked_at(self) -> int | None:
        """Where its branches part."""
        if len(self.branches) < 2:
            return None
        pairs = zip(*(branch.blocks for branch in self.branches[:2]), strict=False)
        return next((place for place, (one, other) in enumerate(pairs) if one != other), None)


class World(Simulation):
    """One seed's network."""

    def __init__(self, seed: int, plan: Plan = ANY) -> None:
        super().__init__(seed)
        self.plan = plan
        self.round = 0
        self.gossips = self.rng.random() < 0.5
        self.links = Links(self, Weather((0.01, 2.0), self.rng.choice([0.0, 0.03, 0.06])))
        self.heal = self.rng.choice([0, 0, EVENTS + 3]) if plan.heal is None else plan.heal
        """The round in which partitions and eclipses end."""
        self.promises = Promises(self)
        self.rounds_to_settle = 0
        self._people()
        self._link()
        self._publishers()
        self._touched: set[tuple[PeerId, DatasetId]] = set()

    # Who there is

    def _people(self) -> None:
        rng, plan = self.rng, self.plan
        f = rng.choice([0, 1, 1, 2]) if plan.nodes is None else 1
        count = rng.randint(2 * f + 1, 3 * f + 2)
        liars = f + plan.faulty if plan.faulty else rng.choice([f, f, rng.randint(0, f)])
        broken = 1 if liars < f and rng.random() < 0.7 else 0
        quorum = quorum_between(rng, f + 1, count - f)
        groups = {
            f"g{number}": [f"g{number}.{at}" for at in range(rng.choice([1, 1, 1, 2]))] for number in range(count)
        }
        listed = [(name, [str(key_of(key).did) for key in keys]) for name, keys in groups.items()]
        use = f"data & (reproduced | attested:{quorum})"
        self.policy = load_policy(use=use, serve="data", groups=listed, tolerated=f)
        mirror = load_policy(use=f"data & attested:{quorum}", serve="data", groups=listed, tolerated=f)
        runner = load_policy(use="data & reproduced", serve="data", groups=listed, tolerated=f)
        self.witnesses = Witnesses(
            groups={key_of(key).did: group for group, keys in groups.items() for key in witnesses_of(keys)}, faulty=f
        )
        spare = count - liars - broken - max(quorum, f + 1)
        """Groups that may go without counting."""
        plot = plan.plot or rng.choice(["affirm", "deny"] if plan.faulty else PLOTS)
        self.nodes: dict[PeerId, Node] = {}
        self.liars: dict[PeerId, Liar] = {}
        for number, (group, keys) in enumerate(groups.items()):
            platform = "linux/arm64" if digest(group, rng.random())[0] < 64 else "linux/amd64"
            flaw = 0.4 if liars <= number < liars + broken else 0.0
            opaque = number >= liars + broken and spare > 0 and rng.random() < 0.3
            spare -= opaque
            for key in keys:
                machine = Machine(group, platform, Random(rng.random()), flaw)
                if number < liars:
                    face = rng.choice(MIXED) if plot == "mixed" else plot
                    self.liars[PeerId(key)] = Liar(self, key, face, machine)
                    continue
                node = Node(self, key, mirror if opaque else self.policy, machine, group)
                node.opaque = opaque
                self.nodes[node.name] = node
        self.faulty = {f"g{number}" for number in range(liars + broken)}
        for number in range(rng.randint(2, 3) if plan.nodes is None else plan.nodes - len(self.nodes)):
            machine = Machine(f"m{number}", "linux/amd64", Random(rng.random()))
            runs = rng.random() < 0.25 and plan.nodes is None
            node = Node(self, f"m{number}", runner if runs else mirror, machine, None)
            node.runs_steps = runs
            self.nodes[node.name] = node
        self.sound = [node for node in self.nodes.values() if node.sound]
        self._numbers = {name: number for number, name in enumerate([*self.nodes, *self.liars])}

    def _link(self) -> None:
        """A ring of honest nodes with chords; each has a liar for a neighbour, if there is one."""
        names = list(self.nodes)
        for number, name in enumerate(names):
            others = [names[(number + 1) % len(names)], self.rng.choice(names)]
            others += self.rng.sample(list(self.liars), min(1, len(self.liars)))
            for other in others:
                if other != name:
                    self.anyone(name).links.add(other)
                    self.anyone(other).links.add(name)
        if self.heal:
            sides = {name: self.rng.randrange(2) for name in names}
            if self.rng.random() < 0.5 and self.liars:
                self.seen["eclipsed"] += 1
                sides[names[-1]] = 2
            for one, other in combinations(names, 2):
                if sides[one] != sides[other]:
                    self.links.cut(one, other, self.heal * ROUND)

    def _publishers(self) -> None:
        rng, recipe = self.rng, self.plan.recipe
        drawn = rng.sample(KINDS, rng.randint(2, 4)) if recipe == STRICT else [*UNREPEATABLE[:2], "honest"]
        kinds = self.plan.kinds or drawn
        self.sources: list[Source] = []
        for kind in kinds:
            key = key_of(f"publisher of {kind}")
            branch = Branch(key.dataset_id, STRICT if kind == "honest" else recipe)
            homes = rng.sample(self.sound, min(4 if kind == "fork" else 1, len(self.sound)))
            self.sources.append(Source(kind, [branch], homes, rng.randint(1, EVENTS - 2), name=f"publisher of {kind}"))
        self.source_of = {source.dataset: source for source in self.sources}
        self.honest_keys = {node.key.did for node in self.nodes.values()} | {
            key_of(source.name).did for source in self.sources if source.honest
        }

    def anyone(self, name: PeerId) -> Node | Liar:
        return self.nodes.get(name) or self.liars[name]

    def number_of(self, name: PeerId) -> int:
        return self._numbers[name]

    def clock(self) -> Instant:
        """Nodes look at it once a round; that keeps statements alike among worlds."""
        return Instant(START + self.round * 60 * instant.SECOND)

    def contacts(self, node: Node) -> list[PeerId]:
        """Whom it asks in this round: neighbours, and one from outside of its mesh (docs/spec/trust.md#gossip)."""
        there = [peer for peer in sorted(self._numbers) if peer != node.name and self.links.is_open(node.name, peer)]
        near = [peer for peer in there if peer in node.links]
        far = [peer for peer in there if peer not in node.links]
        lot = node.machine.rng
        asked = lot.sample(far, min(1, len(far)))
        return asked + lot.sample(near, min(CONTACTS - len(asked), len(near)))

    # Gossip, anti-entropy, blocks

    def gossip(self, topic: Topic, raw: bytes, sender: PeerId, to: PeerId) -> None:
        if to in self.nodes:
            self.nodes[to].gossiped(topic, raw, sender)

    def meet(self, node: Node, peer: PeerId) -> None:
        """One round of anti-entropy; a lost message ends it."""
        machine = Reconcile(node.refs())
        self._perform(node, peer, machine, machine.start())

    def _perform(self, node: Node, peer: PeerId, machine: Reconcile, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Fetch(ask):
                    self.links.send("ask", node.name, peer, self._asked, node, peer, machine, trust.encode(ask))
                case Show(statements):
                    for signed in statements:
                        judged = node.judge(signed.topic, signed.envelope, peer)
                        self.promises.expect(
                            judged is not Judgement.REJECT, "J", f"{node.name} refuses what {peer} says"
                        )
                case Done():
                    pass

    def _asked(self, node: Node, peer: PeerId, machine: Reconcile, body: bytes) -> None:
        board = self.liars[peer].shown_to(node.name) if peer in self.liars else self.nodes[peer].board
        refs = [StatementRef(sid, dataset) for sid, (_, _, dataset) in board.items()]
        tell = trust.encode(answer(trust.decode_ask(body), lambda _: refs, lambda sid: _found(board.get(sid))))
        self.links.send("tell", peer, node.name, self._told, node, peer, machine, tell)

    def _told(self, node: Node, peer: PeerId, machine: Reconcile, tell: bytes) -> None:
        self._perform(node, peer, machine, machine.handle(trust.decode_tell(tell)))

    def want(self, head: HeadStatement, asker: PeerId, to: PeerId) -> None:
        """Blocks of a head, of whoever has them; liars give those of a fork."""
        if to in self.nodes:
            branch = self.nodes[to].holding(head)
        else:
            branch = next((b for s in self.sources if s.dataset == head.dataset for b in s.branches
                           if head.size <= len(b) and b.root(head.size) == head.root_hash), None)  # fmt: skip
        if branch is not None:
            self.links.send("blocks", to, asker, self.nodes[asker].given, head, branch)

    # What happens

    def publish(self, source: Source) -> None:
        kind, key = source.kind, key_of(source.name)
        if kind == "restored" and self.round == 3:
            self._restore(source)
        if kind == "fork" and self.round == source.at:
            source.branches.append(source.branches[0].prefix(len(source.branches[0])))
        if kind == "stray-epoch" and self.round == 3:
            stray = source.branches[0].prefix(1)
            stray.append(b"rewritten", self.machine)
            self._tell(source.homes[0], stray, head_of(stray, 2, key, self.clock(), epoch=1))
        for number, branch in enumerate(source.branches[:1] if source.honest else source.branches):
            lie = {"lie": "rows", "forged-state": "state"}.get(kind, "") if self.round == source.at else ""
            if kind == "fork" and number and self.round == source.at:
                lie = self.rng.choice(["", "rows"])
            self._append(source, branch, digest(source.name, self.round, number), lie)

    def _append(self, source: Source, branch: Branch, reads: bytes, lie: str) -> None:
        """A block, its head in the journal (of those who keep one), and the word to whoever is told first."""
        homes = source.homes if source.honest else source.homes[source.branches.index(branch) :: len(source.branches)]
        if source.honest:
            book = homes[0].book(source.dataset)
            branch = branch.prefix(book.size) if 0 < book.size < len(branch) else branch
            size, root = len(branch) + 1, digest(branch.blocks[-1].leaf, reads)
            try:
                source.journal.promise("head", (0, size), root.hex())
            except Refused:
                return
            if branch is not source.branches[0]:
                source.branches.insert(0, branch)
        branch.append(reads, self.machine, lie)
        signed = head_of(branch, len(branch), key_of(source.name), self.clock())
        source.heads.append((branch, signed))
        for home in homes:
            self._tell(home, branch, signed)

    def _tell(self, home: Node, branch: Branch, signed: Signed) -> None:
        found = opened(Topic.HEADS, signed.envelope)
        assert found is not None
        assert isinstance(found.predicate, HeadStatement)
        if home.judge(Topic.HEADS, signed.envelope, home.name) is Judgement.ACCEPT:
            home.given(found.predicate, branch)

    def _restore(self, source: Source) -> None:
        """The owner's stores are set back to an early backup; journals are in no backup."""
        home = source.homes[0]
        whole = len(source.branches[0])
        others = [node for node in self.sound if node is not home and node.book(source.dataset).size == whole]
        if not others or whole < 3:
            return
        old, branch = Book(), source.branches[0].prefix(2)
        for sid, (_, _, dataset) in list(home.board.items()):
            if dataset == source.dataset:
                del home.board[sid]
        home.accused = {key: found for key, found in home.accused.items() if found.dataset != source.dataset}
        home.books[source.dataset] = old
        head = next(signed for _, signed in source.heads if _size(signed) == 2)
        self._tell(home, branch, head)

    # Running

    def touch(self, node: Node, dataset: DatasetId) -> None:
        node.unreviewed = node.unread = True
        self._touched.add((node.name, dataset))

    def cosigned(self, key: SigningKey, branch: Branch, size: int) -> None:
        """An honest witness signed; the faulty ones sign whatever there is of a dataset."""
        source = self.source_of[branch.dataset]
        if source.kind != "fork":
            return
        signs = [(key, branch, size)]
        liars = [liar.key for liar in self.liars.values() if liar.key.did in self.witnesses.groups]
        signs += [(liar, each, len(each)) for liar in liars for each in source.branches]
        for who, tree, blocks in signs:
            checkpoint = TreeCheckpoint(tree.dataset, 0, blocks, tree.root(blocks))
            source.cosignatures.append(cosigned(who, checkpoint, self.clock()))
        self.promises.no_two_quorums(source)

    def accused(self, found: Proof) -> None:
        self.promises.accused(found)

    def step(self) -> None:
        super().step()
        self.look()

    def look(self) -> None:
        touched, self._touched = self._touched, set()
        for name, dataset in sorted(touched):
            self.promises.check(self.nodes[name], dataset)

    @property
    def machine(self) -> Machine:
        return Machine("publisher", "linux/amd64", self.rng)

    @property
    def bound(self) -> int:
        """Rounds after the last event or healing within which all must be settled.

        Those of docs/spec/trust.md#invariants, which lets no time pass while steps are re-run, and the sittings that
        this takes.
        """
        return 2 * ceil(log2(len(self._numbers))) + 4 + ceil(EVENTS / STEPS_A_SITTING)

    def one_round(self) -> None:
        for source in self.sources if self.round < EVENTS else ():
            self.publish(source)
            self.look()
        for node in self.nodes.values():
            self.after(self.rng.uniform(0, 20), self._sit, node)
        self.run_until((self.round + 1) * ROUND)
        self.round += 1
        for node in self.sound:
            node.review()
        self.look()
        self.promises.nobody_honest_suspended()

    def _sit(self, node: Node) -> None:
        node.sit()
        for peer in self.contacts(node):
            self.meet(node, peer)

    def converge(self) -> World:
        """Until all is settled and everybody was told; then two days pass."""
        last = max(EVENTS, self.heal)
        calm = 0
        while calm < 2 or not self.promises.told_alike():
            self.one_round()
            settled = self.round >= last and self.promises.settled()
            calm = calm + 1 if settled else 0
            if calm == 1:
                self.rounds_to_settle = self.round - last
            late = self.round - last > self.bound * (2 if settled else 1)
            if late:
                raise Broken("L", f"{self.round - last} rounds after the last event: {self.promises.unsettled()}")
        self.round += 49 * 60
        for node in self.sound:
            node.review()
        self.look()
        self.promises.at_rest()
        return self


def witnesses_of(keys: Sequence[str]) -> Sequence[str]:
    """One key of a group: two honest ones could stand on two sides."""
    return keys[:1]


def quorum_between(rng: Random, least: int, most: int) -> int:
    """Any K that a policy may ask for."""
    return rng.randint(least, most)


def _found(held: tuple[Topic, bytes, DatasetId] | None) -> tuple[Topic, bytes] | None:
    return held and (held[0], held[1])


def _size(signed: Signed) -> int:
    found = opened(Topic.HEADS, signed.envelope)
    assert found is not None
    assert isinstance(found.predicate, HeadStatement)
    return found.predicate.size
