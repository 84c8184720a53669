"""Finds the places of records in a JSON text, for faults that the parser does not place.

Only brackets and quotes are looked at, so that no nesting is too deep. Nothing here is asked for of a text without
faults, unless a record of it fills no column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?+|[{\[]|[}\]]|[^\s{}\[\]"]++', re.DOTALL)
_NULL_FIRST: Final = re.compile(rb"\s*+null")
_NULL_BEHIND: Final = re.compile(rb"}\s*+null")
"""A null that may be a record: none within one stands behind a brace, but within texts."""


def begins_with_null(text: bytes) -> bool:
    """Whether the first record is null. pyarrow ends the process at one."""
    return _NULL_FIRST.match(text) is not None


def first_null(text: bytes, table: pa.Table) -> int | None:
    """The first record that is null itself: of ``table``, which was read from ``text``, a row without any value."""
    if any(column.null_count == 0 for column in table.columns) or _NULL_BEHIND.search(text) is None:
        return None
    empty = pa.array([True] * table.num_rows)
    for column in table.columns:
        empty = pc.and_(empty, column.is_null())
    if not pc.any(empty).as_py():
        return None
    return next((row for row, (start, stop) in enumerate(_spans(text)) if text[start:stop] == b"null"), None)


def first_refused(text: bytes, is_refused: Callable[[bytes], bool]) -> tuple[int, bytes] | None:
    """The first record that is refused by itself, with its number; ``None`` where the fault is of none."""
    ends = [0, *(stop for _, stop in _spans(text))]
    low, high = 0, len(ends) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_refused(text[ends[low] : ends[middle]]) else (middle, high)
    found = text[ends[low] : ends[high]].strip()
    return (low, found) if found and is_refused(found) else None


def _spans(text: bytes) -> Iterator[tuple[int, int]]:
    """Where what stands side by side in a text begins and ends: objects, and what is none."""
    depth, start = 0, 0
    for token in _TOKEN.finditer(text):
        kind = text[token.start()]
        if not depth:
            start = token.start()
        if kind in b"{[":
            depth += 1
        elif kind in b"}]":
            depth = max(0, depth - 1)
        if not depth:
            yield start, token.end()
