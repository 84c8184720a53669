"""A server of events on loopback that keeps Last-Event-ID. A test can have it forget, stay open, or never end."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from worlds.http_served import HttpServer, serving


class Stream:
    """What the server sends; it ends each stream, unless it is to stay open."""

    def __init__(self) -> None:
        self.url = ""
        self.events: list[tuple[str, str]] = []
        self.asked: list[dict[str, str]] = []
        self.kind = "text/event-stream; charset=utf-8"
        self.status = 200
        self.forgets = self.stays = self.pings = False
        self.closed = threading.Event()

    def behind(self, last: str | None) -> list[tuple[str, str]]:
        if last is None or self.forgets:
            return list(self.events)
        place = [name for name, _ in self.events].index(last)
        return self.events[place + 1 :]


@contextmanager
def stream_served() -> Iterator[Stream]:
    made = Stream()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.asked.append(dict(self.headers))
            self.send_response(made.status)
            self.send_header("Content-Type", made.kind)
            self.end_headers()
            for name, data in made.behind(self.headers.get("Last-Event-ID")):
                lines = "".join(f"data: {line}\n" for line in data.split("\n"))
                self.wfile.write(f"id: {name}\nevent: change\n{lines}\n".encode())
            self.wfile.flush()
            try:
                while made.pings and not made.closed.wait(0.01):
                    self.wfile.write(b": still here\n")
            except OSError:
                return
            if made.stays:
                made.closed.wait()

        def log_message(self, *_: Any) -> None:
            pass

    with serving(HttpServer(Handler)) as server:
        made.url = f"{server.url}/changes"
        try:
            yield made
        finally:
            made.closed.set()
