"""Starts the processes of one engine on demand: one per tenant, up to a limit.

A tenant is a set of requests that may share a process: by policy all requests, or those about one dataset. If the limit
is reached, the process that was unused for longest ends first. A process in use is never ended: a request that needs
its place waits. After failures to start, a growing pause applies to all tenants, since the cause mostly affects all.
"""

from __future__ import annotations

import contextvars
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from chain.errors import Environment, Fault
from chain.wording import plural
from engines.errors import EngineLost
from engines.provision.process import EngineProcess
from engines.provision.settings import OnEvent, StartStatus, WarmSettings


@dataclass(slots=True)
class _Place:
    """The process of one tenant; only the holder of ``turn`` may replace it."""

    turn: trio.Lock = field(default_factory=trio.Lock)
    process: EngineProcess | None = None
    waiting: int = 0


class Processes:
    """The processes of one engine; usable while ``run`` runs."""

    def __init__(self, settings: WarmSettings, on_event: OnEvent) -> None:
        self._settings = settings
        self._on_event = on_event
        self._nursery: trio.Nursery | None = None
        self._places: dict[str, _Place] = {}
        self._room = trio.lowlevel.ParkingLot()
        self._started = 0
        self._failures = 0
        self._not_before = -float("inf")

    async def run(self, *, task_status: StartStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Runs until cancelled; then stops every process and removes its folders."""
        await trio.to_thread.run_sync(_empty, self._settings.scratch)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None
            self._places.clear()

    def running(self) -> dict[str, EngineProcess]:
        """Returns by tenant the processes that take requests now, without those that are starting or stopping."""
        return {
            tenant: place.process
            for tenant, place in self._places.items()
            if place.process is not None and place.process.client is not None and not place.process.is_leaving
        }

    @asynccontextmanager
    async def lease(self, tenant: str, starting: Callable[[], None] = lambda: None) -> AsyncIterator[EngineProcess]:
        """Lends the tenant's process, which is kept alive meanwhile. Raises EngineLost.

        ``starting`` is called if it does not run yet: before others are ended for it, or while another request starts
        it.
        """
        with self._place(tenant) as place:
            if place.process is None or place.process.client is None:
                starting()
            async with place.turn:
                process = place.process
                if process is None or not await self._answers(process):
                    starting()
                    await self._make_room()
                    process = place.process = self._begin()
                    try:
                        await self._readiness(process)
                    except BaseException:
                        self._release(process)
                        raise
                else:
                    process.leases += 1
                process.begun += 1
        try:
            yield process
        finally:
            self._release(process)

    def _release(self, process: EngineProcess) -> None:
        process.leases -= 1
        process.last_used = trio.current_time()
        self._room.unpark_all()

    @asynccontextmanager
    async def fresh(self) -> AsyncIterator[EngineProcess]:
        """Runs a process for the caller alone, in addition to the limit on the others. Raises EngineLost.

        If the limit is reached, an unused process is ended first: one more at a time costs more memory.
        """
        unused = self._find_unused() if self._count_running() >= self._settings.most else None
        if unused is not None:
            unused.leave("a fresh one is wanted")
            await unused.gone.wait()
        process = self._begin()
        try:
            await self._readiness(process)
            yield process
        finally:
            process.leave("done")
            with trio.CancelScope(shield=True):
                await process.gone.wait()

    @contextmanager
    def _place(self, tenant: str) -> Iterator[_Place]:
        """Yields the tenant's place; afterwards drops empty places without waiters, since tenants over
        time may be many."""
        place = self._places.setdefault(tenant, _Place())
        place.waiting += 1
        try:
            yield place
        finally:
            place.waiting -= 1
            self._forget_empty()

    def _forget_empty(self) -> None:
        for tenant, place in list(self._places.items()):
            if not place.waiting and (place.process is None or place.process.gone.is_set()):
                del self._places[tenant]

    def _count_running(self) -> int:
        return sum(place.process is not None and not place.process.gone.is_set() for place in self._places.values())

    def _find_unused(self) -> EngineProcess | None:
        """Returns the unused process whose last request ended first; ``None``: all are in use."""
        found = [process for process in self.running().values() if not process.leases]
        return min(found, key=lambda process: process.last_used, default=None)

    async def _make_room(self) -> None:
        """Waits until one more process may be started. Does not yield between the last check and the return."""
        leaving = None
        while self._count_running() >= self._settings.most:
            if leaving is None or leaving.gone.is_set():
                leaving = self._find_unused()
                if leaving is not None:
                    leaving.leave("its place is wanted")
            await self._room.park()

    async def _answers(self, process: EngineProcess) -> bool:
        """Whether a process can be used: after a silence it first has to answer a question."""
        limits = self._settings.limits
        if process.is_leaving:
            return False
        if process.leases or trio.current_time() - process.last_used < limits.silence:
            return True
        assert process.client is not None
        with trio.move_on_after(limits.pulse):
            try:
                await process.client.identity()
            except Fault:
                pass
            else:
                return not process.is_leaving
        process.leave("silent")
        return False

    def _begin(self) -> EngineProcess:
        if self._nursery is None:
            raise EngineLost(f"the {self._settings.name} engine is not being run", rule="engine-run")
        wait = self._not_before - trio.current_time()
        if wait > 0:
            raise EngineLost(
                f"the {self._settings.name} engine failed to start {plural(self._failures, 'time')} in a row",
                rule="engine-start",
                hint=f"next attempt in {wait:.0f} s",
            )
        self._started += 1
        process = EngineProcess(self._settings, self._settings.scratch / str(self._started), self._on_event)
        process.leases = 1
        # Without the context of the first requester: log lines must not name its task, as others use the process.
        contextvars.Context().run(self._nursery.start_soon, self._own, process)
        return process

    async def _readiness(self, process: EngineProcess) -> None:
        """Waits until a process is ready. Raises EngineLost if it does not become so, and what
        ``while_starting`` raises."""
        limits, began = self._settings.limits, trio.current_time()
        try:
            with trio.move_on_after(limits.start) as patience:
                async with self._settings.while_starting():
                    await process.ready.wait()
        finally:
            if process.client is None:
                process.leave("did not become ready")
        if process.client is None:
            await process.gone.wait()
            self._failures += 1
            self._not_before = trio.current_time() + limits.backoff.whole(self._failures)
            raise EngineLost(
                f"the {self._settings.name} engine did not start ({process.epitaph})",
                rule="engine-start",
                hint="`odfctl doctor` tries each of its parts"
                + "; engine.start-seconds is how long a start may take" * patience.cancelled_caught,
            )
        self._failures = 0
        facts = {"pid": process.pid, "sandbox": self._settings.sandbox.level.value}
        seconds = round(trio.current_time() - began, 3)
        self._on_event("engine-started", {"engine": self._settings.name, **facts, "seconds": seconds})

    async def _own(self, process: EngineProcess) -> None:
        """Runs a process. A failure to fork it is only seen by its requester, and does not end the daemon's tasks."""
        try:
            await process.run()
        except Environment as fault:
            process.note(str(fault))
            self._on_event("engine-start-failed", {"engine": self._settings.name, "reason": str(fault)})
        finally:
            self._forget_empty()
            self._room.unpark_all()


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
