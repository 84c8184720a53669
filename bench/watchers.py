"""Measures what a change of a resource costs with a thousand watchers, against writing its bytes to as many sockets."""

from __future__ import annotations

import gc
import itertools
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest.mock import patch

import structlog
import trio

from bench.measure import CPU, Row, Side, Size, all_in_turns
from bench.resources import alone
from odfd.api.routes import application
from odfd.daemon.main import COLLECTED_AFTER
from odfd.obs.events import EventLog
from odfd.resources.resource import Resource
from odfd.resources.store import ResourceStore
from odfd.runtime.clock import SystemClock
from odfd.runtime.http import Connection, Limits
from odfd.services.resources import watches
from odfd.services.resources.declarations import DeclarationService
from odfd.store.directory import StateDirectory, open_state_directory

_PATH: Final = "/net/v1alpha1/repositories"
_ASK: Final = b"GET %s?watch=1 HTTP/1.1\r\nhost: odfd\r\n\r\n"
_CHUNK: Final = 65_536


def measure_watchers(size: Size, folder: Path) -> list[Row]:
    """Measures a watch over HTTP and sockets, with watchers that wait for news."""
    count, rounds = size.pick(10, 1_000), size.pick(1, 15)
    with _many_files(4 * count + 200), _as_the_daemon_collects(), patch.object(watches, "WATCHES", count):
        return [trio.run(_measured, _PATH, count, rounds, folder)]


async def _measured(path: str, count: int, rounds: int, folder: Path) -> Row:
    clock, logger = SystemClock(), structlog.get_logger()
    events = EventLog(clock)
    with open_state_directory(folder) as home, _Crowd(count) as crowd:
        api = application(cast("Any", SimpleNamespace(declarations=DeclarationService(*alone(home, events)))), logger)
        one = _One(home, clock)
        one.change()
        async with trio.open_nursery() as nursery:
            for stream in crowd.served:
                nursery.start_soon(Connection(cast("Any", stream), api, Limits(), {}).serve)
            await crowd.ask(_ASK % path.encode())

            async def shared() -> None:
                one.is_told = True
                events.nudge()
                await crowd.told()

            one.change()
            await shared()
            line = crowd.last

            async def before() -> None:
                crowd.drain()
                if one.is_told:
                    await trio.to_thread.run_sync(one.change)

            async def bare() -> None:
                for stream in crowd.bare:
                    await stream.send_all(line)

            ours, peer = await all_in_turns((shared, bare), rounds, clock=CPU, before=before)
            nursery.cancel_scope.cancel()
    return Row(
        name="watchers", measures=f"one change to {count:,} watchers of {path}", goal="<= 5",
        ours=Side(name="told over HTTP", costs=ours, amount=count, unit=" watchers"),
        peer=Side(name="its bytes to sockets", costs=peer, amount=count, unit=" sockets"),
        facts={"bytes": len(line)},
    )  # fmt: skip


class _One:
    """The resource that changes; a change is one event of the log."""

    def __init__(self, home: StateDirectory, clock: SystemClock) -> None:
        self._home, self._clock = home, clock
        self._turns = itertools.count(100_000)
        self.is_told = True

    def change(self) -> None:
        now, turn = self._clock.now(), next(self._turns)
        spec, labels = {"url": "file:///srv/r"}, {"turn": f"t{turn}"}
        with self._home.database.write() as connection:
            ResourceStore(connection).put(
                Resource(
                    id="00000000-0000-4000-8000-000000000000", type="Repository", name="r", labels=labels, spec=spec,
                    created_at=now, updated_at=now,
                ), now,
            )  # fmt: skip
        self.is_told = False


class _Crowd:
    """Watchers as pairs of sockets, and as many pairs beside them that nobody serves."""

    def __init__(self, count: int) -> None:
        pairs = [socket.socketpair() for _ in range(2 * count)]
        self._theirs = [theirs for _, theirs in pairs]
        self._ours = ours = [trio.SocketStream(trio.socket.from_stdlib_socket(each)) for each, _ in pairs]
        self.served, self.bare = [_Counted(each, self._note) for each in ours[:count]], ours[count:]
        self._count, self._missing = count, 0
        self._all = trio.Event()
        self.last = b""
        for each in self._theirs:
            each.setblocking(False)

    def __enter__(self) -> _Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._theirs:
            each.close()
        for stream in self._ours:
            stream.socket.close()

    async def ask(self, request: bytes) -> None:
        """Asks for all of them, and waits for the bookmark, after the head and what stands."""
        for each in self._theirs[: self._count]:
            each.send(request)
        self._missing = 3 * self._count
        await self._all.wait()
        self._missing, self._all = self._count, trio.Event()

    async def told(self) -> None:
        """Waits until each was sent one thing."""
        await self._all.wait()
        self._missing, self._all = self._count, trio.Event()

    def drain(self) -> None:
        for each in self._theirs:
            try:
                while each.recv(_CHUNK):
                    """What came."""
            except BlockingIOError:
                continue

    def _note(self, data: bytes) -> None:
        self._missing -= 1
        if not self._missing:
            self.last = data
            self._all.set()


class _Counted:
    """A stream that tells what was sent."""

    def __init__(self, stream: trio.SocketStream, note: Callable[[bytes], None]) -> None:
        self._stream, self._note = stream, note
        self.socket = stream.socket
        self.receive_some = stream.receive_some

    async def send_all(self, data: bytes) -> None:
        await self._stream.send_all(data)
        self._note(data)


@contextmanager
def _many_files(count: int) -> Iterator[None]:
    """Lets the process open more files meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(count, hard)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def _as_the_daemon_collects() -> Iterator[None]:
    """Sets the collector of garbage as ``odfd`` does at its start."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(COLLECTED_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
