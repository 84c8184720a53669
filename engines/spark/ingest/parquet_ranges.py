"""Finds where a Parquet file may be cut, and bounds the memory that the rows of a range take, by its footer alone.

A cut is between row groups; a group belongs to the range in which it begins.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import pyarrow.parquet as pq

from engines.spark.ingest.ranges import TARGET, Range

_WIDTHS: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_BY_REFERENCE: Final = {"PLAIN_DICTIONARY", "RLE_DICTIONARY", "DELTA_BYTE_ARRAY"}
"""Encodings that write a value once, or its beginning, however often it comes."""
_MARKS: Final = 8
"""Bytes for whether a value is there, and for where it begins; once more for each list that it is in."""


def parquet_ranges(footer: pq.FileMetaData, size: int, target: int = TARGET) -> list[Range]:
    """Returns ranges of a file of ``size`` bytes that cover it; the rows of each take ``target`` bytes, or are of one
    group. A file whose groups do not begin one after another is one range.
    """
    starts = _starts(footer, size)
    if starts is None:
        return [Range(0, size)]
    cuts, held = [0], 0
    for group, start in enumerate(starts):
        own = decoded_bytes(footer, [group])
        if held and held + own > target:
            cuts.append(start)
            held = 0
        held += own
    return list(itertools.starmap(Range, itertools.pairwise([*cuts, size])))


def groups_of(footer: pq.FileMetaData, span: Range, size: int) -> Sequence[int]:
    """Returns the row groups of a range that ``parquet_ranges`` gave, in the order of the file."""
    starts = _starts(footer, size)
    if starts is None:
        return range(footer.num_row_groups)
    return [group for group, start in enumerate(starts) if span.start <= start < span.stop]


def _starts(footer: pq.FileMetaData, size: int) -> list[int] | None:
    """Returns where each row group begins, or ``None`` if these do not rise within the file."""
    if not footer.num_columns:
        return None
    starts = []
    for group in range(footer.num_row_groups):
        column = footer.row_group(group).column(0)
        dictionary = column.dictionary_page_offset if column.has_dictionary_page else None
        starts.append(min(column.data_page_offset, column.data_page_offset if dictionary is None else dictionary))
    rising = all(a < b for a, b in itertools.pairwise([-1, *starts, size]))
    return starts if rising else None


def decoded_bytes(footer: pq.FileMetaData, groups: Sequence[int]) -> int:
    """Returns a bound of the bytes of these groups' rows in memory; of texts that are written once, each may be as long
    as all.
    """
    total = 0
    for group in groups:
        row_group = footer.row_group(group)
        for number in range(footer.num_columns):
            column, declared = row_group.column(number), footer.schema.column(number)
            width = _WIDTHS.get(column.physical_type, declared.length)
            total += column.num_values * (width + _MARKS * (1 + declared.max_repetition_level))
            if not width:
                times = column.num_values if _BY_REFERENCE & set(column.encodings) else 1
                total += times * column.total_uncompressed_size
    return total
