"""Small nodes as processes that are forked from one which has loaded everything: each starts in a tenth of the time.

They are processes like others, in sessions of their own, and die by the same signals. Only the imports are not done
again, so tests with many lives of a node use them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

TREE: Final = Path(__file__).parents[2]
_MOST: Final = 1 << 20
"""Bytes of a request, which has a whole environment."""


class Forked:
    """A process, with as much of ``subprocess.Popen`` as tests use."""

    def __init__(self, told: socket.socket) -> None:
        self._told = told
        self._lock = threading.Lock()
        self.pid = int(told.recv(99))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with suppress(TimeoutError, BlockingIOError):
            self._hear(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        try:
            return self._hear(timeout)
        except TimeoutError as error:
            raise subprocess.TimeoutExpired("a forked node", timeout or 0) from error

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def _hear(self, timeout: float | None) -> int:
        with self._lock:
            if self.returncode is None:
                self._told.settimeout(timeout)
                self.returncode = os.waitstatus_to_exitcode(int(self._told.recv(99)))
                self._told.close()
            return self.returncode


class Forking:
    """The process that others are forked from. It ends with this one, or when it is closed."""

    def __init__(self) -> None:
        self._asked, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asked.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST)
        command = [sys.executable, "-c", "from worlds.forked import serve; serve()"]
        around = {name: value for name, value in os.environ.items() if not name.startswith("ODFD_")}
        paths = {"PYTHONPATH": f"{TREE}:{TREE / 'tests'}", "PYTHONWARNINGS": "ignore"}
        with theirs:
            self._process = subprocess.Popen(command, stdin=theirs, env=around | paths)

    def start(self, words: Sequence[str], environ: dict[str, str], log: Path, program: str = "odfd") -> Forked:
        """``odfd``, or ``odfctl``, with these words, an environment, and a file to which it appends what it says."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            asked = json.dumps([program, [*words], environ, str(log)]).encode()
            socket.send_fds(self._asked, [asked], [theirs.fileno()])
        return Forked(ours)

    def close(self) -> None:
        self._asked.close()
        self._process.wait()


def serve() -> None:
    """Loads everything, then forks for each request that comes by the standard input, until that is closed."""
    import pyarrow.compute
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet

    from worlds import small_node

    del pyarrow
    asked = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody here waits for those that wait
    while True:
        sent, descriptors, _, _ = socket.recv_fds(asked, _MOST, 1)
        if not sent:
            return
        with socket.socket(fileno=descriptors[0]) as told:
            if os.fork() == 0:
                asked.close()
                _watch(told, json.loads(sent), {"odfd": small_node.odfd, "odfctl": small_node.odfctl})


def _watch(told: socket.socket, request: Any, programs: dict[str, Any]) -> None:
    """Forks once more, and tells of the child's end: whoever forks for all cannot wait for one."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        told.close()
        _become(request, programs)
    with suppress(BrokenPipeError):
        told.send(b"%d" % child)
        told.send(b"%d" % os.waitpid(child, 0)[1])
    os._exit(0)


def _become(request: Any, programs: dict[str, Any]) -> None:
    program, words, environ, log = request
    code: Any = 1
    try:
        os.setsid()
        with Path(log).open("ab") as file, Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.environ.clear()
        os.environ.update(environ)
        programs[program](words)
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))
