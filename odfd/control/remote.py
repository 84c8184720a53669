"""Serves the control API over TCP to callers with a token of an account; off unless the settings name an address.

Beyond this machine it speaks only TLS, for the names in its certificate. A caller without a token is answered when the
head of its request was read, and disconnected. An address that sends many wrong tokens is refused for a while, but
never one that sends a right one. The rights of the account are checked where those of the socket's callers are. Calls
of webhooks at ``/hooks/NAME`` need no token: their bodies are signed for the Source NAME.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from ipaddress import IPv6Address, ip_address
from typing import Final, TypeAlias

import msgspec
import trio

from chain.errors import Fault, Invalid, Refused
from chain.wording import size
from config.model import Api
from odfd.access.tokens import TokenGrant
from odfd.control import wire
from odfd.control.endpoint import CALLER, GRANT, OWNED
from odfd.errors import PROBLEM_JSON, http_status, to_problem
from odfd.runtime.http import Application, Limits, Message, Receive, Send
from odfd.runtime.http_server import (
    ConnectionHandler,
    HttpServer,
    address_of,
    listening,
    parse_address,
    places_of,
    url_of,
)
from odfd.runtime.supervision import Life, Logger
from odfd.runtime.tls import hosts_of, tls_context
from p2p.budget.buckets import Budget, Rate

CERTIFICATE: Final = "api.certificate"
LIMITS: Final = Limits(idle_seconds=60.0, stall_seconds=20.0, least_bytes=1024, drain_bytes=65_536, drain_seconds=2.0)
WRONG: Final = Rate(per_second=0.2, burst=20)
"""Rate of requests without a valid token from one address."""
AT_ONCE: Final = 64
"""Most requests of one account at a time, so that connections are left for others."""
_UNKNOWN: Final = Refused(
    "a token is needed here", rule="access-token", hint="--token-file FILE; at the node odfctl token create makes one"
)


class RemoteApplication:
    """Checks the token, then calls ``api``. ``admit`` returns a token's record, or raises Refused for an invalid one.

    ``hook`` takes calls that are signed for a Source instead; ``None``: there are none.
    """

    def __init__(
        self, api: Application, admit: Callable[[str], TokenGrant], places: frozenset[str], logger: Logger,
        now: Callable[[], float], hook: SignedPush | None = None,
    ) -> None:  # fmt: skip
        self._hooks = None if hook is None else HookApplication(hook)
        self._api, self._admit, self._places, self._logger, self._now = api, admit, places, logger, now
        self._wrong = Budget[str](WRONG)
        self._busy = Counter[str]()

    def of(self, address: str) -> Application:
        """Returns the application for a connection from an address."""

        async def answer(scope: Message, receive: Receive, send: Send) -> None:
            try:
                if self._hooks is not None and is_hook(scope):
                    await self._handle_hook(self._hooks, scope, receive, send, address)
                    return
                grant = await self._grant(scope, address)
                with self._limit(grant.account):
                    # Over TCP the token alone says who asks.
                    known = {key: value for key, value in scope.items() if key not in (CALLER, OWNED)}
                    await self._api({**known, GRANT: grant}, receive, send)
            except Fault as fault:
                await _refuse(send, fault)

        return answer

    async def _handle_hook(
        self, hooks: HookApplication, scope: Message, receive: Receive, send: Send, address: str
    ) -> None:
        """Handles a signed call; one that is signed for no Source counts against its address like a wrong token."""
        try:
            self._check_place(dict(scope["headers"]))
            await hooks.answer(scope, receive, send)
        except Refused as fault:
            if fault.rule in (HOOK_RULE, "api-host", "api-origin"):
                self._refuse_wrong(fault, address)
            raise

    def _check_place(self, headers: Mapping[bytes, bytes]) -> None:
        # A page of the web may reach this address by a name of its own that resolves to it
        # (test_only_who_asks_by_a_name_of_the_node_and_from_no_page_is_let_in).
        if headers.get(b"host", b"").decode("latin-1").lower() not in self._places:
            raise Refused("the node is not asked by a name of its own", rule="api-host", hint="its certificate says")
        if b"origin" in headers:
            raise Refused(
                "pages of the web are not answered here", rule="api-origin", hint="use odfctl ui in a browser"
            )

    def _refuse_wrong(self, fault: Refused, address: str) -> None:
        """Counts a refusal of an address. Raises Refused after too many."""
        if not self._wrong.spend(_network(address), self._now()):
            text = "too many requests from your address had no right token"
            raise Refused(text, rule="access-token-limit", hint=f"wait {_WAIT} s") from None
        self._logger.info("api refused", address=address, rule=fault.rule)

    async def _grant(self, scope: Message, address: str) -> TokenGrant:
        headers: Mapping[bytes, bytes] = dict(scope["headers"])
        try:
            self._check_place(headers)
            scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
            if scheme.lower() != "bearer" or not token:
                raise _UNKNOWN
            return await trio.to_thread.run_sync(self._admit, token.strip())
        except Refused as fault:
            self._refuse_wrong(fault, address)
            raise

    @contextmanager
    def _limit(self, account: str) -> Iterator[None]:
        if self._busy[account] >= AT_ONCE:
            text = f"{AT_ONCE} requests of your account are being answered, and no more at a time"
            raise Refused(text, rule="access-token-limit", hint="end a watch, or ask again")
        self._busy[account] += 1
        try:
            yield
        finally:
            self._busy[account] -= 1
            if not self._busy[account]:
                del self._busy[account]


_WAIT: Final = math.ceil(1 / WRONG.per_second)


class RemoteServer:
    """The TCP server; ``urls`` are its addresses while it runs."""

    def __init__(self, settings: Api, admit: Callable[[str], TokenGrant], logger: Logger) -> None:
        self._settings, self._admit, self._logger = settings, admit, logger
        self._places = [parse_address(each, "api.listen") for each in settings.listen]
        self.urls: tuple[str, ...] = ()
        self.server = HttpServer("api", [], self._respond, logger, LIMITS)
        self._application: RemoteApplication | None = None

    async def run(self, api: Application, hook: SignedPush, life: Life) -> None:
        """Runs until stopped. Raises Environment where it cannot listen, or its certificate cannot be used.

        ``hook``: takes calls that are signed for a Source.
        """
        settings = self._settings
        names: tuple[str, ...] = ()
        if settings.certificate:
            self.server.tls = tls_context(settings.certificate, settings.key, CERTIFICATE, ("http/1.1",))
            names = hosts_of(settings.certificate, CERTIFICATE)
        with ExitStack() as stack:
            self.server.listeners = listeners = [stack.enter_context(listening(place)) for place in self._places]
            ports = [listener.getsockname()[1] for listener in listeners]
            places = set()
            for place, port in zip(self._places, ports, strict=True):
                hosts = names or (f"[{place.host}]" if ":" in place.host else place.host, "localhost")
                places |= places_of(hosts, port, is_secure=bool(names))
            self._application = RemoteApplication(
                api, self._admit, frozenset(places), self._logger, trio.current_time, hook
            )
            self.urls = tuple(
                f"https://{names[0]}:{port}" if names else url_of(each)
                for each, port in zip(listeners, ports, strict=True)
            )
            self._logger.info("api", urls=self.urls)
            try:
                await self.server.run(life)
            finally:
                self.urls = ()

    @contextmanager
    def _respond(self, stream: trio.SocketStream) -> Iterator[ConnectionHandler]:
        assert self._application is not None
        yield ConnectionHandler(self._application.of(address_of(stream)))


def _network(address: str) -> str:
    """Returns the part of an address that one party has: all of IPv4, or of IPv6 the network of a link (/64)."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    return str(found.ipv4_mapped) if found.ipv4_mapped is not None else str(int(found) >> 64)


async def _refuse(send: Send, fault: Fault) -> None:
    """Answers with a fault and closes, without reading the rest of the request."""
    body, status = json.dumps(to_problem(fault)).encode(), http_status(fault)
    headers = [
        (b"content-type", PROBLEM_JSON.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 429:
        headers.append((b"retry-after", str(_WAIT).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


HOOKS: Final = "/hooks/"
HOOK_RULE: Final = "webhook-signature"
MAX_HOOK_BODY: Final = 1 << 20
HOOKS_AT_ONCE: Final = 16

SignedPush: TypeAlias = Callable[[str, Mapping[str, str], bytes], Awaitable[wire.PushReceipt]]
"""Accepts a signed push, like ``odfd.services.ingest.push_endpoints.EndpointService.signed_push``."""


def is_hook(scope: Message) -> bool:
    """Whether a request is a call of a webhook without a token."""
    named = any(name == b"authorization" for name, _ in scope["headers"])
    return scope["method"] == "POST" and scope["path"].startswith(HOOKS) and not named


class HookApplication:
    """Reads calls of webhooks, and passes them to ``push``, which knows the Sources and their secrets.

    The whole body must be read to check who signed it, so few are read at a time, and none is large.
    """

    def __init__(self, push: SignedPush) -> None:
        self._push = push
        self._busy = 0

    async def answer(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers 201, or 202 for a push that a crash may still lose. Raises Fault."""
        if self._busy >= HOOKS_AT_ONCE:
            raise Refused(f"{HOOKS_AT_ONCE} calls are being read", rule="access-token-limit", hint="call again")
        self._busy += 1
        try:
            body = await _hook_body(receive)
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
            receipt = await self._push(scope["path"].removeprefix(HOOKS), headers, body)
        finally:
            self._busy -= 1
        said = msgspec.json.encode(receipt)
        kind = [(b"content-type", b"application/json"), (b"content-length", str(len(said)).encode())]
        status = 201 if receipt.durable else 202
        await send({"type": "http.response.start", "status": status, "headers": kind})
        await send({"type": "http.response.body", "body": said})


async def _hook_body(receive: Receive) -> bytes:
    """Reads the body. Raises Invalid for one that is too large, before more of it is read."""
    parts, total = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Invalid("the call ended before its body", rule="push-size", hint="call again")
        part = message.get("body", b"")
        total += len(part)
        if total > MAX_HOOK_BODY:
            hint = "push what is larger with a token: POST /source/v1alpha1/sources/NAME/ingest"
            raise Invalid(f"a call of more than {size(MAX_HOOK_BODY)}", rule="push-size", hint=hint)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)
