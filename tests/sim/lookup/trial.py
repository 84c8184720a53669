"""Builds a world by its plan, lets it live, publishes and seeks, and counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import isfinite
from random import Random
from typing import Any, NamedTuple, TypeGuard

from chain.statements.keys import SigningKey
from p2p.wire.contact import LookupContact, place_of
from sim.lookup.gossip import Gossiper, GossipLiar, GossipPoisoner
from sim.lookup.liars import Eclipser, Liar, Poisoner, ground, hashed
from sim.lookup.node import Honest, Stock
from sim.lookup.world import BOOTSTRAPS, Member, Plan, Quest, SimNode, World, rented

BEFORE_SEEKING = 30.0
"""Seconds between a first announcement and the first search."""


class Kinds(NamedTuple):
    honest: type[Member]
    liar: type[Member]
    poisoner: type[Member]


WAYS = {
    "lookup": Kinds(Honest, Liar, Poisoner),
    "stock": Kinds(Stock, Liar, Poisoner),
    "gossip": Kinds(Gossiper, GossipLiar, GossipPoisoner),
}


@dataclass
class Outcome:
    seeks: int = 0
    found: list[float] = field(default_factory=list)
    """Seconds until the holder's record was there,"""
    reached: list[float] = field(default_factory=list)
    """and until the holder had answered."""
    cut_off: int = 0
    """Searches without a result, of newcomers that knew no honest node."""
    attacked_seeks: int = 0
    attacked_reached: int = 0
    traffic: list[float] = field(default_factory=list)
    """Bytes a second that a node received, and as much sent, without what the measured searches cost."""
    idle: list[float] = field(default_factory=list)
    """Bytes a second each way of all nodes, by each node with upkeep: what one causes, at itself and at others, is what
    one has where all have upkeep."""
    costs: Counter[str] = field(default_factory=Counter)
    """The same by what it is for."""
    memory: int = 0
    """Bytes of what one node knows of the others."""
    asked: list[int] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        for name, value in vars(other).items():
            setattr(self, name, max(self.memory, value) if name == "memory" else getattr(self, name) + value)


def quantile(values: list[float], part: float) -> float:
    """Of no values: infinite."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else float("inf")


class Trial(World):
    def __init__(self, seed: int, plan: Plan) -> None:
        super().__init__(seed, plan)
        self.outcome = Outcome()
        self.kinds = WAYS[plan.way]
        self.sought: list[tuple[bytes, Member]] = []
        self.invent(20 * plan.nodes)

    def converge(self) -> Outcome:
        plan = self.plan
        for at in range(plan.nodes):
            self.join(self.add(self._drawn(at / plan.nodes)), is_first=True)
        self._attack()
        if plan.warm:
            self._warm()
        self.run_until(60 * plan.minutes)
        self._poison()
        self.run_until(60 * plan.minutes + 30)
        self._publish()
        self._settle_silent()
        before = {node: (node.sent + node.received) for node in self.alive}
        moved, began, kept, costs = self.moved, self.now, self._kept(), Counter(self.costs)
        self.run_until(60 * (plan.minutes + plan.measured) + 60)
        kept = (kept + self._kept()) / 2
        if plan.upkeep:
            share = 2 * (self.now - began) * max(1.0, kept)
            self.outcome.idle.append((self.moved - moved) / share)
            self.outcome.costs.update({why: size / share for why, size in (self.costs - costs).items()})
        self._count(before)
        return self.outcome

    def _drawn(self, part: float) -> Any:
        return self.kinds.liar if part < self.plan.lying else self.kinds.honest

    def join(self, node: SimNode, *, is_first: bool = False) -> None:
        assert isinstance(node, Member)
        if not is_first or not self.plan.warm:
            node.bootstrap(self._bootstraps(node))
        if node.is_honest and self.rng.random() < self.plan.silent / 2:
            node.silent_from = self.now if not is_first else 0.0
        if node.is_honest:
            node.serve({hashed(f"{self.dice.random()}") for _ in range(self.plan.published)})
            node.spread()
        self.after(self.lifetime(), self._replace, node)

    def _bootstraps(self, node: SimNode) -> list[LookupContact]:
        """Members as a person gets them: any, liars and silent ones too, but nobody who came to attack a key."""
        alive = self.alive
        drawn = (alive[int(self.rng.random() * len(alive))] for _ in range(10 * BOOTSTRAPS))
        return [one.contact for one in drawn if one is not node and isinstance(one, Member)][:BOOTSTRAPS]

    def _replace(self, node: Member) -> None:
        if not node.is_alive or any(node is holder for _, holder in self.sought):
            return
        self.leave(node)
        self.join(self.add(self.kinds.honest if node.is_honest else self.kinds.liar))

    def _warm(self) -> None:
        """All know what one knows after a long time: whoever answered, liars too."""
        known = sorted((one.contact for one in self.alive if one.answers(0.0)), key=lambda contact: contact.place)
        places = [contact.place for contact in known]
        for node in [one for one in self.alive if isinstance(one, Member)]:
            node.warm(known, places)
        for gone in self.rng.sample(self.alive, int(self.plan.stale * len(self.alive))):
            self.leave(gone)

    def _settle_silent(self) -> None:
        """As many as never answered fall silent at some time of the measured minutes."""
        until = 60 * self.plan.measured
        holders = {holder for _, holder in self.sought}
        part = self.plan.silent / 2 / (1 - self.plan.silent / 2)
        for node in self.alive:
            if isinstance(node, Member) and node.is_honest and node.answers(self.now) and node not in holders:
                draws = self.rng.random(), self.rng.random()
                if draws[0] < part:
                    node.silent_from = self.now + draws[1] * until / 2

    # What is measured

    def _honest(self, age: float = 0.0) -> list[Member]:
        return [one for one in self.alive if self._may_seek(one, age)]

    def _may_seek(self, one: SimNode, age: float) -> TypeGuard[Member]:
        is_honest = isinstance(one, Member) and one.is_honest and one.is_settled
        return is_honest and one.answers(self.now) and one.born <= self.now - age

    def _any_honest(self, what: str, age: float, *others: Member) -> Member:
        """One by lot. ``what`` for: so the same, whatever was drawn before, unless that one has not joined."""
        lot, alive = Random(f"{self.seed} {what}"), self.alive
        while True:
            one = alive[int(lot.random() * len(alive))]
            if self._may_seek(one, age) and one not in others:
                return one

    def _kept(self) -> float:
        now = self.now
        return sum(isinstance(one, Member) and one.is_kept and one.answers(now) for one in self.alive)

    def _attack(self) -> None:
        plan = self.plan
        self.keys = [hashed(f"sought {at} {self.rng.random()}") for at in range(plan.sought)]
        for key in self.keys[: plan.eclipses]:
            ips = list(rented(plan.attack_blocks, -(-plan.attackers // max(1, plan.attack_blocks)), self.rng))
            gang: list[Eclipser] = []
            for ip, secret in zip(ips, ground(place_of(key), plan.attackers, 4 * plan.nodes, self.rng), strict=False):
                node = Eclipser(self, secret, bytes([ip[0] + self.keys.index(key) % 30, *ip[1:]]), self.alive[0].spot)
                if (node.contact.ip, node.contact.port) not in self.reached:
                    self.enter(node)
                    gang.append(node)
            lies = [gang[at % len(gang)].record(key, SigningKey(self.rng.randbytes(32))) for at in range(plan.forged)]
            target = place_of(key)
            honest = (one for one in self.alive if isinstance(one, Member) and one.is_honest)
            near = sorted(honest, key=lambda one: one.contact.place ^ target)[:40]
            for node in gang:
                node.gang = [one.contact for one in gang]
                node.near, node.lies = near, lies
                for again in range(8):
                    self.after(self.rng.random() * 60 + 75 * again, node.intrude)

    def _poison(self) -> None:
        """Peers that have nothing say to each keeper that they serve an attacked dataset, as honest ones would."""
        for key in self.keys[: self.plan.eclipses]:
            for ip in rented(self.plan.poisoners, 1, self.rng):
                ip = bytes([ip[0] + self.keys.index(key) % 30, *ip[1:]])
                poisoner = self.add(self.kinds.poisoner, ip)
                assert isinstance(poisoner, Member)
                poisoner.bootstrap(self._bootstraps(poisoner))
                if self.plan.warm:
                    near = sorted(self._honest(), key=lambda one: one.contact.place ^ place_of(key))[:20]
                    known = sorted((one.contact for one in near), key=lambda contact: contact.place)
                    poisoner.warm(known, [contact.place for contact in known])
                poisoner.publish(key)

    def _publish(self) -> None:
        plan = self.plan
        for key in self.keys:
            holder = self._any_honest(f"holder {key.hex()}", 60.0, *(holder for _, holder in self.sought))
            self.sought.append((key, holder))
            holder.publish(key)
            for number in range(plan.seekers):
                at = BEFORE_SEEKING + self.rng.random() * (60 * plan.measured - BEFORE_SEEKING)
                self.after(at, self._seek, key, holder, number)

    def _seek(self, key: bytes, holder: Member, number: int) -> None:
        seeker = self._any_honest(f"seeker {key.hex()} {number}", 60.0, holder)
        self.outcome.seeks += 1
        seeker.seek(key, holder.key.public, self._sought)

    def _sought(self, seek: Quest) -> None:
        outcome = self.outcome
        assert isinstance(seek.node, Member)
        outcome.asked.append(seek.asked)
        outcome.cut_off += seek.found_at is None and seek.node.is_cut_off
        if seek.found_at is not None:
            outcome.found.append(seek.found_at - seek.began)
        if seek.reached_at is not None:
            outcome.reached.append(seek.reached_at - seek.began)
        if seek.key in self.keys[: self.plan.eclipses]:
            outcome.attacked_seeks += 1
            outcome.attacked_reached += seek.reached_at is not None

    def _count(self, before: dict[SimNode, int]) -> None:
        outcome, seconds = self.outcome, 60 * self.plan.measured + 60
        for node in self._honest(60 * self.plan.measured + 60) if self.plan.upkeep >= 1 and self.net is None else ():
            outcome.traffic.append((node.sent + node.received - before[node]) / seconds / 2)
        outcome.memory = self._any_honest("memory", 60.0).memory()


# Rows that ``figures`` prints

HEAD = "| nodes | way | found | p50 s | p99 s | reached, p99 s | asked | KiB/s idle | KiB a node |"


def row(name: str, outcome: Outcome) -> str:
    """One way of looking up: the part found, seconds, questions in the mean, bytes a second each way, memory."""
    found = f"{100 * len(outcome.found) / max(1, outcome.seeks):.1f} %"
    seconds = [quantile(outcome.found, 0.5), quantile(outcome.found, 0.99), quantile(outcome.reached, 0.99)]
    asked = f"{sum(outcome.asked) / max(1, len(outcome.asked)):.0f}"
    idle = outcome.traffic or outcome.idle
    traffic = f"{sum(idle) / len(idle) / 1024:.1f}" if idle else ""
    memory = f"{outcome.memory / 1024:,.0f}" if outcome.memory else ""
    times = (f"{each:.1f}" if isfinite(each) else "" for each in seconds)
    return " | ".join([f"| {name}", found, *times, asked, traffic, memory]) + " |"


def costs(outcome: Outcome, runs: int = 1) -> str:
    """KiB a second each way, by what it is for."""
    return " · ".join(f"{why} {size / runs / 1024:.2f}" for why, size in sorted(outcome.costs.items()))
