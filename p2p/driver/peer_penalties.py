"""Shares the peer book between the parts of the driver, and closes connections of peers that misbehave.

Made with the driver, ends with it. Streams to peers get their framing here, so that one bound holds for the unfinished
frames of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import structlog
import trio

from p2p.driver.framing import FramedStream, UnfinishedFrames
from p2p.driver.ports import HostPort, StreamPort
from p2p.errors import Misbehaviour, PeerFault, TooSlow
from p2p.peers.book import GARBAGE, UNRELIABLE, PeerBook
from p2p.ports import PeerId

_LOG = structlog.get_logger("p2p.driver")
PARTING: Final = 2.0
"""Seconds that closing the connection of a peer that is shut out may take."""


class PeerPenalties:
    """Records penalties of peers, and disconnects those that are shut out.
    ``wall`` returns nanoseconds since the epoch."""

    def __init__(self, host: HostPort, book: PeerBook, wall: Callable[[], int]) -> None:
        self._host = host
        self._unfinished = UnfinishedFrames()
        self.book = book
        self.wall = wall
        self._condemned, self._waiting = trio.open_memory_channel[PeerId](256)

    def frame(self, stream: StreamPort, peer: PeerId, limit: int) -> FramedStream:
        """Wraps a stream in frames of at most ``limit`` bytes,
        whose unfinished bytes count for the peer's address block."""
        return FramedStream(stream, peer, limit, self._unfinished, self._host.share_of(peer))

    async def open(self, peer: PeerId, protocol: str, limit: int, patience: float) -> FramedStream:
        """Opens a framed stream to a connected peer. Raises PeerFault."""
        with trio.move_on_after(patience):
            return self.frame(await self._host.open_stream(peer, protocol), peer, limit)
        raise TooSlow(peer, f"no stream for {protocol} in {patience:.0f} s", rule="stream-patience")

    def penalise(self, peer: PeerId, reason: str, weight: float) -> None:
        """Records a penalty; a peer that is shut out by it is disconnected soon after."""
        _LOG.info("peer penalised", peer=peer, reason=reason, weight=weight)
        if self.book.penalise(peer, weight, trio.current_time()) and self.book.get(peer).connected:
            try:
                self._condemned.send_nowait(peer)
            except trio.WouldBlock:
                _LOG.warning("too many peers shut out at once; this one stays connected for now", peer=peer)

    def blame(self, fault: PeerFault) -> None:
        """Penalises the peer of a fault, as the kind of the fault deserves."""
        weight = GARBAGE if isinstance(fault, Misbehaviour) else UNRELIABLE
        self.penalise(PeerId(fault.peer), fault.message, weight)

    def gave(self, given: Mapping[PeerId, int]) -> None:
        """Records the bytes that each peer gave, once the whole that they belong to has proved true."""
        for peer, amount in given.items():
            self._host.gave(peer, amount)

    def is_shut_out(self, peer: PeerId) -> bool:
        return self.book.is_shut_out(peer, trio.current_time())

    async def run(self) -> None:
        """Disconnects peers that are shut out, for as long as the driver lives."""
        async for peer in self._waiting:
            with trio.move_on_after(PARTING):
                await self._host.disconnect(peer)
