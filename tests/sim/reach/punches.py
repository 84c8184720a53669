"""Pairs that met by a relay try to connect directly, over circuits that are slow, uneven and break; some peers lie.

Each node has a clock of its own and one budget for all its upgrades. Promises: two honest ends over a circuit that does
not break dial within a moment of each other, in opposite roles, so that what their NATs allow comes to be at the first
try; nobody tries more than three times or waits longer than its bound; and however many peers name a victim, a node
dials it as seldom as its limits say, and never a place that is not of the Internet.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from functools import partial
from typing import Final

from p2p.address import PeerAddress, prefix_of
from p2p.driver.hole_punching import PATIENCE
from p2p.ip import is_global
from p2p.machines.hole_punch import (
    IN_ALL,
    MAX_TARGETS,
    MOST_WAIT,
    OF_TARGET,
    TRIES,
    WINDOW,
    Answerer,
    Dial,
    Effect,
    GiveUp,
    Opener,
    PunchBudget,
    SendPunch,
)
from p2p.ports import PeerId
from p2p.wire.reach import PunchKind
from sim.kernel import Simulation

NODES: Final = 6
PAIRS: Final = 14
APART: Final = 40.0
"""Seconds between the beginnings of two upgrades, at most."""
NATS: Final = ("full cone", "address", "port", "symmetric")
CLOSED: Final = frozenset({("port", "symmetric"), ("symmetric", "port"), ("symmetric", "symmetric")})
"""Pairs that no punch opens."""
MOST_SAID: Final = 64
"""Messages of one talk, which an honest end never comes near."""


class Node:
    def __init__(self, world: Punches, number: int) -> None:
        rng = world.rng
        self.peer = PeerId(f"node{number}")
        self.world = world
        self.nat = rng.choice(NATS)
        self.address = PeerAddress("ip4", f"20.{number}.0.1", 4150)
        self.ahead = rng.uniform(-1e6, 1e6)
        self.budget = PunchBudget(is_global)
        self.lies = rng.random() < 0.25
        self.dialled: list[tuple[float, str]] = []

    @property
    def now(self) -> float:
        return self.world.now + self.ahead

    def dials(self, targets: Sequence[PeerAddress]) -> None:
        """Checks what is dialled, over any span that ends now."""
        assert 0 < len(targets) <= MAX_TARGETS
        self.dialled += [(self.now, prefix_of(each.host)) for each in targets]
        assert all(is_global(ipaddress.ip_address(each.host)) for each in targets)
        for block in {prefix_of(each.host) for each in targets}:
            self._check([at for at, where in self.dialled if where == block], OF_TARGET.per_second, OF_TARGET.burst)
        self._check([at for at, _ in self.dialled], IN_ALL.per_second, IN_ALL.burst)

    def _check(self, times: list[float], rate: float, burst: float) -> None:
        # A dial is counted when its addresses are heard, and made when the peer says so: the driver waits no longer.
        for back, begun in enumerate(reversed(times), start=1):
            assert back <= burst + (self.now - begun + PATIENCE) * rate + 1e-6, times


class Talk:
    """One upgrade. ``opener`` is the node to which the circuit came."""

    def __init__(self, world: Punches, opener: Node, answerer: Node) -> None:
        rng = world.rng
        self.world, self.nodes = world, {"o": opener, "a": answerer}
        self.machines: dict[str, Opener | Answerer] = {"o": Opener(opener.budget), "a": Answerer(answerer.budget)}
        self.way = rng.choice((0.01, 0.1, 0.5, 1.5))
        self.uneven = rng.choice((0.0, 0.0, 0.1, 0.4))
        self.breaks = rng.choice((0.0, 0.0, 0.1))
        self.over: dict[str, bool] = {"o": False, "a": False}
        self.at: list[tuple[float, str, bool]] = []
        """When each side dialled, on the world's clock, and whether as client."""
        self.delays: list[float] = []
        self.waits = {"o": world.now, "a": world.now}
        """Since when each side waits for a message."""
        self.said = 0
        self.is_direct = False

    @property
    def is_honest(self) -> bool:
        return not any(node.lies for node in self.nodes.values())

    def begin(self) -> None:
        opener = self.nodes["o"]
        if not opener.budget.may_begin(self.nodes["a"].peer, opener.now):
            self.world.seen["kept back"] += 1
            return
        if not self.nodes["a"].budget.may_begin(opener.peer, self.nodes["a"].now):
            return
        self._try()

    def _try(self) -> None:
        machine, node = self.machines["o"], self.nodes["o"]
        assert isinstance(machine, Opener)
        if not self.is_direct and not self.over["o"]:
            self._perform("o", machine.begin(node.now))

    def _perform(self, side: str, effects: Sequence[Effect]) -> None:
        self.waits[side] = self.world.now
        for effect in effects:
            self.world.note(side, type(effect).__name__)
            match effect:
                case SendPunch(kind):
                    self._send(side, kind)
                case Dial(at, targets, as_client):
                    wait = at - self.nodes[side].now
                    assert -1e-6 <= wait <= MOST_WAIT + 1e-6
                    assert self.machines[side].tries <= TRIES
                    self.world.after(max(0.0, wait), partial(self._dial, side, targets, as_client))
                case GiveUp():
                    self.over[side] = True
                    self.world.seen["gave up"] += 1

    def _send(self, side: str, kind: PunchKind) -> None:
        rng, node = self.world.rng, self.nodes[side]
        self.said += 1
        if rng.random() < self.breaks or self.said > MOST_SAID:
            self.over = {"o": True, "a": True}
            self.world.seen["broke"] += 1
            return
        named: list[PeerAddress | None] = [node.address, None] if kind is PunchKind.CONNECT else []
        copies, slow = 1, 0.0
        if node.lies:
            kind = rng.choice((kind, kind, PunchKind.CONNECT, PunchKind.SYNC))
            named = self.world.forged()
            copies, slow = rng.choice((1, 1, 2, 3)), rng.choice((0.0, 7.8))
        delay = self.way * (1 + self.uneven * rng.uniform(-1, 1)) + slow
        assert delay < PATIENCE - 0.02
        self.delays.append(delay)
        for copy in range(copies):
            self.world.after(delay + copy * 0.01, lambda: self._hear("a" if side == "o" else "o", kind, named))

    def _hear(self, side: str, kind: PunchKind, named: list[PeerAddress | None]) -> None:
        if self.world.now - self.waits[side] > PATIENCE:
            self.over[side] = True  # as the driver does
        if not self.over[side]:
            self._perform(side, self.machines[side].receive(kind, named, self.nodes[side].now))

    def _dial(self, side: str, targets: Sequence[PeerAddress], as_client: bool) -> None:
        world = self.world
        self.nodes[side].dials(targets)
        assert as_client == (side == "a")
        self.at.append((world.now, side, as_client))
        for at, other, _ in self.at[:-1]:
            if other != side and abs(world.now - at) < WINDOW:
                self._met(world.now - at)
        if side == "o":
            world.after(WINDOW, self._try)

    def _met(self, apart: float) -> None:
        """Both dialled; whether that makes a connection is their NATs' business."""
        nats = (self.nodes["o"].nat, self.nodes["a"].nat)
        names_itself = all(not node.lies for node in self.nodes.values())
        if names_itself and nats not in CLOSED:
            if not self.is_direct:
                self.world.seen["direct"] += 1
            self.is_direct = True
        if self.is_honest:
            # Half a round trip is not quite the way of the SYNC where ways are uneven, or longer than is waited for.
            most = max(self.delays) - min(self.delays) + max(0.0, self.way * (1 + self.uneven) - MOST_WAIT)
            assert apart <= most + 1e-6, (apart, most)

    def check(self) -> None:
        """Once it is over."""
        nats = (self.nodes["o"].nat, self.nodes["a"].nat)
        assert all(machine.tries <= TRIES for machine in self.machines.values())
        if self.is_honest and self.breaks == 0.0 and self.at and nats not in CLOSED:
            assert self.is_direct, (nats, self.at)
            assert self.machines["o"].tries == 1, "at the first try"


class Punches(Simulation):
    """The world of one seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.nodes = [Node(self, number) for number in range(NODES)]
        self.talks: list[Talk] = []

    def forged(self) -> list[PeerAddress | None]:
        """A victim by many ports, and places inside."""
        rng = self.rng
        victims = [
            PeerAddress("ip4", f"21.0.0.{rng.randint(1, 9)}", rng.randint(1, 99)) for _ in range(rng.randint(0, 9))
        ]
        inside = [
            PeerAddress("ip4", "192.168.1.1", 80),
            PeerAddress("ip4", "169.254.169.254", 80),
            PeerAddress("ip6", "::1", 1),
        ]
        found: list[PeerAddress | None] = [*inside, None, *victims]
        rng.shuffle(found)
        return found

    def _meet(self) -> None:
        one, other = self.rng.sample(self.nodes, 2)
        talk = Talk(self, one, other)
        self.talks.append(talk)
        talk.begin()

    def converge(self) -> None:
        begun = 0.0
        for _ in range(PAIRS):
            self.after(begun, self._meet)
            begun += self.rng.uniform(0.0, APART)
        self.run_until(begun + 200.0)
        for talk in self.talks:
            talk.check()
