"""Finds where a Parquet file may be cut, by its footer: between row groups. A group belongs to the range in which it
begins."""

from __future__ import annotations

import itertools
from typing import Final

from chain.data.footer import ParquetFooter, RowGroup
from engines.spark.ingest.ranges import TARGET, Range

MOST: Final = 64
"""Ranges of a file: the footer is read for each. A long one takes no more memory."""
_MARKS: Final = 8
"""Bytes for whether a value is there, and for where it begins."""


def parquet_ranges(footer: ParquetFooter, size: int, target: int = TARGET) -> list[Range]:
    """Returns ranges of a file of ``size`` bytes that cover it; the rows of each take about ``target`` bytes, or are of
    one group. A file whose groups do not begin one after another is one range.
    """
    starts = _starts(footer, size)
    if starts is None:
        return [Range(0, size)]
    each = [_bytes(group) for group in footer.groups]
    target = max(target, sum(each) // MOST)
    cuts, held = [0], 0
    for start, own in zip(starts, each, strict=True):
        if held and held + own > target:
            cuts.append(start)
            held = 0
        held += own
    return list(itertools.starmap(Range, itertools.pairwise([*cuts, size])))


def groups_of(footer: ParquetFooter, span: Range, size: int) -> range:
    """Returns the row groups of a range that ``parquet_ranges`` gave."""
    starts = _starts(footer, size)
    if starts is None:
        return range(len(footer.groups))
    found = [group for group, start in enumerate(starts) if span.start <= start < span.stop]
    return range(found[0], found[-1] + 1) if found else range(0)


def decoded_bytes(footer: ParquetFooter, groups: range) -> int:
    """Estimates the bytes of these groups' rows in memory, without what texts take that come again and again."""
    return sum(_bytes(footer.groups[group]) for group in groups)


def _starts(footer: ParquetFooter, size: int) -> list[int] | None:
    """Returns where each row group begins, or ``None`` if these do not rise within the file."""
    if not footer.leaves:
        return None
    firsts = [group.chunks[0] for group in footer.groups]
    starts = [first.data_page if first.dictionary_page is None else first.dictionary_page for first in firsts]
    return starts if all(a < b for a, b in itertools.pairwise([-1, *starts, size])) else None


def _bytes(group: RowGroup) -> int:
    return sum(max(0, chunk.opened_size) + max(0, chunk.values) * _MARKS for chunk in group.chunks)
