"""Long work on the board, and slots in which it waits."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from chain.errors import Environment, NotFound, Refused, Remote
from chain.instant import Instant
from odfd.errors import Bug
from odfd.runtime.slots import PATIENCE, KeyedLocks, Slots, waiting
from odfd.runtime.supervision import Life
from odfd.runtime.tasks import STILL_SECONDS, Bounds, Report, Task, TaskBoard, TaskPhase, outside
from worlds.clock import FixedClock

# Long work on the board: every end it can come to, bounds, and what followers see. On virtual time.


class Journal:
    def info(self, event: str, **values: object) -> None: ...

    error = info


@asynccontextmanager
async def board(bounds: Bounds | None = None) -> AsyncIterator[Any]:
    numbers = iter(range(1, 10_000))
    made = TaskBoard(FixedClock(Instant(7)), lambda: f"t{next(numbers)}", Journal(), bounds)
    life = Life()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run, life)
        await life.wait_ready()
        yield made
        life.stopping.set()


async def end(task: Task) -> Task:
    await task.finished.wait()
    return task


async def test_done_failed_and_bug(autojump_clock: MockClock) -> None:
    async def good(report: Report) -> object:
        report.begin("counting", 2, "blocks")
        report.advance(2)
        return {"x": 1}

    async def bad(_: Report) -> object:
        raise Remote("peer lied")

    async def grouped(_: Report) -> object:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bad, Report())
        return None

    async def broken(_: Report) -> object:
        raise ZeroDivisionError("oops")

    async with board() as tasks:
        done = await end(tasks.submit("pull", "a", good))
        assert (done.state, done.result, done.started_at, done.finished_at) == (TaskPhase.DONE, {"x": 1}, 7, 7)
        for work in (bad, grouped):
            failed = await end(tasks.submit("pull", "a", work))
            assert failed.state is TaskPhase.FAILED
            assert isinstance(failed.fault, Remote)
        bug = (await end(tasks.submit("pull", "a", broken))).fault
        assert isinstance(bug, Bug)
        assert isinstance(bug.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("breaks", [False, True])
async def test_work_that_goes_on_by_itself_is_shown_and_neither_counted_nor_kept(
    autojump_clock: MockClock, breaks: bool
) -> None:
    states: list[TaskPhase] = []

    async def follow(tasks: TaskBoard) -> None:
        async with aclosing(tasks.follow("t1")) as followed:
            async for task in followed:
                states.append(task.state)

    async with board(Bounds(running=1, waiting=0)) as tasks, trio.open_nursery() as nursery:
        try:
            with tasks.showing("validate", "towns") as report:
                report.begin("block #3")
                assert [(task.id, task.report.message) for task in tasks.list()] == [("t1", "block #3")]
                assert tasks.counts == (0, 0)
                nursery.start_soon(follow, tasks)
                with pytest.raises(Refused, match="t1 is validate of towns"):
                    tasks.cancel("t1")
                await trio.testing.wait_all_tasks_blocked()
                if breaks:
                    raise KeyError
        except KeyError:
            assert breaks
        assert tasks.list() == []
        with pytest.raises(NotFound):
            tasks.get("t1")
    assert states == [TaskPhase.RUNNING, TaskPhase.CANCELLED if breaks else TaskPhase.DONE]


async def test_cancel_while_running_and_while_waiting(autojump_clock: MockClock) -> None:
    async def forever(_: Report) -> object:
        await trio.sleep_forever()

    async with board(Bounds(running=1)) as tasks:
        first, second = tasks.submit("pull", "a", forever), tasks.submit("pull", "b", forever)
        await trio.testing.wait_all_tasks_blocked()
        assert {first.state, second.state} == {TaskPhase.RUNNING, TaskPhase.WAITING}
        for task in sorted((first, second), key=lambda task: task.state is TaskPhase.RUNNING):
            tasks.cancel(task.id)
            assert (await end(task)).state is TaskPhase.CANCELLED
        assert tasks.cancel(first.id) is first


async def test_bounds_hold(autojump_clock: MockClock) -> None:
    running = most = 0

    async def work(_: Report) -> object:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(1)
        running -= 1
        return None

    async with board(Bounds(running=2, waiting=3, kept=4)) as tasks:
        submitted = [tasks.submit("pull", str(i), work) for i in range(5)]
        with pytest.raises(Refused, match="5 tasks are running or waiting"):
            tasks.submit("pull", "x", work)
        for task in submitted:
            await end(task)
        assert most == 2
        kept = {task.id for task in tasks.list()}
        assert len(kept) == 4
        (forgotten,) = {task.id for task in submitted} - kept
        with pytest.raises(NotFound, match=f"no task '{forgotten}'"):
            tasks.get(forgotten)


@pytest.mark.slow
async def test_a_follower_sees_the_start_changes_and_the_end(autojump_clock: MockClock) -> None:
    async def work(report: Report) -> object:
        for stage in ("one", "two"):
            report.begin(stage, 1000)
            for _ in range(1000):
                report.advance()
                await trio.sleep(0.001)
        return None

    async with board() as tasks:
        seen = []
        async with aclosing(tasks.follow(tasks.submit("pull", "a", work).id)) as snapshots:
            async for task in snapshots:
                seen.append((task.state, task.report.message, task.report.done))
        assert seen[-1] == (TaskPhase.DONE, "two", 1000)
        assert 8 <= len(seen) <= 14


async def test_a_follower_of_work_that_waits_is_told_so_again(autojump_clock: MockClock) -> None:
    async def work(report: Report) -> object:
        report.message = "nobody has it"
        await trio.sleep(4 * STILL_SECONDS + 1)
        return None

    async with board() as tasks:
        async with aclosing(tasks.follow(tasks.submit("mirror", "a", work).id)) as snapshots:
            said = [task.report.message async for task in snapshots if task.state is TaskPhase.RUNNING]
        assert said == ["nobody has it"] * 5


async def test_draining_lets_work_end_and_takes_no_more(autojump_clock: MockClock) -> None:
    async def work(_: Report) -> object:
        await trio.sleep(5)
        return "whole"

    made = TaskBoard(FixedClock(Instant(0)), lambda: "t", Journal())
    life = Life()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run, life)
        await life.wait_ready()
        task = made.submit("pull", "a", work)
        await trio.sleep(1)
        life.stopping.set()
        await trio.sleep(1)
        with pytest.raises(Environment, match="the daemon is stopping"):
            made.submit("pull", "b", work)
    assert (task.state, task.result) == (TaskPhase.DONE, "whole")


async def test_cancelling_the_board_marks_what_it_cut(autojump_clock: MockClock) -> None:
    async def forever(_: Report) -> object:
        await trio.sleep_forever()

    made = TaskBoard(FixedClock(Instant(0)), lambda: "t", Journal())
    life = Life()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run, life)
        await life.wait_ready()
        task = made.submit("pull", "a", forever)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert task.state is TaskPhase.CANCELLED
    assert task.finished.is_set()


@pytest.mark.parametrize("whole", [False, True])
async def test_a_part_that_fails_while_the_rest_is_cancelled_fails_the_task_alone(
    autojump_clock: MockClock, whole: bool
) -> None:
    """As by the cancellation of the task, and of its board."""

    async def in_parts(_: Report) -> object:
        async def fails_at_its_end() -> None:
            try:
                await trio.sleep_forever()
            except trio.Cancelled as cancelled:
                raise NotFound("it is gone") from cancelled

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails_at_its_end)
            await trio.sleep_forever()

    made = TaskBoard(FixedClock(Instant(0)), lambda: "t", Journal())
    life = Life()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run, life)
        await life.wait_ready()
        task = made.submit("mirror", "a", in_parts)
        await trio.sleep(1)
        if whole:
            nursery.cancel_scope.cancel()
        else:
            made.cancel(task.id)
            await end(task)
            life.stopping.set()
    assert (task.state, str(task.fault)) == (TaskPhase.FAILED, "it is gone")


async def test_a_stop_leaves_what_waits_for_others_and_lets_computing_end(autojump_clock: MockClock) -> None:
    """Whoever waited for a slow server held the end of the daemon until its grace was over."""
    began = trio.current_time()
    ended: dict[str, float] = {}

    async def waits(_: Report) -> object:
        try:
            async with outside("a server"):
                await trio.sleep_forever()
        finally:
            ended["waits"] = trio.current_time() - began

    async def computes(_: Report) -> object:
        await trio.sleep(20)
        ended["computes"] = trio.current_time() - began
        async with outside("a server"):
            await trio.sleep_forever()

    async with board(Bounds(running=2)) as tasks:
        waiting, computing = tasks.submit("pull", "a", waits), tasks.submit("pull", "b", computes)
        await trio.testing.wait_all_tasks_blocked()
        queued = tasks.submit("pull", "c", waits)
        await trio.testing.wait_all_tasks_blocked()
    assert ended == {"waits": 0, "computes": 20}
    assert queued.state is TaskPhase.CANCELLED
    for task in (waiting, computing):
        assert task.fault is not None
        assert (task.fault.rule, task.fault.message) == ("draining", "a server: the daemon is stopping")


async def test_outside_of_a_task_nothing_is_left(autojump_clock: MockClock) -> None:
    """It lasts as long as it takes, also where a board stops meanwhile."""
    began = trio.current_time()
    async with board():
        pass
    async with outside("a server"):
        await trio.sleep(1)
    assert trio.current_time() - began == 1


def test_bytes_of_a_part_are_not_added_to_rows() -> None:
    whole = Report()
    whole.begin("pulling", None, "rows")
    with whole.part() as one, whole.part() as two:
        one.begin("reading a", 1000, "bytes")
        two.begin("pulling b", None, "rows")
        one.advance(300)
        two.advance(4)
        assert whole.summary() == (300, None, "bytes", "reading a (and 1 more)")
    assert whole.summary() == (4, None, "rows", "pulling")


def test_the_first_unit_of_parts_that_counted_is_that_of_the_whole() -> None:
    whole = Report()
    for unit, count in (("objects", 0), ("bytes", 300), ("rows", 4), ("bytes", 5)):
        with whole.part() as part:
            part.begin("pulling", None, unit)
            part.advance(count)
    assert whole.summary() == (305, None, "bytes", "")


def test_a_report_of_parts_shows_all_of_them() -> None:
    whole = Report()
    whole.begin("pulling", None, "rows")
    with whole.part() as one, whole.part() as two:
        one.begin("pulling a", 10, "rows")
        two.begin("pulling b", None, "rows")
        one.advance(3)
        two.advance(4)
        assert whole.summary() == (7, None, "rows", "pulling a (and 1 more)")
    assert whole.summary() == (7, None, "rows", "pulling")
    with whole.part() as one:
        one.begin("pulling c", 5, "rows")
        assert whole.summary() == (7, 5, "rows", "pulling c")


# Slots: who waits for somebody else keeps nobody from work, and as few as was said work at once.


async def test_those_who_wait_long_keep_nobody_from_work(autojump_clock: Any) -> None:
    slots, done = Slots(4), list[int]()

    async def slow() -> None:
        async with slots.one(), waiting():
            await trio.sleep_forever()

    async def quick(number: int) -> None:
        async with slots.one():
            await trio.sleep(0.1)
            done.append(number)

    async with trio.open_nursery() as nursery:
        for _ in range(32):
            nursery.start_soon(slow)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(20):
            nursery.start_soon(quick, number)
        await trio.sleep(8 * PATIENCE + 2)
        assert sorted(done) == list(range(20))
        assert slots.counts[1] >= 28
        nursery.cancel_scope.cancel()
    assert slots.counts == (0, 0)


async def test_nobody_is_set_apart_for_nobody(autojump_clock: Any) -> None:
    slots = Slots(2)

    async def slow() -> None:
        async with slots.one():
            async with waiting():
                await trio.sleep(100 * PATIENCE)
            assert slots.counts[1] == 0

    async with trio.open_nursery() as nursery:
        nursery.start_soon(slow)
        nursery.start_soon(slow)
        await trio.sleep(50 * PATIENCE)
        assert slots.counts == (2, 0)


async def test_as_many_as_was_said_are_set_apart(autojump_clock: Any) -> None:
    slots, seen = Slots(2, apart=3), list[None]()

    async def slow() -> None:
        async with slots.one():
            seen.append(None)
            async with waiting():
                await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for _ in range(9):
            nursery.start_soon(slow)
        await trio.sleep(100 * PATIENCE)
        assert (slots.counts, len(seen)) == ((2, 3), 5)
        nursery.cancel_scope.cancel()


async def test_who_was_set_apart_comes_before_all_who_are_new(autojump_clock: Any) -> None:
    slots, order = Slots(1), list[str]()

    async def first() -> None:
        async with slots.one():
            async with waiting():
                await trio.sleep(PATIENCE + 1)
            order.append("first")

    async def quick(number: int) -> None:
        async with slots.one():
            await trio.sleep(2)
            order.append(str(number))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(first)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(3):
            nursery.start_soon(quick, number)
            await trio.testing.wait_all_tasks_blocked()
    assert order == ["0", "first", "1", "2"]


async def test_who_fails_outside_says_so_at_once(autojump_clock: Any) -> None:
    slots = Slots(1)

    async def hold() -> None:
        async with slots.one():
            await trio.sleep_forever()

    async def fail(nursery: trio.Nursery) -> None:
        async with slots.one(), waiting():
            nursery.start_soon(hold)
            await trio.sleep(2 * PATIENCE)
            raise OSError("gone")

    async with trio.open_nursery() as nursery:
        with pytest.raises(OSError, match="gone"):
            await fail(nursery)
        assert slots.counts == (1, 0)
        nursery.cancel_scope.cancel()


async def test_who_waits_for_a_turn_keeps_no_slot_from_the_one_whose_turn_it_is(autojump_clock: Any) -> None:
    """It waits outside its slot; meanwhile tasks that want its turn hold all slots and all places beside them."""
    slots, turns, done = Slots(2, apart=1), KeyedLocks(), list[int]()

    async def one(number: int) -> None:
        async with slots.one(), turns.of("it"):
            async with waiting():
                await trio.sleep(5 * PATIENCE)
            done.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(one, number)
    assert sorted(done) == list(range(6))


async def test_a_task_without_a_slot_waits_and_takes_none() -> None:
    slots = Slots(1, apart=1)
    async with waiting():
        assert slots.counts == (0, 0)
        async with slots.one():
            assert slots.counts == (1, 0)
    assert slots.counts == (0, 0)


STEPS = st.lists(st.tuples(st.booleans(), st.sampled_from([0, 1, 2, 5, math.inf])), max_size=4)


@pytest.mark.slow
@given(st.integers(1, 3), st.integers(0, 3), st.lists(st.tuples(STEPS, st.integers(0, 9)), max_size=8))
def test_never_more_than_was_said(working: int, apart: int, tasks: Any) -> None:
    """Whatever they do and whenever they are cancelled, no more work or are set apart, and no slot is lost."""

    async def all_of_them() -> None:
        slots, works = Slots(working, apart), [0]

        async def work(steps: Any, end: int) -> None:
            with trio.move_on_after(5 * end):
                async with slots.one():
                    for outside, seconds in steps:
                        if outside:
                            async with waiting():
                                await trio.sleep(seconds)
                        else:
                            works[0] += 1
                            assert works[0] <= working
                            assert slots.counts[0] <= working
                            assert slots.counts[1] <= apart
                            try:
                                await trio.sleep(seconds)
                            finally:
                                works[0] -= 1

        async with trio.open_nursery() as nursery:
            for steps, end in tasks:
                nursery.start_soon(work, steps, end)
        assert slots.counts == (0, 0)
        async with trio.open_nursery() as nursery:
            for _ in range(working):
                await nursery.start(_held, slots)
            nursery.cancel_scope.cancel()

    trio.run(all_of_them, clock=trio.testing.MockClock(autojump_threshold=0))


async def _held(slots: Slots, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
    async with slots.one():
        task_status.started()
        await trio.sleep_forever()
