"""Virtual time, the network between nodes, and what was really published."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from chain.ids import DatasetId
from chain.multihash import Multihash
from p2p.budget.buckets import Rate
from p2p.driver.statements import GOSSIP_RATE
from p2p.ports import PeerId

from .node import FLOODS, LIES, Node, linked

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


class World:
    """One run; a function of its seed and its plan."""

    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        self.rng = Random(seed)
        self.plan = plan or drawn(self.rng)
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self.steps = 0
        self.sent: Counter[str] = Counter()
        """Messages by what they are."""
        self.cuts: set[frozenset[PeerId]] = set()
        self.loss, self.doubling = self.plan.loss, self.plan.doubling
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
                self.at(lot.uniform(0, STORM * 0.8), lambda p=publisher, d=dataset: self.publish(p, d))

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
            self.at(self.rng.uniform(1, STORM), lambda: self.rng.choice(list(self.nodes.values())).crash())
        self.at(STORM, self.calm)

    def at(self, when: float, work: Callable[[], None]) -> None:
        self.steps += 1
        heapq.heappush(self._queue, (max(when, self.now), self.steps, work))

    def after(self, wait: float, work: Callable[[], None]) -> None:
        self.at(self.now + wait, work)

    def publish(self, publisher: Node, dataset: DatasetId) -> None:
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

    def cut(self) -> None:
        one, other = self.rng.sample(list(self.nodes), 2)
        self.cuts.add(frozenset((one, other)))
        self.after(self.rng.uniform(1, 30), lambda: self.cuts.discard(frozenset((one, other))))

    def calm(self) -> None:
        self.loss = self.doubling = 0.0
        self.cuts.clear()

    def send(self, what: str, src: PeerId, dst: PeerId, work: Callable[[Node], None]) -> None:
        self.sent[what] += 1
        if frozenset((src, dst)) in self.cuts or self.rng.random() < self.loss:
            return
        life = self.nodes[dst].life
        for _ in range(2 if self.rng.random() < self.doubling else 1):
            self.after(
                self.rng.uniform(*LATENCY),
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
