"""Shows steps of ingests, transforms and mirrors in the tasks that wait for them."""

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
    """Counts rows that are read, of those that the transaction reads; recorded transactions where these are repeated.

    A query that reads a slice twice reads more rows than there are: then no total is told.
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
    """Shows a transaction that is executed again for a judgement of its block."""
    show_transform(report, step)
    report.message = f"block #{number:,}: {report.message}"


SHOW_SECONDS: Final = 0.2
"""How often a mirror's progress is copied into the task that shows it."""


def show_mirror(report: Report, mirror: Mirror) -> None:
    tally = mirror.tally
    report.done, report.total, report.unit = tally.bytes_here, tally.bytes_wanted or None, "bytes"
    report.message = f"blocks {tally.blocks}/{tally.blocks_wanted}  slices {tally.slices}/{tally.slices_wanted}" + (
        f"  {mirror.message}" if mirror.message else ""
    )


async def keep_showing(report: Report, mirror: Mirror) -> None:
    """Shows a mirror again and again, until cancelled."""
    while True:
        show_mirror(report, mirror)
        await trio.sleep(SHOW_SECONDS)


def show_failures(report: Report, items: Sequence[wire.PullItem | wire.PushItem]) -> None:
    """Says at the end of a task how many of its datasets failed, and why the first did: the task itself is done."""
    failed = [f"{item.ref}: {item.fault.fault()}" for item in items if item.fault is not None]
    if failed:
        report.message = f"{len(failed)} of {len(items)} failed: {failed[0]}"
