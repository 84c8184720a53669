"""Runs engine processes, each from its fork to the removal of its last file, on demand: one per tenant, up to a limit.

``EngineProcess.run`` owns one: whatever ends it (exit, ``leave``, cancellation) also ends the process, closes the
channel and removes the folders. A tenant is a set of requests that may share a process: by policy all requests, or
those about one dataset. If the limit is reached, the process that was unused for longest ends first. A process in use
is never ended: a request that needs its place waits. After failures to start, a growing pause applies to all tenants,
since the cause mostly affects all.
"""

from __future__ import annotations

import contextvars
import importlib
import math
import re
import shutil
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

import trio

from chain.errors import Environment, Fault
from chain.wording import plural
from engines.contract import SESSION_STATES
from engines.errors import MAX_BACKTRACE, EngineLost, LimitExceeded
from engines.errors import SESSION as NO_SESSION
from engines.io_plan import SandboxView
from engines.listen_address import READY, SESSION
from engines.provision.settings import ENGINE_FAILED, OnEvent, StartStatus, WarmSettings
from engines.sandbox.base import Job, Mount
from engines.sandbox.process import ConfinedProcess, start
from engines.staging import Staging

if TYPE_CHECKING:
    from engines.client import GrpcEngine


READY_STATE: Final = "ready"
_MAX_LINE: Final = 8192
"""Most bytes of one line that an engine prints; longer lines come in pieces."""
_LAST_WORDS: Final = 12
"""Lines of output kept for the message when an engine does not start or dies."""
_NO_MEMORY: Final = re.compile(
    r"std::bad_alloc|java\.lang\.OutOfMemoryError[^\n|]{0,80}|MemoryError|Cannot allocate memory"
    r"|[mr]e?alloc of size \d+ failed"
)
"""Matches what C++, Java, Python and Arrow say when they get no memory."""
_PIPE_SECONDS: Final = 1.0
"""Seconds to read the rest in the pipes after the exit; a grandchild could hold them open for ever."""
_INSIDE: Final = PurePosixPath("/odf")


class EngineProcess:
    """One process: ``ready`` is set when the engine answers or has exited, ``gone`` when no process of it is left."""

    def __init__(self, settings: WarmSettings, home: Path, on_event: OnEvent) -> None:
        self._settings = settings
        self._home = home
        self._on_event = on_event
        self._scope = trio.CancelScope()
        self._last_words: deque[str] = deque(maxlen=_LAST_WORDS)
        self._code: int | None = None
        self.pid = 0
        self.client: GrpcEngine | None = None
        self.ready = trio.Event()
        self.gone = trio.Event()
        self.session = READY_STATE
        """State of what only some requests need (``engines.contract.SESSION_STATES``), as the process told it last."""
        self.session_used = trio.current_time()
        self._starts_without = False
        self._opening = trio.Lock()
        self._was_cancelled = trio.Event()
        self.left = ""
        """Why the process is stopped; empty: it is not, or ended by itself."""
        self.leases = 0
        self.begun = 0
        """Requests that it got until now."""
        self.last_used = trio.current_time()

    @property
    def is_leaving(self) -> bool:
        return self._scope.cancel_called or self.gone.is_set()

    @property
    def epitaph(self) -> str:
        """Describes how the process ended, with its last output."""
        code = self._code
        how = "it never ran" if code is None else f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"{how}; it said: {' | '.join(self._last_words)}" if self._last_words else how

    @property
    def lack(self) -> str:
        """Returns the words by which the process said that memory did not suffice; empty: it said nothing like that."""
        found = _NO_MEMORY.search("\n".join(self._last_words))
        return found[0] if found else ""

    def note(self, line: str) -> None:
        self._last_words.append(line)

    def note_cancelled(self) -> None:
        """Notes that the caller of a request has gone: if the request works on for long, the process ends."""
        self._was_cancelled.set()

    def leave(self, why: str) -> None:
        """Starts to stop the process; ``gone`` is set when it has stopped."""
        if not self.is_leaving:
            self.left = why
            self._log("engine-leaving", why=why)
        self._scope.cancel()

    async def run(self) -> None:
        """Starts, supervises and ends the process. Raises EngineLost if there is nothing to start."""
        sockets = Path(tempfile.mkdtemp(prefix="odf-"))  # short: the path of a socket has 107 bytes
        try:
            staging = Staging(self._home)
            staging.sweep()
            (self._home / "tmp").mkdir()
            mounts = (
                Mount(staging.inputs, _INSIDE / "in"),
                Mount(staging.outputs, _INSIDE / "out", writable=True),
                Mount(self._home / "tmp", _INSIDE / "tmp", writable=True),
                Mount(sockets, _INSIDE / "run", writable=True),
            )
            seen = [self._settings.sandbox.path_inside(mount) for mount in mounts]
            job = self._job(mounts, f"unix:{seen[3] / 's'}", seen[2])
            # gRPC takes a tenth of a second to import, so it is imported with the first engine, in a thread.
            client_of = await trio.to_thread.run_sync(importlib.import_module, "engines.client")
            process = start(self._settings.sandbox, job, self._settings.groups)
            self.pid = process.pid
            client: GrpcEngine = client_of.GrpcEngine(
                f"unix:{sockets / 's'}", staging, SandboxView(seen[0], seen[1]), self._settings.calls
            )
            try:
                with self._scope:
                    await self._attend(process, client)
            finally:
                client.close()
                self._code = await process.stop(self._settings.limits.grace)
                self._log("engine-exited", code=self._code, last_words=tuple(self._last_words))
        finally:
            self.gone.set()
            self.ready.set()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(_remove, self._home, sockets)

    def _job(self, mounts: tuple[Mount, ...], listen: str, scratch: PurePosixPath) -> Job:
        env = {"PATH": "/usr/bin:/bin", "HOME": str(scratch), "LANG": "C.UTF-8", "TZ": "UTC", **self._settings.env}
        return Job(
            argv=self._settings.program(listen, scratch),
            env=env,
            mounts=(*self._settings.mounts, *mounts),
            memory=self._settings.memory,
            total=self._settings.total,
            processes=self._settings.processes,
        )

    async def _attend(self, process: ConfinedProcess, client: GrpcEngine) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_lines, process.stdout, client)
            nursery.start_soon(self._read_lines, process.stderr, None)
            nursery.start_soon(self._leave_when_idle)
            nursery.start_soon(self._leave_when_stuck, client)
            self._code = await process.wait()
            nursery.cancel_scope.deadline = trio.current_time() + _PIPE_SECONDS

    async def _read_lines(self, stream: trio.lowlevel.FdStream, client: GrpcEngine | None) -> None:
        """Reads lines until the end. The first line on standard output that begins with READY makes
        ``client`` usable."""
        rest = b""
        while piece := await stream.receive_some(_MAX_LINE):
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > _MAX_LINE:
                lines, rest = [*lines, rest], b""
            for line in lines:
                text = line.decode(errors="replace").rstrip()
                if client is not None and text.startswith(SESSION):
                    self._note_session(text.removeprefix(SESSION))
                elif client is not None and self.client is None and text.startswith(READY):
                    self.client = client
                    self.last_used = trio.current_time()
                    self.ready.set()
                elif text:
                    self._last_words.append(text)
                    self._log("engine-said", line=text)

    def _note_session(self, state: str) -> None:
        if state in SESSION_STATES:
            self._starts_without = self._starts_without or state == "stopped"
            self.session, self.session_used = state, trio.current_time()
            self._log("engine-session", state=state)

    async def open_session(self, starting: Callable[[], None] = lambda: None) -> None:
        """Waits until requests that need a session find one. Raises EngineLost if it does not start, and what
        ``while_starting`` raises.

        One caller at a time asks, so that those who wait take no place from requests that need none.
        """
        self.session_used = trio.current_time()
        if self.session == READY_STATE:
            return
        starting()
        async with self._settings.while_starting(), self._opening:
            if self.session == READY_STATE or self.client is None:
                return
            with trio.move_on_after(self._settings.limits.start) as patience:
                answer = await self.client.session(starts=True)
        if patience.cancelled_caught:
            raise self._no_session("it took too long", "engine.start-seconds is how long a start may take")
        if answer.state == "failed":
            raise self._no_session(answer.message, "`odfctl doctor` tries each of its parts")
        self.session = answer.state

    def _no_session(self, why: str, hint: str) -> EngineLost:
        name = self._settings.name
        return EngineLost(
            f"the {name} engine could not start what this request needs: {why}", rule=NO_SESSION, hint=hint
        )

    @property
    def _has_more(self) -> bool:
        """Whether a process that replaces this one would have less."""
        return self._starts_without and self.session == READY_STATE

    async def _leave_when_idle(self) -> None:
        idle = self._settings.limits.idle
        while True:
            last = min(self.last_used, self.session_used) if self._has_more else self.last_used
            now = trio.current_time()
            await trio.sleep_until(now + idle if self.leases or last + idle <= now else last + idle)
            now = trio.current_time()
            if self.client is None or self.leases:
                continue
            if now >= self.last_used + idle:
                self.leave("idle")
            elif self._has_more and now >= self.session_used + idle:
                self.leave("what it started for a query is idle")  # the next ingest gets a process without

    async def _leave_when_stuck(self, client: GrpcEngine) -> None:
        """Ends the process if a request whose caller has gone works on, since no thread can be stopped from outside."""
        patience = self._settings.limits.cancelled
        while True:
            await self._was_cancelled.wait()
            self._was_cancelled = trio.Event()
            wait = patience
            while wait > 0:
                await trio.sleep(wait)
                lingering = await self._lingering(client)
                wait = patience - lingering if lingering else 0
                if lingering and wait <= 0:
                    self.leave("a cancelled request did not end")

    async def _lingering(self, client: GrpcEngine) -> float:
        """Returns the seconds for which a cancelled request has worked on; for ever, if the process does not answer."""
        with trio.move_on_after(self._settings.limits.pulse):
            try:
                return (await client.session(starts=False)).lingering / 1000
            except LimitExceeded:
                self._was_cancelled.set()  # as many calls as it takes are in flight: it is asked again
                return 0
            except Fault:
                return 0  # it ended
        return math.inf

    def note_failure(self, message: str, backtrace: str) -> None:
        """Logs a fault of the engine itself, whose backtrace is of no use to the caller."""
        self._log(ENGINE_FAILED, message=message, trace=tuple(backtrace[-MAX_BACKTRACE:].splitlines()))

    def _log(self, event: str, **facts: object) -> None:
        self._on_event(event, {"engine": self._settings.name, "pid": self.pid, **facts})


def _remove(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


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
