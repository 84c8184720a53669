"""One relay, its members, squatters with keys without end, and what is carried: peers come, go, fall silent and crash.

Promises: whatever keys ask, so many places of one line, of one block of addresses and in all; a chosen peer finds room;
no circuit begins without a reservation in force, goes on for ever, carries more than its share, or ends another.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from p2p.address import line_of, prefix_of
from p2p.machines.relay import RESERVED, Circuit, CircuitRelay, PeerPlace, RelayLimits
from p2p.ports import PeerId
from p2p.wire.circuit import CircuitStatus, Limit
from sim.kernel import Simulation

SPAN: Final = 1600.0
PAUSE: Final = 8.0
"""Seconds between two things that happen, on average."""
FRIENDS: Final = 3


class Carriage(Simulation):
    """The world of one seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng = self.rng
        self.limits = RelayLimits(
            reservations=rng.choice((16, 32)),
            circuits=rng.choice((16, 24)),
            of_line=rng.randint(1, 4),
            of_prefix=rng.randint(2, 6),
            of_peer=rng.randint(2, 8),
            of_pair=rng.randint(1, 3),
            lifetime=rng.choice((60, 600, 3600)),
            circuit=Limit(rng.choice((30, 600)), rng.choice((1000, 100_000))),
            half_closed=rng.choice((1.0, 10.0)),
        )
        blocks = rng.randint(1, 12)
        self.hosts = [f"20.{rng.randrange(3)}.{rng.randrange(blocks)}.{rng.randint(1, 6)}" for _ in range(40)]
        self.hosts += [f"2001:db8:{n}:{n % 2}00::{n}" for n in range(6)]
        self.friends = frozenset(PeerId(f"friend{n}") for n in range(FRIENDS))
        self.connected: dict[PeerId, PeerPlace] = {}
        self.carried: dict[Circuit, list[int]] = {}
        self.ended: dict[Circuit, float] = {}
        self.start()

    def start(self) -> None:
        """Anew, as after a crash: all connections and circuits are gone with it."""
        self.relay = CircuitRelay(self.limits)
        self.relay.chosen = self.friends
        self.connected, self.carried, self.ended = {}, {}, {}
        self.until: dict[PeerId, float] = {}
        """What the world knows of reservations: until when each is in force."""

    def _happen(self) -> None:
        rng = self.rng
        self.after(rng.expovariate(1 / PAUSE), self._happen)
        deeds = {
            self._come: 20, self._go: 8, self._reserve: 20, self._open: 25, self._send: 30, self._end: 6,
            self._close: 6, self._squat: 2, self.start: 0.2,
        }  # fmt: skip
        (does,) = rng.choices(list(deeds), list(deeds.values()))
        does()
        self.seen[does.__name__] += 1
        self._check()

    def _come(self) -> None:
        rng = self.rng
        name = rng.choice([*self.friends, *(f"peer{n}" for n in range(30))])
        self.connected[PeerId(name)] = PeerPlace(PeerId(name), rng.choice(self.hosts))

    def _go(self) -> None:
        if self.connected:
            peer = self.rng.choice(sorted(self.connected))
            del self.connected[peer]
            self.until.pop(peer, None)
            for circuit in [each for each in self.carried if peer in (each.source.peer, each.target)]:
                self._over(circuit)

    def _reserve(self) -> None:
        if self.connected:
            self._ask(self.connected[self.rng.choice(sorted(self.connected))])

    def _squat(self) -> None:
        """Eighty keys of a few lines take what they get, and stay connected."""
        rng = self.rng
        hosts = rng.sample(self.hosts, rng.randint(1, 8))
        for number in range(80):
            place = PeerPlace(PeerId(f"squatter{number}"), rng.choice(hosts))
            self.connected[place.peer] = place
            self._ask(place)
        for friend in sorted(self.friends):
            place = self.connected.setdefault(friend, PeerPlace(friend, hosts[0]))
            assert self._ask(place) is CircuitStatus.OK, "room is left for whom a person chose"

    def _ask(self, place: PeerPlace) -> CircuitStatus:
        now = self.now
        self.relay.keep(self.connected, now)
        status = self.relay.reserve(place, now)
        if status is CircuitStatus.OK:
            self.until[place.peer] = now + self.limits.lifetime
        self.note("reserve", place, status)
        return status

    def _open(self) -> None:
        if not self.connected:
            return
        rng, now = self.rng, self.now
        source = self.connected[rng.choice(sorted(self.connected))]
        target = rng.choice([*sorted(self.until), PeerId("nobody"), source.peer])
        self.relay.keep(self.connected, now)
        made = self.relay.open(source, target, now)
        self.note("open", source, target, isinstance(made, Circuit))
        may = self.until.get(target, 0.0) > now and target in self.connected and target != source.peer
        if isinstance(made, Circuit):
            assert may, "only to who has a reservation in force"
            assert made.number not in {each.number for each in self.carried}
            self.carried[made] = [0, 0]
            self.after(self.limits.circuit.seconds, lambda: self._late(made))
        else:
            assert (made is CircuitStatus.NO_RESERVATION) == (not may)
            self.seen[made.name] += 1

    def _late(self, circuit: Circuit) -> None:
        """The driver ends at the deadline what goes on until then."""
        if circuit in self.carried:
            assert self.now >= circuit.deadline - 1e-6
            self._over(circuit)

    def _send(self) -> None:
        if self.carried:
            rng = self.rng
            circuit, way = rng.choice(list(self.carried)), rng.randrange(2)
            self.carried[circuit][way] += circuit.take(way, rng.choice((1, 500, 70_000)))
            assert self.carried[circuit][way] <= self.limits.circuit.data

    def _end(self) -> None:
        if self.carried:
            circuit = self.rng.choice(list(self.carried))
            circuit.note_end(self.now)
            self.ended.setdefault(circuit, self.now)
            assert circuit.deadline <= self.ended[circuit] + self.limits.half_closed

    def _close(self) -> None:
        if self.carried:
            self._over(self.rng.choice(list(self.carried)))

    def _over(self, circuit: Circuit) -> None:
        self.relay.close(circuit)
        self.relay.close(circuit)  # told by both ends
        del self.carried[circuit]

    def _check(self) -> None:
        relay, limits, now = self.relay, self.limits, self.now
        relay.keep(self.connected, now)
        alive = sum(until > now and peer in self.connected for peer, until in self.until.items())
        assert relay.reservations == alive <= limits.reservations
        assert relay.circuits == len(self.carried) <= limits.circuits
        assert all(each.deadline <= now + limits.circuit.seconds for each in self.carried)
        self._check_shares([place for place, _ in relay._reserved.values()], limits.reservations)
        self._check_shares([each.source for each in self.carried], limits.circuits)
        assert max(Counter(each.target for each in self.carried).values(), default=0) <= limits.of_peer
        pairs = Counter((each.source.peer, each.target) for each in self.carried)
        assert max(pairs.values(), default=0) <= limits.of_pair

    def _check_shares(self, places: list[PeerPlace], most: int) -> None:
        strangers = [each for each in places if each.peer not in self.friends]
        assert len(strangers) <= most - most // RESERVED
        for part, bound in ((line_of, self.limits.of_line), (prefix_of, self.limits.of_prefix)):
            assert max(Counter(part(each.host) for each in strangers).values(), default=0) <= bound

    def converge(self) -> None:
        self.after(0.0, self._happen)
        self.run_until(SPAN)
