"""Reads the bytes of an answer no faster than the node's bandwidth limit allows."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

import trio

from p2p.pace import Pace


async def paced(parts: AsyncIterator[bytes], pace: Pace) -> AsyncGenerator[bytes, None]:
    """The same parts. ``parts`` is not closed with it."""
    async for part in parts:
        await trio.sleep_until(pace.take(len(part), trio.current_time()))
        yield part
