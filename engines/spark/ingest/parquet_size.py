"""Bounds the memory that the rows of a Parquet file take, by its footer alone."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

_WIDTHS: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_BY_REFERENCE: Final = {"PLAIN_DICTIONARY", "RLE_DICTIONARY", "DELTA_BYTE_ARRAY"}
"""Encodings that write a value once, or its beginning, however often it comes."""
_MARKS: Final = 8
"""Bytes for whether a value is there, and for where it begins; once more for each list that it is in."""


def decoded_bytes(path: Path) -> int:
    """Returns a bound of the rows' bytes in memory; for texts that are written once, each may be as long as all.

    Raises pyarrow's errors for a file that is no Parquet.
    """
    footer = pq.read_metadata(path)
    total = 0
    for group in range(footer.num_row_groups):
        row_group = footer.row_group(group)
        for number in range(footer.num_columns):
            column, declared = row_group.column(number), footer.schema.column(number)
            width = _WIDTHS.get(column.physical_type, declared.length)
            total += column.num_values * (width + _MARKS * (1 + declared.max_repetition_level))
            if not width:
                times = column.num_values if _BY_REFERENCE & set(column.encodings) else 1
                total += times * column.total_uncompressed_size
    return total
