"""Shows steps of an ingest and of a transform in the task that waits for them."""

from __future__ import annotations

from odfd.ingest.progress import IngestStep
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
