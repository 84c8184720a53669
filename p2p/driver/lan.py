"""Peers on one LAN find each other: who is there is said by multicast, asked for, and met by dialling.

Made with the driver where a person wished it, ends with it. One socket, two tasks and no memory of what others said:
each packet is read under limits, and at most leads to a dial of whoever sent it.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog
import trio

from p2p.address import Address, parse_address
from p2p.driver.containment import contained
from p2p.driver.ports import HostPort
from p2p.driver.standing import Standing
from p2p.peers.budget import Budget, Rate
from p2p.ports import PeerId
from p2p.wire import lan as wire

GROUP: Final = "224.0.0.251"
PORT: Final = 5353
FIRST_SECONDS: Final = 1.0
"""Between the first two times that we say who we are; doubled up to ``LAST_SECONDS``."""
LAST_SECONDS: Final = 60.0
ANSWER_SECONDS: Final = 1.0
"""Between answers, whoever asks (RFC 6762, section 6)."""
RATE: Final = Rate(per_second=10.0, burst=40.0)
"""Packets of one address that are looked at; all of mDNS on a quiet LAN is fewer."""
MAX_VISITS: Final = 4
"""Dials at a time."""
MAX_MET: Final = 16
"""Connections above which nobody more is dialled for being near."""
_LOG = structlog.get_logger("p2p.driver")
Visit = Callable[[PeerId, Sequence[str]], Awaitable[object]]


class Lan:
    """See the module. ``visit`` dials a peer unless it is shut out or rests after a failure."""

    def __init__(self, host: HostPort, standing: Standing, network: str, visit: Visit, port: int = PORT) -> None:
        self._host = host
        self._standing = standing
        self._network = network
        self._visit = visit
        self._port = port
        self._budget = Budget[str](RATE)
        self._visiting: set[PeerId] = set()
        self._joined: set[str] = set()
        self._answered = -ANSWER_SECONDS

    async def run(self) -> None:
        """Until cancelled. A machine where multicast cannot be had is told of, and does without."""
        try:
            with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                await bound.bind((GROUP, self._port))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._tell_now_and_then, bound)
                    await self._listen(bound, nursery)
        except OSError as error:
            _LOG.warning("no discovery on the LAN", reason=error.strerror)

    async def _tell_now_and_then(self, bound: trio.socket.SocketType) -> None:
        pause = FIRST_SECONDS
        while True:
            self._join(bound)
            await self._send(bound, wire.encode_question())
            await self._tell(bound)
            await trio.sleep(pause)
            pause = min(pause * 2, LAST_SECONDS)

    def _own(self) -> list[Address]:
        return [one for one in map(parse_address, self._host.addresses()) if wire.is_on_lan(one)]

    def _join(self, bound: trio.socket.SocketType) -> None:
        """Networks come and go while a laptop is carried about."""
        for ip in {one.host for one in self._own()} - self._joined:
            member = socket.inet_aton(GROUP) + socket.inet_aton(ip)
            try:
                bound.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    _LOG.info("no discovery at an address", address=ip, reason=error.strerror)
                    continue
            self._joined.add(ip)

    async def _tell(self, bound: trio.socket.SocketType) -> None:
        self._answered = trio.current_time()
        own = self._own()
        if own:
            await self._send(bound, wire.encode_presence(self._host.peer_id, self._network, own))

    async def _send(self, bound: trio.socket.SocketType, packet: bytes) -> None:
        """By each network we are in; one that is gone is no fault."""
        for ip in sorted(self._joined):
            try:
                bound.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(ip))
                await bound.sendto(packet, (GROUP, self._port))
            except OSError as error:
                _LOG.debug("not told on the LAN", address=ip, reason=error.strerror)
                self._joined.discard(ip)

    async def _listen(self, bound: trio.socket.SocketType, nursery: trio.Nursery) -> None:
        while True:
            packet, (source, *_) = await bound.recvfrom(wire.MAX_PACKET + 1)
            if not self._budget.spend(source, trio.current_time()):
                continue
            heard = wire.decode(packet, self._network, source)
            if heard.asks and trio.current_time() - self._answered >= ANSWER_SECONDS:
                await self._tell(bound)
            for address in heard.told:
                self._meet(address, nursery)

    def _meet(self, address: Address, nursery: trio.Nursery) -> None:
        peer, connected = address.peer, self._standing.book.connected_peers()
        if peer is None or peer == self._host.peer_id or peer in connected or peer in self._visiting:
            return
        if len(self._visiting) < MAX_VISITS and len(connected) < MAX_MET:
            self._visiting.add(peer)
            nursery.start_soon(self._go, peer, str(address))

    async def _go(self, peer: PeerId, address: str) -> None:
        try:
            await contained(self._visit, peer, [address])
        finally:
            self._visiting.discard(peer)
