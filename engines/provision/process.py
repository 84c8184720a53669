"""Runs one engine process, from its fork to the removal of its last file.

``run`` owns it: whatever ends ``run`` (exit, ``leave``, cancellation) also ends the process, closes the channel and
removes the folders. Does not decide whether there should be another one.
"""

from __future__ import annotations

import importlib
import math
import re
import shutil
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

import trio

from chain.errors import Fault
from engines.errors import MAX_BACKTRACE, EngineLost, LimitExceeded
from engines.errors import SESSION as NO_SESSION
from engines.io_plan import SandboxView
from engines.listen_address import READY, SESSION
from engines.provision.settings import ENGINE_FAILED, OnEvent, WarmSettings
from engines.sandbox.base import Job, Mount
from engines.sandbox.process import ConfinedProcess, start
from engines.session import SESSION_STATES
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
