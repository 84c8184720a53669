"""Finds out whether this node can be dialled from the Internet, and dials back for others who ask (AutoNAT v2).

Made with the host (``node_reach``). Peers say at which address they see this node (identify), and dial it back there
and at its own addresses. The results decide which addresses are announced and whether relays are needed. A peer that
was dialled from the listening port is not asked: a NAT that lets it in may let nobody else in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Final

import msgspec
import trio

from chain.errors import Invalid
from p2p.address import PeerAddress, network_of, parse_address
from p2p.budget.work import HANDSHAKE
from p2p.driver.inbound import contain
from p2p.driver.ports import DirectPort, HostPort, StreamPort
from p2p.errors import Misbehaviour, PeerFault, TooSlow
from p2p.host.messages import read_message
from p2p.ip import is_global
from p2p.machines.dial_back import DialBacks, DialOrder
from p2p.machines.reachability import Reachability, Reached
from p2p.ports import PeerId
from p2p.wire.reach import (
    ASK,
    MAX_DATA,
    MAX_DIAL_MESSAGE,
    MOST_DATA,
    DialData,
    DialDataRequest,
    DialRequest,
    DialResponse,
    DialStatus,
    Message,
    ResponseStatus,
    decode,
    decode_multiaddr,
    decode_observed,
    encode,
    encode_multiaddr,
)

IDENTIFY: Final = "/ipfs/id/1.0.0"
MAX_IDENTIFY: Final = 64 << 10
"""Bytes of a peer's identify message."""
PATIENCE: Final = 10.0
"""Seconds for an identify message to come."""
ASK_PATIENCE: Final = 30.0
"""Seconds for a question with its data and its dial-back."""
LOOK: Final = 1.0
"""Seconds between checks which peers are to be asked next."""
SEEN_AGAIN: Final = 300.0
"""Seconds after which a peer is asked again at which address it sees this node."""
MAX_SEEN: Final = 64
"""Peers whose sightings are kept."""


class ObservedAddress(msgspec.Struct, frozen=True):
    """The address at which a peer sees this node."""

    address: PeerAddress
    at: float
    from_listening: bool
    """Whether the connection left from the listening port, so that its port counts too."""


class AutoNat:
    """Client and server of AutoNAT v2 for one node. ``changed`` is called when other addresses are to be announced."""

    def __init__(
        self, host: HostPort, direct: DirectPort, backs: DialBacks, rng: Random, changed: Callable[[], None]
    ) -> None:
        self._host = host
        self._direct = direct
        self._backs = backs
        self._rng = rng
        self._changed = changed
        self._nonces: dict[int, bool] = {}
        self._told: tuple[object, ...] = ()
        self.reachability = Reachability()
        self.sightings: dict[PeerId, ObservedAddress] = {}

    @property
    def refused(self) -> int:
        return self._backs.refused

    def join(self) -> None:
        self._host.set_handler(ASK, self._accept)
        self._direct.take_dial_backs(self._take_nonce)

    # --- for this node -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Asks one peer at a time, until cancelled."""
        while True:
            await self.step()
            if self._host.peers():
                await trio.sleep(LOOK)
            else:
                await self._direct.connections_changed()

    async def step(self) -> None:
        """Asks peers that were not asked lately at which address they see this node,
        and servers that are due to dial back."""
        for peer in self._servers(of_others=False):
            if (seen := self.sightings.get(peer)) is None or trio.current_time() - seen.at > SEEN_AGAIN:
                await contain(self._look, peer)
        self.reachability.watch(self._candidates())
        for peer in self._servers(of_others=True):
            due = self.reachability.due(self._host.network_of(peer), trio.current_time())
            if due:
                await contain(self.ask, peer, due)
        self._tell()

    def forget(self) -> None:
        """Forgets at which addresses peers saw this node; called when the addresses of this machine changed."""
        self.sightings.clear()
        self.reachability.watch(())
        self._tell()

    def _servers(self, *, of_others: bool) -> list[PeerId]:
        """Lists directly connected peers in random order.

        ``of_others``: only one of each network, and none that was dialled from the listening port.
        """
        opened = self._direct.opened if of_others else frozenset()
        found: dict[str, PeerId] = {}
        connected = self._host.peers().items()
        peers = [peer for peer, address in connected if peer not in opened and "/p2p-circuit" not in address]
        for peer in self._rng.sample(peers, len(peers)):
            found.setdefault(self._host.network_of(peer), peer)
        found.pop("", None)
        return list(found.values()) if of_others else peers

    async def _look(self, peer: PeerId) -> None:
        address = await read_observed(await self._host.open_stream(peer, IDENTIFY), peer)
        if address is None:
            return
        if len(self.sightings) >= MAX_SEEN:
            self.sightings = {each: one for each, one in self.sightings.items() if each in self._host.peers()}
        if len(self.sightings) < MAX_SEEN:
            from_listening = peer in self._direct.opened
            self.sightings[peer] = ObservedAddress(address, trio.current_time(), from_listening)

    def seen_at(self) -> list[PeerAddress]:
        """Returns the Internet addresses at which others may reach this node, by what peers see.

        With the port that a peer sees if the connection left from the listening port, else with each listening port.
        """
        ports = {each.port for each in self._direct.listening()}
        found: dict[PeerAddress, None] = {}
        for one in self.sightings.values():
            if one.from_listening:
                found[one.address] = None
            else:
                found |= {PeerAddress(one.address.network, one.address.host, port): None for port in ports}
        return [each for each in found if each.ip is not None and is_global(each.ip)]

    def _candidates(self) -> list[PeerAddress]:
        own = [parse_address(address) for address in self._host.addresses()]
        direct = [PeerAddress(each.network, each.host, each.port) for each in own if each.relay is None]
        known = [*self._direct.reachable(), *direct, *self.seen_at()]
        return [each for each in dict.fromkeys(known) if each.ip is not None and is_global(each.ip)]

    async def ask(self, peer: PeerId, addresses: Sequence[PeerAddress]) -> None:
        """Asks a server to dial back at one of ``addresses``, and records the result. Raises PeerFault."""
        nonce = self._rng.getrandbits(64)
        self._nonces[nonce] = False
        try:
            answer = await self._question(peer, addresses, nonce)
            dialled = addresses[answer.index] if answer.index < len(addresses) else None
            if dialled is None or answer.status != ResponseStatus.OK:
                return
            # The server's word alone proves nothing: the nonce must have come over a connection that it made
            # (test_servers_of_one_network_decide_nothing).
            is_reached = self._nonces[nonce] and answer.dial == DialStatus.OK
            if is_reached or answer.dial == DialStatus.DIAL_ERROR:
                network = self._host.network_of(peer) or network_of(dialled.host)
                self.reachability.note_report(dialled, network, trio.current_time(), is_reached=is_reached)
        finally:
            del self._nonces[nonce]

    async def _question(self, peer: PeerId, addresses: Sequence[PeerAddress], nonce: int) -> DialResponse:
        stream = await self._host.open_stream(peer, ASK)
        try:
            with trio.move_on_after(ASK_PATIENCE):
                await stream.send_all(encode(DialRequest(tuple(map(encode_multiaddr, addresses)), nonce)))
                answer = await _read(stream, peer)
                if isinstance(answer, DialDataRequest):
                    # AutoNAT v2: a dial costs at most 100,000 bytes; a server that wants more wastes our upload.
                    if answer.count > MOST_DATA:
                        raise Misbehaviour(peer, f"wants {answer.count:,} bytes for a dial", rule="autonat-data")
                    await _pay(stream, answer.count)
                    answer = await _read(stream, peer)
                if not isinstance(answer, DialResponse):
                    raise Misbehaviour(peer, "answers a question by another", rule="autonat-message")
                return answer
        finally:
            await _let_go(stream)
        raise TooSlow(peer, f"no answer in {ASK_PATIENCE:g} s", rule="autonat-patience")

    def _take_nonce(self, nonce: int) -> bool:
        """Whether a nonce is one of ours; marks it as heard,
        which counts only together with the answer of the asked server."""
        if nonce not in self._nonces:
            return False
        self._nonces[nonce] = True
        return True

    def _tell(self) -> None:
        now = trio.current_time()
        judged = {address: self.reachability.of(address, now) for address in self.reachability.addresses}
        reached = tuple(each for each, one in judged.items() if one is Reached.YES)
        unreached = tuple(each for each, one in judged.items() if one is Reached.NO)
        if (reached, unreached) != self._told:
            self._told = (reached, unreached)
            self._direct.announce_only(reached, unreached)
            self._changed()

    def whole(self) -> Reached:
        """Returns whether any address of this node is reached from the Internet."""
        return self.reachability.whole(trio.current_time())

    def is_reached_by_all(self) -> bool:
        """Whether an address of IPv4 is reached, which all peers can dial."""
        return self.reachability.is_reached_over(4, trio.current_time())

    # --- for others ----------------------------------------------------------------------------------------------

    async def _accept(self, stream: StreamPort, peer: PeerId) -> None:
        try:
            await contain(self._serve, stream, peer)
        finally:
            await _let_go(stream)

    async def _serve(self, stream: StreamPort, peer: PeerId) -> None:
        with trio.move_on_after(ASK_PATIENCE):
            await trio.sleep(self._host.charge(peer, HANDSHAKE))
            asked = await _read(stream, peer)
            if not isinstance(asked, DialRequest):
                raise Misbehaviour(peer, "begins with another message than a request", rule="autonat-message")
            await self._answer(stream, peer, asked)

    async def _answer(self, stream: StreamPort, peer: PeerId, asked: DialRequest) -> None:
        here = parse_address(self._host.peers().get(peer, ""))
        wanted = [decode_multiaddr(address) for address in asked.addresses]
        # The address of a circuit is that of its relay, which did not ask.
        dial = (
            self._backs.begin(peer, here.host, wanted, is_global, trio.current_time())
            if here.relay is None
            else ResponseStatus.REQUEST_REJECTED
        )
        if not isinstance(dial, DialOrder):
            await _say(stream, DialResponse(dial))
            return
        if dial.data and not await self._is_paid(stream, peer, dial):
            await _say(stream, DialResponse(ResponseStatus.REQUEST_REJECTED))
            return
        try:
            status = await self._direct.dial_back(dial.address, peer, asked.nonce)
            await _say(stream, DialResponse(ResponseStatus.OK, dial.place, status))
        finally:
            self._backs.end()

    async def _is_paid(self, stream: StreamPort, peer: PeerId, dial: DialOrder) -> bool:
        """Takes the price of a dial; returns whether there is room for the dial. Raises PeerFault, Invalid."""
        has_come = is_granted = False
        try:
            await self._collect(stream, peer, dial)
            has_come = True
        finally:
            is_granted = self._backs.may_dial(dial, trio.current_time(), has_come=has_come)
        return is_granted

    async def _collect(self, stream: StreamPort, peer: PeerId, dial: DialOrder) -> None:
        """Receives the bytes that an asker must send before a dial to a foreign address. Raises PeerFault, Invalid."""
        await stream.send_all(encode(DialDataRequest(dial.place, dial.data)))
        left = dial.data
        while left > 0:
            part = await _read(stream, peer)
            if not isinstance(part, DialData) or not part.data:
                raise Misbehaviour(peer, "sends no data for its dial", rule="autonat-data")
            left -= len(part.data)


async def read_observed(stream: StreamPort, peer: PeerId) -> PeerAddress | None:
    """Reads an identify message: the address at which a peer sees this node;
    ``None`` if none comes. Raises PeerFault."""
    try:
        with trio.move_on_after(PATIENCE):
            return decode_multiaddr(decode_observed(await read_message(stream, peer, MAX_IDENTIFY)))
        return None
    except Invalid as error:
        raise Misbehaviour(peer, error.message, rule=error.rule) from error
    finally:
        await _let_go(stream)


async def _read(stream: StreamPort, peer: PeerId) -> Message:
    try:
        return decode(await read_message(stream, peer, MAX_DIAL_MESSAGE))
    except Invalid as error:
        raise Misbehaviour(peer, error.message, rule=error.rule, hint=error.hint) from error


async def _say(stream: StreamPort, message: Message) -> None:
    await stream.send_all(encode(message))
    await stream.aclose()


async def _pay(stream: StreamPort, count: int) -> None:
    part = encode(DialData(bytes(MAX_DATA)))
    for _ in range(-(-count // MAX_DATA)):
        await stream.send_all(part)


async def _let_go(stream: StreamPort) -> None:
    """Resets a stream, even while being cancelled; does nothing if it is closed."""
    with trio.CancelScope(shield=True), trio.move_on_after(1.0), suppress(PeerFault):
        await stream.reset()
