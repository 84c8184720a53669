"""Shows the progress of ingests, transforms and mirrors in the tasks that wait for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from odfd.control import wire
from odfd.ingest.progress import IngestStep
from odfd.mirrors.mirror_state import Mirror
from odfd.runtime.tasks import Report
from odfd.transform.progress import TransformStep


def show_ingest(report: Report, step: IngestStep) -> None:
    report.message = f"{step.phase} {step.file}"
    if step.bytes_done is None:
        report.done, report.total, report.unit = step.rows, None, "rows"
    else:
        report.done, report.total, report.unit = step.bytes_done, step.bytes_total, "bytes"


def show_transform(report: Report, step: TransformStep) -> None:
    """Shows the rows read so far and their total; for repeated transactions, the number of those done.

    A query that reads a slice twice reads more rows than there are: then no total is shown.
    """
    report.message = str(step)
    if step.repeats:
        report.done, report.total, report.unit = step.repeat - 1, step.repeats, "transforms"
    elif step.rows_read:
        whole = step.rows if step.rows_read <= step.rows else None
        report.done, report.total, report.unit = step.rows_read, whole, "rows"
    else:
        report.done, report.total, report.unit = 0, None, "rows"


def show_block(report: Report, number: int, step: TransformStep) -> None:
    """Shows the re-execution of a transaction whose block is being judged."""
    show_transform(report, step)
    report.message = f"block #{number:,}: {report.message}"


SHOW_SECONDS: Final = 0.2
"""Between two updates of a task from a mirror's progress."""


def show_mirror(report: Report, mirror: Mirror) -> None:
    tally = mirror.tally
    report.done, report.total, report.unit = tally.bytes_here, tally.bytes_wanted or None, "bytes"
    report.message = f"blocks {tally.blocks}/{tally.blocks_wanted}  slices {tally.slices}/{tally.slices_wanted}" + (
        f"  {mirror.message}" if mirror.message else ""
    )


async def keep_showing(report: Report, mirror: Mirror) -> None:
    """Updates a task from a mirror's progress until cancelled."""
    while True:
        show_mirror(report, mirror)
        await trio.sleep(SHOW_SECONDS)


def show_failures(report: Report, items: Sequence[wire.PullItem | wire.PushItem]) -> None:
    """Reports at the end of a task how many of its datasets failed, and why the first did; the task itself succeeds."""
    failed = [f"{item.ref}: {item.fault.fault()}" for item in items if item.fault is not None]
    if failed:
        report.message = f"{len(failed)} of {len(items)} failed: {failed[0]}"
