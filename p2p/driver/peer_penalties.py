"""Shares the peer book between the parts of the driver, decides whom to blame, and disconnects who misbehaves.

Made with the driver, ends with it. Streams to peers get their framing here, so that one bound holds for the unfinished
frames of all of them.

``Histories`` tracks which history of a chain each peer holds, so that a peer is blamed only for blocks it is known to
have right. An owner may rewrite a chain, and one who signs two histories leaves different nodes with different ones. A
peer that serves blocks of the history that it holds does nothing wrong, even if we want another one. A peer shows that
it holds a history by its last block, whose links fix all blocks before it. If it serves other blocks after that, it
lies. If it has not shown that, it is not asked for this chain again until it does. A peer that gave other blocks and
shows the history afterwards may have changed in between, so it is not blamed but asked again; the next time it has
shown it before. Made with the driver.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

import structlog
import trio
from cachetools import FIFOCache

from chain.ids import DatasetId
from p2p.driver.framing import FramedStream, UnfinishedFrames
from p2p.driver.ports import HostPort, StreamPort
from p2p.errors import Misbehaviour, PeerFault, TooSlow
from p2p.peers.book import BAD_BYTES, GARBAGE, UNRELIABLE, PeerBook
from p2p.ports import PeerId, Tip

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


Fetch: TypeAlias = Callable[[PeerId, DatasetId, int, int], Awaitable[Sequence[bytes]]]
"""Fetches blocks of a chain from a peer: from a block on, at most so many bytes, but at least one block.

Raises PeerFault, within its own time limit.
"""
MAX_ELSEWHERE: Final = 4096
"""Pairs of chain and peer remembered, of those that hold another history or have shown the last block."""


class Histories:
    def __init__(self, fetch: Fetch, standing: PeerPenalties) -> None:
        self._fetch = fetch
        self._standing = standing
        self._elsewhere: FIFOCache[tuple[DatasetId, PeerId], None] = FIFOCache(MAX_ELSEWHERE)
        self._shown: FIFOCache[tuple[DatasetId, PeerId], bytes] = FIFOCache(MAX_ELSEWHERE)
        """The last block that each peer showed, for peers whose blocks were doubted."""
        self._asking: set[tuple[DatasetId, PeerId]] = set()
        """Peers that are being asked whether they hold the wanted history now."""

    async def holds(self, peer: PeerId, dataset: DatasetId, tip: Tip) -> bool:
        """Whether a peer shows that it holds exactly this chain; ``False`` also if it does not answer."""
        try:
            blocks = await self._fetch(peer, dataset, tip.size - 1, 1)
        except PeerFault:
            return False
        return bool(blocks) and hashlib.sha3_256(blocks[0]).digest() == tip.last

    async def fit(self, peers: Sequence[PeerId], dataset: DatasetId, tip: Tip, beside: trio.Nursery) -> list[PeerId]:
        """Returns the peers to ask for the chain: without those that held another history and still do.

        Those are asked for their last block again: in tasks of ``beside``, for the next time, if there are other peers;
        otherwise at once.
        """
        doubted = [peer for peer in peers if (dataset, peer) in self._elsewhere]
        if len(doubted) < len(peers):
            for peer in doubted:
                if (dataset, peer) not in self._asking:
                    beside.start_soon(self._ask_again, peer, dataset, tip)
        else:
            async with trio.open_nursery() as nursery:
                for peer in doubted:
                    nursery.start_soon(self._ask_again, peer, dataset, tip)
        return [peer for peer in peers if (dataset, peer) not in self._elsewhere]

    async def _ask_again(self, peer: PeerId, dataset: DatasetId, tip: Tip) -> None:
        self._asking.add((dataset, peer))
        try:
            if await self.holds(peer, dataset, tip):
                self._forget_probe(peer, dataset, tip)
        finally:
            self._asking.discard((dataset, peer))

    async def accuse(self, peer: PeerId, dataset: DatasetId, tip: Tip, reason: str) -> None:
        """Penalises a peer whose data alone did not belong to the wanted chain, by what it shows about its history."""
        had_shown = self._shown.get((dataset, peer)) == tip.last
        self._elsewhere[dataset, peer] = None
        if not await self.holds(peer, dataset, tip):
            self._standing.penalise(peer, f"{reason}; it may hold another history", UNRELIABLE)
            return
        self._forget_probe(peer, dataset, tip)
        if had_shown:
            self._standing.penalise(peer, reason, BAD_BYTES)
        else:
            self._standing.penalise(peer, f"{reason}; it holds the chain now", UNRELIABLE)

    def _forget_probe(self, peer: PeerId, dataset: DatasetId, tip: Tip) -> None:
        self._elsewhere.pop((dataset, peer), None)
        self._shown[dataset, peer] = tip.last
