"""Sends small POST requests and reads their small answers; ``Poster`` is the port, ``Posts`` implements it.

What comes back is read under a limit and in a time that are the caller's; redirects are not followed. Whatever status a
server answers with is for the caller to understand. RFC 9110.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple, Protocol

import httpx
import trio

from chain.errors import Remote
from p2p.web.body import body_of
from p2p.web.client import Opened, new_client

PATIENCE_SECONDS: Final = 30.0
"""From connecting to the last byte: a server that drips is left."""
CONNECT_SECONDS: Final = 10.0
_AGAIN: Final = "it is asked again later"
_HEADERS: Final = {"User-Agent": "odfd", "Accept-Encoding": "identity"}


class Answer(NamedTuple):
    status: int
    body: bytes


class Poster(Protocol):
    async def post(self, url: str, body: bytes, limit: int) -> Answer:
        """Raises Remote: no answer, too late, or more than ``limit`` bytes."""


class _Body(httpx.AsyncByteStream):
    """An iterator and no generator, as httpx has: nobody ends one whose request was cancelled while it was sent."""

    def __init__(self, body: bytes) -> None:
        self._parts = iter((body,))

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        for part in self._parts:
            return part
        raise StopAsyncIteration


class Posts(Opened):
    """A sender of POST requests. Used inside ``async with``."""

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self._patience = patience
        times = httpx.Timeout(patience, connect=CONNECT_SECONDS, pool=None)
        super().__init__(new_client(timeout=times, headers=_HEADERS))

    async def post(self, url: str, body: bytes, limit: int) -> Answer:
        try:
            with trio.fail_after(self._patience):
                return await self._post(url, body, limit)
        except (trio.TooSlowError, httpx.TimeoutException) as error:
            raise Remote(f"{url}: no answer in {self._patience:g} s", rule="web-slow", hint=_AGAIN) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            told = str(error) or type(error).__name__
            raise Remote(f"{url} cannot be asked: {told[:300]}", rule="web-failed", hint=_AGAIN) from error

    async def _post(self, url: str, body: bytes, limit: int) -> Answer:
        request = self._client.build_request("POST", url, content=body, headers={"Content-Type": "text/plain"})
        request.stream = _Body(body)
        response = await self._client.send(request, stream=True)
        found = bytearray()
        async with body_of(response, response.aiter_raw()) as parts:
            async for part in parts:
                found += part
                if len(found) > limit:
                    raise Remote(f"{url} answers with more than {limit:,} bytes", rule="web-answer")
        return Answer(response.status_code, bytes(found))
