"""Declares what the driver needs of the network; ``p2p.host`` provides it over libp2p, and tests in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Protocol, TypeAlias

import msgspec

from p2p.address import Address
from p2p.ip import Allows, Ip
from p2p.ports import PeerId, Verdict
from p2p.wire.autonat import DialStatus


class StreamPort(Protocol):
    """A byte stream to one peer, of which ``trio.abc.HalfCloseableStream`` with ``reset`` is one kind.

    Methods raise PeerFault when it breaks and ClosedResourceError after ``aclose`` or ``reset``, which may be called
    again. A send that is cancelled may have sent a part.
    """

    async def send_all(self, data: bytes | memoryview) -> None: ...

    async def receive_some(self, max_bytes: int) -> bytes:
        """Receives at least one byte, or ``b""`` at the end."""

    async def send_eof(self) -> None:
        """Ends the sending half."""

    async def aclose(self) -> None: ...

    async def reset(self) -> None:
        """End it at once, in both directions."""


class ConnectionChange(msgspec.Struct, frozen=True):
    """A peer's first connection came up, or its last one went down."""

    peer: PeerId
    up: bool
    address: str = ""


class DirectPort(Protocol):
    """Connections in a chosen role and from a chosen port: what finding out about NATs and passing them takes."""

    @property
    def opened(self) -> frozenset[PeerId]:
        """Connected peers that were dialled from the listening port, or through a punched hole."""

    def listening(self) -> Sequence[Address]:
        """Returns the addresses at which this node listens."""

    def reachable(self) -> Sequence[Address]:
        """The same with the addresses of interfaces in place of the unspecified one, whatever was judged of them."""

    def judged(self, found: Sequence[Address], unreached: Iterable[Address]) -> None:
        """Announces what was found beside its own addresses, and nothing that is not reached."""

    def interfaces(self) -> Collection[Ip]:
        """The addresses of this machine's interfaces now."""

    async def interfaces_changed(self, known: Collection[Ip]) -> None:
        """Waits until the interfaces have other addresses than these."""

    async def connections_changed(self) -> None:
        """Waits until a connection comes or goes."""

    async def drop_from(self, gone: Collection[Ip]) -> int:
        """Closes connections whose local address is gone; returns their number."""

    async def dial_back(self, address: Address, peer: PeerId, nonce: int) -> DialStatus: ...

    def take_dial_backs(self, heard: Callable[[int], bool]) -> None:
        """``heard`` says whether a nonce that came over a peer's own connection is one of ours."""

    def came_by_relay(self) -> Sequence[PeerId]:
        """Peers that came by a relay and by no other way."""

    def is_direct(self, peer: PeerId) -> bool: ...

    def meeting(self, targets: Sequence[Address], peer: PeerId) -> AbstractContextManager[None]:
        """Treats peers that dial us from one of these addresses in the meantime as clients."""

    async def punch(self, targets: Sequence[Address], peer: PeerId, seconds: float, *, as_client: bool) -> bool:
        """Dials from the listening port while the peer does so too. Whether a direct connection stands."""

    async def reach(self, targets: Sequence[Address], peer: PeerId, seconds: float) -> bool:
        """Dials a peer beside the circuit with it. Whether a direct connection stands."""

    async def drop_relayed(self, peer: PeerId) -> None:
        """Closes the circuits with a peer that is connected directly."""

    def brief(
        self, address: Address, peer: PeerId, source: int = 0
    ) -> AbstractAsyncContextManager[Callable[[str], Awaitable[StreamPort]]]:
        """A connection that is not counted, from a port of its own. Gives what opens streams on it."""


StreamHandler: TypeAlias = Callable[[StreamPort, PeerId], Awaitable[None]]
Validator: TypeAlias = Callable[[PeerId, bytes], Awaitable[Verdict]]


class HostPort(Protocol):
    """A node of the network. Every method that waits raises PeerFault, never later than its own deadline."""

    @property
    def peer_id(self) -> PeerId: ...

    def addresses(self) -> Sequence[str]: ...

    @property
    def chosen(self) -> frozenset[PeerId]:
        """Peers that a person chose."""

    async def connect(self, multiaddr: str, *others: str, allows: Allows) -> PeerId:
        """``others`` are more addresses of the same peer; the first that answers is taken. ``allows`` judges each
        address that is dialled, after names are resolved."""

    async def disconnect(self, peer: PeerId) -> None: ...

    async def open_stream(self, peer: PeerId, protocol: str) -> StreamPort:
        """Opens a stream to a connected peer, without dialling. Raises Unreachable when there is no connection."""

    def set_handler(self, protocol: str, handler: StreamHandler) -> None: ...

    def peers(self) -> Mapping[PeerId, str]:
        """The connected ones, each with an address, which is empty when it dialled us."""

    def is_connected(self, peer: PeerId) -> bool:
        """Whether there is a connection, also where ``peers`` does not count the peer (``p2p.driver.namespaces``)."""

    def network_of(self, peer: PeerId) -> str:
        """Returns the network of a connection's remote address as ``p2p.address.network_of``; empty without one."""

    def share_of(self, peer: PeerId) -> str:
        """Returns who shares a peer's turns and forwarding limits: its network, or it alone where it has its own."""

    def charge(self, peer: PeerId, cost: float) -> float:
        """Charge a peer for work, in microseconds of a core; seconds to wait before it begins (``p2p.budget``)."""

    def gave(self, peer: PeerId, amount: int) -> None:
        """Note bytes that a peer gave and that proved true: where places are few, it keeps its own."""

    def choose(self, peers: Iterable[PeerId], addresses: Iterable[str] = (), publishers: Iterable[PeerId] = ()) -> None:
        """Reserves room for peers that a person chose, their addresses, and publishers of mirrored datasets."""

    def remote_of(self, peer: PeerId) -> str:
        """Returns the IP address that a direct connection of a peer comes from or goes to; empty without one."""

    def brief(self, address: Address, peer: PeerId, protocol: str) -> AbstractAsyncContextManager[StreamPort]:
        """A stream on a connection of its own, that is not counted and ends with the block. ``address`` is judged by
        the caller, and has an IP address. Raises PeerFault."""

    async def next_change(self) -> ConnectionChange:
        """Waits for the next change. Changes are lost if not fetched in time; ``peers`` is authoritative."""

    async def join(self, topic: str, validator: Validator) -> None:
        """Take part in a gossip topic. ``validator`` judges what comes before it is passed on."""

    async def publish(self, topic: str, data: bytes) -> None: ...


class ReachHost(HostPort, Protocol):
    """A host whole, not divided among networks: with what finding out how it is reached takes."""

    @property
    def direct(self) -> DirectPort: ...

    def share_port_with(self, peers: Iterable[PeerId]) -> None:
        """Dials these, which are relays, from the listening port."""

    def reached_by(self, relays: Mapping[PeerId, str]) -> None:
        """Sets the relays at which this node has a reservation, with their addresses, which are announced."""
