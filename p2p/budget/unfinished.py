"""Bounds the bytes of unfinished transfers of all peers together, and names the peer to drop beyond it. Sans-IO.

Unfinished are a frame that has arrived in part, and a frame that its reader has not taken. Each stream has a bound of
its own; many peers at once would have many of them. The peer to drop is the one that holds most in the address block
that holds most, so that more keys only make their own block heavier.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Generic, TypeVar

K = TypeVar("K")
MOST: Final = 128 << 20
"""Bytes of all peers together, in each direction: what a hundred peers hold who take and give a MiB at a time."""
PIECE: Final = 64
"""Bytes that a piece of a frame costs beside what is in it: a frame that comes byte by byte is a heavy one."""


class Unfinished(Generic[K]):
    """The bytes of each holder (a stream), and the block of addresses that it counts for."""

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
