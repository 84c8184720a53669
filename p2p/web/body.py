"""Reads the body of an HTTP answer within its bandwidth and time limits:
to connect, in silence, too slow, and in total.

If a part of the body is left unread, the connection is closed.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Sized
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple, TypeVar

import httpx
import trio

from chain.errors import Remote
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
