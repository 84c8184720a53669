"""A server that nobody should wait for: it connects, and is deaf, silent, drips, stops, never ends, or sends us round.

One for all protocols: what it says is HTTP where it speaks at all, and a byte at a time is slow in any.
"""

from __future__ import annotations

import enum
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

PAUSE: Final = 0.05
"""Seconds between two bytes of what drips: less than any silence that is waited for."""
HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


class Manner(enum.Enum):
    DEAF = "connections are taken by the system, and never by the program"
    SILENT = "the question is read, and nothing is said"
    DRIPS_HEAD = "headers come a byte at a time, and never end"
    DRIPS_BODY = "a body comes a byte at a time"
    STOPS = "half of a body comes"
    ENDLESS = "a body comes at full speed, and never ends"
    ROUND = "each page sends us on to the next"


class Dripping:
    """A server that answers in one bad way. ``asked``: connections that were taken; ``taken``: the first one was."""

    def __init__(self, manner: Manner) -> None:
        self._manner = manner
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.asked = 0
        self.taken = threading.Event()

    @contextmanager
    def open(self) -> Iterator[Dripping]:
        threads = [threading.Thread(target=self._accept)] if self._manner is not Manner.DEAF else []
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._over.set()
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            for thread in threads:
                thread.join()

    def _accept(self) -> None:
        answering: list[threading.Thread] = []
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.asked += 1
                self.taken.set()
                answering.append(threading.Thread(target=self._answer, args=(connection,)))
                answering[-1].start()
        for thread in answering:
            thread.join()

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(PAUSE)
        with connection, suppress(OSError):
            while not self._over.is_set():
                with suppress(TimeoutError):
                    if not connection.recv(65536):
                        return
                    self._speak(connection)

    def _speak(self, connection: socket.socket) -> None:
        """Raises OSError when who asked has gone."""
        length = b"Content-Length: 1000000\r\n\r\n"
        match self._manner:
            case Manner.SILENT | Manner.DEAF:
                self._over.wait()
            case Manner.DRIPS_HEAD:
                self._drip(connection, HEAD + b"X-More: " + b"a" * 1_000_000)
            case Manner.DRIPS_BODY:
                connection.sendall(HEAD + length)
                self._drip(connection, b" " * 1_000_000)
            case Manner.STOPS:
                connection.sendall(HEAD + length + b" " * 500_000)
                self._over.wait()
            case Manner.ENDLESS:
                connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
                while not self._over.is_set():
                    with suppress(TimeoutError):
                        connection.sendall(b"1000\r\n" + b" " * 0x1000 + b"\r\n")
            case Manner.ROUND:
                connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: /next\r\nContent-Length: 0\r\n\r\n")

    def _drip(self, connection: socket.socket, content: bytes) -> None:
        for byte in content:
            if self._over.wait(PAUSE):
                return
            connection.sendall(bytes([byte]))
