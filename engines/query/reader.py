"""Runs queries for the node: a limited number of confined processes, one per query, and one more that is started
already.

A process sees its runtime, a folder with the slices of its query, and a folder for data that does not fit into memory;
no network. Its output is parsed under limits. It is ended with its query, however that ends, and with it all that it
held. Queries that wait for a turn are served in order.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec
import trio

from chain.errors import Environment, Fault
from engines.errors import EngineLost, LimitExceeded
from engines.query.frames import END, FAULT, HEAD, AnswerFrameReader, split_frame
from engines.query.installed import need_sql
from engines.query.requests import Execute, FaultReport, Prepare, SavedRows, TablesNamed
from engines.query.views import SliceView
from engines.sandbox.base import Job, Mount, SandboxLevel
from engines.sandbox.bubblewrap import Bubblewrap
from engines.sandbox.forking import Zygote
from engines.sandbox.probe import SandboxChoice, trial
from engines.sandbox.process import ConfinedProcess, start

BESIDE: Final = 1 << 30
"""Bytes of memory of a process beyond DuckDB's buffers: Python, Arrow, stacks, what DuckDB does not count."""
PROCESSES: Final = 512
"""Most processes of a query, threads included."""
IDLE_SECONDS: Final = 300.0
"""Seconds without a query after which the process that is kept ready is ended."""
START_SECONDS: Final = 60.0
"""Seconds for a process to judge a statement, its start included."""
_INSIDE: Final = PurePosixPath("/odf")
_PIECE: Final = 1 << 20
_LAST_WORDS: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLimits:
    """The limits of queries on one node."""

    most: int = 4
    """Most queries at once; more wait."""
    memory: int = 1 << 30
    temporary: int = 4 << 30
    """Most bytes of temporary files on disk."""
    seconds: float = 300.0
    """Most seconds from the statement to the last row."""
    threads: int = 2


class QueryProcess:
    """One process and its folders. Call ``prepare``, ``link``, then ``execute``, once each."""

    def __init__(self, choice: SandboxChoice, home: Path, limits: QueryLimits, zygote: Zygote | None = None) -> None:
        """``zygote``: forks the process, which is then ready sooner. Raises EngineLost."""
        self._home = home
        self._inputs, self._temporary = home / "in", home / "tmp"
        for folder in (self._inputs, self._temporary):
            folder.mkdir(mode=0o700, parents=True)
        mounts = (Mount(self._inputs, _INSIDE / "in"), Mount(self._temporary, _INSIDE / "tmp", writable=True))
        self._seen, temporary = (choice.sandbox.path_inside(mount) for mount in mounts)
        self._seen_temporary = temporary
        argv = _argv(self._seen, temporary, limits)
        job = Job(
            argv=argv if zygote else (*_command(choice.sandbox.python), *argv),
            env={"PATH": "/usr/bin:/bin", "HOME": str(temporary), "LANG": "C.UTF-8", "TZ": "UTC"},
            mounts=mounts,
            memory=limits.memory + BESIDE,
            total=limits.memory + BESIDE,
            processes=PROCESSES,
        )
        self._process: ConfinedProcess = zygote.start(job) if zygote else start(choice.sandbox, job, choice.groups)
        with suppress(OSError):  # a larger pipe saves switches, and is not needed
            fcntl.fcntl(self._process.stdout.fileno(), fcntl.F_SETPIPE_SZ, _PIECE)
        self._frames = AnswerFrameReader()
        self._said = b""

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def listen(self) -> None:
        """Collects the last output on its standard error, until it ends."""
        with suppress(trio.ClosedResourceError):
            while piece := await self._process.stderr.receive_some(_PIECE):
                self._said = (self._said + piece)[-_LAST_WORDS:]

    async def prepare(self, sql: str) -> TablesNamed:
        """Sends a statement and returns the tables that it names. Raises the fault that the process reports,
        LimitExceeded, EngineLost."""
        with trio.move_on_after(START_SECONDS):
            await self._send(Prepare(sql=sql))
            async with aclosing(self._read_frames()) as frames:
                async for kind, whole in frames:
                    if kind == HEAD:
                        named: TablesNamed = _decode(whole, TablesNamed)
                        return named
        raise LimitExceeded("the query was not understood in time", rule="query-deadline", hint="ask something shorter")

    def link(self, files: Mapping[str, Path]) -> None:
        """Makes files visible to the process under names. Raises Environment."""
        for name, path in files.items():
            try:
                _link(path, self._inputs / name)
            except OSError as error:
                raise Environment(f"cannot give {path} to a query: {error.strerror}", rule="query-input") from error

    def path_inside(self, name: str) -> str:
        return str(self._seen / name)

    def reserve(self, name: str) -> tuple[Path, str]:
        """Reserves a file for the process to write. Returns the path here, and inside the sandbox."""
        return self._temporary / name, str(self._seen_temporary / name)

    def pipe(self) -> tuple[int, str]:
        """Makes a pipe for rows. Returns the end to read, which the caller closes, and its path inside the sandbox.

        Raises as ``row_pipe`` does.
        """
        path, seen = self.reserve("rows")
        return row_pipe(path), seen

    async def execute(self, request: Execute) -> AsyncGenerator[tuple[bytes, memoryview], None]:
        """Runs the query and yields (kind, whole frame) of rows and the end. Raises the fault that the
        process reports, EngineLost."""
        await self._send(request)
        async with aclosing(self._read_frames()) as frames:
            async for found in frames:
                yield found

    async def save(
        self, views: Sequence[SliceView], places: Sequence[int], files: Sequence[str], most: int
    ) -> SavedRows:
        """Has the process write views to Parquet files, except those without a file name. Raises as
        ``execute`` does."""
        return await self._save(Execute(views=tuple(views), places=tuple(places), saves=tuple(files), save_bytes=most))

    async def save_fold(self, view: SliceView, file: str, most: int) -> SavedRows:
        """Has the process write a view to a file that a later view may have as ``earlier``. Raises as
        ``execute`` does."""
        return await self._save(Execute(views=(view,), places=(), folds=(file,), save_bytes=most))

    async def save_answer(self, views: Sequence[SliceView], places: Sequence[int], file: str, most: int) -> SavedRows:
        """Has the process write the answer of the statement to a Parquet file. Raises as ``execute`` does."""
        return await self._save(Execute(views=tuple(views), places=tuple(places), answer=file, save_bytes=most))

    async def _save(self, wanted: Execute) -> SavedRows:
        async with aclosing(self.execute(wanted)) as frames:
            async for kind, whole in frames:
                if kind == END:
                    saved: SavedRows = _decode(whole, SavedRows)
                    return saved
        raise self._engine_lost()

    def kill(self) -> None:
        """Ends the process; ``stop`` still has to be called."""
        self._process.kill()

    async def stop(self) -> None:
        """Stops the process and removes its folders. Cannot be cancelled."""
        with trio.CancelScope(shield=True):
            await self._process.stop(0.0)
            await trio.to_thread.run_sync(lambda: shutil.rmtree(self._home, ignore_errors=True))

    async def _send(self, request: Prepare | Execute) -> None:
        data = msgspec.json.encode(request)
        try:
            await self._process.stdin.send_all(len(data).to_bytes(4, "big") + data)
        except trio.BrokenResourceError as error:
            raise self._engine_lost() from error

    async def _read_frames(self) -> AsyncGenerator[tuple[bytes, memoryview], None]:
        while data := await self._process.stdout.receive_some(_PIECE):
            for kind, whole in self._frames.wholes(data):
                if kind == FAULT:
                    raise _decode(whole, FaultReport).fault()
                yield kind, whole
        raise self._engine_lost()

    def _engine_lost(self) -> Fault:
        words = self._said.decode("utf-8", "replace").strip().splitlines()[-1:]
        return EngineLost(
            f"the process of the query ended: {words[0][:300] if words else 'it said nothing'}",
            rule="query-process",
            hint="if it needed much memory: query.memory-mib; the same may work again",
        )


class QueryProcesses:
    """Lends each query a process. Usable while ``run`` runs."""

    def __init__(
        self,
        scratch: Path,
        choose: Callable[[], Awaitable[SandboxChoice]],
        limits: QueryLimits,
        log: Callable[[str], object] = lambda _: None,
    ) -> None:
        """``choose``: chooses the sandbox, when the first query comes. ``log``: logs why processes are not forked."""
        self.limits = limits
        self._scratch, self._choose = scratch, choose
        self._choice: SandboxChoice | None = None
        self._choosing = trio.Lock()
        self._turns = trio.CapacityLimiter(limits.most)
        self._spare: QueryProcess | None = None
        self._zygote: Zygote | None = None
        self._forking = True
        self._used = trio.Event()
        self._number = 0
        self._nursery: trio.Nursery | None = None
        self.unforked: str | None = None
        """Why processes are not forked from a zygote; empty where they are, ``None`` before it was tried."""
        self._log = log
        self.serving = trio.Event()
        """Set while ``run`` runs."""

    @property
    def counts(self) -> tuple[int, int]:
        """Number of queries that wait for their turn, and of those in work."""
        told = self._turns.statistics()
        return told.tasks_waiting, told.borrowed_tokens

    @property
    def sandbox(self) -> str | None:
        """The level of isolation in use; ``None`` before the first query."""
        return None if self._choice is None else self._choice.level.value

    async def run(self) -> None:
        """Runs until cancelled."""
        await trio.to_thread.run_sync(lambda: shutil.rmtree(self._scratch, ignore_errors=True))
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self.serving.set()
                try:
                    while True:
                        self._used = trio.Event()
                        with trio.move_on_after(IDLE_SECONDS if self._spare else float("inf")) as waiting:
                            await self._used.wait()
                        if waiting.cancelled_caught:
                            await self._drop()
                finally:  # while it still takes tasks: who gives a process back later stops it in its own
                    self._nursery = None
        finally:
            await self._drop()

    def later(self, work: Callable[[], Awaitable[None]]) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(work)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[QueryProcess]:
        """Lends a process for one query, in turn.

        Raises Refused if no sandbox is strong enough, EngineLost, Environment without SQL.
        """
        need_sql()
        async with self._turns:
            choice = await self._isolation()
            process, self._spare = self._spare, None
            if process is not None and not process.is_alive:
                await process.stop()
                process = None
            process = process or self._begin(choice)
            try:
                yield process
            finally:
                process.kill()
                if self._nursery is None:
                    await process.stop()
                else:  # what is left of it does not keep its client waiting
                    self._nursery.start_soon(process.stop)
                    self._nursery.start_soon(self._renew, choice)
                self._used.set()

    def _require_nursery(self) -> trio.Nursery:
        """Returns the nursery of ``run``. Raises EngineLost while that does not run."""
        if self._nursery is None:
            raise EngineLost("queries are not being served", rule="query-process", hint="is the node stopping?")
        return self._nursery

    async def _isolation(self) -> SandboxChoice:
        self._require_nursery()
        async with self._choosing:
            if self._choice is None:
                self._choice = await self._choose()
            return self._choice

    async def _renew(self, choice: SandboxChoice) -> None:
        """Makes a process ready for the next query, and after the first one the zygote that later ones are forked
        from."""
        if self._nursery is None:
            return  # the node stops
        if self._spare is None:
            self._spare = self._begin(choice)
        if self._zygote is None and self._forking:
            self._forking = False  # by one at a time, and not again where it does not hold
            await self._hatch(choice)

    async def _hatch(self, choice: SandboxChoice) -> None:
        """Starts a zygote and tries its sandbox. Where that does not hold, processes start without one, and
        ``unforked`` says why."""
        if not isinstance(choice.sandbox, Bubblewrap) or choice.level is not SandboxLevel.HOST:
            self.unforked = f"level {choice.level.value} has no zygote"
            return  # as the level is told already
        try:
            zygote = Zygote(choice.sandbox, choice.groups, (*_command(sys.executable), "zygote"))
            try:
                await zygote.ready()
                tried = await trial(choice.sandbox, choice.groups, partial(zygote.start, execute=True))
                self.unforked = "; ".join(tried.problems)
                if not self.unforked:
                    self._zygote, self._forking = zygote, True
            finally:
                if self._zygote is not zygote:
                    zygote.stop()
        except EngineLost as error:
            self.unforked = str(error)
        if self.unforked:
            self._log(self.unforked)

    def _begin(self, choice: SandboxChoice) -> QueryProcess:
        nursery = self._require_nursery()  # the node may have stopped while the sandbox was chosen
        self._number += 1
        home = self._scratch / str(self._number)
        try:
            process = QueryProcess(choice, home, self.limits, self._zygote)
        except EngineLost:
            if self._zygote is None:
                raise
            self._zygote.stop()  # it died, and the next query has another
            self._zygote = None
            shutil.rmtree(home, ignore_errors=True)
            process = QueryProcess(choice, home, self.limits)
        nursery.start_soon(process.listen)
        return process

    async def _drop(self) -> None:
        spare, self._spare = self._spare, None
        zygote, self._zygote = self._zygote, None
        if zygote is not None:
            zygote.stop()
        if spare is not None:
            await spare.stop()


def _command(python: str) -> tuple[str, ...]:
    return (python, "-P", "-m", "engines.query")


def _argv(inputs: PurePosixPath, temporary: PurePosixPath, limits: QueryLimits) -> tuple[str, ...]:
    return (
        *("--inputs", str(inputs), "--temporary", str(temporary)),
        *("--memory", str(limits.memory), "--temporary-bytes", str(limits.temporary)),
        *("--threads", str(limits.threads)),
    )


def _link(path: Path, target: Path) -> None:
    if not target.exists():
        try:
            os.link(path, target)
        except OSError:
            shutil.copyfile(path, target)


def _decode(whole: memoryview, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(split_frame(whole)[1], type=kind)
    except msgspec.DecodeError as error:
        raise EngineLost(f"the process of the query said what is no answer: {error}", rule="query-process") from error


def row_pipe(path: Path) -> int:
    """Makes a pipe. Returns the end to read, which the caller closes. Raises Environment, and
    EngineLost if it was replaced."""
    try:
        os.mkfifo(path, mode=0o600)
    except FileExistsError as error:
        raise _replacement_fault() from error
    except OSError as error:
        raise Environment(f"no pipe for the rows of a query: {error.strerror}", rule="query-pipe") from error
    return reading_end(path)


def reading_end(path: Path) -> int:
    """Opens a pipe without waiting for a writer. Raises EngineLost if it is anything else."""
    try:
        end = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _replacement_fault() from error
    if not stat.S_ISFIFO(os.fstat(end).st_mode):
        os.close(end)
        raise _replacement_fault()
    os.set_blocking(end, True)
    with suppress(OSError):  # a larger pipe saves switches, and is not needed
        fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, _PIECE)
    return end


def _replacement_fault() -> EngineLost:
    return EngineLost("the process of the query has its pipe replaced", rule="query-process", hint="ask again")
