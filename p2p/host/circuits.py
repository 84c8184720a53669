"""Makes connections over circuits that relays carry: those that this host dials, and those that its relays bring.

A circuit is a stream with a relay. It becomes a connection like any socket, with our noise and our muxer from end to
end: the relay sees encrypted bytes, and can do nothing but drop them. The muxer reads and writes sockets, so a pair of
sockets connects it to the stream. A peer that comes through a relay counts for the relay's address wherever addresses
are counted. One ``Circuits`` for each host.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import trio
from libp2p.abc import ConnectionType
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from chain.errors import Invalid
from p2p.address import CIRCUIT
from p2p.errors import Misbehaviour, PeerFault, PeerUnreachable, TooSlow
from p2p.host.hardening import HardenedSwarm
from p2p.host.messages import read_message
from p2p.host.stream import Stream
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
