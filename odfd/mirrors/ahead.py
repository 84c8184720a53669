"""Steps that are fetched while others are kept, so that network, processor and disk work at the same time.

Keeping one is first computing and then waiting for the disk, and fetching is the other way round: with one step ahead
each of them stands still for a part of the other. Two fill the gaps. How many wait, and how many bytes, is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from chain.errors import Fault
from odfd.mirrors.sinks import VerifiedChain

STEPS: Final = 2
"""Steps not kept yet beside which another one is fetched."""
BYTES: Final = 40 << 20
"""Of the blocks of those steps, above which no other is."""


class Ahead:
    """One way to a goal. ``run`` fetches, in a task of its own; whoever keeps takes ``next``, and tells."""

    def __init__(self, fetch: Callable[[VerifiedChain | None], Awaitable[VerifiedChain | None]]) -> None:
        """``fetch`` brings the step after another one, or the first; ``None`` when there is no more."""
        self._fetch = fetch
        self._fetched: deque[VerifiedChain | Fault] = deque()
        self._unkept: deque[int] = deque()
        """Bytes of each."""
        self._moved = trio.Event()

    async def run(self) -> None:
        """Until all is fetched, or something could not be: that is told where it would have been taken."""
        last: VerifiedChain | None = None
        while True:
            while len(self._unkept) >= STEPS or sum(self._unkept) > BYTES:
                await self._moved.wait()
            try:
                last = await self._fetch(last)
            except Fault as fault:
                self._fetched.append(fault)
                self._move()
                return
            if last is None:
                return
            self._fetched.append(last)
            self._unkept.append(last.bytes)
            self._move()

    async def next(self) -> VerifiedChain:
        """The next step; there is one. Raises what kept it from coming."""
        while not self._fetched:
            await self._moved.wait()
        found = self._fetched.popleft()
        if isinstance(found, Fault):
            raise found
        return found

    def kept(self) -> None:
        """The oldest step takes no memory any more."""
        self._unkept.popleft()
        self._move()

    def _move(self) -> None:
        self._moved.set()
        self._moved = trio.Event()
