"""A web server on loopback over folders, and what such servers do: know no ranges, break off, drip, redirect, lie."""

from __future__ import annotations

import http.server
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from worlds.http_served import HttpServer, serving


class Site:
    """Serves ``folder``; attributes may be changed at any time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        """Method and path of each request."""
        self.knows_ranges = True
        self.knows_head = True
        self.lie: Callable[[str, bytes], bytes] = lambda _path, content: content
        self.breaks_off: dict[str, int] = {}
        """Bytes after which the connection ends, by a part of the path; then it is forgotten."""
        self.answer: Callable[[Any], bool] = lambda _request: False
        """Whether it answered otherwise."""
        self.url = ""

    @contextmanager
    def open(self) -> Iterator[Site]:
        with serving(HttpServer(self._handler())) as server:
            self.url = server.url
            yield self

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # head and content are written apart: on a kept connection each would wait

            def do_GET(self) -> None:
                site._serve(self)

            def do_HEAD(self) -> None:
                if site.knows_head:
                    site._serve(self)
                else:
                    plain(self, 405)

            def do_POST(self) -> None:
                self.sent = self.rfile.read(int(self.headers["Content-Length"]))
                site._serve(self)

            def log_message(self, *_: Any) -> None: ...

        return Handler

    def _serve(self, request: Any) -> None:
        self.asked.append(f"{request.command} {request.path}")
        if self.answer(request):
            return
        file = self.folder / request.path.lstrip("/")
        if not file.is_file():
            plain(request, 404)
            return
        content = self.lie(request.path, file.read_bytes())
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
        if wanted is None or not self.knows_ranges:
            request.send_response(200)
        else:
            start, whole = int(wanted[1]), len(content)
            content = content[start : int(wanted[2]) + 1 if wanted[2] else None]
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {start}-{start + len(content) - 1}/{whole}")
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        if request.command == "GET":
            self._give(request, content)

    def _give(self, request: Any, content: bytes) -> None:
        for part, size in list(self.breaks_off.items()):
            if part in request.path:
                del self.breaks_off[part]
                request.wfile.write(content[:size])
                request.close_connection = True
                return
        request.wfile.write(content)


def plain(request: Any, status: int, body: bytes = b"", **headers: str) -> None:
    """An answer in one go."""
    request.send_response(status)
    for name, value in {"Content_Length": str(len(body)), **headers}.items():
        request.send_header(name.replace("_", "-"), value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)
