"""The tree starts in order, stops in reverse, restarts what may be restarted, and fails loudly. On virtual time."""

from __future__ import annotations

import itertools

import pytest
import trio
from trio.testing import MockClock

from chain.backoff import Backoff
from chain.errors import Environment
from odfd.errors import Bug
from odfd.runtime.supervision import Child, Life, Readiness, Restart, run_tree


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
    assert caught.group_contains(Bug, match="nobody asked")


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
