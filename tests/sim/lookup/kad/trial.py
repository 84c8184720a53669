"""Builds a world by its plan, lets it live, publishes and seeks, and counts."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from p2p.lookup.node import OWN_PLACE, REFRESH
from p2p.lookup.publication import REPEAT
from p2p.wire.contact import Contact, place_of

from .addresses import rented
from .liars import Eclipser, Liar, Poisoner, ground, hashed
from .node import Honest, Seek, Stock
from .world import BOOTSTRAPS, Plan, SimNode, World, fill

BEFORE_SEEKING = 30.0
"""Seconds between a first announcement and the first search."""


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
    """Bytes of the largest node's table and records."""
    entries: list[int] = field(default_factory=list)
    records: list[int] = field(default_factory=list)
    estimates: list[float] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        for name, value in vars(other).items():
            setattr(self, name, max(self.memory, value) if name == "memory" else getattr(self, name) + value)


def quantile(values: list[float], part: float) -> float:
    """Of no values: infinite."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else float("inf")


def deep_size(thing: Any, seen: set[int] | None = None) -> int:
    """Bytes of an object with all that it holds; once for what is held twice."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, type):
        return 0
    seen.add(id(thing))
    size = sys.getsizeof(thing)
    if isinstance(thing, dict):
        size += sum(deep_size(key, seen) + deep_size(value, seen) for key, value in thing.items())
    elif isinstance(thing, list | tuple | set | frozenset):
        size += sum(deep_size(each, seen) for each in thing)
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    names = [*slots, *getattr(type(thing), "__struct_fields__", ()), *getattr(thing, "__dict__", {})]
    for name in names:
        if isinstance(name, str) and hasattr(thing, name):
            size += deep_size(getattr(thing, name), seen)
    return size


class Trial:
    def __init__(self, seed: int, plan: Plan) -> None:
        self.plan = plan
        self.world = World(seed, plan)
        self.outcome = Outcome()
        self.lot = self.world.lot
        self.kind = Stock if plan.stock else Honest
        self.sought: list[tuple[bytes, Honest]] = []
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
        return Liar if part < self.plan.lying else self.kind

    def join(self, node: SimNode, *, is_first: bool = False) -> None:
        world = self.world
        if not is_first or not self.plan.warm:
            node.bootstrap(self._bootstraps(node))
        is_liar = isinstance(node, Liar)
        if not is_liar and self.lot.random() < self.plan.silent / 2:
            node.silent_from = world.now if not is_first else 0.0
        if not is_liar:
            count = self.plan.published
            node.serve({hashed(f"{self.lot.random()}") for _ in range(count)})
            self._spread(node)
        world.after(world.lifetime(), self._replace, node)

    def _bootstraps(self, node: SimNode) -> list[Contact]:
        """Members as a person gets them: any, liars and silent ones too, but nobody who came to attack a key."""
        alive = self.world.alive
        drawn = (alive[int(self.lot.random() * len(alive))] for _ in range(10 * BOOTSTRAPS))
        return [one.contact for one in drawn if one is not node and isinstance(one, Honest)][:BOOTSTRAPS]

    def _spread(self, node: Honest) -> None:
        """It has announced its datasets before, at any time."""
        publication = node.machine.publication
        for key in list(publication._due):
            publication._plan(key, self.world.now + self.lot.random() * 0.875 * REPEAT)

    def _replace(self, node: SimNode) -> None:
        if not node.is_alive or any(node is holder for _, holder in self.sought):
            return
        self.world.leave(node)
        kind = Liar if isinstance(node, Liar) else self.kind
        self.join(self.world.add(kind))

    def _warm(self) -> None:
        """Tables as they are after a long time: with whoever answered, liars too."""
        known = sorted((one.contact for one in self.world.alive if one.answers(0.0)), key=lambda contact: contact.place)
        places = [contact.place for contact in known]
        for node in [one for one in self.world.alive if isinstance(one, Honest)]:
            fill(node.machine.table, node.machine.place, places, known, self.lot)
            node.machine.table.settled = node.machine._has_searched = True
            node.machine._own_search = -self.lot.random() * OWN_PLACE
            for bucket in node.machine.table._buckets.values():
                bucket.looked = -self.lot.random() * REFRESH
        for node in self.lot.sample(self.world.alive, int(self.plan.stale * len(self.world.alive))):
            self.world.leave(node)

    def _settle_silent(self) -> None:
        """As many as never answered fall silent at some time of the measured minutes."""
        until = 60 * self.plan.measured
        holders = {holder for _, holder in self.sought}
        part = self.plan.silent / 2 / (1 - self.plan.silent / 2)
        for node in self._honest():
            if node not in holders and self.lot.random() < part:
                node.silent_from = self.world.now + self.lot.random() * until / 2

    # What is measured

    def _honest(self, age: float = 0.0) -> list[Honest]:
        now = self.world.now
        return [
            one
            for one in self.world.alive
            if type(one) is self.kind and one.answers(now) and one.born <= now - age and one.machine.table.settled
        ]

    def _kept(self) -> float:
        now = self.world.now
        return sum(isinstance(one, Honest) and one.is_kept and one.answers(now) for one in self.world.alive)

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
            target = place_of(key)
            honest = (one for one in world.alive if type(one) is self.kind)
            near = sorted(honest, key=lambda one: one.contact.place ^ target)[:40]
            for node in gang:
                node.gang = [one.contact for one in gang]
                node.near = near
                for again in range(8):
                    world.after(self.lot.random() * 60 + 75 * again, node.intrude)

    def _poison(self) -> None:
        """Peers that have nothing say to each keeper that they serve an attacked dataset, as honest ones would."""
        world = self.world
        for key in self.keys[: self.plan.eclipses]:
            for ip in rented(self.plan.poisoners, 1, self.lot):
                ip = bytes([ip[0] + self.keys.index(key) % 30, *ip[1:]])
                poisoner = world.add(Poisoner, ip)
                poisoner.bootstrap(self._bootstraps(poisoner))
                if self.plan.warm:
                    near = sorted(self._honest(), key=lambda one: one.contact.place ^ place_of(key))[:20]
                    for one in near:
                        poisoner.machine.table.heard(one.contact, world.now)
                    poisoner.machine.table.settled = True
                poisoner.publish(key)

    def _publish(self) -> None:
        world, plan = self.world, self.plan
        holders = self.lot.sample(self._honest(60.0), plan.sought)
        for key, holder in zip(self.keys, holders, strict=True):
            self.sought.append((key, holder))
            holder.publish(key)
            for _ in range(plan.seekers):
                at = BEFORE_SEEKING + self.lot.random() * (60 * plan.measured - BEFORE_SEEKING)
                world.after(at, self._seek, key, holder)

    def _seek(self, key: bytes, holder: Honest) -> None:
        seekers = self._honest(60.0)
        seeker = holder
        while seeker is holder:
            seeker = seekers[int(self.lot.random() * len(seekers))]
        self.outcome.seeks += 1
        seeker.seek(key, holder.key.public, self._sought)

    def _sought(self, seek: Seek) -> None:
        outcome = self.outcome
        outcome.asked.append(seek.search.asked)
        outcome.cut_off += seek.found_at is None and seek.node.is_cut_off
        if seek.found_at is not None:
            outcome.found.append(seek.found_at - seek.began)
        if seek.reached_at is not None:
            outcome.reached.append(seek.reached_at - seek.began)
        if seek.finding.key in self.keys[: self.plan.eclipses]:
            outcome.attacked_seeks += 1
            outcome.attacked_reached += seek.reached_at is not None

    def _count(self, before: dict[SimNode, int]) -> None:
        outcome, seconds = self.outcome, 60 * self.plan.measured + 60
        for node in self._honest(60 * self.plan.measured + 60) if self.plan.upkeep >= 1 else ():
            outcome.traffic.append((node.sent + node.received - before[node]) / seconds / 2)
        for node in self._honest(60.0):
            table = node.machine.table
            outcome.entries.append(len(table))
            outcome.records.append(len(node.machine.records))
            outcome.estimates.append(table.size() / len(self.world.alive))
        largest = max(self._honest(60.0), key=lambda one: len(one.machine.records) + len(one.machine.table))
        outcome.memory = deep_size([largest.machine.table, largest.machine.records, largest.machine.publication])
