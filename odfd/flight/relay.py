"""Takes connections of Flight's clients, with TLS or without, and passes their bytes to the process that speaks it.

So the process needs no network, and the node counts who is connected. Nothing of the bytes is looked at here.
"""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from odfd.runtime.supervision import Logger

PIECE: Final = 1 << 20
IDLE_SECONDS: Final = 1800.0
"""Without a byte in a direction before a connection is closed: clients ping, or connect again."""
HANDSHAKE_SECONDS: Final = 10.0
_ENDED: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


class Relay:
    """``most`` connections at once, an eighth of them of one address that is not this machine."""

    def __init__(self, inside: Path, most: int, tls: ssl.SSLContext | None, logger: Logger) -> None:
        self._inside, self._most, self._tls, self._logger = inside, most, tls, logger
        self._visitors: Counter[str] = Counter()

    async def serve(self, listeners: Sequence[trio.SocketListener]) -> None:
        """Until cancelled."""
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
                await self._connected(client)
            except OSError as error:
                self._logger.info("a client of Flight was left", address=visitor, error=str(error))
            finally:
                self._visitors[visitor] -= 1
                self._visitors += Counter()  # only those that are there

    async def _connected(self, client: trio.SocketStream) -> None:
        outside: trio.abc.Stream = client
        if self._tls is not None:
            secured = trio.SSLStream(client, self._tls, server_side=True, https_compatible=True)
            try:
                with trio.fail_after(HANDSHAKE_SECONDS):
                    await secured.do_handshake()
            except (trio.BrokenResourceError, trio.TooSlowError):
                return
            outside = secured
        async with await trio.open_unix_socket(str(self._inside)) as inside, trio.open_nursery() as nursery:
            nursery.start_soon(_pass_on, outside, inside, nursery.cancel_scope)
            await _pass_on(inside, outside, nursery.cancel_scope)


async def _pass_on(source: trio.abc.Stream, target: trio.abc.Stream, scope: trio.CancelScope) -> None:
    """To the end, which ends the other direction too."""
    with suppress(*_ENDED):
        while True:
            with trio.move_on_after(IDLE_SECONDS) as patience:
                data = await source.receive_some(PIECE)
            if patience.cancelled_caught or not data:
                break
            await target.send_all(data)
    scope.cancel()
