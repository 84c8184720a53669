"""A control server over a fake node, on a real unix socket, in the test's own trio run."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio

from chain.instant import Instant
from odfd.api.routes import application
from odfd.control import endpoint
from odfd.control.client import ApiCall, ControlClient
from odfd.control.endpoint import ControlServer, Gate
from odfd.obs.events import EventLog
from odfd.runtime.http import Limits
from odfd.runtime.supervision import Life
from odfd.runtime.tasks import TaskBoard
from worlds.clock import FixedClock
from worlds.eventually import PATIENCE
from worlds.fake_node import FakeNode


class Served:
    """``node`` behind ``path``; ``do`` and ``ask`` call it in a thread, as ``odfctl`` would be another process."""

    def __init__(self, node: Any, path: Path) -> None:
        self.node, self.path = node, path
        self.client = ControlClient(path)

    async def do(self, call: ApiCall[Any]) -> Any:
        with trio.fail_after(PATIENCE):
            return await trio.to_thread.run_sync(self.client.do, call)

    async def ask(self, method: str, path: str, kind: Any, body: Any = None) -> Any:
        """Calls what no function of ``calls`` does: another version's path or type, or what is refused."""
        return await self.do(ApiCall(method, path, lambda: kind, body))


@asynccontextmanager
async def serving(path: Path, gate: Gate | None = None, limits: Limits | None = None) -> AsyncIterator[Served]:
    journal = structlog.get_logger()
    clock = FixedClock(Instant(0))
    numbers = iter(range(1, 1000))
    board = TaskBoard(clock, lambda: f"t{next(numbers)}", journal)
    node = FakeNode(board, EventLog(clock))
    listener = endpoint.bind(path)
    server = ControlServer(listener, application(node, journal), gate or Gate(os.geteuid()), journal, limits)
    lives = [Life(), Life()]
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(board.run, lives[0])
            nursery.start_soon(server.run, lives[1])
            for life in lives:
                await life.wait_ready()
            yield Served(node, path)
            for life in lives:
                life.stopping.set()
            nursery.cancel_scope.deadline = trio.current_time() + 5
    finally:
        endpoint.release(listener, path)


@pytest.fixture
def serve(tmp_path: Path) -> Any:
    def start(gate: Gate | None = None, limits: Limits | None = None) -> Any:
        return serving(tmp_path / "control.sock", gate, limits)

    return start
