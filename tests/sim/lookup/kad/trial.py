"""Builds a world by its plan, lets it live, publishes and seeks, and counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from chain.statements.keys import SigningKey
from p2p.wire.contact import LookupContact, place_of

from .addresses import rented
from .gossip import Gossiper, GossipLiar, GossipPoisoner
from .liars import Eclipser, Liar, Poisoner, ground, hashed
from .member import Member, Quest
from .node import Honest
from .stock import Stock
from .world import BOOTSTRAPS, Plan, SimNode, World

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


class Trial:
    def __init__(self, seed: int, plan: Plan) -> None:
        self.plan = plan
        self.world = World(seed, plan)
        self.outcome = Outcome()
        self.lot = self.world.lot
        self.seed = seed
        self.kinds = WAYS[plan.way]
        self.sought: list[tuple[bytes, Member]] = []
        self.world.invent(20 * plan.nodes)

    def run(self) -> Outcome:
        world, plan = self.world, self.plan
        for at in range(plan.nodes):
            self.join(world.add(self._drawn(at / plan.nodes)), is_first=True)
        self._attack()
        if plan.warm:
            self._warm()
        world.run(60 * plan.minutes)
        self._poison()
        world.run(60 * plan.minutes + 30)
        self._publish()
        self._settle_silent()
        before = {node: (node.sent + node.received) for node in world.alive}
        moved, began, kept, costs = world.moved, world.now, self._kept(), Counter(world.costs)
        world.run(60 * (plan.minutes + plan.measured) + 60)
        kept = (kept + self._kept()) / 2
        if plan.upkeep:
            share = 2 * (world.now - began) * max(1.0, kept)
            self.outcome.idle.append((world.moved - moved) / share)
            self.outcome.costs.update({why: size / share for why, size in (world.costs - costs).items()})
        self._count(before)
        return self.outcome

    def _drawn(self, part: float) -> Any:
        return self.kinds.liar if part < self.plan.lying else self.kinds.honest

    def join(self, node: SimNode, *, is_first: bool = False) -> None:
        world = self.world
        assert isinstance(node, Member)
        if not is_first or not self.plan.warm:
            node.bootstrap(self._bootstraps(node))
        if node.is_honest and self.lot.random() < self.plan.silent / 2:
            node.silent_from = world.now if not is_first else 0.0
        if node.is_honest:
            node.serve({hashed(f"{world.dice.random()}") for _ in range(self.plan.published)})
            node.spread()
        world.after(world.lifetime(), self._replace, node)

    def _bootstraps(self, node: SimNode) -> list[LookupContact]:
        """Members as a person gets them: any, liars and silent ones too, but nobody who came to attack a key."""
        alive = self.world.alive
        drawn = (alive[int(self.lot.random() * len(alive))] for _ in range(10 * BOOTSTRAPS))
        return [one.contact for one in drawn if one is not node and isinstance(one, Member)][:BOOTSTRAPS]

    def _replace(self, node: Member) -> None:
        if not node.is_alive or any(node is holder for _, holder in self.sought):
            return
        self.world.leave(node)
        self.join(self.world.add(self.kinds.honest if node.is_honest else self.kinds.liar))

    def _warm(self) -> None:
        """All know what one knows after a long time: whoever answered, liars too."""
        known = sorted((one.contact for one in self.world.alive if one.answers(0.0)), key=lambda contact: contact.place)
        places = [contact.place for contact in known]
        for node in [one for one in self.world.alive if isinstance(one, Member)]:
            node.warm(known, places)
        for node in self.lot.sample(self.world.alive, int(self.plan.stale * len(self.world.alive))):
            self.world.leave(node)

    def _settle_silent(self) -> None:
        """As many as never answered fall silent at some time of the measured minutes."""
        until = 60 * self.plan.measured
        holders = {holder for _, holder in self.sought}
        part = self.plan.silent / 2 / (1 - self.plan.silent / 2)
        for node in self.world.alive:
            if isinstance(node, Member) and node.is_honest and node.answers(self.world.now) and node not in holders:
                draws = self.lot.random(), self.lot.random()
                if draws[0] < part:
                    node.silent_from = self.world.now + draws[1] * until / 2

    # What is measured

    def _honest(self, age: float = 0.0) -> list[Member]:
        return [one for one in self.world.alive if self._may_seek(one, age)]

    def _may_seek(self, one: SimNode, age: float) -> bool:
        now = self.world.now
        is_honest = isinstance(one, Member) and one.is_honest and one.is_settled
        return is_honest and one.answers(now) and one.born <= now - age

    def _any_honest(self, what: str, age: float, *others: Member) -> Member:
        """One by lot. ``what`` for: so the same, whatever was drawn before, unless that one has not joined."""
        lot, alive = Random(f"{self.seed} {what}"), self.world.alive
        while True:
            one = alive[int(lot.random() * len(alive))]
            if self._may_seek(one, age) and one not in others:
                return one

    def _kept(self) -> float:
        now = self.world.now
        return sum(isinstance(one, Member) and one.is_kept and one.answers(now) for one in self.world.alive)

    def _attack(self) -> None:
        plan, world = self.plan, self.world
        self.keys = [hashed(f"sought {at} {self.lot.random()}") for at in range(plan.sought)]
        for key in self.keys[: plan.eclipses]:
            ips = list(rented(plan.attack_blocks, -(-plan.attackers // max(1, plan.attack_blocks)), self.lot))
            gang: list[Eclipser] = []
            for ip, secret in zip(ips, ground(place_of(key), plan.attackers, 4 * plan.nodes, self.lot), strict=False):
                node = Eclipser(world, secret, bytes([ip[0] + self.keys.index(key) % 30, *ip[1:]]), world.alive[0].spot)
                if (node.contact.ip, node.contact.port) not in world.at:
                    world.enter(node)
                    gang.append(node)
            lies = [gang[at % len(gang)].record(key, SigningKey(self.lot.randbytes(32))) for at in range(plan.forged)]
            target = place_of(key)
            honest = (one for one in world.alive if isinstance(one, Member) and one.is_honest)
            near = sorted(honest, key=lambda one: one.contact.place ^ target)[:40]
            for node in gang:
                node.gang = [one.contact for one in gang]
                node.near, node.lies = near, lies
                for again in range(8):
                    world.after(self.lot.random() * 60 + 75 * again, node.intrude)

    def _poison(self) -> None:
        """Peers that have nothing say to each keeper that they serve an attacked dataset, as honest ones would."""
        world = self.world
        for key in self.keys[: self.plan.eclipses]:
            for ip in rented(self.plan.poisoners, 1, self.lot):
                ip = bytes([ip[0] + self.keys.index(key) % 30, *ip[1:]])
                poisoner = world.add(self.kinds.poisoner, ip)
                assert isinstance(poisoner, Member)
                poisoner.bootstrap(self._bootstraps(poisoner))
                if self.plan.warm:
                    near = sorted(self._honest(), key=lambda one: one.contact.place ^ place_of(key))[:20]
                    known = sorted((one.contact for one in near), key=lambda contact: contact.place)
                    poisoner.warm(known, [contact.place for contact in known])
                poisoner.publish(key)

    def _publish(self) -> None:
        world, plan = self.world, self.plan
        for key in self.keys:
            holder = self._any_honest(f"holder {key.hex()}", 60.0, *(holder for _, holder in self.sought))
            self.sought.append((key, holder))
            holder.publish(key)
            for number in range(plan.seekers):
                at = BEFORE_SEEKING + self.lot.random() * (60 * plan.measured - BEFORE_SEEKING)
                world.after(at, self._seek, key, holder, number)

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
        outcome, world, seconds = self.outcome, self.world, 60 * self.plan.measured + 60
        for node in self._honest(60 * self.plan.measured + 60) if self.plan.upkeep >= 1 and world.net is None else ():
            outcome.traffic.append((node.sent + node.received - before[node]) / seconds / 2)
        outcome.memory = self._any_honest("memory", 60.0).memory()
