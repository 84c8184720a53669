"""Reads the body of an HTTP answer: what is left unread closes the connection, and bytes come within the bandwidth."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx
import trio

from p2p.pace import Pace


async def paced(parts: AsyncIterator[bytes], pace: Pace) -> AsyncGenerator[bytes, None]:
    """The same parts. ``parts`` is not closed with it."""
    async for part in parts:
        await trio.sleep_until(pace.take(len(part), trio.current_time()))
        yield part


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
