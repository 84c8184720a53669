"""Starts confined processes by forking a zygote, at level ``host``: the node's side (ADR 83).

A process that loads its modules anew needs ten times the CPU. Bubblewrap makes the sandbox as it does for any other
job, with a holder inside in place of the job; the zygote's child joins it. The holder ends with the child, and
bubblewrap with the holder; if bubblewrap is killed, the kernel ends all that is inside.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

import trio

from config.paths import code_environment
from engines.errors import EngineLost
from engines.sandbox.base import Job
from engines.sandbox.bubblewrap import Bubblewrap
from engines.sandbox.cgroups import Groups
from engines.sandbox.process import LAUNCH, ConfinedProcess, Pipes, make_group, open_files
from engines.sandbox.zygote import READY, SINGLE_THREADED

START_SECONDS: Final = 60.0
"""Seconds for the zygote to load its modules."""
_HOLDER: Final = ("/bin/sh", "-c", "echo; read held")
"""Says that the sandbox is complete, and ends with the last process that has the other end of its input."""
_PLACE: Final = "/tmp"  # noqa: S108  # inside, and nobody else's
_LAST_WORDS: Final = 2000


class Zygote:
    """A running zygote, of one sandbox. Make it in the thread of the event loop; call ``ready`` before ``start``."""

    def __init__(self, sandbox: Bubblewrap, groups: Groups | None, command: Sequence[str]) -> None:
        """``command``: runs ``zygote.serve`` on its standard input. Raises EngineLost."""
        self._sandbox, self._groups = sandbox, groups
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the zygote
        # Packets: an order comes whole, and its descriptors with it.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line = trio.socket.from_stdlib_socket(ours)
        environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "TZ": "UTC", **SINGLE_THREADED}
        try:
            self._popen = subprocess.Popen(
                (sys.executable, "-I", "-S", LAUNCH, str(os.getpid()), "-", "--", *command),
                env={**code_environment(), **environment}, cwd="/", stdin=theirs.fileno(), stdout=subprocess.DEVNULL,
                stderr=self._said, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._line.close()
            self._said.close()
            raise EngineLost(f"cannot start the zygote: {error.strerror}", rule="engine-start") from error
        finally:
            theirs.close()

    @property
    def is_alive(self) -> bool:
        return self._popen.poll() is None

    async def ready(self) -> None:
        """Waits until it has loaded its modules. Raises EngineLost."""
        with trio.move_on_after(START_SECONDS):
            if await self._line.recv(len(READY)) == READY:
                return
        self._said.seek(0)
        words = self._said.read(_LAST_WORDS).decode("utf-8", "replace").strip().splitlines()
        raise EngineLost(f"no zygote: {words[-1] if words else 'it said nothing'}", rule="engine-start")

    def start(self, job: Job, *, execute: bool = False) -> ConfinedProcess:
        """Starts a job in a sandbox of its own. ``execute``: executes the job's command in place of what the zygote
        is for, to try the sandbox. Raises EngineLost."""
        with ExitStack() as theirs, ExitStack() as ours:
            read_in, write_in = _pipe(theirs, ours)
            write_out, read_out = reversed(_pipe(ours, theirs))
            write_err, read_err = reversed(_pipe(ours, theirs))
            (held, hold), (numbers, number), (alive, live) = (_pipe(theirs, theirs) for _ in range(3))
            group = make_group(self._groups, job)
            popen = None
            try:
                popen = self._hold(job, (held, live, write_err, number))
                order = self._order(job, group.entrances if group else (), execute)
                self._send(order, (read_in, write_out, write_err, hold, numbers, alive))
            except OSError as error:
                if popen is not None:
                    popen.kill()
                    popen.wait()
                if group is not None:
                    group.remove()
                raise EngineLost(f"cannot fork a process: {error.strerror}", rule="engine-start") from error
            ours.pop_all()
        return ConfinedProcess(popen, group, Pipes(write_in, read_out, read_err))

    def _hold(self, job: Job, files: tuple[int, int, int, int]) -> subprocess.Popen[bytes]:
        """Starts the sandbox, with the holder inside. Raises OSError."""
        held, live, errors, number = files
        with open_files(self._sandbox.data()) as data:
            made = self._sandbox.command(replace(job, argv=_HOLDER, processes=None), data)
            return subprocess.Popen(
                (made.argv[0], "--info-fd", str(number), *made.argv[1:]), env=dict(made.env), cwd=made.place,
                stdin=held, stdout=live, stderr=errors, pass_fds=(*data, number), start_new_session=True,
            )  # fmt: skip

    def _order(self, job: Job, entrances: Sequence[str], execute: bool) -> bytes:
        order = {
            "argv": job.argv, "env": {**job.env, **self._sandbox.environment}, "memory": job.memory,
            "processes": job.processes if self._sandbox.counts_processes else None, "entrances": entrances,
            "filter": self._sandbox.call_filter.hex(), "place": _PLACE, "execute": execute,
        }  # fmt: skip
        return json.dumps(order).encode()

    def _send(self, order: bytes, files: Sequence[int]) -> None:
        """Tells the zygote, which is never waited for. Raises OSError."""
        with socket.socket(fileno=os.dup(self._line.fileno())) as line:
            line.setblocking(False)
            socket.send_fds(line, [order], files)

    def stop(self) -> None:
        """Ends the zygote; what it forked goes on. Idempotent."""
        self._line.close()
        if self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait()
        self._said.close()


def _pipe(reading: ExitStack, writing: ExitStack) -> tuple[int, int]:
    """Makes a pipe whose ends are closed with these."""
    read, write = os.pipe()
    reading.callback(os.close, read)
    writing.callback(os.close, write)
    return read, write
