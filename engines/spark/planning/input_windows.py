"""Computes the windows of one input's rows, where each row is in exactly one: numbers in columns.

Spec: docs/spec/engine-semantics.md#late-rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from engines.spark.analysis.monotone import EARLIEST, Floor, FloorMonths, Function, Shift, apply, first, least
from engines.spark.rows.tables import microseconds


@dataclass(frozen=True, slots=True)
class InputWindows:
    """The windows of one input's rows. Times are microseconds; a window is the image of its rows' event times."""

    function: Function
    lateness: int
    reach: int | None
    """How far behind the watermark a row may come and still count; ``None``: as far as it likes."""

    def of(self, times: np.ndarray) -> np.ndarray:
        for step in self.function:
            if isinstance(step, Floor | Shift | FloorMonths):
                times = np.asarray(step(times))  # type: ignore[arg-type]  # plain arithmetic, also on columns
            else:
                distinct, index = np.unique(times, return_inverse=True)
                times = np.array([step(int(time)) for time in distinct], np.int64)[index]
        return times

    def last_instants(self, times: np.ndarray) -> np.ndarray:
        """The last instant of each time's window: a watermark after it settles the window."""
        following = first(self.function)
        windows, index = np.unique(self.of(times), return_inverse=True)
        return np.array([apply(following, int(window) + 1) - 1 for window in windows], np.int64)[index]

    def accepted_from(self, before: int | None) -> int:
        """Rows of a block with this watermark before it that are earlier do not count."""
        if before is None or self.reach is None:
            return EARLIEST
        return least(self.function, apply(self.function, before - self.lateness - self.reach))

    def open_from(self, reached: int | None) -> int:
        """The earliest row that can still change something when all inputs' watermarks, less lateness, have
        ``reached`` so far: those to come, and those that wait.
        """
        if reached is None or self.reach is None:
            return EARLIEST
        return least(self.function, apply(self.function, reached - self.reach))


@dataclass(frozen=True, slots=True)
class Closing:
    """Which windows nothing can change any more. They are forgotten at once, so that state is a function of the cut."""

    oldest: int
    """The first window that rows to come can bear on."""
    earliest: int
    """The least event time of its output rows, microseconds."""
    column: str
    """Event time of output rows."""

    def open_windows(self, windows: np.ndarray, waiting: np.ndarray) -> np.ndarray:
        """Which are still open. ``waiting``: those of rows that will still begin to count, or stop: a correction into
        the future takes back its old row only then.
        """
        still: np.ndarray = (windows >= self.oldest) | np.isin(windows, waiting)
        return still

    def open_rows(self, written: pa.Table) -> pa.Table:
        """Output rows of windows that are still open, where rows are never taken back."""
        times = microseconds(written.column(self.column).combine_chunks())
        return written.filter(pc.greater_equal(times, self.earliest))
