"""Engines as processes, in every sandbox that holds here: they come, die, are replaced and leave nothing."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from chain.errors import Invalid
from chain.model.source import SqlQueryStep, TransformSql
from engines.contract import (
    EngineIdentity,
    InvalidQuery,
    Success,
    TransformRequest,
    ValidateRequest,
    Vocabulary,
)
from engines.errors import EngineLost, LimitExceeded
from engines.provision.settings import WarmSettings, WarmthLimits
from engines.provision.warm import EnginePool, WarmEngine
from engines.sandbox.base import Level, Mount, Sandbox
from engines.sandbox.bubblewrap import Bubblewrap
from engines.sandbox.plain import PlainProcess
from engines.sandbox.probe import choose, trial
from engines.sandbox.runtime import host_runtime

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("scripted_engine.py")
IDENTITY = EngineIdentity(name="scripted", version="1", digest="sha256:11", sandbox="none", platform="linux/amd64")


def command(mode: str) -> Any:
    return lambda listen, scratch: (sys.executable, "-P", str(PROGRAM), listen, mode)


@pytest.fixture(params=["none", "host"])
async def sandbox(request: Any) -> Sandbox:
    if request.param == "none":
        return PlainProcess()
    try:
        best = Bubblewrap("/usr/bin/bwrap", host_runtime(()))
        problems = (await trial(best)).problems
    except OSError:
        problems = ("no bubblewrap",)
    if problems:
        pytest.skip(f"level host does not hold here: {problems}")
    return best


class Bed:
    """A warm engine and what it said."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self.sandbox = sandbox
        self.folder = folder
        self.events: list[tuple[str, Mapping[str, object]]] = []

    def engine(self, mode: str = "serve", memory: int | None = None, **limits: float) -> WarmEngine:
        settings = WarmSettings(
            name="scripted",
            program=command(mode),
            sandbox=self.sandbox,
            identity=IDENTITY,
            scratch=self.folder / "scratch",
            mounts=(Mount(PROGRAM.parent, PurePosixPath(PROGRAM.parent)),),
            memory=memory,
            limits=WarmthLimits(**({"start": 20.0, "grace": 2.0} | limits)),
        )
        return WarmEngine(settings, lambda name, facts: self.events.append((name, facts)))

    def names(self) -> list[str]:
        return [name for name, _ in self.events if name != "engine-said"]


@pytest.fixture
def bed(sandbox: Sandbox, tmp_path: Path) -> Bed:
    return Bed(sandbox, tmp_path)


def asking(request: TransformRequest, query: str) -> TransformRequest:
    transform = TransformSql(engine="scripted", queries=(SqlQueryStep(query=query),))
    return msgspec.structs.replace(request, transform=transform, transaction_id=None)


async def test_starts_on_demand_stays_warm_and_leaves_nothing(bed: Bed, bench: Any) -> None:
    engine = bed.engine()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as inner:
            await inner.start(engine.run)
            assert engine.pid is None
            assert await engine.identity() == IDENTITY
            assert engine.pid is None
            assert isinstance(await engine.transform(asking(bench.request(), "join")), Success)
            assert (bench.folder / "new-data").read_bytes() == b"12"
            first = engine.pid
            assert first is not None
            assert isinstance(await engine.transform(asking(bench.request(), "join")), Success)
            assert engine.pid == first
            scope.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    assert list((bed.folder / "scratch").iterdir()) == []
    assert bed.names() == ["engine-started", "engine-exited"]


async def test_a_query_that_kills_its_engine_is_told_why_and_the_next_finds_another(bed: Bed, bench: Any) -> None:
    engine = bed.engine()
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        assert isinstance(await engine.transform(asking(bench.request(), "join")), Success)
        first = engine.pid
        with pytest.raises(EngineLost, match="last words of a dying engine"):
            await engine.transform(asking(bench.request(), "die"))
        assert isinstance(await engine.transform(asking(bench.request(), "join")), Success)
        assert engine.pid != first
        nursery.cancel_scope.cancel()


async def test_killed_from_outside_between_requests(bed: Bed, bench: Any) -> None:
    engine = bed.engine()
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        await engine.validate(validation(bench))
        first = engine.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        while engine.pid is not None:
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert (await engine.validate(validation(bench))).ok
        assert engine.pid != first
        nursery.cancel_scope.cancel()


async def test_an_engine_that_cannot_start_says_why_and_is_not_tried_at_once_again(bed: Bed, bench: Any) -> None:
    engine = bed.engine("refuse")
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        with pytest.raises(EngineLost, match="no Java here"):
            await engine.validate(validation(bench))
        with pytest.raises(EngineLost, match="failed to start 1 times") as second:
            await engine.validate(validation(bench))
        assert "next attempt in" in second.value.hint
        nursery.cancel_scope.cancel()
    assert bed.names()[-1] == "engine-exited"


async def test_an_engine_that_says_nothing_is_given_up(bed: Bed, bench: Any) -> None:
    engine = bed.engine("mute", start=0.5, grace=0.1)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        with pytest.raises(EngineLost, match="did not start"):
            await engine.validate(validation(bench))
        nursery.cancel_scope.cancel()
    assert bed.names() == ["engine-leaving", "engine-exited"]


async def test_an_idle_engine_goes_and_comes_back(bed: Bed, bench: Any) -> None:
    engine = bed.engine(idle=0.2)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        await engine.validate(validation(bench))
        first = engine.pid
        assert first is not None
        with trio.fail_after(10):
            while "engine-exited" not in bed.names():
                await trio.testing.wait_all_tasks_blocked(0.01)
        assert engine.pid is None
        await engine.validate(validation(bench))
        assert engine.pid not in (None, first)
        nursery.cancel_scope.cancel()


async def test_a_fresh_engine_is_the_callers_own_and_takes_nobodys_work_away(bed: Bed, bench: Any) -> None:
    """Somebody's long query goes on in the shared process while two runs each get a process of their own."""
    engine = bed.engine()

    async def long_query() -> None:
        await engine.transform(asking(bench.request(), "sleep 600"))

    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        await engine.validate(validation(bench))
        shared = engine.pid
        async with trio.open_nursery() as others:
            others.start_soon(long_query)
            await trio.testing.wait_all_tasks_blocked(0.01)
            for _ in range(2):
                async with engine.fresh() as own:
                    assert (await own.validate(validation(bench))).ok
                    assert (await engine.validate(validation(bench))).ok
                assert engine.pid == shared
            others.cancel_scope.cancel()
        pids = [facts["pid"] for name, facts in bed.events if name == "engine-started"]
        assert len(set(pids)) == 3
        nursery.cancel_scope.cancel()


async def test_a_shared_engine_that_nobody_uses_makes_room_for_a_fresh_one(bed: Bed, bench: Any) -> None:
    engine = bed.engine()
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        await engine.validate(validation(bench))
        async with engine.fresh() as own:
            assert engine.pid is None
            with pytest.raises(EngineLost, match="last words of a dying engine"):
                await own.transform(asking(bench.request(), "die"))
        assert (await engine.validate(validation(bench))).ok
        nursery.cancel_scope.cancel()


async def test_memory_has_a_limit_and_the_node_lives(bed: Bed, bench: Any) -> None:
    engine = bed.engine(memory=512 << 20)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        with pytest.raises(LimitExceeded, match="more memory than the engine has"):
            await engine.transform(asking(bench.request(), "hoard"))
        assert isinstance(await engine.transform(asking(bench.request(), "join")), Success)
        nursery.cancel_scope.cancel()


async def test_what_a_query_can_read_depends_on_the_level(bed: Bed, bench: Any) -> None:
    secret = bench.file("secret", b"a private key")
    engine = bed.engine()
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        outcome = await engine.transform(asking(bench.request(), f"read {secret}"))
        seen = "a private key" if bed.sandbox.level is Level.NONE else "cannot: No such file or directory"
        assert outcome == InvalidQuery(message=seen)
        nursery.cancel_scope.cancel()


async def test_a_silent_engine_is_replaced(bed: Bed, bench: Any) -> None:
    engine = bed.engine(silence=0.0, pulse=0.5, grace=0.1)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        await engine.validate(validation(bench))
        first = engine.pid
        assert first is not None
        await engine.validate(validation(bench))
        assert engine.pid == first
        for each in descendants(first):
            os.kill(each, signal.SIGSTOP)
        await engine.validate(validation(bench))
        assert engine.pid != first
        nursery.cancel_scope.cancel()
    assert {"engine": "scripted", "pid": first, "why": "silent"} in [facts for _, facts in bed.events]


def descendants(pid: int) -> list[int]:
    """A process and all that came from it; inside bubblewrap the engine is two generations down."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in descendants(int(child)))]


def validation(bench: Any) -> ValidateRequest:
    return ValidateRequest(transform=bench.request().transform, inputs=(), vocab=Vocabulary())


async def test_nothing_runs_unless_it_is_run(bed: Bed, bench: Any) -> None:
    with pytest.raises(EngineLost, match="not being run"):
        await bed.engine().validate(validation(bench))


async def test_a_pool_names_what_it_has() -> None:
    pool = EnginePool({"spark": WarmEngine.__new__(WarmEngine)})
    assert pool.engine("Spark") is not None
    with pytest.raises(Invalid, match="flink") as error:
        pool.engine("flink")
    assert "spark" in error.value.hint


async def test_the_choice_says_why_better_levels_were_not_taken() -> None:
    choice = await choose(Level.NONE)
    assert choice.passed_over[0].level is Level.IMAGE
    assert "no engine image" in str(choice.passed_over[0])
