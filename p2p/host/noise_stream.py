"""Sends and receives encrypted messages on a socket, decrypting into one buffer that all connections share.

Made by ``YamuxConn`` after the noise handshake, dies with it. Straight at the socket, because trio's stream pays for
its checks at each call, and has the kernel take 16 KiB at a time: a MiB cost ten turns of the event loop.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import trio

from p2p.host.noise import Cipher, Unsealer
from p2p.pace import Traffic

UNSENT: Final = 256 * 1024
"""Bytes that the kernel takes beyond those that it sends: one batch, so that the next is sealed meanwhile.

256 connections whose peers read nothing hold 64 MiB of its memory by this.
"""
_NOTHING: Final = memoryview(b"")


class NoiseStream(trio.abc.AsyncResource):
    """One task may send at a time, and one receive. All raise OSError, or of trio's, when the socket breaks."""

    def __init__(self, stream: trio.SocketStream, out: Cipher, into: Unsealer, traffic: Traffic) -> None:
        self._stream = stream
        self._traffic = traffic
        self._out, self._into = out, into
        self._unsent = _NOTHING
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            with suppress(OSError):
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)

    @property
    def has_unsent(self) -> bool:
        """Sealed bytes that the socket has not taken yet."""
        return bool(self._unsent)

    def send_now(self, messages: Sequence[bytes | memoryview]) -> None:
        """As far as the socket takes them; the rest waits for ``wait_for_room``. Never waits."""
        wire = self._out.seal(messages)
        self._unsent = memoryview(self._unsent.tobytes() + wire if self._unsent else wire)
        self._push()

    async def wait_for_room(self) -> None:
        """Until the socket has taken what waits and takes more. When cancelled, the rest waits on."""
        while True:
            await trio.lowlevel.wait_writable(self._socket)
            if not self._unsent:
                return
            self._push()

    def _push(self) -> None:
        with suppress(BlockingIOError):
            while self._unsent:
                written = os.write(self._socket, self._unsent)
                self._traffic.sent += written
                self._unsent = self._unsent[written:]

    async def receive(self) -> memoryview:
        """What came, opened; nothing at the end. Good until the caller waits for anything. Raises Violation."""
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            with suppress(BlockingIOError):
                came = os.readv(self._socket, [self._into.room()])
                self._traffic.received += came
                opened = self._into.take(came)
                if opened or not came:
                    return opened

    @property
    def _socket(self) -> int:
        """Raises ClosedResourceError: trio takes the number of a closed socket for a mistake of ours."""
        number: int = self._stream.socket.fileno()
        if number < 0:
            raise trio.ClosedResourceError("the socket was closed here")
        return number

    async def aclose(self) -> None:
        await self._stream.aclose()
