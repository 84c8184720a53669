"""A proxy between two programs, which keeps what passes and does something when a certain thing does: cut the lines.

What arrives is numbered before it is passed on, so that the numbers have the order of cause and effect over all lines.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from worlds.eventually import PATIENCE

_NO_LINGER: Final = struct.pack("ii", 1, 0)
"""Closing sends a reset, and nothing that still waits to be sent."""
_CHUNK: Final = 64 << 10


class Passed(NamedTuple):
    """Bytes of one side, as they arrived."""

    number: int
    is_client: bool
    data: bytes


@dataclass
class Line:
    """One connection, and its other half to the server."""

    client: socket.socket
    server: socket.socket
    passed: list[Passed] = field(default_factory=list)

    def cut(self) -> None:
        for each in (self.client, self.server):
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@dataclass
class _Trap:
    pattern: bytes
    left: int
    spring: Callable[[], None]
    is_over: threading.Event = field(default_factory=threading.Event)


class Between:
    """Listens at ``address``, and passes everything on to ``there``."""

    def __init__(self, there: tuple[str, int], address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._there = there
        self._listener = socket.create_server(address)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self.lines: list[Line] = []
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._trap: _Trap | None = None
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self._start(self._listen)

    def when(self, pattern: bytes, count: int, spring: Callable[[], None]) -> None:
        """Calls ``spring`` once, when the ``count``-th piece with ``pattern`` has come, before it is passed on."""
        self._trap = _Trap(pattern, count, spring)

    def sprung(self) -> None:
        """Waits until that was called, and has returned."""
        assert self._trap is not None
        assert self._trap.is_over.wait(PATIENCE)

    def cut(self) -> None:
        """Cuts all lines."""
        for line in self.lines:
            line.cut()

    def mark(self) -> int:
        """The number of what comes next."""
        with self._lock:
            return next(self._numbers)

    def seen(self, pattern: str, since: int = 0) -> list[str]:
        """Returns what came from clients since a mark and matches a regular expression."""
        found: list[str] = []
        for line in self.lines:
            parts = (each.data for each in line.passed if each.is_client and each.number >= since)
            found += re.findall(pattern, b"".join(parts).decode("latin-1"))
        return found

    def close(self) -> None:
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                line = Line(client, socket.create_connection(self._there))
            except OSError:  # nobody is there
                client.close()
                continue
            self.lines.append(line)
            if self._is_closed:
                line.cut()
            self._start(partial(self._pass, line, is_client=True))
            self._start(partial(self._pass, line, is_client=False))

    def _pass(self, line: Line, *, is_client: bool) -> None:
        here, there = (line.client, line.server) if is_client else (line.server, line.client)
        try:
            while data := here.recv(_CHUNK):
                with self._lock:
                    line.passed.append(Passed(next(self._numbers), is_client, data))
                    self._look(data)
                there.sendall(data)
            there.shutdown(socket.SHUT_WR)
        except OSError:
            line.cut()

    def _look(self, data: bytes) -> None:
        trap = self._trap
        if trap is not None and trap.left and trap.pattern in data:
            trap.left -= 1
            if not trap.left:
                trap.spring()
                trap.is_over.set()

    def _start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()


@contextmanager
def between(there: tuple[str, int], address: tuple[str, int] = ("127.0.0.1", 0)) -> Iterator[Between]:
    made = Between(there, address)
    try:
        yield made
    finally:
        made.close()
