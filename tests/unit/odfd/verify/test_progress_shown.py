"""What a verification tells of itself while it runs."""

from __future__ import annotations

import pytest

from odfd.runtime.tasks import Report
from odfd.services.datasets.verification import show_progress
from odfd.verify.report import Progress

AT = Progress(blocks=3, blocks_total=15, objects=2, objects_known=9, bytes=20, bytes_known=90, failures=1)


@pytest.mark.slow
def test_bytes_are_counted_where_slices_are_read() -> None:
    report = Report()
    report.begin("verifying flights", 15, "blocks")
    show_progress(
        report, Progress(blocks=1, blocks_total=15, objects=0, objects_known=0, bytes=0, bytes_known=0, failures=0)
    )
    assert (report.done, report.total, report.unit) == (1, 15, "blocks")
    show_progress(report, AT)
    assert (report.done, report.total, report.unit) == (20, 90, "bytes")
    assert report.message == "blocks 3/15, slices 2/9, 1 failure"
