"""Reads footers of slices: their columns, and the least and greatest value of each column.

Depends only on files, and uses nothing of Spark. The process remembers footers of unchanged files.

In place of slices that it may not need, a coordinator gives an engine one file with the key bounds of each slice as a
row. Columns: ``name``, the hash of the slice; ``changed``, whether it may hold corrections; and for each key column
that can be compared its least and greatest value, ``low NAME`` and ``high NAME``, both null where nothing is known, and
``empty NAME`` where all values are null.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from chain.data.footer import ColumnChunk, ParquetFooter
from chain.data.parquet import open_slice, to_instant
from chain.errors import Environment, Invalid, NotFound
from chain.libraries import np, pa, pc, pq

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


NAME: Final = "name"
CHANGED: Final = "changed"


def bounds_table(
    slices: Mapping[str, Footer], schema: pa.Schema, keys: Sequence[str], operation_column: str
) -> pa.Table:
    """Builds the table of key bounds of slices, given by hash. ``schema``: the schema in force."""
    columns: dict[str, pa.Array] = {
        NAME: pa.array(list(slices), pa.string()),
        CHANGED: pa.array([may_change(slice_, operation_column) for slice_ in slices.values()], pa.bool_()),
    }
    for key in dict.fromkeys(keys):
        kind = _kind(schema.field(key).type)
        if kind is None:
            continue
        known = [_usable_bounds(slice_.bounds.get(key), kind) for slice_ in slices.values()]
        columns[f"low {key}"] = pa.array([each and each.low for each in known], kind)
        columns[f"high {key}"] = pa.array([each and each.high for each in known], kind)
        empty = [key in slice_.columns and key not in slice_.bounds for slice_ in slices.values()]
        columns[f"empty {key}"] = pa.array(empty, pa.bool_())
    return pa.table(columns)


def write_bounds(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path)


def read_bounds(path: Path) -> pa.Table:
    """Reads a file of key bounds. Raises Invalid, Environment."""
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, ValueError) as error:
        raise Invalid(f"{path.name} is not a readable file of bounds: {error}", rule="key-bounds") from error
    except OSError as error:
        raise Environment(f"cannot read {path}: {error}", rule="disk") from error
    if not {NAME, CHANGED} <= set(table.column_names):
        raise Invalid(f"{path.name} does not say which slices it is of", rule="key-bounds")
    return table


def meeting(table: pa.Table, ranges: Mapping[str, ColumnBounds]) -> list[str]:
    """Names the slices that may hold a row within ``ranges`` in all columns. Other slices certainly hold none."""
    may = np.ones(table.num_rows, bool)
    for key, wanted in ranges.items():
        if f"low {key}" not in table.column_names:
            continue
        may &= ~table.column(f"empty {key}").to_numpy()
        low, high = table.column(f"low {key}"), table.column(f"high {key}")
        if _usable_bounds(wanted, low.type) is None:
            continue
        above = pc.greater(low, pa.scalar(wanted.high, low.type))
        below = pc.less(high, pa.scalar(wanted.low, low.type))
        may &= ~pc.fill_null(pc.or_kleene(above, below), False).to_numpy()
    return [str(name) for name in table.column(NAME).filter(pa.array(may)).to_pylist()]


def any_changed(table: pa.Table) -> bool:
    """Whether any of the slices may hold corrections or retractions."""
    return bool(pc.any(table.column(CHANGED)).as_py())


def _kind(kind: pa.DataType) -> pa.DataType | None:
    """Returns the type of a column's bounds, ``None`` if they are not written; times and dates are nanoseconds."""
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return pa.int64()
    return pa.string() if pa.types.is_string(kind) else None


def _usable_bounds(bounds: ColumnBounds | None, kind: pa.DataType) -> ColumnBounds | None:
    """Returns the bounds, or ``None`` if unknown or not of this type: an older type, or beyond 64 bits."""
    if bounds is None or not all(_fits(end, kind) for end in bounds):
        return None
    return bounds


def _fits(value: Any, kind: pa.DataType) -> bool:
    if pa.types.is_integer(kind):
        return type(value) is int and -(2**63) <= value < 2**63
    return type(value) is str and bool(pa.types.is_string(kind))
