"""Plans a transaction of a changing table: which ticks are reached, and which blocks are new. Pure.

Ticks are the values of all inputs' watermarks up to the slowest input's, or else the points of a grid up to it at which
something happens. Both follow from the chains, so they are the same however blocks are grouped. Windows that late rows
correct are such a table too, keyed by window. Spec: docs/spec/engine-semantics.md#table-mode, #late-rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import msgspec
import numpy as np

from engines.contract import Vocab
from engines.spark.analysis.classify import Classification, Path
from engines.spark.analysis.declarations import Declarations
from engines.spark.analysis.monotone import MILLISECOND, Floor, FloorMonths, apply, least
from engines.spark.planning.lateness import Ruling
from engines.spark.planning.slice_facts import Closing, InputWindows
from engines.spark.planning.transaction import (
    BlockFacts,
    InputFacts,
    InputProgress,
    LateCheck,
    TransactionStep,
    progress,
)
from engines.spark.rows.changelog import LONG_AGO, distinct
from engines.spark.state.checkpoint import OpenInput, StateCheckpoint

Tick: TypeAlias = Floor | FloorMonths
"""A grid of times at which ticks may be."""


@dataclass(frozen=True, slots=True)
class TableStep:
    """A planned step of a changing table, from one tick to a later one. Times are microseconds."""

    since: int | None
    """The tick reached before; ``None``: none."""
    until: int | None
    """The tick reached now; rows that count from this time on wait. ``None``: none."""
    ticks: tuple[int, ...]
    """Without a grid: the watermarks after ``since`` up to ``until``, which are the ticks."""
    blocks: Mapping[str, tuple[BlockFacts, ...]]
    """New blocks by alias."""
    lateness: Mapping[str, int]
    grid: Tick | None = None
    """The grid whose points are the ticks; ``None``: the ticks are watermarks."""
    closing: Closing | None = None
    """For windows that late rows correct: which windows nothing can change any more; ``None``: never any."""

    def times(self, moments: np.ndarray) -> np.ndarray:
        """Returns the previous tick (``LONG_AGO``: none) and the ticks that show events at ``moments``, ascending."""
        since = LONG_AGO if self.since is None else self.since
        if self.grid is None:
            return np.array([since, *self.ticks], np.int64)
        until = LONG_AGO if self.until is None else self.until
        inside = moments[(moments >= since) & (moments < until)]
        return np.append(np.int64(since), distinct(_following(self.grid, inside)))


def _following(grid: Tick, moments: np.ndarray) -> np.ndarray:
    """Returns the first point of a grid after each moment."""
    if isinstance(grid, Floor):
        after: np.ndarray = (moments - grid.origin) // grid.size * grid.size + grid.origin + grid.size
        return after
    months = moments.astype("datetime64[us]").astype("datetime64[M]").astype(np.int64)
    later = (months // grid.months + 1) * grid.months
    return later.astype("datetime64[M]").astype("datetime64[us]").astype(np.int64)


def plan_table(
    inputs: Sequence[InputFacts], previous: StateCheckpoint | None, grid: Tick | None = None, limit: int | None = None
) -> tuple[TransactionStep, TableStep, tuple[int, ...]]:
    """Plans the step, and lists the ticks that wait for slower inputs or are after ``limit`` (microseconds).

    If any tick can be reached, at least one is, whatever the limit. Raises Invalid when blocks and checkpoint
    contradict each other.
    """
    at: InputProgress = progress(inputs, previous)
    marks = [] if previous is None or previous.ticks is msgspec.UNSET else list(previous.ticks)
    known = {mark * MILLISECOND for mark in marks}
    for given in inputs if grid is None else ():
        known.update(block.after - given.lateness for block in given.blocks if block.after is not None)
    later = sorted(mark for mark in known if at.done is None or mark > at.done)
    slowest = at.slowest if at.slowest is None or grid is None else grid(at.slowest)
    until = slowest if at.done is None or slowest is None else max(at.done, slowest)
    reached = tuple(mark for mark in later if until is not None and mark <= until)
    settled = None
    if limit is not None and grid is not None and until is not None:
        settled, until = until, min(until, _last_point(grid, at.done, limit))
    elif limit is not None and reached and reached[-1] > limit:
        settled = until
        reached = tuple(mark for mark in reached if mark <= limit) or reached[:1]
        until = reached[-1]
    waiting = tuple(mark for mark in later if until is None or mark > until)
    kept: tuple[OpenInput, ...] = at.inputs
    step = TransactionStep({}, (), None, None, until, kept, at.untimed, settled=settled if settled != until else None)
    blocks = {given.alias: tuple(block for block in given.blocks if not block.reopened) for given in inputs}
    lateness = {given.alias: given.lateness for given in inputs}
    return step, TableStep(at.done, until, reached, blocks, lateness, grid), waiting


def _last_point(grid: Tick, done: int | None, limit: int) -> int:
    """Returns the last point of a grid up to ``limit``, or the first point after ``done`` if that is later."""
    place = grid(limit)
    if done is None or place > done:
        return place
    return int(_following(grid, np.array([done], np.int64))[0])


def windows_of(ruling: Ruling, declared: Declarations) -> dict[str, InputWindows]:
    """Returns by alias the windows that late rows correct; empty if late rows correct none."""
    found = ruling.windows.of if ruling.windows is not None else {}
    return {
        alias: InputWindows(function, declared.lateness_of(alias), ruling.reach.get(alias, 0))
        for alias, function in found.items()
    }


def plan_windows(
    query: Classification,
    inputs: Sequence[InputFacts],
    windows: Mapping[str, InputWindows],
    previous: StateCheckpoint | None,
    output: Vocab,
    grid: Tick | None = None,
) -> tuple[TransactionStep, TableStep, tuple[int, ...]]:
    """Plans as ``plan_table`` does, except that the watermark follows the settled windows, as it does without late
    rows.

    A row counts from its effective time as in any changing table, but not before its window is settled; so a window's
    rows appear together at the tick that settles it, and later rows correct exactly what they change.
    """
    reached = None
    if previous is not None and None not in (marks := [item.w for item in previous.inputs]):
        reached = min(mark for mark in marks if mark is not None) * MILLISECOND
        reached = reached if grid is None else grid(reached)
    ticked = None
    if previous is not None:
        ticked = msgspec.structs.replace(previous, g=None if reached is None else reached // MILLISECOND)
    step, table, waiting = plan_table(inputs, ticked, grid)
    checks = tuple(
        LateCheck(given.alias, block.path, since)
        for given in inputs
        for block in given.blocks
        if block.path is not None and not block.reopened and block.first is not None
        for since in [windows[given.alias].accepted_from(block.before)]
        if block.first < since
    )
    done = None if previous is None or previous.g is None else previous.g * MILLISECOND
    settled = None if table.until is None else min(apply(path.low, table.until) for path in query.paths)
    watermark = max((mark for mark in (done, settled) if mark is not None), default=None)
    table = replace(table, closing=_closing(windows, query.paths, output, table.until))
    return replace(step, late_checks=checks, watermark=watermark), table, waiting


def _closing(
    windows: Mapping[str, InputWindows], paths: Sequence[Path], output: Vocab, reached: int | None
) -> Closing | None:
    """Returns which windows are final once all inputs' watermarks, less lateness, have ``reached`` this time; ``None``:
    none is ever."""
    if any(window.reach is None for window in windows.values()):
        return None
    # Compared as windows, since the inputs' rows of one window may have different times.
    oldest = min(apply(window.function, window.open_from(reached)) for window in windows.values())
    earliest = min(apply(path.low, least(windows[path.input].function, oldest)) for path in paths)
    return Closing(oldest, earliest, output.event_time)
