"""Serves HTTP on listening sockets: accepts connections, bounds their number, and drains them when it stops.

Also opens TCP sockets at the addresses that settings name. ``respond`` identifies the client and chooses the
application. When there are many connections, a silent one is closed for a newcomer. Made for one set of sockets, which
it does not close; alive while ``run`` is.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, cast

import trio

from chain.errors import Environment, Invalid
from config.check import HTTP_ADDRESS
from odfd.runtime.http import Application, Connection, HttpStream, Limits, Message, Receive, Send
from odfd.runtime.supervision import Life, Logger
from p2p.budget.connection_slots import SilentConnections

CONNECTIONS: Final = 256
"""Most connections served at once; more wait in the kernel's backlog."""
SILENT: Final = CONNECTIONS // 2
"""Most connections without a request in progress, so that silent ones keep nobody out."""
HANDSHAKE_SECONDS: Final = 10.0
"""Most seconds of a TLS handshake."""
DRAIN_SECONDS: Final = 2.0
"""Seconds for answers in progress when the daemon stops; streams of events are cut."""
FULL_PAUSE_SECONDS: Final = 0.1
"""Pause in seconds after the system ran out of file descriptors or memory for one more connection."""
_FULL: Final = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}
# Of a connection that failed before it was taken: Linux passes its error on (accept(2)).
_ABORTED: Final = {errno.ECONNABORTED, errno.EPERM, errno.EPROTO}


class ConnectionHandler(NamedTuple):
    """The application that handles a connection, and additional keys of its ASGI scope."""

    application: Application
    told: Mapping[str, Any] = {}


Respond: TypeAlias = Callable[[trio.SocketStream], AbstractContextManager[ConnectionHandler]]
"""Chooses the response for a connection; the context is left when the connection is over."""


class HttpServer:
    """An HTTP server on one set of listening sockets. ``name`` is for the log."""

    def __init__(
        self, name: str, listeners: Iterable[socket.socket], respond: Respond, logger: Logger, limits: Limits
    ) -> None:
        self._name, self._respond, self._logger = name, respond, logger
        self.listeners: Sequence[socket.socket] = list(listeners)
        """Sockets on which ``run`` accepts connections."""
        self._limits = limits
        self.tls: ssl.SSLContext | None = None
        """TLS context; ``None``: connections are not encrypted."""
        self._slots = trio.Semaphore(CONNECTIONS)
        self._silent = SilentConnections(SILENT)
        self.turned_away = 0
        """Silent connections that were closed for a newcomer."""
        self._busy = 0
        self.answers = Counter[str]()
        """Number of answers by class of status, such as ``2xx``."""
        self._idle = trio.Event()

    @property
    def name(self) -> str:
        return self._name

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return CONNECTIONS - int(self._slots.value)

    async def run(self, life: Life) -> None:
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                for listener in self.listeners:
                    accepting.start_soon(self._accept, listener, connections)
                life.ready()
                await life.stopping.wait()
                accepting.cancel_scope.cancel()
            with trio.move_on_after(DRAIN_SECONDS):
                while self._busy:
                    self._idle = trio.Event()
                    await self._idle.wait()
            connections.cancel_scope.cancel()

    async def _accept(self, listener: socket.socket, connections: trio.Nursery) -> None:
        listener.setblocking(False)
        # trio closes what it is given, and the sockets are the caller's.
        with trio.socket.from_stdlib_socket(listener.dup()) as acceptor:
            while True:
                await self._slots.acquire()
                try:
                    connection, _ = await acceptor.accept()
                except OSError as error:
                    self._slots.release()
                    if error.errno in _FULL:
                        self._logger.error("no file descriptor for a connection", server=self._name, error=str(error))
                        await trio.sleep(FULL_PAUSE_SECONDS)
                    elif error.errno not in _ABORTED:
                        raise
                else:
                    connections.start_soon(self._serve, trio.SocketStream(connection))

    async def _serve(self, stream: trio.SocketStream) -> None:
        leaving = trio.CancelScope()
        try:
            async with stream:
                address = address_of(stream)
                # Silent from before the handshake on: whoever begins TLS and stops makes room too
                # (test_who_does_not_speak_tls_keeps_nobody_out).
                with leaving, self._silent.silent(address, leaving), self._respond(stream) as response:
                    answer = self._count(response.application, address, leaving)
                    secured = await self._secure(stream)
                    if secured is not None:
                        await Connection(secured, answer, self._limits, response.told).serve()
                self.turned_away += leaving.cancelled_caught
        except Exception as error:
            self._logger.error("connection failed", server=self._name, exc_info=error)
        finally:
            self._slots.release()

    async def _secure(self, stream: trio.SocketStream) -> HttpStream | None:
        """Does the TLS handshake, if there is TLS; returns ``None`` if the peer failed, or took too long."""
        if self.tls is None:
            return stream
        # Clients of HTTPS close without saying so in TLS (close_notify), which is no fault of theirs.
        secured = trio.SSLStream(stream, self.tls, server_side=True, https_compatible=True)
        with trio.move_on_after(HANDSHAKE_SECONDS), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await secured.do_handshake()
            return secured
        return None

    async def _note(self, send: Send, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.answers[f"{message['status'] // 100}xx"] += 1
        await send(message)

    def _count(self, application: Application, address: str, leaving: trio.CancelScope) -> Application:
        async def answer(scope: Message, receive: Receive, send: Send) -> None:
            self._silent.remove(leaving)
            self._busy += 1
            try:
                await application(scope, receive, partial(self._note, send))
            finally:
                self._silent.add(address, leaving)
                self._busy -= 1
                if not self._busy:
                    self._idle.set()

        return answer


def address_of(stream: trio.SocketStream) -> str:
    """Returns the address of a client; empty on a unix socket, and of a client that is gone again."""
    try:
        remote = stream.socket.getpeername()
    except OSError:
        return ""
    return str(remote[0]) if isinstance(remote, tuple) else ""


BACKLOG: Final = 128


class ListenAddress(NamedTuple):
    host: str
    port: int
    setting: str
    """Name of the setting that holds the address, for people."""


def parse_address(address: str, setting: str) -> ListenAddress:
    """Parses an IP address and port. Raises Invalid."""
    found = HTTP_ADDRESS.fullmatch(address)
    if found is None or int(found[2]) > 65_535:
        raise Invalid(
            f"{address[:80]!r} is no address to serve at",
            rule=_rule(setting),
            hint=f"{setting} holds an IP address and a port, like 127.0.0.1:8080 or [::1]:8080",
        )
    return ListenAddress(found[1].strip("[]"), int(found[2]), setting)


def listening(place: ListenAddress) -> socket.socket:
    """Opens a listening socket, which the caller closes. Raises Environment."""
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    try:
        return socket.create_server((place.host, place.port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise Environment(
            f"cannot serve HTTP at {place.host} port {place.port}: {reason}",
            rule=_rule(place.setting),
            hint=f"another program may have the port: choose another in {place.setting}, or 0 for any",
        ) from error


def url_of(listener: socket.socket) -> str:
    host, port = cast("tuple[Any, ...]", listener.getsockname())[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def places_of(hosts: Iterable[str], port: int, *, is_secure: bool) -> set[str]:
    """Returns the valid values of the header Host; clients omit the default port of the scheme."""
    named = set(hosts)
    return {f"{host}:{port}" for host in named} | (named if port == (443 if is_secure else 80) else set())


def _rule(setting: str) -> str:
    return setting.replace(".", "-")
