"""Sorts rows in little memory (external merge sort): parts are sorted, kept on disk, and merged a window at a time.

The order is that of a stable sort of all rows, whatever the parts are. In memory are a sample of the times, and one
window; the runs are maps of their files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from chain.errors import Environment
from engines.spark.ingest.shape import time_values

WINDOW: Final = 1 << 18
"""Rows that are merged at once, about."""
SAMPLED: Final = 1 << 8
"""One row of so many gives its time to the sample, by which windows are cut."""


class ExternalSort:
    """Takes rows of one schema in parts, and gives them sorted by a column of times without nulls."""

    def __init__(self, folder: Path, column: str) -> None:
        self._folder = folder
        self._column = column
        self._paths: list[Path] = []

    def add(self, rows: pa.Table) -> None:
        """Sorts one part of the input, which follows those added before. Raises Environment if the disk refuses."""
        order = np.argsort(time_values(rows.column(self._column)), kind="stable")
        path = self._folder / f"run-{len(self._paths)}.arrow"
        try:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
                writer.write_table(rows.take(pa.array(order)).combine_chunks())
        except OSError as error:
            raise Environment(f"cannot write {path}: {error}", rule="disk", hint="is the disk full?") from error
        self._paths.append(path)

    def merge(self) -> Iterator[pa.Table]:
        """Yields all rows in order, a window at a time; rows of equal times stay in input order."""
        runs = [pa.ipc.open_file(pa.memory_map(str(path))).read_all() for path in self._paths]
        times = [time_values(run.column(self._column)) for run in runs]
        sample = np.sort(np.concatenate([own[::SAMPLED] for own in times]))
        begun = np.zeros(len(runs), np.int64)
        for mark in np.unique(sample[:: max(1, WINDOW // SAMPLED)]):
            before = np.array([np.searchsorted(own, mark, "left") for own in times])
            yield from self._sort(_pieces(runs, begun, before))
            # Rows of this time may be many; they are in order as they stand.
            begun = np.array([np.searchsorted(own, mark, "right") for own in times])
            same = _pieces(runs, before, begun)
            yield from (same.slice(low, WINDOW) for low in range(0, same.num_rows, WINDOW))
        yield from self._sort(_pieces(runs, begun, np.array([len(own) for own in times])))

    def _sort(self, rows: pa.Table) -> Iterator[pa.Table]:
        if rows.num_rows:
            yield rows.take(pa.array(np.argsort(time_values(rows.column(self._column)), kind="stable")))


def _pieces(runs: list[pa.Table], starts: np.ndarray, stops: np.ndarray) -> pa.Table:
    """Returns the rows from ``starts`` to ``stops`` of the runs, one after another, without copying them."""
    pieces = [run.slice(low, high - low) for run, low, high in zip(runs, starts, stops, strict=True) if high > low]
    return pa.concat_tables(pieces) if pieces else runs[0].slice(0, 0)
