"""A member of the network, in whatever way it finds holders: what it serves, and whom it dials when it seeks."""

from __future__ import annotations

from collections.abc import Callable

from chain.statements.keys import SigningKey
from p2p.wire.contact import LookupContact
from sim.lookup.world import SimNode, Spot, World

DIALLED = 8
"""Providers that a seeker dials at a time, as ``p2p.driver.discovery``."""
DIAL_PATIENCE = 3.0


class Member(SimNode):
    is_honest = True
    """Liars and poisoners are not: they serve nothing, whatever they say."""

    def __init__(self, world: World, key: SigningKey, ip: bytes, spot: Spot) -> None:
        super().__init__(world, key, ip, spot)
        self.datasets: set[bytes] = set()
        """Keys of what it announces."""
        self.is_kept = True
        """Whether it does more than answering."""
        self.is_cut_off = False
        """Whether all bootstrap nodes of a newcomer lie or are silent: it hears of no honest node."""

    @property
    def is_settled(self) -> bool:
        """Whether it has joined."""
        raise NotImplementedError

    def has(self, key: bytes) -> bool:
        return self.is_honest and key in self.datasets

    def serve(self, keys: set[bytes]) -> None:
        self.datasets = keys

    def publish(self, key: bytes) -> None:
        """Announces a dataset now."""
        self.serve({*self.datasets, key})

    def spread(self) -> None:
        """It has announced its datasets before, at any time."""

    def bootstrap(self, contacts: list[LookupContact]) -> None:
        """Joins by these members."""
        there = [self.world.reached.get((contact.ip, contact.port)) for contact in contacts]
        honest = (one for one in there if isinstance(one, Member) and one.is_honest)
        self.is_cut_off = not any(one.answers(self.world.now) for one in honest)

    def warm(self, known: list[LookupContact], places: list[int]) -> None:
        """Knows of the others what one knows after a long time. ``known`` at ``places``, which ascend."""
        raise NotImplementedError

    def seek(self, key: bytes, holder: bytes, end: Callable[[Quest], None]) -> None:
        raise NotImplementedError

    def memory(self) -> int:
        """Bytes of what it knows of others."""
        raise NotImplementedError


class Quest:
    """One seek, by whatever way the seeker hears of holders. ``end`` is called once, when it is reached or given up."""

    def __init__(self, node: SimNode, key: bytes, holder: bytes, end: Callable[[Quest], None]) -> None:
        self.node, self.key = node, key
        self._holder, self._end = holder, end
        self.began = node.world.now
        self.asked = 0
        """Questions to others, without the dials of holders."""
        self.found_at: float | None = None
        """When the true holder's record was here,"""
        self.reached_at: float | None = None
        """and when it was dialled and had answered."""
        self._waiting: list[LookupContact] = []
        self._dialling = 0
        self._is_told = False
        self._is_searched = False

    def heard_of(self, holder: LookupContact) -> None:
        if holder.key == self._holder and self.found_at is None:
            self.found_at = self.node.world.now
        self._waiting.append(holder)
        self._dial()

    def searched(self) -> None:
        """Nobody is left to ask."""
        self._is_searched = True
        self._tell_if_over()

    def _dial(self) -> None:
        world = self.node.world
        while self._waiting and self._dialling < DIALLED and self.reached_at is None:
            contact = self._waiting.pop(0)
            self._dialling += 1
            there = world.reached.get((contact.ip, contact.port))
            if there is None or there.contact.key != contact.key or not there.answers(world.now):
                world.after(DIAL_PATIENCE, self._dialled, False)
            else:
                trip = self.node.spot.round_trip(there.spot, world.dice)
                world.after(6 * trip, self._dialled, there.has(self.key))

    def _dialled(self, serves: bool) -> None:
        self._dialling -= 1
        if serves and self.reached_at is None:
            self.reached_at = self.node.world.now
            self._tell()
            return
        self._dial()
        self._tell_if_over()

    def _tell_if_over(self) -> None:
        if self._is_searched and not self._dialling and not self._waiting:
            self._tell()

    def _tell(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._end(self)
