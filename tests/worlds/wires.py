"""The network of whole nodes in one process: their real membership over hosts in memory, who lies, who is cut off.

A node is wired as the daemon wires it; only how its host is opened is another. Hosts that take part in one network meet
at once: nobody waits for dials and rounds. ``Lies`` are what a peer does to what it serves, between the shelves and the
protocol, so that they are told in true form. All that a node asks is noted on its way.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, Self

import msgspec
import trio

from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.store.database import Database
from odfd.network.joined_networks import Network
from odfd.network.library import ServingLibrary
from odfd.network.membership import HostOptions, Membership, MembershipTerms, OpenHost
from odfd.network.statement_store import LedgerStatementStore
from odfd.runtime.clock import Clock
from odfd.runtime.supervision import Logger
from p2p.address import PeerAddress, network_of, parse_address
from p2p.driver.namespaces import MEMBERS_TOPIC
from p2p.driver.ports import Validator
from p2p.driver.replication import ReplicationDriver
from p2p.ip import Ip
from p2p.peers.book import Score
from p2p.ports import Judgement, PeerId, Topic
from worlds.memory_network import Fabric, MemoryHost, MemoryStream

__all__ = ["WIRES", "Lies", "Member", "Wires"]

WIRES: Final = Network(name="wires")
"""The network that each node begins in."""

MEETING_TURNS: Final = 100
"""Turns of the event loop in which a new connection reaches the drivers; later the membership's own look tells."""


@dataclass
class Lies:
    """What a peer does to what it gives."""

    blocks: Callable[[list[bytes]], list[bytes]] = list
    object: Callable[[bytes], bytes] = bytes
    size: Callable[[int], int] = int
    """Of objects whose size is asked for."""


class Still:
    """The clock of the network, which does not move a clock that moves at each look."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock

    def now(self) -> Any:
        return self._clock.instant

    def monotonic(self) -> int:
        return int(self._clock.instant)


class Offered:
    """What a node has for its peers, within a network and as one of them gets it; looked up at each question, as a test
    may change it meanwhile."""

    whole: str
    """The attribute of the member that has all of it."""

    def __init__(self, member: Member, network: str = "", asker: PeerId | None = None) -> None:
        self._member, self._network, self._asker = member, network, asker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now, name)

    @property
    def _now(self) -> Any:
        found = getattr(self._member, self.whole)
        within = found.within(self._network) if self._network else found
        return within if self._asker is None else within.to(self._asker)

    def within(self, network: str) -> Self:
        return type(self)(self._member, network, self._asker)

    def to(self, peer: PeerId) -> Self:
        return type(self)(self._member, self._network, peer)


class Shelves(Offered):
    """What a node serves."""

    whole = "library"

    def _give(self, data: bytes) -> bytes:
        said = trio.from_thread.run_sync(self._member.lies.object, data) if self._lies("object") else data
        if self._asker is not None:
            with self._member.wires.counting:
                self._member.wires.given[self._asker] += len(said)
        return said

    def _lies(self, kind: str) -> bool:
        return getattr(self._member.lies, kind) is not Lies.__dataclass_fields__[kind].default

    def blocks(self, dataset: DatasetId, start: int, max_bytes: int) -> Sequence[bytes]:
        found = self._now.blocks(dataset, start, max_bytes)
        return trio.from_thread.run_sync(self._member.lies.blocks, list(found)) if self._lies("blocks") else found

    def object_part(self, name: Multihash, offset: int, into: memoryview) -> tuple[int, int]:
        size, count = self._now.object_part(name, offset, into)
        if not into:
            return self._member.lies.size(size), count
        said = self._give(bytes(into[:count]))[:count]
        into[: len(said)] = said
        return size, len(said)

    def small_objects(self, names: Sequence[Multihash], largest: int) -> Iterator[bytes]:
        return map(self._give, self._now.small_objects(names, largest))


class Board(Offered):
    """A node's board, as its network fills it and reads from it."""

    whole = "board"

    def judge(self, topic: Topic, envelope: bytes, sender: PeerId) -> Judgement:
        try:
            judged: Judgement = self._now.judge(topic, envelope, sender)
            return judged
        finally:
            trio.from_thread.run_sync(self._member.note_shown)


class NoNat:
    """The direct connections of a host in memory: all are, and nobody is asked how it is seen."""

    opened: frozenset[PeerId] = frozenset()

    def __init__(self, member: Member) -> None:
        self._member = member

    def listening(self) -> Sequence[PeerAddress]:
        return ()

    reachable = listening

    def announce_only(self, found: Sequence[PeerAddress], unreached: Iterable[PeerAddress]) -> None:
        """Nobody dials back."""

    def interfaces(self) -> Collection[Ip]:
        return ()

    async def interfaces_changed(self, known: Collection[Ip]) -> None:
        await trio.sleep_forever()

    async def connections_changed(self) -> None:
        await trio.sleep_forever()

    async def drop_from(self, gone: Collection[Ip]) -> int:
        await trio.lowlevel.checkpoint()
        return 0

    async def dial_own(self) -> Mapping[PeerAddress, bool]:
        await trio.lowlevel.checkpoint()
        return {parse_address("/ip4/127.0.0.1/tcp/4150"): self._member.answers}

    async def dial_back(self, *_: object) -> Any:
        raise NotImplementedError

    punch = reach = drop_relayed = dial_back

    def take_dial_backs(self, heard: Callable[[int], bool]) -> None:
        """Nobody dials back."""

    def came_by_relay(self) -> Sequence[PeerId]:
        return ()

    def is_direct(self, peer: PeerId) -> bool:
        return True

    def meeting(self, *_: object) -> Any:
        return nullcontext()

    def brief(self, *_: object) -> Any:
        raise NotImplementedError


class WiredHost(MemoryHost):
    """A host with an address, which meets all that are in its networks."""

    fabric: Wires

    def __init__(self, wires: Wires, member: Member, nursery: trio.Nursery) -> None:
        super().__init__(wires, member.peer_id, nursery)
        self.member = member
        self.direct = NoNat(member)
        self.blocked: frozenset[PeerId] = frozenset()

    @property
    def address(self) -> str:
        return f"/ip4/{self.member.ip}/tcp/4150/p2p/{self.peer_id}"

    @address.setter
    def address(self, _: str) -> None:
        """It is where its member says."""

    def block(self, peers: Iterable[PeerId]) -> None:
        self.blocked = frozenset(peers)

    def peers(self) -> Mapping[PeerId, str]:
        return {peer: self.fabric.hosts[peer].address.partition("/p2p/")[0] for peer in self.links}

    def tell(self, peer: PeerId, up: bool) -> None:
        self.send_change(peer, up, self.fabric.hosts[peer].address if up else "")

    def network_of(self, peer: PeerId) -> str:
        return network_of(self.fabric.ip(self.fabric.hosts[peer])) if peer in self.links else ""

    async def open_stream(self, peer: PeerId, protocol: str) -> MemoryStream:
        stream = await super().open_stream(peer, protocol)
        stream.noted = self.member.questions.setdefault((peer, protocol), bytearray())
        return stream

    async def join(self, topic: str, validator: Validator) -> None:
        await super().join(topic, validator)
        if topic.endswith(MEMBERS_TOPIC[1]):
            self.fabric.meet()


class Wires(Fabric):
    """Who is in the network, and who is cut off."""

    def __init__(self) -> None:
        super().__init__(None)
        self.given: Counter[PeerId] = Counter()
        """Bytes of objects that each node was given."""
        self.counting = threading.Lock()
        self._cut: set[PeerId] = set()
        self._hidden: set[PeerId] = set()

    def member(
        self,
        options: HostOptions,
        shelves: tuple[ServingLibrary, LedgerStatementStore],
        database: Database,
        clock: Clock,
        journal: Logger,
        terms: MembershipTerms,
    ) -> Member:
        """What ``Membership`` would be made of."""
        return Member(self, options, shelves, database, clock, journal, terms)

    def cut(self, *peers: PeerId) -> None:
        """Nobody speaks with these until they are healed."""
        self._cut.update(peers)
        for host in [self.hosts[peer] for peer in peers if peer in self.hosts]:
            for other in sorted(host.links):
                self.part(host, self.hosts[other])

    def heal(self, *peers: PeerId) -> None:
        """These may speak again; all if none is named."""
        self._cut.difference_update(peers or tuple(self._cut))
        self.meet()

    def hide(self, *peers: PeerId) -> None:
        """Who comes from now on meets these only when it dials them."""
        self._hidden.update(peers)

    def are_linked(self, one: PeerId, other: PeerId) -> bool:
        return other in self.hosts[one].links

    def join(self, one: MemoryHost, other: MemoryHost) -> None:
        assert isinstance(one, WiredHost)
        assert isinstance(other, WiredHost)
        both = {one.peer_id, other.peer_id}
        if other.peer_id in one.links or both & (self._cut | one.blocked | other.blocked):
            return
        super().join(one, other)
        one.nursery.start_soon(one.member.note_met, other.peer_id)
        other.nursery.start_soon(other.member.note_met, one.peer_id)

    def meet(self) -> None:
        """Those who share a network are connected."""
        for one, other in combinations([each for each in self.hosts.values() if each.peer_id not in self._hidden], 2):
            shared = one.validators.keys() & other.validators.keys()
            if any(topic.endswith(MEMBERS_TOPIC[1]) for topic in shared):
                self.join(one, other)

    @asynccontextmanager
    async def open(self, member: Member) -> AsyncIterator[WiredHost]:
        """The host of a member, for as long as the block lasts."""
        async with trio.open_nursery() as nursery:
            host = WiredHost(self, member, nursery)
            self.hosts[host.peer_id] = host
            try:
                yield host
            finally:
                for other in sorted(host.links):
                    self.part(host, self.hosts[other])
                del self.hosts[host.peer_id]
            nursery.cancel_scope.cancel()


class Member(Membership):
    """The membership of a node whose host is on the wires."""

    def __init__(
        self,
        wires: Wires,
        options: HostOptions,
        shelves: tuple[ServingLibrary, LedgerStatementStore],
        database: Database,
        clock: Clock,
        journal: Logger,
        terms: MembershipTerms,
    ) -> None:
        self.wires = wires
        self.library, self.board = shelves
        seen: Any = Shelves(self), Board(self)
        options = msgspec.structs.replace(options, network=WIRES, folder=None, lan=None, inside=("10.0.0.0/8",))
        super().__init__(options, seen, database, Still(clock), journal, terms)
        terms.networks.put((WIRES,))
        self.lies = Lies()
        self.ip = "10.0.0.1"
        """Its address, as others see it."""
        self._given_before = wires.given[self.peer_id]
        self.answers = True
        """Whether anybody who dials is answered."""
        self.announced: list[tuple[Topic, bytes]] = []
        self.questions: dict[tuple[PeerId, str], bytearray] = {}
        """All that this node said on streams of its own, by whom it spoke with and the protocol."""
        self.looks = 0
        """Times that what is served was to be told anew."""
        self.shown = trio.Event()
        """Set, and replaced, when something was shown to this node's board."""

    @asynccontextmanager
    async def _open_host(self, listen: tuple[str, ...]) -> AsyncIterator[OpenHost]:
        # Who leaves all networks is in none, though the settings of a real node would name one for its next start.
        self._options = msgspec.structs.replace(self._options, network=None)
        async with self.wires.open(self) as host:
            yield OpenHost(host, host.block, dict)

    @property
    def driver(self) -> ReplicationDriver:
        """Of the network that was joined first."""
        return self._first_joined()

    def forgive(self) -> None:
        """What time does: penalties fade, and who was shut out is let in again."""
        for driver in self._drivers.values():
            for view in driver.peers():
                driver.book._put(msgspec.structs.replace(driver.book.get(view.peer), score=Score()))
        self.wires.meet()

    def move(self, ip: str) -> None:
        """Others see it at another address from now on."""
        self.ip = ip
        super().look_again()

    async def note_met(self, peer: PeerId) -> None:
        """Tells the node of a peer once its drivers know it, and not only when the membership looks next."""
        for _ in range(MEETING_TURNS):
            await trio.lowlevel.checkpoint()
            if any(view.peer == peer and view.connected for view in self.views()):
                self._on_connect()
                return

    def note_shown(self) -> None:
        self.shown.set()
        self.shown = trio.Event()

    def forget_questions(self) -> None:
        for said in self.questions.values():
            said.clear()

    def named_to(self, subject: DatasetId | Multihash) -> set[tuple[PeerId, str]]:
        """To whom this node named a dataset or an object, and in which protocol, since its questions were forgotten."""
        spellings = bytes(subject)[-32:], str(subject).encode()
        return {where for where, said in self.questions.items() if any(each in said for each in spellings)}

    @property
    def received(self) -> int:
        """Bytes of objects that others gave this node in this life."""
        return self.wires.given[self.peer_id] - self._given_before

    async def take_part(self, *networks: Network) -> None:
        """It is in these networks, whatever is recorded."""
        self._change(networks)
        await self._settle()

    async def announce(self, topic: Topic, envelope: bytes) -> None:
        self.announced.append((topic, envelope))
        await super().announce(topic, envelope)

    async def announce_in(self, networks: Collection[str], topic: Topic, envelope: bytes) -> None:
        if {each.name for each in self.networks} & set(networks):
            self.announced.append((topic, envelope))
        await super().announce_in(networks, topic, envelope)

    def look_again(self) -> None:
        self.looks += 1
        super().look_again()
