"""Tells people the progress of a transaction: its stage, what it reads, and how much of this was read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, TypeAlias

import msgspec

from chain.ids import DatasetId
from chain.wording import plural, size
from engines.progress import STAGES, STARTING, OnProgress, Progress
from odfd.transform.plan import TransformPlan

_SAID: Final = {STARTING: "starting the engine"}
"""Stages of an engine in the words that people see, where these are others."""


class TransformStep(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of one transaction."""

    stage: str
    """Of an engine (``engines.progress.STAGES``); or ``checking`` and ``committing``, which the node does itself."""
    slices: int = 0
    """Of inputs, that the transaction reads."""
    bytes: int = 0
    """Of these slices."""
    rows: int = 0
    """Of these slices."""
    rows_read: int | None = None
    """Of these, by tasks of the engine so far; ``None``: it does not say."""
    tasks_done: int | None = None
    tasks_total: int | None = None
    """Known so far: each step of a query adds its own."""
    repeat: int = 0
    """From 1, where recorded transactions are executed again; 0: it is a new one."""
    repeats: int = 0
    """All that are executed again."""

    def __str__(self) -> str:
        """The stage, the inputs, and the tasks, which go on when all rows are read."""
        parts = [_SAID.get(self.stage, self.stage)]
        if self.slices:
            parts.append(f"{plural(self.rows, 'row')} of {plural(self.slices, 'slice')} ({size(self.bytes)})")
        if self.tasks_total:
            parts.append(f"{self.tasks_done or 0:,} of {plural(self.tasks_total, 'task')} done")
        again = f"transaction {self.repeat:,} of {self.repeats:,} again: " if self.repeats else ""
        return again + ", ".join(parts)


Report: TypeAlias = Callable[[TransformStep], None]


def quiet(_: TransformStep) -> None:
    """Drops a report of progress."""


Showing: TypeAlias = Callable[[DatasetId, int], AbstractContextManager[Report]]
"""Shows people that a block of a dataset is executed again, while the context lasts."""


def unseen(_dataset: DatasetId, _number: int) -> AbstractContextManager[Report]:
    """Shows nobody."""
    return nullcontext(quiet)


def planned(plan: TransformPlan) -> TransformStep:
    """Counts what a plan reads."""
    slices = plan.input_slices
    rows = sum(each.offset_interval.end - each.offset_interval.start + 1 for each in slices)
    return TransformStep(stage="planning", slices=len(slices), bytes=sum(each.size for each in slices), rows=rows)


def repeated(number: int, count: int, report: Report) -> Report:
    """Reports steps as those of a recorded transaction, the ``number``-th of ``count``."""
    return lambda step: report(msgspec.structs.replace(step, repeat=number, repeats=count))


def by_engine(begun: TransformStep, report: Report) -> OnProgress:
    """Reports what an engine says of its work, when it says something new. It is not believed: numbers are bounded."""
    last = begun

    def show(progress: Progress) -> None:
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
