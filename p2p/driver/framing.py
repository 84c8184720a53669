"""Reads and writes frames over a stream: reads with a size limit, writes whole frames under a deadline."""

from __future__ import annotations

from collections import deque
from typing import Final

import trio

from chain.errors import Invalid
from p2p.driver.ports import StreamPort
from p2p.errors import StreamBroken, TooSlow, Violation
from p2p.ports import PeerId
from p2p.wire.frames import FrameReader, frame

CHUNK: Final = 256 << 10
"""Bytes read at a time: a quarter of the largest usual frame."""
SEND_PATIENCE: Final = 30.0
"""Seconds in which a peer must take one frame of 1 MiB; after that the stream is reset."""


class FramedStream:
    """Bodies out and in. One task reads; any may write."""

    def __init__(self, stream: StreamPort, peer: PeerId, limit: int) -> None:
        self._stream = stream
        self._reader = FrameReader(limit)
        self._bodies: deque[bytes] = deque()
        self._writing = trio.Lock()
        self.peer = peer

    async def read(self) -> bytes | None:
        """The next body, ``None`` at a clean end. Raises Violation on bad framing, StreamBroken when it breaks."""
        while not self._bodies:
            try:
                data = await self._stream.receive_some(CHUNK)
            except trio.ClosedResourceError:
                raise StreamBroken(self.peer, "we let go of the stream") from None
            try:
                if not data:
                    self._reader.end()
                    return None
                self._bodies.extend(self._reader.feed(data))
            except Invalid as error:
                raise Violation(self.peer, error.message, rule=error.rule, hint=error.hint) from error
        return self._bodies.popleft()

    async def write(self, body: bytes) -> None:
        """Raises TooSlow, and resets the stream, when the peer does not take it in time; else PeerFault."""
        await self.send(frame(body))

    async def send(self, frames: bytes | memoryview) -> None:
        """As ``write``, for what is framed already."""
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
                raise StreamBroken(self.peer, "we let go of the stream") from None
            finally:
                if not whole:
                    await self.reset()
        finally:
            self._writing.release()
        if not whole:
            raise TooSlow(self.peer, f"took no {len(frames)} bytes in {SEND_PATIENCE:.0f} s", rule="send-patience")

    async def end(self) -> None:
        """Close in order."""
        await self._stream.aclose()

    async def reset(self) -> None:
        """Let go at once, also while being cancelled."""
        with trio.CancelScope(shield=True), trio.move_on_after(1.0):
            await self._stream.reset()
