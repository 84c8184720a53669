"""Keeps the node's events for ``odfctl watch``: numbered, in a ring, with any number of readers.

A reader is a position in the ring, so a slow one costs nothing and holds nobody up; when the ring has moved past it,
it is told how many events it missed. Events are news, not records: the chain and the ledger are the records. The log
is made with the daemon, and its numbers begin anew with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import trio

from chain.instant import Instant
from odfd.runtime.clock import Clock

RING: Final = 4096
"""Events kept: at the busiest (one per commit, ten a second) some minutes of news."""


@dataclass(frozen=True, slots=True)
class Event:
    sequence: int
    time: Instant
    kind: str
    subject: str = ""
    message: str = ""
    data: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lagged:
    """``missed`` events before number ``resume`` are gone for this reader; ``None``: the log began anew since."""

    resume: int
    missed: int | None


News: TypeAlias = Event | Lagged


class EventLog:
    """The events of one node. ``emit`` is for the trio thread only; others go through ``trio.from_thread``."""

    def __init__(self, clock: Clock, ring: int = RING, heard: Callable[[Event], None] = lambda _: None) -> None:
        """``heard`` is called with each event, before any reader sees it."""
        self._clock = clock
        self._heard = heard
        self._ring: deque[Event] = deque(maxlen=ring)
        self._next = 1
        self._grown = trio.Event()

    @property
    def last(self) -> int:
        """Number of the last event; 0 before the first."""
        return self._next - 1

    def emit(self, kind: str, subject: str = "", message: str = "", /, **data: object) -> Event:
        """``kind`` is ``family.happening``, like ``mirror.synced``; ``data`` must be plain JSON values."""
        event = Event(self._next, self._clock.now(), kind, subject, message, data)
        self._next += 1
        self._ring.append(event)
        self._heard(event)
        self.nudge()
        return event

    @property
    def grown(self) -> trio.Event:
        """Set with the next event, or nudge; then there is another."""
        return self._grown

    def nudge(self) -> None:
        """Wake those who wait for what is no event: each looks where it stands."""
        self._grown.set()
        self._grown = trio.Event()

    def kept(self) -> list[Event]:
        """All, oldest first."""
        return list(self._ring)

    async def follow(self, since: int | None = None) -> AsyncGenerator[News, None]:
        """Events after number ``since``, or from now on; without end."""
        position = self.last if since is None else since
        if position > self.last:
            yield Lagged(self._oldest(), None)
            position = self._oldest() - 1
        while True:
            grown = self._grown
            oldest = self._oldest()
            if position + 1 < oldest:
                yield Lagged(oldest, oldest - position - 1)
                position = oldest - 1
                continue
            if position < self.last:
                event = self._ring[position + 1 - oldest]
                position += 1
                yield event
                continue
            await grown.wait()

    def _oldest(self) -> int:
        return self._next - len(self._ring)
