"""The progress of a transaction: what it reads, its stage, what an engine says of it, and what people see."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.ids import DatasetId
from engines.contract import STAGES, STARTING, EngineProgress
from odfd.control import wire
from odfd.runtime.tasks import Report
from odfd.services.views.task_progress import show_failures, show_transform
from odfd.transform.driver import Committed, run_transform
from odfd.transform.progress import TransformStep, by_engine, count_repeats
from odfd.transform.replay import Replayed, replay

DERIVED = DatasetId.from_public_key(b"d" * 32)
BEGUN = TransformStep(stage="planning", slices=2, bytes=31_000, rows=1_500)
TOLD = (
    EngineProgress(stage=STARTING),
    EngineProgress(),
    EngineProgress(stage="reading"),
    EngineProgress(stage="computing", tasks_done=1, tasks_total=4, rows_read=2),
    EngineProgress(stage="computing", tasks_done=1, tasks_total=4, rows_read=2),
    EngineProgress(stage="writing", tasks_done=4, tasks_total=4, rows_read=3),
)
numbers = st.none() | st.integers(0, 2**64 - 1)


def tells(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine says ``TOLD`` of each transaction."""
    honest = world.engine.transform

    async def transform(request: Any, on_progress: Any) -> Any:
        for each in TOLD:
            on_progress(each)
        return await honest(request)

    monkeypatch.setattr(world.engine, "transform", transform)


async def test_each_stage_of_a_transaction_is_reported_once(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.found()
    world.add_rows([1, 2])
    world.add_rows([3])
    tells(world, monkeypatch)
    steps: list[TransformStep] = []
    assert isinstance(await run_transform(world.deps, DERIVED, steps.append), Committed)
    assert [each.stage for each in steps] == [
        "planning", STARTING, "computing", "reading", "computing", "writing", "checking", "committing",
    ]  # fmt: skip
    assert {(each.slices, each.rows) for each in steps} == {(2, 3)}
    assert len({each.bytes for each in steps}) == 1
    assert steps[0].bytes > 0
    assert [each.rows_read for each in steps] == [None, None, None, None, 2, 3, None, None]
    assert [each.tasks_done for each in steps if each.tasks_total] == [1, 4]


async def test_what_is_executed_again_is_numbered(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.found()
    for value in range(3):
        world.add_rows([value])
        await run_transform(world.deps, DERIVED)
    steps: list[TransformStep] = []
    async for outcome in replay(world.deps, DERIVED, report=steps.append):
        assert isinstance(outcome, Replayed)
        assert outcome.is_reproduced
    assert [(each.repeat, each.repeats, each.stage) for each in steps] == [
        (number, 3, stage) for number in (1, 2, 3) for stage in ("planning", "computing", "checking")
    ]


def test_an_engine_is_not_believed() -> None:
    steps: list[TransformStep] = []
    show = by_engine(BEGUN, steps.append)
    show(EngineProgress(stage="\x1b[2J" * 1000, tasks_done=9, tasks_total=4))
    assert [(each.stage, each.tasks_done, each.tasks_total) for each in steps] == [("computing", 4, 4)]


@given(st.none() | st.text(max_size=5) | st.sampled_from(STAGES), numbers, numbers, numbers)
def test_whatever_an_engine_says_is_shown_in_one_short_line(
    stage: str | None, done: int | None, total: int | None, read: int | None
) -> None:
    report = Report()
    told = by_engine(BEGUN, lambda step: show_transform(report, step))
    told(EngineProgress(stage=stage, tasks_done=done, tasks_total=total, rows_read=read))
    assert report.message.isprintable()
    assert len(report.message) < 160
    assert report.total is None or 0 <= report.done <= report.total


def test_rows_are_counted_of_those_that_are_read_and_of_none_when_a_slice_is_read_twice() -> None:
    report = Report()
    show_transform(report, BEGUN)
    assert (report.done, report.total, report.unit) == (0, None, "rows")
    assert report.message == "planning, 1,500 rows of 2 slices (31.0 kB)"
    step = msgspec.structs.replace(BEGUN, stage="computing", rows_read=700, tasks_done=3, tasks_total=8)
    show_transform(report, step)
    assert (report.done, report.total, report.unit) == (700, 1_500, "rows")
    assert report.message == "computing, 1,500 rows of 2 slices (31.0 kB), 3 of 8 tasks done"
    show_transform(report, msgspec.structs.replace(step, rows_read=1_501))
    assert (report.done, report.total) == (1_501, None)


def test_transactions_are_counted_where_they_are_executed_again() -> None:
    report = Report()
    count_repeats(3, 12, lambda step: show_transform(report, step))(msgspec.structs.replace(BEGUN, stage=STARTING))
    assert (report.done, report.total, report.unit) == (2, 12, "transforms")
    assert report.message == "transaction 3 of 12 again: starting the engine, 1,500 rows of 2 slices (31.0 kB)"


def test_a_task_says_in_the_end_which_of_its_datasets_failed() -> None:
    report = Report()
    report.begin("pulling")
    good = wire.PullItem(ref="a", outcome="updated")
    show_failures(report, [good])
    assert report.message == "pulling"
    problem = wire.Problem(detail="'warm' is not a number", place="may.csv:2", family="Invalid")
    bad = wire.PullItem(ref="b", outcome="failed", fault=problem)
    show_failures(report, [good, bad, msgspec.structs.replace(bad, ref="c")])
    assert report.message == "2 of 3 failed: b: may.csv:2: 'warm' is not a number"
