"""Relays connections of Flight clients to the process that speaks Flight: limits them, ends TLS, passes bytes on."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import ssl
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from odfd.runtime.supervision import Logger
from p2p.budget.connection_slots import SilentConnections

PIECE: Final = 1 << 20
IDLE_SECONDS: Final = 1800.0
"""Seconds without a byte in a direction after which a connection is closed: clients ping, or connect again."""
HANDSHAKE_SECONDS: Final = 10.0
"""Seconds until a client must have sent its first bytes."""
_ENDED: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


class Relay:
    """Relays connections, ``most`` at once, an eighth of them for each address except this machine.

    At most half of them may be silent, without a first byte; the oldest silent ones make room for newcomers.
    """

    def __init__(self, inside: Path, most: int, tls: ssl.SSLContext | None, logger: Logger) -> None:
        self._inside, self._most, self._tls, self._logger = inside, most, tls, logger
        self._visitors: Counter[str] = Counter()
        self._threads = trio.CapacityLimiter(most)
        self._silent = SilentConnections(max(1, most // 2))

    async def serve(self, listeners: Sequence[trio.SocketListener]) -> None:
        """Serves until cancelled."""
        await trio.serve_listeners(self._take, list(listeners))

    async def _take(self, client: trio.SocketStream) -> None:
        visitor = str(client.socket.getpeername()[0]) if client.socket.getpeername() else ""
        is_near = visitor.startswith("127.") or visitor == "::1"
        limit = self._most if is_near else max(1, self._most // 8)
        async with client:
            if self._visitors.total() >= self._most or self._visitors[visitor] >= limit:
                self._logger.info("a client of Flight is turned away: too many are connected", address=visitor)
                return
            self._visitors[visitor] += 1
            try:
                await self._serve_client(client, visitor)
            except OSError as error:
                self._logger.info("a client of Flight was left", address=visitor, error=str(error))
            finally:
                self._visitors[visitor] -= 1
                self._visitors += Counter()  # drops addresses without connections

    async def _serve_client(self, client: trio.SocketStream, visitor: str) -> None:
        with trio.move_on_after(HANDSHAKE_SECONDS) as greeting, self._silent.silent(visitor, greeting):
            outside, first = await self._greet(client)
        if greeting.cancelled_caught:
            self._logger.info("a client of Flight is left: it said nothing", address=visitor)
        elif first:
            async with await trio.open_unix_socket(str(self._inside)) as inside, trio.open_nursery() as nursery:
                await inside.send_all(first)
                nursery.start_soon(_pass_on, outside, inside, nursery.cancel_scope)
                if isinstance(outside, trio.SocketStream):
                    await self._rows(inside.socket, outside.socket)
                    nursery.cancel_scope.cancel()
                else:
                    await _pass_on(inside, outside, nursery.cancel_scope)

    async def _rows(self, inside: trio.socket.SocketType, outside: trio.socket.SocketType) -> None:
        """Passes bytes from the process to a client in a thread: a turn of the event loop for each piece costs more."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_shut_when_cancelled, inside, outside)
            numbers = inside.fileno(), outside.fileno()
            await trio.to_thread.run_sync(_splice, *numbers, limiter=self._threads)
            nursery.cancel_scope.cancel()

    async def _greet(self, client: trio.SocketStream) -> tuple[trio.abc.Stream, bytes]:
        """Returns the stream to the client, and its first bytes; none if the client is gone."""
        outside: trio.abc.Stream = client
        with suppress(*_ENDED):
            if self._tls is not None:
                secured = trio.SSLStream(client, self._tls, server_side=True, https_compatible=True)
                await secured.do_handshake()
                outside = secured
            return outside, bytes(await outside.receive_some(PIECE))
        return outside, b""


async def _shut_when_cancelled(*sockets: trio.socket.SocketType) -> None:
    try:
        await trio.sleep_forever()
    finally:
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


async def _pass_on(source: trio.abc.Stream, target: trio.abc.Stream, scope: trio.CancelScope) -> None:
    """Passes bytes on until the end, and then cancels the other direction too."""
    with suppress(*_ENDED):
        while True:
            with trio.move_on_after(IDLE_SECONDS) as patience:
                data = await source.receive_some(PIECE)
            if patience.cancelled_caught or not data:
                break
            await target.send_all(data)
    scope.cancel()


def _splice(source: int, target: int) -> None:
    """Passes bytes on until the end, within the kernel, without copies. Shutting the sockets down ends it."""
    out, into = os.pipe2(os.O_CLOEXEC)
    with os.fdopen(out, "rb"), os.fdopen(into, "wb"), suppress(OSError):
        fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, PIECE)
        while count := _move(source, into, PIECE, (source, select.POLLIN)):
            while count:
                count -= _move(out, target, count, (target, select.POLLOUT))


def _move(source: int, target: int, most: int, waits: tuple[int, int]) -> int:
    """Moves bytes. Returns their number; 0 at the end. Polls only if nothing can be moved at once. Raises OSError."""
    while True:
        with suppress(BlockingIOError):
            return os.splice(source, target, most)
        if not _poll(*waits):
            raise TimeoutError


def _poll(descriptor: int, event: int) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, event)
    return bool(waiting.poll(IDLE_SECONDS * 1000))
