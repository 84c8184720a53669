"""Finds where a text file may be cut so that its parts, parsed apart, give the rows of the whole.

Sans-IO over a buffer (usually a memory map). A cut is sound only at a newline that ends a record. For JSON lines that
is every newline; in CSV a newline may be inside quotes, so a file is cut only if that is proven of none (``quoting``),
else it stays whole. Never parses, never copies the data.
"""

from __future__ import annotations

import itertools
import mmap
from typing import Final, NamedTuple, TypeAlias

View: TypeAlias = mmap.mmap | bytes

TARGET: Final = 16 << 20
"""Bytes of one range: large enough that a task costs more than its scheduling, small enough for a worker's memory, of
which parsing takes about four times as much."""
WINDOW: Final = 8 << 20
"""Bytes examined at a time."""


class Range(NamedTuple):
    """Bytes ``start <= n < stop``: complete records."""

    start: int
    stop: int


def line_ranges(view: View, start: int, target: int = TARGET) -> list[Range]:
    """Returns ranges of about ``target`` bytes from ``start`` to the end, each ending after a newline or at the end."""
    return ranges_at(view, start, range(start + target, len(view) - target // 2, target))


def ranges_at(view: View, start: int, cuts: range | list[int]) -> list[Range]:
    """Returns ranges cut after the first newline at or after each of the ascending ``cuts``; none is empty."""
    ends: list[int] = []
    for cut in cuts:
        newline = view.find(b"\n", max(cut, start))
        if newline < 0 or newline + 1 >= len(view):
            break
        if not ends or newline + 1 > ends[-1]:
            ends.append(newline + 1)
    bounds = [start, *ends, len(view)]
    return [Range(one, other) for one, other in itertools.pairwise(bounds) if one < other]


def first_of(view: View, byte: bytes, start: int) -> int:
    """Returns the first position of a byte from ``start``, or -1. Of a mapped file only a window is in memory."""
    for at in range(start, len(view), WINDOW):
        found = view.find(byte, at, at + WINDOW)
        release(view, at, at + WINDOW)
        if found >= 0:
            return found
    return -1


def release(view: View, start: int, stop: int) -> None:
    """Unmaps bytes of a file that are not needed soon: they are no memory of this process until it reads them."""
    if isinstance(view, mmap.mmap):
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        view.madvise(mmap.MADV_DONTNEED, first, min(stop, len(view)) - first)
