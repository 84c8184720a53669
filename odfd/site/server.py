"""Runs the site's server on its own TCP sockets, with limits on what one visitor may use."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, cast

import trio

from chain.errors import Environment, Invalid
from config.check import HTTP_ADDRESS
from odfd.published.packs import number_in
from odfd.runtime.http import Application, Limits, Message, Receive, Send
from odfd.runtime.serving import CONNECTIONS, HttpServer, Response
from odfd.runtime.supervision import Life, Logger
from odfd.site.paths import is_question
from p2p.budget.buckets import Rate
from p2p.budget.costs import SECOND, SITE_ANSWER, SITE_PACK, SITE_QUESTION
from p2p.budget.work import WorkBudget, WorkShares

OF_ONE: Final = CONNECTIONS // 8
"""Connections of one address."""
BACKLOG: Final = 128
SHARES: Final = WorkShares(
    host=Rate(per_second=0.25 * SECOND, burst=2.0 * SECOND),
    prefix=Rate(per_second=0.35 * SECOND, burst=3.0 * SECOND),
)
"""Of a core, for visitors: one reads 250 files or twelve packs a second for as long as it likes."""
PAID_WITHIN: Final = 10.0
"""Seconds that a request may wait until its address has paid for it."""
LIMITS: Final = Limits(idle_seconds=20.0, stall_seconds=20.0, least_bytes=4096, drain_bytes=65_536)


class SiteServer:
    """Serves ``application`` at ``addresses`` (``127.0.0.1:8080``, ``[::]:8080``) while ``run`` is."""

    def __init__(self, addresses: Sequence[str], application: Application, logger: Logger) -> None:
        """Raises Invalid for an address that is none."""
        self._places = [_parsed(address) for address in addresses]
        self._application, self._logger = application, logger
        self._visitors: Counter[str] = Counter()
        self._work = WorkBudget(SHARES)
        self.urls: tuple[str, ...] = ()
        """Where it listens, for people."""

    async def run(self, life: Life) -> None:
        """Until asked to stop. Raises Environment when it cannot listen."""
        with ExitStack() as stack:
            listeners = [stack.enter_context(_listening(host, port)) for host, port in self._places]
            self.urls = tuple(_url(listener) for listener in listeners)
            stack.callback(setattr, self, "urls", ())
            await HttpServer("site", listeners, self._respond, self._logger, LIMITS).run(life)

    @contextmanager
    def _respond(self, stream: trio.SocketStream) -> Iterator[Response]:
        visitor = str(stream.socket.getpeername()[0])
        self._visitors[visitor] += 1
        try:
            yield Response(self._paid_by(visitor) if self._visitors[visitor] <= OF_ONE else _too_many)
        finally:
            self._visitors[visitor] -= 1
            if not self._visitors[visitor]:
                del self._visitors[visitor]

    def _paid_by(self, visitor: str) -> Application:
        """The application, each answer of which is paid for before it is made, also where only its headers are wanted.

        Who comes from this machine is its owner, or a proxy in front of many.
        """
        if ipaddress.ip_address(visitor.partition("%")[0]).is_loopback:
            return self._application

        async def answer(scope: Message, receive: Receive, send: Send) -> None:
            _, _, file = scope["path"].strip("/").partition("/")
            cost = SITE_ANSWER if number_in(file) is None else SITE_PACK
            if is_question(scope["path"]):
                cost = SITE_QUESTION
            wait = self._work.admit(visitor, cost, trio.current_time(), PAID_WITHIN)
            if wait is None:
                return await _refused(send, "more than an address may ask for in a while\n")
            await trio.sleep(wait)
            return await self._application(scope, receive, send)

        return answer


async def _too_many(_scope: Message, _receive: Receive, send: Send) -> None:
    await _refused(send, f"more than {OF_ONE} connections of one address\n")


async def _refused(send: Send, text: str) -> None:
    body = text.encode()
    headers = [(b"content-length", str(len(body)).encode()), (b"retry-after", b"5"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _parsed(address: str) -> tuple[str, int]:
    found = HTTP_ADDRESS.fullmatch(address)
    if found is None or int(found[2]) > 65_535:
        raise Invalid(
            f"{address[:80]!r} is no address to serve at", rule="http-listen",
            hint="http.listen holds an IP address and a port, like 127.0.0.1:8080 or [::]:8080",
        )  # fmt: skip
    return found[1].strip("[]"), int(found[2])


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        told = os.strerror(error.errno) if error.errno else str(error)
        raise Environment(
            f"cannot serve HTTP at {host} port {port}: {told}", rule="http-listen",
            hint="another program may have the port: choose another in http.listen, or 0 for any",
        ) from error  # fmt: skip


def _url(listener: socket.socket) -> str:
    host, port = cast("tuple[Any, ...]", listener.getsockname())[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
