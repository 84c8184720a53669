"""A task that is done and found something wrong says so where tasks are listed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from odfd.cli import kinds
from odfd.control import wire
from odfd.control.board import finding, task_state
from odfd.runtime.tasks import Task, TaskPhase
from odfd.services.tasks.declared_tasks import _status

FAULT = wire.Problem(detail="the source is gone")
FAILURE = wire.Failure(
    block=wire.FailedBlock(hash=None, sequence_number=3), rule="data-physical-hash", message="the slice is not its hash"
)
TOLD = "block #3: the slice is not its hash  (rule data-physical-hash)"
AUDITED = wire.AuditDifference(block=1, why="no")


def report(*failures: wire.Failure) -> wire.VerifyReport:
    checked = wire.Checked(blocks=5, slices=1, bytes=10, transforms=0)
    return wire.VerifyReport(
        ref="a", dataset_id="did:odf:f", head=None, blocks=5, level="data", ok=not failures, checked=checked,
        failures=failures,
    )  # fmt: skip


def pulled(*faults: wire.Problem | None) -> wire.PullResult:
    return wire.PullResult(
        items=tuple(
            wire.PullItem(ref=f"d{number}", outcome="failed" if fault else "updated", fault=fault)
            for number, fault in enumerate(faults)
        )
    )


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (report(), ""),
        (report(FAILURE), TOLD),
        (report(FAILURE, FAILURE), f"2 failures; the first: {TOLD}"),
        (pulled(None), ""),
        (pulled(None, FAULT), "d1: the source is gone"),
        (pulled(FAULT, FAULT), "2 failures; the first: d0: the source is gone"),
        (wire.RawReplayResult(ref="a", ok=True, same=1, equivalent=0, differs=0, rewritten=0), ""),
        (
            wire.RawReplayResult(
                ref="a", ok=False, same=1, equivalent=0, differs=1, rewritten=0,
                differences=(wire.RawDifference(block="f", sequence_number=2, message="other rows"),),
            ),
            "block #2: other rows",
        ),
        (wire.ApplyResult(items=(wire.ApplyItem(kind="dataset", name="x", action="failed", fault=FAULT),)),
         "x: the source is gone"),
        (wire.AuditResult(ref="a", blocks=2, same=2, signed=0), ""),
        (wire.AuditResult(ref="a", blocks=2, same=1, signed=0, differences=(AUDITED,)), "block #1: no"),
        ("text", ""),
    ],
)  # fmt: skip
def test_what_was_found_is_one_line(result: object, expected: str) -> None:
    assert finding(result) == expected


@pytest.mark.parametrize(("failures", "word", "phase"), [((), "done", "Ready"), ((FAILURE,), "not ok", "Failed")])
def test_lists_and_the_resource_tell_it(failures: Any, word: str, phase: str) -> None:
    task = Task("t1", "verify", "a", state=TaskPhase.DONE, result=report(*failures))
    view = task_state(task)
    told = {"x/State": {"value": msgspec.to_builtins(view)}}
    row = wire.ResourceManifest(schema="Task", headers={"name": "t1"}, spec={}, status={"conditions": told})
    columns = {column.title: column.cell for column in kinds.TASK.columns(0)}
    assert columns["STATE"](row) == word
    assert view.state == "done", "it did what it was asked to do"
    assert ("slice" in columns[""](row)) == bool(failures)
    assert _status(task, 0).phase == phase
