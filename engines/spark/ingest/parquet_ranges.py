"""Finds where a Parquet file may be cut, and how many of its rows are held at once.

A cut is between row groups; a group belongs to the range in which it begins. A file of few bytes can hold any number of
long texts, since a text that repeats is written once; so dictionaries are read before rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from chain.data.parquet import READ_ROWS
from engines.spark.ingest.ranges import TARGET, Range

_WIDTHS: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_BY_DICTIONARY: Final = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}
_BY_DIFFERENCE: Final = {"DELTA_BYTE_ARRAY"}
"""Encodings that write a text once however often it comes, and those that write how it differs from the one before."""
_SHARED: Final = 8
"""How many times its mean length in the file a text counts that is written by what differs."""
_TEXTS: Final = {"STRING", "JSON", "BSON", "ENUM", "NONE"}
HELD: Final = 4 * TARGET
"""Bytes of rows that a thread holds at once."""
BUFFER: Final = 1 << 20
"""Bytes of a column that are read at once; a chunk of it may be large."""
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
    """Estimates the bytes of these groups' rows in memory; texts of a dictionary may take more."""
    return sum(
        column.num_values * _value_bytes(column, footer.schema.column(number)) + column.total_uncompressed_size
        for group in groups
        for number, column in enumerate(_columns(footer, group))
    )


def batch_rows(path: Path, footer: pq.FileMetaData, group: int, names: Collection[str]) -> int:
    """Returns how many rows of a row group, with these columns, take ``HELD`` bytes of memory or less; at least one.

    Each text of a dictionary counts as the longest, any other value as the mean of its column, and as eight times that
    if it is written by what differs from the one before. Raises pyarrow's errors for a damaged file.
    """
    rows, row, texts = max(1, footer.row_group(group).num_rows), 1.0, {}
    for number, column in enumerate(_columns(footer, group)):
        declared, encodings = footer.schema.column(number), set(column.encodings)
        if any(declared.path == name or declared.path.startswith(f"{name}.") for name in names):
            mean = column.total_uncompressed_size / rows
            values = column.num_values / rows
            row += values * _value_bytes(column, declared) + mean * (_SHARED if encodings & _BY_DIFFERENCE else 1)
            if encodings & _BY_DICTIONARY and declared.logical_type.type in _TEXTS:
                texts[declared.path] = values
    if texts:
        row += sum(texts.values()) * _longest(path, group, list(texts))
    return int(min(READ_ROWS, max(1, HELD // max(1.0, row))))


def _columns(footer: pq.FileMetaData, group: int) -> Iterator[pq.ColumnChunkMetaData]:
    row_group = footer.row_group(group)
    return (row_group.column(number) for number in range(row_group.num_columns))


def _value_bytes(column: pq.ColumnChunkMetaData, declared: pq.ColumnSchema) -> int:
    """Returns the bytes of one value in memory, without those of a text."""
    return int(_WIDTHS.get(column.physical_type, declared.length) + _MARKS * (1 + declared.max_repetition_level))


def _longest(path: Path, group: int, columns: list[str]) -> int:
    """Returns the length of the longest text in the dictionaries of these columns of texts."""
    longest = 0
    with pq.ParquetFile(path, read_dictionary=columns, buffer_size=BUFFER) as file:
        for batch in file.iter_batches(READ_ROWS, row_groups=[group], columns=columns, use_threads=False):
            for dictionary in itertools.chain.from_iterable(map(_dictionaries, batch.columns)):
                longest = max(longest, pc.max(pc.binary_length(dictionary)).as_py() or 0)
    return longest


def _dictionaries(values: pa.Array) -> Iterator[pa.Array]:
    """Yields the dictionaries of a column, and of its members."""
    if isinstance(values, pa.DictionaryArray):
        yield values.dictionary
    elif isinstance(values, pa.StructArray):
        yield from itertools.chain.from_iterable(map(_dictionaries, values.flatten()))
    elif isinstance(values, pa.ListArray | pa.LargeListArray | pa.MapArray):
        yield from _dictionaries(values.values)
