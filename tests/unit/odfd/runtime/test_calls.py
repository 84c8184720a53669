"""Calls that are shared, awaited or in turns, and what is told of them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from odfd.runtime.bus import Bus
from odfd.runtime.hanging_calls import in_loop, invoke
from odfd.runtime.ring import Lagged, Ring
from odfd.runtime.shared_calls import SharedCalls
from odfd.runtime.slots import KeyedLocks
from worlds.eventually import PATIENCE

# Calls that come at the same time share one piece of work; each gets its own answer, whoever goes away.


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


# Blocking functions that are awaited.


class Shop:
    """Has one operation that blocks, and one that waits."""

    def open(self, name: str, *, times: int = 1) -> tuple[str, int]:
        """Says where it runs."""
        if not times:
            raise ValueError(name)
        return name * times, threading.get_ident()

    async def close(self, name: str) -> tuple[str, int]:
        await trio.lowlevel.checkpoint()
        return name, threading.get_ident()


async def test_a_plain_function_runs_beside_the_event_loop_and_an_async_one_in_it() -> None:
    shop, here = Shop(), threading.get_ident()
    name, thread = await invoke(shop.open, "a", times=3)
    assert name == "aaa"
    assert thread != here
    assert await invoke(shop.close, "b") == ("b", here)
    assert await invoke(partial(shop.close, "c")) == ("c", here)
    with pytest.raises(ValueError, match="a"):
        await invoke(shop.open, "a", times=0)


class Bell:
    """Rings in the event loop."""

    def __init__(self) -> None:
        self.rung: list[int] = []

    @in_loop
    def ring(self, note: int = 0) -> int:
        """Says where it rings; a bad note is its own fault."""
        if note < 0:
            raise RuntimeError("no such note")
        self.rung.append(threading.get_ident())
        return note


async def test_a_worker_calls_what_runs_in_the_loop() -> None:
    bell, here = Bell(), threading.get_ident()
    assert (bell.ring(1), await trio.to_thread.run_sync(bell.ring, 2)) == (1, 2)
    assert bell.rung == [here, here]
    with pytest.raises(RuntimeError, match="no such note"):
        await trio.to_thread.run_sync(bell.ring, -1)
    assert len(bell.rung) == 2, "not tried again"


def test_without_a_loop_it_is_called_as_it_is() -> None:
    assert Bell().ring(3) == 3


# Turns: one at a time at each thing, in the order of asking.


async def test_one_at_a_time_and_in_order() -> None:
    turns, done, waited = KeyedLocks(), list[str](), list[str]()
    gates = {name: trio.Event() for name in "abx"}

    async def work(thing: str, name: str) -> None:
        async with turns.of(thing, lambda: waited.append(name)):
            done.append(f"{name} begins")
            await gates[name].wait()
            done.append(f"{name} ends")

    async with trio.open_nursery() as nursery:
        for thing, name in (("one", "a"), ("one", "b"), ("other", "x")):
            nursery.start_soon(work, thing, name)
            await wait_all_tasks_blocked()
        assert (done, waited) == (["a begins", "x begins"], ["b"])
        for name in "abx":
            gates[name].set()
            await wait_all_tasks_blocked()
    assert done == ["a begins", "x begins", "a ends", "b begins", "b ends", "x ends"]


async def test_whoever_fails_or_gives_up_leaves_no_trace() -> None:
    turns = KeyedLocks()
    with pytest.raises(ZeroDivisionError):
        async with turns.of("it"):
            raise ZeroDivisionError
    async with turns.of("it"):
        with trio.move_on_after(0) as tired:
            async with turns.of("it"):
                pytest.fail("it is somebody's")
        assert tired.cancelled_caught
    async with turns.of("it"):
        pass
    assert not turns._locks


# A ring keeps the newest within its bounds, and each reader gets each item once, or is told how many it missed.


@given(most=st.integers(1, 6), most_size=st.integers(0, 20) | st.none(), sizes=st.lists(st.integers(0, 9), max_size=30))
def test_it_keeps_the_newest_within_both_bounds(most: int, most_size: int | None, sizes: list[int]) -> None:
    ring: Ring[int] = Ring(most, most_size)
    for size in sizes:
        ring.append(size, size)
    kept = ring.list_kept()
    assert [number for number, _ in kept] == list(range(len(sizes) - len(kept) + 1, len(sizes) + 1))
    assert [size for _, size in kept] == sizes[len(sizes) - len(kept) :]
    assert (ring.last, ring.oldest) == (len(sizes), len(sizes) - len(kept) + 1)
    fits = [size for size in range(len(sizes) + 1) if size <= most and _fits(sizes[len(sizes) - size :], most_size)]
    assert len(kept) == max(fits, default=0)


def _fits(newest: list[int], most_size: int | None) -> bool:
    return len(newest) <= 1 or most_size is None or sum(newest) <= most_size


async def test_a_slow_reader_is_told_what_it_missed(autojump_clock: trio.testing.MockClock) -> None:
    ring: Ring[str] = Ring(2)
    for item in "abcde":
        ring.append(item)
    async with aclosing(ring.follow(1)) as news:
        assert await anext(news) == Lagged(4, 2)
        assert [await anext(news), await anext(news)] == [(4, "d"), (5, "e")]
        with trio.move_on_after(1) as scope:
            await anext(news)
        assert scope.cancelled_caught


async def test_a_place_beyond_the_last_is_of_another_ring() -> None:
    ring: Ring[str] = Ring(2)
    ring.append("a")
    async with aclosing(ring.follow(7)) as news:
        assert await anext(news) == Lagged(1, None)
        assert await anext(news) == (1, "a")


@pytest.mark.parametrize("count", [1, 3])
async def test_a_nudge_wakes_all_readers(count: int) -> None:
    ring: Ring[int] = Ring(8)
    seen: list[object] = []

    async def read() -> None:
        async with aclosing(ring.follow()) as news:
            seen.append(await anext(news))

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        ring.append(5)
        ring.nudge()
    assert seen == [(1, 5)] * count


# What happened in one feature is told to others, in order, where they want to hear it.


@dataclass(frozen=True)
class Moved:
    name: str


@dataclass(frozen=True)
class Gone:
    name: str


@dataclass(frozen=True)
class GoneForGood(Gone):
    """Not of the topic that it is derived from."""


def test_subscribers_are_called_in_their_order_with_values_of_their_topics() -> None:
    bus, heard = Bus(), list[tuple[str, str]]()
    bus.subscribe(lambda each: heard.append(("first", each.name)), Moved)
    bus.subscribe(lambda each: heard.append(("second", each.name)), Gone, Moved)
    for each in (Moved("a"), Gone("b"), GoneForGood("c")):
        bus.publish(each)
    assert heard == [("first", "a"), ("second", "a"), ("second", "b")]


def test_a_fault_reaches_who_published_and_nobody_after_it() -> None:
    bus, heard = Bus(), list[Moved]()

    def fail(_: Moved) -> None:
        raise ValueError("broken")

    bus.subscribe(heard.append, Moved)
    bus.subscribe(fail, Moved)
    bus.subscribe(heard.append, Moved)
    with pytest.raises(ValueError, match="broken"):
        bus.publish(Moved("a"))
    assert heard == [Moved("a")]


async def test_what_is_published_in_a_thread_is_heard_in_the_event_loop() -> None:
    bus, heard, here = Bus(), list[tuple[str, int]](), threading.get_ident()
    came = trio.Event()

    def hear(each: Moved) -> None:
        heard.append((each.name, threading.get_ident()))
        came.set()

    bus.subscribe(hear, Moved, soon=True)
    bus.publish(Moved("before the node runs"))
    bus.open()
    await trio.to_thread.run_sync(bus.publish, Moved("a"))
    await came.wait()
    assert heard == [("a", here)]


async def test_one_who_is_called_soon_does_not_hold_up_who_publishes() -> None:
    bus, heard = Bus(), list[str]()
    bus.open()
    bus.subscribe(lambda _: heard.append("soon"), Moved, soon=True)
    bus.subscribe(lambda _: heard.append("now"), Moved)
    bus.publish(Moved("a"))
    heard.append("went on")
    with trio.fail_after(PATIENCE):
        while "soon" not in heard:
            await trio.lowlevel.checkpoint()
    assert heard == ["now", "went on", "soon"]
