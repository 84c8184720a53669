"""Footers of slices: which columns there are, and between which values those of a slice lie.

Pure over files; nothing of Spark. Footers of unchanged files are remembered by the process.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from chain.data.parquet import MAX_FOOTER, MAX_FOOTER_ITEMS, to_instant
from chain.errors import Environment, Invalid, NotFound

_FOOTERS: Final = 4096
"""Footers remembered, a few kilobytes each."""


class Bounds(NamedTuple):
    """Least and greatest value of a column, nulls and NaN aside. Never too narrow; may be too wide."""

    low: Any
    high: Any


class Footer(NamedTuple):
    """What is needed of a slice's footer.

    ``bounds[name]`` is ``None`` where nothing is known, absent where the column has no values.
    """

    columns: frozenset[str]
    bounds: Mapping[str, Bounds | None]


def footer(path: Path) -> Footer:
    """Raises NotFound, Invalid."""
    try:
        found = path.stat()
    except OSError as error:
        raise NotFound(f"no slice {path.name}", rule="slice-file") from error
    return _footer(str(path), found.st_ino, found.st_size, found.st_mtime_ns)


@functools.lru_cache(_FOOTERS)
def _footer(path: str, _inode: int, _size: int, _changed: int) -> Footer:
    try:
        with pq.ParquetFile(
            path, thrift_string_size_limit=MAX_FOOTER, thrift_container_size_limit=MAX_FOOTER_ITEMS
        ) as file:
            return _summary(file.metadata, file.schema_arrow)
    except (pa.ArrowException, ValueError) as error:
        raise Invalid(f"{Path(path).name} is not a readable slice: {error}", rule="slice-parquet") from error
    except OSError as error:
        raise Environment(f"cannot read {path}: {error}", rule="disk") from error


def _summary(metadata: pq.FileMetaData, schema: pa.Schema) -> Footer:
    bounds: dict[str, Bounds | None] = {}
    for leaf in range(metadata.num_columns):
        name = metadata.schema.column(leaf).path
        if name not in schema.names or not _comparable(schema.field(name).type):
            continue
        groups = [metadata.row_group(group).column(leaf) for group in range(metadata.num_row_groups)]
        ends: list[Any] = []
        for group in groups:
            stats = group.statistics
            if stats is not None and stats.has_null_count and stats.null_count == group.num_values:
                continue
            if stats is None or not stats.has_min_max:
                bounds[name] = None
                break
            ends += [_of_statistics(end, stats, schema.field(name).type) for end in ("min", "max")]
        else:
            if ends:
                bounds[name] = Bounds(min(ends), max(ends))
    known = {name for name in schema.names if _comparable(schema.field(name).type)}
    unknown: dict[str, Bounds | None] = {name: None for name in schema.names if name not in known}
    return Footer(frozenset(schema.names), {**unknown, **bounds})


def _comparable(kind: pa.DataType) -> bool:
    """Types whose statistics order like their values do: not floats (NaN is outside of any bounds), not nested."""
    return bool(pa.types.is_integer(kind) or _is_time(kind) or pa.types.is_string(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def bounds_of(column: pa.ChunkedArray) -> Bounds | None:
    if not _comparable(column.type):
        return None
    ends = pc.min_max(column)
    low, high = ends["min"], ends["max"]
    if not low.is_valid:
        return None
    if _is_time(column.type):
        return Bounds(to_instant(low.value, column.type), to_instant(high.value, column.type))
    return Bounds(low.as_py(), high.as_py())


def may_meet(slice_: Footer, ranges: Mapping[str, Bounds]) -> bool:
    for name, wanted in ranges.items():
        if name in slice_.columns and name not in slice_.bounds:
            return False  # all null there, and null is no key
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


def _of_statistics(end: str, stats: pq.Statistics, kind: pa.DataType) -> Any:
    """Times and dates as instants: Python's have no nanoseconds, and no years before 1. All times of slices are UTC."""
    if _is_time(kind):
        return to_instant(getattr(stats, f"{end}_raw"), kind)
    return getattr(stats, end)
