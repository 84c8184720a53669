"""The node's engine before it is found: on virtual time."""

from __future__ import annotations

import sys
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from chain.errors import Environment
from engines.errors import EngineLost
from engines.provision.host import SparkOptions
from engines.provision.settings import ENGINE_FAILED
from odfd.cli.commands.node import status_text
from odfd.control import wire
from odfd.runtime.supervision import Life
from odfd.services.execution.engine import LATEST, SOONEST, NodeEngine


class Warm:
    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()

    async def identity(self) -> str:
        return "found"


class Lines:
    """A journal."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def info(self, event: str, **_: object) -> None: ...

    def error(self, event: str, **_: object) -> None:
        self.said.append(event)


async def test_an_engine_that_was_not_found_is_looked_for_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """As after a disk that was full; why there is none is told once, and to all who ask meanwhile."""
    tried: list[float] = []
    choice = SimpleNamespace(remarks=(), passed_over=(), verdict=SimpleNamespace(unbounded=()))
    host = SimpleNamespace(choice=choice, identity=SimpleNamespace(sandbox="bubblewrap"), engine=Warm())

    async def found(*_: Any) -> Any:
        tried.append(trio.current_time())
        if len(tried) < 10:
            raise Environment("No space left on device", rule="engine-digest")
        return host

    monkeypatch.setattr("odfd.services.execution.engine.spark_engine", found)
    journal, life = Lines(), Life()
    engine: Any = NodeEngine(SparkOptions(scratch=tmp_path, cache=tmp_path), {}, journal, lambda: None)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run, life)
        with pytest.raises(EngineLost, match="this node has no engine: No space left"):
            await engine.identity()
        assert (engine.why_not is not None, engine.view().state) == (True, "failed")
        await trio.sleep(6 * LATEST)
        assert (engine.why_not, await engine.identity()) == (None, "found")
        life.stopping.set()
    pauses = [round(later - earlier) for earlier, later in pairwise(tried)]
    assert pauses == [SOONEST * 2**n for n in range(6)] + [LATEST] * 3
    assert journal.said == ["no engine"]


def test_what_an_engine_says_of_its_own_fault_is_an_error_of_the_log(tmp_path: Any) -> None:
    journal = Lines()
    engine: Any = NodeEngine(SparkOptions(scratch=tmp_path, cache=tmp_path), {}, journal, lambda: None)  # type: ignore[arg-type]
    engine._report("engine-started", {})
    engine._report(ENGINE_FAILED, {"message": "a bug", "trace": ("here",)})
    assert journal.said == [ENGINE_FAILED]


async def test_where_spark_is_not_installed_nothing_has_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    journal, life = Lines(), Life()
    engine = NodeEngine(SparkOptions(scratch=tmp_path, cache=tmp_path), {}, journal, lambda: None)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run, life)
        with pytest.raises(EngineLost, match="Spark is not installed"):
            await engine.identity()
        life.stopping.set()
    view = engine.view()
    assert (view.state, journal.said) == ("not-installed", [])
    assert "odfctl docs install" in view.message
    assert "not installed" not in view.message
    assert status_text(wire.Status(node_id="did:key:z6", version="1", engine=view)).count("not installed") == 1


async def test_a_node_without_an_engine_stops_when_asked(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    async def none(*_: Any) -> Any:
        raise Environment("no Java", rule="java")

    monkeypatch.setattr("odfd.services.execution.engine.spark_engine", none)
    life = Life()
    engine = NodeEngine(SparkOptions(scratch=tmp_path, cache=tmp_path), {}, Lines(), lambda: None)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run, life)
        await trio.sleep(3 * LATEST)
        stopped = trio.current_time()
        life.stopping.set()
    assert trio.current_time() == stopped, "it sleeps no longer when it is asked to stop"
