"""A real server of FTP on loopback: pyftpdlib, in a thread. A test can break its transfers and bend its answers."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Literal

from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.handlers import DTPHandler, FTPHandler, TLS_DTPHandler, TLS_FTPHandler
from pyftpdlib.ioloop import IOLoop
from pyftpdlib.servers import FTPServer

from worlds.certificates import certified

PASSWORD = "p@ss/word:1"


class Served:
    """A server of a folder, for anybody and for ``reader`` with ``PASSWORD``."""

    def __init__(self, folder: Path, tls: str) -> None:
        self.folder, self.tls = folder, tls
        self.port = 0
        self.commands: list[tuple[str, str]] = []
        """What was sent to it, but passwords."""
        self.breaks = 0
        """Transfers that are still to be cut off."""
        self.cut_after = 100_000
        """Bytes that such a transfer brings."""
        self.without: set[str] = set()
        """Commands that it does not know."""
        self.address = ""
        """That PASV names in place of its own."""
        self.on_read: Any = None
        """Called once when a transfer begins."""

    def url(self, path: str, user: str = "") -> str:
        scheme = "ftp" if self.tls == "never" else "ftps"
        return f"{scheme}://{user}127.0.0.1:{self.port}/{path}"

    def put(self, name: str, body: bytes, modified: int | None = None) -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(body)
        if modified is not None:
            os.utime(path, (modified, modified))
        return path


@contextmanager
def ftp_served(folder: Path, tls: Literal["never", "explicit", "implicit"] = "never") -> Iterator[Served]:
    """``folder.parent`` has the certificate of a server with TLS, ``certificate.pem``, for 127.0.0.1 alone."""
    served = Served(folder, tls)
    server = FTPServer(("127.0.0.1", 0), _handler(served), ioloop=IOLoop())
    served.port = server.address[1]
    stopped = threading.Event()

    def run() -> None:
        while not stopped.is_set():
            server.serve_forever(timeout=0.01, blocking=False, handle_exit=False)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield served
    finally:
        stopped.set()
        thread.join()
        server.close_all()


def _handler(served: Served) -> type[FTPHandler]:
    people = DummyAuthorizer()
    people.add_anonymous(str(served.folder))
    people.add_user("reader", PASSWORD, str(served.folder))

    transfers, handlers = (DTPHandler, FTPHandler) if served.tls == "never" else (TLS_DTPHandler, TLS_FTPHandler)

    class Transfer(transfers):  # type: ignore[misc, valid-type]
        def send(self, data: bytes) -> Any:
            if served.breaks and self.tot_bytes_sent >= served.cut_after:
                served.breaks -= 1
                self.cmd_channel.close()
                return 0
            return super().send(data)

    class Handler(handlers):  # type: ignore[misc, valid-type]
        authorizer = people
        auth_failed_timeout = 0
        dtp_handler = Transfer
        use_sendfile = False  # else the kernel sends it all at once

        def pre_process_command(self, line: str, cmd: str, arg: str) -> None:
            served.commands.append((cmd, "" if cmd == "PASS" else arg))
            self.masquerade_address = served.address or None
            if cmd in served.without:
                self.respond(f"502 {cmd} is not known, {PASSWORD}")
                return
            super().pre_process_command(line, cmd, arg)

        def ftp_RETR(self, file: str) -> Any:
            if served.on_read is not None:
                served.on_read, now = None, served.on_read
                now()
            return super().ftp_RETR(file)

        def handle(self) -> None:
            if served.tls == "implicit":
                self.secure_connection(self.ssl_context)
            super().handle()

    if served.tls != "never":
        certificate, key = certified(served.folder.parent, "ftp.example", addresses=[IPv4Address("127.0.0.1")])
        both = certificate.with_name("both.pem")
        both.write_bytes(certificate.read_bytes() + key.read_bytes())
        Handler.certfile = str(both)
        Handler.tls_control_required = served.tls == "explicit"
        Handler.tls_data_required = True
    return Handler
