"""Sends HTTP requests that are no downloads: uploads a file by PUT, and switches a connection to another protocol.

The owner named the place, or the owner's server named it for an object. In the latter case connections go to the
Internet only, unless the server itself is in a private network, and TLS is never given up. No redirect is followed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Final

import httpcore
import httpx
import trio

from chain.errors import Invalid, Refused, Remote
from p2p.dial import NotAllowed
from p2p.web.client import PLAIN, HttpAnswer, WebClients, is_from_inside, keeps_scheme, new_client

CONNECT_SECONDS: Final = 10.0
SILENCE_SECONDS: Final = 60.0
"""Seconds for the server to take a part of an upload, and to answer."""
UPLOAD_SECONDS: Final = 6 * 3600.0
"""Seconds for one file."""
CONNECTIONS: Final = 16
MAX_ANSWER: Final = 16 << 10
"""Bytes of an answer that are read."""
_CHUNK: Final = 65_536
_LOST: Final = (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError)


class NotSwitched(Remote):
    """The server answered but did not switch protocols; ``status`` and ``body`` are its answer."""

    def __init__(self, url: str, status: int, body: bytes) -> None:
        super().__init__(f"{url} answers with status {status}", rule="web-upgrade")
        self.status, self.body = status, body


class UpgradedStream:
    """A connection that was switched to another protocol. Raises trio.BrokenResourceError if it is lost."""

    def __init__(self, stream: httpcore.AsyncNetworkStream, *, is_inside: bool) -> None:
        self._stream = stream
        self.is_inside = is_inside
        """Whether the server is on this machine or in a private network; then it may name places there."""

    async def receive(self) -> bytes:
        """Receives bytes; empty at the end."""
        try:
            return await self._stream.read(_CHUNK)
        except _LOST as error:
            raise trio.BrokenResourceError from error

    async def send(self, data: bytes) -> None:
        try:
            await self._stream.write(data)
        except _LOST as error:
            raise trio.BrokenResourceError from error


class WebTransfers(WebClients):
    """Uploads files and switches protocols. Used inside ``async with``."""

    def __init__(self) -> None:
        times = httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS, pool=None)
        make = partial(new_client, timeout=times, limits=httpx.Limits(max_connections=CONNECTIONS), headers=PLAIN)
        super().__init__(make)

    @asynccontextmanager
    async def upgrade(self, url: str, headers: Mapping[str, str]) -> AsyncIterator[UpgradedStream]:
        """Yields the switched connection while the block runs. Raises NotSwitched, Remote."""
        if self.has_ended:
            raise _stopping(url)
        request = self.client.build_request("GET", url, headers=dict(headers))
        with _told(url):
            with trio.move_on_after(2 * CONNECT_SECONDS + SILENCE_SECONDS) as patience:
                response = await self.client.send(request, stream=True)
            if patience.cancelled_caught:
                raise Remote(f"{url}: the server is too slow", rule="web-slow")
        try:
            if response.status_code != httpx.codes.SWITCHING_PROTOCOLS:
                with _told(url):
                    body = await _beginning(response)
                raise NotSwitched(url, response.status_code, body)
            yield UpgradedStream(response.extensions["network_stream"], is_inside=is_from_inside(response))
        finally:
            with trio.CancelScope(shield=True):
                await response.aclose()

    async def put(
        self, url: str, headers: Mapping[str, str], body: Callable[[], AsyncIterator[bytes]], size: int, *, is_led: bool
    ) -> HttpAnswer:
        """Uploads ``size`` bytes. ``is_led``: a server of the Internet named the place, which must be there too.

        Raises Remote, Refused if the place is not allowed to others, and whatever ``body`` raises.
        """
        if self.has_ended:
            raise _stopping(url)
        client = self.led.client if is_led else self.client
        sent = {**headers, "Content-Length": str(size), "Content-Type": "application/octet-stream"}
        with _told(url), trio.move_on_after(UPLOAD_SECONDS):
            request = client.build_request("PUT", url, headers=sent)
            request.stream = _Streamed(body())
            response = await client.send(request, stream=True)
            try:
                return HttpAnswer(response.status_code, await _beginning(response))
            finally:
                with trio.CancelScope(shield=True):
                    await response.aclose()
        raise Remote(f"{url}: an upload took longer than {UPLOAD_SECONDS:g} s", rule="web-slow")


class _Streamed(httpx.AsyncByteStream):
    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts


class _told:  # noqa: N801  used as a function
    """A context that turns errors of httpx into Remote or Refused."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        hint = "try again later: the received bytes are kept"
        if isinstance(error, httpx.TimeoutException):
            raise Remote(f"{self._url}: the server sent nothing in time", rule="web-slow", hint=hint) from error
        if isinstance(error, NotAllowed):
            raise Refused(f"a server leads into this network: {error.message}", rule="web-redirect") from error
        if isinstance(error, httpx.HTTPError | httpx.InvalidURL):
            reason = str(error) or type(error).__name__
            raise Remote(f"{self._url} cannot be asked: {reason[:300]}", rule="web-failed", hint=hint) from error


async def _beginning(response: httpx.Response) -> bytes:
    found = bytearray()
    parts = response.aiter_raw()
    try:
        async for part in parts:
            found += part
            if len(found) >= MAX_ANSWER:
                break
    finally:
        with trio.CancelScope(shield=True):
            await response.aclose()
    return bytes(found[:MAX_ANSWER])


def leads_to(url: str, named_by: str) -> bool:
    """Whether a URL leads to another server than the one that named it.

    Raises Invalid if it is no URL, Refused if it is not of the web, or gives up the TLS of the server that named it.
    """
    try:
        there, here = httpx.URL(url), httpx.URL(named_by)
    except httpx.InvalidURL as error:
        raise Invalid(f"a server names an invalid URL: {str(error)[:100]}", rule="web-place") from error
    if not there.host or there.userinfo or not keeps_scheme(here, there):
        text = f"{here.host} redirects to {url[:200]!r}, which is no web URL, or leaves TLS"
        raise Refused(text, rule="web-redirect", hint="report it to the server's operator")
    return (there.scheme, there.host, there.port) != (here.scheme, here.host, here.port)


def _stopping(url: str) -> Remote:
    return Remote(f"{url} is not asked for any more: the node is stopping", rule="draining")
