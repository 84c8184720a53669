"""Reads a dataset's history for merging: the slices that matter, some of their columns, single rows by offset.

Reads footers first. Never holds more than the requested columns, and leaves a slice out only if its statistics prove
that it cannot matter. A slice is hashed before its rows are read, since rows merged with them get a hash of their own.
Lives for one request; the process remembers footers of unchanged files.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from chain.data.evolution import as_in_force
from chain.data.parquet import ROW_GROUP, open_slice
from chain.errors import Invalid
from chain.multihash import Multihash
from chain.store.files import check_file
from engines.contract import IngestBatchRequest
from engines.footers import (
    ColumnBounds,
    Footer,
    any_changed,
    bounds_of,
    footer,
    may_change,
    may_meet,
    meeting,
    read_bounds,
)
from engines.spark.catalyst.types import struct_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SlicesMissing(Exception):
    """Raised with the hashes of slices that were not given, but may hold keys of the batch."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)


def ranges_of(keys: pa.Table) -> dict[str, ColumnBounds]:
    """Returns the ranges of the columns whose values can be compared."""
    return {name: found for name in keys.column_names if (found := bounds_of(keys.column(name)))}


class History:
    """Earlier slices of the dataset, oldest first, read with the schema in force."""

    def __init__(
        self,
        schema: pa.Schema | None,
        paths: Sequence[Path],
        hashes: Sequence[Multihash] = (),
        bounds: pa.Table | None = None,
    ) -> None:
        """``hashes``: of the files at ``paths``; if empty, the files are not checked.

        ``bounds``: key bounds of older slices, whether these are given or not; ``None``: all slices are given.
        """
        self.schema = schema
        self.paths = tuple(paths)
        self._unproven = dict(zip(paths, hashes, strict=True)) if hashes else {}
        self._bounds = bounds
        self._given = frozenset(map(str, hashes))

    @classmethod
    def of(cls, request: IngestBatchRequest, schema: pa.Schema | None) -> History:
        """Takes the history of a request. Raises Invalid, ObjectDamaged, Environment."""
        hashes = [Multihash.parse(text) for text in request.prev_data_hashes]
        if hashes and len(hashes) != len(request.prev_data_paths):
            raise Invalid("not every earlier slice has a hash", rule="history-complete")
        bounds = None
        if request.prev_data_bounds is not None:
            path = Path(request.prev_data_bounds)
            check_file(path, Multihash.parse(request.prev_data_bounds_hash or ""))
            bounds = read_bounds(path)
        return cls(schema, [Path(path) for path in request.prev_data_paths], hashes, bounds)

    def overlapping(self, ranges: Mapping[str, ColumnBounds]) -> tuple[Path, ...]:
        """Returns the slices that may hold a row whose key is within ``ranges`` (by column of the key).

        Sound: a slice is left out only if for some column all its values lie outside of its range. Raises SlicesMissing
        if one of them was not given.
        """
        if self._bounds is not None:
            missing = [name for name in meeting(self._bounds, ranges) if name not in self._given]
            if missing:
                raise SlicesMissing(missing)
        return tuple(path for path in self.paths if may_meet(self._footer(path), ranges))

    def has_changes(self, operation_column: str) -> bool:
        """Whether any earlier row was corrected or retracted."""
        if self._bounds is not None and any_changed(self._bounds):
            return True
        return any(may_change(self._footer(path), operation_column) for path in self.paths)

    def frame(self, spark: SparkSession, columns: Sequence[str], paths: Sequence[Path]) -> DataFrame:
        """Reads columns of slices; a column that an older slice lacks is null. Raises Invalid, ObjectDamaged."""
        assert self.schema is not None
        self._prove(paths)
        wanted = pa.schema([self.schema.field(name).with_nullable(True) for name in columns])
        return spark.read.schema(struct_type(wanted)).parquet(*(str(path) for path in paths))

    def tables(self, columns: Sequence[str], paths: Sequence[Path]) -> Iterator[pa.Table]:
        """Reads columns of slices in their order, a row group at most at a time. Raises Invalid, ObjectDamaged."""
        assert self.schema is not None
        self._prove(paths)
        wanted = pa.schema([self.schema.field(name).with_nullable(True) for name in columns])
        for path in paths:
            with open_slice(path) as file:
                stored = set(file.schema.names)
                there = [name for name in columns if name in stored]
                for batch in file.batches(ROW_GROUP, columns=there):
                    yield as_in_force(pa.Table.from_batches([batch]), wanted)

    def runs(self, offset_column: str) -> tuple[tuple[Path, ...], ...]:
        """Parts the slices where offsets begin anew: shards count theirs by themselves. Of one chain, there is one."""
        found: list[list[Path]] = [[]]
        last = -1
        for path in self.paths:
            bounds = self._footer(path).bounds.get(offset_column)
            if bounds is not None:
                if bounds.low <= last:
                    found.append([])
                last = bounds.high
            found[-1].append(path)
        return tuple(map(tuple, found))

    def rows_of_runs(self, places: np.ndarray, offset_column: str, columns: Sequence[str]) -> pa.Table:
        """Reads rows by ascending places: the offset times the number of runs, and the run. Raises as ``rows_at``."""
        runs = self.runs(offset_column)
        if len(runs) == 1:
            return self.rows_at(places, offset_column, columns)
        run, offsets = places % len(runs), places // len(runs)
        order = np.argsort(run, kind="stable")
        parts = [self.rows_at(offsets[run == each], offset_column, columns, runs[each]) for each in range(len(runs))]
        return pa.concat_tables(parts).take(pa.array(np.argsort(order)))

    def rows_at(
        self, offsets: np.ndarray, offset_column: str, columns: Sequence[str], paths: Sequence[Path] | None = None
    ) -> pa.Table:
        """Reads rows by ascending offsets, in the schema in force; ``paths``: of a run.

        Raises Invalid for an absent one, ObjectDamaged.
        """
        assert self.schema is not None
        schema = pa.schema([self.schema.field(name).with_nullable(True) for name in columns])
        found = []
        for path in self.paths if paths is None else paths:
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
        """Returns the footer of a slice. Raises NotFound, Invalid, ObjectDamaged."""
        try:
            return footer(path)
        except Invalid:
            self._prove([path])
            raise

    def _prove(self, paths: Sequence[Path]) -> None:
        """Checks the hashes of slices that were not checked yet. Raises ObjectDamaged, Environment."""
        unproven = [path for path in paths if path in self._unproven]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            deque(pool.map(lambda path: check_file(path, self._unproven.pop(path)), unproven), maxlen=0)


def _rows_of(path: Path, offsets: np.ndarray, offset_column: str, schema: pa.Schema) -> pa.Table:
    there = footer(path).columns
    known = [name for name in schema.names if name in there]
    table = pq.read_table(path, columns=list(dict.fromkeys([offset_column, *known])), use_threads=True)
    here = table.column(offset_column).cast(pa.int64()).to_numpy()
    places = np.searchsorted(here, offsets)
    if np.any(places >= len(here)) or np.any(here[np.minimum(places, len(here) - 1)] != offsets):
        raise Invalid(f"slice {path.name} lacks offsets that its statistics promise", rule="slice-offsets")
    return as_in_force(table.take(pa.array(places)), schema)
