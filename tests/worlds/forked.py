"""``odfd`` and ``odfctl`` as processes that are forked from one which has loaded everything.

They are processes like others: in sessions of their own, with their own arguments, environment, folder, signals and
descriptors, and they die by the same signals. Only the imports are not done again, which take nine tenths of the CPU of
a start. A process of pytest has one such server, from the first time that a test asks for it to its end.

``write_shims`` makes programs of those names, which have the server run them in their place.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, NoReturn

from worlds.eventually import PATIENCE

TREE: Final = Path(__file__).parents[2]
_MOST: Final = 1 << 20
"""Bytes of a request, which has a whole environment."""
_FORWARDED: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that a shim passes on."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)

_PROGRAMS: Final = {
    "odfd": "odfd.daemon.main:main",
    "odfctl": "worlds.small_node:odfctl",
    "small": "worlds.small_node:odfd",
    "shared": "worlds.shared_spark:odfd",
}
"""Programs by name, each a module and a function of it; ``small`` is ``odfd`` with the small engine. Whoever asks can
also name such a pair."""
Descriptor = int | IO[bytes] | IO[str]

SHIM: Final = """#!{python} -IS
import _signal, _socket, posix, sys
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
server.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, {most})
server.connect({address!r})
ignored = []
for number in {forwarded!r}:
    if _signal.getsignal(number) is _signal.SIG_IGN:
        ignored.append(b"%d" % number)
    else:
        _signal.signal(number, lambda number, _: server.send(b"%d" % number))
mask = posix.umask(0)
posix.umask(mask)
words = [word.encode("utf-8", "surrogateescape") for word in sys.argv[1:]]
environ = [name + b"=" + value for name, value in posix.environ.items()]
asked = [{program!r}, posix.getcwdb(), b"%d" % mask, b",".join(ignored), b"", b"%d" % len(words), *words, *environ]
descriptors = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
server.sendmsg([b"\\0".join(asked)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)])
server.recv(99)
told = server.recv(99)
code = int(told or 70)
if code < 0:
    if -code != 9:  # nothing can handle that one
        _signal.signal(-code, _signal.SIG_DFL)
    posix.kill(posix.getpid(), -code)
posix._exit(code)
"""
"""Imports nothing that is not built in: it starts in a tenth of the time of ``odfctl``."""


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
            raise subprocess.TimeoutExpired("a forked process", timeout or 0) from error

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _hear(self, timeout: float | None) -> int:
        with self._lock:
            if self.returncode is None:
                self._told.settimeout(timeout)
                told = self._told.recv(99)
                assert told, "the server of forks has ended"
                self.returncode = int(told)
                self._told.close()
            return self.returncode


class Forking:
    """The process that others are forked from. It and they end with this one, or when it is closed."""

    def __init__(self) -> None:
        # The address of a socket has room for 107 bytes; folders of tests have long names.
        self._folder = tempfile.TemporaryDirectory(prefix="odfd-forks-")
        self.address = f"{self._folder.name}/s"
        around = {name: value for name, value in os.environ.items() if not name.startswith(("ODFD_", "LC_"))}
        paths = {
            "PYTHONPATH": f"{TREE}:{TREE / 'tests'}",
            "PYTHONWARNINGS": "ignore",
            "LANG": "C.UTF-8",
            "OPENBLAS_NUM_THREADS": "1",
        }
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self.address)
            listener.listen(64)
            command = [sys.executable, "-P", "-c", f"from worlds.forked import serve; serve({listener.fileno()})"]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, env=around | paths, pass_fds=[listener.fileno()], cwd="/"
            )

    def start(
        self,
        program: str,
        words: Sequence[str],
        environ: Mapping[str, str],
        *,
        stdin: Descriptor | None = None,
        out: Descriptor,
        err: Descriptor | None = None,
        folder: Path | None = None,
        umask: int | None = None,
        inside: Iterable[str] = (),
    ) -> Forked:
        """Starts a program; ``inside`` are files of namespaces that it enters. What it says is appended to ``out``, and
        its errors too if ``err`` is not given."""
        if umask is None:
            umask = os.umask(0)
            os.umask(umask)
        asked = [
            program,
            str(folder or Path.cwd()),
            str(umask),
            "",
            ",".join(inside),
            str(len(words)),
            *words,
            *(f"{name}={value}" for name, value in environ.items()),
        ]
        told = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        told.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST)
        told.connect(self.address)
        with Path(os.devnull).open("r+b", 0) as nothing:
            given = (nothing if each in (None, subprocess.DEVNULL) else each for each in (stdin, out, err or out))
            numbers = [each if isinstance(each, int) else each.fileno() for each in given]
            socket.send_fds(told, ["\0".join(asked).encode("utf-8", "surrogateescape")], numbers)
            return Forked(told)

    def run(
        self, program: str, words: Sequence[str], environ: Mapping[str, str], stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """Runs it to its end."""
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(stdin)
            given.seek(0)
            process = self.start(program, words, environ, stdin=given, out=out, err=err)
            try:
                code = process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess([program, *words], code, out.read(), err.read())

    def write_shims(self, folder: Path, **programs: str) -> None:
        """Makes programs of these names, which have the server run what is named here."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, program in programs.items():
            text = SHIM.format(
                python=sys.executable,
                address=self.address,
                most=_MOST,
                program=program.encode(),
                forwarded=tuple(map(int, _FORWARDED)),
            )
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def close(self) -> None:
        with self._process:  # closes its standard input, and waits
            pass
        self._folder.cleanup()


def serve(listener: int) -> None:
    """Loads everything, then forks for each request, until the standard input is closed."""
    _load()
    threads = [(each / "comm").read_text().strip() for each in Path("/proc/self/task").iterdir()]
    # That of Arrow's jemalloc is made again in a fork, by jemalloc.
    assert [each for each in threads if each != "jemalloc_bg_thd"] == threads[:1], "others would be missing in forks"
    with socket.socket(fileno=listener) as listening:
        _Server(listening).run()


def _load() -> None:
    from chain.struct_types import learn_struct_types
    from odfd.cli import registry
    from odfd.daemon.unused_modules import lean_imports

    with lean_imports():
        for module in (
            "odfd.daemon.wiring",
            "odfd.node.settings_check",
            "odfd.node.assembly",
            "odfd.obs.log",
            "odfd.runtime.filesystem",
            "odfd.daemon.init",
            "pyarrow.compute",
            "pyarrow.csv",
            "pyarrow.json",
            "pyarrow.parquet",
            *(entry.module for entry in registry.entries().values()),
            *(program.partition(":")[0] for program in _PROGRAMS.values()),
        ):
            importlib.import_module(module)
    # Half of what a daemon computes until it is ready.
    learn_struct_types()
    gc.collect()
    gc.freeze()  # no collection of a fork touches, and so copies, what is loaded here


@dataclass
class _Server:
    listener: socket.socket
    callers: dict[int, socket.socket] = field(default_factory=dict)
    """By descriptor, those who have asked, or are about to."""
    children: dict[int, int] = field(default_factory=dict)
    """By descriptor of its caller, each process that lives."""

    def run(self) -> None:
        woken, waking = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(waking, False)
        signal.set_wakeup_fd(waking)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; whoever began this ends it
        looking = select.poll()
        for number in (0, woken, self.listener.fileno()):
            looking.register(number, select.POLLIN)
        while True:
            for number, _ in looking.poll():
                if number == 0:
                    self._end()
                elif number == woken:
                    with suppress(BlockingIOError):
                        os.read(woken, 4096)
                    self._reap(looking)
                elif number == self.listener.fileno():
                    caller, _ = self.listener.accept()
                    self.callers[caller.fileno()] = caller
                    looking.register(caller, select.POLLIN)
                elif number in self.callers:
                    self._hear(number, looking)

    def _hear(self, number: int, looking: select.poll) -> None:
        """A request; a signal for its process; or the end of who asked, which is that of its process."""
        caller = self.callers[number]
        if child := self.children.get(number):
            try:
                asked = caller.recv(99)
            except ConnectionResetError:  # it was killed before it read what it was told
                asked = b""
            os.kill(child, int(asked) if asked else signal.SIGKILL)
            if not asked:
                looking.unregister(caller)
            return
        try:
            request, descriptors, _, _ = socket.recv_fds(caller, _MOST, 3)
        except ConnectionResetError:
            request, descriptors = b"", []
        if not request:
            self._forget(number, looking)
            return
        child = os.fork()
        if not child:
            self._become(request, descriptors)
        for each in descriptors:
            os.close(each)
        self.children[number] = child
        with suppress(BrokenPipeError):
            caller.send(b"%d" % child)

    def _reap(self, looking: select.poll) -> None:
        while self.children:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                return
            (number,) = [each for each, known in self.children.items() if known == child]
            with suppress(BrokenPipeError):
                self.callers[number].send(b"%d" % os.waitstatus_to_exitcode(status))
            del self.children[number]
            self._forget(number, looking)

    def _forget(self, number: int, looking: select.poll) -> None:
        with suppress(KeyError):
            looking.unregister(number)
        self.callers.pop(number).close()

    def _end(self) -> NoReturn:
        for child in self.children.values():
            os.kill(child, signal.SIGKILL)
        for number, child in self.children.items():
            status = os.waitpid(child, 0)[1]
            with suppress(BrokenPipeError):
                self.callers[number].send(b"%d" % os.waitstatus_to_exitcode(status))
        os._exit(0)

    def _become(self, request: bytes, descriptors: Sequence[int]) -> NoReturn:
        code: object = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number in (signal.SIGHUP, signal.SIGQUIT):  # a shell that began the tests may have ignored them
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.setsid()
            for place, each in enumerate(descriptors):
                os.dup2(each, place)
            os.closerange(3, 1 << 20)
            program, folder, umask, ignored, inside, count, *rest = os.fsdecode(request).split("\0")
            for file in filter(None, inside.split(",")):
                _enter(file)
            os.chdir(folder)
            os.umask(int(umask))
            for ignored_one in filter(None, ignored.split(",")):
                signal.signal(int(ignored_one), signal.SIG_IGN)
            words = rest[: int(count)]
            os.environ.clear()
            os.environ.update(dict(each.split("=", 1) for each in rest[int(count) :]))
            time.tzset()
            paths = os.environ.get("PYTHONPATH", "").split(":")
            sys.path[:0] = [path for path in paths if path and path not in sys.path]
            sys.argv = [program, *words]
            _open_streams()
            module, _, function = _PROGRAMS.get(program, program).partition(":")
            code = getattr(importlib.import_module(module), function)(words)
        except SystemExit as end:
            code = end.code
        except BaseException:  # noqa: BLE001  as an interpreter would say it
            traceback.print_exc()
        finally:
            with suppress(BaseException):
                atexit._run_exitfuncs()
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code if isinstance(code, int) else int(code is not None))


def _enter(file: str) -> None:
    """Enters a namespace; ``os.setns`` came with Python 3.12."""
    with Path(file).open("rb") as namespace:
        if _LIBC.setns(namespace.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"setns {file}")


def _open_streams() -> None:
    """As an interpreter opens them: what is a terminal is only known now."""
    lines = 1 if os.isatty(1) else -1
    sys.stdin = os.fdopen(0, "r", -1, "utf-8", "surrogateescape", closefd=False)
    sys.stdout = os.fdopen(1, "w", lines, "utf-8", "surrogateescape", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, "utf-8", "backslashreplace", closefd=False)
