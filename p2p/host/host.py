"""Runs the libp2p host: this node's identity on the network, its connections and their streams, and notices of both.

It moves bytes and says who sent them; it decides nothing about protocols, and never dials on its own. Made by
``open_host``, ends with its block: listeners and connections are then closed, each with a farewell.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import trio
from libp2p.abc import INotifee
from libp2p.custom_types import TProtocol
from libp2p.io.exceptions import IOException
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from libp2p.protocol_muxer.exceptions import MultiselectClientError
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.stream_muxer.exceptions import MuxedConnError, MuxedStreamError
from libp2p.transport.exceptions import OpenConnectionError
from multiaddr import Multiaddr

from p2p.address import CIRCUIT, PeerAddress, announced_address, listen_address, network_of, parse_address
from p2p.dial import NotAllowed, first_of, resolve
from p2p.errors import (
    AddressInUse,
    BadAddress,
    PeerFault,
    PeerUnreachable,
    ProtocolUnsupported,
    StreamBroken,
    TooManyStreams,
    TooSlow,
    WrongIdentity,
    only,
)
from p2p.host.direct import Circuits, DirectDials, is_relayed
from p2p.host.hardening import GuardedHost, assemble
from p2p.host.limits import HostLimits
from p2p.host.stream import Stream
from p2p.identity import peer_of_seed
from p2p.ip import Allows, anywhere
from p2p.machines.dial_order import MAX_TRIED, in_order
from p2p.pace import PeerTraffic, Traffic
from p2p.ports import PeerId
from p2p.wire.circuit import STOP
from p2p.wire.limits import MAX_PRESENCE_ADDRESSES


class PeerConnected(msgspec.Struct, frozen=True):
    """The first connection with a peer was made; or one took the place of another, on which messages were lost."""

    peer: PeerId
    address: str
    inbound: bool
    """Whether the peer made the connection."""


class PeerDisconnected(msgspec.Struct, frozen=True):
    """The last connection with a peer has ended."""

    peer: PeerId
    reason: str


class Notices(INotifee):  # type: ignore[misc]
    """Turns the swarm's events into notices.
    ``channel`` has one reader; when it is full the oldest notice is dropped."""

    def __init__(self, capacity: int) -> None:
        self._send, self.channel = trio.open_memory_channel[PeerConnected | PeerDisconnected](capacity)
        self._connections: dict[PeerId, int] = {}
        self._change = trio.Event()
        self.dropped = 0

    async def wait_changed(self) -> None:
        """Waits until the next connection is made or ends."""
        await self._change.wait()

    def _wake(self) -> None:
        change, self._change = self._change, trio.Event()
        change.set()

    async def connected(self, _network: Any, conn: Any) -> None:
        self._wake()
        peer = PeerId(str(conn.muxed_conn.peer_id))
        self._connections[peer] = self._connections.get(peer, 0) + 1
        if self._connections[peer] == 1:
            address = next((str(one) for one in conn.get_transport_addresses()), "")
            self._notify(PeerConnected(peer, address, not conn.muxed_conn.is_initiator))

    async def disconnected(self, _network: Any, conn: Any) -> None:
        self._wake()
        peer = PeerId(str(conn.muxed_conn.peer_id))
        left = self._connections.get(peer, 0) - 1
        if left > 0:
            self._connections[peer] = left
            if conn.muxed_conn.is_replaced:
                self._notify(PeerConnected(peer, "", True))
        elif self._connections.pop(peer, None):
            self._notify(PeerDisconnected(peer, str(getattr(conn.muxed_conn, "fault", ""))))

    def _notify(self, notice: PeerConnected | PeerDisconnected) -> None:
        try:
            self._send.send_nowait(notice)
        except trio.WouldBlock:
            self.channel.receive_nowait()
            self.dropped += 1
            self._send.send_nowait(notice)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.dropped += 1

    def close(self) -> None:
        self._send.close()

    async def opened_stream(self, *_: Any) -> None: ...

    async def closed_stream(self, *_: Any) -> None: ...

    async def listen(self, *_: Any) -> None: ...

    async def listen_close(self, *_: Any) -> None: ...


log = logging.getLogger(__name__)

Handler = Callable[[Stream, PeerId], Awaitable[None]]


class Host:
    """An open libp2p host. Every fault that it raises is defined in ``p2p.errors`` and names the peer."""

    def __init__(self, base: GuardedHost, peer_id: PeerId, limits: HostLimits, announce: Sequence[str] = ()) -> None:
        self._base = base
        self._swarm = base.get_network()
        self._limits = limits
        self._dials = trio.CapacityLimiter(limits.max_dials)
        self._dialling: dict[PeerId, trio.Event] = {}
        self._circuits = Circuits(self._swarm, self.open_stream)
        self._notices = Notices(limits.notices)
        self.direct = DirectDials(base, self._notices.wait_changed, announce)
        self._swarm.register_notifee(self._notices)
        self.peer_id = peer_id

    @property
    def base(self) -> GuardedHost:
        """The py-libp2p host on which its services (gossip, DHT) are built."""
        return self._base

    @property
    def notices(self) -> trio.MemoryReceiveChannel[PeerConnected | PeerDisconnected]:
        """A channel of peers that came and went.
        It is bounded: a late reader misses the oldest; ``peers`` is authoritative."""
        return self._notices.channel

    def addresses(self) -> list[str]:
        """Returns the addresses at which others reach us, with our peer id."""
        relays = [f"{address}{CIRCUIT}" for address in self._circuits.relays.values()]
        # A presence has room for eight (docs/spec/replication.md#presences); without those of relays nobody reaches a
        # hidden node.
        direct = self.direct.list_announced()[: MAX_PRESENCE_ADDRESSES - len(relays)]
        return [f"{one}/p2p/{self.peer_id}" for one in (*direct, *relays)]

    def listening(self) -> list[str]:
        return [one.transport for one in self.direct.listening()]

    def reached_by(self, relays: Mapping[PeerId, str]) -> None:
        """Accepts circuits from these relays only, and announces their addresses."""
        if relays and not self._circuits.relays:
            self.set_handler(STOP, self._circuits.accept)
        self._circuits.relays = dict(relays)

    def block(self, peers: Iterable[PeerId]) -> None:
        """Sets the blocked peers: they are neither dialled nor let in from now on;
        open connections stay until closed."""
        self._swarm.blocked = frozenset(peers)

    def peers(self) -> dict[PeerId, str]:
        """Returns the connected peers, with the address of one connection to each."""
        return {
            PeerId(str(peer)): next((str(one) for one in alive[0].get_transport_addresses()), "")
            for peer, conns in self._swarm.connections.items()
            if (alive := _best_first(conns))
        }

    def traffic(self) -> dict[PeerId, PeerTraffic]:
        """Returns the traffic with each connected peer. That of a circuit is also counted for its relay."""
        now = trio.current_time()
        return {
            PeerId(str(peer)): PeerTraffic.of((conn.muxed_conn.traffic for conn in alive), now)
            for peer, conns in self._swarm.connections.items()
            if (alive := _best_first(conns))
        }

    def network_of(self, peer: PeerId) -> str:
        """Returns the network of a connection's remote address; empty without one."""
        remote = next((conn.muxed_conn.get_remote_address() for conn in self._connections(peer)), None)
        return network_of(remote[0]) if remote else ""

    def remote_of(self, peer: PeerId) -> str:
        """Returns the remote IP address of a direct connection; empty without one."""
        direct = (conn for conn in self._connections(peer) if not is_relayed(conn))
        remote = next((conn.muxed_conn.get_remote_address() for conn in direct), None)
        return remote[0] if remote else ""

    @asynccontextmanager
    async def brief(self, address: PeerAddress, peer: PeerId, protocol: str) -> AsyncIterator[Stream]:
        """Opens a stream on a connection of its own, which ends with the block. Raises PeerFault."""
        if peer in self._swarm.blocked:
            raise PeerUnreachable(peer, "it is blocked", rule="peer-blocked", hint=f"odfctl peer unblock {peer}")
        try:
            async with self.direct.brief(address, peer) as open_stream:
                yield await open_stream(protocol)
        except OSError as error:
            raise PeerUnreachable(peer, f"{address.transport}: {error.strerror or error}", rule="dial") from error

    def share_of(self, peer: PeerId) -> str:
        """Returns the network with which a peer shares limits, or the peer itself if it has limits of its own."""
        work = self._swarm.work
        is_apart = peer in work.chosen or peer in work.publishers
        return peer if is_apart else self.network_of(peer) or peer

    @property
    def chosen(self) -> frozenset[PeerId]:
        chosen: frozenset[PeerId] = self._swarm.work.chosen
        return chosen

    def charge(self, peer: PeerId, cost: float) -> float:
        """Charges a peer like ``WorkBudget.charge``; returns 0 for a disconnected one."""
        party = next((conn.muxed_conn.party for conn in self._connections(peer)), None)
        return self._swarm.work.charge(party, cost, trio.current_time()) if party is not None else 0.0

    def gave(self, peer: PeerId, amount: int) -> None:
        """Records bytes that we asked for and that proved true, so that the peer keeps its slot."""
        self._swarm.slots.gave(peer, amount)

    def choose(self, peers: Iterable[PeerId], addresses: Iterable[str] = (), publishers: Iterable[PeerId] = ()) -> None:
        """Sets the peers that a person chose, whose slots others cannot take,
        and the ``publishers`` of mirrored datasets.

        ``addresses``: the addresses of both, as far as they are IP addresses.
        """
        chosen = frozenset(peers)
        self._swarm.slots.chosen = self._swarm.work.chosen = chosen
        self._swarm.slots.publishers = self._swarm.work.publishers = frozenset(publishers) - chosen
        found = (parse_address(address) for address in addresses)
        self._swarm.work.chosen_hosts = frozenset(one.host for one in found if one.ip and not one.relay)

    def is_connected(self, peer: PeerId) -> bool:
        return bool(self._connections(peer))

    # --- connections ---------------------------------------------------------------------------------------------

    async def connect(self, address: str, *others: str, allows: Allows = anywhere) -> PeerId:
        """Connects to a peer, unless it is connected already; returns its id. ``others`` are more addresses of the same
        peer; they are tried in the order of ``machines.dial_order``: all that the owner named (``anywhere``), a few of
        those that others did. ``allows`` judges every address to be dialled, also those of DNS names.
        Raises BadAddress, PeerUnreachable, WrongIdentity, TooSlow.
        """
        parsed = [parse_address(one) for one in (address, *others)]
        peer = parsed[0].peer
        if peer is None or any(one.peer != peer for one in parsed):
            raise BadAddress(
                f"{address!r} does not say whose it is", rule="multiaddr", hint="append /p2p/ and the peer id"
            )
        if peer == self.peer_id:
            raise BadAddress(f"{address!r} is this node itself", rule="multiaddr", hint="give another node's address")
        if peer in self._swarm.blocked:
            raise PeerUnreachable(peer, "it is blocked", rule="peer-blocked", hint=f"odfctl peer unblock {peer}")
        # Two dials at once would take both connections that one peer may have (max_connections_per_peer).
        while peer in self._dialling:
            await self._dialling[peer].wait()
        if not self.is_connected(peer):
            self._dialling[peer] = done = trio.Event()
            try:
                chosen = in_order(parsed, len(parsed) if allows is anywhere else MAX_TRIED)
                await first_of([partial(self._dial_one, one, peer, allows) for one in chosen], PeerFault)
            finally:
                del self._dialling[peer]
                done.set()
        return peer

    async def _dial_one(self, address: PeerAddress, peer: PeerId, allows: Allows) -> None:
        """Dials an address, or the addresses of a DNS name."""
        if address.relay is not None:
            await self._dial_circuit(address, address.relay, peer, allows)
            return
        with trio.move_on_after(self._limits.dial_timeout) as patience:
            async with self._dials:
                try:
                    # The IPs that were judged are dialled: the name may lead elsewhere the next time
                    # (test_a_name_is_resolved_once_and_what_was_judged_is_dialled).
                    found = await resolve(address.host, address.port, allows, FAMILIES.get(address.network, 0))
                except OSError as error:
                    reason = f"there is no host {address.host}: {error.strerror or error}"
                    raise PeerUnreachable(peer, reason, rule="dial", hint="check the name") from error
                except NotAllowed as fault:
                    raise PeerUnreachable(peer, fault.message, rule=fault.rule, hint=fault.hint) from fault
                await first_of([partial(self._dial_ip, address.at(ip), peer) for ip in found], PeerFault)
        if patience.cancelled_caught:
            raise TooSlow(peer, f"{address.transport} did not answer within {self._limits.dial_timeout:g} s")

    async def _dial_circuit(self, address: PeerAddress, relay: PeerId, peer: PeerId, allows: Allows) -> None:
        """Dials a peer through a relay. The relay is dialled first, under the same rules as any peer."""
        if relay == self.peer_id:
            raise PeerUnreachable(peer, "it is reached through this node, and is not connected", rule="dial")
        with trio.move_on_after(self._limits.dial_timeout) as patience:
            await self.connect(str(address.of_relay), allows=allows)
            try:
                await self._circuits.dial(relay, peer)
            except PeerFault:
                raise
            except Exception as error:  # the relay's bytes: the handshake raises whatever they provoke
                raise dial_fault(peer, address, error) from error
        if patience.cancelled_caught:
            raise TooSlow(peer, f"{address.transport} did not answer within {self._limits.dial_timeout:g} s")

    async def _dial_ip(self, address: PeerAddress, peer: PeerId) -> None:
        try:
            if peer in self.direct.share_with and await self.direct.dial_relay(address, peer):
                return
            await self._swarm.dial_addr(Multiaddr(address.transport), ID.from_base58(peer))
        except SwarmException as error:
            raise dial_fault(peer, address, error) from error

    async def disconnect(self, peer: PeerId) -> None:
        async with trio.open_nursery() as nursery:
            for conn in self._connections(peer):
                nursery.start_soon(conn.close)

    def _connections(self, peer: PeerId) -> list[Any]:
        return _best_first(self._swarm.connections.get(ID.from_base58(peer), []))

    # --- streams -------------------------------------------------------------------------------------------------

    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        """Opens a stream to a connected peer; never dials.

        Raises PeerUnreachable, ProtocolUnsupported, TooManyStreams, TooSlow, BrokenStream.
        """
        connections = self._connections(peer)
        if not connections:
            raise PeerUnreachable(peer, "not connected", hint="connect to one of its addresses first")
        with trio.move_on_after(self._limits.open_timeout):
            try:
                muxed = await connections[0].muxed_conn.open_stream()
            except MuxedStreamError as error:
                raise TooManyStreams(peer, str(error)) from None
            try:
                await self._negotiate(muxed, peer, protocol)
            except BaseException:
                await muxed.reset()
                raise
            return Stream(muxed, muxed, peer, protocol)
        raise TooSlow(peer, f"no stream for {protocol} within {self._limits.open_timeout:g} s")

    async def _negotiate(self, muxed: Any, peer: PeerId, protocol: str) -> None:
        try:
            await self._base.multiselect_client.select_one_of(
                [TProtocol(protocol)], MultiselectCommunicator(muxed), int(self._limits.open_timeout) + 1
            )
        except MultiselectClientError as error:
            raise ProtocolUnsupported(
                peer,
                f"does not speak {protocol}",
                rule="protocol",
                hint="it may be another kind of node, or an older one",
            ) from error
        except (MuxedStreamError, MuxedConnError, IOException) as error:
            raise StreamBroken(peer, f"{protocol}: {error}") from error

    def set_handler(self, protocol: str, handler: Handler) -> None:
        """Serves a protocol, with one task per stream. A handler that raises loses its stream and nothing else."""

        async def serve(net: Any) -> None:
            peer = PeerId(str(net.muxed_conn.peer_id))
            stream = Stream(net.muxed_stream, net, peer, protocol)
            try:
                await handler(stream, peer)
            except (PeerFault, trio.BrokenResourceError) as error:
                log.debug("%s ended early: %s", protocol, error)
                await stream.reset()
            else:
                await stream.aclose()

        self._base.set_stream_handler(TProtocol(protocol), serve)

    def drop_handler(self, protocol: str) -> None:
        """Stops serving a protocol."""
        self._base.remove_stream_handler(TProtocol(protocol))

    async def ping(self, peer: PeerId) -> float:
        """Measures one round trip in seconds, by the ping protocol of libp2p. Raises PeerFault."""
        stream = await self.open_stream(peer, "/ipfs/ping/1.0.0")
        async with stream:
            with trio.move_on_after(self._limits.open_timeout):
                started = trio.current_time()
                await stream.send_all(PING)
                echo = b""
                while len(echo) < len(PING):
                    part = await stream.receive_some(len(PING) - len(echo))
                    if not part:
                        raise StreamBroken(peer, "ended a ping early")
                    echo += part
                if echo != PING:
                    raise StreamBroken(peer, "answered a ping with other bytes", rule="ping")
                return trio.current_time() - started
        raise TooSlow(peer, f"no answer to a ping within {self._limits.open_timeout:g} s")

    # --- life ----------------------------------------------------------------------------------------------------

    async def listen(self, address: str) -> None:
        """Listens on an address. Raises BadAddress and AddressInUse."""
        parsed = listen_address(address)
        try:
            await self._swarm.listen(Multiaddr(parsed.transport))
        except OpenConnectionError as error:
            raise listen_fault(parsed, error) from error

    async def close(self) -> None:
        """Closes the host; may be called again.
        Closes connections at once: the library would take 0.1 s for each, or skip them."""
        for listener in self._swarm.listeners.values():
            await listener.close()  # first: whoever is told good-bye would come again at once
        async with trio.open_nursery() as nursery:
            for conns in list(self._swarm.connections.values()):
                for conn in conns:
                    nursery.start_soon(conn.close)
        await self._base.close()
        self._notices.close()


FAMILIES = {"ip4": socket.AF_INET, "dns4": socket.AF_INET, "ip6": socket.AF_INET6, "dns6": socket.AF_INET6}
"""The address family that a kind of multiaddress resolves to; the kinds not listed resolve to both."""
PING = bytes(range(32))
"""The 32 bytes that a ping sends and that are echoed; their content is free."""


@asynccontextmanager
async def open_host(
    key_seed: bytes,
    listen: Sequence[str] = (),
    limits: HostLimits | None = None,
    announce: Sequence[str] = (),
    traffic: Traffic | None = None,
) -> AsyncIterator[Host]:
    """Runs a host. ``announce`` replaces the addresses to announce, for use behind a NAT. ``traffic`` counts its bytes.

    Raises BadAddress and AddressInUse before its block is entered.
    """
    limits = limits or HostLimits()
    for address in announce:
        announced_address(address)
    base = assemble(key_seed, limits, traffic)
    try:
        async with base.run([]):
            host = Host(base, peer_of_seed(key_seed), limits, announce)
            try:
                for address in listen:
                    await host.listen(address)
                yield host
            finally:
                with trio.CancelScope(shield=True):
                    await host.close()
    except BaseExceptionGroup as group:
        raise only(group) from None


def _best_first(connections: Iterable[Any]) -> list[Any]:
    """Returns the open connections, direct ones before those through relays."""
    return sorted((conn for conn in connections if not conn.is_closed), key=is_relayed)


def causes(error: BaseException) -> list[BaseException]:
    """Lists a fault and its causes, including members of groups, outermost first."""
    chain: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop(0)
        if one is not None and one not in chain:
            chain.append(one)
            waiting += [one.__cause__, one.__context__]
            waiting += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
    return chain


def dial_fault(peer: PeerId, address: PeerAddress, error: BaseException) -> PeerFault:
    """Translates the failure of a dial, by the texts and class names by which py-libp2p distinguishes them."""
    chain = causes(error)
    names = {type(one).__name__ for one in chain}
    where = address.transport
    if "PeerIDMismatchesPubkey" in names or any("Peer ID mismatch" in str(one) for one in chain):
        return WrongIdentity(
            peer,
            f"another node answers at {where}",
            rule="peer-id",
            hint="the address is out of date, or a man in the middle answers: ask the owner for the present one",
        )
    if "OpenConnectionError" in names:
        reasons = [os.strerror(one.errno) for one in chain if isinstance(one, OSError) and one.errno]
        reason = reasons[-1] if reasons else str(chain[-1])
        return PeerUnreachable(
            peer, f"{where}: {reason}", rule="dial", hint="check that it is running, and that the port is open"
        )
    return PeerUnreachable(
        peer,
        f"{where}: the handshake failed: {chain[-1] or error}",
        rule="handshake",
        hint="does it speak noise and yamux?",
    )


def listen_fault(address: PeerAddress, error: BaseException) -> AddressInUse:
    text = " ".join(str(one) for one in causes(error))
    numbers = {one.errno for one in causes(error) if isinstance(one, OSError)}
    if errno.EADDRINUSE in numbers or "in use" in text:
        hint = "another program, perhaps another odfd, has it: set another port in p2p.listen, or 0 for any"
        return AddressInUse(f"{address.transport}: the port is in use", rule="listen", hint=hint)
    if errno.EACCES in numbers or "Permission denied" in text:
        return AddressInUse(f"{address.transport}: no permission", rule="listen", hint="ports below 1024 are root's")
    return AddressInUse(
        f"cannot listen on {address.transport}: {text[-200:]}", rule="listen", hint="is it our address?"
    )
