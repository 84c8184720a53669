"""What a dataset holds already, for merging: which slices matter, their columns in Spark, single rows by offset.

Reads footers first. Never holds more than the columns asked for, and leaves a slice out only where its statistics prove
that it cannot matter. A slice whose rows are read is hashed before, for what is merged with it gets a hash of its own.
Lives for one request; footers of unchanged files are remembered by the process.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from chain.data.evolution import as_in_force
from chain.data.parquet import MAX_FOOTER, MAX_FOOTER_ITEMS, to_instant
from chain.errors import Environment, Invalid, NotFound
from chain.multihash import Multihash
from chain.store.objects import check_file
from engines.spark.spark_types import struct_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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


class History:
    """Earlier slices of the dataset, oldest first, and the schema in force that they are read with."""

    def __init__(self, schema: pa.Schema | None, paths: Sequence[Path], hashes: Sequence[Multihash] = ()) -> None:
        """``hashes``: of the files at ``paths``, or none, and they are believed."""
        self.schema = schema
        self.paths = tuple(paths)
        self._unproven = dict(zip(paths, hashes, strict=True)) if hashes else {}

    def overlapping(self, keys: pa.Table) -> tuple[Path, ...]:
        """Slices that may hold a row with the key of a row in ``keys`` (columns: the key, in any order).

        Sound: a slice is left out only if for some column all its values lie outside of the values of ``keys``.
        """
        ranges = {name: found for name in keys.column_names if (found := _bounds(keys.column(name)))}
        return tuple(path for path in self.paths if _may_meet(self._footer(path), ranges))

    def frame(self, spark: SparkSession, columns: Sequence[str], paths: Sequence[Path]) -> DataFrame:
        """These columns of these slices; a column that an older slice lacks is null. Raises Invalid, ObjectDamaged."""
        assert self.schema is not None
        self._prove(paths)
        wanted = pa.schema([self.schema.field(name).with_nullable(True) for name in columns])
        return spark.read.schema(struct_type(wanted)).parquet(*(str(path) for path in paths))

    def rows_at(self, offsets: np.ndarray, offset_column: str, columns: Sequence[str]) -> pa.Table:
        """Rows by ascending offsets, in the types of the schema in force.

        Raises Invalid when one is not there, ObjectDamaged.
        """
        assert self.schema is not None
        schema = pa.schema([self.schema.field(name).with_nullable(True) for name in columns])
        found = []
        for path in self.paths:
            bounds = self._footer(path).bounds.get(offset_column)
            if bounds is None:
                continue
            low, high = np.searchsorted(offsets, [bounds.low, bounds.high + 1])
            if low < high:
                self._prove([path])
                found.append(_rows_of(path, offsets[low:high], offset_column, schema))
        table = pa.concat_tables([schema.empty_table(), *found])
        if table.num_rows != len(offsets):
            raise Invalid(
                f"{len(offsets) - table.num_rows} earlier rows are not in the slices given", rule="history-complete"
            )
        return table

    def _footer(self, path: Path) -> Footer:
        """Raises NotFound, Invalid, ObjectDamaged."""
        try:
            return footer(path)
        except Invalid:
            self._prove([path])
            raise

    def _prove(self, paths: Sequence[Path]) -> None:
        """Hash those that were not yet. Raises ObjectDamaged, Environment."""
        unproven = [path for path in paths if path in self._unproven]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            deque(pool.map(lambda path: check_file(path, self._unproven.pop(path)), unproven), maxlen=0)


def _rows_of(path: Path, offsets: np.ndarray, offset_column: str, schema: pa.Schema) -> pa.Table:
    known = [name for name in schema.names if name in footer(path).columns]
    table = pq.read_table(path, columns=list(dict.fromkeys([offset_column, *known])), use_threads=True)
    here = table.column(offset_column).cast(pa.int64()).to_numpy()
    places = np.searchsorted(here, offsets)
    if np.any(places >= len(here)) or np.any(here[np.minimum(places, len(here) - 1)] != offsets):
        raise Invalid(f"slice {path.name} lacks offsets that its statistics promise", rule="slice-offsets")
    return as_in_force(table.take(pa.array(places)), schema)


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
    simple = pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    return bool(simple or pa.types.is_string(kind))


def _bounds(column: pa.ChunkedArray) -> Bounds | None:
    if not _comparable(column.type):
        return None
    ends = pc.min_max(column)
    low, high = ends["min"], ends["max"]
    if not low.is_valid:
        return None
    if pa.types.is_timestamp(column.type):
        return Bounds(to_instant(low.value, column.type), to_instant(high.value, column.type))
    return Bounds(low.as_py(), high.as_py())


def _may_meet(slice_: Footer, ranges: Mapping[str, Bounds]) -> bool:
    for name, wanted in ranges.items():
        if name in slice_.columns and name not in slice_.bounds:
            return False  # all null there, and null is no key
        known = slice_.bounds.get(name)
        if known is None or type(known.low) is not type(wanted.low):
            continue  # nothing known, or written under an older, different type
        if known.high < wanted.low or wanted.high < known.low:
            return False
    return True


def _of_statistics(end: str, stats: pq.Statistics, kind: pa.DataType) -> Any:
    """Times as instants: Python's own have no nanoseconds. All times of slices are UTC."""
    if pa.types.is_timestamp(kind):
        return to_instant(getattr(stats, f"{end}_raw"), kind)
    return getattr(stats, end)
