"""Calls that come at the same time share one piece of work; each gets its own answer, whoever goes away."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import trio
import trio.testing

from odfd.runtime.shared_calls import SharedCalls


class Work:
    """Works when it is let go; answers with ten times the number, and refuses 13."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = threading.Semaphore(0)

    def __call__(self, asked: Sequence[int]) -> list[int | Exception]:
        self.batches.append(list(asked))
        self.go.acquire()
        if 99 in asked:
            raise ValueError("all fail")
        return [ValueError("unlucky") if each == 13 else 10 * each for each in asked]


async def ask(shared: SharedCalls[int, int], number: int, answers: list[int | str]) -> None:
    try:
        answers.append(await shared.call(number))
    except ValueError as error:
        answers.append(str(error))


async def begun(work: Work, batches: int) -> None:
    while len(work.batches) < batches:
        await trio.lowlevel.checkpoint()
    await trio.testing.wait_all_tasks_blocked()


async def test_calls_that_come_meanwhile_are_the_next_work_up_to_its_most() -> None:
    work, answers = Work(), list[int | str]()
    shared = SharedCalls(work, 3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, shared, 1, answers)
        await begun(work, 1)
        for each in (2, 13, 4, 5):
            nursery.start_soon(ask, shared, each, answers)
            await trio.testing.wait_all_tasks_blocked()
        work.go.release(3)
    assert work.batches == [[1], [2, 13, 4], [5]]
    assert answers[0] == 10
    assert set(answers[1:4]) == {20, "unlucky", 40}
    assert answers[4:] == [50]


async def test_a_work_that_fails_fails_for_all_its_calls_and_no_others() -> None:
    work, answers = Work(), list[int | str]()
    shared = SharedCalls(work, 9)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, shared, 99, answers)
        await begun(work, 1)
        nursery.start_soon(ask, shared, 2, answers)
        work.go.release(2)
    assert answers == ["all fail", 20]


@pytest.mark.parametrize("gone", [0, 1, 2])
async def test_a_caller_that_goes_away_takes_no_other_along(gone: int) -> None:
    """The one at work, the one that would lead the next, and one among those."""
    work, answers = Work(), list[int | str]()
    shared, scopes = SharedCalls(work, 9), [trio.CancelScope() for _ in range(4)]

    async def cancellable(number: int) -> None:
        with scopes[number]:
            await ask(shared, number, answers)

    async with trio.open_nursery() as nursery:
        for each in range(4):
            nursery.start_soon(cancellable, each)
            await begun(work, 1)
            await trio.testing.wait_all_tasks_blocked()
        scopes[gone].cancel()
        await trio.testing.wait_all_tasks_blocked()
        work.go.release(2)
    assert set(answers) >= {10 * each for each in range(4) if each != gone}
    assert await call_again(shared, work) == 50


async def test_a_leader_that_goes_before_it_begins_hands_on() -> None:
    work, answers = Work(), list[int | str]()
    shared, scope = SharedCalls(work, 9), trio.CancelScope()

    async def leaving() -> None:
        with scope:
            await ask(shared, 1, answers)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, shared, 0, answers)
        await begun(work, 1)
        nursery.start_soon(leaving)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ask, shared, 2, answers)
        await trio.testing.wait_all_tasks_blocked()
        pass_on = shared._pass_on

        def leave() -> None:  # in the moment in which it becomes the leader
            pass_on()
            scope.cancel()

        shared._pass_on = leave  # type: ignore[method-assign]
        work.go.release(2)
    assert work.batches == [[0], [2]]
    assert answers == [0, 20]


async def call_again(shared: SharedCalls[int, int], work: Work) -> int:
    work.go.release()
    return await shared.call(5)
