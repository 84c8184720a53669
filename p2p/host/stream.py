"""Presents a stream to a peer as a trio stream, which the protocols of this project read and write.

Follows ``trio.abc.HalfCloseableStream`` to the letter. The end of the peer's bytes is ``b""``; anything else that ends
a stream early is ``BrokenStream``, which names the peer and the reason. A send that was cancelled may have sent some of
its bytes; such a stream ends in a reset, never in a clean end that the peer could take for complete data.
"""

from __future__ import annotations

import operator
from typing import Any

import trio
from libp2p.stream_muxer.exceptions import MuxedStreamClosed, MuxedStreamEOF, MuxedStreamError

from p2p.errors import StreamBroken
from p2p.ports import PeerId

READ = 65_536
"""Bytes of a receive that states no maximum."""


class BrokenStream(StreamBroken, trio.BrokenResourceError):
    """A broken stream, as an error both of ``p2p.errors`` and of trio,
    so that code for any trio stream works on this one."""


class SingleTask:
    """Admits one task at a time; a second one raises as trio's streams do."""

    def __init__(self, complaint: str) -> None:
        self._complaint = complaint
        self._taken = False

    def __enter__(self) -> None:
        if self._taken:
            raise trio.BusyResourceError(self._complaint)
        self._taken = True

    def __exit__(self, *_: object) -> None:
        self._taken = False


class Stream(trio.abc.HalfCloseableStream):
    """A stream to one peer. ``net`` is closed at the end: a NetStream of py-libp2p, or the muxed stream itself."""

    def __init__(self, muxed: Any, net: Any, peer: PeerId, protocol: str) -> None:
        self.peer = peer
        self.protocol = protocol
        self._muxed = muxed
        self._net = net
        self._closed = False
        self._sending = SingleTask("another task is sending on this stream")
        self._receiving = SingleTask("another task is receiving from this stream")

    def __repr__(self) -> str:
        return f"<Stream {self.protocol} with {self.peer}>"

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Sends data. Raises BrokenStream if the peer reset the stream, is gone,
        or takes nothing for ``stall_timeout``."""
        with self._sending:
            self._check_open()
            try:
                await self._muxed.write(data)
            except MuxedStreamClosed as error:
                raise trio.ClosedResourceError(str(error)) from None
            except MuxedStreamError as error:
                raise self._make_fault(error) from None

    async def wait_send_all_might_not_block(self) -> None:
        with self._sending:
            self._check_open()
            await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Receives 1 to ``max_bytes`` bytes, ``b""`` at the end. Raises BrokenStream."""
        if max_bytes is not None and operator.index(max_bytes) < 1:
            raise ValueError("max_bytes must be at least 1")
        with self._receiving:
            self._check_open()
            try:
                data: bytes = await self._muxed.read(READ if max_bytes is None else max_bytes)
            except MuxedStreamEOF:
                return b""
            except MuxedStreamError as error:
                self._check_open()
                raise self._make_fault(error) from None
            return data

    async def send_eof(self) -> None:
        """Closes the sending side; receiving continues."""
        with self._sending:
            self._check_open()
            await trio.lowlevel.checkpoint()
            await self._muxed.close_write()

    async def aclose(self) -> None:
        """Closes the stream: data written before is still sent, data that arrives is dropped."""
        if not self._closed:
            self._closed = True
            await self._net.close()
        await trio.lowlevel.checkpoint()

    async def reset(self) -> None:
        """Ends both directions at once: the peer sees that something went wrong."""
        if not self._closed:
            self._closed = True
            await self._net.reset()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this stream was closed")

    def _make_fault(self, error: MuxedStreamError) -> BrokenStream:
        return BrokenStream(self.peer, f"{self.protocol}: {error}", rule="stream")
