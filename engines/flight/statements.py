"""Keeps prepared statements and answers that wait to be fetched: few, and each for the caller who made it. Pure.

A token names whoever asks; nobody reaches what another one made. What is forgotten is said to be, and prepared again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

from chain.errors import NotFound

MOST_STATEMENTS: Final = 256
STATEMENT_SECONDS: Final = 3600.0
"""Without use."""
T = TypeVar("T")


class Statement(msgspec.Struct, kw_only=True):
    """What a client prepared. ``schema``: Arrow IPC of its columns."""

    token: str
    sql: str
    schema: bytes = b""
    parameters: list[Any] | dict[str, Any] | None = None


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """What fetches an answer, again too: the same rows."""

    sql: str
    parameters: list[Any] | dict[str, Any] | None = None
    pins: list[dict[str, Any]] = []
    held: str = ""
    """The answer that was begun for it."""


class HandleStore(Generic[T]):
    """Values by a handle; the least used goes first. Used from many threads."""

    def __init__(self, most: int, seconds: float, drop: Callable[[T], None] = lambda _: None) -> None:
        self._most, self._seconds, self._drop = most, seconds, drop
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, T]] = OrderedDict()

    def put(self, handle: str, value: T, now: float) -> None:
        with self._lock:
            self._kept[handle] = (now, value)
            self._kept.move_to_end(handle)
            gone = [self._kept.popitem(last=False)[1][1] for _ in range(len(self._kept) - self._most)]
        for each in gone:
            self._drop(each)

    def get(self, handle: str, now: float) -> T:
        """Raises NotFound."""
        with self._lock:
            found = self._kept.get(handle)
            if found is not None:
                self._kept[handle] = (now, found[1])
                self._kept.move_to_end(handle)
        if found is None:
            raise NotFound("no such statement is kept", rule="flight-statement", hint="prepare it again")
        return found[1]

    def take(self, handle: str) -> T | None:
        """It is no longer kept."""
        with self._lock:
            found = self._kept.pop(handle, None)
        return None if found is None else found[1]

    def forget(self, now: float) -> None:
        """What was not used for too long."""
        with self._lock:
            old = [handle for handle, (at, _) in self._kept.items() if now - at >= self._seconds]
            gone = [self._kept.pop(handle)[1] for handle in old]
        for each in gone:
            self._drop(each)
