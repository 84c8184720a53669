"""Keeps the latest of the items appended, numbered from 1, for any number of readers.

A reader is a position in the ring, so a slow one costs nothing and delays nobody; a reader that the ring has overtaken
gets the number of items that it missed.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lagged:
    """Reports that ``missed`` items before number ``resume`` are lost to this reader; ``None``: the ring is new."""

    resume: int
    missed: int | None


class Ring(Generic[T]):
    """Keeps at most ``most`` items, of at most ``most_size`` together, but always the newest.

    Any thread may append. Readers are tasks of one trio run; ``nudge``, called there, wakes them.
    """

    def __init__(self, most: int, most_size: int | None = None) -> None:
        self._items: deque[tuple[T, int]] = deque()
        self._most, self._most_size = most, most_size
        self._size = 0
        self._next = 1
        self._lock = threading.Lock()
        self._grown = trio.Event()

    @property
    def last(self) -> int:
        """The number of the last item; 0 before the first."""
        return self._next - 1

    @property
    def oldest(self) -> int:
        """The number of the oldest item that is kept; one after the last if none is."""
        return self._next - len(self._items)

    @property
    def grown(self) -> trio.Event:
        """The trio event that the next nudge sets; a new one follows."""
        return self._grown

    def append(self, item: T, size: int = 0) -> None:
        with self._lock:
            self._items.append((item, size))
            self._size += size
            self._next += 1
            while len(self._items) > self._most or self._is_too_large():
                self._size -= self._items.popleft()[1]

    def nudge(self) -> None:
        """Wakes waiting readers, also without an item, so that each checks its state."""
        self._grown.set()
        self._grown = trio.Event()

    def list_kept(self) -> list[tuple[int, T]]:
        """Lists the kept items with their numbers, oldest first."""
        with self._lock:
            return [(number, item) for number, (item, _) in enumerate(self._items, self.oldest)]

    def newer(self, position: int) -> list[T] | Lagged:
        """Returns all items after number ``position``; ``Lagged`` if one of them is lost."""
        with self._lock:
            if position > self.last or position + 1 < self.oldest:
                return Lagged(self.oldest, None)
            return [item for item, _ in itertools.islice(self._items, position + 1 - self.oldest, None)]

    async def follow(self, since: int | None = None) -> AsyncGenerator[tuple[int, T] | Lagged, None]:
        """Yields items after number ``since``, by default new ones only; without end."""
        position = self.last if since is None else since
        while True:
            # Before the look: it is set by an item that comes after the look and before the wait.
            grown = self._grown
            news = self._after(position)
            if isinstance(news, Lagged):
                position = news.resume - 1
                yield news
            elif news is not None:
                position = news[0]
                yield news
            else:
                await grown.wait()

    def _after(self, position: int) -> tuple[int, T] | Lagged | None:
        with self._lock:
            if position > self.last:
                return Lagged(self.oldest, None)
            if position + 1 < self.oldest:
                return Lagged(self.oldest, self.oldest - position - 1)
            if position == self.last:
                return None
            return position + 1, self._items[position + 1 - self.oldest][0]

    def _is_too_large(self) -> bool:
        return self._most_size is not None and self._size > self._most_size and len(self._items) > 1
