"""A publisher on a slow line and many mirrors that fetch its dataset at once, in virtual time.

What is real: ``Swarm``, ``Seeding`` and the codec of what they tell each other. Lines are queues of parts of 1 MiB that
go up at the giver's rate and down at the taker's. Liars offer what they do not have, send something else, never answer,
or keep for themselves what the publisher gave them. Mirrors come and go.

``DividedPlan`` is of one large object: its pieces are told of by the codec of pieces, after a list of them has come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from p2p.machines.seeding import Seeding
from p2p.machines.swarm import Leave, Swarm, SwarmPiece, TakePiece
from p2p.ports import HeldParts, PartsAsk, PeerId, PiecesAsk, Tip
from p2p.wire import swarm as wire
from p2p.wire.swarm import PieceList, is_signed, sign_list
from sim.kernel import Simulation

MIB = 1 << 20
PART = MIB
PUBLISHER = PeerId("publisher")
DATASET = DatasetId.from_public_key(bytes(32))
NAME = Multihash.sha3_256(b"one large object")
KEY, LIAR = SigningKey(b"p" * 32), SigningKey(b"l" * 32)
LISTS = {
    count: sign_list(NAME, count * MIB, b"".join(number.to_bytes(32, "big") for number in range(count)), KEY)
    for count in (16, 64)
}
"""By the number of pieces."""
LATENCY = (0.02, 0.12)
EVERY = 2.0
"""Seconds between questions to one peer,"""
SOON = 0.25
"""and at least, where its offers are used up."""
MUTE = 20.0
"""Seconds after which a taker gives up on a giver that gives nothing."""
LONGEST = 1e5
LIES = ("boast", "poison", "mute", "hoard")


@dataclass(frozen=True)
class Plan:
    mirrors: int = 100
    blocks: int = 100
    size: int = MIB
    """Bytes of the object of each block."""
    publisher_up: float = MIB
    """Bytes a second."""
    up: float = 2 * MIB
    down: float = 10 * MIB
    links: int = 16
    """Other mirrors that a mirror is connected with, at least."""
    liars: int = 0
    leaving: int = 0
    """Mirrors that leave while they fetch; as many others come."""
    within: float = 5.0
    """Seconds within which all begin."""
    offers: bool = True
    """Whether the publisher chooses what it offers; otherwise it offers all to everybody."""


@dataclass(frozen=True)
class DividedPlan(Plan):
    """One object of ``blocks`` pieces of ``size`` bytes."""

    blocks: int = 64
    size: int = wire.LEAST_PIECE


class Line:
    """Sends parts one after the other."""

    def __init__(self, rate: float) -> None:
        self.rate, self.free = rate, 0.0

    def take(self, size: float, now: float) -> float:
        """When these bytes are through."""
        self.free = max(now, self.free) + size / self.rate
        return self.free


class Node:
    def __init__(self, world: World, name: PeerId, lie: str = "") -> None:
        self.world, self.name, self.lie = world, name, lie
        plan = world.plan
        self.up = Line(plan.publisher_up if name == PUBLISHER else plan.up)
        self.down = Line(plan.down)
        self.given = 0
        self.links: set[PeerId] = set()
        self.swarm: Swarm | None = None
        self.seeding = Seeding()
        self.asked: dict[PeerId, float] = {}
        self.began = self.ended = -1.0
        self.taking: dict[int, int] = {}
        """Number of the try, by piece: what comes of an older one is ignored."""
        self.tries = 0
        self.gone = False
        self.moved: dict[int, float] = {}
        """When the last part of a try arrives."""
        self.spoilt = 0
        """Bytes taken that were false."""

    @property
    def all(self) -> int:
        return (1 << self.world.plan.blocks) - 1

    def begin(self) -> None:
        """With the list, where an object is divided: whoever has one shows it, and the first that is signed counts."""
        self.began = self.world.now
        if not isinstance(self.world.plan, DividedPlan):
            self.divide()
            return
        for peer in sorted(self.links):
            self.world.send(self.world.nodes[peer].is_asked_for_list, self)

    def is_asked_for_list(self, asker: Node) -> None:
        self.world.send(lambda: asker.hears_list(self.shows()))

    def shows(self) -> PieceList | None:
        if self.gone or self.lie == "mute":
            return None
        if self.lie:
            return sign_list(NAME, self.world.size, bytes(32 * self.world.plan.blocks), LIAR)
        return LISTS[self.world.plan.blocks] if self.name == PUBLISHER or self.swarm is not None else None

    def hears_list(self, made: PieceList | None) -> None:
        if self.swarm is None and made is not None and not self.gone and is_signed(made, KEY.public):
            self.divide()

    def divide(self) -> None:
        plan, world = self.world.plan, self.world
        parts = [SwarmPiece(number, number + 1, plan.size) for number in range(plan.blocks)]
        self.swarm = Swarm(parts, [], world.rng, PUBLISHER, world.now)
        for peer in sorted(self.links):
            self.keep_asking(peer)

    @property
    def is_whole(self) -> bool:
        return self.name == PUBLISHER or (self.swarm is not None and self.swarm.done)

    def have(self) -> int:
        return self.all if self.name == PUBLISHER else 0 if self.swarm is None else self.swarm.have()

    # Words

    def keep_asking(self, peer: PeerId) -> None:
        if self.gone or self.is_whole or self.swarm is None or peer in self.swarm.left:
            return
        self.ask(peer)
        self.world.after(EVERY * self.world.rng.uniform(0.8, 1.2), self.keep_asking, peer)

    def ask(self, peer: PeerId) -> None:
        self.asked[peer] = self.world.now
        if isinstance(self.world.plan, DividedPlan):
            root = LISTS[self.world.plan.blocks].root
            divided = PiecesAsk(dataset=DATASET, name=NAME, size=self.world.size, root=root, have=self.have())
            raw = wire.encode_pieces_ask(divided)
        else:
            tip = Tip(self.world.plan.blocks, bytes(32))
            ask = PartsAsk(dataset=DATASET, tip=tip, start=0, count=self.world.plan.blocks, have=self.have())
            raw = wire.encode_parts(ask)
        self.world.send(self.world.nodes[peer].is_asked, self.name, raw)

    def is_asked(self, peer: PeerId, raw: bytes) -> None:
        if self.gone or self.world.nodes[peer].gone:
            return
        if isinstance(self.world.plan, DividedPlan):
            divided = wire.decode_question(raw)
            assert isinstance(divided, PiecesAsk)
            have = divided.have
        else:
            have = wire.decode_parts(raw).have
        told = wire.encode_told(wire.PartsTold(self.parts(peer, have)), self.world.plan.blocks)
        self.world.send(self.world.nodes[peer].hears, self.name, told)

    def parts(self, peer: PeerId, have: int) -> HeldParts | None:
        if self.name == PUBLISHER:
            offers = self.seeding.offer(peer, have, self.all, self.world.now) if self.world.plan.offers else self.all
            return HeldParts(has=self.all, offers=offers, given=self.seeding.given)
        has = self.all if self.lie in ("boast", "poison", "mute") else self.have()
        return HeldParts(has=has, offers=has) if has else None

    def hears(self, peer: PeerId, raw: bytes) -> None:
        told = wire.decode_told(raw, self.world.plan.blocks)
        if self.gone or self.swarm is None or told.parts is None:
            return
        self.swarm.take_parts(peer, told.parts, self.world.now)
        self.act()

    # Objects

    def act(self) -> None:
        assert self.swarm is not None
        for step in self.swarm.plan(self.world.now):
            match step:
                case TakePiece(piece, peer):
                    self.tries += 1
                    self.taking[piece] = number = self.tries
                    self.world.send(self.world.nodes[peer].gives, self.name, piece, number)
                    self.world.after(MUTE, self.waited, peer, piece, number)
                case Leave(piece, _):
                    self.taking.pop(piece, None)
        for peer in sorted(self.links):
            if (
                self.swarm.wants_word(peer)
                and self.world.now - self.asked.get(peer, -1.0) >= SOON
                and not self.is_whole
            ):
                self.ask(peer)

    def gives(self, peer: PeerId, piece: int, number: int) -> None:
        taker = self.world.nodes[peer]
        if self.gone or self.lie == "mute":
            return
        if self.lie in ("boast", "hoard") or (not self.lie and not self.have() >> piece & 1):
            self.world.send(taker.ends, self.name, piece, number)
            return
        self.part(taker, piece, number, self.world.plan.size)

    def part(self, taker: Node, piece: int, number: int, left: int) -> None:
        """One part after the other, so that takers share the line."""
        if self.gone or taker.gone or taker.taking.get(piece) != number:
            return
        size = min(PART, left)
        self.given += size
        sent = self.up.take(size, self.world.now)
        arrives = max(sent, taker.down.take(size, self.world.now)) + self.world.latency()
        taker.moved[number] = arrives
        self.world.at(sent, self.sent, taker, piece, number, left - size, arrives)

    def sent(self, taker: Node, piece: int, number: int, left: int, arrives: float) -> None:
        self.seeding.gave(taker.name, PART, self.world.now)
        if left:
            self.part(taker, piece, number, left)
        else:
            self.world.at(arrives, taker.ends, self.name, piece, number, self.lie != "poison")

    def waited(self, peer: PeerId, piece: int, number: int) -> None:
        if self.taking.get(piece) == number:
            moved = self.moved.get(number, -1e9)
            if self.world.now - moved > MUTE:
                self.ends(peer, piece, number)
            else:
                self.world.after(MUTE, self.waited, peer, piece, number)

    def ends(self, peer: PeerId, piece: int, number: int, is_true: bool = False) -> None:
        if self.gone or self.swarm is None or self.taking.get(piece) != number:
            return
        del self.taking[piece]
        if is_true:
            self.swarm.got(piece, self.world.now)
        else:
            self.spoilt += self.world.nodes[peer].lie == "poison" and self.world.plan.size
            self.swarm.note_failure(piece, peer)
        if self.swarm.done and self.ended < 0:
            self.ended = self.world.now
        self.act()


class World(Simulation):
    def __init__(self, seed: int, plan: Plan) -> None:
        super().__init__(seed)
        self.plan = plan
        self.nodes = {PUBLISHER: Node(self, PUBLISHER)}
        lot = self.rng
        names = [PeerId(f"m{number}") for number in range(plan.mirrors + plan.leaving)]
        lying = set(lot.sample(names[: plan.mirrors], plan.liars))
        for name in names:
            self.nodes[name] = Node(self, name, lot.choice(LIES) if name in lying else "")
        self._link(names)
        for name in names[: plan.mirrors]:
            self.at(lot.uniform(0, plan.within), self.nodes[name].begin)
        honest = [name for name in names[: plan.mirrors] if name not in lying]
        usual = plan.blocks * plan.size / plan.publisher_up
        for name, other in zip(lot.sample(honest, plan.leaving), names[plan.mirrors :], strict=True):
            when = lot.uniform(plan.within, usual)
            self.at(when, self.leave, name)
            self.at(when + lot.uniform(0, 10), self.nodes[other].begin)

    def _link(self, names: list[PeerId]) -> None:
        for name in names:
            self.nodes[name].links.add(PUBLISHER)
            for other in self.rng.sample(names, min(len(names), self.plan.links // 2)):
                if other != name:
                    self.nodes[name].links.add(other)
                    self.nodes[other].links.add(name)

    def leave(self, name: PeerId) -> None:
        self.nodes[name].gone = True
        for node in self.nodes.values():
            if node.swarm is not None and not node.gone and name in node.links:
                for piece in node.swarm.went(name):
                    number = node.taking.get(piece)
                    if number is not None:
                        self.after(0.5, node.ends, name, piece, number)

    def latency(self) -> float:
        return self.rng.uniform(*LATENCY)

    def send(self, work: Callable[..., None], *args: Any) -> None:
        """No message is lost: what is told of here are the lines of objects."""
        self.after(self.latency(), work, *args)

    @property
    def size(self) -> int:
        """Bytes of all."""
        return self.plan.blocks * self.plan.size

    @property
    def honest(self) -> list[Node]:
        nodes = [node for node in self.nodes.values() if node.name != PUBLISHER and not node.lie and not node.gone]
        return [node for node in nodes if node.began >= 0 or node.swarm is None]

    def converge(self) -> World:
        """Until all honest mirrors have all."""
        while self.waiting and not all(node.is_whole for node in self.honest):
            for _ in range(min(200, self.waiting)):
                self.step()
            assert self.now < LONGEST, f"{sum(node.is_whole for node in self.honest)} of {len(self.honest)} are whole"
        return self

    @property
    def copies(self) -> float:
        """How often the publisher sent the whole."""
        return self.nodes[PUBLISHER].given / (self.plan.blocks * self.plan.size)

    @property
    def seconds(self) -> float:
        """From the beginning until the last honest mirror has all."""
        return max(node.ended for node in self.honest)

    @property
    def central(self) -> float:
        """Seconds in which the publisher alone would give it to the honest mirrors."""
        plan = self.plan
        return len(self.honest) * plan.blocks * plan.size / plan.publisher_up
