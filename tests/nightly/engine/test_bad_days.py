"""Queries that cannot work, on the whole way through a node: the head stays where it is, and the next one works."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from chain.errors import Fault
from chain.ids import DatasetId
from engines.errors import JVM_LOST, EngineLost, LimitExceeded
from engines.provision.host import HostEngine, SparkOptions, spark_engine
from engines.provision.settings import WarmthLimits
from engines.request_control import CallLimits
from odfd.transform.driver import Committed, run_transform
from odfd.transform.plan import Rejected
from worlds import transform_world
from worlds.eventually import ENGINE_START
from worlds.processes import computed, names_of

pytestmark = pytest.mark.engine

DERIVED = DatasetId.from_public_key(b"d" * 32)
ENDLESS = """select event_time, a from x lateral view explode(sequence(1, 100000)) t as a
lateral view explode(sequence(1, 100000)) u as b lateral view explode(sequence(1, 100000)) v as c
where a + b + c = -1"""
HUGE = "select event_time, a, repeat('abcdefgh', 500) as s from x lateral view explode(sequence(1, 1000000)) t as a"


class Day:
    """An engine, and worlds of two chains over it."""

    def __init__(self, folder: Path, host: HostEngine) -> None:
        self._folder, self._number = folder, 0
        self.host = host

    def world(self, query: str) -> transform_world.World:
        self._number += 1
        world = transform_world.World(self._folder / f"world-{self._number}", self.host.engine)
        world.found(query)
        world.add_rows([1, 2, 3], watermark=2000)
        return world

    async def works(self) -> bool:
        world = self.world("select event_time, k + 1 as k from x")
        done = await run_transform(world.deps, DERIVED)
        assert isinstance(done, Committed), done
        assert done.records == 3
        return True

    @property
    def pid(self) -> int | None:
        return next((running.pid for running in self.host.engine.running()), None)

    def jvm(self) -> int:
        """Its process, however deep in the sandbox."""
        waiting = [self.pid]
        while waiting:
            pid = waiting.pop()
            if "java" in Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]:
                return int(pid)
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += [int(child) for child in (task / "children").read_text().split()]
        return self.contained_jvm()

    def contained_jvm(self) -> int:
        """In a container it is nobody's child here, but has our scratch mounted."""
        names = names_of(self._folder / "scratch")
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                is_java = "java" in (place / "cmdline").read_text().split("\0")[0]
                mounts = (place / "mountinfo").read_bytes()
                if is_java and any(name in mounts for name in names):
                    return int(place.name)
        raise AssertionError("no JVM")


@pytest.fixture
async def day(tmp_path: Path) -> AsyncIterator[Day]:
    calls = CallLimits(work=300.0)
    options = SparkOptions(
        scratch=tmp_path / "scratch",
        cache=tmp_path / "cache",
        cores=1,
        heap="512m",
        quick=True,
        calls=calls,
        limits=WarmthLimits(start=ENGINE_START),
    )
    host = await spark_engine(options, os.environ, lambda *_: None)
    async with trio.open_nursery() as nursery:
        await nursery.start(host.engine.run)
        yield Day(tmp_path, host)
        nursery.cancel_scope.cancel()


def heads(world: transform_world.World) -> object:
    return world.chains.chain(DERIVED).head()


async def test_the_head_stays_and_the_next_query_works(day: Day) -> None:
    """One engine has all these days: each start of one takes longer than what is asked of it."""
    assert await day.works()
    await a_query_that_fails_on_a_row_is_rejected_with_its_place(day)
    await a_jvm_that_ends_at_work_is_told_of_and_the_process_goes_on(day)
    await who_leaves_takes_no_core_along(day)


async def a_query_that_fails_on_a_row_is_rejected_with_its_place(day: Day) -> None:
    for sql, says in (
        (
            "select event_time,\n 10 / (k - 2) as q from x",
            "line 2, column 2: Division by zero in: 10 / (k - 2); try_divide(a, b)",
        ),
        ("select event_time, cast(concat('x', k) as int) as q from x", "cast(concat('x', k) as int)"),
        ("select event_time, nope from x", "nope"),
        ("selec event_time from x", "line 1"),
    ):
        world = day.world(sql)
        before = heads(world)
        done = await run_transform(world.deps, DERIVED)
        assert isinstance(done, Rejected), done
        assert says in str(done)
        assert done.rule
        assert done.hint
        assert heads(world) == before
    assert await day.works()


async def failing(world: transform_world.World) -> Fault:
    """What a transaction that cannot end well raises."""
    before = heads(world)
    with pytest.raises(Fault) as caught:
        await run_transform(world.deps, DERIVED)
    assert heads(world) == before
    return caught.value


async def a_jvm_that_ends_at_work_is_told_of_and_the_process_goes_on(day: Day) -> None:
    process = day.pid
    lost = await failing(day.world(HUGE))
    assert isinstance(lost, EngineLost | LimitExceeded), lost
    assert "memory" in str(lost)
    assert await day.works()
    faults: list[Fault] = []

    async def fail() -> None:
        faults.append(await failing(day.world(ENDLESS)))

    jvm = day.jvm()
    idle = computed(jvm)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)
        while computed(jvm) < idle + 20:  # noqa: ASYNC110  the kernel tells nobody
            await trio.sleep(0.05)
        os.kill(jvm, signal.SIGKILL)
    assert [(type(each), each.rule) for each in faults] == [(EngineLost, JVM_LOST)]
    assert await day.works()
    assert day.pid == process


async def who_leaves_takes_no_core_along(day: Day) -> None:
    """The engine has one, and one row that becomes billions never looks up."""
    world = day.world(ENDLESS)
    before = heads(world)
    jvm = day.jvm()
    idle = computed(jvm)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_transform, world.deps, DERIVED)
        while computed(jvm) < idle + 100:  # noqa: ASYNC110  the kernel tells nobody
            await trio.sleep(0.05)
        nursery.cancel_scope.cancel()
    assert heads(world) == before
    assert await day.works()
