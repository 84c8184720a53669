"""The tree of workers, their rounds, and the loop that they share."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from chain.backoff import Backoff
from chain.errors import Environment, Remote
from odfd.errors import Bug
from odfd.runtime.loop_guard import END, HELD, LOOK, BlockageDetector, LoopGuard
from odfd.runtime.reconcile_loop import UNTIL_POKED, KeyedReconcileLoop, ReconcileLoop
from odfd.runtime.supervision import Child, Life, Readiness, Restart, run_tree
from worlds.eventually import PATIENCE

# The tree starts in order, stops in reverse, restarts what may be restarted, and fails loudly. On virtual time.


class Journal:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.faults: list[tuple[object, bool]] = []
        """What failures say, and whether with a trace."""

    def info(self, event: str, **values: object) -> None:
        self.lines.append(f"{event} {values.get('child')}")
        if "fault" in values or "exc_info" in values:
            self.faults.append((values.get("fault"), "exc_info" in values))

    error = info


def steady(name: str, seen: list[str]) -> Child:
    async def run(life: Life) -> None:
        seen.append(f"+{name}")
        life.ready()
        await life.stopping.wait()
        seen.append(f"-{name}")

    return Child(name, run)


async def tree(
    children: list[Child],
    stop: trio.Event | None = None,
    seconds: float | None = None,
    journal: Journal | None = None,
) -> Journal:
    journal, stop = journal or Journal(), stop or trio.Event()

    async def stopper() -> None:
        if seconds is not None:
            await trio.sleep(seconds)
            stop.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stopper)
        try:
            await run_tree(children, stop, journal, lambda: 0.5, lambda: journal.info("all ready"))
        finally:
            nursery.cancel_scope.cancel()
    return journal


async def test_order_of_start_and_stop(autojump_clock: MockClock) -> None:
    seen: list[str] = []
    journal = await tree([steady(name, seen) for name in "abc"], seconds=5)
    assert seen == ["+a", "+b", "+c", "-c", "-b", "-a"]
    assert journal.lines.index("all ready None") == 3


async def test_the_next_part_waits_for_readiness(autojump_clock: MockClock) -> None:
    times: dict[str, float] = {}

    async def slow(life: Life) -> None:
        await trio.sleep(7)
        life.ready()
        await life.stopping.wait()

    async def second(life: Life) -> None:
        times["second"] = trio.current_time() - start
        life.ready()
        await life.stopping.wait()

    start = trio.current_time()
    await tree([Child("slow", slow), Child("second", second)], seconds=20)
    assert times["second"] == 7


async def test_a_failure_stops_everything_in_order_and_is_raised(autojump_clock: MockClock) -> None:
    seen: list[str] = []

    async def breaks(life: Life) -> None:
        life.ready()
        await trio.sleep(3)
        raise Environment("disk full")

    with pytest.raises(BaseExceptionGroup) as caught:
        await tree([steady("a", seen), Child("b", breaks), steady("c", seen)])
    assert caught.group_contains(Environment, match="disk full")
    assert seen == ["+a", "+c", "-c", "-a"]


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (Environment("the port is in use", rule="listen"), ("the port is in use", False)),
        (ExceptionGroup("", [Environment("disk full")]), ("disk full", False)),
        (Bug("one of ours", rule="bug"), (None, True)),
        (KeyError("x"), (None, True)),
    ],
    ids=["fault", "group", "bug", "unexpected"],
)
async def test_a_trace_is_logged_of_our_own_mistakes_alone(
    autojump_clock: MockClock, failure: Exception, told: tuple[str | None, bool]
) -> None:
    async def breaks(life: Life) -> None:
        raise failure

    journal = Journal()
    with pytest.raises(BaseExceptionGroup):
        await tree([Child("a", breaks)], journal=journal)
    assert journal.faults == [told]


async def test_a_failure_at_start_keeps_later_parts_from_starting(autojump_clock: MockClock) -> None:
    seen: list[str] = []

    async def breaks(_: Life) -> None:
        raise Environment("port in use")

    with pytest.raises(BaseExceptionGroup):
        await tree([steady("a", seen), Child("b", breaks), steady("c", seen)])
    assert seen == ["+a", "-a"]


async def test_an_end_nobody_asked_for_is_a_bug(autojump_clock: MockClock) -> None:
    async def ends(life: Life) -> None:
        life.ready()

    with pytest.raises(BaseExceptionGroup) as caught:
        await tree([Child("ends", ends)])
    assert caught.group_contains(Bug, match="ended unasked")


async def test_restarts_come_with_growing_pauses_up_to_a_most(autojump_clock: MockClock) -> None:
    begins: list[float] = []

    async def flaky(life: Life) -> None:
        begins.append(trio.current_time())
        life.ready()
        raise RuntimeError("again")

    await tree([Child("flaky", flaky, Restart(Backoff(first=1, most=4)))], seconds=20)
    pauses = [round(after - before, 6) for before, after in itertools.pairwise(begins)]
    assert pauses == [1, 2, 4, 4, 4, 4]


async def test_what_cannot_start_is_told_at_once_and_what_dies_later_is_started_again(
    autojump_clock: MockClock,
) -> None:
    begins: list[float] = []

    async def taken(life: Life) -> None:
        raise Environment("the port is in use")

    async def dies(life: Life) -> None:
        begins.append(trio.current_time())
        if len(begins) != 2:
            life.ready()
        raise Environment("the port is in use")

    restart = Restart(Backoff(first=1, most=4), from_start=False)
    with pytest.raises(BaseExceptionGroup) as caught:
        await tree([Child("taken", taken, restart)], seconds=20)
    assert caught.group_contains(Environment, match="in use")
    assert trio.current_time() < 1
    await tree([Child("dies", dies, restart)], seconds=8)
    assert [round(after - before, 6) for before, after in itertools.pairwise(begins)] == [1, 2, 4]


async def test_a_long_run_forgives(autojump_clock: MockClock) -> None:
    begins: list[float] = []

    async def flaky(life: Life) -> None:
        begins.append(trio.current_time())
        life.ready()
        if len(begins) == 3:
            await trio.sleep(100)
        raise RuntimeError("again")

    await tree([Child("flaky", flaky, Restart(Backoff(first=1, most=64), steady=50))], seconds=105)
    assert [round(after - before, 6) for before, after in itertools.pairwise(begins)] == [1, 2, 101]


async def test_who_does_not_stop_is_cancelled_after_its_grace(autojump_clock: MockClock) -> None:
    async def deaf(life: Life) -> None:
        life.ready()
        await trio.sleep_forever()

    start = trio.current_time()
    journal = await tree([Child("deaf", deaf, grace_seconds=9)], seconds=1)
    assert trio.current_time() - start == 10
    assert "cancelled deaf" in journal.lines


async def test_who_never_gets_ready_fails_the_start(autojump_clock: MockClock) -> None:
    async def hangs(life: Life) -> None:
        await life.stopping.wait()

    with pytest.raises(BaseExceptionGroup) as caught:
        await tree([Child("hangs", hangs, start_seconds=30)])
    assert caught.group_contains(Environment, match="not ready after 30 s")


async def test_stop_during_start(autojump_clock: MockClock) -> None:
    seen: list[str] = []

    async def slow(life: Life) -> None:
        await life.stopping.wait()
        seen.append("asked")

    await tree([Child("slow", slow), steady("never", seen)], seconds=2)
    assert seen == ["asked"]


async def test_the_health_of_a_child_is_known_until_it_runs_steadily_again(autojump_clock: MockClock) -> None:
    """While it is down its last fault is told, and after that until it has run for a while."""
    readiness, stop, fails = Readiness(), trio.Event(), iter([True, True, False])

    async def run(life: Life) -> None:
        if next(fails):
            raise Environment("the port is in use", rule="listen", hint="set another")
        life.ready()
        await life.stopping.wait()

    child = Child("network", run, Restart(Backoff(first=10.0, most=10.0), steady=60.0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_tree, [child], stop, Journal(), lambda: 0.5, lambda: None, readiness)
        await trio.sleep(5)
        health = readiness.parts["network"]
        assert (health.up_since, health.restarts, list(readiness.troubles())) == (None, 1, ["network"])
        assert readiness.faults() == {"network": "is started again and again (1 restart): the port is in use"}
        await trio.sleep(20)
        assert health.up_since is not None
        assert readiness.faults() == {"network": "runs again (2 restarts): the port is in use"}
        assert (health.fault and health.fault.hint) == "set another"
        await trio.sleep(60)
        assert (readiness.troubles(), health.restarts) == ({}, 2)
        stop.set()


async def test_a_bug_of_a_child_is_told_without_a_trace(autojump_clock: MockClock) -> None:
    readiness, stop = Readiness(), trio.Event()

    async def run(life: Life) -> None:
        life.ready()
        await trio.sleep(1)
        raise ZeroDivisionError("division by zero")

    child = Child("heads", run, Restart(Backoff(first=10.0, most=10.0)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_tree, [child], stop, Journal(), lambda: 0.5, lambda: None, readiness)
        await trio.sleep(2)
        text = readiness.faults()["heads"]
        assert text == "is started again and again (1 restart): ZeroDivisionError: division by zero"
        stop.set()


# Rounds of work: when there is another, and how they end. On virtual time.


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


# A loop that is held is told of from beside it, with the place; one that never lets go is ended.


class Log:
    """Lines, and an event for each kind of them."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.came = {"event loop held": threading.Event(), "event loop released": threading.Event()}

    def error(self, event: str, **more: Any) -> None:
        self.lines.append((event, more))
        if event in self.came:
            self.came[event].set()


def hold_until(event: threading.Event) -> None:
    """A handler that waits for something and lets nobody else have the loop."""
    assert event.wait(PATIENCE)


@pytest.mark.slow
async def test_who_holds_the_loop_is_named_while_it_does() -> None:
    log: Any = Log()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(LoopGuard(log).run)
        await trio.sleep(LOOK)
        hold_until(log.came["event loop held"])
        await trio.to_thread.run_sync(hold_until, log.came["event loop released"])
        nursery.cancel_scope.cancel()
    (held, told), (released, _) = log.lines
    assert (held, released) == ("event loop held", "event loop released")
    assert "hold_until (test_supervision.py:" in told["where"]


@pytest.mark.slow
async def test_a_loop_that_never_lets_go_is_ended() -> None:
    """Attack T-PEER-04: a handler that occupies the loop for ever.

    Defence: a watchdog thread names it in the log after a second, and ends the daemon after two minutes; a service
    manager does after half a minute.
    """
    log, ended = Log(), threading.Event()
    guarded: Any = log
    async with trio.open_nursery() as nursery:
        nursery.start_soon(LoopGuard(guarded, BlockageDetector(held=LOOK, end=3 * LOOK), ended.set).run)
        await trio.sleep(LOOK)
        hold_until(ended)
        nursery.cancel_scope.cancel()
    assert log.lines[-1][0] == "event loop held for too long: the daemon ends"


def test_looks_count_and_no_clock() -> None:
    """Between two looks a machine may have slept for a night."""
    holds, said = BlockageDetector(), []
    for look in range(int(300 / LOOK)):
        what, seconds = holds.look(1)
        if what:
            said.append((what, seconds, look))
        if what == "end":
            break
    assert said == [("held", HELD, HELD / LOOK), ("end", END, END / LOOK)], "within five minutes"
    assert holds.look(2) == ("released", END)
    assert holds.look(3)[0] == ""


@pytest.mark.slow
async def test_at_rest_nobody_is_woken_and_the_next_block_is_seen_all_the_same() -> None:
    """Beside a loop that waits, the guard waits too, without a timeout."""
    log: Any = Log()
    guard = LoopGuard(log)
    parked = threading.Event()
    park = guard._wake.wait

    def waits(seconds: float | None = None) -> bool:
        if seconds is None:
            parked.set()
        return park(seconds)

    guard._wake.wait = waits  # type: ignore[method-assign]
    rest, wake = trio.Event(), trio.lowlevel.current_trio_token()
    threading.Thread(target=lambda: (parked.wait(PATIENCE), wake.run_sync_soon(rest.set))).start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guard.run)
        await rest.wait()
        hold_until(log.came["event loop held"])
        nursery.cancel_scope.cancel()
    assert [what for what, _ in log.lines][:1] == ["event loop held"]
