"""Reports peers that connect and disconnect, in a bounded channel: one notice per peer, not per connection."""

from __future__ import annotations

from typing import Any

import msgspec
import trio
from libp2p.abc import INotifee

from p2p.ports import PeerId


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
