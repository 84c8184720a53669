"""Engines as processes, in every sandbox that holds here: they come, die, are replaced and leave nothing."""

from __future__ import annotations

import contextvars
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import pytest
import trio

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.model.source import SqlQueryStep, TransformSql
from engines.contract import (
    STARTING,
    EngineIdentity,
    EngineInternalError,
    EngineProgress,
    InvalidQuery,
    Success,
    TransformRequest,
    ValidateRequest,
    Vocab,
)
from engines.errors import EngineLost, LimitExceeded
from engines.provision.settings import ENGINE_FAILED, Isolation, WarmSettings, WarmthLimits
from engines.provision.warm import EnginePool, WarmEngine
from engines.sandbox.base import Mount, PlainProcess, Sandbox, SandboxLevel
from engines.sandbox.bubblewrap import Bubblewrap, host_runtime
from engines.sandbox.probe import choose, trial
from worlds.eventually import PATIENCE, became
from worlds.fake_engine import FakeEngine

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("scripted_engine.py")
FIRST, SECOND, THIRD = (DatasetId.from_public_key(bytes([number]) * 32) for number in (1, 2, 3))
IDENTITY = EngineIdentity(name="scripted", version="1", digest="sha256:11", sandbox="none", platform="linux/amd64")


def pid_of(engine: WarmEngine) -> int | None:
    return next((running.pid for running in engine.running()), None)


def is_busy(engine: WarmEngine) -> bool:
    return any(running.busy for running in engine.running())


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
        self.note: Callable[[], object] = lambda: None
        self.noted: list[object] = []
        """What ``note`` gave at each event."""

    def engine(self, mode: str = "serve", memory: int | None = None, apart: int = 0, **limits: float) -> WarmEngine:
        """``apart``: each dataset in a process of its own, so many at once."""
        settings = WarmSettings(
            name="scripted",
            program=command(mode),
            sandbox=self.sandbox,
            identity=IDENTITY,
            scratch=self.folder / "scratch",
            mounts=(Mount(PROGRAM.parent, PurePosixPath(PROGRAM.parent)),),
            memory=memory,
            isolation=Isolation.DATASET if apart else Isolation.SHARED,
            most=apart or 1,
            limits=WarmthLimits(**({"start": PATIENCE, "grace": 2.0} | limits)),
        )
        return WarmEngine(settings, self._hear)

    def _hear(self, name: str, facts: Mapping[str, object]) -> None:
        self.events.append((name, facts))
        self.noted.append(self.note())

    def names(self) -> list[str]:
        return [name for name, _ in self.events if name != "engine-said"]

    def started(self) -> list[object]:
        return [facts["pid"] for name, facts in self.events if name == "engine-started"]


@pytest.fixture
def bed(sandbox: Sandbox, tmp_path: Path) -> Bed:
    return Bed(sandbox, tmp_path)


def asking(request: TransformRequest, query: str) -> TransformRequest:
    transform = TransformSql(engine="scripted", queries=(SqlQueryStep(query=query),))
    return msgspec.structs.replace(request, transform=transform, transaction_id=None)


async def test_an_engine_has_nothing_of_the_task_that_started_it(bed: Bed, bench: Any) -> None:
    """Attack T-ACCOUNT-01: starting an engine by one's own task, so that its later log lines for others are read in the
    log of that task.

    Defence: an engine process starts without the task of its first caller.

    It serves other tasks after, and lines that it logs then are not of the first.
    """
    task = contextvars.ContextVar("task", default="none")
    bed.note = task.get
    engine = bed.engine()
    async with trio.open_nursery() as inner:
        await inner.start(engine.run)
        task.set("t1")
        assert isinstance(await engine.transform(asking(bench.request(), "join")), Success)
        inner.cancel_scope.cancel()
    noted = {name: told for (name, _), told in zip(bed.events, bed.noted, strict=True)}
    assert noted == {"engine-started": "t1", "engine-exited": "none"}


async def test_starts_on_demand_stays_warm_and_leaves_nothing(bed: Bed, bench: Any) -> None:
    engine = bed.engine()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as inner:
            await inner.start(engine.run)
            assert pid_of(engine) is None
            assert await engine.identity() == IDENTITY
            assert pid_of(engine) is None
            told: list[EngineProgress] = []
            assert isinstance(await engine.transform(asking(bench.request(), "join"), told.append), Success)
            assert told[0] == EngineProgress(stage=STARTING)
            assert (bench.folder / "new-data").read_bytes() == b"12"
            first = pid_of(engine)
            assert first is not None
            told.clear()
            assert isinstance(await engine.transform(asking(bench.request(), "join"), told.append), Success)
            assert STARTING not in {each.stage for each in told}
            assert pid_of(engine) == first
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
        first = pid_of(engine)
        with pytest.raises(EngineLost, match="last words of a dying engine"):
            await engine.transform(asking(bench.request(), "die"))
        assert isinstance(await engine.transform(asking(bench.request(), "join")), Success)
        assert pid_of(engine) != first
        nursery.cancel_scope.cancel()


async def test_a_fault_of_the_engine_s_own_is_told_with_its_trace(bed: Bed, bench: Any) -> None:
    """It is of no use to who asked; the log is where it belongs."""
    engine = bed.engine()
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        assert isinstance(await engine.transform(asking(bench.request(), "fail at once")), EngineInternalError)
        nursery.cancel_scope.cancel()
    ((_, facts),) = [each for each in bed.events if each[0] == ENGINE_FAILED]
    assert facts["message"] == "ValueError: at once"
    assert any("in transform" in line for line in facts["trace"])  # type: ignore[attr-defined]


async def test_killed_from_outside_between_requests(bed: Bed, bench: Any) -> None:
    engine = bed.engine()
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        await engine.validate(validation(bench))
        first = pid_of(engine)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await became(lambda: pid_of(engine) is None)
        assert (await engine.validate(validation(bench))).ok
        assert pid_of(engine) != first
        nursery.cancel_scope.cancel()


async def test_an_engine_that_cannot_start_says_why_and_is_not_tried_at_once_again(bed: Bed, bench: Any) -> None:
    engine = bed.engine("refuse")
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        with pytest.raises(EngineLost, match="no Java here"):
            await engine.validate(validation(bench))
        with pytest.raises(EngineLost, match="failed to start 1 time") as second:
            await engine.validate(validation(bench))
        assert "next attempt in" in second.value.hint
        nursery.cancel_scope.cancel()
    assert bed.names()[-1] == "engine-exited"


async def test_an_engine_that_says_nothing_is_given_up(bed: Bed, bench: Any) -> None:
    engine = bed.engine("mute", start=0.5, grace=0.1)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        with pytest.raises(EngineLost, match="did not start") as lost:
            await engine.validate(validation(bench))
        assert "engine.start-seconds" in lost.value.hint
        nursery.cancel_scope.cancel()
    assert bed.names() == ["engine-leaving", "engine-exited"]


async def test_an_idle_engine_goes_and_comes_back(bed: Bed, bench: Any) -> None:
    engine = bed.engine(idle=0.2)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        await engine.validate(validation(bench))
        await became(lambda: "engine-exited" in bed.names())
        await engine.validate(validation(bench))
        assert len(set(bed.started())) > 1
        nursery.cancel_scope.cancel()


async def test_a_fresh_engine_is_the_callers_own_and_takes_nobodys_work_away(bed: Bed, bench: Any) -> None:
    """Somebody's long query goes on in the shared process while two runs each get a process of their own."""
    engine = bed.engine()

    async def long_query() -> None:
        await engine.transform(asking(bench.request(), "sleep 600"))

    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        await engine.validate(validation(bench))
        shared = pid_of(engine)
        async with trio.open_nursery() as others:
            others.start_soon(long_query)
            await became(lambda: is_busy(engine))
            for _ in range(2):
                async with engine.fresh() as own:
                    assert (await own.validate(validation(bench))).ok
                    assert (await engine.validate(validation(bench))).ok
                assert pid_of(engine) == shared
            others.cancel_scope.cancel()
        assert len(set(bed.started())) == 3
        nursery.cancel_scope.cancel()


async def test_a_shared_engine_that_nobody_uses_makes_room_for_a_fresh_one(bed: Bed, bench: Any) -> None:
    engine = bed.engine()
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        await engine.validate(validation(bench))
        async with engine.fresh() as own:
            assert pid_of(engine) is None
            with pytest.raises(EngineLost, match="last words of a dying engine"):
                await own.transform(asking(bench.request(), "die"))
        assert (await engine.validate(validation(bench))).ok
        nursery.cancel_scope.cancel()


def about(request: TransformRequest, dataset: DatasetId) -> TransformRequest:
    return msgspec.structs.replace(request, dataset_id=dataset)


def held(engine: WarmEngine) -> dict[str, int]:
    return {running.dataset: running.pid for running in engine.running()}


@pytest.mark.parametrize(("apart", "processes"), [(0, 3), (2, 2)])
async def test_a_query_that_ends_its_process_ends_no_other_query(
    tmp_path: Path, bench: Any, apart: int, processes: int
) -> None:
    """Attack T-QUERY-02: a query that harms others in its engine: ends their process, fills its memory, changes state
    in the JVM.

    Defence: a request lost with a process that it shared is repeated once, in a process of its own; with
    `engine.isolation = "dataset"` each dataset has a process of its own.

    With each dataset in its own process the other goes on. In one process both are repeated once, apart.
    """
    bed, ended, enough = Bed(PlainProcess(), tmp_path), [], tmp_path / "enough"
    engine = bed.engine(apart=apart)

    async def long_query() -> None:
        ended.append(await engine.transform(asking(about(bench.request(), FIRST), f"work {enough}")))

    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        async with trio.open_nursery() as work:
            await engine.transform(asking(about(bench.request(), FIRST), "join"))
            work.start_soon(long_query)
            await became(lambda: is_busy(engine))
            with pytest.raises(EngineLost, match="last words of a dying engine"):
                await engine.transform(asking(about(bench.request(), SECOND), "die"))
            enough.touch()
        assert ended == [InvalidQuery(message="worked")]
        assert len(bed.started()) == processes
        nursery.cancel_scope.cancel()


async def test_a_cancelled_query_that_works_on_costs_its_process_and_no_other_query(tmp_path: Path, bench: Any) -> None:
    bed, ended, enough = Bed(PlainProcess(), tmp_path), [], tmp_path / "enough"
    engine = bed.engine(cancelled=0.3)

    async def long_query() -> None:
        ended.append(await engine.transform(asking(about(bench.request(), FIRST), f"work {enough}")))

    async def stuck_query() -> None:
        await engine.transform(asking(about(bench.request(), SECOND), f"ignore {tmp_path / 'begun'}"))

    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        await engine.transform(asking(about(bench.request(), THIRD), "join"))
        async with trio.open_nursery() as work:
            work.start_soon(long_query)
            async with trio.open_nursery() as leaving:
                leaving.start_soon(stuck_query)
                await became(lambda: (tmp_path / "begun").exists())
                leaving.cancel_scope.cancel()
            await became(lambda: "engine-exited" in bed.names())
            enough.touch()
        assert ended == [InvalidQuery(message="worked")]
        whys = (facts["why"] for name, facts in bed.events if name == "engine-leaving")
        assert next(whys) == "a cancelled request did not end"
        nursery.cancel_scope.cancel()


async def test_apart_the_least_recently_used_process_makes_room(tmp_path: Path, bench: Any) -> None:
    bed = Bed(PlainProcess(), tmp_path)
    engine = bed.engine(apart=2)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        for dataset in (FIRST, SECOND, FIRST):
            await engine.transform(asking(about(bench.request(), dataset), "join"))
        before = held(engine)
        assert set(before) == {str(FIRST), str(SECOND)}
        await engine.transform(asking(about(bench.request(), THIRD), "join"))
        after = held(engine)
        assert set(after) == {str(FIRST), str(THIRD)}
        assert after[str(FIRST)] == before[str(FIRST)]
        await engine.validate(validation(bench))
        assert set(held(engine)) == {str(THIRD), ""}
        with pytest.raises(ProcessLookupError):
            os.kill(before[str(FIRST)], 0)
        nursery.cancel_scope.cancel()
    assert {facts["why"] for name, facts in bed.events if name == "engine-leaving"} == {"its place is wanted"}


async def test_apart_one_that_works_is_not_ended_and_who_needs_its_place_waits(tmp_path: Path, bench: Any) -> None:
    """Many datasets, one place: all are served, one process at a time, and none is cut off at work."""
    bed = Bed(PlainProcess(), tmp_path)
    engine, most, order = bed.engine(apart=1), 0, []
    datasets = [DatasetId.from_public_key(bytes([number]) * 32) for number in range(1, 5)]

    async def query(dataset: DatasetId) -> None:
        nonlocal most
        answer = await engine.transform(asking(about(bench.request(), dataset), "sleep 0.2"))
        assert answer == InvalidQuery(message="slept")
        most = max(most, len(engine.running()))
        order.append(dataset)

    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        async with trio.open_nursery() as work:
            for dataset in (*datasets, datasets[0]):
                work.start_soon(query, dataset)
        assert set(order) == set(datasets)
        assert len(order) == 5
        assert most == 1
        nursery.cancel_scope.cancel()
    starts = [name for name in bed.names() if name in ("engine-started", "engine-exited")]
    assert starts == ["engine-started", "engine-exited"] * (len(starts) // 2)


async def test_apart_who_stops_waiting_for_a_place_takes_none(tmp_path: Path, bench: Any) -> None:
    bed = Bed(PlainProcess(), tmp_path)
    engine = bed.engine(apart=1)

    async def long_query() -> None:
        await engine.transform(asking(about(bench.request(), FIRST), "sleep 600"))

    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        async with trio.open_nursery() as others:
            others.start_soon(long_query)
            await became(bed.started)
            with trio.move_on_after(0.05) as impatient:
                await engine.transform(asking(about(bench.request(), SECOND), "join"))
            assert impatient.cancelled_caught
            others.cancel_scope.cancel()
        assert isinstance(await engine.transform(asking(about(bench.request(), THIRD), "join")), Success)
        assert set(held(engine)) == {str(THIRD)}
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
        seen = "a private key" if bed.sandbox.level is SandboxLevel.NONE else "cannot: No such file or directory"
        assert outcome == InvalidQuery(message=seen)
        nursery.cancel_scope.cancel()


async def test_a_silent_engine_is_replaced(bed: Bed, bench: Any) -> None:
    engine = bed.engine(silence=0.0, pulse=5.0, grace=0.1)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        await engine.validate(validation(bench))
        first = pid_of(engine)
        assert first is not None
        await engine.validate(validation(bench))
        assert pid_of(engine) == first
        await stop(descendants(first))
        await engine.validate(validation(bench))
        assert pid_of(engine) != first
        nursery.cancel_scope.cancel()
    assert {"engine": "scripted", "pid": first, "why": "silent"} in [facts for _, facts in bed.events]


async def stop(pids: list[int]) -> None:
    """Until they stand still: a thread of a busy machine may answer once more after the signal was sent."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        while not stands(pid):
            await trio.lowlevel.checkpoint()


def stands(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def descendants(pid: int) -> list[int]:
    """A process and all that came from it; inside bubblewrap the engine is two generations down."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in descendants(int(child)))]


def validation(bench: Any) -> ValidateRequest:
    return ValidateRequest(transform=bench.request().transform, inputs=(), vocab=Vocab())


async def test_nothing_runs_unless_it_is_run(bed: Bed, bench: Any) -> None:
    with pytest.raises(EngineLost, match="not being run"):
        await bed.engine().validate(validation(bench))


async def test_a_pool_gives_the_engine_that_is_pinned() -> None:
    """By its digest, whichever comes first; for a digest that none has, another of that name, and says which."""
    old, new = FakeEngine(), FakeEngine()
    old.digest, new.digest = "sha256:1", "sha256:2"
    pool = EnginePool({"spark": (new, old)})
    found = {digest: await pool.find_pinned("Spark", digest) for digest in ("sha256:1", "sha256:2", "sha256:3", None)}
    assert {digest: (engine, identity.digest) for digest, (engine, identity) in found.items()} == {
        "sha256:1": (old, "sha256:1"),
        "sha256:2": (new, "sha256:2"),
        "sha256:3": (new, "sha256:2"),
        None: (new, "sha256:2"),
    }
    assert pool.engine("spark") is new


async def test_a_pool_names_what_it_has() -> None:
    pool = EnginePool({"spark": (WarmEngine.__new__(WarmEngine),)})
    assert pool.engine("Spark") is not None
    with pytest.raises(Invalid, match="flink") as error:
        pool.engine("flink")
    assert "spark" in error.value.hint


async def test_the_choice_says_why_better_levels_were_not_taken() -> None:
    choice = await choose(SandboxLevel.NONE)
    assert choice.passed_over[0].level is SandboxLevel.IMAGE
    assert "no engine image" in str(choice.passed_over[0])
