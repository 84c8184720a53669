"""A network in memory: hosts for the real driver of replication, and what carries streams and gossip between them.

A host is a ``HostPort``, and one that can be divided among networks; there is no handshake, no port and no NAT. Links
are made and broken by who holds the fabric; a link that breaks resets the streams on it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakSet

import trio
import trio.testing

from p2p.address import PeerAddress
from p2p.driver.namespaces import MEMBERS_TOPIC
from p2p.driver.ports import ConnectionChange, StreamHandler, Validator
from p2p.errors import PeerUnreachable, ProtocolUnsupported, StreamBroken
from p2p.ip import Allows
from p2p.ports import Judgement, PeerId

__all__ = ["Fabric", "MemoryHost", "MemoryStream"]


class MemoryStream:
    """One end of a stream. With ``lockstep`` a send waits until it is read, as on a full connection."""

    def __init__(self, stream: trio.StapledStream, peer: PeerId) -> None:
        self._stream = stream
        self.peer = peer
        self.other: MemoryStream | None = None
        self.was_reset = False
        self.closed = False
        self.noted: bytearray | None = None
        """All that is said at this end is added to it."""

    async def send_all(self, data: bytes | memoryview) -> None:
        self._check()
        if self.noted is not None:
            self.noted += data
        try:
            await self._stream.send_all(data)
        except trio.BrokenResourceError as error:
            raise StreamBroken(self.peer, "the other side is gone") from error

    async def receive_some(self, max_bytes: int) -> bytes:
        self._check()
        try:
            data = await self._stream.receive_some(max_bytes)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise StreamBroken(self.peer, "reset") from error
        if self.was_reset:
            raise StreamBroken(self.peer, "reset")
        return bytes(data)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        self.closed = True
        await self._stream.aclose()

    async def reset(self) -> None:
        if not self.closed:
            self.closed = True
            if self.other:
                self.other.was_reset = True
            await self._stream.aclose()

    def break_off(self) -> None:
        """Its connection is gone."""
        self.was_reset = True
        self._stream.send_stream.close()  # type: ignore[attr-defined]  # streams in memory have one
        self._stream.receive_stream.close()  # type: ignore[attr-defined]

    def _check(self) -> None:
        if self.closed:
            raise trio.ClosedResourceError
        if self.was_reset:
            raise StreamBroken(self.peer, "reset")


class MemoryHost:
    """A ``DividedHost`` on a fabric. What it serves are tasks in a nursery of whoever made it."""

    def __init__(self, fabric: Fabric, name: str, nursery: trio.Nursery) -> None:
        self.fabric = fabric
        self.nursery = nursery
        self.peer_id = PeerId(name)
        self.handlers: dict[str, StreamHandler] = {}
        self.validators: dict[str, Validator] = {}
        self.links: set[PeerId] = set()
        self.dials: list[tuple[float, str]] = []
        self._changes, self._inbox = trio.open_memory_channel[ConnectionChange](math.inf)
        self.address = f"/memory/{name}"
        self.reachable = True
        self.lockstep = False
        self.chosen: frozenset[PeerId] = frozenset()
        self.relays: dict[PeerId, str] = {}
        self.apart: set[PeerId] = set()
        """Chosen peers and publishers: they share with nobody."""
        self._hello = trio.Event()

    direct: Any = None
    """Nobody is behind a NAT here."""

    def share_port_with(self, peers: Iterable[PeerId]) -> None:
        """There are no ports."""

    def addresses(self) -> Sequence[str]:
        return [self.address]

    def peers(self) -> Mapping[PeerId, str]:
        return {peer: f"/memory/{peer}" for peer in self.links}

    def is_connected(self, peer: PeerId) -> bool:
        return peer in self.links

    def gave(self, peer: PeerId, amount: int) -> None:
        """Nobody is short of places here."""

    def choose(self, peers: Iterable[PeerId], addresses: Iterable[str] = (), publishers: Iterable[PeerId] = ()) -> None:
        self.chosen = frozenset(peers)
        self.apart = {*self.chosen, *publishers}

    def reached_by(self, relays: Mapping[PeerId, str]) -> None:
        self.relays = dict(relays)

    def charge(self, peer: PeerId, cost: float) -> float:
        """What a peer costs is no matter here."""
        return 0.0

    def network_of(self, peer: PeerId) -> str:
        return "memory" if peer in self.links else ""

    def remote_of(self, peer: PeerId) -> str:
        other = self.fabric.hosts.get(peer)
        return "" if other is None else self.fabric.ip(other)

    @asynccontextmanager
    async def brief(self, address: PeerAddress, peer: PeerId, protocol: str) -> AsyncIterator[MemoryStream]:
        await trio.sleep(0.01)
        other = self.fabric.hosts.get(peer)
        if other is None or not other.reachable or address.transport not in other.address:
            raise PeerUnreachable(peer, "nobody there")
        handler = other.handlers.get(protocol)
        if handler is None:
            raise ProtocolUnsupported(peer, f"does not speak {protocol}")
        self.fabric.briefs.append((self.peer_id, peer))
        stream = self.fabric.streams(handler, self, other)
        try:
            yield stream
        finally:
            await stream.reset()

    def share_of(self, peer: PeerId) -> str:
        return peer if peer in self.apart else self.network_of(peer) or peer

    async def connect(self, multiaddr: str, *others: str, allows: Allows) -> PeerId:
        self.dials.append((trio.current_time(), multiaddr))
        await trio.sleep(0.01)
        other = self.fabric.hosts.get(PeerId(multiaddr.rpartition("/")[2]))
        if other is None or not other.reachable or other.address not in (multiaddr, *others):
            raise PeerUnreachable(multiaddr, "nobody there")
        self.fabric.join(self, other)
        if other.peer_id not in self.links:
            raise PeerUnreachable(multiaddr, "cut off")
        return other.peer_id

    async def disconnect(self, peer: PeerId) -> None:
        await trio.lowlevel.checkpoint()
        self.fabric.part(self, self.fabric.hosts[peer])

    async def open_stream(self, peer: PeerId, protocol: str) -> MemoryStream:
        await trio.lowlevel.checkpoint()
        if peer not in self.links:
            raise PeerUnreachable(peer, "not connected")
        handler = self.fabric.hosts[peer].handlers.get(protocol)
        if handler is None:
            raise ProtocolUnsupported(peer, f"does not speak {protocol}")
        return self.fabric.streams(handler, self, self.fabric.hosts[peer])

    def set_handler(self, protocol: str, handler: StreamHandler) -> None:
        self.handlers[protocol] = handler

    def drop_handler(self, protocol: str) -> None:
        self.handlers.pop(protocol, None)

    async def next_change(self) -> ConnectionChange:
        return await self._inbox.receive()

    def tell(self, peer: PeerId, up: bool) -> None:
        self.send_change(peer, up, f"/memory/{peer}" if up else "")

    def send_change(self, peer: PeerId, up: bool, address: str) -> None:
        self._changes.send_nowait(ConnectionChange(peer, up, address))

    async def join(self, topic: str, validator: Validator) -> None:
        self.validators[topic] = validator
        self._say_hello()

    async def leave(self, topic: str) -> None:
        await trio.lowlevel.checkpoint()
        self.validators.pop(topic, None)
        self._say_hello()

    def _say_hello(self) -> None:
        """Tells who is connected that this host takes part in other topics than before."""
        for peer in self.links:
            self.fabric.hosts[peer].hear_hello()

    def hear_hello(self) -> None:
        self._hello.set()
        self._hello = trio.Event()

    async def next_hello(self) -> None:
        await self._hello.wait()

    def is_member(self, peer: PeerId, topic: str) -> bool:
        return peer in self.links and topic in self.fabric.hosts[peer].validators

    def is_in_some(self, peer: PeerId) -> bool:
        before, after = MEMBERS_TOPIC
        topics = self.fabric.hosts[peer].validators if peer in self.links else ()
        return any(topic.startswith(before) and topic.endswith(after) for topic in topics)

    async def publish(self, topic: str, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        for peer in sorted(self.links):
            self.fabric.pass_on(self, peer, topic, data)


class Fabric:
    """Hosts by name, and what is carried between them. ``nursery`` is that of hosts that get none of their own."""

    def __init__(self, nursery: trio.Nursery | None) -> None:
        self.nursery = nursery
        self.hosts: dict[PeerId, MemoryHost] = {}
        self.carried: Counter[PeerId] = Counter()
        """Bytes of gossip that reached each of them."""

        self.briefs: list[tuple[PeerId, PeerId]] = []
        """Who asked whom over a connection of its own."""

        self._open: dict[frozenset[PeerId], WeakSet[MemoryStream]] = {}
        """The streams of each link, which break with it."""

    def ip(self, host: MemoryHost) -> str:
        return host.address.split("/")[2] if host.address.startswith("/ip4/") else ""

    def streams(self, handler: StreamHandler, here: MemoryHost, there: MemoryHost) -> MemoryStream:
        """A stream from one host to another, which serves it."""
        lockstep = here.lockstep or there.lockstep
        pair = trio.testing.lockstep_stream_pair() if lockstep else trio.testing.memory_stream_pair()
        mine, theirs = MemoryStream(pair[0], there.peer_id), MemoryStream(pair[1], here.peer_id)
        mine.other, theirs.other = theirs, mine
        self._open.setdefault(frozenset((here.peer_id, there.peer_id)), WeakSet()).update((mine, theirs))
        there.nursery.start_soon(self.serve, handler, theirs, here.peer_id)
        return mine

    def host(self, name: str) -> MemoryHost:
        assert self.nursery is not None
        host = MemoryHost(self, name, self.nursery)
        self.hosts[host.peer_id] = host
        return host

    def join(self, one: MemoryHost, other: MemoryHost) -> None:
        for here, there in ((one, other), (other, one)):
            if there.peer_id not in here.links:
                here.links.add(there.peer_id)
                here.tell(there.peer_id, up=True)

    def part(self, one: MemoryHost, other: MemoryHost) -> None:
        for here, there in ((one, other), (other, one)):
            if there.peer_id in here.links:
                here.links.discard(there.peer_id)
                here.tell(there.peer_id, up=False)
        for stream in self._open.pop(frozenset((one.peer_id, other.peer_id)), ()):
            stream.break_off()

    async def serve(self, handler: StreamHandler, stream: MemoryStream, peer: PeerId) -> None:
        await handler(stream, peer)

    def pass_on(self, sender: MemoryHost, to: PeerId, topic: str, data: bytes) -> None:
        receiver = self.hosts[to]
        receiver.nursery.start_soon(self.gossip, sender, receiver, topic, data)

    async def gossip(self, sender: MemoryHost, receiver: MemoryHost, topic: str, data: bytes) -> None:
        validator = receiver.validators.get(topic)
        if validator is None:
            return
        self.carried[receiver.peer_id] += len(data)
        verdict = await validator(sender.peer_id, data)
        to = set(verdict.to) | (receiver.links if verdict.judgement is Judgement.ACCEPT else set())
        for peer in sorted(to - {sender.peer_id}):
            self.pass_on(receiver, peer, topic, data)
