"""Reads what planning must know of slices: number of rows, event times, whether there are changes among them.

Read from the columns themselves, never from Parquet statistics: those are a stranger's word, not part of the logical
hash, and must not decide an answer. Slices never change, so what was read is remembered by file identity.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chain.data.parquet import SliceFile, open_slice
from chain.errors import Invalid
from engines.contract import Vocabulary
from engines.spark.rows.times import microseconds

REMEMBERED: Final = 65_536
"""Slices whose facts are kept; some 200 bytes each."""


@dataclass(frozen=True, slots=True)
class SliceFacts:
    """Of one slice; times in microseconds."""

    rows: int
    untimed: int
    first: int | None
    last: int | None
    changes: bool
    """Whether a row is anything but an addition."""


class SliceReader:
    """Reads facts, and remembers them. Safe to use from several threads: at worst something is read twice."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, int, int, int], SliceFacts] = OrderedDict()

    def facts(self, path: Path, vocab: Vocabulary) -> SliceFacts:
        """Raises NotFound, Invalid, Environment."""
        if path.is_file():
            known = self._known.get(_key(path, vocab))
            if known is not None:
                return known
        with open_slice(path) as source:
            key = _key(path, vocab)
            known = _read(source, vocab)
            self._known[key] = known
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
            return known


def _key(path: Path, vocab: Vocabulary) -> tuple[str, int, int, int]:
    stat = path.stat()
    return vocab.event_time_column, stat.st_ino, stat.st_size, stat.st_mtime_ns


def rows_before(path: Path, vocab: Vocabulary, threshold: int) -> tuple[int, int | None]:
    """How many rows of a slice have an event time before ``threshold`` microseconds, and the offset of the first.

    Raises Invalid, Environment.
    """
    count, first = 0, None
    with open_slice(path) as source:
        for times, offsets in _times(source, vocab.event_time_column, vocab.offset_column):
            late = offsets.filter(pc.less(times, threshold))
            count += len(late)
            first = late[0].as_py() if first is None and len(late) else first
    return count, first


def only_adds(path: Path, vocab: Vocabulary) -> bool:
    """Whether every row of a slice says that it is an addition. Raises NotFound, Invalid, Environment."""
    name = vocab.operation_type_column
    with open_slice(path) as source:
        return name in source.schema.names and not any(
            batch.column(0).null_count or np.any(np.asarray(batch.column(0)))
            for batch in source.batches(columns=[name])
        )


def _read(source: SliceFile, vocab: Vocabulary) -> SliceFacts:
    for name in (vocab.event_time_column, vocab.operation_type_column):
        if name not in source.schema.names:
            raise Invalid(
                f"slice {source.name} has no column {name}", rule="input-vocabulary",
                hint="the vocabulary of the input must name its columns",
            )  # fmt: skip
    firsts: list[int] = []
    lasts: list[int] = []
    untimed, changes = 0, False
    for times, ops in _times(source, vocab.event_time_column, vocab.operation_type_column):
        untimed += times.null_count
        changes = changes or bool(np.any(np.asarray(ops)))
        ends = pc.min_max(times)
        if ends["min"].is_valid:
            firsts.append(ends["min"].as_py())
            lasts.append(ends["max"].as_py())
    return SliceFacts(source.rows, untimed, min(firsts, default=None), max(lasts, default=None), changes)


def _times(source: SliceFile, column: str, other: str | None = None) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Event times as int64 microseconds, with another column beside them."""
    names = [column] if other is None else [column, other]
    for batch in source.batches(columns=names):
        yield microseconds(batch.column(column)), batch.column(names[-1])
