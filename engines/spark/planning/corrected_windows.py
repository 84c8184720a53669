"""Plans corrections of windows by late rows: the settled part of a query is a changing table, keyed by window.

A row counts from its effective time as in any such table, but not before its window is settled; so a window's rows
appear together at the tick that settles it, and what comes later corrects exactly what it changes. Plans, and works on
columns; runs no query. Spec: docs/spec/engine-semantics.md#table-mode, #late-rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from engines.contract import Vocabulary
from engines.spark.analysis.classify import Classification, Path
from engines.spark.analysis.declarations import Declarations
from engines.spark.analysis.monotone import MILLISECOND, apply, least
from engines.spark.planning.input_windows import Closing, InputWindows
from engines.spark.planning.lateness import Ruling
from engines.spark.planning.table_transaction import TableStep, Tick, plan_table
from engines.spark.planning.transaction import InputFacts, LateCheck, TransactionStep
from engines.spark.state.checkpoint import Checkpoint


def windows_of(ruling: Ruling, declared: Declarations) -> dict[str, InputWindows]:
    """By alias, if late rows correct windows."""
    found = ruling.windows.of if ruling.windows is not None else {}
    return {
        alias: InputWindows(function, declared.lateness_of(alias), ruling.reach.get(alias, 0))
        for alias, function in found.items()
    }


def plan_windows(
    query: Classification,
    inputs: Sequence[InputFacts],
    windows: Mapping[str, InputWindows],
    previous: Checkpoint | None,
    output: Vocabulary,
    grid: Tick | None = None,
) -> tuple[TransactionStep, TableStep, tuple[int, ...]]:
    """As ``plan_table``, but for the watermark: that promises settled windows, as it does without late rows."""
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
    windows: Mapping[str, InputWindows], paths: Sequence[Path], output: Vocabulary, reached: int | None
) -> Closing | None:
    """What is closed when all inputs' watermarks, less lateness, have ``reached`` so far; ``None``: nothing ever is."""
    if any(each.reach is None for each in windows.values()):
        return None
    # In windows, since those of one input may lie elsewhere in time than those of another.
    oldest = min(apply(each.function, each.open_from(reached)) for each in windows.values())
    earliest = min(apply(path.low, least(windows[path.input].function, oldest)) for path in paths)
    return Closing(oldest, earliest, output.event_time_column)
