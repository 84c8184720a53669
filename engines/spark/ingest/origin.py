"""Records where rows of a batch come from, and finds the row of a file on which a query of the source fails.

Where a query stands between file and row, the row of the file is found by asking the query again about halves of the
files, which is done for a fault only.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException

from chain.errors import Invalid
from chain.model.source import Transform
from engines.spark.ingest import range_tasks
from engines.spark.ingest.parse import Parts
from engines.spark.ingest.preprocess import preprocess

if TYPE_CHECKING:
    from engines.spark.runtime.session import OpenSession
SHOWN: Final = 3
"""Rows, or files, told of those at fault."""
Fails = Callable[[list[Path]], bool]
"""Whether the query is at fault about the rows of these parts alone."""


class Origin(NamedTuple):
    """Where the rows of a batch come from."""

    session: OpenSession
    parts: Parts
    query: Transform | None
    scratch: Path
    column: str
    """Of event times."""

    def asked(self, paths: list[Path]) -> pa.Table:
        """What the query makes of these parts alone. Raises Invalid, and what Spark raises."""
        assert self.query is not None
        return preprocess(self.session(), paths, self.parts.schema, self.query)


def sought(origin: Origin, fails: Fails) -> str:
    """File and line of the first row about which ``fails`` says so; names of files where no row alone does it."""
    filled = [number for number, rows in enumerate(origin.parts.rows) if rows]
    names = _listed(list(dict.fromkeys(origin.parts.tasks[number].name for number in filled)))
    try:
        while len(filled) > 1:
            half = filled[: len(filled) // 2]
            filled = half if fails([origin.parts.paths[each] for each in half]) else filled[len(half) :]
        task, rows = origin.parts.tasks[filled[0]], pq.read_table(origin.parts.paths[filled[0]])
        low, high = 0, rows.num_rows
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fails([_staged(rows, low, middle, origin)]) else (middle, high)
        return range_tasks.place_of(task, low) if fails([_staged(rows, low, high, origin)]) else names
    except (Invalid, PySparkException):
        return names  # a query that cannot be asked about some of its rows


def _staged(rows: pa.Table, low: int, high: int, origin: Origin) -> Path:
    path = origin.scratch / f"sought-{low}-{high}.parquet"
    pq.write_table(rows.slice(low, high - low), path, compression="none")
    return path


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
