"""Orders work that waits by who sent it: each sender has a lane, and lanes take turns. Sans-IO.

A sender that sends much waits behind itself and keeps nobody else waiting. The whole is bounded in number and bytes;
when it is full, the newest of the heaviest lane goes, so that who sends little loses nothing to who sends much.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)
T = TypeVar("T")


class _Lane(Generic[T]):
    def __init__(self) -> None:
        self.waiting: deque[tuple[T, int]] = deque()
        self.size = 0


class Lanes(Generic[S, T]):
    """At most ``most`` items of ``most_bytes`` bytes together."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._lanes: OrderedDict[S, _Lane[T]] = OrderedDict()
        """The lane whose turn it is first."""
        self._count = 0
        self._bytes = 0

    def __len__(self) -> int:
        return self._count

    def put(self, sender: S, item: T, size: int) -> list[T]:
        """Add an item of ``size`` bytes; what had to make room, perhaps the item itself."""
        lane = self._lanes.setdefault(sender, _Lane())
        lane.waiting.append((item, size))
        self._account(lane, 1, size)
        dropped: list[T] = []
        while self._count > self._most or self._bytes > self._most_bytes:
            heaviest = max(self._lanes, key=lambda each: self._lanes[each].size)
            dropped.append(self._pop(heaviest, newest=True))
        return dropped

    def take(self) -> T | None:
        """The oldest of the lane whose turn it is; ``None`` when nothing waits."""
        if not self._lanes:
            return None
        sender = next(iter(self._lanes))
        self._lanes.move_to_end(sender)
        return self._pop(sender, newest=False)

    def remove(self, sender: S, item: T) -> None:
        """It waits no longer, if it did."""
        lane = self._lanes.get(sender)
        if lane is None:
            return
        for at, (each, size) in enumerate(lane.waiting):
            if each is item:
                del lane.waiting[at]
                self._account(lane, -1, -size)
                break
        if not lane.waiting:
            del self._lanes[sender]

    def _pop(self, sender: S, *, newest: bool) -> T:
        lane = self._lanes[sender]
        item, size = lane.waiting.pop() if newest else lane.waiting.popleft()
        self._account(lane, -1, -size)
        if not lane.waiting:
            del self._lanes[sender]
        return item

    def _account(self, lane: _Lane[T], count: int, size: int) -> None:
        lane.size += size
        self._count += count
        self._bytes += size
