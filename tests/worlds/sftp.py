"""A real server of SFTP on loopback, in a thread: that of asyncssh, over a folder."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from worlds.eventually import PATIENCE

PASSWORD = "p@ss/word:1"
LONG_AGO = 1_700_000_000


class Served:
    """A server of a folder for ``reader``, with ``PASSWORD`` or ``private_key``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.host_key = self.private_key = ""
        self.reads = 0
        self.connections: list[Any] = []
        self.on_read: Any = None
        """Called once when bytes are asked for."""

    def url(self, path: str, user: str = "reader:${{ env.SFTP }}") -> str:
        return f"sftp://{user}@127.0.0.1:{self.port}{path}"

    def put(self, name: str, body: bytes, time: int = LONG_AGO) -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(body)
        os.utime(path, (time, time))
        return path


@contextmanager
def sftp_served(folder: Path) -> Iterator[Served]:
    """Skips the test by name where the client, which has the server, is not installed."""
    pytest.importorskip("asyncssh")
    served, ready, loop = Served(folder), threading.Event(), asyncio.new_event_loop()
    stopped: list[asyncio.Event] = []

    async def run() -> None:
        stopped.append(asyncio.Event())
        loop.set_default_executor(ThreadPoolExecutor(1))
        await loop.run_in_executor(None, int)  # its thread is of this server, and not of the test that first needs it
        server = await _server(served)
        served.port = server.sockets[0].getsockname()[1]
        ready.set()
        await stopped[0].wait()
        server.close()
        await server.wait_closed()
        for each in served.connections:
            each.abort()
            await each.wait_closed()
        await loop.shutdown_default_executor()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        yield served
    finally:
        loop.call_soon_threadsafe(stopped[0].set)
        thread.join()
        loop.close()


async def _server(served: Served) -> Any:
    import asyncssh

    host, user = asyncssh.generate_private_key("ssh-ed25519"), asyncssh.generate_private_key("ssh-ed25519")
    served.host_key = " ".join(host.export_public_key().decode().split()[:2])
    served.private_key = user.export_private_key().decode()
    public = user.export_public_key()

    class People(asyncssh.SSHServer):
        def connection_made(self, conn: Any) -> None:
            served.connections.append(conn)

        def begin_auth(self, username: str) -> bool:
            return True

        def password_auth_supported(self) -> bool:
            return True

        def validate_password(self, username: str, password: str) -> bool:
            return (username, password) == ("reader", PASSWORD)

        def public_key_auth_supported(self) -> bool:
            return True

        def validate_public_key(self, username: str, key: Any) -> bool:
            return username == "reader" and key.export_public_key() == public

    class Files(asyncssh.SFTPServer):
        def __init__(self, chan: Any) -> None:
            super().__init__(chan, chroot=str(served.folder).encode())

        async def read(self, file_obj: Any, offset: int, size: int) -> bytes:
            served.reads += 1
            if served.on_read is not None:
                served.on_read, now = None, served.on_read
                now()
            return super().read(file_obj, offset, size)  # type: ignore[return-value]

    return await asyncssh.listen(
        "127.0.0.1", 0, server_host_keys=[host], server_factory=People, sftp_factory=Files, config=None
    )
