"""Orders waiting work fairly by sender: address blocks take turns, and the senders within a block take turns. Sans-IO.

A sender that sends much waits behind its own work and delays nobody else; many keys of one address block wait behind
each other. The queue is bounded in number and bytes. When it is full, the newest item of the heaviest sender in the
heaviest block is dropped, so that a light sender loses nothing to a heavy one, however many keys that one uses.
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


class _Block(Generic[S, T]):
    """The queues of the senders in one block of addresses; the sender whose turn it is comes first."""

    def __init__(self) -> None:
        self.lanes: OrderedDict[S, _Lane[T]] = OrderedDict()
        self.size = 0


class Lanes(Generic[S, T]):
    """A fair queue of at most ``most`` items with ``most_bytes`` bytes together."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._blocks: OrderedDict[str, _Block[S, T]] = OrderedDict()
        """The queues by block of addresses; the block whose turn it is comes first."""
        self._count = 0
        self._bytes = 0

    def __len__(self) -> int:
        return self._count

    def put(self, block: str, sender: S, item: T, size: int) -> list[T]:
        """Adds an item of ``size`` bytes by a sender in a block;
        returns the items dropped for it, perhaps the item itself."""
        here = self._blocks.setdefault(block, _Block())
        lane = here.lanes.setdefault(sender, _Lane())
        lane.waiting.append((item, size))
        self._account(here, lane, 1, size)
        dropped: list[T] = []
        while self._count > self._most or self._bytes > self._most_bytes:
            # More keys only make their own block heavier (test_keys_of_one_block_buy_neither_turns_nor_room).
            heaviest = max(self._blocks, key=lambda each: self._blocks[each].size)
            lanes = self._blocks[heaviest].lanes
            dropped.append(self._pop(heaviest, max(lanes, key=lambda each: lanes[each].size), newest=True))
        return dropped

    def take(self) -> T | None:
        """Takes the oldest item of the next sender in the next block; ``None`` when nothing waits."""
        if not self._blocks:
            return None
        block = next(iter(self._blocks))
        self._blocks.move_to_end(block)
        lanes = self._blocks[block].lanes
        sender = next(iter(lanes))
        lanes.move_to_end(sender)
        return self._pop(block, sender, newest=False)

    def remove(self, block: str, sender: S, item: T) -> None:
        here = self._blocks.get(block)
        lane = here.lanes.get(sender) if here is not None else None
        if here is None or lane is None:
            return
        for at, (each, size) in enumerate(lane.waiting):
            if each is item:
                del lane.waiting[at]
                self._account(here, lane, -1, -size)
                break
        self._tidy(block, sender)

    def _pop(self, block: str, sender: S, *, newest: bool) -> T:
        here = self._blocks[block]
        lane = here.lanes[sender]
        item, size = lane.waiting.pop() if newest else lane.waiting.popleft()
        self._account(here, lane, -1, -size)
        self._tidy(block, sender)
        return item

    def _tidy(self, block: str, sender: S) -> None:
        lanes = self._blocks[block].lanes
        if not lanes[sender].waiting:
            del lanes[sender]
        if not lanes:
            del self._blocks[block]

    def _account(self, block: _Block[S, T], lane: _Lane[T], count: int, size: int) -> None:
        lane.size += size
        block.size += size
        self._count += count
        self._bytes += size
