"""Bounds the bytes of unfinished frames of all peers together, and names the peer to drop beyond that. Sans-IO.

A frame is unfinished while it has arrived in part, or its reader has not taken it. Each stream has its own bound, but
many peers at once have many streams. The peer to drop is the one that holds most in the address block that holds most,
so more keys only make their own block heavier.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Generic, TypeVar

K = TypeVar("K")
MOST: Final = 128 << 20
"""Bytes of all peers together, in each direction: a hundred peers that transfer a MiB at a time stay below it."""
PIECE: Final = 64
"""Bytes that each piece of a frame counts beside its content: a frame that comes byte by byte is expensive."""


class Unfinished(Generic[K]):
    """Counts the unfinished bytes of each holder (a stream), and of the block of addresses that it belongs to."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._held: dict[K, tuple[str, int]] = {}
        self._sum = 0

    @property
    def total(self) -> int:
        return self._sum

    def note(self, holder: K, block: str, amount: int) -> K | None:
        """Records the unfinished bytes of ``holder``. Returns the holder to evict, possibly itself; usually none."""
        self._sum += amount - self._held.get(holder, ("", 0))[1]
        if amount:
            self._held[holder] = (block, amount)
        else:
            self._held.pop(holder, None)
        return self._heaviest() if self._sum > self._most else None

    def leave(self, holder: K) -> None:
        self._sum -= self._held.pop(holder, ("", 0))[1]

    def _heaviest(self) -> K:
        blocks = Counter[str]()
        for block, amount in self._held.values():
            blocks[block] += amount
        worst = max(blocks, key=blocks.__getitem__)
        return max(
            (each for each, (block, _) in self._held.items() if block == worst), key=lambda each: self._held[each][1]
        )
