"""Reads and writes frames over a stream: reads with a size limit, writes whole frames under a deadline.

The unfinished frames of all streams of a node are bounded too, in each direction; beyond that the stream that holds
most is reset.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import trio

from chain.errors import Invalid
from p2p.budget.unfinished import MOST, PIECE, Unfinished
from p2p.driver.ports import StreamPort
from p2p.errors import Misbehaviour, StreamBroken, TooSlow
from p2p.ports import PeerId
from p2p.wire.frames import FrameSplitter, frame

CHUNK: Final = 256 << 10
"""Bytes read at a time: a quarter of the largest usual frame."""
SEND_PATIENCE: Final = 30.0
"""Seconds in which a peer must take one frame of 1 MiB; otherwise the stream is reset."""


class UnfinishedFrames:
    """Counts the bytes of unfinished frames on all streams of one node. Made with the driver."""

    def __init__(self) -> None:
        self.coming: Unfinished[FramedStream] = Unfinished(MOST)
        """Incoming frames of which only a part has arrived."""
        self.going: Unfinished[FramedStream] = Unfinished(MOST)
        """Outgoing frames that the peer has not taken yet."""


class FramedStream:
    """Sends and receives frame bodies on a stream. One task reads; any task may write.

    ``block``: the block of addresses for which ``unfinished`` counts.
    """

    def __init__(
        self, stream: StreamPort, peer: PeerId, limit: int, unfinished: UnfinishedFrames | None = None, block: str = ""
    ) -> None:
        self._unfinished = unfinished or UnfinishedFrames()
        self._block = block or peer
        self._unsent = 0
        self._stream = stream
        self._reader = FrameSplitter(limit)
        self._bodies: deque[bytes] = deque()
        self._writing = trio.Lock()
        self.peer = peer

    @property
    def arriving(self) -> int:
        """Returns how many bytes of an incomplete frame have arrived."""
        return self._reader.held

    async def read(self) -> bytes | None:
        """Returns the next body, ``None`` at a clean end.
        Raises Misbehaviour on bad framing, StreamBroken if the stream breaks."""
        while not self._bodies:
            try:
                data = await self._stream.receive_some(CHUNK)
            except trio.ClosedResourceError:
                raise StreamBroken(self.peer, "we closed the stream") from None
            try:
                if not data:
                    self._reader.end()
                    return None
                self._bodies.extend(self._reader.feed(data))
            except Invalid as error:
                raise Misbehaviour(self.peer, error.message, rule=error.rule, hint=error.hint) from error
            # A frame that comes byte by byte costs more memory than its bytes
            # (test_what_all_leave_unfinished_is_bounded).
            held = self._reader.held + PIECE * self._reader.pieces
            await self._bound_memory(self._unfinished.coming, held)
        return self._bodies.popleft()

    async def write(self, body: bytes) -> None:
        """Sends a body. Raises TooSlow, and resets the stream, if the peer does not take it in time; else PeerFault."""
        await self.send(frame(body))

    async def send(self, frames: bytes | memoryview) -> None:
        """Sends bytes that are framed already; raises like ``write``."""
        self._unsent += len(frames)
        try:
            await self._bound_memory(self._unfinished.going, self._unsent)
            await self._send(frames)
        finally:
            self._unsent -= len(frames)
            self._unfinished.going.note(self, self._block, self._unsent)

    async def _bound_memory(self, share: Unfinished[FramedStream], amount: int) -> None:
        """Records this stream's unfinished bytes; resets the heaviest streams while the total is too high.

        Raises TooSlow if this stream is one of them.
        """
        while (heaviest := share.note(self, self._block, amount)) is not None:
            share.leave(heaviest)
            await heaviest.reset()
            if heaviest is self:
                text = f"left more unfinished than others, of {share.total + amount:,} bytes"
                raise TooSlow(self.peer, text, rule="unfinished")

    async def _send(self, frames: bytes | memoryview) -> None:
        whole = False
        try:
            self._writing.acquire_nowait()
        except trio.WouldBlock:
            await self._writing.acquire()  # for a frame that is itself under the deadline
        try:
            try:
                with trio.move_on_after(SEND_PATIENCE):
                    await self._stream.send_all(frames)
                    whole = True
            except trio.ClosedResourceError:
                raise StreamBroken(self.peer, "we closed the stream") from None
            finally:
                # After a part of a frame the peer would take the next one for its rest.
                if not whole:
                    await self.reset()
        finally:
            self._writing.release()
        if not whole:
            raise TooSlow(self.peer, f"took no {len(frames)} bytes in {SEND_PATIENCE:.0f} s", rule="send-patience")

    async def end(self) -> None:
        self._unfinished.coming.leave(self)
        await self._stream.aclose()

    async def reset(self) -> None:
        """Resets at once, also while being cancelled."""
        self._unfinished.coming.leave(self)
        with trio.CancelScope(shield=True), trio.move_on_after(1.0):
            await self._stream.reset()
