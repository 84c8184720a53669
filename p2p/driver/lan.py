"""Finds peers on the local network: announces this node by multicast, asks who is there, and dials those that answer.

Made with the driver if a person asks for it; ends with it. It uses one socket each for IPv4 and IPv6 and two tasks, and
remembers nothing of what others said: a packet is read under limits, and at most leads to a dial of its sender.
"""

from __future__ import annotations

import errno
import itertools
import socket
import struct
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, Self

import structlog
import trio

from chain.backoff import Backoff
from p2p.address import PeerAddress, parse_address
from p2p.budget.buckets import Budget, Rate
from p2p.driver.inbound import contain
from p2p.driver.peer_penalties import PeerPenalties
from p2p.driver.ports import HostPort
from p2p.driver.settings import LAN_PORT
from p2p.errors import only
from p2p.host.interfaces import index_of
from p2p.ip import parse_ip
from p2p.ports import PeerId
from p2p.wire import lan as wire
from p2p.wire.lan import MAX_PACKET

TOLD: Final = Backoff(first=1.0, most=60.0)
"""Pauses between two announcements of this node."""
ANSWER_SECONDS: Final = 1.0
"""Seconds between two answers, to whichever peers (RFC 6762, section 6)."""
RATE: Final = Rate(per_second=10.0, burst=40.0)
"""Packets of one address that are read; all mDNS on a quiet LAN is less."""
MAX_VISITS: Final = 4
"""Dials under way at a time."""
MAX_MET: Final = 16
"""Connected peers above which no more peers of the LAN are dialled."""
_LOG = structlog.get_logger("p2p.driver")
Visit = Callable[[PeerId, Sequence[str]], Awaitable[object]]
_INDEX: Final = struct.Struct("@I")
_ANCILLARY: Final = 64
"""Bytes of ancillary data read with a packet; its destination, with the header before it, has 36."""


class Lan:
    """Local discovery of one node. ``visit`` dials a peer unless it is blocked or backs off."""

    def __init__(
        self, host: HostPort, standing: PeerPenalties, network: str, visit: Visit, port: int = LAN_PORT
    ) -> None:
        self._host = host
        self._standing = standing
        self._network = network
        self._visit = visit
        self._port = port
        self._budget = Budget[str](RATE)
        self._visiting: set[PeerId] = set()
        self._answered = defaultdict[str, float](lambda: -ANSWER_SECONDS)
        """The time of the last answer, by address family."""

    async def run(self) -> None:
        """Runs until cancelled. Without multicast on this machine, it logs that and ends."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._take_part, "ip4", Group4)
            nursery.start_soon(self._take_part, "ip6", partial(Group6, index_of=index_of))

    async def _take_part(self, network: str, make: Callable[[int], MulticastGroup]) -> None:
        try:
            async with make(self._port) as group, trio.open_nursery() as nursery:
                nursery.start_soon(self._announce_periodically, group)
                await self._listen(group, nursery)
        except* OSError as errors:
            _LOG.warning("no discovery on the LAN", network=network, reason=str(only(errors)))

    async def _announce_periodically(self, group: MulticastGroup) -> None:
        for times in itertools.count(1):
            group.join(one.host for one in self._own(group))
            await group.send(wire.encode_question())
            await self._announce(group)
            await trio.sleep(TOLD.whole(times))

    def _own(self, group: MulticastGroup) -> list[PeerAddress]:
        ours = map(parse_address, self._host.addresses())
        return [one for one in ours if one.network == group.network and wire.is_on_lan(one)]

    async def _announce(self, group: MulticastGroup) -> None:
        self._answered[group.network] = trio.current_time()
        own = self._own(group)
        if own:
            await group.send(wire.encode_presence(self._host.peer_id, self._network, own))

    async def _listen(self, group: MulticastGroup, nursery: trio.Nursery) -> None:
        while True:
            packet, source = await group.receive()
            if not self._budget.spend(source, trio.current_time()):
                continue
            # A packet may name any victim, so an address counts only if it is the source
            # (test_noise_floods_and_lies_lead_to_nobody).
            heard = wire.decode(packet, self._network, source)
            if heard.asks and trio.current_time() - self._answered[group.network] >= ANSWER_SECONDS:
                await self._announce(group)
            for address in heard.told:
                self._dial(address, nursery)

    def _dial(self, address: PeerAddress, nursery: trio.Nursery) -> None:
        peer, connected = address.peer, self._standing.book.connected_peers()
        if peer is None or peer == self._host.peer_id or peer in connected or peer in self._visiting:
            return
        if len(self._visiting) < MAX_VISITS and len(connected) < MAX_MET:
            self._visiting.add(peer)
            nursery.start_soon(self._go, peer, str(address))

    async def _go(self, peer: PeerId, address: str) -> None:
        try:
            await contain(self._visit, peer, [address])
        finally:
            self._visiting.discard(peer)


class MulticastGroup(ABC):
    """An open socket of one multicast group of DNS packets, on the networks of our addresses.

    ``port`` is that of the group. Raises OSError if this machine lacks the address family. A packet is sent through the
    network of one of our addresses, with that address as its source, by which receivers know who sent it. RFC 6762; RFC
    3542 for the ancillary data of IPv6 packets.
    """

    network: str
    """The address family as multiaddresses write it."""
    family: socket.AddressFamily

    def __init__(self, port: int) -> None:
        self._port = port
        self._joined: set[str] = set()
        self._socket = trio.socket.socket(self.family, socket.SOCK_DGRAM)

    async def __aenter__(self) -> Self:
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Other responders on this machine, such as Avahi, have the port too (RFC 6762, section 15).
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            await self._bind()
        except BaseException:
            self._socket.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._socket.close()

    def join(self, ours: Iterable[str]) -> None:
        """Joins the group on the networks of these addresses; called again as networks come and go."""
        for ip in set(ours) - self._joined:
            try:
                self._join(ip)
            except OSError as error:
                # Otherwise the group was joined already, by another address of the same interface.
                if error.errno != errno.EADDRINUSE:
                    _LOG.info("no discovery at an address", address=ip, reason=error.strerror)
                    continue
            self._joined.add(ip)

    async def send(self, packet: bytes) -> None:
        """Sends a packet on each joined network; skips networks that are gone."""
        for ip in sorted(self._joined):
            try:
                await self._send(packet, ip)
            except OSError as error:
                _LOG.debug("not announced on the LAN", address=ip, reason=error.strerror)
                self._joined.discard(ip)

    @abstractmethod
    async def receive(self) -> tuple[bytes, str]:
        """Receives a packet and the address it came from.
        At most MAX_PACKET + 1 bytes are read, so a longer one is noticed."""

    @abstractmethod
    async def _bind(self) -> None: ...

    @abstractmethod
    def _join(self, ip: str) -> None: ...

    @abstractmethod
    async def _send(self, packet: bytes, ip: str) -> None: ...


class Group4(MulticastGroup):
    network = "ip4"
    family = socket.AF_INET
    address = "224.0.0.251"

    async def _bind(self) -> None:
        await self._socket.bind((self.address, self._port))

    def _join(self, ip: str) -> None:
        member = socket.inet_aton(self.address) + socket.inet_aton(ip)
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)

    async def _send(self, packet: bytes, ip: str) -> None:
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(ip))
        await self._socket.sendto(packet, (self.address, self._port))

    async def receive(self) -> tuple[bytes, str]:
        packet, (source, *_) = await self._socket.recvfrom(MAX_PACKET + 1)
        return packet, str(source)


class Group6(MulticastGroup):
    """The group ``ff02::fb``, joined on each link; each packet carries the link's number (``index_of`` an address)."""

    network = "ip6"
    family = socket.AF_INET6
    address = "ff02::fb"

    def __init__(self, port: int, index_of: Callable[[str], int]) -> None:
        super().__init__(port)
        self._index_of = index_of

    async def _bind(self) -> None:
        """Binds to no address, since a link-local one would need its link;
        ``receive`` skips packets not sent to the group."""
        self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        await self._socket.bind(("::", self._port))

    def _join(self, ip: str) -> None:
        member = socket.inet_pton(self.family, self.address) + _INDEX.pack(self._index_of(ip))
        self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, member)

    async def _send(self, packet: bytes, ip: str) -> None:
        index = self._index_of(ip)
        whence = socket.inet_pton(self.family, ip) + _INDEX.pack(index)
        said = [(socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, whence)]
        await self._socket.sendmsg([packet], said, 0, (self.address, self._port, 0, index))

    async def receive(self) -> tuple[bytes, str]:
        group = socket.inet_pton(self.family, self.address)
        while True:
            packet, said, _, (source, *_) = await self._socket.recvmsg(MAX_PACKET + 1, _ANCILLARY)
            # Unicast from outside of the link comes to this socket too (test_peers_that_have_ipv6_alone_meet).
            if any(kind == socket.IPV6_PKTINFO and data[:16] == group for _, kind, data in said):
                return packet, str(parse_ip(str(source)))
