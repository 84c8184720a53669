"""Makes the node's HTTP clients: httpx, with connections that only go where allowed, and that close when cancelled.

A name is resolved here, its addresses are judged, and one of those judged is dialled (``p2p.dial``); TLS still checks
the name. Each client has one rule for addresses, so a connection opened to a place that the owner named is never used
for one that a stranger named.

httpcore 1.0 closes a connection whose TLS handshake fails by an error, but not one whose task is cancelled during the
handshake: the socket then stays open until the garbage collector finds it. So a server that accepts and never answers
could hold sockets of the node. The backend below closes the connection in both cases.

``body_of`` reads the body of an HTTP answer within its bandwidth and time limits: to connect, in silence, too slow, and
in total. If a part of the body is left unread, the connection is closed.
"""

from __future__ import annotations

import math
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sized
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache, partial
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

import httpcore
import httpx
import trio

from chain.errors import Remote
from p2p.dial import first_of, resolve
from p2p.ip import Allows, Ip, anywhere, is_global, parse_ip
from p2p.pace import Pace

Part = TypeVar("Part", bound=Sized)


class Patience(NamedTuple):
    """Time limits for one server and one answer, in seconds."""

    connect: float = 10.0
    """Seconds to resolve the name, to connect, and for the TLS handshake, each."""
    silence: float = 30.0
    """Without a byte of the body, and until the headers are complete."""
    span: float = 60.0
    """Time spent waiting for the body in which at least ``least`` bytes have to come."""
    least: int = 64 << 10
    total: float = math.inf
    """From the request to the last byte; a file read in parts goes on where it ended."""

    @property
    def head(self) -> float:
        """The limit for the headers of one answer, name resolution and connection included."""
        return 2 * self.connect + self.silence

    @property
    def times(self) -> httpx.Timeout:
        return httpx.Timeout(self.silence, connect=self.connect, pool=None)


async def lively(
    what: str, parts: AsyncIterator[bytes], patience: Patience, deadline: float = math.inf, hint: str = ""
) -> AsyncGenerator[bytes, None]:
    """Yields the parts while they come fast enough. Raises Remote (web-slow) if they do not.

    Only time spent waiting for parts counts, not the time in which the caller uses them; except for ``deadline``, a
    time of trio's clock. ``parts`` is not closed.
    """
    waited, came = 0.0, 0
    while True:
        began = trio.current_time()
        with trio.move_on_at(deadline) as wait:
            part = await anext(parts, b"")
        if wait.cancelled_caught:
            raise Remote(f"{what} does not end", rule="web-slow", hint=hint)
        if not part:
            return
        waited, came = waited + trio.current_time() - began, came + len(part)
        if waited >= patience.span:
            if came < patience.least:
                raise Remote(f"{what}: {came:,} bytes in {waited:.0f} s", rule="web-slow", hint=hint)
            waited, came = 0.0, 0
        yield part


async def pace_parts(parts: AsyncIterator[Part], pace: Pace) -> AsyncGenerator[Part, None]:
    """Yields the same parts at ``pace``. ``parts`` is not closed."""
    async for part in parts:
        await trio.sleep_until(pace.take(len(part), trio.current_time()))
        yield part


@asynccontextmanager
async def body_of(response: httpx.Response, parts: AsyncIterator[bytes]) -> AsyncIterator[AsyncIterator[bytes]]:
    """Yields ``parts``, one of httpx's iterators over a response, and closes the response at the end of the block."""
    try:
        yield parts
    finally:
        with trio.CancelScope(shield=True):
            await response.aclose()
            # Nobody else closes the generators below ours; read on, they find the connection closed, and end.
            with suppress(httpx.HTTPError, httpx.StreamError, StopAsyncIteration):
                while True:
                    await anext(parts)


_CERTIFICATES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""Environment variables that name the certificate authorities to trust."""
SCHEMES: Final = ("http", "https")
PATIENCE_SECONDS: Final = 30.0
"""Seconds from connecting to the last byte, so that a server that sends slowly is left."""
CONNECT_SECONDS: Final = 10.0
_AGAIN: Final = "it is asked again later"
PLAIN: Final = {"User-Agent": "odfd", "Accept-Encoding": "identity"}
"""Headers of requests. No compression: compressed answers could expand without bound,
and slices and blocks gain little."""


@cache
def _trusting(*named: str | None) -> ssl.SSLContext:
    """Returns the TLS context of all clients, made once:
    reading the authorities takes 20 ms, a tenth of a node's start."""
    return httpx.create_ssl_context(trust_env=bool(named))


@cache
def _machine(*_named: str | None) -> ssl.SSLContext:
    return ssl.create_default_context()


def machine_authorities() -> ssl.SSLContext:
    """Returns the certificate authorities that OpenSSL finds on this machine, read once:
    it takes 20 ms, in the event loop."""
    return _machine(*_list_named())


def _list_named() -> list[str | None]:
    return [os.environ.get(name) for name in _CERTIFICATES]


_FAILED: Final = (httpcore.NetworkError, httpcore.TimeoutException)


def new_client(allows: Allows = anywhere, **options: Any) -> httpx.AsyncClient:
    """Makes an ``httpx.AsyncClient(**options)`` whose connections, also those through proxies, close on cancellation.

    No redirect is followed: each caller decides where it may be sent. Without ``verify`` the certificates are checked
    against those that httpx trusts. A request to a host that ``allows`` refuses raises ``p2p.dial.NotAllowed``. A proxy
    of the environment is dialled wherever it is; it resolves names itself.
    """
    if "verify" not in options:
        options["verify"] = _trusting(*(_list_named() if options.get("trust_env", True) else ()))
    client = httpx.AsyncClient(follow_redirects=False, **options)
    # httpx takes a backend only together with a transport, and a transport of one's own drops the proxies of the
    # environment; so the pools that httpx made are given theirs afterwards.
    for transport, judge in ((client._transport, allows), *((proxy, anywhere) for proxy in client._mounts.values())):
        if isinstance(transport, httpx.AsyncHTTPTransport):
            transport._pool._network_backend = _Backend(judge)
    if allows is not anywhere:
        client._mounts = {pattern: proxy and _Judged(proxy, allows) for pattern, proxy in client._mounts.items()}
    return client


def came_from(response: httpx.Response) -> Ip | None:
    """Returns the address that an answer came from;
    ``None``: it came through a proxy, which alone knows the address."""
    stream = response.extensions.get("network_stream")
    if stream is None or stream.get_extra_info(_ASKED) != response.url.raw_host.decode("ascii"):
        return None
    return parse_ip(str(stream.get_extra_info("server_addr")[0]))


class _Judged(httpx.AsyncBaseTransport):
    """A transport through a proxy that sends requests only to hosts that are allowed."""

    def __init__(self, inner: httpx.AsyncBaseTransport, allows: Allows) -> None:
        self._inner = inner
        self._allows = allows

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            await resolve(request.url.host, request.url.port or 0, self._allows)
        except OSError as error:
            raise httpx.ConnectError(f"there is no host {request.url.host}", request=request) from error
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


_ASKED: Final = "odfd-asked-host"
"""Key of ``get_extra_info`` for the host that a connection was opened to, as it was written."""


class _Backend(httpcore.TrioBackend):
    def __init__(self, allows: Allows) -> None:
        self._allows = allows

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        dial = super().connect_tcp
        with _within(timeout):
            try:
                found = await resolve(host, port, self._allows)
            except OSError as error:
                raise httpcore.ConnectError(f"there is no host {host}: {error.strerror or error}") from error
            attempts = [partial(dial, str(ip), port, timeout, local_address, socket_options) for ip in found]
            return _Stream(await first_of(attempts, _FAILED, _close), host)


async def _close(stream: httpcore.AsyncNetworkStream) -> None:
    await stream.aclose()


@contextmanager
def _within(seconds: float | None) -> Iterator[None]:
    try:
        with trio.fail_after(math.inf if seconds is None else seconds):
            yield
    except trio.TooSlowError as error:
        raise httpcore.ConnectTimeout(str(error)) from error


class _Stream(httpcore.AsyncNetworkStream):
    """A connection that is closed if its TLS handshake fails or is cancelled."""

    def __init__(self, inner: httpcore.AsyncNetworkStream, asked: str) -> None:
        self._inner = inner
        self._asked = asked

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        return await self._inner.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._asked if info == _ASKED else self._inner.get_extra_info(info)

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        try:
            return _Stream(await self._inner.start_tls(ssl_context, server_hostname, timeout), self._asked)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.aclose()
            raise


class OpenedClient:
    """The base of classes that make requests inside ``async with``.

    The HTTP client is made at the first request: reading the authorities takes 20 ms, and many nodes never send one.
    """

    def __init__(self, make: Callable[[], httpx.AsyncClient]) -> None:
        self._make = make
        self._made: httpx.AsyncClient | None = None
        self.has_ended = False

    @property
    def client(self) -> httpx.AsyncClient:
        if self._made is None:
            if self.has_ended:
                raise RuntimeError("a request after the end of the block")  # as httpx says of a closed client
            self._made = self._make()
        return self._made

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.has_ended = True
        if self._made is not None:
            await self._made.aclose()


class WebClients(OpenedClient):
    """Has two clients: ``client`` for places that a person named, ``led`` for places that servers named.

    The latter must have addresses of the Internet. ``make`` makes a client, given which addresses are allowed (default:
    all).
    """

    def __init__(self, make: Callable[..., httpx.AsyncClient]) -> None:
        super().__init__(make)
        self.led = OpenedClient(partial(make, is_global))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.led.__aexit__(kind, error, trace)
        finally:
            await super().__aexit__(kind, error, trace)


def keeps_scheme(here: httpx.URL, there: httpx.URL) -> bool:
    """Whether a redirect stays on HTTP, and on TLS if it was on TLS, which no server may make us give up."""
    return there.scheme in SCHEMES and (here.scheme != "https" or there.scheme == "https")


def is_from_inside(response: httpx.Response) -> bool:
    """Whether an open answer came from this machine or a private network, by the address that was dialled.

    A server of the Internet may not redirect to such places. An answer through a proxy counts as from the Internet.
    """
    address = came_from(response)
    return address is not None and not is_global(address)


class HttpAnswer(NamedTuple):
    status: int
    body: bytes


class Poster(Protocol):
    async def post(self, url: str, body: bytes, limit: int) -> HttpAnswer:
        """Sends a POST request and reads its answer.
        Raises Remote: no answer, too late, or more than ``limit`` bytes."""


class _Body(httpx.AsyncByteStream):
    """A request body that is an iterator and not a generator: nobody would close one whose request was cancelled."""

    def __init__(self, body: bytes) -> None:
        self._parts = iter((body,))

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        for part in self._parts:
            return part
        raise StopAsyncIteration


class Posts(OpenedClient):
    """Sends small POST requests, inside ``async with``.
    Redirects are not followed; an answer of any status is returned."""

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self._patience = patience
        times = httpx.Timeout(patience, connect=CONNECT_SECONDS, pool=None)
        super().__init__(partial(new_client, timeout=times, headers=PLAIN))

    async def post(self, url: str, body: bytes, limit: int) -> HttpAnswer:
        try:
            with trio.fail_after(self._patience):
                return await self._post(url, body, limit)
        except (trio.TooSlowError, httpx.TimeoutException) as error:
            raise Remote(f"{url}: no answer in {self._patience:g} s", rule="web-slow", hint=_AGAIN) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise Remote(f"{url} cannot be asked: {reason[:300]}", rule="web-failed", hint=_AGAIN) from error

    async def _post(self, url: str, body: bytes, limit: int) -> HttpAnswer:
        request = self.client.build_request("POST", url, content=body, headers={"Content-Type": "text/plain"})
        request.stream = _Body(body)
        response = await self.client.send(request, stream=True)
        found = bytearray()
        async with body_of(response, response.aiter_raw()) as parts:
            async for part in parts:
                found += part
                if len(found) > limit:
                    raise Remote(f"{url} answers with more than {limit:,} bytes", rule="web-answer")
        return HttpAnswer(response.status_code, bytes(found))
