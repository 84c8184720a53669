"""Runs the page's server: from the start if the settings have an address, else on the loopback on request.

Beyond this machine it speaks only TLS, by the names of its certificate, and requires a token.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import trio

from config.model import Http
from odfd.control import wire
from odfd.control.operations import NODE_PATH, Owner, operation
from odfd.control.tokens import Tokens
from odfd.page.application import PageApplication, PageEndpoint
from odfd.page.sessions import TOKEN_SECONDS, PageSessions
from odfd.runtime.http import Application, Limits
from odfd.runtime.http_server import ConnectionHandler, HttpServer, listening, parse_address, places_of
from odfd.runtime.supervision import Life, Logger
from odfd.runtime.tls import hosts_of, tls_context

CERTIFICATE: Final = "http.ui-certificate"
ANYWHERE: Final = "127.0.0.1:0"
"""The address if settings name none: a free port."""
LIMITS: Final = Limits(idle_seconds=60.0, stall_seconds=20.0, least_bytes=1024, drain_bytes=65_536)


class PageServer:
    """Serves the page over the node's API."""

    def __init__(
        self, settings: Http, secret: Callable[[], str], logger: Logger, api: Callable[[], Application]
    ) -> None:
        """``settings``: the HTTP settings, of which those of ``ui`` are used. ``secret``: makes a new secret."""
        self._address, self._settings = settings.ui, settings
        self._place = parse_address(settings.ui or ANYWHERE, "http.ui")
        self._sessions = PageSessions(secret)
        self._logger = logger
        self._asked = trio.Event()
        self._listener: socket.socket | None = None
        self._url = ""
        self._api = api
        self.server = HttpServer("page", [], self._respond, logger, LIMITS)
        self._application: PageApplication | None = None

    async def run(self, life: Life) -> None:
        """Runs until stopped. Raises Environment when it cannot listen at the configured address."""
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

    @operation("POST", NODE_PATH + "/page", needs=Owner.FILES)
    async def open(self) -> wire.PageAddress:
        """Returns a new address for one browser, usable once. Raises Environment."""
        if self._listener is None:
            self._listen()
        assert self._listener is not None
        token = self._sessions.invite(trio.current_time())
        return wire.PageAddress(url=f"{self._url}/#token={token}", seconds=int(TOKEN_SECONDS))

    def _listen(self) -> None:
        settings = self._settings
        hosts: Sequence[str] = (
            self._place.host if ":" not in self._place.host else f"[{self._place.host}]",
            "localhost",
        )
        if settings.ui_certificate:
            self.server.tls = tls_context(settings.ui_certificate, settings.ui_key, CERTIFICATE, ("http/1.1",))
            hosts = hosts_of(settings.ui_certificate, CERTIFICATE)
        self._listener = listening(self._place)
        self.server.listeners = [self._listener]
        endpoint, self._url = self._page_endpoint(hosts, self._listener.getsockname()[1])
        self._application = PageApplication(self._api(), self._sessions, endpoint, trio.current_time)
        self._logger.info("page", url=self._url)
        self._asked.set()

    def _page_endpoint(self, hosts: Sequence[str], port: int) -> tuple[PageEndpoint, str]:
        """Makes the endpoint, and its address for people."""
        settings = self._settings
        tokens = Tokens(Path(settings.ui_tokens), "http.ui-tokens", required=True) if settings.ui_tokens else None
        if not settings.ui_certificate:
            return PageEndpoint(
                frozenset(f"{host}:{port}" for host in hosts), "http", tokens
            ), f"http://{hosts[0]}:{port}"
        places = places_of(hosts, port, is_secure=True)
        return PageEndpoint(frozenset(places), "https", tokens), f"https://{hosts[0]}:{port}"

    async def _serve(self, life: Life) -> None:
        await self._asked.wait()
        await self.server.run(life)

    def _close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._listener, self._asked = None, trio.Event()

    @contextmanager
    def _respond(self, _stream: trio.SocketStream) -> Iterator[ConnectionHandler]:
        assert self._application is not None
        yield ConnectionHandler(self._application)
