"""Sends and receives multicast DNS packets: one socket for IPv4 and one for IPv6, on networks where we have an address.

Packets leave by the network of one of our addresses and from that address, which is how others know whose word it is.
Made and closed by ``p2p.driver.lan``. RFC 6762; RFC 3542 for what IPv6 tells of a packet.
"""

from __future__ import annotations

import errno
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Final, Self

import structlog
import trio

from p2p.ip import parse_ip
from p2p.wire.lan import MAX_PACKET

_LOG = structlog.get_logger("p2p.driver")
_INDEX: Final = struct.Struct("@I")
_ANCILLARY: Final = 64
"""Bytes: where a packet was sent to, with what stands before it, has 36."""


class Group(ABC):
    """One multicast group, open.

    ``port`` is that of the group; raises OSError where this machine has no such family.
    """

    network: str
    """The family as multiaddresses call it."""
    family: socket.AddressFamily

    def __init__(self, port: int) -> None:
        self._port = port
        self._joined: set[str] = set()
        self._socket = trio.socket.socket(self.family, socket.SOCK_DGRAM)

    async def __aenter__(self) -> Self:
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            await self._bind()
        except BaseException:
            self._socket.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._socket.close()

    def join(self, ours: Iterable[str]) -> None:
        """On the networks of these addresses. Networks come and go while a laptop is carried about."""
        for ip in set(ours) - self._joined:
            try:
                self._join(ip)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    _LOG.info("no discovery at an address", address=ip, reason=error.strerror)
                    continue
            self._joined.add(ip)

    async def send(self, packet: bytes) -> None:
        """By each network that was joined; one that is gone is no fault."""
        for ip in sorted(self._joined):
            try:
                await self._send(packet, ip)
            except OSError as error:
                _LOG.debug("not told on the LAN", address=ip, reason=error.strerror)
                self._joined.discard(ip)

    @abstractmethod
    async def receive(self) -> tuple[bytes, str]:
        """A packet, of which more than MAX_PACKET bytes are not read, and the address that it came from."""

    @abstractmethod
    async def _bind(self) -> None: ...

    @abstractmethod
    def _join(self, ip: str) -> None: ...

    @abstractmethod
    async def _send(self, packet: bytes, ip: str) -> None: ...


class Group4(Group):
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


class Group6(Group):
    """``ff02::fb``: heard and told on one link, whose number (``index_of`` an address) stands with each packet."""

    network = "ip6"
    family = socket.AF_INET6
    address = "ff02::fb"

    def __init__(self, port: int, index_of: Callable[[str], int]) -> None:
        super().__init__(port)
        self._index_of = index_of

    async def _bind(self) -> None:
        """To no address, since that of a link would need the link; what was not sent to the group is passed over."""
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
            if any(kind == socket.IPV6_PKTINFO and data[:16] == group for _, kind, data in said):
                return packet, str(parse_ip(str(source)))
