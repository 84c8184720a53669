"""Chooses the sandbox that commands of sources run in, once, when the first command is to run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from engines.sandbox.base import SandboxLevel
from engines.sandbox.probe import SandboxChoice, choose


async def _over_the_host() -> SandboxChoice:
    """Chooses a sandbox over the host's own programs, since an engine's image does not have the commands."""
    return await choose(SandboxLevel.HOST)


class CommandSandbox:
    """Remembers which sandbox works on this machine. ``choose`` tries them, and raises Refused if none works."""

    def __init__(self, choose: Callable[[], Awaitable[SandboxChoice]] = _over_the_host) -> None:
        self._choose = choose
        self._lock = trio.Lock()
        self._choice: SandboxChoice | None = None

    async def choice(self) -> SandboxChoice:
        """Returns the sandbox, choosing it at the first call. Raises Refused; the next call then tries again."""
        async with self._lock:
            if self._choice is None:
                self._choice = await self._choose()
            return self._choice
