"""Nodes that lie. They answer at once, keep nothing, and work together."""

from __future__ import annotations

from hashlib import sha256
from random import Random

from chain.statements.keys import SigningKey
from p2p.lookup.node import NEAREST
from p2p.wire.contact import LookupContact, place_of, place_of_node
from p2p.wire.limits import MAX_LOOKUP_RECORDS
from p2p.wire.lookup import Find, Nodes, Store, StoreAnswer, StoreOutcome
from sim.lookup.node import Honest
from sim.lookup.world import PORT, Member, SimNode, Spot, World, address


class Liar(Honest):
    """It takes part as others do, so that it gets into tables, and lies in its answers.

    To a question for nodes it tells of nodes nearer to the key than all others: half of them invented, half liars.
    To a question for holders it tells records that nobody signed, or of holders that have nothing.
    """

    is_honest = False

    def answer(self, ask: Find | Store, asker: SimNode) -> Nodes | StoreAnswer | None:
        lot, world = self.world.dice, self.world
        target = place_of(ask.key)
        lies = [LookupContact(key, address(lot), PORT) for key in world.invented(target, NEAREST // 2)]
        fellows = [
            one.contact
            for one in (world.alive[int(lot.random() * len(world.alive))] for _ in range(40))
            if isinstance(one, Liar)
        ]
        fellows.sort(key=lambda one: one.place ^ target)
        told = tuple([*lies, *fellows][:NEAREST])
        if isinstance(ask, Store):
            return StoreAnswer(outcome=StoreOutcome.KEPT, contacts=told)
        records: tuple[bytes, ...] = ()
        if lot.random() < 0.3:
            forged = bytearray(self.record(ask.key))
            forged[-1] ^= 1
            records = (bytes(forged),)
        elif lot.random() < 0.3:
            records = (self.record(ask.key),)
        return Nodes(contacts=told, records=records)


class Poisoner(Honest):
    """It announces what it does not have."""

    is_honest = False


class Eclipser(SimNode):
    """A node whose key was computed to be near a dataset's. It knows its fellows alone, and says that it keeps all."""

    def __init__(self, world: World, key: SigningKey, ip: bytes, spot: Spot) -> None:
        super().__init__(world, key, ip, spot)
        self.gang: list[LookupContact] = []
        self.near: list[Member] = []
        """Honest nodes near the key."""
        self.lies: list[bytes] = []
        """Sound records of holders that have nothing."""

    def answer(self, ask: Find | Store, asker: SimNode) -> Nodes | StoreAnswer | None:
        told = tuple(self.world.dice.sample(self.gang, min(NEAREST, len(self.gang))))
        if isinstance(ask, Store):
            return StoreAnswer(outcome=StoreOutcome.KEPT, contacts=told)
        lies = self.world.dice.sample(self.lies, min(MAX_LOOKUP_RECORDS, len(self.lies)))
        return Nodes(contacts=told, records=tuple(lies))

    def intrude(self) -> None:
        """Asks honest nodes near the key, so that they note it and ask it back."""
        ask = Find(key=self.contact.place.to_bytes(32, "big"), own=(self.contact.ip, self.contact.port))
        for one in self.near:
            self.world.ask(self, one.contact, ask, lambda _answer: None, why="attack")


def ground(target: int, count: int, nodes: int, lot: Random) -> list[SigningKey]:
    """Keys whose places are nearer to a target than those of most honest nodes. Computing one takes ``nodes`` tries;
    here a key is looked for by hashing, and its signing half is left out, since an eclipser signs nothing."""
    limit = (1 << 256) // max(1, nodes)
    found: list[SigningKey] = []
    while len(found) < count:
        base = lot.randbytes(24)
        for at in range(1 << 16):
            key = base + at.to_bytes(8, "big")
            if place_of_node.__wrapped__(key) ^ target < limit:
                found.append(Unsigned(key))
                if len(found) == count:
                    break
    return found


class Unsigned(SigningKey):
    """Public bytes without a private key."""

    def __init__(self, public: bytes) -> None:
        self.public = public


def hashed(text: str) -> bytes:
    return sha256(text.encode()).digest()
