"""Reads footers of slices: their columns, and the least and greatest value of each column.

Depends only on files, and uses nothing of Spark. The process remembers footers of unchanged files.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from chain.data.footer import ColumnChunk, ParquetFooter
from chain.data.parquet import open_slice, to_instant
from chain.errors import NotFound
from chain.libraries import pa, pc

_FOOTERS: Final = 4096
"""Most footers remembered, a few kilobytes each."""


class ColumnBounds(NamedTuple):
    """Least and greatest value of a column, without nulls and NaN. Never too narrow; may be too wide."""

    low: Any
    high: Any


class Footer(NamedTuple):
    """The needed parts of a slice's footer. ``bounds[name]``: ``None`` if unknown, absent if there are no values."""

    columns: frozenset[str]
    bounds: Mapping[str, ColumnBounds | None]


def footer(path: Path) -> Footer:
    """Reads the footer of a slice. Raises NotFound, Invalid, Environment."""
    try:
        found = path.stat()
    except OSError as error:
        raise NotFound(f"no slice {path.name}", rule="slice-file") from error
    return _footer(str(path), found.st_ino, found.st_size, found.st_mtime_ns)


@functools.lru_cache(_FOOTERS)
def _footer(path: str, _inode: int, _size: int, _changed: int) -> Footer:
    with open_slice(Path(path)) as file:
        return _summary(file.footer, file.schema)


def _summary(found: ParquetFooter, schema: pa.Schema) -> Footer:
    types = {field.name: field.type for field in schema}
    once = {name for name, times in Counter(schema.names).items() if times == 1}
    bounds: dict[str, ColumnBounds | None] = {
        n: None for n, kind in types.items() if n not in once or not _comparable(kind)
    }
    for number, leaf in enumerate(found.leaves):
        if leaf.path in types and leaf.path not in bounds:
            chunks = [group.chunks[number] for group in found.groups]
            told = [chunk for chunk in chunks if chunk.nulls is None or chunk.nulls != chunk.values]
            if told:
                bounds[leaf.path] = _stated_bounds(told, types[leaf.path])
    return Footer(frozenset(schema.names), bounds)


def _stated_bounds(chunks: list[ColumnChunk], kind: pa.DataType) -> ColumnBounds | None:
    """Returns the bounds in the statistics; ``None`` if a chunk states none, or has a text cut within a character."""
    said = [chunk.bounds for chunk in chunks if chunk.bounds is not None]
    if len(said) < len(chunks):
        return None
    try:
        ends = [_value(end, kind) for pair in said for end in pair]
    except UnicodeDecodeError:
        return None
    return ColumnBounds(min(ends), max(ends))


def _comparable(kind: pa.DataType) -> bool:
    """Whether statistics of the type order like its values: not for floats (NaN has no bounds) nor nested types."""
    return bool(pa.types.is_integer(kind) or _is_time(kind) or pa.types.is_string(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def bounds_of(column: pa.ChunkedArray) -> ColumnBounds | None:
    if not _comparable(column.type):
        return None
    ends = pc.min_max(column)
    low, high = ends["min"], ends["max"]
    if not low.is_valid:
        return None
    if _is_time(column.type):
        return ColumnBounds(to_instant(low.value, column.type), to_instant(high.value, column.type))
    return ColumnBounds(low.as_py(), high.as_py())


def may_meet(slice_: Footer, ranges: Mapping[str, ColumnBounds]) -> bool:
    for name, wanted in ranges.items():
        if name in slice_.columns and name not in slice_.bounds:
            return False  # all values are null, and null is no key
        known = slice_.bounds.get(name)
        if known is None or type(known.low) is not type(wanted.low):
            continue  # nothing known, or written under an older, different type
        if known.high < wanted.low or wanted.high < known.low:
            return False
    return True


def may_change(slice_: Footer, operation_column: str) -> bool:
    """Whether a slice may hold a row that corrects or retracts another."""
    if operation_column not in slice_.columns:
        return False
    bounds = slice_.bounds.get(operation_column)
    return bounds is None or bool(bounds.high > 0)


def _value(raw: bytes, kind: pa.DataType) -> Any:
    """Returns a statistic as a comparable value; times and dates as instants, since Python's lack nanoseconds and years
    before 1. All times of slices are UTC."""
    if pa.types.is_string(kind):
        return raw.decode()
    number = int.from_bytes(raw, "little", signed=not pa.types.is_unsigned_integer(kind))
    return to_instant(number, kind) if _is_time(kind) else number
