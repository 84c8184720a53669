"""Relays circuits for others: answers the hop protocol of circuit relay v2, and moves the bytes of each circuit.

Made with the host (``node_reach``) if the settings ask for it. It serves only members of the node's networks (peers
that signed a presence for one) and peers that a person chose. The bytes are encrypted between the two ends. Each end is
charged for what it sends like for any other work. If the bytes of all circuits are capped, blocks of addresses take
turns.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio

from chain.errors import Invalid
from chain.statements.keys import SigningKey
from p2p.address import parse_address
from p2p.budget.work import CARRIED, CARRIED_BYTE, RELAY_QUESTION
from p2p.driver.inbound import SenderTurns, contain
from p2p.driver.ports import HostPort, StreamPort
from p2p.errors import Misbehaviour, PeerFault
from p2p.host.messages import read_message
from p2p.machines.relay import Circuit, CircuitRelay, PeerPlace
from p2p.pace import Pace
from p2p.ports import PeerId
from p2p.wire.circuit import (
    HOP,
    MAX_MESSAGE,
    STOP,
    CircuitStatus,
    HopKind,
    HopMessage,
    Reservation,
    StopKind,
    StopMessage,
    decode_hop,
    decode_stop,
    encode_hop,
    encode_stop,
    seal_voucher,
)

PATIENCE: Final = 10.0
"""Seconds for the messages before a stream becomes a circuit."""
PIECE: Final = 64 << 10
"""Bytes of a circuit that are held in each direction."""
WAITING: Final = 1024
"""Pieces that may wait for their turn: more than there are directions of circuits."""


class RelayServer:
    """The relay of one node. ``is_member`` may ask the peer; ``wall`` returns nanoseconds since the epoch.

    While it is known that nobody can dial this node (``is_hidden``) it serves nobody, since nobody would be reached by
    it.
    """

    def __init__(
        self,
        host: HostPort,
        relay: CircuitRelay,
        key: SigningKey,
        is_member: Callable[[PeerId], Awaitable[bool]],
        pace: Pace,
        wall: Callable[[], int],
        is_hidden: Callable[[], bool] = lambda: False,
    ) -> None:
        self._host = host
        self._relay = relay
        self._key = key
        self._is_member = is_member
        self._pace = pace
        self._wall = wall
        self._is_hidden = is_hidden
        self._turns = SenderTurns(WAITING, WAITING * PIECE)
        self._serves = False

    @property
    def counts(self) -> tuple[int, int]:
        """Returns the number of reservations and of circuits."""
        self._relay.keep(self._host.peers(), trio.current_time())
        return self._relay.reservations, self._relay.circuits

    def join(self) -> None:
        self._serves = True
        self._host.set_handler(HOP, self._accept)

    def leave(self) -> None:
        """Stops serving; open circuits go on to their end."""
        self._serves = False

    async def _accept(self, stream: StreamPort, peer: PeerId) -> None:
        try:
            await contain(self._serve, stream, peer)
        finally:
            await _let_go(stream)

    async def _serve(self, stream: StreamPort, peer: PeerId) -> None:
        circuit: tuple[Circuit, StreamPort] | None = None
        with trio.move_on_after(PATIENCE):
            await trio.sleep(self._host.charge(peer, RELAY_QUESTION))
            try:
                asked = decode_hop(await read_message(stream, peer, MAX_MESSAGE))
            except Invalid:
                await _refuse(stream, CircuitStatus.MALFORMED_MESSAGE)
                return
            place = await self._place(peer)
            if place is None:
                await _refuse(stream, CircuitStatus.PERMISSION_DENIED)
            elif asked.kind is HopKind.RESERVE:
                await self._reserve(stream, place)
            elif asked.kind is HopKind.CONNECT and asked.peer is not None:
                circuit = await self._open(stream, place, asked.peer)
            else:
                await _refuse(stream, CircuitStatus.UNEXPECTED_MESSAGE)
        if circuit is not None:
            await self._carry(circuit[0], stream, circuit[1])

    async def _place(self, peer: PeerId) -> PeerPlace | None:
        """Returns the peer with its address if it is served, else ``None``.

        A peer that came through another relay is not served: the address of that relay would be charged.
        """
        self._relay.chosen = self._host.chosen
        try:
            address = parse_address(self._host.peers().get(peer, ""))
        except Invalid:
            return None
        is_served = address.relay is None and (peer in self._relay.chosen or await self._is_member(peer))
        return PeerPlace(peer, address.host) if self._serves and is_served and not self._is_hidden() else None

    async def _reserve(self, stream: StreamPort, place: PeerPlace) -> None:
        self._relay.keep(self._host.peers(), trio.current_time())
        status = self._relay.reserve(place, trio.current_time())
        if status is not CircuitStatus.OK:
            await _refuse(stream, status)
            return
        from multiaddr import Multiaddr  # a tenth of a second: a daemon without a host imports nothing of libp2p

        expires = self._wall() // 1_000_000_000 + self._relay.limits.lifetime
        direct = [address for address in self._host.addresses() if parse_address(address).relay is None]
        reservation = Reservation(
            expires=expires,
            addresses=tuple(Multiaddr(each).to_bytes() for each in direct),
            voucher=seal_voucher(self._key, self._host.peer_id, place.peer, expires),
        )
        limit = self._relay.limits.circuit
        await stream.send_all(
            encode_hop(HopMessage(kind=HopKind.STATUS, reservation=reservation, limit=limit, status=CircuitStatus.OK))
        )
        await stream.aclose()  # a reset would take the answer with it where it was not read yet

    async def _open(self, stream: StreamPort, source: PeerPlace, target: PeerId) -> tuple[Circuit, StreamPort] | None:
        """Opens a circuit and tells both ends; ``None`` if that was refused or failed."""
        self._relay.keep(self._host.peers(), trio.current_time())
        circuit = self._relay.open(source, target, trio.current_time())
        if isinstance(circuit, CircuitStatus):
            await _refuse(stream, circuit)
            return None
        stands, there = False, None
        try:
            there = await self._lead(source.peer, target)
            limit = self._relay.limits.circuit
            await stream.send_all(encode_hop(HopMessage(kind=HopKind.STATUS, limit=limit, status=CircuitStatus.OK)))
            stands = True
        except (PeerFault, Invalid):
            await _refuse(stream, CircuitStatus.CONNECTION_FAILED)
            return None
        finally:
            if not stands:
                self._relay.close(circuit)
                if there is not None:
                    await _let_go(there)
        return circuit, there

    async def _lead(self, source: PeerId, target: PeerId) -> StreamPort:
        """Opens a stream to the target, and has it accept the stream as a circuit. Raises PeerFault, Invalid."""
        stream = await self._host.open_stream(target, STOP)
        try:
            limit = self._relay.limits.circuit
            await stream.send_all(encode_stop(StopMessage(kind=StopKind.CONNECT, peer=source, limit=limit)))
            said = decode_stop(await read_message(stream, target, MAX_MESSAGE))
            if said.kind is not StopKind.STATUS or said.status != CircuitStatus.OK:
                raise Misbehaviour(target, f"takes no circuit: {said.status}", rule="circuit-refused")
        except BaseException:
            await _let_go(stream)
            raise
        return stream

    async def _carry(self, circuit: Circuit, here: StreamPort, there: StreamPort) -> None:
        """Moves bytes both ways until both ends have finished, or the circuit reached a limit."""
        ends = (circuit.source.peer, here), (circuit.target, there)
        try:
            with trio.CancelScope(deadline=circuit.deadline) as whole:
                async with trio.open_nursery() as nursery:
                    for way, (source, sink) in enumerate((ends, ends[::-1])):
                        carry = partial(self._carry_way, circuit, way, whole)
                        nursery.start_soon(carry, *source, sink[1])
            if not whole.cancelled_caught:
                await there.aclose()
                await here.aclose()
        finally:
            self._relay.close(circuit)
            await _let_go(there)

    async def _carry_way(
        self, circuit: Circuit, way: int, whole: trio.CancelScope, sender: PeerId, source: StreamPort, sink: StreamPort
    ) -> None:
        try:
            while data := await source.receive_some(PIECE):
                granted = circuit.take(way, len(data))
                if not granted or not await self._has_turn(sender, granted):
                    break
                await sink.send_all(memoryview(data)[:granted])
            else:
                await sink.send_eof()
                circuit.note_end(trio.current_time())
                # Ten seconds from now: an end kept open would hold the circuit for its lifetime
                # (test_a_half_closed_circuit_ends_in_time).
                whole.deadline = circuit.deadline
                return
        except (PeerFault, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # one end is gone, and with it the circuit
        whole.cancel()

    async def _has_turn(self, sender: PeerId, size: int) -> bool:
        await trio.sleep(self._host.charge(sender, CARRIED + CARRIED_BYTE * size))
        if not self._pace.rate:
            return True
        async with self._turns.turn(self._host.share_of(sender), sender, size) as has_turn:
            if has_turn:
                await trio.sleep_until(self._pace.take(size, trio.current_time()))
            return has_turn


async def _refuse(stream: StreamPort, status: CircuitStatus) -> None:
    await stream.send_all(encode_hop(HopMessage(kind=HopKind.STATUS, status=status)))
    await stream.aclose()


async def _let_go(stream: StreamPort) -> None:
    """Resets a stream, even while being cancelled; does nothing if it is closed."""
    with trio.CancelScope(shield=True), trio.move_on_after(1.0):
        await stream.reset()
