"""Where a text file may be cut so that its parts can be parsed apart and give the rows of the whole.

Sans-IO over a buffer (usually a memory map). A cut is sound only at a newline that ends a record. For JSON lines that
is every newline; in CSV a newline may be inside quotes, so a file is cut only if every quote in it is proven to open
or close a field of its own line, else it stays whole. Never parses, never copies the data.
"""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

import numpy as np

View: TypeAlias = mmap.mmap | bytes

TARGET: Final = 16 << 20
"""Bytes of one range. Large enough that a task costs more than its scheduling, small enough that a worker's memory
(about four times this while it parses) does not matter."""
_WINDOW: Final = 8 << 20
"""Bytes examined at a time when quotes are proven; a line longer than this is not proven."""
_LF: Final = 10
_CR: Final = 13


class Range(NamedTuple):
    """Bytes ``start <= n < stop``: whole records."""

    start: int
    stop: int


def line_ranges(view: View, start: int, target: int = TARGET) -> list[Range]:
    """Ranges of about ``target`` bytes from ``start`` to the end, each ending after a newline or at the end."""
    return ranges_at(view, start, range(start + target, len(view) - target // 2, target))


def ranges_at(view: View, start: int, cuts: range | list[int]) -> list[Range]:
    """Ranges cut after the first newline at or behind each of the ascending ``cuts``; none is empty."""
    ends: list[int] = []
    for cut in cuts:
        newline = view.find(b"\n", max(cut, start))
        if newline < 0 or newline + 1 >= len(view):
            break
        if not ends or newline + 1 > ends[-1]:
            ends.append(newline + 1)
    bounds = [start, *ends, len(view)]
    return [Range(one, other) for one, other in itertools.pairwise(bounds) if one < other]


def quotes_stay_in_lines(view: View, start: int, separator: int, quote: int) -> bool:
    """True when it is proven that no quoted field of the CSV text from ``start`` on holds a newline.

    ``separator`` and ``quote`` are byte values. The proof, line by line: the count of quotes is even, every odd one
    follows a separator, a line's start or the quote before it (a doubled quote), every even one is followed by a
    separator, a line's end or a quote. So each line begins and ends outside of quotes.
    """
    if view.find(bytes([quote]), start) < 0:
        return True
    data = np.frombuffer(view, np.uint8)
    try:
        return all(
            _proven(data[window.start : window.stop], separator, quote) if window.stop else False
            for window in _windows(view, start)
        )
    finally:
        del data


def _windows(view: View, start: int) -> Iterator[Range]:
    """Spans of whole lines; ``Range(n, 0)`` where a line is too long to be looked at."""
    while start < len(view):
        stop = min(start + _WINDOW, len(view))
        if stop < len(view):
            newline = view.rfind(b"\n", start, stop)
            if newline < 0:
                yield Range(start, 0)
                return
            stop = newline + 1
        yield Range(start, stop)
        start = stop


def _proven(text: np.ndarray, separator: int, quote: int) -> bool:
    quotes = np.flatnonzero(text == quote)
    if not len(quotes):
        return True
    lines = np.searchsorted(np.flatnonzero(text == _LF), quotes)
    if np.any(np.bincount(lines) % 2):
        return False
    edges = np.array([separator, _LF, _CR], np.uint8)
    opening, closing = quotes[0::2], quotes[1::2]
    before = text[np.maximum(opening - 1, 0)]
    doubled = np.zeros(len(opening), bool)
    doubled[1:] = opening[1:] - closing[:-1] == 1
    opens = (opening == 0) | np.isin(before, edges) | doubled
    after = text[np.minimum(closing + 1, len(text) - 1)]
    followed = np.zeros(len(closing), bool)
    followed[:-1] = doubled[1:]
    closes = (closing == len(text) - 1) | np.isin(after, edges) | followed
    return bool(opens.all() and closes.all())
