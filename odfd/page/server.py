"""Runs the page's server on a loopback address: from the start where settings name one, else once it is asked for."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import trio

from chain.errors import Environment
from odfd.control import wire
from odfd.page.application import PageApplication
from odfd.page.sessions import TOKEN_SECONDS, PageSessions
from odfd.runtime.http import Application, Limits
from odfd.runtime.serving import HttpServer, Response, listening, parsed, url_of
from odfd.runtime.supervision import Life, Logger

ANYWHERE: Final = "127.0.0.1:0"
"""Where settings name no address: a free port."""
LIMITS: Final = Limits(idle_seconds=60.0, stall_seconds=20.0, least_bytes=1024, drain_bytes=65_536)


class PageServer:
    """Serves the page over ``api``, which the node gives when it is whole."""

    def __init__(self, address: str, secret: Callable[[], str], logger: Logger) -> None:
        self._address = address
        self._place = parsed(address or ANYWHERE, "http.ui")
        self._sessions = PageSessions(secret)
        self._logger = logger
        self._asked = trio.Event()
        self._listener: socket.socket | None = None
        self.api: Application | None = None
        self.server = HttpServer("page", [], self._respond, logger, LIMITS)
        self._application: PageApplication | None = None

    async def run(self, life: Life) -> None:
        """Until asked to stop. Raises Environment when it cannot listen where settings say."""
        with ExitStack() as stack:
            stack.callback(self._close)
            if self._address:
                self._listen()
            life.ready()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._serve, life)
                await life.stopping.wait()
                if not self._asked.is_set():
                    nursery.cancel_scope.cancel()

    async def open(self) -> wire.PageAddress:
        """A new address for one browser, good once. Raises Environment."""
        if self._listener is None:
            self._listen()
        assert self._listener is not None
        token = self._sessions.invite(trio.current_time())
        return wire.PageAddress(url=f"{url_of(self._listener)}/#token={token}", seconds=int(TOKEN_SECONDS))

    def _listen(self) -> None:
        if self.api is None:
            raise Environment("the node is still starting", rule="http-ui", hint="ask again")
        self._listener = listening(self._place)
        self.server.listeners = [self._listener]
        port = self._listener.getsockname()[1]
        names = {self._place.host if ":" not in self._place.host else f"[{self._place.host}]", "localhost"}
        places = frozenset(f"{name}:{port}" for name in names)
        self._application = PageApplication(self.api, self._sessions, places, trio.current_time)
        self._logger.info("page", url=url_of(self._listener))
        self._asked.set()

    async def _serve(self, life: Life) -> None:
        await self._asked.wait()
        await self.server.run(life)

    def _close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._listener, self._asked = None, trio.Event()

    @contextmanager
    def _respond(self, _stream: trio.SocketStream) -> Iterator[Response]:
        assert self._application is not None
        yield Response(self._application)
