"""Declares the interface of the network that the driver uses;
``p2p.host`` implements it over libp2p, tests in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Protocol, TypeAlias

import msgspec

from p2p.address import PeerAddress
from p2p.ip import Allows, Ip
from p2p.ports import GossipVerdict, PeerId
from p2p.wire.reach import DialStatus


class StreamPort(Protocol):
    """A byte stream to one peer; ``trio.abc.HalfCloseableStream`` with ``reset`` is one implementation.

    Methods raise PeerFault if the stream breaks and ClosedResourceError after ``aclose`` or ``reset``, which may be
    called again. A cancelled send may have sent a part.
    """

    async def send_all(self, data: bytes | memoryview) -> None: ...

    async def receive_some(self, max_bytes: int) -> bytes:
        """Receives at least one byte, or ``b""`` at the end."""

    async def send_eof(self) -> None:
        """Ends the sending half."""

    async def aclose(self) -> None: ...

    async def reset(self) -> None:
        """Ends the stream at once, in both directions."""


class ConnectionChange(msgspec.Struct, frozen=True):
    """A peer's first connection was made, or its last one ended."""

    peer: PeerId
    up: bool
    address: str = ""


class DirectPort(Protocol):
    """Connections in a chosen role and from a chosen port, as needed to test NATs and to get through them."""

    @property
    def opened(self) -> frozenset[PeerId]:
        """Returns connected peers that were dialled from the listening port, or through a punched hole."""

    def listening(self) -> Sequence[PeerAddress]:
        """Returns the addresses at which this node listens."""

    def reachable(self) -> Sequence[PeerAddress]:
        """Returns the listening addresses, with those of the interfaces for the unspecified one,
        whatever dial-backs said."""

    def announce_only(self, found: Sequence[PeerAddress], unreached: Iterable[PeerAddress]) -> None:
        """Announces the addresses in ``found`` beside its own ones, but none of ``unreached``."""

    def interfaces(self) -> Collection[Ip]:
        """Returns the present addresses of this machine's interfaces."""

    async def interfaces_changed(self, known: Collection[Ip]) -> None:
        """Waits until the interfaces have other addresses than ``known``."""

    async def connections_changed(self) -> None:
        """Waits until a connection is made or ends."""

    async def drop_from(self, gone: Collection[Ip]) -> int:
        """Closes connections whose local address is gone; returns their number."""

    async def dial_own(self) -> Mapping[PeerAddress, bool]:
        """Dials the addresses of this machine at which this node listens, as a stranger; returns which answered."""

    async def dial_back(self, address: PeerAddress, peer: PeerId, nonce: int) -> DialStatus: ...

    def take_dial_backs(self, heard: Callable[[int], bool]) -> None:
        """Accepts nonces of dial-backs; ``heard`` says whether a nonce is one of ours."""

    def came_by_relay(self) -> Sequence[PeerId]:
        """Lists peers that are connected only through a relay that brought them."""

    def is_direct(self, peer: PeerId) -> bool: ...

    def meeting(self, targets: Sequence[PeerAddress], peer: PeerId) -> AbstractContextManager[None]:
        """Treats peers that dial us from one of these addresses as clients, while the block runs."""

    async def punch(self, targets: Sequence[PeerAddress], peer: PeerId, seconds: float, *, as_client: bool) -> bool:
        """Dials from the listening port while the peer does the same; returns whether there is a direct connection."""

    async def reach(self, targets: Sequence[PeerAddress], peer: PeerId, seconds: float) -> bool:
        """Dials a peer directly, beside the circuit with it; returns whether there is a direct connection."""

    async def drop_relayed(self, peer: PeerId) -> None:
        """Closes the circuits with a peer that is connected directly."""

    def brief(
        self, address: PeerAddress, peer: PeerId, source: int = 0
    ) -> AbstractAsyncContextManager[Callable[[str], Awaitable[StreamPort]]]:
        """Makes a connection that is not counted, from a port of its own;
        yields a function that opens streams on it."""


StreamHandler: TypeAlias = Callable[[StreamPort, PeerId], Awaitable[None]]
Validator: TypeAlias = Callable[[PeerId, bytes], Awaitable[GossipVerdict]]


class HostPort(Protocol):
    """A node of the network, as the driver uses it. Every waiting method has its own deadline and raises PeerFault."""

    @property
    def peer_id(self) -> PeerId: ...

    def addresses(self) -> Sequence[str]: ...

    @property
    def chosen(self) -> frozenset[PeerId]:
        """Returns the peers that a person chose."""

    async def connect(self, multiaddr: str, *others: str, allows: Allows) -> PeerId:
        """Connects to a peer at the first address that answers; ``others`` are more addresses of the same peer.
        ``allows`` judges each address that is dialled, after names are resolved."""

    async def disconnect(self, peer: PeerId) -> None: ...

    async def open_stream(self, peer: PeerId, protocol: str) -> StreamPort:
        """Opens a stream to a connected peer, without dialling. Raises PeerUnreachable if there is no connection."""

    def set_handler(self, protocol: str, handler: StreamHandler) -> None: ...

    def peers(self) -> Mapping[PeerId, str]:
        """Returns the connected peers, each with an address, which is empty if it dialled us."""

    def is_connected(self, peer: PeerId) -> bool:
        """Whether there is a connection, even if ``peers`` does not count the peer (``p2p.driver.namespaces``)."""

    def network_of(self, peer: PeerId) -> str:
        """Returns the network of a connection's remote address as ``p2p.address.network_of``; empty without a
        connection."""

    def share_of(self, peer: PeerId) -> str:
        """Returns whose turns and forwarding limits a peer shares:
        its network's, or its own if it has limits of its own."""

    def charge(self, peer: PeerId, cost: float) -> float:
        """Charges a peer for work, in microseconds of a core;
        returns the seconds to wait before it begins (``p2p.budget``)."""

    def gave(self, peer: PeerId, amount: int) -> None:
        """Records bytes that a peer gave and that proved true; when slots are few, such a peer keeps its own."""

    def choose(self, peers: Iterable[PeerId], addresses: Iterable[str] = (), publishers: Iterable[PeerId] = ()) -> None:
        """Reserves room for peers that a person chose, their addresses, and publishers of mirrored datasets."""

    def remote_of(self, peer: PeerId) -> str:
        """Returns the remote IP address of a direct connection of a peer; empty without one."""

    def brief(self, address: PeerAddress, peer: PeerId, protocol: str) -> AbstractAsyncContextManager[StreamPort]:
        """Opens a stream on a connection of its own that is not counted and ends with the block. ``address`` has an IP
        address, and was judged by the caller. Raises PeerFault."""

    async def next_change(self) -> ConnectionChange:
        """Waits for the next change. Changes that are not fetched in time are lost; ``peers`` is authoritative."""

    async def join(self, topic: str, validator: Validator) -> None:
        """Joins a gossip topic. ``validator`` judges each message before it is passed on."""

    async def publish(self, topic: str, data: bytes) -> None: ...


class ReachHost(HostPort, Protocol):
    """An undivided host, with the operations that finding out how it is reached takes."""

    @property
    def direct(self) -> DirectPort: ...

    def share_port_with(self, peers: Iterable[PeerId]) -> None:
        """Dials these peers, which are relays, from the listening port."""

    def reached_by(self, relays: Mapping[PeerId, str]) -> None:
        """Sets the relays at which this node has a reservation, and their addresses; they are announced."""
