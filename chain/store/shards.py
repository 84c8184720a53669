"""Holds shards: chains with their ``upper``, a time in whole milliseconds. No transaction of an earlier time follows.

Head and upper change together, in the commit of blocks or of a frontier alone. Spec: docs/spec/collections.md#time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final

import msgspec

from chain.instant import to_millis
from chain.model.block import Block
from chain.store.base import Head

SEALED: Final = 2**53 - 1
"""The upper of a shard that is complete for ever; also the largest integer of a signed statement."""


class Shard(msgspec.Struct, frozen=True):
    """A chain's head and frontier, which change together."""

    head: Head | None = None
    upper: int = 0


class View:
    """A shard as it was at one moment, with access to its blocks."""

    def __init__(self, shard: Shard, block_at: Callable[[int], Block]) -> None:
        self.shard = shard
        self._block_at = block_at

    def transaction(self, time: int) -> list[Block]:
        """Returns all blocks of a time. A logarithmic number of reads, and one for each block."""
        found: list[Block] = []
        number = self._first(time)
        while number < self._size and to_millis((block := self._block_at(number)).system_time) == time:
            found.append(block)
            number += 1
        return found

    def size_at(self, time: int) -> int:
        """Returns the number of blocks whose time is not after ``time``."""
        return self._first(time + 1)

    @property
    def _size(self) -> int:
        return self.shard.head.size if self.shard.head else 0

    def _first(self, time: int) -> int:
        return bisect_left(range(self._size), time, key=lambda number: to_millis(self._block_at(number).system_time))
