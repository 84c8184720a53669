"""Processes are lent to queries while their node runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing

from engines.errors import EngineLost
from engines.query import reader
from engines.query.reader import QueryLimits, QueryProcesses


async def test_a_node_that_stops_while_the_sandbox_is_chosen_starts_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would wait for it, and it would outlive the node."""
    chosen, stopped = trio.Event(), trio.Event()

    async def choose() -> Any:
        chosen.set()
        await stopped.wait()

    def started(*_: Any) -> None:
        pytest.fail("a process was started")

    monkeypatch.setattr(reader, "QueryProcess", started)
    processes = QueryProcesses(tmp_path, choose, QueryLimits())

    async def ask() -> None:
        with pytest.raises(EngineLost, match="not being served"):
            async with processes.one():
                pytest.fail("it was lent")

    async with trio.open_nursery() as asking:
        async with trio.open_nursery() as running:
            running.start_soon(processes.run)
            await processes.serving.wait()
            asking.start_soon(ask)
            await chosen.wait()
            running.cancel_scope.cancel()
        stopped.set()


class _Process:
    """In place of a process: tells whether it was waited for."""

    is_alive = True

    def __init__(self, *_: Any) -> None:
        self.is_stopped = False

    async def listen(self) -> None:
        await trio.sleep_forever()

    def kill(self) -> None:
        pass

    async def stop(self) -> None:
        self.is_stopped = True


async def test_a_process_that_is_given_back_while_its_node_stops_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the end of all that serves queries and the end of serving, nobody took it."""
    monkeypatch.setattr(reader, "QueryProcess", _Process)
    lent: list[_Process] = []

    async def choose() -> Any:
        await trio.lowlevel.checkpoint()

    async def ask(processes: QueryProcesses, given: trio.Event, back: trio.Event) -> None:
        async with processes.one() as process:
            lent.append(cast(_Process, process))
            given.set()
            await back.wait()

    for _ in range(100):  # who of two is woken first is for trio's scheduler to say
        processes, given, back = QueryProcesses(tmp_path, choose, QueryLimits()), trio.Event(), trio.Event()

        async def last(back: trio.Event = back) -> None:
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    for _ in range(5):
                        await trio.lowlevel.checkpoint()
                back.set()

        async with trio.open_nursery() as asking, trio.open_nursery() as running:
            running.start_soon(processes.run)
            await processes.serving.wait()
            asking.start_soon(ask, processes, given, back)
            await given.wait()
            processes.later(last)
            await trio.testing.wait_all_tasks_blocked()
            running.cancel_scope.cancel()
    assert all(each.is_stopped for each in lent)


async def test_a_query_that_ends_with_its_node_makes_no_process_ready_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "QueryProcess", _Process)

    async def choose() -> Any:
        await trio.lowlevel.checkpoint()

    async def ask(processes: QueryProcesses, given: trio.Event) -> None:
        async with processes.one():
            given.set()
            await trio.sleep_forever()

    for _ in range(100):  # who of two is woken first is for trio's scheduler to say
        processes, given = QueryProcesses(tmp_path, choose, QueryLimits()), trio.Event()
        async with trio.open_nursery() as node:
            node.start_soon(processes.run)
            await processes.serving.wait()
            node.start_soon(ask, processes, given)
            await given.wait()
            node.cancel_scope.cancel()
