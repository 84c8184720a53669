"""Slots: who waits for somebody else keeps nobody from work, and as few as was said work at once."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from odfd.runtime.slots import PATIENCE, KeyedLocks, Slots, waiting


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
