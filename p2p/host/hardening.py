"""Corrects the faults of py-libp2p 0.8.1, each in one small named class with its reason; ``assemble`` makes the host.

The library's ``new_host`` is not used: its host accepts plaintext and whatever identity the dialler claims, dials
strangers every 30 seconds, ends when one stream handler raises, and stops accepting after 250 connections in its life.
Its parts are good; these are subclasses of them, assembled anew. Two functions of its modules are replaced, because no
subclass can reach them (``bound_negotiation``, ``refuse_shared_ports``), and one class that it makes itself
(``tell_addresses``). Each correction has its attack among
``tests/contract/p2p``.

``BoundedPeerStore`` bounds what the library remembers of peers: this node and connected peers stay, the others go,
oldest first. The library's own store enforces its bound only when an address is added, and first forgets peers without
addresses, such as this node itself. Without its own key the node signs no message any more, so a thousand free keys
could silence it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any, Final

import libp2p.network.swarm as swarm_module
import libp2p.protocol_muxer.multiselect_communicator as communicator_module
import libp2p.transport.tcp.tcp as tcp_module
import trio
from libp2p.crypto.ed25519 import create_new_key_pair as ed25519_pair
from libp2p.crypto.keys import PublicKey
from libp2p.crypto.x25519 import create_new_key_pair as x25519_pair
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.io.exceptions import MessageTooLarge
from libp2p.io.trio import TrioTCPStream
from libp2p.network.auto_connector import AutoConnector
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.exceptions import SwarmException
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from libp2p.rcmgr import new_resource_manager
from libp2p.rcmgr.connection_limits import ConnectionLimits
from libp2p.rcmgr.manager import ResourceLimits
from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.transport.tcp.tcp import TCP
from libp2p.transport.upgrader import TransportUpgrader
from libp2p.utils.varint import ParseError, read_varint_prefixed_bytes_limited

from p2p.budget.connection_slots import ConnectionSlots, SilentConnections
from p2p.budget.work import HANDSHAKE, WorkBudget
from p2p.host.limits import HostLimits, UnreadBudget
from p2p.host.muxer import Shared, YamuxConn
from p2p.host.noise import Handshake, list_suites
from p2p.ip import parse_ip
from p2p.pace import Traffic
from p2p.yamux.frames import YamuxLimits as YamuxLimits

MAX_PEERS: Final = 1000
"""Peers remembered at once."""
KEPT: Final = 750
"""Peers that stay when the store was full; dropping many at once makes the search through the map rare."""


class BoundedPeerStore(PeerStore):  # type: ignore[misc]
    """The peer store of one host."""

    def __init__(self, me: ID) -> None:
        super().__init__(max_peers=MAX_PEERS)
        self._me = me
        self.is_connected: Callable[[ID], bool] = lambda _: False

    def add_pubkey(self, peer_id: ID, pubkey: PublicKey) -> None:
        super().add_pubkey(peer_id, pubkey)
        self._enforce_peer_limit()

    def add_protocols(self, peer_id: ID, protocols: Any) -> None:
        super().add_protocols(peer_id, protocols)
        self._enforce_peer_limit()

    def _enforce_peer_limit(self) -> None:
        """Replaces the library's method: drops peers that are not connected, oldest first."""
        if len(self.peer_data_map) <= self.max_peers:
            return
        over = len(self.peer_data_map) - KEPT
        goers = [each for each in self.peer_data_map if each != self._me and not self.is_connected(each)]
        for peer in goers[:over]:
            self.peer_record_map.pop(peer, None)
            del self.peer_data_map[peer]


log = logging.getLogger(__name__)

_NO_LIMIT = 1 << 20
"""Passed to the library where our own limits apply instead."""
MAX_NEGOTIATION = 1024
"""Bytes of one multistream-select message, as in go-multistream. A protocol id has a few dozen."""
DOOR_PATIENCE = 3.0
"""Seconds that an inbound connection waits until its address has paid; then its place goes to another."""
RESET_PATIENCE = 5.0
"""Seconds to reset the stream of a handler that failed."""


# --- functions of the library that are replaced ----------------------------------------------------------------------


async def _read_delimited(reader: Any) -> bytes:
    try:
        message: bytes = await read_varint_prefixed_bytes_limited(reader, MAX_NEGOTIATION)
    except MessageTooLarge as error:
        raise ParseError(str(error)) from error
    if not message.endswith(b"\n"):
        raise ParseError("a negotiation message without its newline")
    if not message.isascii():
        raise ParseError("a negotiation message that is not ASCII")
    return message[:-1]


def _set_listening_options(sock: trio.socket.SocketType) -> None:
    sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEADDR, 1)
    if sock.family == trio.socket.AF_INET6:
        sock.setsockopt(trio.socket.IPPROTO_IPV6, trio.socket.IPV6_V6ONLY, 1)


def bound_negotiation() -> None:
    """Bounds the negotiation messages before authentication; otherwise a peer could make us allocate any amount."""
    communicator_module.read_delim = _read_delimited


def refuse_shared_ports() -> None:
    """Disables SO_REUSEPORT, with which two daemons on one port would share each other's connections.

    A socket of IPv6 takes connections of IPv6 alone: else one port could not be listened on by both families.
    """
    tcp_module._set_reuse_flags = _set_listening_options


class TcpStream(TrioTCPStream):  # type: ignore[misc]
    """Tells the remote address of a connection over IPv6 too.
    The library tells none, and all peers without one would share the limits of one address."""

    _remote: tuple[str, int] | None = None

    def get_remote_address(self) -> tuple[str, int] | None:
        if self._remote is None:
            with suppress(OSError):  # it ended
                host, port = self.stream.socket.getpeername()[:2]
                self._remote = (str(parse_ip(host)), port)
        return self._remote


def tell_addresses() -> None:
    """Makes the library use our class for its connections."""
    tcp_module.TrioTCPStream = TcpStream


def dial_without_delay() -> None:
    """Removes the 250 ms that the library waits after a successful dial,
    since we only ever dial one address at a time."""
    swarm_module._HAPPY_EYEBALLS_DELAY = 0


def quiet_library() -> None:
    """Silences the library's log of errors that peers can provoke; our own log has the ones that matter."""
    logging.getLogger("libp2p").setLevel(logging.CRITICAL)


@cache
def apply_patches() -> None:
    """Applies all patches, once per process."""
    quiet_library()
    bound_negotiation()
    refuse_shared_ports()
    tell_addresses()
    dial_without_delay()


# --- parts that are subclassed ---------------------------------------------------------------------------------------


class YamuxUpgrade(MuxerMultistream):  # type: ignore[misc]
    """Negotiates our yamux alone, because the library builds its own Yamux whatever it is configured with."""

    def __init__(self, limits: YamuxLimits, shared: Shared, negotiate_timeout: int) -> None:
        super().__init__(OrderedDict({YAMUX: YamuxConn}), negotiate_timeout)
        self._limits = limits
        self._shared = shared

    async def new_conn(self, conn: Any, peer_id: Any) -> Any:
        protocol, _ = await self._selector.select(conn, conn.is_initiator, self.negotiate_timeout)
        muxed = YamuxConn(conn, peer_id, self._limits, self._shared)
        return self._annotate_connection(muxed, conn, protocol)


class NoAutoConnector(AutoConnector):  # type: ignore[misc]
    """Disables automatic dialling: the library dials every known peer, with no regard to its watermarks."""

    async def maybe_connect(self) -> None:
        return

    async def run_background_task(self, _nursery: Any) -> None:
        return


class HardenedSwarm(Swarm):  # type: ignore[misc]
    """Manages connections: bounds those in the handshake, frees their slots when they end,
    closes them when the host stops."""

    def __init__(self, peer_id: Any, peerstore: Any, upgrader: Any, limits: HostLimits, work: WorkBudget) -> None:
        self.work = work
        self.slots = ConnectionSlots(limits.max_connections)
        self._seated: dict[int, Any] = {}
        """The connections with a slot, oldest first: the library's own table lacks those that are still starting."""
        self.turned_away = 0
        """Connections that were closed before their handshake, or in favour of more useful ones."""
        self._door = SilentConnections(limits.max_pending_inbound)
        self.blocked: frozenset[str] = frozenset()
        self.as_client: dict[str, str] = {}
        """Hosts with which a hole is being punched, and the peers there:
        this host is the client on connections from them."""
        self._tcp = TCP()
        super().__init__(
            peer_id,
            peerstore,
            upgrader,
            [self._tcp],
            # The library would dial a dead address four times; our callers have pauses of their own.
            retry_config=RetryConfig(max_retries=0),
            connection_config=connection_config(limits),
        )
        self.auto_connector = NoAutoConnector(swarm=self)

    async def listen(self, *addresses: Any) -> bool:
        """Listens on an address. Raises OpenConnectionError; the library hides the reason why it does not listen."""
        await self.event_background_nursery_created.wait()
        for address in addresses:

            async def accept(stream: Any, address: Any = address) -> None:
                await self._handle_inbound_connection(stream, address)

            listener = self._tcp.create_listener(accept)
            self.listeners[str(address)] = listener
            await listener.listen(address)
            for each in listener.listeners:
                # Set only now, when no other program can bind the port: only our own dials share it (p2p.host.direct).
                each.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEPORT, 1)
            await self.notify_listen(address)
        return True

    async def add_conn(self, muxed_conn: Any, direction: str = "unknown") -> Any:
        """Adds a connection, if there is a slot for it;
        a blocked peer is disconnected as soon as it has proven its key."""
        if str(muxed_conn.peer_id) in self.blocked:
            await muxed_conn.close()
            raise SwarmException(f"{muxed_conn.peer_id} is blocked")
        # It ended during its handshake: `on_end`, set below, would never be called, and the slot would stay taken.
        if muxed_conn.fault is not None:
            raise SwarmException(f"{muxed_conn.peer_id} is gone: {muxed_conn.fault}")
        leaving = self._excess(muxed_conn.peer_id, self.connection_config.max_connections_per_peer - 1)
        for each in leaving:
            each.dismiss()
        party = muxed_conn.party
        muxed_conn.on_end = partial(self._vacate, party.connection)
        displaced = self.slots.take(party, dialled=muxed_conn.is_initiator)
        if displaced is not None:
            self.turned_away += 1
        if displaced is party:
            await muxed_conn.close()
            raise SwarmException(
                f"no slot for {muxed_conn.peer_id}: other peers are connected for longer, or served more"
            )
        self._seated[party.connection] = muxed_conn
        if displaced is not None:
            leaving.append(self._seated[displaced.connection])
        try:
            # A newcomer is one of those in the handshake until these are gone: so there are never more sockets.
            for each in leaving:
                await each.close()
            if muxed_conn.fault is not None:
                raise SwarmException(f"{muxed_conn.peer_id} was displaced by a later one: {muxed_conn.fault}")
            for other in self.connections.get(muxed_conn.peer_id, []):
                if not other.is_closed:
                    # A peer that moved to another network comes anew, and its old connection would look alive for 50 s
                    # (yamux pings).
                    self.manager.run_task(other.muxed_conn.prove_alive)
            return await super().add_conn(muxed_conn, direction)
        except BaseException:
            muxed_conn.dismiss()
            raise

    async def notify_connected(self, conn: Any) -> None:
        """Tells that a connection was added, as work of the swarm: whoever gives up the dial now does not end it.

        It is in the library's table, so others use it already, and a hole punch that sees it there ends its dials.
        """
        told, tell = trio.Event(), super().notify_connected

        async def run() -> None:
            try:
                await tell(conn)
            finally:
                told.set()

        self.manager.run_task(run)
        with trio.CancelScope(shield=True):  # ends with the swarm at the latest
            await told.wait()

    def _vacate(self, connection: int) -> None:
        self.slots.leave(connection)
        self._seated.pop(connection, None)

    def _excess(self, peer_id: Any, most: int) -> list[Any]:
        """Returns the oldest connections of a peer that has more, registered with the library or not yet."""
        held = [each for each in self._seated.values() if each.peer_id == peer_id]
        return held[: max(0, len(held) - most)]

    def _trim_connections(self, peer_id: Any) -> None:
        """Ends the oldest connections of a peer, at once.
        The library spares young ones, so one peer could take all slots."""
        for excess in self._excess(peer_id, self.connection_config.max_connections_per_peer):
            excess.dismiss()

    async def _handle_inbound_connection(self, read_write_closer: Any, maddr: Any) -> None:
        remote = read_write_closer.get_remote_address()
        expected = self.as_client.get(remote[0]) if remote else None
        await self.attend(RawConnection(read_write_closer, expected is not None), maddr, expected)

    async def attend(self, raw: Any, maddr: Any, expected: str | None = None) -> None:
        """Serves an inbound connection until it ends;
        the library would hold one of its 250 places until the *host* ends.

        ``expected``: a peer with which a hole is punched; this host is then the client on the connection.
        """
        remote = raw.get_remote_address()
        host = remote[0] if remote else ""
        muxed = None
        with trio.CancelScope() as scope, self._door.silent(host, scope):
            try:
                muxed = await self._let_in(raw, host, maddr, expected)
            except Exception as error:  # noqa: BLE001 - a stranger's bytes: the handshake raises whatever they provoke
                log.info("handshake with %s failed: %s", remote, error)
        if muxed is not None:
            await muxed.event_closed.wait()
        with trio.CancelScope(shield=True):
            await raw.close()

    async def _let_in(self, raw: Any, host: str, maddr: Any, expected: str | None) -> Any:
        """Performs the handshake after its address has paid for it; ``None`` if the wait for that would be too long."""
        # Before any of its bytes is read: a handshake takes 10 ms of a core
        # (test_handshakes_are_paid_for_by_their_address_before_they_begin).
        wait = self.work.admit(host, HANDSHAKE, trio.current_time(), DOOR_PATIENCE)
        if wait is None:
            self.turned_away += 1
            return None
        if wait:
            await trio.sleep(wait)
        if expected is not None:
            return (await self.upgrade_outbound_raw_conn(raw, ID.from_base58(expected))).muxed_conn
        return await self.upgrade_inbound_raw_conn(raw, maddr)


class GuardedHost(BasicHost):  # type: ignore[misc]
    """Confines an exception of a stream handler to its stream. In the library it ends the whole host."""

    async def _swarm_stream_handler(self, net_stream: Any) -> None:
        try:
            await super()._swarm_stream_handler(net_stream)
        except Exception as error:  # noqa: BLE001 - the supervisor of stream handlers, the library's own among them
            peer = net_stream.muxed_conn.peer_id
            log.warning("handler of %s for %s failed: %r", net_stream.get_protocol(), peer, error)
        finally:
            # The slot of the stream is free only now, so a peer cannot have more handlers running than streams.
            with trio.CancelScope(deadline=trio.current_time() + RESET_PATIENCE, shield=True):
                if not net_stream.is_closed:
                    await net_stream.reset()


# --- assembly --------------------------------------------------------------------------------------------------------


def connection_config(limits: HostLimits) -> Any:
    """Disables the library's watermarks and limits:
    it refuses newcomers, while ``ConnectionSlots`` makes room for them."""
    return ConnectionConfig(
        max_connections=_NO_LIMIT,
        min_connections=0,
        low_watermark=0,
        high_watermark=_NO_LIMIT,
        max_connections_per_peer=limits.max_connections_per_peer,
        dial_timeout=limits.dial_timeout,
        inbound_upgrade_timeout=limits.handshake_timeout,
        outbound_upgrade_timeout=limits.handshake_timeout,
        outbound_stream_protocol_negotiation_timeout=limits.open_timeout,
        inbound_stream_protocol_negotiation_timeout=limits.open_timeout,
    )


def noise_only(pair: Any) -> Any:
    """Offers only noise; the library's default includes plaintext, which authenticates nothing."""
    static = x25519_pair().private_key
    return OrderedDict((TProtocol(suite.protocol), Handshake(pair, static, suite)) for suite in list_suites())


def assemble(seed: bytes, limits: HostLimits, traffic: Traffic | None = None) -> GuardedHost:
    """Assembles a host that does not listen yet. ``traffic`` counts its bytes."""
    apply_patches()
    pair = ed25519_pair(seed)
    peer_id = ID.from_pubkey(pair.public_key)
    upgrader = TransportUpgrader(noise_only(pair), OrderedDict())
    work = WorkBudget(limits.work)
    shared = Shared(UnreadBudget(limits.max_unread), work, traffic)
    upgrader.muxer_multistream = YamuxUpgrade(limits.yamux, shared, int(limits.handshake_timeout))
    peerstore = BoundedPeerStore(peer_id)
    peerstore.add_key_pair(peer_id, pair)
    swarm = HardenedSwarm(peer_id, peerstore, upgrader, limits, work)
    peerstore.is_connected = swarm.connections.__contains__
    resources = new_resource_manager(
        limits=ResourceLimits(max_connections=_NO_LIMIT, max_streams=_NO_LIMIT),
        connection_limits=ConnectionLimits(),
        enable_memory_limits=False,
        enable_graceful_degradation=False,
        # The library's breaker refuses all connections for a minute after five failures.
        enable_circuit_breaker=False,
        enable_memory_pooling=False,
    )
    swarm.set_resource_manager(resources)
    # Identify would believe each peer about where it sees this node; here dial-backs decide (p2p.driver.autonat).
    return GuardedHost(swarm, negotiate_timeout=int(limits.open_timeout), disable_identify_address_discovery=True)
