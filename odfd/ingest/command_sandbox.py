"""Finds the sandbox that commands of sources run in, once and when the first of them is to run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from engines.sandbox.base import Level
from engines.sandbox.probe import Choice, choose


async def _over_the_host() -> Choice:
    """Commands are programs of this machine, which an engine's image does not have."""
    return await choose(Level.HOST)


class CommandSandbox:
    """Remembers which sandbox holds on this machine. ``choose``: tries them; raises Refused where none holds."""

    def __init__(self, choose: Callable[[], Awaitable[Choice]] = _over_the_host) -> None:
        self._choose = choose
        self._lock = trio.Lock()
        self._choice: Choice | None = None

    async def choice(self) -> Choice:
        """Raises Refused; the next call tries again."""
        async with self._lock:
            if self._choice is None:
                self._choice = await self._choose()
            return self._choice
