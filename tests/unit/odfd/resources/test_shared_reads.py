"""Many who read a log at the same position cost one read, and each gets all of it, once and in order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from chain.instant import Instant
from odfd.obs.events import EventLog
from odfd.services.resources.watches import SharedReads
from worlds.clock import FixedClock
from worlds.eventually import PATIENCE

CROWD = 50


class Log:
    """Numbers from 1, of which a read returns some."""

    def __init__(self, page: int = 3) -> None:
        self.length, self.writes, self.page = 0, 0, page
        self.reads: list[int] = []
        self.broken = 0
        self.events = EventLog(FixedClock(Instant(0)))
        self.shared = SharedReads(self._read, lambda: self.writes, self.events)

    def _read(self, position: int) -> Sequence[int]:
        self.reads.append(position)
        if self.broken:
            self.broken -= 1
            raise OSError("the disk fails")
        return range(position + 1, min(self.length, position + self.page) + 1)

    def write(self, count: int, *, nudge: bool = True) -> None:
        self.length += count
        self.writes += 1
        if nudge:
            self.events.nudge()

    async def follow(self, position: int, seen: list[int], end: int | None = None) -> None:
        while end is None or position < end:
            found = await self.shared.after(position)
            assert found
            seen += found
            position = found[-1]


async def test_a_crowd_at_one_position_costs_one_read_of_news_and_one_of_nothing() -> None:
    log, seen = Log(), [[] for _ in range(CROWD)]
    async with trio.open_nursery() as nursery:
        for each in seen:
            nursery.start_soon(log.follow, 0, each)
        await reads(log, [0])
        log.write(2)
        await reads(log, [0, 0, 2])
        assert seen == [[1, 2]] * CROWD
        for _ in range(3):
            log.events.nudge()
            await trio.testing.wait_all_tasks_blocked()
        assert log.reads == [0, 0, 2], "nothing was written"
        nursery.cancel_scope.cancel()


async def test_who_comes_later_to_what_was_read_reads_nothing_until_more_is_written() -> None:
    log = Log()
    log.write(2)
    for _ in range(CROWD):
        assert list(await log.shared.after(0)) == [1, 2]
    assert log.reads == [0]
    log.write(1, nudge=False)
    assert list(await log.shared.after(0)) == [1, 2, 3]
    assert log.reads == [0, 0]


async def test_others_go_on_when_the_one_who_reads_is_cancelled() -> None:
    log, seen = Log(), []
    async with trio.open_nursery() as nursery:
        first = await nursery.start(cancellable, log)
        await reads(log, [0])
        nursery.start_soon(log.follow, 0, seen, 1)
        await trio.testing.wait_all_tasks_blocked()
        first.cancel()
        await trio.testing.wait_all_tasks_blocked()
        log.write(1)
    assert seen == [1]


async def test_others_go_on_when_a_read_fails() -> None:
    log, seen = Log(), []
    log.broken = 1

    async def first() -> None:
        with pytest.raises(OSError, match="the disk fails"):
            await log.shared.after(0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(first)
        nursery.start_soon(follow_after_one, log, seen)
    assert seen == [1]


STEPS = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 5)),
    st.tuples(st.just("write silently"), st.integers(0, 5)),
    st.tuples(st.just("join"), st.integers(0, 20)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("let them run"), st.just(0)),
)


@given(st.lists(STEPS, max_size=30), st.integers(1, 4))
def test_p04_each_reader_sees_all_after_its_position_once_and_in_order(steps: list[tuple[str, int]], page: int) -> None:
    """Whatever is written, nudged, joined and cancelled meanwhile."""

    async def run() -> None:
        log = Log(page)
        readers: list[tuple[int, list[int], trio.CancelScope]] = []
        end = sum(count for step, count in steps if step.startswith("write")) + 1

        async def reader(position: int, seen: list[int], scope: trio.CancelScope) -> None:
            with scope:
                await log.follow(position, seen, end)

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for step, number in steps:
                    if step.startswith("write"):
                        log.write(number, nudge=step == "write")
                    elif step == "join":
                        readers.append((min(number, log.length), [], trio.CancelScope()))
                        nursery.start_soon(reader, *readers[-1])
                    elif step == "cancel" and readers:
                        readers[number % len(readers)][2].cancel()
                    else:
                        await trio.testing.wait_all_tasks_blocked()
                log.write(1)
        for position, seen, scope in readers:
            whole = list(range(position + 1, end + 1))
            assert seen == (whole[: len(seen)] if scope.cancel_called else whole)

    trio.run(run)


async def cancellable(log: Log, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await log.shared.after(0)


async def follow_after_one(log: Log, seen: list[int]) -> None:
    """When somebody reads already."""
    await trio.testing.wait_all_tasks_blocked()
    log.write(1)
    await log.follow(0, seen, 1)


async def reads(log: Log, expected: list[int]) -> None:
    """Waits until so many reads are over, and nothing else happens."""
    with trio.fail_after(PATIENCE):
        while len(log.reads) < len(expected):
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert log.reads == expected
