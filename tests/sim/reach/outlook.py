"""One node that moves among routers, and servers in several networks that dial it back: some lie, stop, or hear late.

Promises: no network alone makes the node believe what is not so; once all is quiet it believes what is so; what it is
told of its interfaces is what they are; and no server dials a place that is not of the Internet, nor one block of
addresses faster than its limits say, whoever asks.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import partial
from typing import Final

from p2p.address import PeerAddress, prefix_of
from p2p.ip import Ip, is_global
from p2p.machines.dial_back import DialBackLimits, DialBacks, DialOrder
from p2p.machines.reachability import AGAIN_UNSURE, COUNTS, LOOK, MAX_ADDRESSES, AddressWatch, Reachability, Reached
from p2p.ports import PeerId
from p2p.wire.reach import LEAST_DATA
from sim.kernel import Simulation

STORMY: Final = 2 * COUNTS
"""Seconds in which things happen,"""
QUIET: Final = 1.5 * COUNTS
"""and in which nothing does but questions."""
ASKING: Final = 30.0
"""Seconds between the node's questions."""
LIMITS: Final = DialBackLimits()
CHECKED: Final = 0.25
"""Answers after which all that the node believes is checked."""
LOOKS: Final = 5
"""Looks after each change of an interface; others would find what they found before."""
SOUND: Final = 3
"""Networks of honest servers that stay: with fewer, one that lies may keep the node in doubt."""
VICTIM: Final = "21.0.0.1"
PRIVATE: Final = ("10.0.0.1", "127.0.0.1", "169.254.169.254", "192.168.7.7", "::1", "fd00::9")
PAYING: Final = 0.8
"""Part of the questions whose price comes."""
MOOD: Final = ("honest", "says yes", "says no", "fails")


class Server:
    """One server, and the dials that it made."""

    def __init__(self, world: Outlook, number: int, network: str, mood: str) -> None:
        self.world, self.network, self.mood = world, network, mood
        self.peer = PeerId(f"server{number}")
        self.dials: dict[tuple[str, bool], list[float]] = {}
        """The times of dials to a block of addresses, and whether others asked for them."""
        self.is_up = True
        self.start()

    def start(self) -> None:
        """Anew, as after a crash: what it counted is forgotten."""
        self.backs = DialBacks(LIMITS, self.world.rng)
        self.dials = {}
        self.at_work = 0

    def asked(
        self, peer: PeerId, host: str, wanted: list[PeerAddress | None], answer: Callable[[str, PeerAddress], None]
    ) -> None:
        world, backs = self.world, self.backs
        order = backs.begin(peer, host, wanted, is_global, world.now)
        if not isinstance(order, DialOrder):
            return
        assert is_global(ipaddress.ip_address(order.address.host)), order
        assert (order.data >= LEAST_DATA) == (order.address.host != host), "who pays, and who does not"
        if order.data:
            has_come = world.rng.random() < PAYING
            world.after(world.rng.uniform(0.05, 12.0), lambda: self._paid(backs, order, answer, has_come))
        else:
            self._dial(backs, order, answer)

    def _paid(
        self, backs: DialBacks, order: DialOrder, answer: Callable[[str, PeerAddress], None], has_come: bool
    ) -> None:
        is_granted = backs.may_dial(order, self.world.now, has_come=has_come)
        assert has_come or not is_granted
        if is_granted and backs is self.backs:
            self._dial(backs, order, answer)
        elif is_granted:
            backs.end()

    def _dial(self, backs: DialBacks, order: DialOrder, answer: Callable[[str, PeerAddress], None]) -> None:
        world = self.world
        self.at_work += 1
        assert self.at_work <= LIMITS.at_once
        self._count(order.address.host, is_foreign=order.data > 0)

        def done() -> None:
            backs.end()
            if backs is self.backs:
                self.at_work -= 1
                answer(self._says(order.address), order.address)

        world.after(world.rng.uniform(0.05, 12.0), done)

    def _count(self, host: str, *, is_foreign: bool) -> None:
        """No block of addresses is dialled faster than the limit of those who ask for it, over any span."""
        now, times = self.world.now, self.dials.setdefault((prefix_of(host), is_foreign), [])
        times.append(now)
        for back, begun in enumerate(reversed(times), start=1):
            rate = LIMITS.of_target if is_foreign else LIMITS.of_prefix
            assert back <= rate.burst + (now - begun) * rate.per_second + 1e-6, (host, times)

    def _says(self, address: PeerAddress) -> str:
        if self.mood == "fails":
            return self.world.rng.choice(("", "no"))
        if self.mood != "honest":
            return self.mood.removeprefix("says ")
        return "yes" if self.world.is_open(address) else "no"


class Outlook(Simulation):
    """The world of one seed. ``converge`` runs it and checks what is promised."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng = self.rng
        networks = rng.randint(4, 12)
        faulty = rng.randrange(networks) if rng.random() < 0.8 else -1
        self.mood = rng.choice(MOOD[1:]) if faulty >= 0 else "honest"
        self.servers: list[Server] = []
        for number in range(networks * rng.randint(1, 3)):
            at = number % networks
            self.servers.append(Server(self, number, f"net{at}", self.mood if at == faulty else "honest"))
        sound = [f"net{at}" for at in range(networks) if at != faulty]
        self.leaving = frozenset(rng.sample(sound, rng.randint(0, len(sound) - SOUND)))
        """Networks whose servers go for ever, while the storm lasts: what they said last was so then."""
        self.gone: frozenset[str] = frozenset()
        self.loss = rng.choice((0.0, 0.05, 0.3))
        self.me = Reachability()
        self.homes: list[tuple[PeerAddress, ...]] = []
        self.open: dict[PeerAddress, bool] = {}
        self.changed: dict[PeerAddress, float] = {}
        """When an address was last opened or closed."""
        self.interfaces: frozenset[Ip] = frozenset()
        self.to_look = 0
        self._move()
        self.watch = AddressWatch(self.interfaces)
        self.told = self.interfaces
        self.looks: list[frozenset[Ip]] = [self.interfaces]
        self.is_quiet = False

    def is_open(self, address: PeerAddress) -> bool:
        return self.open.get(address, False)

    # What the world does

    def _move(self) -> None:
        """To another router, or back to one from before."""
        rng = self.rng
        if not self.homes or rng.random() < 0.6:
            near = f"20.{rng.randrange(200)}.{rng.randrange(250)}"
            hosts = [f"{near}.{rng.randint(1, 250)}" for _ in range(rng.randint(1, 3))]
            self.homes.append(tuple(PeerAddress("ip4", host, 4150) for host in hosts))
        home = rng.choice(self.homes)
        for address in home:
            self._set(address, rng.random() < 0.5)
        self._put(frozenset(ipaddress.ip_address(each.host) for each in home))
        self.addresses = home
        self.me.watch([*home, *home, *(PeerAddress("ip4", f"22.0.0.{n}", 1) for n in range(rng.choice((0, 12))))])
        assert len(self.me.addresses) <= MAX_ADDRESSES
        self.seen["moved"] += 1

    def _set(self, address: PeerAddress, is_open: bool) -> None:
        if self.open.get(address) is not is_open:
            self.open[address], self.changed[address] = is_open, self.now

    def _happen(self) -> None:
        """One thing of the storm, and the next after a while."""
        if self.is_quiet:
            return
        rng, kind = self.rng, self.rng.random()
        if kind < 0.15:
            self._move()
        elif kind < 0.4:
            address = rng.choice(self.addresses)
            self._set(address, not self.is_open(address))
        elif kind < 0.6:
            server = rng.choice(self.servers)
            server.is_up = not server.is_up and server.network not in self.gone
            if server.is_up:
                server.start()
        elif kind < 0.8:
            self._attack(rng.choice(self.servers))
        else:
            self._flicker()
        self.after(rng.expovariate(1 / 300), self._happen)

    def _leave(self) -> None:
        self.gone = self.leaving
        for server in self.servers:
            server.is_up = server.is_up and server.network not in self.gone
        self.seen["left"] += bool(self.gone)

    def _flicker(self) -> None:
        """An interface without its address for a moment, as a lease is renewed: shorter than two looks."""
        before = self.interfaces
        self._put(frozenset())

        def back() -> None:
            if not self.interfaces:
                self._put(before)

        self.after(LOOK * self.rng.uniform(0.1, 0.95), back)
        self.seen["flickered"] += 1

    def _attack(self, server: Server) -> None:
        """Many keys, in many blocks, name one victim and places inside."""
        rng = self.rng
        for number in range(rng.randint(5, 60)):
            host = f"23.{rng.randrange(40)}.0.{number + 1}"
            wanted: list[PeerAddress | None] = [
                PeerAddress("ip6" if ":" in each else "ip4", each, 22) for each in PRIVATE
            ]
            if rng.random() < 0.9:
                wanted.append(PeerAddress("ip4", rng.choice((VICTIM, "21.0.0.9")), rng.randint(1, 9)))
            server.asked(PeerId(f"key{number}"), host, [None, *wanted], lambda _said, _address: None)
        self.seen["attacked"] += 1

    # What the node does

    def _ask(self) -> None:
        rng = self.rng
        self.after(ASKING, self._ask)
        connected = [each for each in self.servers if each.is_up]
        if not connected or rng.random() < self.loss:
            return
        server = rng.choice(connected)
        due = self.me.due(server.network, self.now)
        if not due:
            return
        self.seen["asked"] += 1
        host = self.addresses[0].host
        server.asked(PeerId("me"), host, list(due), partial(self._answered, server))

    def _answered(self, server: Server, said: str, address: PeerAddress) -> None:
        """It may be of a place that the node has left meanwhile."""
        if said and (self.is_quiet or self.rng.random() >= self.loss):
            self.me.note_report(address, server.network, self.now, is_reached=said == "yes")
            self.note(server.peer, said, address)
            if self.rng.random() < CHECKED:
                self._check()

    def _check(self) -> None:
        """What was so for as long as words count is not denied on the word of one network."""
        now = self.now
        for address in self.me.addresses:
            judged, since = self.me.of(address, now), self.changed.get(address, 0.0)
            if judged is not Reached.UNKNOWN and now - since > COUNTS + 12.0:
                self.seen[judged.value] += 1
                assert (judged is Reached.YES) == self.is_open(address), (address, judged, self.me.counts(address, now))

    def _put(self, interfaces: frozenset[Ip]) -> None:
        """Changes the interfaces, which are looked at every ``LOOK`` for a while from then on."""
        self.interfaces = interfaces
        if not self.to_look:
            self.after(LOOK * self.rng.random(), self._look)
        self.to_look = LOOKS

    def _look(self) -> None:
        self.to_look -= 1
        if self.to_look:
            self.after(LOOK, self._look)
        self.looks = [*self.looks[-2:], self.interfaces]
        move = self.watch.look(self.interfaces)
        if move is not None:
            assert not move.came & move.gone
            assert move.gone <= self.told, "only what was there is gone"
            assert all(not move.gone & look for look in self.looks[-2:]), "missing at two looks in a row"
            self.told = (self.told | move.came) - move.gone
            self.note("moved", sorted(map(str, move.came)), sorted(map(str, move.gone)))
        if self.looks[-1] == self.looks[-2]:
            assert self.told == self.looks[-1], "after two equal looks nothing is unsaid"

    def converge(self) -> None:
        """Storm, then quiet. Returns what the seed must give again."""
        for begin in (self._ask, self._happen):
            self.after(0.0, begin)
        self.after(STORMY * self.rng.random(), self._leave)
        self.run_until(STORMY)
        self.is_quiet = True
        for server in self.servers:
            server.is_up = server.network not in self.gone
        self.run_until(STORMY + QUIET)
        now = self.now
        for address in self.addresses:
            wanted = Reached.YES if self.is_open(address) else Reached.NO
            assert self.me.of(address, now) is wanted, (address, self.me.counts(address, now), wanted)
        if any(map(self.is_open, self.addresses)):
            assert self.me.whole(now) is Reached.YES
        for server in self.servers:
            assert server.at_work <= 1, "only what is under way holds a place"
        assert AGAIN_UNSURE < COUNTS
