"""Makes connections from a chosen port or in a chosen role (to relays, through NATs, dial-backs), and over circuits.

A NAT opens a port to the hosts that were contacted from that port. So relays are dialled from the port on which this
host listens, and the address that a relay sees is the one at which others come in. ``SO_REUSEPORT`` is set on the
listening socket after it has been bound without it: another program that binds the port is still refused, and only
dials of this process share it. Dial-backs (AutoNAT v2) and probes use ports of their own, and their connections are not
counted by the host. One ``DirectDials`` for each host.

``Circuits`` makes connections over circuits that relays carry: those that this host dials, and those that its relays
bring. A circuit is a stream with a relay. It becomes a connection like any socket, with our noise and our muxer from
end to end: the relay sees encrypted bytes, and can do nothing but drop them. The muxer reads and writes sockets, so a
pair of sockets connects it to the stream. A peer that comes through a relay counts for the relay's address wherever
addresses are counted. One ``Circuits`` for each host.
"""

from __future__ import annotations

import errno
import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, Final

import trio
from libp2p.abc import ConnectionType
from libp2p.custom_types import TProtocol
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from multiaddr import Multiaddr

from chain.errors import Invalid
from p2p.address import CIRCUIT, PeerAddress, parse_address
from p2p.errors import Misbehaviour, PeerFault, PeerUnreachable, StreamBroken, TooSlow, only
from p2p.host.hardening import GuardedHost, HardenedSwarm, TcpStream
from p2p.host.interfaces import local_ips, other_than, reachable_at
from p2p.host.messages import read_message
from p2p.host.stream import Stream
from p2p.ip import Ip
from p2p.ports import PeerId
from p2p.wire.circuit import (
    HOP,
    MAX_MESSAGE,
    CircuitStatus,
    HopKind,
    HopMessage,
    StopKind,
    StopMessage,
    decode_hop,
    decode_stop,
    encode_hop,
    encode_stop,
)
from p2p.wire.reach import BACK, BACK_HEARD, MAX_DIAL_MESSAGE, DialStatus, decode_back, encode_back

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
        found = [str(addr) for listener in self._swarm.listeners.values() for addr in listener.get_addrs()]
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
        hosts = {target.host for target in targets}
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
                    for target in targets:
                        nursery.start_soon(self._insist, target, peer, as_client)
                    while not self.is_direct(peer):  # noqa: ASYNC110 - the library has no event for it
                        await trio.sleep(LISTENING_NOW)
                    nursery.cancel_scope.cancel()
        if is_there := self.is_direct(peer):
            self._opened[peer] = None
        return is_there

    async def reach(self, targets: Sequence[PeerAddress], peer: PeerId, seconds: float) -> bool:
        """Dials a peer that is connected through a relay at its announced addresses; returns whether one answered."""
        with trio.move_on_after(seconds):
            for target in targets:
                with suppress(OSError, SwarmException):
                    stream = await dial_from((ANY[_version(target)], 0), target, shared=False)
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
            for conn in [connection for connection in self._connections(peer) if is_relayed(connection)]:
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
                    await read_message(stream, peer, MAX_DIAL_MESSAGE)
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
                nonce = decode_back(await read_message(stream, peer, MAX_DIAL_MESSAGE))
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
    return any(CIRCUIT in str(address) for address in conn.get_transport_addresses())


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


PATIENCE: Final = 10.0
"""Seconds for the messages that set up a circuit."""
PIECE: Final = 64 << 10
"""Bytes moved at once between the stream and the socket."""
PARTING: Final = 2.0
"""Seconds to close both the stream and the socket."""


class CircuitEnd(TrioTCPStream):  # type: ignore[misc]
    """The muxer's end of the socket pair; reports the relay's address as the remote one."""

    def __init__(self, stream: trio.SocketStream, remote: tuple[str, int] | None) -> None:
        super().__init__(stream)
        self._remote = remote

    def get_remote_address(self) -> tuple[str, int] | None:
        return self._remote


class Circuits:
    """Makes and accepts circuits for one host. ``open_stream`` opens a stream to a connected peer."""

    def __init__(self, swarm: HardenedSwarm, open_stream: Callable[[PeerId, str], Awaitable[Stream]]) -> None:
        self._swarm = swarm
        self._open_stream = open_stream
        self.relays: Mapping[PeerId, str] = {}
        """The relays that may bring circuits, with the address of each."""

    async def dial(self, relay: PeerId, peer: PeerId) -> None:
        """Dials a peer through a connected relay. Raises PeerFault, and the library's exceptions."""
        stream = await self._open_stream(relay, HOP)
        raw = None
        try:
            await self._ask(stream, relay, peer)
            raw = self._connection(stream, relay, initiator=True)
            await self._swarm.upgrade_outbound_raw_conn(raw, ID.from_base58(peer))
        except BaseException:
            with trio.CancelScope(shield=True):
                # Once there is a connection its bridge owns the stream, and ends it when our end of the pair closes.
                await (stream.reset() if raw is None else raw.close())
            raise

    async def _ask(self, stream: Stream, relay: PeerId, peer: PeerId) -> None:
        with trio.move_on_after(PATIENCE) as patience:
            await stream.send_all(encode_hop(HopMessage(kind=HopKind.CONNECT, peer=peer)))
            try:
                said = decode_hop(await read_message(stream, relay, MAX_MESSAGE))
            except Invalid as error:
                raise Misbehaviour(relay, error.message, rule=error.rule, hint=error.hint) from error
            if said.kind is not HopKind.STATUS or said.status != CircuitStatus.OK:
                reason = f"the relay {relay} does not lead there: {name_of(said.status)}"
                raise PeerUnreachable(peer, reason, rule="relay-refused", hint="is the peer still reserved there?")
        if patience.cancelled_caught:
            raise TooSlow(peer, f"the relay {relay} said nothing within {PATIENCE:g} s")

    async def accept(self, stream: Stream, relay: PeerId) -> None:
        """Handles ``STOP``: accepts a circuit that a relay brings. Returns when the circuit is over."""
        status = CircuitStatus.MALFORMED_MESSAGE
        with trio.move_on_after(PATIENCE) as patience:
            with suppress(Invalid):
                status = self._judge(decode_stop(await read_message(stream, relay, MAX_MESSAGE)), relay)
            await stream.send_all(encode_stop(StopMessage(kind=StopKind.STATUS, status=status)))
        if status is CircuitStatus.OK and not patience.cancelled_caught:
            raw = self._connection(stream, relay, initiator=False)
            await self._swarm.attend(raw, raw.get_transport_addresses()[0])

    def _judge(self, asked: StopMessage, relay: PeerId) -> CircuitStatus:
        """Returns whether to accept a circuit, which saves a useless handshake;
        the handshake proves who the peer is."""
        if asked.kind is not StopKind.CONNECT or asked.peer is None:
            return CircuitStatus.UNEXPECTED_MESSAGE
        # Any peer can speak STOP: a circuit counts only from a relay that holds our reservation
        # (test_only_our_relays_bring_circuits).
        return (
            CircuitStatus.OK
            if relay in self.relays and asked.peer not in self._swarm.blocked
            else CircuitStatus.PERMISSION_DENIED
        )

    def _connection(self, stream: Stream, relay: PeerId, *, initiator: bool) -> Any:
        """Returns our end of a connection over a circuit. Raises PeerUnreachable if the relay has already gone."""
        beneath = next(iter(self._swarm.connections.get(ID.from_base58(relay), ())), None)
        if beneath is None:
            raise PeerUnreachable(relay, "the relay hung up", rule="relay-gone")
        where = Multiaddr(f"{beneath.get_transport_addresses()[0]}/p2p/{relay}{CIRCUIT}")
        ours, other = (trio.SocketStream(trio.socket.from_stdlib_socket(each)) for each in socket.socketpair())
        self._swarm.manager.run_task(_bridge, stream, other)
        # Otherwise a relay could bring strangers past the limits of addresses
        # (test_a_hostile_relay_brings_as_many_strangers_as_its_address_may_have).
        end = CircuitEnd(ours, beneath.muxed_conn.get_remote_address())
        return RawConnection(end, initiator, ConnectionType.RELAYED, [where])


def name_of(status: int | None) -> str:
    """Returns the name of a status in the specification."""
    return next((each.name for each in CircuitStatus if each == status), f"status {status}")


async def _bridge(stream: Stream, end: trio.SocketStream) -> None:
    """Moves bytes both ways until the stream or the socket ends; then closes both."""

    async def carry(source: trio.abc.ReceiveStream, sink: trio.abc.SendStream) -> None:
        with suppress(PeerFault, trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await source.receive_some(PIECE):
                await sink.send_all(data)
        # Noise and yamux cannot use a connection that is half closed: the end of one way ends both.
        nursery.cancel_scope.cancel()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(carry, stream, end)
            nursery.start_soon(carry, end, stream)
    finally:
        with trio.CancelScope(shield=True), trio.move_on_after(PARTING):
            await end.aclose()
            await stream.aclose()
