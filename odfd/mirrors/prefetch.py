"""Fetches the next step of a mirror while the present one is stored, so that network, processor and disk work at once.

Only one step is fetched ahead: two cores are busy with these two, and each step waits in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import trio

from chain.errors import Fault
from chain.state import ChainState
from chain.statements.tree import Frontier
from odfd.mirrors.sinks import VerifiedChain

STEPS: Final = 2
"""Steps in memory: one that is being stored, and one that is being fetched or waits."""
BYTES: Final = 32 << 20
"""Bytes of blocks not stored yet, above which no more are fetched."""


class Start(msgspec.Struct, frozen=True):
    """The state before the next blocks: the chain's state for the rules, and its tree."""

    state: ChainState
    frontier: Frontier


class Prefetch:
    """Fetches a chain of ``size`` blocks step by step, ahead of its consumer:
    ``run`` fetches, the consumer calls ``next``."""

    def __init__(self, fetch: Callable[[Start], Awaitable[VerifiedChain]], start: Start, size: int) -> None:
        self._fetch = fetch
        self._start = start
        self._size = size
        self._fetched: deque[VerifiedChain | Fault] = deque()
        self._unkept: deque[int] = deque()
        """The bytes of each step that is not stored yet."""
        self._moved = trio.Event()

    async def run(self) -> None:
        """Fetches until all is here or a fetch fails, which the consumer then raises."""
        while self._start.state.size < self._size:
            while len(self._unkept) >= STEPS or sum(self._unkept) > BYTES:
                await self._moved.wait()
            try:
                self._take(await self._fetch(self._start))
            except Fault as fault:
                self._fetched.append(fault)
                self._move()
                return

    def _take(self, step: VerifiedChain) -> None:
        self._start = Start(step.state, step.frontier)
        self._fetched.append(step)
        self._unkept.append(step.bytes)
        self._move()

    async def next(self) -> VerifiedChain:
        """Waits for the next step, which must exist; raises the fault that prevented it."""
        while not self._fetched:
            await self._moved.wait()
        found = self._fetched.popleft()
        if isinstance(found, Fault):
            raise found
        return found

    def kept(self) -> None:
        """Notes that the oldest step was stored, so that its memory is free."""
        self._unkept.popleft()
        self._move()

    def _move(self) -> None:
        self._moved.set()
        self._moved = trio.Event()
