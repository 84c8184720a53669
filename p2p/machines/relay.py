"""Decides who is reached through this node, and which circuits it carries (libp2p's circuit relay v2). Sans-IO.

A reservation costs its peer an address, not a key: one subscriber's line and one block of addresses have few, and
some are left for peers that a person chose. A peer reserves for itself alone, and loses its reservation with its
connection. Circuits go by numbers of their own, so that one that ends takes no other with it; each is bounded in time
and bytes, and one that is closed at one end is over soon after. The driver asks who is a member; nobody else is served.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

import msgspec

from p2p.address import line_of, prefix_of
from p2p.ports import PeerId
from p2p.wire.circuit import Limit, Status

RESERVED: Final = 4
"""One place in so many is for chosen peers: reservations and circuits."""


class RelayLimits(msgspec.Struct, frozen=True, kw_only=True):
    reservations: int = 128
    """In all; each holds a connection that its peer has made."""
    circuits: int = 128
    """In all; each is two streams and two windows of the muxer."""
    of_line: int = 8
    """Reservations, and circuits that were opened, of one subscriber's addresses: a /32 of IPv4, a /56 of IPv6."""
    of_prefix: int = 16
    """The same of one block of addresses: a /24, a /48."""
    of_peer: int = 32
    """Circuits that end at one peer."""
    of_pair: int = 2
    """Circuits between two peers: as many connections as the host keeps of one peer."""
    lifetime: int = 3600
    """Seconds that a reservation counts without a renewal."""
    circuit: Limit = Limit(seconds=7200, data=4 << 30)
    """After so much a circuit ends, and its ends make another."""
    half_closed: float = 10.0
    """Seconds that a circuit goes on after one end has said its last."""


class Place(NamedTuple):
    """A peer and where it is."""

    peer: PeerId
    host: str


class Circuit:
    """One circuit under its number."""

    def __init__(self, number: int, source: Place, target: PeerId, limits: RelayLimits, now: float) -> None:
        self.number = number
        self.source = source
        self.target = target
        self.deadline = now + limits.circuit.seconds
        """When it is over at the latest."""
        self._half_closed = limits.half_closed
        self._left = [limits.circuit.data, limits.circuit.data]

    def take(self, way: int, amount: int) -> int:
        """How many of ``amount`` bytes may still go one way: 0 to the target, 1 back."""
        granted = min(amount, self._left[way])
        self._left[way] -= granted
        return granted

    def ended(self, now: float) -> None:
        """One end sends no more."""
        self.deadline = min(self.deadline, now + self._half_closed)


class Relay:
    """The reservations and circuits of one node. The caller sets ``chosen``, the peers that a person chose."""

    def __init__(self, limits: RelayLimits) -> None:
        self.limits = limits
        self.chosen: frozenset[PeerId] = frozenset()
        self._reserved: dict[PeerId, tuple[Place, float]] = {}
        self._circuits: dict[int, Circuit] = {}
        self._next = 0

    @property
    def reservations(self) -> int:
        return len(self._reserved)

    @property
    def circuits(self) -> int:
        return len(self._circuits)

    def keep(self, connected: Collection[PeerId], now: float) -> None:
        """Drops expired reservations and those of disconnected peers."""
        self._reserved = {
            peer: (place, until)
            for peer, (place, until) in self._reserved.items()
            if until > now and peer in connected
        }  # fmt: skip

    def reserve(self, place: Place, now: float) -> Status:
        """Reserves a place for a peer, or renews its reservation."""
        others = [each for each, _ in self._reserved.values() if each.peer != place.peer]
        if not self._has_room(place, others, self.limits.reservations):
            return Status.RESERVATION_REFUSED
        self._reserved[place.peer] = (place, now + self.limits.lifetime)
        return Status.OK

    def open(self, source: Place, target: PeerId, now: float) -> Circuit | Status:
        """A circuit from a peer to one that has a reservation; why not, else."""
        until = self._reserved.get(target, (source, 0.0))[1]
        if until <= now or source.peer == target:
            return Status.NO_RESERVATION
        to_it = [each for each in self._circuits.values() if each.target == target]
        of_pair = sum(each.source.peer == source.peer for each in to_it)
        sources = [each.source for each in self._circuits.values()]
        if (
            len(to_it) >= self.limits.of_peer
            or of_pair >= self.limits.of_pair
            or not self._has_room(source, sources, self.limits.circuits)
        ):
            return Status.RESOURCE_LIMIT_EXCEEDED
        self._next += 1
        circuit = self._circuits[self._next] = Circuit(self._next, source, target, self.limits, now)
        return circuit

    def close(self, circuit: Circuit) -> None:
        """Removes a circuit that ended."""
        self._circuits.pop(circuit.number, None)

    def _has_room(self, newcomer: Place, others: list[Place], most: int) -> bool:
        if newcomer.peer in self.chosen:
            return len(others) < most
        strangers = [each for each in others if each.peer not in self.chosen]
        line, prefix = line_of(newcomer.host), prefix_of(newcomer.host)
        return (
            len(others) < most
            and len(strangers) < most - most // RESERVED
            and sum(line_of(each.host) == line for each in strangers) < self.limits.of_line
            and sum(prefix_of(each.host) == prefix for each in strangers) < self.limits.of_prefix
        )
