"""Runs a confined process under trio: starts it with its limits, watches it, and ends it with all its children.

The fork happens in the thread of the event loop, never in a worker thread: the mechanism that ties the child's life to
ours (PR_SET_PDEATHSIG, also inside bubblewrap) follows the forking thread, and worker threads end when idle. The
child's standard input is a pipe that we hold: its end of file means that we are gone, a second way to notice.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import trio

from engines.errors import EngineLost
from engines.sandbox.base import Job, Sandbox
from engines.sandbox.cgroups import ControlGroup, Groups
from engines.sandbox.container import remove_named

DYING_SECONDS: Final = 1.5
"""Seconds for killed processes to give back their memory."""
LAUNCH: Final = str(Path(__file__).with_name("launch.py"))


class Pipes(NamedTuple):
    """The caller's ends of the pipes of a job: open files."""

    stdin: int
    stdout: int
    stderr: int


class ConfinedProcess:
    """A running job. The caller has to read ``stdout`` and ``stderr``, as the job blocks when a pipe is full."""

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        group: ControlGroup | None = None,
        pipes: Pipes | None = None,
        container: tuple[str, str] | None = None,
    ) -> None:
        """``popen``: the process that the others end with. ``pipes``: those of the job, if they are not its own.
        ``container``: a tool and the name of its container, which stays if the tool is killed before it starts it."""
        self._popen = popen
        self._container = container
        self._group = group
        self._pidfd = os.pidfd_open(popen.pid)
        self.stdin, self.stdout, self.stderr = map(trio.lowlevel.FdStream, pipes or _take_pipes(popen))

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        if self._popen.returncode is None and self._has_ended():
            self._kill_group()
            self._popen.poll()
        return self._popen.returncode

    async def wait(self) -> int:
        """Waits for the end of the process and its children. Returns the exit code, negative for a signal."""
        while (code := self.returncode) is None:
            await trio.lowlevel.wait_readable(self._pidfd)
        return code

    def kill(self) -> None:
        """Kills the process and its children. Idempotent; ``wait`` still has to reap it."""
        if self.returncode is None:
            self._kill_group()
        if self._group is not None:
            self._group.end()

    def _has_ended(self) -> bool:
        """Whether the process has ended. It is not reaped yet, so that its number still stands for its
        group and no other."""
        return os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)

    async def stop(self, grace: float) -> int:
        """Asks the process to exit; after ``grace`` seconds kills it and its group. Cannot be cancelled."""
        with trio.CancelScope(shield=True):
            await self.stdin.aclose()
            if self.returncode is None:
                # To the leader alone, which may have to end a JVM in order. Bubblewrap just ends, with all inside.
                os.kill(self._popen.pid, signal.SIGTERM)
            with trio.move_on_after(grace):
                await self.wait()
            self.kill()
            code = await self.wait()
            await self.stdout.aclose()
            await self.stderr.aclose()
            if self._group is not None:
                await _wait_until_empty(self._group)
            if self._container is not None and code:
                await remove_named(*self._container)
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        return code


def _take_pipes(popen: subprocess.Popen[bytes]) -> Pipes:
    ends = []
    for pipe in (popen.stdin, popen.stdout, popen.stderr):
        assert pipe is not None
        ends.append(os.dup(pipe.fileno()))
        pipe.close()
    return Pipes(*ends)


async def _wait_until_empty(group: ControlGroup) -> None:
    """Waits until all killed processes are gone, which the kernel does in its own time; the next start
    sweeps the rest."""
    with trio.move_on_after(DYING_SECONDS):
        while not group.remove():  # noqa: ASYNC110  # the kernel tells nobody
            await trio.sleep(0.01)


def start(sandbox: Sandbox, job: Job, groups: Groups | None = None) -> ConfinedProcess:
    """Starts a job, in a control group of its own if ``groups`` are given.

    Must be called in the thread of the event loop. Raises EngineLost when there is nothing to run.
    """
    with open_files(sandbox.data()) as files:
        command = sandbox.command(job, files)
        memory = str(job.memory) if job.memory and not command.limited else "-"
        group = make_group(groups, job) if not command.limited else None
        entrances = group.entrances if group is not None else ()
        argv = (sys.executable, "-I", "-S", LAUNCH, str(os.getpid()), memory, *entrances, "--", *command.argv)
        try:
            popen = subprocess.Popen(
                argv,
                env=dict(command.env),
                cwd=command.place,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=files,
                start_new_session=True,
            )
        except OSError as error:
            if group is not None:
                group.remove()
            raise EngineLost(
                f"cannot start {command.argv[0]}: {error.strerror}", rule="engine-start", hint="is memory short?"
            ) from error
    made = (command.argv[0], command.container) if command.container is not None else None
    return ConfinedProcess(popen, group, container=made)


def make_group(groups: Groups | None, job: Job) -> ControlGroup | None:
    """Makes the control group of a job, if ``groups`` are given. Raises EngineLost."""
    if groups is None:
        return None
    try:
        return groups.make(job.total, job.processes)
    except OSError as error:
        raise EngineLost(
            f"no control group can be made: {error.strerror}", rule="sandbox-limits", hint="restart the node"
        ) from error


@contextmanager
def open_files(contents: Iterable[bytes]) -> Iterator[tuple[int, ...]]:
    """Yields descriptors of open files in memory with the contents, to be inherited by the child."""
    files: list[int] = []
    try:
        for content in contents:
            file = os.memfd_create("sandbox")
            files.append(file)
            os.write(file, content)
            # The child inherits the place in the file too.
            os.lseek(file, 0, os.SEEK_SET)
        yield tuple(files)
    finally:
        for file in files:
            os.close(file)
