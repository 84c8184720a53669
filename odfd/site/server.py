"""Runs the site's server on its own TCP sockets, with limits for each visitor."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final, TypeAlias

import trio

from chain.errors import Refused
from odfd.published.packs import number_in
from odfd.runtime.http import Application, Limits, Message, Receive, Send
from odfd.runtime.http_server import CONNECTIONS, ConnectionHandler, HttpServer, listening, parse_address, url_of
from odfd.runtime.supervision import Life, Logger
from odfd.site.requests import is_question, is_transfer
from p2p.address import prefix_of
from p2p.budget.buckets import Rate
from p2p.budget.work import SECOND, SITE_ANSWER, SITE_PACK, SITE_QUESTION, WorkBudget, WorkShares

OF_ONE: Final = CONNECTIONS // 8
"""Most connections from one address."""
SHARES: Final = WorkShares(
    host=Rate(per_second=0.25 * SECOND, burst=2.0 * SECOND), prefix=Rate(per_second=0.35 * SECOND, burst=3.0 * SECOND)
)
"""Shares of a core for visitors: one of them may read 250 files or twelve packs a second without end."""
PAID_WITHIN: Final = 10.0
"""Seconds that a request may wait for its address to have paid for it."""
VISITOR: Final = "odfd.visitor"
"""Key of a request's scope: the address that it comes from."""
PAY: Final = "odfd.pay"
"""Key of a long request's scope: a ``Pay``; absent if the visitor pays for nothing."""
Pay: TypeAlias = Callable[[float], Awaitable[None]]
"""Waits until the visitor has paid for work, in microseconds of a core. Raises Refused if that takes too long."""
LIMITS: Final = Limits(idle_seconds=20.0, stall_seconds=20.0, least_bytes=4096, drain_bytes=65_536)


def caller_of(scope: Message) -> str:
    """Returns the block of addresses that a request comes from; empty for this machine's: its owner, or a proxy in
    front of many."""
    visitor = str(scope.get(VISITOR, ""))
    return "" if _is_here(visitor) else prefix_of(visitor)


def _is_here(visitor: str) -> bool:
    return not visitor or ipaddress.ip_address(visitor.partition("%")[0]).is_loopback


class SiteServer:
    """Serves ``application`` at ``addresses`` (``127.0.0.1:8080``, ``[::]:8080``) while ``run`` runs."""

    def __init__(self, addresses: Sequence[str], application: Application, logger: Logger) -> None:
        """Raises Invalid for a malformed address."""
        self._places = [parse_address(address, "http.listen") for address in addresses]
        self._application = application
        self._visitors: Counter[str] = Counter()
        self._work = WorkBudget(SHARES)
        self.server = HttpServer("site", [], self._respond, logger, LIMITS)
        self.urls: tuple[str, ...] = ()
        """The URLs at which it listens, to show to people."""

    async def run(self, life: Life) -> None:
        """Runs until stopped. Raises Environment if it cannot listen."""
        with ExitStack() as stack:
            listeners = [stack.enter_context(listening(place)) for place in self._places]
            self.urls = tuple(url_of(listener) for listener in listeners)
            stack.callback(setattr, self, "urls", ())
            self.server.listeners = listeners
            await self.server.run(life)

    @contextmanager
    def _respond(self, stream: trio.SocketStream) -> Iterator[ConnectionHandler]:
        visitor = str(stream.socket.getpeername()[0])
        self._visitors[visitor] += 1
        try:
            answer = self._paid_by(visitor) if self._visitors[visitor] <= OF_ONE else _too_many
            yield ConnectionHandler(answer, {VISITOR: visitor})
        finally:
            self._visitors[visitor] -= 1
            if not self._visitors[visitor]:
                del self._visitors[visitor]

    def _paid_by(self, visitor: str) -> Application:
        """Returns the application for a visitor, who pays for each answer before it is made, also for headers only.

        Visitors from this machine pay nothing: they are its owner, or a proxy in front of many.
        """
        if _is_here(visitor):
            return self._application

        async def answer(scope: Message, receive: Receive, send: Send) -> None:
            _, _, file = scope["path"].strip("/").partition("/")
            cost = SITE_ANSWER if number_in(file) is None else SITE_PACK
            if is_question(scope["path"]):
                cost = SITE_QUESTION
            elif is_transfer(scope["path"]):
                cost, scope[PAY] = SITE_PACK, partial(self._pay, visitor)
            wait = self._work.admit(visitor, cost, trio.current_time(), PAID_WITHIN)
            if wait is None:
                return await _refuse(send, "more than an address may ask for in a while\n")
            await trio.sleep(wait)
            return await self._application(scope, receive, send)

        return answer

    async def _pay(self, visitor: str, cost: float) -> None:
        wait = self._work.admit(visitor, cost, trio.current_time(), PAID_WITHIN)
        if wait is None:
            text = "your address asks for more work than one may"
            raise Refused(text, rule="site-work", hint="try again in a while")
        await trio.sleep(wait)


async def _too_many(_scope: Message, _receive: Receive, send: Send) -> None:
    await _refuse(send, f"more than {OF_ONE} connections of one address\n")


async def _refuse(send: Send, text: str) -> None:
    body = text.encode()
    headers = [(b"content-length", str(len(body)).encode()), (b"retry-after", b"5"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})
