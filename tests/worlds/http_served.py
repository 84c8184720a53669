"""A server of HTTP on the loopback, whose connections end when it does, and their threads with them."""

from __future__ import annotations

import http.server
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from worlds.leaks import own, release


class HttpServer(http.server.ThreadingHTTPServer):
    """Answers by a handler, each connection in a thread."""

    def __init__(self, handler: type[http.server.BaseHTTPRequestHandler], port: int = 0) -> None:
        self._taken: set[socket.socket] = set()
        self._serving: list[threading.Thread] = []
        super().__init__(("127.0.0.1", port), handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        self._taken.add(request)
        own(self, request)
        thread = threading.Thread(target=self.process_request_thread, args=(request, client_address), daemon=True)
        self._serving = [*(each for each in self._serving if each.is_alive()), thread]
        thread.start()

    def shutdown_request(self, request: Any) -> None:
        self._taken.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asks may leave in the middle."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def server_close(self) -> None:
        super().server_close()
        for each in list(self._taken):
            with suppress(OSError):  # it ends at this moment
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._serving:
            thread.join()
        release(self)


Server = TypeVar("Server", bound=HttpServer)


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
