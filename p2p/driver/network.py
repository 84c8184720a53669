"""Implements ``HostPort`` and ``DividedHost`` over the hardened libp2p host.

Made inside ``open_host``, for as long as the host is open. It adds gossip and translates between the interfaces; its
only state are the validators of topics.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from p2p.address import PeerAddress
from p2p.driver.namespaces import MEMBERS_TOPIC
from p2p.driver.ports import ConnectionChange, DirectPort, StreamHandler, StreamPort, Validator
from p2p.host.host import Host, PeerConnected
from p2p.host.pubsub import FrameLimits, Gossip, GossipLimits, open_gossip
from p2p.ip import Allows
from p2p.ports import GossipVerdict, Judgement, PeerId
from p2p.wire.limits import MAX_ENVELOPE


class GossipHost:
    """A host with gossip, as ``HostPort``. Made by ``open_network``."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._gossip: Gossip | None = None
        self._validators: dict[str, Validator] = {}

    @property
    def peer_id(self) -> PeerId:
        return self._host.peer_id

    @property
    def direct(self) -> DirectPort:
        return self._host.direct

    def share_port_with(self, peers: Iterable[PeerId]) -> None:
        self._host.direct.share_with = frozenset(peers)

    def addresses(self) -> Sequence[str]:
        return self._host.addresses()

    def peers(self) -> Mapping[PeerId, str]:
        return self._host.peers()

    def is_connected(self, peer: PeerId) -> bool:
        return self._host.is_connected(peer)

    def network_of(self, peer: PeerId) -> str:
        return self._host.network_of(peer)

    def remote_of(self, peer: PeerId) -> str:
        return self._host.remote_of(peer)

    def brief(self, address: PeerAddress, peer: PeerId, protocol: str) -> AbstractAsyncContextManager[StreamPort]:
        return self._host.brief(address, peer, protocol)

    def share_of(self, peer: PeerId) -> str:
        return self._host.share_of(peer)

    def charge(self, peer: PeerId, cost: float) -> float:
        return self._host.charge(peer, cost)

    def gave(self, peer: PeerId, amount: int) -> None:
        self._host.gave(peer, amount)

    def choose(self, peers: Iterable[PeerId], addresses: Iterable[str] = (), publishers: Iterable[PeerId] = ()) -> None:
        self._host.choose(peers, addresses, publishers)

    @property
    def chosen(self) -> frozenset[PeerId]:
        return self._host.chosen

    def reached_by(self, relays: Mapping[PeerId, str]) -> None:
        self._host.reached_by(relays)

    async def connect(self, multiaddr: str, *others: str, allows: Allows) -> PeerId:
        return await self._host.connect(multiaddr, *others, allows=allows)

    async def disconnect(self, peer: PeerId) -> None:
        await self._host.disconnect(peer)

    async def open_stream(self, peer: PeerId, protocol: str) -> StreamPort:
        return await self._host.open_stream(peer, protocol)

    def set_handler(self, protocol: str, handler: StreamHandler) -> None:
        self._host.set_handler(protocol, handler)

    async def next_change(self) -> ConnectionChange:
        try:
            notice = await self._host.notices.receive()
        except trio.EndOfChannel:
            # The host is closing: nothing will change any more, and waiting tasks are about to be cancelled.
            await trio.sleep_forever()
        if not isinstance(notice, PeerConnected):
            return ConnectionChange(notice.peer, up=False)
        # The port from which a peer dialled is not one on which it listens.
        address = "" if notice.inbound else f"{notice.address}/p2p/{notice.peer}"
        return ConnectionChange(notice.peer, up=True, address=address)

    async def join(self, topic: str, validator: Validator) -> None:
        assert self._gossip is not None
        self._validators[topic] = validator
        await self._gossip.join([topic])

    async def leave(self, topic: str) -> None:
        assert self._gossip is not None
        self._validators.pop(topic, None)
        await self._gossip.leave(topic)

    def is_member(self, peer: PeerId, topic: str) -> bool:
        assert self._gossip is not None
        return self._gossip.is_member(peer, topic)

    def is_in_some(self, peer: PeerId) -> bool:
        assert self._gossip is not None
        return self._gossip.has_joined_like(peer, *MEMBERS_TOPIC)

    async def next_hello(self) -> None:
        assert self._gossip is not None
        await self._gossip.next_hello()

    def drop_handler(self, protocol: str) -> None:
        self._host.drop_handler(protocol)

    async def publish(self, topic: str, data: bytes) -> None:
        assert self._gossip is not None
        await self._gossip.publish(topic, data)

    async def validate(self, topic: str, sender: PeerId, data: bytes) -> GossipVerdict:
        """Validates a gossip message by its topic's validator; messages of topics without one are ignored."""
        validator = self._validators.get(topic)
        return await validator(sender, data) if validator else GossipVerdict(Judgement.IGNORE)


@asynccontextmanager
async def open_network(host: Host) -> AsyncIterator[GossipHost]:
    """Opens gossip over ``host`` for as long as the block lasts."""
    network = GossipHost(host)
    limits = GossipLimits(frame=FrameLimits(max_message=MAX_ENVELOPE))
    async with open_gossip(host, (), network.validate, limits) as gossip:
        network._gossip = gossip
        yield network
