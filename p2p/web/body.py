"""Reads the body of an HTTP answer; if some of it is left unread, the connection is closed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx
import trio


@asynccontextmanager
async def body_of(response: httpx.Response, parts: AsyncIterator[bytes]) -> AsyncIterator[AsyncIterator[bytes]]:
    """``parts`` is how it is read, one of httpx's iterators. ``response`` is closed at the end of the block."""
    try:
        yield parts
    finally:
        with trio.CancelScope(shield=True):
            await response.aclose()
            # The generators below ours are reached by nobody else: they end when they find the connection closed.
            with suppress(httpx.HTTPError, httpx.StreamError, StopAsyncIteration):
                while True:
                    await anext(parts)
