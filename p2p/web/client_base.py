"""Holds an HTTP client that is open inside ``async with``: the base class of HTTP callers."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import httpx


class Opened:
    """A caller that is used inside ``async with``."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)
