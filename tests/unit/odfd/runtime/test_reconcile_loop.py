"""Rounds of work: when there is another, and how they end. On virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from chain.errors import Remote
from odfd.runtime.reconcile_loop import UNTIL_POKED, KeyedReconcileLoop, ReconcileLoop
from odfd.runtime.supervision import Life


class Work:
    """Notes when rounds began; ``during`` is what else a round does."""

    def __init__(self, pause: float, during: Callable[[], Awaitable[None]] | None = None) -> None:
        self.pause = pause
        self.during = during
        self.began: list[float] = []

    async def __call__(self) -> float:
        self.began.append(trio.current_time())
        if self.during is not None:
            await self.during()
        return self.pause


async def begun(nursery: trio.Nursery, loop: ReconcileLoop) -> Life:
    life = Life()
    nursery.start_soon(loop.run, life)
    await life.wait_ready()
    await wait_all_tasks_blocked()
    return life


async def test_the_first_is_at_once_and_the_next_after_the_pause(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    work = Work(30.0)
    life = await begun(nursery, ReconcileLoop(work))
    start = work.began[0]
    await trio.sleep(65)
    assert [at - start for at in work.began] == [0.0, 30.0, 60.0]
    life.stopping.set()


async def test_a_poke_ends_any_pause(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    work = Work(UNTIL_POKED)
    loop = ReconcileLoop(work)
    life = await begun(nursery, loop)
    await trio.sleep(50_000)
    assert len(work.began) == 1
    loop.poke()
    await wait_all_tasks_blocked()
    assert len(work.began) == 2
    life.stopping.set()


async def test_pokes_during_a_round_bring_one_more(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    async def ten_seconds() -> None:
        await trio.sleep(10)

    work = Work(UNTIL_POKED, ten_seconds)
    loop = ReconcileLoop(work)
    life = await begun(nursery, loop)
    for _ in range(3):
        loop.poke()
        await trio.sleep(1)
    await trio.sleep(100)
    assert len(work.began) == 2
    life.stopping.set()


async def test_a_poke_before_the_start_is_the_first_round(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    work = Work(UNTIL_POKED)
    loop = ReconcileLoop(work)
    loop.poke()
    life = await begun(nursery, loop)
    assert len(work.began) == 1
    life.stopping.set()


async def test_a_round_under_way_is_cut_off_when_asked_to_stop(autojump_clock: MockClock) -> None:
    work = Work(UNTIL_POKED, trio.sleep_forever)
    with trio.fail_after(1):
        async with trio.open_nursery() as nursery:
            life = await begun(nursery, ReconcileLoop(work))
            life.stopping.set()


async def test_what_a_round_raises_ends_it() -> None:
    async def fail() -> None:
        raise Remote("the peer is gone")

    with pytest.raises(ExceptionGroup) as caught:
        await ReconcileLoop(Work(1.0, fail)).run(Life())
    assert caught.group_contains(Remote, match="the peer is gone")


class Looks:
    """Notes what each round looks at; ``leaves`` are left by it once."""

    def __init__(self, all_every: float) -> None:
        self.loop = KeyedReconcileLoop[str](self._round, all_every)
        self.at: list[set[str] | None] = []
        self.leaves: list[str] = []

    async def _round(self) -> float:
        self.at.append(self.loop.take())
        while self.leaves:
            self.loop.leave(self.leaves.pop())
        return UNTIL_POKED

    async def after(self, *touched: str) -> set[str] | None:
        before = len(self.at)
        for each in touched:
            self.loop.touch(each)
        await wait_all_tasks_blocked()
        assert len(self.at) == before + 1
        return self.at[-1]


async def test_after_the_first_round_what_was_touched_is_looked_at(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    looks = Looks(3600.0)
    life = await begun(nursery, looks.loop)
    assert looks.at == [None]
    assert await looks.after("a", "b") == {"a", "b"}
    assert await looks.after("c") == {"c"}
    await trio.sleep(3600)
    assert await looks.after("a") is None, "all is looked at now and then"
    assert await looks.after("a") == {"a"}
    looks.loop.touch_all()
    await wait_all_tasks_blocked()
    assert looks.at[-1] is None
    life.stopping.set()


async def test_what_is_left_waits_for_the_next_round(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    looks = Looks(3600.0)
    life = await begun(nursery, looks.loop)
    looks.leaves = ["a"]
    assert await looks.after("b") == {"b"}
    await trio.sleep(100)
    assert len(looks.at) == 2
    assert await looks.after("c") == {"a", "c"}
    life.stopping.set()


async def test_rounds_that_begin_anew_look_at_everything(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    looks = Looks(UNTIL_POKED)
    for _ in range(2):
        async with trio.open_nursery() as inner:
            life = await begun(inner, looks.loop)
            life.stopping.set()
    assert looks.at == [None, None]


async def test_the_first_round_leaves_a_start_to_other_work(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """A poke begins it before: then somebody waits for it."""
    for poked_after, began in ((10.0, 5.0), (2.0, 2.0)):
        work, start = Work(UNTIL_POKED), trio.current_time()
        loop = ReconcileLoop(work, start_after=5.0)
        life = await begun(nursery, loop)
        assert not work.began
        await trio.sleep(poked_after)
        loop.poke()
        await wait_all_tasks_blocked()
        assert work.began[0] - start == began
        life.stopping.set()
