"""Walks through a stored chain: newest first and only some kinds, or oldest first and all. Lazy, bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from chain.codec.blocks import decode_block
from chain.model.block import Block


class KindIndex(Protocol):
    """The read that ``newest_first`` needs; every ``ChainReader`` of the store provides it."""

    def last_of(self, kinds: Iterable[str], before: int | None = None) -> Block | None: ...


class RawBlocks(Protocol):
    def raw_blocks(self, start: int, stop: int) -> Iterator[bytes]: ...


def newest_first(reader: KindIndex, kinds: Iterable[str], before: int | None = None) -> Iterator[Block]:
    """Yields blocks whose event is of ``kinds``, newest first from below ``before`` (the head); one read each."""
    wanted = tuple(kinds)
    while (before is None or before > 0) and (block := reader.last_of(wanted, before)) is not None:
        yield block
        before = block.sequence_number


def first_where(
    reader: KindIndex, kinds: Iterable[str], start: int, stop: int, holds: Callable[[Block], bool] = lambda _: True
) -> Block | None:
    """Returns the first block of ``kinds`` in ``start <= n < stop`` that ``holds``, which must stay true once true.

    A logarithmic number of reads: each one halves the blocks that are left.
    """
    wanted = tuple(kinds)
    found: Block | None = None
    low, high = start, stop
    while low < high:
        middle = (low + high) // 2
        block = reader.last_of(wanted, middle + 1)
        if block is None or block.sequence_number < start or not holds(block):
            low = middle + 1
        else:
            found, high = block, block.sequence_number
    return found


def oldest_first(reader: RawBlocks, start: int, stop: int) -> Iterator[Block]:
    """Yields blocks ``start <= n < stop``, decoded as they stream. Raises Invalid for bytes that are no block."""
    return map(decode_block, reader.raw_blocks(start, stop))
