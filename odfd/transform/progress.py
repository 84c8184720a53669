"""Reports the progress of a transaction to people: its stage, its inputs, and how much of these was read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, TypeAlias

import msgspec

from chain.ids import DatasetId
from chain.wording import plural, size
from engines.contract import STAGES, STARTING, EngineProgress, OnProgress
from odfd.transform.plan import TransformPlan

_SAID: Final = {STARTING: "starting the engine"}
"""Stages of an engine that are shown to people in other words."""


class TransformStep(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of one transaction."""

    stage: str
    """Stage of an engine (``engines.contract.STAGES``), or of the node: ``checking`` or ``committing``."""
    slices: int = 0
    """Number of input slices that the transaction reads."""
    bytes: int = 0
    """Bytes of these slices."""
    rows: int = 0
    """Rows of these slices."""
    rows_read: int | None = None
    """Rows of these that the engine has read so far; ``None``: it does not report it."""
    tasks_done: int | None = None
    tasks_total: int | None = None
    """Number of tasks known so far: each step of a query adds its own."""
    repeat: int = 0
    """Number of the recorded transaction that is executed again, from 1; 0 for a new one."""
    repeats: int = 0
    """Number of all transactions that are executed again."""

    def __str__(self) -> str:
        """Formats the stage, the inputs, and the tasks, which go on after all rows are read."""
        parts = [_SAID.get(self.stage, self.stage)]
        if self.slices:
            parts.append(f"{plural(self.rows, 'row')} of {plural(self.slices, 'slice')} ({size(self.bytes)})")
        if self.tasks_total:
            parts.append(f"{self.tasks_done or 0:,} of {plural(self.tasks_total, 'task')} done")
        again = f"transaction {self.repeat:,} of {self.repeats:,} again: " if self.repeats else ""
        return again + ", ".join(parts)


Report: TypeAlias = Callable[[TransformStep], None]


def quiet(_: TransformStep) -> None:
    """Ignores a report of progress."""


Showing: TypeAlias = Callable[[DatasetId, int], AbstractContextManager[Report]]
"""Shows people that a block of a dataset is executed again, while the context lasts."""


def unseen(_dataset: DatasetId, _number: int) -> AbstractContextManager[Report]:
    """Shows nothing to anybody."""
    return nullcontext(quiet)


def measure_plan(plan: TransformPlan) -> TransformStep:
    """Counts the slices, bytes and rows that a plan reads."""
    slices = plan.input_slices
    rows = sum(slice_.offset_interval.end - slice_.offset_interval.start + 1 for slice_ in slices)
    return TransformStep(stage="planning", slices=len(slices), bytes=sum(slice_.size for slice_ in slices), rows=rows)


def count_repeats(number: int, count: int, report: Report) -> Report:
    """Reports steps as those of a recorded transaction, the ``number``-th of ``count``."""
    return lambda step: report(msgspec.structs.replace(step, repeat=number, repeats=count))


def by_engine(begun: TransformStep, report: Report) -> OnProgress:
    """Reports an engine's progress when it changes. Its numbers are not trusted, and bounded."""
    last = begun

    def show(progress: EngineProgress) -> None:
        nonlocal last
        stage = progress.stage
        total = progress.tasks_total
        step = msgspec.structs.replace(
            begun,
            stage=stage if stage in STAGES else "computing",
            rows_read=progress.rows_read,
            tasks_done=None if total is None else min(progress.tasks_done or 0, total),
            tasks_total=total,
        )
        if step != last:
            last = step
            report(step)

    return show
