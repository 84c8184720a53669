"""Divides one host among several networks, so that each has a ``HostPort`` of its own (ADR 47).

A peer is in a network if it says that it takes part in the network's gossip, or opened a stream that names the network.
So data of one network goes to its members only, over connections that all networks share. Streams name their network in
the protocol. A stream of an older peer names none; it belongs to the network that both are in. While only one network
is joined, every connected peer that does not say that it is in others counts as its member.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, Protocol

import trio

from p2p.address import PeerAddress
from p2p.driver.ports import ConnectionChange, HostPort, StreamHandler, StreamPort, Validator
from p2p.errors import PeerUnreachable, ProtocolUnsupported
from p2p.ip import Allows
from p2p.ports import PeerId

MAX_NETWORKS: Final = 8
"""Networks at a time: each has four topics, and peers refuse a frame that joins more than 64."""
OURS: Final = "/odf/"
"""The prefix of protocols that are divided among networks; those of libp2p belong to the host."""
MEMBERS_TOPIC: Final = ("/odf/1/", "/peers")
"""The parts before and after a network's name in the topic of its members."""
HELLO_SECONDS: Final = 2.0
"""Seconds that a stream that names no network waits for its peer to say which networks it is in."""
HELLO_PAUSE: Final = 0.05
"""Seconds to wait after such a message before members are compared: several come together."""
CHANGES: Final = 1024
"""Unread changes of a network; further ones are lost, and ``peers`` is authoritative."""


def members_topic(network: str) -> str:
    """Returns the topic that the members of a network subscribe to."""
    return network.join(MEMBERS_TOPIC)


class DividedHost(HostPort, Protocol):
    """The operations of a host that dividing it takes."""

    def is_member(self, peer: PeerId, topic: str) -> bool:
        """Whether a connected peer says that it joined a topic, whether this node joined it or not."""

    def is_in_some(self, peer: PeerId) -> bool:
        """Whether a connected peer says that it is in some network."""

    async def next_hello(self) -> None:
        """Waits until some peer says which topics it joined."""

    async def leave(self, topic: str) -> None: ...

    def drop_handler(self, protocol: str) -> None: ...


class Namespaces:
    """The networks of one host. ``run`` passes changes of connections on to them."""

    def __init__(self, host: DividedHost) -> None:
        self._host = host
        self._open: dict[str, NetworkHost] = {}
        self._dialled: dict[PeerId, str] = {}
        """Addresses of connected peers, as the host reported them last."""

    async def run(self) -> None:
        """Runs until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hellos)
            while True:
                change = await self._host.next_change()
                if change.up:
                    self._dialled[change.peer] = change.address
                    for each in self._open.values():
                        each.came(change)
                else:
                    self._dialled.pop(change.peer, None)
                    for each in self._open.values():
                        each.went(change.peer)

    async def _hellos(self) -> None:
        while True:
            await self._host.next_hello()
            await trio.sleep(HELLO_PAUSE)
            self.look_again()

    def look_again(self) -> None:
        """Reports to each network which connected peers have come into it or left it."""
        for each in self._open.values():
            each.compare(self._dialled)

    def open(self, network: str) -> NetworkHost:
        """Opens a network on this host; ``close`` ends it."""
        made = self._open[network] = NetworkHost(self, self._host, network)
        self.look_again()
        return made

    async def close(self, network: str) -> None:
        closed = self._open.pop(network)
        await closed.end()
        for protocol in closed.handlers:
            self._host.drop_handler(scope_protocol(protocol, network))
            if not any(protocol in each.handlers for each in self._open.values()):
                self._host.drop_handler(protocol)
        self.choose()
        self.look_again()

    def is_member(self, network: NetworkHost, peer: PeerId) -> bool:
        """Whether a connected peer is in a network."""
        if peer in network.met or self._host.is_member(peer, network.topic):
            return True
        return len(self._open) == 1 and not self._host.is_in_some(peer)

    @property
    def is_divided(self) -> bool:
        return len(self._open) > 1

    def serve(self, network: NetworkHost, protocol: str, handler: StreamHandler) -> None:
        if not protocol.startswith(OURS):
            self._host.set_handler(protocol, handler)
            return

        async def serve_named(stream: StreamPort, peer: PeerId) -> None:
            network.meet(peer)
            await handler(stream, peer)

        self._host.set_handler(scope_protocol(protocol, network.name), serve_named)
        self._host.set_handler(protocol, partial(self._serve_unnamed, protocol))

    async def _serve_unnamed(self, protocol: str, stream: StreamPort, peer: PeerId) -> None:
        """Serves a stream that names no network, once the peer has said which one it is in;
        resets it if the peer does not."""
        with trio.move_on_after(HELLO_SECONDS):
            while not (found := self._of(protocol, peer)):
                await self._host.next_hello()
        if not found:
            await stream.reset()
            return
        await found[0].handlers[protocol](stream, peer)

    def _of(self, protocol: str, peer: PeerId) -> list[NetworkHost]:
        return [each for each in self._open.values() if protocol in each.handlers and self.is_member(each, peer)]

    def choose(self) -> None:
        """Reserves room on the host for the peers that are chosen in any of the networks."""
        chosen = [each.choice for each in self._open.values()]
        peers = {peer for each in chosen for peer in each[0]}
        addresses = [address for each in chosen for address in each[1]]
        self._host.choose(peers, addresses, {peer for each in chosen for peer in each[2]})


class NetworkHost:
    """The host as seen by one network; implements ``HostPort``."""

    def __init__(self, networks: Namespaces, host: DividedHost, name: str) -> None:
        self._networks, self._host = networks, host
        self.name, self.topic = name, members_topic(name)
        self.handlers: dict[str, StreamHandler] = {}
        self.met: set[PeerId] = set()
        """Connected peers that opened a stream that names this network."""
        self.choice: tuple[frozenset[PeerId], tuple[str, ...], frozenset[PeerId]] = (frozenset(), (), frozenset())
        self._topics: set[str] = set()
        self._told: set[PeerId] = set()
        """Peers that were reported to the network as connected."""
        self._dialled: set[PeerId] = set()
        """Connected peers that this network dialled.
        If one goes without ever saying its networks, this network is told."""
        self._send, self._changes = trio.open_memory_channel[ConnectionChange](CHANGES)

    # Changes

    def came(self, change: ConnectionChange) -> None:
        if self._networks.is_member(self, change.peer):
            self._told.add(change.peer)
            self._tell(change)

    def went(self, peer: PeerId) -> None:
        self.met.discard(peer)
        if peer in self._told or peer in self._dialled:
            self._told.discard(peer)
            self._dialled.discard(peer)
            self._tell(ConnectionChange(peer, up=False))

    def compare(self, dialled: Mapping[PeerId, str]) -> None:
        """Reports the peers that came into the network, or left it, while they stayed connected."""
        present = set(self.peers())
        self.met &= set(self._host.peers())
        for peer in sorted(self._told - present):
            self._told.discard(peer)
            self._tell(ConnectionChange(peer, up=False))
        for peer in sorted(present - self._told):
            self._told.add(peer)
            self._tell(ConnectionChange(peer, up=True, address=dialled.get(peer, "")))

    def meet(self, peer: PeerId) -> None:
        if peer not in self.met:
            self.met.add(peer)
            self._networks.look_again()

    def _tell(self, change: ConnectionChange) -> None:
        try:
            self._send.send_nowait(change)
        except trio.WouldBlock:
            return  # as ``next_change`` promises

    async def end(self) -> None:
        for topic in self._topics:
            await self._host.leave(topic)

    # HostPort

    @property
    def peer_id(self) -> PeerId:
        return self._host.peer_id

    def addresses(self) -> Sequence[str]:
        return self._host.addresses()

    @property
    def chosen(self) -> frozenset[PeerId]:
        return self._host.chosen

    async def connect(self, multiaddr: str, *others: str, allows: Allows) -> PeerId:
        peer = await self._host.connect(multiaddr, *others, allows=allows)
        if not self._host.is_connected(peer):
            raise PeerUnreachable(peer, "it hung up at once", rule="dial")
        self._dialled.add(peer)
        return peer

    async def disconnect(self, peer: PeerId) -> None:
        await self._host.disconnect(peer)

    async def open_stream(self, peer: PeerId, protocol: str) -> StreamPort:
        """Opens a stream that names the network, if several are joined; falls back to a plain one for an older peer."""
        if not self._networks.is_divided or not protocol.startswith(OURS):
            return await self._host.open_stream(peer, protocol)
        if not self._networks.is_member(self, peer):
            raise PeerUnreachable(peer, f"it is not in {self.name}, or has not said so yet", rule="other-network")
        try:
            return await self._host.open_stream(peer, scope_protocol(protocol, self.name))
        except ProtocolUnsupported:
            return await self._host.open_stream(peer, protocol)

    def set_handler(self, protocol: str, handler: StreamHandler) -> None:
        self.handlers[protocol] = handler
        self._networks.serve(self, protocol, handler)

    def peers(self) -> Mapping[PeerId, str]:
        return {peer: at for peer, at in self._host.peers().items() if self._networks.is_member(self, peer)}

    def is_connected(self, peer: PeerId) -> bool:
        return self._host.is_connected(peer)

    def network_of(self, peer: PeerId) -> str:
        return self._host.network_of(peer)

    def remote_of(self, peer: PeerId) -> str:
        return self._host.remote_of(peer)

    def brief(self, address: PeerAddress, peer: PeerId, protocol: str) -> AbstractAsyncContextManager[StreamPort]:
        """Opens a stream on a connection of its own; it always names the network, as the peer may be in others."""
        return self._host.brief(address, peer, scope_protocol(protocol, self.name))

    def share_of(self, peer: PeerId) -> str:
        return self._host.share_of(peer)

    def charge(self, peer: PeerId, cost: float) -> float:
        return self._host.charge(peer, cost)

    def gave(self, peer: PeerId, amount: int) -> None:
        self._host.gave(peer, amount)

    def choose(self, peers: Iterable[PeerId], addresses: Iterable[str] = (), publishers: Iterable[PeerId] = ()) -> None:
        self.choice = (frozenset(peers), tuple(addresses), frozenset(publishers))
        self._networks.choose()

    async def next_change(self) -> ConnectionChange:
        return await self._changes.receive()

    async def join(self, topic: str, validator: Validator) -> None:
        self._topics.add(topic)
        await self._host.join(topic, validator)

    async def publish(self, topic: str, data: bytes) -> None:
        await self._host.publish(topic, data)


def scope_protocol(protocol: str, network: str) -> str:
    """Returns the name of a protocol within a network."""
    return f"{protocol}/{network}"
