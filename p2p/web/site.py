"""Reads files over HTTP from any web server, object store or gateway; ``Web`` implements ``RemoteFiles``.

Uses only HEAD and GET, with ranges if a server supports them. Servers are not trusted: redirects are followed a few
times and never from the Internet into a private network, answers are read under limits, and a slow server is left. The
caller verifies the content. RFC 9110.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Final

import httpx
import trio

from chain.digits import read_whole
from chain.errors import Remote
from p2p.dial import NotAllowed
from p2p.pace import Pace
from p2p.ports import Content, FileMissing
from p2p.web.client import (
    PLAIN,
    Patience,
    WebClients,
    body_of,
    is_from_inside,
    keeps_scheme,
    lively,
    new_client,
    pace_parts,
)

CONNECTIONS: Final = 16
"""Connections at a time, to all sites; further requests wait."""
REDIRECTS: Final = 5
NONE: Final[Mapping[str, str]] = {}
_RANGE: Final = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)")
_GONE: Final = (httpx.codes.NOT_FOUND, httpx.codes.GONE)
_NO_HEAD: Final = (httpx.codes.METHOD_NOT_ALLOWED, httpx.codes.NOT_IMPLEMENTED)
_AGAIN: Final = "try again later: the received bytes are kept; a mirror asks again by itself"


PATIENCE: Final = Patience(total=6 * 3600.0)


class Web(WebClients):
    """Reads files from the web. Used inside ``async with``."""

    def __init__(self, patience: Patience | None = None, pace: Pace | None = None) -> None:
        """``pace`` caps the bytes per second of bodies."""
        self._patience = patience or PATIENCE
        self._pace = pace or Pace()
        limits = httpx.Limits(max_connections=CONNECTIONS)
        make = partial(new_client, timeout=self._patience.times, limits=limits, headers=PLAIN)
        super().__init__(make)

    async def size_of(self, content: str, headers: Mapping[str, str] = NONE) -> int | None:
        """Asks for the size by HEAD, or by a range of one byte if the server lacks HEAD or omits the length."""
        try:
            async with self._answer("HEAD", content, headers, also=_NO_HEAD) as answer:
                length = read_whole(answer.headers.get("Content-Length", ""))
                if answer.is_success and length is not None:
                    return length
            async with self._answer("GET", content, {**headers, "Range": "bytes=0-0"}) as answer:
                total = _range_of(answer)[1] if answer.status_code == httpx.codes.PARTIAL_CONTENT else None
                length = read_whole(answer.headers.get("Content-Length", "")) if total is None else total
                if length is not None:
                    return length
        except FileMissing:
            return None
        raise Remote(f"{content} does not say how long it is", rule="web-answer")

    async def ask(self, content: str) -> None:
        """Asks whether a server answers at all, also with an error of the asker's. Raises Remote."""
        refusals = tuple(range(400, 500))
        async with self._answer("HEAD", content, also=(*refusals, *_NO_HEAD)):
            return

    async def cat(self, content: str, limit: int, headers: Mapping[str, str] = NONE) -> bytes | None:
        found = bytearray()
        try:
            async with self.open(content, headers=headers) as parts:
                async for part in parts:
                    found += part
                    if len(found) > limit:
                        raise Remote(f"{content} has more than {limit:,} bytes", rule="web-answer")
        except FileMissing:
            return None
        return bytes(found)

    def open(
        self, content: str, offset: int = 0, headers: Mapping[str, str] = NONE, *, is_led: bool = False
    ) -> Content:
        """Opens a file from ``offset`` on. ``is_led``: a server of the Internet named the place,
        which must be there too."""
        return self._open(content, offset, headers, is_led=is_led)

    @asynccontextmanager
    async def _open(
        self, content: str, offset: int, given: Mapping[str, str], *, is_led: bool
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        headers = {**given, "Range": f"bytes={offset}-"} if offset else given
        deadline = trio.current_time() + self._patience.total
        async with self._answer("GET", content, headers, is_led=is_led) as answer:
            skip = offset
            if answer.status_code == httpx.codes.PARTIAL_CONTENT:
                start, _ = _range_of(answer)
                if start != offset:
                    raise Remote(f"{content} was asked for from {offset:,} on, and gives {start:,}", rule="web-answer")
                skip = 0
            async with (
                body_of(answer, answer.aiter_raw()) as body,
                aclosing(lively(content, body, self._patience, deadline, _AGAIN)) as parts,
                aclosing(_after(parts, skip)) as rest,
                aclosing(pace_parts(rest, self._pace)) as slowed,
            ):
                yield slowed

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        content: str,
        headers: Mapping[str, str] | None = None,
        also: tuple[int, ...] = (),
        *,
        is_led: bool = False,
    ) -> AsyncIterator[httpx.Response]:
        """Sends a request and yields its answer, if it is successful or has a status in ``also``. Raises Remote."""
        if self.led.has_ended:
            raise _stopping(content)
        try:
            client = self.led.client if is_led else self.client
            response = await self._follow(client, client.build_request(method, content, headers=headers))
            try:
                if response.status_code not in also:
                    _check(content, response)
                yield response
            finally:
                with trio.CancelScope(shield=True):
                    await response.aclose()
        except httpx.TimeoutException as error:
            raise Remote(f"{content}: the server sent nothing in time", rule="web-slow", hint=_AGAIN) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            told = str(error) or type(error).__name__
            raise Remote(f"{content} is not available: {told[:300]}", rule="web-failed", hint=_AGAIN) from error

    async def _follow(self, client: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
        for _ in range(REDIRECTS + 1):
            try:
                with trio.fail_after(self._patience.head):
                    response = await self._send(client, request)
            except trio.TooSlowError as error:
                raise Remote(f"{request.url}: the server is too slow", rule="web-slow", hint=_AGAIN) from error
            except NotAllowed as fault:
                raise Remote(f"a server redirects into this network: {fault.message}", rule="web-redirect") from fault
            if response.next_request is None:
                return response
            is_inside = is_from_inside(response)
            with trio.CancelScope(shield=True):
                await response.aclose()
            here, request = request.url, response.next_request
            if not keeps_scheme(here, request.url):
                hint = "name that URL itself, if it is right"
                raise Remote(f"{here} leads to {request.url}", rule="web-redirect", hint=hint)
            if self.led.has_ended:
                raise _stopping(str(request.url))
            # Only a server that is inside itself may lead to places inside.
            client = self.client if is_inside else self.led.client
        raise Remote(f"more than {REDIRECTS} redirects, the last to {request.url}", rule="web-redirect")

    async def _send(self, client: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
        """Sends a request, at most twice: a connection that was kept open may have ended just before."""
        if client.is_closed:
            raise _stopping(str(request.url))
        try:
            return await client.send(request, stream=True)
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            return await client.send(request, stream=True)


async def _after(parts: AsyncIterator[bytes], skip: int) -> AsyncGenerator[bytes, None]:
    """Yields a body without its first ``skip`` bytes, for a server that does not support ranges."""
    async for part in parts:
        rest, skip = part[skip:], max(0, skip - len(part))
        if rest:
            yield rest


def _stopping(content: str) -> Remote:
    return Remote(f"{content} is not asked for any more: the node is stopping", rule="draining")


def _check(content: str, response: httpx.Response) -> None:
    status = response.status_code
    if status in _GONE:
        raise FileMissing(f"there is no {content}", rule="web-missing")
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise Remote(f"{content} is not public: status {status}", rule="web-refused")
    if status not in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
        raise Remote(f"{content} answers with status {status}", rule="web-failed", hint=_AGAIN)
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise Remote(f"{content} comes as {encoding[:40]}, which was not requested", rule="web-answer")


def _range_of(response: httpx.Response) -> tuple[int, int | None]:
    """Returns the start of a partial answer and the size of the whole, if stated."""
    found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if found is None:
        raise Remote(f"{response.url} gives a part, and does not say which", rule="web-answer")
    return int(found[1]), None if found[2] == "*" else int(found[2])
