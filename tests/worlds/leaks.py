"""Who leaves a process, a thread or an open end behind fails by name, and not the test that runs when it is found.

What is there at the end of a test is left: nothing is waited for. What a fixture of a module or of the session makes
while it is set up is its own until it is torn down, also connections that its servers take later; what else lasts
longer than a test says so by ``keep`` or ``own``.
"""

from __future__ import annotations

import fcntl
import gc
import io
import os
import signal
import socket
import stat
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Container, Generator, Hashable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

LASTING: Final = ("pytest_timeout ", "hand to the disk")
"""What threads of nobody are called: the suite's own time-out ends after a test's teardown, and the sinks of mirrors
share a pool for as long as the process lives."""
CLOSING: Final = "(cancel_all_calls_after_grace)"
"""The end of the name of gRPC's thread that closes a server: it ends a few instructions after who waits for it."""
POLLS: Final = ("anon_inode:[eventpoll]", "anon_inode:[eventfd]")
"""What gRPC and Arrow make when they are first used, and keep."""
LISTENS: Final = {"tcp": "0A", "tcp6": "0A", "unix": "00010000"}
"""The tables of sockets in /proc/net, and what each writes about one that listens."""

Left = tuple[str, Hashable, str]
"""A kind, what tells one from another, and how a person recognizes it."""
Key = tuple[str, Hashable]


def _children() -> Iterator[Left]:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return  # most tests have none, and this asks for them all at once
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has ended
            for pid in (task / "children").read_text().split():
                with suppress(OSError):
                    said = Path("/proc", pid, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    yield "process", int(pid), said[:200] or "a dead one that nobody waited for"


def _threads() -> Iterator[Left]:
    for thread in threading.enumerate():
        is_over = isinstance(thread, threading.Timer) and thread.finished.is_set()
        is_closing = thread.name.startswith(LASTING) or thread.name.endswith(CLOSING)
        is_of_nobody = thread.daemon or is_closing or thread is threading.main_thread()
        if not is_over and not is_of_nobody:
            yield "thread", thread, thread.name


def _open_ends() -> Iterator[Left]:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - after each test: paths take four times as long
        with suppress(OSError):  # the one that listed them
            link = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
            if link not in POLLS and not (link.startswith("/") and _is_read(int(name))):
                yield "open", f"{name} -> {link}", f"{name} -> {link}"


def _is_read(descriptor: int) -> bool:
    """Whether it is a file that is only read: threads of Arrow's close one a few instructions after its reader is done.
    Of one that Python opened, a warning tells."""
    return stat.S_ISREG(os.fstat(descriptor).st_mode) and not fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE


def _link(key: Hashable) -> str:
    return str(key).partition(" -> ")[2]


def _taken_by(listening: Container[str]) -> set[str]:
    """Returns links to connections that these listening sockets took: their threads close them when the others do."""
    ports, taken = set(), {}
    for table, listens in LISTENS.items():
        for line in Path("/proc/self/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if table == "unix":
                link, place, state = f"socket:[{words[6]}]", "".join(words[7:]), words[3]
            else:
                link, place, state = f"socket:[{words[9]}]", words[1].rpartition(":")[2], words[3]
            if state != listens:
                taken[link] = place
            elif link in listening:
                ports.add(place)
    return {link for link, place in taken.items() if place in ports}


def _sockets_of_python() -> set[str]:
    """Returns the sockets that Python has: threads of other languages' libraries close their own in their own time."""
    found = set()
    for each in gc.get_objects():
        if issubclass(type(each), socket.socket) and (name := each.fileno()) >= 0:
            with suppress(OSError):  # a thread closed it
                found.add(f"{name} -> {os.readlink(f'/proc/self/fd/{name}')}")  # noqa: PTH115
    return found


def found() -> set[Left]:
    """Returns what this process has now."""
    return {*_children(), *_threads(), *_open_ends()}


def _keys(those: set[Left]) -> set[Key]:
    return {(kind, key) for kind, key, _ in those}


class Owners:
    """A plugin: what is nobody's at the end of a test fails that test by name."""

    def __init__(self) -> None:
        self._known: set[Key] = set()
        self._owned: dict[object, set[Key]] = {}
        self._failed = ""
        self._has_read_csv = False

    @contextmanager
    def keep(self, owner: object) -> Iterator[None]:
        """What is made inside of it is of this owner."""
        before = _keys(found())
        try:
            yield
        finally:
            self._owned.setdefault(owner, set()).update(_keys(found()) - before)

    def own(self, owner: object, end: socket.socket) -> None:
        """It is of this owner, from whatever thread, until ``release``."""
        link = os.readlink(f"/proc/self/fd/{end.fileno()}")  # noqa: PTH115
        self._owned.setdefault(owner, set()).add(("open", f"{end.fileno()} -> {link}"))

    def release(self, owner: object) -> None:
        self._owned.pop(owner, None)

    def of_nobody(self) -> set[Left]:
        now = found()
        mine = self._known.union(*self._owned.values())
        return {each for each in now if each[:2] not in mine}

    def _make_pipe_of_arrow(self) -> None:
        """Reads CSV, for which Arrow makes a pipe to itself once in a process: no test is the first to.

        But for one that loads Arrow itself, and may have read CSV: a pipe whose two ends are here is Arrow's then.
        """
        if not self._has_read_csv and "pyarrow" in sys.modules:
            from pyarrow import csv

            self._has_read_csv = True
            links = Counter(_link(key) for _, key, _ in self.of_nobody())
            self._known.update(
                each[:2]
                for each in self.of_nobody()
                if (link := _link(each[1])).startswith("pipe:") and links[link] == 2
            )
            # Arrow makes it for a process that handles a signal; one in the background ignores SIGINT at first.
            before = signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                with self.keep("Arrow"):
                    csv.read_csv(io.BytesIO(b"a\n1\n"))
            finally:
                signal.signal(signal.SIGINT, before)

    def take(self) -> list[str]:
        """Tells what is nobody's, and takes it: no other test is blamed for it.

        Garbage has an owner if its finalizer closes it. Of the rest, Python warns when it is collected, which would be
        in whichever test runs then; so all that this test made is collected now.
        """
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", ResourceWarning)
            gc.collect(1)
            if self.of_nobody():
                gc.collect()
        told = {str(each.message) for each in warned}
        self._make_pipe_of_arrow()
        if self.of_nobody():
            owned = {_link(key) for _, key in self._known.union(*self._owned.values())}
            again = {link for link in owned if link.startswith("/")}  # a pool opens one more reader of its database
            excused = _taken_by(owned) | again
            sockets = _sockets_of_python()
            for kind, key, what in self.of_nobody():
                self._known.add((kind, key))
                link = _link(key)
                if link not in excused and (not link.startswith("socket:") or key in sockets):
                    told.add(f"{kind} {what}")
        return sorted(told)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        gc.collect()
        self._known = _keys(found())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self._make_pipe_of_arrow()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        with self.keep(fixturedef):
            return (yield)

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        self.release(fixturedef)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed:
            self._failed = item.nodeid
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        """A test that failed has a reason of its own, and its traceback keeps what it had.

        Tests with Spark share a JVM, to which any may be the first to connect; their own fixture tells what they left.
        """
        yield
        if item.get_closest_marker("engine"):
            self._known |= _keys(self.of_nobody())
            return
        left = self.take()
        if left and item.nodeid != self._failed:
            pytest.fail(f"left behind: {'; '.join(left)}", pytrace=False)


OWNERS: Final = Owners()
keep, own, release = OWNERS.keep, OWNERS.own, OWNERS.release


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(OWNERS, "owners")
