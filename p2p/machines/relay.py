"""Decides which peers can be reached through this node, and which circuits it relays (libp2p's relay v2). Sans-IO.

A reservation costs its peer an address, not only a key: one subscriber's line and one block of addresses get few, and
some are kept for peers that a person chose. A peer reserves only for itself, and loses its reservation with its
connection. Circuits have numbers, so that one that ends takes no other with it; each is bounded in time and bytes, and
is closed soon after one end has closed it. Only members are served; the driver checks membership.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

import msgspec

from p2p.address import line_of, prefix_of
from p2p.ports import PeerId
from p2p.wire.circuit import CircuitStatus, Limit

RESERVED: Final = 4
"""One in so many reservations and circuits is kept for chosen peers."""


class RelayLimits(msgspec.Struct, frozen=True, kw_only=True):
    reservations: int = 128
    """Reservations in total; each holds a connection that its peer has made."""
    circuits: int = 128
    """Circuits in total; each uses two streams and two windows of the muxer."""
    of_line: int = 8
    """Reservations, and circuits opened, from one subscriber's addresses: a /32 of IPv4, a /56 of IPv6."""
    of_prefix: int = 16
    """Reservations, and circuits opened, from one block of addresses: a /24 of IPv4, a /48 of IPv6."""
    of_peer: int = 32
    """Circuits that end at one peer."""
    of_pair: int = 2
    """Circuits between the same two peers: as many as the host keeps connections with one peer."""
    lifetime: int = 3600
    """Seconds for which a reservation is valid without renewal."""
    circuit: Limit = Limit(seconds=7200, data=4 << 30)
    """Limits of one circuit; after it ends, the peers make another."""
    half_closed: float = 10.0
    """Seconds for which a circuit stays open after one end has stopped sending."""


class PeerPlace(NamedTuple):
    """A peer and the address from which it is connected."""

    peer: PeerId
    host: str


class Circuit:
    """One circuit: its number, its peers, and what is left of its limits."""

    def __init__(self, number: int, source: PeerPlace, target: PeerId, limits: RelayLimits, now: float) -> None:
        self.number = number
        self.source = source
        self.target = target
        self.deadline = now + limits.circuit.seconds
        """The time at which it is closed at the latest."""
        self._half_closed = limits.half_closed
        self._left = [limits.circuit.data, limits.circuit.data]

    def take(self, way: int, amount: int) -> int:
        """Charges up to ``amount`` bytes in a direction (0: to the target, 1: back);
        returns how many may still be sent."""
        granted = min(amount, self._left[way])
        self._left[way] -= granted
        return granted

    def note_end(self, now: float) -> None:
        """Notes that one end sends no more; the circuit is closed ``half_closed`` seconds later."""
        self.deadline = min(self.deadline, now + self._half_closed)


class CircuitRelay:
    """Tracks the reservations and circuits of one node. The caller sets ``chosen``, the peers that a person chose."""

    def __init__(self, limits: RelayLimits) -> None:
        self.limits = limits
        self.chosen: frozenset[PeerId] = frozenset()
        self._reserved: dict[PeerId, tuple[PeerPlace, float]] = {}
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

    def reserve(self, place: PeerPlace, now: float) -> CircuitStatus:
        """Reserves a place for a peer, or renews its reservation; returns OK or the reason of a refusal."""
        others = [each for each, _ in self._reserved.values() if each.peer != place.peer]
        if not self._has_room(place, others, self.limits.reservations):
            return CircuitStatus.RESERVATION_REFUSED
        self._reserved[place.peer] = (place, now + self.limits.lifetime)
        return CircuitStatus.OK

    def open(self, source: PeerPlace, target: PeerId, now: float) -> Circuit | CircuitStatus:
        """Opens a circuit from a peer to one that has a reservation;
        returns the circuit, or the reason of a refusal."""
        until = self._reserved.get(target, (source, 0.0))[1]
        if until <= now or source.peer == target:
            return CircuitStatus.NO_RESERVATION
        to_it = [circuit for circuit in self._circuits.values() if circuit.target == target]
        of_pair = sum(each.source.peer == source.peer for each in to_it)
        sources = [circuit.source for circuit in self._circuits.values()]
        if (
            len(to_it) >= self.limits.of_peer
            or of_pair >= self.limits.of_pair
            or not self._has_room(source, sources, self.limits.circuits)
        ):
            return CircuitStatus.RESOURCE_LIMIT_EXCEEDED
        self._next += 1
        circuit = self._circuits[self._next] = Circuit(self._next, source, target, self.limits, now)
        return circuit

    def close(self, circuit: Circuit) -> None:
        """Removes a circuit that ended."""
        self._circuits.pop(circuit.number, None)

    def _has_room(self, newcomer: PeerPlace, others: list[PeerPlace], most: int) -> bool:
        if newcomer.peer in self.chosen:
            return len(others) < most
        strangers = [other for other in others if other.peer not in self.chosen]
        line, prefix = line_of(newcomer.host), prefix_of(newcomer.host)
        return (
            len(others) < most
            and len(strangers) < most - most // RESERVED
            and sum(line_of(stranger.host) == line for stranger in strangers) < self.limits.of_line
            and sum(prefix_of(stranger.host) == prefix for stranger in strangers) < self.limits.of_prefix
        )
