"""Makes connections that must leave from a chosen port or in a chosen role: to relays, through NATs, and dial-backs.

A NAT opens a port to the hosts that were contacted from that port. So relays are dialled from the port on which this
host listens, and the address that a relay sees is the one at which others come in. ``SO_REUSEPORT`` is set on the
listening socket after it has been bound without it: another program that binds the port is still refused, and only
dials of this process share it. Dial-backs (AutoNAT v2) and probes use ports of their own, and their connections are not
counted by the host. One ``DirectDials`` for each host.
"""

from __future__ import annotations

import errno
import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, Final

import trio
from libp2p.custom_types import TProtocol
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from multiaddr import Multiaddr

from chain.errors import Invalid
from p2p.address import CIRCUIT, PeerAddress, parse_address
from p2p.errors import PeerFault, PeerUnreachable, StreamBroken, only
from p2p.host.hardening import GuardedHost, TcpStream
from p2p.host.interfaces import local_ips, other_than, reachable_at
from p2p.host.messages import read_message
from p2p.host.stream import Stream
from p2p.ip import Ip
from p2p.ports import PeerId
from p2p.wire.autonat import BACK, BACK_HEARD, MAX_MESSAGE, DialStatus, decode_back, encode_back

log = logging.getLogger(__name__)
DIAL_BACK: Final = 10.0
"""Seconds for one dial-back, from the first packet to the answer."""
OWN_ADDRESS: Final = 2.0
"""Seconds until an own listening address that was dialled must have greeted: it is on this machine."""
GREETING: Final = b"\x13/multistream/1.0.0\n"
"""First bytes of every libp2p listener, which it sends unasked."""
AGAIN: Final = 0.1
"""Seconds between dials to a router that refuses, within one try of a hole punch."""
ANY: Final = {4: "0.0.0.0", 6: "::"}  # noqa: S104 - a source address, which the kernel chooses
LISTENING_NOW: Final = 0.05
"""Seconds between checks whether the other side's connection came meanwhile."""
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_FINISH_ON_CLOSE: Final = struct.pack("ii", 0, 0)
# A router refuses until the other side's packet has opened it; with EADDRNOTAVAIL the try before still holds both
# ports.
_TRY_AGAIN: Final = {errno.ECONNREFUSED, errno.ECONNRESET, errno.EADDRNOTAVAIL, errno.EHOSTUNREACH, errno.ENETUNREACH}


class DirectDials:
    """Direct dials of one host. ``share_with``: its relays, which are dialled from the listening port."""

    def __init__(self, base: GuardedHost, changed: Callable[[], Awaitable[None]], announce: Sequence[str] = ()) -> None:
        """``changed`` waits until a connection is made or ends."""
        self._base = base
        self._changed = changed
        self._swarm = base.get_network()
        self.share_with: frozenset[PeerId] = frozenset()
        self._announce = announce
        self._opened: dict[PeerId, None] = {}
        self._found: tuple[PeerAddress, ...] = ()
        self._unreached: frozenset[PeerAddress] = frozenset()

    # --- the listening port --------------------------------------------------------------------------------------

    def listening(self) -> list[PeerAddress]:
        """Returns the IP addresses and ports on which this host listens."""
        found = [str(each) for listener in self._swarm.listeners.values() for each in listener.get_addrs()]
        return [parse_address(each.split("/p2p/")[0]) for each in found]

    def reachable(self) -> list[PeerAddress]:
        """Returns the addresses at which it may be reached:
        those that the owner set, or else those of its interfaces."""
        return reachable_at(map(str, self.listening()), self._announce)

    def list_announced(self) -> list[PeerAddress]:
        """Returns the addresses to announce: those that dial-backs found,
        then its own ones that were not found unreached."""
        if self._announce:
            return self.reachable()
        own = [each for each in self.reachable() if each not in self._unreached]
        return list(dict.fromkeys([*self._found, *own]))

    def announce_only(self, found: Sequence[PeerAddress], unreached: Iterable[PeerAddress]) -> None:
        """Sets the results of dial-backs: addresses that were reached, and addresses that were not."""
        self._found, self._unreached = tuple(found), frozenset(unreached)

    @property
    def opened(self) -> frozenset[PeerId]:
        """Returns connected peers that were dialled from the listening port, so that NATs on the way let them in."""
        self._opened = {peer: None for peer in self._opened if self._connections(peer)}
        return frozenset(self._opened)

    async def dial_relay(self, address: PeerAddress, peer: PeerId) -> bool:
        """Dials a relay from the listening port; returns ``False`` if no route leads there from that port."""
        try:
            raw = RawConnection(TcpStream(await self._from_listening(address)), True)
        except OSError as error:
            log.debug("%s not dialled from the listening port: %s", address.transport, error)
            return False
        await self._swarm.upgrade_outbound_raw_conn(raw, ID.from_base58(peer))
        self._opened[peer] = None
        return True

    async def _from_listening(self, address: PeerAddress) -> trio.SocketStream:
        here = next((each for each in self.listening() if _version(each) == _version(address)), None)
        if here is None:
            raise OSError(errno.EADDRNOTAVAIL, "this host listens nowhere")
        return await dial_from((here.host, here.port), address)

    # --- through NATs --------------------------------------------------------------------------------------------

    @contextmanager
    def meeting(self, targets: Sequence[PeerAddress], peer: PeerId) -> Iterator[None]:
        """Treats peers that dial us from one of these addresses as clients, while the block runs."""
        hosts = {each.host for each in targets}
        self._swarm.as_client |= dict.fromkeys(hosts, peer)
        try:
            yield
        finally:
            for host in hosts:
                self._swarm.as_client.pop(host, None)

    async def punch(self, targets: Sequence[PeerAddress], peer: PeerId, seconds: float, *, as_client: bool) -> bool:
        """Dials all targets from the listening port, again and again; returns whether there is a direct connection."""
        with self.meeting(targets if as_client else (), peer):
            with trio.move_on_after(seconds):
                async with trio.open_nursery() as nursery:
                    for each in targets:
                        nursery.start_soon(self._insist, each, peer, as_client)
                    while not self.is_direct(peer):  # noqa: ASYNC110 - the library has no event for it
                        await trio.sleep(LISTENING_NOW)
                    nursery.cancel_scope.cancel()
        if is_there := self.is_direct(peer):
            self._opened[peer] = None
        return is_there

    async def reach(self, targets: Sequence[PeerAddress], peer: PeerId, seconds: float) -> bool:
        """Dials a peer that is connected through a relay at its announced addresses; returns whether one answered."""
        with trio.move_on_after(seconds):
            for each in targets:
                with suppress(OSError, SwarmException):
                    stream = await dial_from((ANY[_version(each)], 0), each, shared=False)
                    raw = RawConnection(TcpStream(stream), True)
                    await self._swarm.upgrade_outbound_raw_conn(raw, ID.from_base58(peer))
                    break
        return self.is_direct(peer)

    async def _insist(self, address: PeerAddress, peer: PeerId, as_client: bool) -> None:
        while True:
            try:
                stream = await self._from_listening(address)
            except OSError as error:
                if error.errno not in _TRY_AGAIN:
                    return
                await trio.sleep(AGAIN)
                continue
            # A failed handshake closes the socket. The next try needs the same two ports, so the close must not wait
            # for the last packets.
            _set_linger(stream, _RESET_ON_CLOSE)
            raw = RawConnection(TcpStream(stream), as_client)
            has_role = False
            try:
                with suppress(SwarmException):
                    await self._take_role(raw, address, peer, as_client=as_client)
                    has_role = True
            finally:
                if not has_role:
                    with trio.CancelScope(shield=True):
                        await raw.close()
            if has_role:
                with suppress(OSError):  # closed meanwhile, by either side
                    _set_linger(stream, _FINISH_ON_CLOSE)
            return

    async def _take_role(self, raw: Any, address: PeerAddress, peer: PeerId, *, as_client: bool) -> None:
        if as_client:
            await self._swarm.upgrade_outbound_raw_conn(raw, ID.from_base58(peer))
            return
        muxed = await self._swarm.upgrade_inbound_raw_conn(raw, Multiaddr(address.transport))
        # The server's side of a handshake takes any key: somebody else may live at an address that the peer named.
        if str(muxed.peer_id) != peer:
            await muxed.close()

    def is_direct(self, peer: PeerId) -> bool:
        return any(not is_relayed(conn) for conn in self._connections(peer))

    def came_by_relay(self) -> list[PeerId]:
        """Lists peers that are connected only through a relay that brought them.

        If two peers dialled each other through relays, only one of them sees the other here.
        """
        found = []
        for peer, conns in self._swarm.connections.items():
            alive = [conn for conn in conns if not conn.is_closed]
            if not alive or not all(map(is_relayed, alive)):
                continue
            ours = sum(conn.muxed_conn.is_initiator for conn in alive)
            if not ours or (ours < len(alive) and str(self._swarm.peer_id) < str(peer)):
                found.append(PeerId(str(peer)))
        return found

    async def drop_relayed(self, peer: PeerId) -> None:
        """Closes the circuits with a peer that has a direct connection."""
        if self.is_direct(peer):
            for conn in [each for each in self._connections(peer) if is_relayed(each)]:
                await conn.close()

    def _connections(self, peer: PeerId) -> list[Any]:
        return [conn for conn in self._swarm.connections.get(ID.from_base58(peer), []) if not conn.is_closed]

    # --- where this machine is -----------------------------------------------------------------------------------

    def interfaces(self) -> list[Ip]:
        return local_ips()

    async def connections_changed(self) -> None:
        await self._changed()

    async def interfaces_changed(self, known: Collection[Ip]) -> None:
        await other_than(known)

    async def drop_from(self, gone: Collection[Ip]) -> int:
        """Ends connections whose local address is gone;
        sends no farewell, as no packet could leave. Returns their number."""
        dead = [
            conn
            for conns in self._swarm.connections.values()
            for conn in conns
            if not conn.is_closed and conn.muxed_conn.local_ip in gone
        ]
        for conn in dead:
            conn.muxed_conn.end(StreamBroken(str(conn.muxed_conn.peer_id), "this machine left the network"))
        return len(dead)

    # --- dial-backs and probes -----------------------------------------------------------------------------------

    async def dial_own(self) -> dict[PeerAddress, bool]:
        """Dials the addresses of this machine at which this host listens, as a stranger does who knows no key of it.

        Returns which of them answered with the greeting of libp2p.
        """
        answered = dict.fromkeys(reachable_at(map(str, self.listening()), ()), False)

        async def dial(address: PeerAddress) -> None:
            with suppress(OSError, trio.BrokenResourceError), trio.move_on_after(OWN_ADDRESS):
                async with await dial_from((ANY[_version(address)], 0), address, shared=False) as stream:
                    greeting = await stream.receive_some(len(GREETING))
                    answered[address] = greeting != b"" and GREETING.startswith(greeting)

        async with trio.open_nursery() as nursery:
            for each in answered:
                nursery.start_soon(dial, each)
        return answered

    async def dial_back(self, address: PeerAddress, peer: PeerId, nonce: int) -> DialStatus:
        """Dials an address and sends a nonce there, from a port to which no NAT was opened."""
        status = DialStatus.DIAL_ERROR
        with trio.move_on_after(DIAL_BACK):
            try:
                async with self.brief(address, peer) as open_stream:
                    status = DialStatus.DIAL_BACK_ERROR
                    stream = await open_stream(BACK)
                    await stream.send_all(encode_back(nonce))
                    await read_message(stream, peer, MAX_MESSAGE)
                    status = DialStatus.OK
            except (PeerFault, Invalid, OSError):
                pass
        return status

    def take_dial_backs(self, heard: Callable[[int], bool]) -> None:
        """Accepts nonces of dial-backs: calls ``heard`` with each nonce that came over a connection which its peer
        made."""

        async def serve(net: Any) -> None:
            peer = PeerId(str(net.muxed_conn.peer_id))
            stream = Stream(net.muxed_stream, net, peer, BACK)
            # A NAT lets a peer in through the port that our own dial opened, and perhaps nobody else: that proves
            # nothing.
            is_dialled = not net.muxed_conn.is_initiator and peer not in self._opened
            with trio.move_on_after(DIAL_BACK), suppress(PeerFault, Invalid):
                nonce = decode_back(await read_message(stream, peer, MAX_MESSAGE))
                if is_dialled and heard(nonce):
                    await stream.send_all(BACK_HEARD)
                    await stream.aclose()
                    return
            await stream.reset()

        self._base.set_stream_handler(TProtocol(BACK), serve)

    @asynccontextmanager
    async def brief(self, address: PeerAddress, peer: PeerId, source: int = 0) -> AsyncIterator[Callable[[str], Any]]:
        """Makes a connection of its own, from a port of its own or from ``source``, that ends with the block.

        Yields a function that opens streams on it. Raises PeerUnreachable, OSError.
        """
        stream = await dial_from((ANY[_version(address)], source), address, shared=bool(source))
        raw = RawConnection(TcpStream(stream), True)
        upgrader = self._swarm.upgrader
        there = ID.from_base58(peer)
        try:
            try:
                secured = await upgrader.upgrade_security(raw, True, there)
                muxed = await upgrader.upgrade_connection(secured, there)
            except Exception as error:
                reason = f"{address.transport}: the handshake failed: {error}"
                raise PeerUnreachable(peer, reason, rule="handshake") from error
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(muxed.start)
                    yield partial(self._open_on, muxed, peer)
                    nursery.cancel_scope.cancel()
            except BaseExceptionGroup as group:
                raise only(group) from None
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(1.0):
                await raw.close()

    async def _open_on(self, muxed: Any, peer: PeerId, protocol: str) -> Stream:
        stream = await muxed.open_stream()
        try:
            await self._base.multiselect_client.select_one_of(
                [TProtocol(protocol)], MultiselectCommunicator(stream), int(DIAL_BACK)
            )
        except Exception as error:
            raise PeerUnreachable(peer, f"{protocol}: {error}", rule="protocol") from error
        return Stream(stream, stream, peer, protocol)


def _set_linger(stream: trio.SocketStream, how: bytes) -> None:
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, how)


def _version(address: PeerAddress) -> int:
    return 6 if ":" in address.host else 4


def is_relayed(conn: Any) -> bool:
    """Whether a connection of the swarm goes through a relay."""
    return any(CIRCUIT in str(each) for each in conn.get_transport_addresses())


async def dial_from(source: tuple[str, int], address: PeerAddress, *, shared: bool = True) -> trio.SocketStream:
    """Opens a TCP connection from a local address and port, which it may share. Raises OSError."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        await sock.bind(source)
        await sock.connect((address.host, address.port))
        return trio.SocketStream(sock)
    except BaseException:
        sock.close()
        raise
