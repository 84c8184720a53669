"""Processes are lent to queries while their node runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

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
