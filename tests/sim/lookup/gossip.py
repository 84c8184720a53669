"""Gossip of all presences to all: each node keeps a presence of every other, which names what that node serves.

The code of a node runs in no simulation of ten thousand, so this is a model, of the same world: as many links, the same
degree, heartbeats, names of messages, samples and sizes as in ``p2p``, but no limit of what a node keeps or forwards,
as every node is to know all. A presence goes at once over the links of a mesh and is named over some of the others; it
goes again before half of its lifetime is over. A newcomer copies all that a member knows. Liars forward nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

from chain.statements.keys import SigningKey
from p2p.address import network_of
from p2p.driver.discovery import ASKED, LIFETIME, SAMPLE
from p2p.driver.forwarding import AROUND
from p2p.driver.settings import ReplicationSettings
from p2p.host.pubsub import DEGREE, HEARTBEAT, WINDOW
from p2p.identity import peer_of_seed
from p2p.peers.directory import Directory
from p2p.wire import presence as wire
from p2p.wire.contact import LookupContact
from p2p.wire.presence import Presence
from sim.lookup.sizes import deep_size
from sim.lookup.world import NETWORK, PORT, ROUND_TRIPS, Member, Quest, SimNode, Spot, World, address

LINKS = 8
"""Links that a node dials; as many others dial it."""
MESH = DEGREE // 2
"""Those of them that are in its mesh; as many come from others."""
NAME_BYTES = 48
AGAIN = LIFETIME / 2
"""Seconds between two times that a presence which is valid for ``LIFETIME`` is gossiped, changed or not."""
MINUTE = ReplicationSettings(network=NETWORK).entropy_interval
TICKS = 10
"""In a minute; in each a tenth of the nodes exchanges a sample with a neighbour."""
FEW_BYTES = 8
"""A question, or what is around an answer."""


class Net:
    """What all nodes know, and the links among them. A node is a row; its presence is the column of that number."""

    def __init__(self, world: World) -> None:
        self.world, plan = world, world.plan
        hours = (plan.minutes + plan.measured + 1) / 60
        joins = plan.nodes * (1 - plan.churn) ** -hours - plan.nodes
        rows = int(plan.nodes + 1.5 * joins + plan.poisoners * plan.eclipses + 256)
        self.dice = np.random.default_rng(world.dice.getrandbits(64))
        self.rows = count()
        self.members: list[Gossiper] = []
        self.knows = np.zeros((rows, rows), np.bool_)
        self.links = np.full((rows, LINKS), -1)
        self.spots = np.zeros((rows, 2))
        self.is_there = np.zeros(rows, np.bool_)
        self.silent_from = np.full(rows, np.inf)
        self.forwards = np.zeros(rows, np.bool_)
        self.told: dict[bytes, dict[int, np.ndarray]] = {}
        """When each node heard, by key and by who says that it serves the dataset."""
        # Half of the presences' lifetime to all of it is left when a node goes.
        self.gone = int(plan.nodes * -np.log(1 - plan.churn) * 0.75 * LIFETIME / 3600)
        """Presences of nodes that are gone, which every node keeps until they expire."""
        self.size = len(sealed(world, SigningKey(bytes(32)), address(world.dice)))
        self._warm: np.ndarray | None = None
        self._turn = 0
        world.after(MINUTE / TICKS, self._tick)

    def enter(self, member: Gossiper) -> None:
        row = member.row
        self.members.append(member)
        self.spots[row] = member.spot.x, member.spot.y
        self.is_there[row] = self.knows[row, row] = True
        self.forwards[row] = member.is_forwarding

    @property
    def is_up(self) -> np.ndarray:
        return self.is_there & (self.silent_from > self.world.now)

    def warm(self, row: int, known: list[LookupContact]) -> None:
        if self._warm is None:
            there = (self.world.reached[one.ip, one.port] for one in known)
            self._warm = np.array([one.row for one in there if isinstance(one, Gossiper)])
        self.knows[row, self._warm] = True
        self.links[row] = self.dice.choice(self._warm, LINKS)

    # What a node says to all

    def flood(self, row: int) -> np.ndarray:
        """Gossips a node's presence from now on; returns when each node hears it."""
        sources, ends, delays, is_mesh = self._edges(row)
        heard = np.full(len(self.is_there), np.inf)
        heard[row] = self.world.now
        while True:
            before = heard.copy()
            np.minimum.at(heard, ends, before[sources] + delays)
            if np.array_equal(before, heard):
                break
        self._pay(heard, sources, ends, delays, is_mesh)
        hearers = np.flatnonzero(np.isfinite(heard))
        self.world.after(float(heard[hearers].max()) - self.world.now, self._land, row, hearers)
        return heard

    def _edges(self, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Links from nodes that forward: from, to, seconds, and whether the presence itself goes over it at once."""
        is_up = self.is_up
        near, far = np.repeat(np.arange(len(self.links)), LINKS), self.links.ravel()
        is_mesh = np.tile(np.arange(LINKS) < MESH, len(self.links))
        good = (far >= 0) & is_up[near] & is_up[far]
        near, far, is_mesh = near[good], far[good], is_mesh[good]
        sources, ends, is_mesh = np.append(near, far), np.append(far, near), np.append(is_mesh, is_mesh)
        kept = self.forwards[sources] | (sources == row)
        sources, ends, is_mesh = sources[kept], ends[kept], is_mesh[kept]
        is_mesh = is_mesh | (sources == row)  # one's own goes to every neighbour
        trips = self.trips(sources, ends)
        named = self._named(sources[~is_mesh])
        delays = trips / 2
        delays[~is_mesh] = named + 1.5 * trips[~is_mesh]
        return sources, ends, delays, is_mesh

    def _named(self, sources: np.ndarray) -> np.ndarray:
        """Seconds until the message is named over a link outside of the mesh; infinite: it is not."""
        others = np.bincount(sources, minlength=len(self.links))[sources]
        beats = self.dice.geometric(np.minimum(1.0, DEGREE / others)) - 1
        return np.where(beats < WINDOW, (beats + self.dice.random(len(beats))) * HEARTBEAT, np.inf)

    def trips(self, sources: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Round trips, as ``Spot`` has them."""
        apart = np.abs(self.spots[sources] - self.spots[ends])
        far: np.ndarray = np.hypot(*np.minimum(apart, 1 - apart).T)
        return (0.015 + 0.25 * far) * (0.9 + 0.3 * self.dice.random(len(far)))

    def _pay(
        self, heard: np.ndarray, sources: np.ndarray, ends: np.ndarray, delays: np.ndarray, is_mesh: np.ndarray
    ) -> None:
        """Whoever forwards sends to all of its mesh but to whom it has it from, and names it to some others."""
        has = np.isfinite(heard[sources])
        copies = np.count_nonzero(has & is_mesh) - max(0, len(np.unique(sources[has & is_mesh])) - 1)
        pulled = has & ~is_mesh & (heard[sources] + delays <= heard[ends])
        forwarders = len(np.unique(sources[has]))
        self.world.spend("gossip", int(copies + np.count_nonzero(pulled)) * (self.size + AROUND))
        self.world.spend("names", forwarders * DEGREE * WINDOW * NAME_BYTES)

    def _land(self, row: int, hearers: np.ndarray) -> None:
        self.knows[hearers, row] = True

    def publish(self, row: int, key: bytes) -> None:
        self._hear(self.told.setdefault(key, {}), row, self.flood(row))

    def again(self, row: int) -> None:
        heard = self.flood(row)
        for holders in self.told.values():
            if row in holders:
                self._hear(holders, row, heard)

    def _hear(self, holders: dict[int, np.ndarray], row: int, heard: np.ndarray) -> None:
        before = holders.get(row)
        holders[row] = heard if before is None else np.minimum(before, heard)

    # What nodes tell each other

    def _tick(self) -> None:
        is_up = self.is_up
        self._mend(is_up)
        self._turn = (self._turn + 1) % TICKS
        for row in np.flatnonzero(is_up)[self._turn :: TICKS]:
            links = self.links[row]
            there = links[(links >= 0) & is_up[links]]
            if len(there):
                self.meet(int(row), int(self.dice.choice(there)))
        self.world.after(MINUTE / TICKS, self._tick)

    def _mend(self, is_up: np.ndarray) -> None:
        """Dials others in place of neighbours that are gone or silent; both ends of a new link meet."""
        joined = np.array([one.has_copied for one in self.members])
        bad = (self.links < 0) | ~is_up[self.links]
        bad[: len(joined)] &= (is_up[: len(joined)] & joined)[:, None]
        bad[len(joined) :] = False
        rows, places = np.nonzero(bad)
        found = self.dice.choice(np.flatnonzero(is_up), len(rows))
        self.links[rows, places] = found
        for row, other in zip(rows.tolist(), found.tolist(), strict=True):
            if row != other:
                self.meet(row, other)
                self.meet(other, row)

    def meet(self, row: int, other: int) -> None:
        """Tells another its own presence, and asks it for a sample. Liars tell what nobody signed."""
        self.world.spend("samples", FEW_BYTES + self.size + FEW_BYTES + SAMPLE * (2 + self.size))
        self.knows[other, row] = True
        if not self.members[other].is_honest:
            return
        known = np.flatnonzero(self.knows[other])
        drawn = self.dice.integers(0, len(known) + self.gone, SAMPLE)
        self._tell(row, other, known[drawn[drawn < len(known)]])

    def copy(self, row: int, other: int) -> None:
        self._tell(row, other, np.flatnonzero(self.knows[other]))

    def _tell(self, row: int, other: int, about: np.ndarray) -> None:
        self.knows[row, about] = True
        for holders in self.told.values():
            for holder in holders.keys() & set(about.tolist()) if len(about) <= SAMPLE else holders.keys():
                heard = holders[holder]
                if heard[other] <= self.world.now:
                    heard[row] = min(heard[row], self.world.now)

    def known(self, row: int) -> int:
        """Presences that a node keeps."""
        return int(np.count_nonzero(self.knows[row])) + self.gone

    def neighbours(self, row: int) -> list[Gossiper]:
        near = np.append(self.links[row], np.flatnonzero((self.links == row).any(axis=1)))
        is_up = self.is_up
        return [self.members[at] for at in dict.fromkeys(near.tolist()) if at >= 0 and at != row and is_up[at]]


class Gossiper(Member):
    is_forwarding = True

    def __init__(self, world: World, key: SigningKey, ip: bytes, spot: Spot) -> None:
        if world.net is None:
            world.net = Net(world)
        self.net: Net = world.net
        self.row = next(self.net.rows)
        self.has_copied = False
        """Whether an honest member told it of the others."""
        super().__init__(world, key, ip, spot)
        self.net.enter(self)
        world.after(world.dice.random() * AGAIN, self._again)

    @property
    def silent_from(self) -> float:
        return float(self.net.silent_from[self.row])

    @silent_from.setter
    def silent_from(self, at: float) -> None:
        self.net.silent_from[self.row] = at

    @property
    def is_settled(self) -> bool:
        return self.has_copied or self.is_cut_off

    def left(self) -> None:
        self.net.is_there[self.row] = False

    def answer(self, ask: Any, asker: SimNode) -> None:
        """Nobody takes part in a lookup here."""

    def warm(self, known: list[LookupContact], places: list[int]) -> None:
        self.net.warm(self.row, known)
        self.has_copied = True

    def publish(self, key: bytes) -> None:
        super().publish(key)
        self.net.publish(self.row, key)

    def _again(self) -> None:
        if self.is_alive and self.answers(self.world.now):
            self.net.again(self.row)
        if self.is_alive:
            self.world.after(AGAIN, self._again)

    def bootstrap(self, contacts: list[LookupContact]) -> None:
        """Connects to these, gossips, and copies what the first honest one knows, a sample a round trip."""
        super().bootstrap(contacts)
        world = self.world
        there = [world.reached.get((contact.ip, contact.port)) for contact in contacts]
        found = [one for one in there if isinstance(one, Gossiper) and one.answers(world.now)]
        trips = [self.spot.round_trip(one.spot, world.dice) for one in found]
        for at, (one, trip) in enumerate(zip(found, trips, strict=True)):
            world.after(ROUND_TRIPS * trip, self._connected, at, one, at == 0)
        for one, trip in zip(found, trips, strict=True):
            if one.is_honest:
                pages = -(-self.net.known(one.row) // SAMPLE)
                world.after((ROUND_TRIPS + pages) * trip, self._copied, one, pages)
                return

    def _connected(self, at: int, other: Gossiper, is_first: bool) -> None:
        if self.is_alive and other.is_alive and self.answers(self.world.now):
            self.net.links[self.row, at] = other.row
            self.net.meet(self.row, other.row)
            self.net.meet(other.row, self.row)
            if is_first:
                self.net.again(self.row)

    def _copied(self, other: Gossiper, pages: int) -> None:
        if self.is_alive and self.answers(self.world.now):
            self.world.spend("copies", pages * 2 * FEW_BYTES + self.net.known(other.row) * (2 + self.net.size))
            self.net.copy(self.row, other.row)
            self.has_copied = True

    def seek(self, key: bytes, holder: bytes, end: Callable[[Quest], None]) -> None:
        """Dials whom it knows to serve the dataset; only if it knows nobody, asks neighbours."""
        quest = Quest(self, key, holder, end)
        if not self._hear_of_holders(quest, self.row):
            neighbours = self.net.neighbours(self.row)
            for other in self.world.dice.sample(neighbours, min(ASKED, len(neighbours))):
                quest.asked += 1
                self.world.after(self.spot.round_trip(other.spot, self.world.dice), other.tell, quest)
        self.world.after(1.0, quest.searched)

    def _hear_of_holders(self, quest: Quest, row: int) -> bool:
        now = self.world.now
        told = self.net.told.get(quest.key, {})
        known = [self.net.members[each] for each, heard in told.items() if heard[row] <= now]
        self.world.dice.shuffle(known)
        for one in known:
            quest.heard_of(one.contact)
        return bool(known)

    def tell(self, quest: Quest) -> None:
        """Answers who serves a dataset."""
        self._hear_of_holders(quest, self.row)

    def memory(self) -> int:
        """Bytes of the real directory, with as many presences as this node knows."""
        dice = self.world.dice
        known = self.net.known(self.row)
        directory = Directory(NETWORK, peer_of_seed(bytes(32)), known, known * max(1, self.world.plan.published))
        for _ in range(known):
            raw = sealed(self.world, SigningKey(dice.randbytes(32)), address(dice))
            sender = network_of(".".join(map(str, address(dice))))
            directory.admit(raw, sender, self.world.wall)
        assert len(directory) == known
        return deep_size(directory)


class GossipLiar(Gossiper):
    """It forwards nothing, and names itself or makes up others when it is asked who serves a dataset."""

    is_honest = False
    is_forwarding = False

    def tell(self, quest: Quest) -> None:
        dice = self.world.dice
        if dice.random() >= 0.3 and dice.random() < 0.3:
            quest.heard_of(self.contact)


class GossipPoisoner(Gossiper):
    """It says that it serves what it does not have."""

    is_honest = False


def sealed(world: World, signer: SigningKey, ip: bytes) -> bytes:
    """A presence that names as many datasets as the plan has a node serve."""
    tags = sorted({world.dice.getrandbits(32) for _ in range(world.plan.published)})
    where = LookupContact(signer.public, ip, PORT).address.transport
    said = Presence(key=signer.public, issued=world.wall, lifetime=LIFETIME, addresses=(where,), tags=tuple(tags))
    return wire.seal(said, NETWORK, signer)
