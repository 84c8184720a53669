"""Reads the facts of slices that planning needs: number of rows, event times, whether they hold changes.

Facts are read from the columns themselves, never from Parquet statistics: those are a stranger's claim, not part of the
logical hash, and must not decide an answer. Slices never change, so facts are remembered by file identity.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pathlib import Path as FilePath
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chain.data.parquet import SliceFile, open_slice
from chain.errors import Invalid
from engines.contract import Vocab
from engines.spark.analysis.influence import SessionMember, SessionWindow
from engines.spark.analysis.monotone import EARLIEST, LATEST, Floor, FloorMonths, Function, Shift, apply, first, least
from engines.spark.planning.transaction import Judged
from engines.spark.rows.tables import microseconds

REMEMBERED: Final = 65_536
"""Most slices whose facts are kept; some 200 bytes each."""
TIME: Final = "time"


@dataclass(frozen=True, slots=True)
class SliceFacts:
    """The facts of one slice. Times are microseconds."""

    rows: int
    untimed: int
    first: int | None
    last: int | None
    changes: bool
    """Whether any row is not an addition."""


class SliceReader:
    """Reads facts of slices and remembers them. Safe to use from several threads: at worst something is read twice."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, int, int, int], SliceFacts] = OrderedDict()

    def facts(self, path: Path, vocab: Vocab) -> SliceFacts:
        """Returns the facts of a slice. Raises NotFound, Invalid, Environment."""
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


def _key(path: Path, vocab: Vocab) -> tuple[str, int, int, int]:
    stat = path.stat()
    return vocab.event_time, stat.st_ino, stat.st_size, stat.st_mtime_ns


def rows_before(path: Path, vocab: Vocab, threshold: int) -> tuple[int, int | None]:
    """Counts rows before ``threshold`` (microseconds); also returns the first such row's offset. Raises Invalid,
    Environment."""
    count, first = 0, None
    with open_slice(path) as source:
        for times, offsets in _times(source, vocab.event_time, vocab.offset):
            late = offsets.filter(pc.less(times, threshold))
            count += len(late)
            first = late[0].as_py() if first is None and len(late) else first
    return count, first


def only_adds(path: Path, vocab: Vocab) -> bool:
    """Whether every row of a slice is an addition. Raises NotFound, Invalid, Environment."""
    name = vocab.operation_type
    with open_slice(path) as source:
        return name in source.schema.names and not any(
            batch.column(0).null_count or np.any(np.asarray(batch.column(0)))
            for batch in source.batches(columns=[name])
        )


def _read(source: SliceFile, vocab: Vocab) -> SliceFacts:
    for name in (vocab.event_time, vocab.operation_type):
        if name not in source.schema.names:
            raise Invalid(
                f"slice {source.name} has no column {name}",
                rule="input-vocabulary",
                hint="the vocabulary of the input must name its columns",
            )
    firsts: list[int] = []
    lasts: list[int] = []
    untimed, changes = 0, False
    for times, ops in _times(source, vocab.event_time, vocab.operation_type):
        untimed += times.null_count
        changes = changes or bool(np.any(np.asarray(ops)))
        ends = pc.min_max(times)
        if ends["min"].is_valid:
            firsts.append(ends["min"].as_py())
            lasts.append(ends["max"].as_py())
    return SliceFacts(source.rows, untimed, min(firsts, default=None), max(lasts, default=None), changes)


def _times(source: SliceFile, column: str, other: str | None = None) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Yields batches of event times as int64 microseconds, each with the column ``other`` beside it."""
    names = [column] if other is None else [column, other]
    for batch in source.batches(columns=names):
        yield microseconds(batch.column(column)), batch.column(names[-1])


class Sessions:
    """Finds the start and end of sessions from the rows in the inputs' slices, since the plan of a query does not have
    them.

    A session is formed by the rows of all members together: a session kept open by a row of one input is not settled
    for the other inputs either. Made for one transaction over the slices that it sees; a session still open is whole
    among them, since the checkpoint keeps its blocks open. Spec: docs/spec/engine-semantics.md#influence, #time.
    """

    def __init__(self, vocabs: dict[str, Vocab]) -> None:
        self._vocabs = vocabs
        self._known: dict[tuple[int, tuple[SessionMember, ...]], tuple[np.ndarray, np.ndarray]] = {}

    def oldest(self, sessions: SessionWindow, judged: Mapping[str, Judged], end: int) -> int:
        """Returns when the oldest session begins that ends at ``end`` or later, in microseconds of the times from which
        the query forms sessions; ``LATEST`` if there is none. Raises Invalid, Environment."""
        key = (sessions.gap, sessions.of)
        if key not in self._known:
            rows = [
                _read_accepted(FilePath(block.path), self._vocabs[member.input].event_time, member, threshold)
                for member in sessions.of
                for block, threshold in judged[member.input]
                if block.path is not None and block.first is not None
            ]
            self._known[key] = _spans(rows, sessions.gap)
        starts, ends = self._known[key]
        found = starts[ends >= end]
        return int(found.min()) if len(found) else LATEST


def _spans(parts: Sequence[pa.Table], gap: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns starts and ends of sessions, microseconds. Rows exactly one gap apart are in one session, as in Spark."""
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    times = np.concatenate([np.asarray(part.column(TIME)) for part in parts])
    groups = group_codes(_keys(parts))
    order = np.lexsort((times, groups))
    times, groups = times[order], groups[order]
    begins = np.ones(len(times), bool)
    begins[1:] = (groups[1:] != groups[:-1]) | (np.diff(times) > gap)
    finishes = np.append(begins[1:], True)[: len(times)]
    return times[begins], times[finishes] + gap


def _keys(parts: Sequence[pa.Table]) -> pa.Table:
    """Returns the key columns of all parts; a column without a common type is left out, which can only merge groups."""
    found = [pa.nulls(sum(part.num_rows for part in parts))]
    for name in parts[0].column_names[1:]:
        with contextlib.suppress(pa.ArrowTypeError):
            found.append(pa.concat_tables([part.select([name]) for part in parts], promote_options="permissive")[name])
    return pa.table(found, names=[str(at) for at in range(len(found))])


def _read_accepted(path: FilePath, time: str, member: SessionMember, threshold: int) -> pa.Table:
    """Returns rows that are not late: effective times (int64 microseconds), keys by number; missing columns null."""
    with open_slice(path) as source:
        there = set(source.schema.names)
        present = [name for name in dict.fromkeys((time, *member.keys)) if name in there]
        table = pa.Table.from_batches(
            list(source.batches(columns=present)), schema=pa.schema([source.schema.field(name) for name in present])
        )
    times = microseconds(table.column(time).combine_chunks())
    kept = np.asarray(times.is_valid()) & (np.asarray(times.fill_null(0)) >= threshold)
    found = {TIME: pc.add(times, member.shift)} | {
        str(at): table.column(name) if name in there else pa.nulls(table.num_rows)
        for at, name in enumerate(member.keys)
    }
    return pa.table(found).filter(pa.array(kept))


def group_codes(keys: pa.Table) -> np.ndarray:
    """Returns a number for each row, equal where all columns are equal; skips nested columns, which can only merge
    groups."""
    codes = np.zeros(keys.num_rows, np.int64)
    for column in keys.columns:
        if pa.types.is_nested(column.type):
            continue
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
        values = np.asarray(encoded.indices.fill_null(-1), dtype=np.int64)
        _, codes = np.unique(np.stack([codes, values]), axis=1, return_inverse=True)
        codes = codes.reshape(-1).astype(np.int64)
    return codes


@dataclass(frozen=True, slots=True)
class InputWindows:
    """Assigns each row of an input to its one window. Times are microseconds.

    A window is the value of the window function for its rows' event times. Spec:
    docs/spec/engine-semantics.md#late-rows.
    """

    function: Function
    lateness: int
    reach: int | None
    """How far behind the watermark a row may come and still count, microseconds; ``None``: unlimited."""

    def of(self, times: np.ndarray) -> np.ndarray:
        for step in self.function:
            if isinstance(step, Floor | Shift | FloorMonths):
                times = np.asarray(step(times))  # type: ignore[arg-type]  # plain arithmetic, also on columns
            else:
                distinct, index = np.unique(times, return_inverse=True)
                times = np.array([step(int(time)) for time in distinct], np.int64)[index]
        return times

    def last_instants(self, times: np.ndarray) -> np.ndarray:
        """Returns the last instant of each time's window: a watermark after it settles the window."""
        following = first(self.function)
        windows, index = np.unique(self.of(times), return_inverse=True)
        return np.array([apply(following, int(window) + 1) - 1 for window in windows], np.int64)[index]

    def accepted_from(self, before: int | None) -> int:
        """Returns the event time before which rows do not count, in a block with the watermark ``before`` it."""
        if before is None or self.reach is None:
            return EARLIEST
        return least(self.function, apply(self.function, before - self.lateness - self.reach))

    def open_from(self, reached: int | None) -> int:
        """Returns the least event time of rows, future or waiting, that can still change something once all inputs'
        watermarks, less lateness, have reached ``reached``."""
        if reached is None or self.reach is None:
            return EARLIEST
        return least(self.function, apply(self.function, reached - self.reach))


@dataclass(frozen=True, slots=True)
class Closing:
    """Decides which windows are final. Final ones are dropped from the state at once, so that it is a function of the
    cut."""

    oldest: int
    """The first window that future rows can change."""
    earliest: int
    """The least event time of that window's output rows, microseconds."""
    column: str
    """Name of the event time column of the output."""

    def open_windows(self, windows: np.ndarray, waiting: np.ndarray) -> np.ndarray:
        """Marks the windows that are still open.

        ``waiting``: windows of rows that have yet to come into force or to end: a correction that takes effect in the
        future retracts its old row only then.
        """
        still: np.ndarray = (windows >= self.oldest) | np.isin(windows, waiting)
        return still

    def open_rows(self, written: pa.Table) -> pa.Table:
        """Returns the output rows of windows that are still open, for output whose rows are never retracted."""
        times = microseconds(written.column(self.column).combine_chunks())
        return written.filter(pc.greater_equal(times, self.earliest))

    def open_groups(self, groups: pa.Table, key: str, field: int) -> pa.Table:
        """Returns the groups of windows that are still open. The window is the column ``key``, or a field of it."""
        windows = groups.column(key).combine_chunks()
        if pa.types.is_struct(windows.type):
            windows = pc.struct_field(windows, field)
        return groups.filter(pc.greater_equal(microseconds(windows), self.oldest))
