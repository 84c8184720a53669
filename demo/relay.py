"""Runs a bad road: a TCP relay that carries bytes slowly and can be cut in the middle of anything.

What happens to a node's connections on the open internet, on demand. It understands nothing of what it carries.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

CHUNK = 16 << 10


class Relay:
    """Listens on a port of loopback and passes bytes to ``target`` at ``rate`` bytes a second in each direction."""

    def __init__(self, target: int, rate: int) -> None:
        self._target = target
        self._rate = rate
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            with self._lock:
                self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                sink.sendall(data)
                time.sleep(len(data) / self._rate)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> int:
        """Breaks every connection now; new ones are carried as before. Returns their number."""
        with self._lock:
            broken, self._open = self._open, set()
        for end in broken:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        return len(broken) // 2

    def close(self) -> None:
        self._listener.close()
        self.cut()
