"""Reads and writes files below one folder of an SFTP server, some on condition that they are unchanged.

SFTP has no conditional write. A write over a known version therefore first makes a file that is named after this
version and holds the next one, by a hard link, which the server's file system makes only where no file is. It is never
deleted, so a version has one successor at most, whoever writes and whenever one stops. The file itself follows, by a
rename that replaces it; it may lag behind after a crash, so readers here follow the links, and the next writer brings
it up to date. ADR 9.

All requests of a repository share one connection, in a thread with asyncssh's event loop. Safe to use from many
threads; blocking.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from chain.errors import Refused, Remote
from chain.multihash import Multihash
from odfd.repositories.files import StoredFile
from odfd.repositories.manifest import RepositoryPlace
from odfd.runtime.buckets import CHUNK
from odfd.runtime.extensions import check_client
from p2p.ports import FileMissing

if TYPE_CHECKING:
    import asyncssh

    from odfd.runtime.sftp import SftpLogin

T = TypeVar("T")
PROBE: Final = ".odfd-conditions"
"""A small file beside the datasets, with which the server's links and renames are tested."""
STAGED: Final = ".odfd-staged"
"""The folder of files that are being written; what a lost connection leaves there may be deleted."""
SUCCESSORS: Final = ".odfd-next"
"""The folder, beside a file that is written on condition, of the successors of its versions."""
CONNECT_SECONDS: Final = 10.0
SILENCE_SECONDS: Final = 60.0
FOLLOWED: Final = 10_000
"""Most versions that are followed from a file that lags behind."""
_MAX_SUCCESSOR: Final = 1 << 20
_RULE: Final = "repository-remote"


class SftpFiles:
    """The files below one folder. All methods raise Remote, Refused, Invalid."""

    def __init__(self, name: str, login: SftpLogin, root: str) -> None:
        """``name``: the repository's, for messages."""
        self.name = name
        self._login, self._root = login, root.rstrip("/")
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._connecting = asyncio.Lock()
        self._connection: asyncssh.SSHClientConnection | None = None
        self._client: asyncssh.SFTPClient | None = None
        self._folders: set[str] = set()

    def get(self, path: str, limit: int) -> StoredFile | None:
        """Reads a file; ``None`` if there is none. Raises Remote for more than ``limit`` bytes."""
        return self._run(lambda client: self._newest(client, path, limit))

    def size(self, path: str) -> int | None:
        async def asked(client: asyncssh.SFTPClient) -> int | None:
            return (await client.stat(self._at(path))).size

        return self._run(lambda client: _find(asked(client)))

    def parts(self, path: str, offset: int) -> Generator[bytes, None, None]:
        """Yields a file from ``offset`` on. Raises Missing."""
        file = self._run(lambda client: _find(client.open(self._at(path), "rb", encoding=None)))
        if file is None:
            raise FileMissing(f"{self.name} has no such file", rule="repository-file")
        try:
            while part := self._run(partial(_part, file, offset)):
                yield part
                offset += len(part)
        finally:
            with suppress(Remote):
                self._run(lambda _: file.close())

    def put(self, path: str, content: bytes | Iterator[bytes]) -> None:
        """Writes a file as a whole, or not at all; an exception of ``content`` is passed on."""
        staged = self._stage(content)
        try:
            self._run(lambda client: self._replace(client, staged, path))
        except BaseException:
            self._drop(staged)
            raise

    def put_if(self, path: str, content: bytes, tag: str | None) -> bool:
        """Writes only over a file with this tag, or for ``None`` only if there is none; returns whether it did.

        Content that was there before and was replaced does not come back: this would end the order of versions.
        """
        new = _tag(content)
        if new == tag:
            return True
        staged = self._stage(content)
        try:
            return self._run(lambda client: self._succeed(client, path, staged, (tag, content)))
        finally:
            self._drop(staged)

    def check_conditions(self) -> None:
        """Raises Refused for a server on which two pushers might both win."""
        staged = self._stage(b"odfd")
        try:
            self._run(lambda client: self._probe(client, staged))
        finally:
            self._drop(staged)

    def close(self) -> None:
        """Ends the connection. A later call opens another."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._end(), loop).result(SILENCE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _run(self, work: Callable[[asyncssh.SFTPClient], Awaitable[T]]) -> T:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._connecting = asyncio.Lock()
                self._thread = threading.Thread(target=self._loop.run_forever, name=f"sftp-{self.name}", daemon=True)
                self._thread.start()
            loop = self._loop
        try:
            return asyncio.run_coroutine_threadsafe(self._ask(work), loop).result()
        except CancelledError:
            raise Remote(f"the connection of {self.name} was closed", rule=_RULE, hint="try again") from None

    async def _ask(self, work: Callable[[asyncssh.SFTPClient], Awaitable[T]]) -> T:
        import asyncssh

        try:
            client = await self._open()
            return await asyncio.wait_for(work(client), SILENCE_SECONDS)
        except asyncssh.SFTPPermissionDenied:
            raise Refused(
                f"{self.name} refuses this node: the user may not do this there", rule="repository-credentials"
            ) from None
        except (asyncssh.Error, OSError, TimeoutError) as error:
            if not isinstance(error, asyncssh.SFTPError) or isinstance(
                error, asyncssh.SFTPConnectionLost | asyncssh.SFTPNoConnection
            ):
                await self._disconnect()
            raise self._fault(error) from None

    def _fault(self, error: BaseException) -> Remote:
        return Remote(
            f"{self.name} cannot be asked: {type(error).__name__}", rule=_RULE, hint="try again; odfctl repo list"
        )

    async def _open(self) -> asyncssh.SFTPClient:
        from odfd.runtime.sftp import connect

        async with self._connecting:
            if self._client is None:
                self._connection = await connect(self._login, _RULE, f"repository {self.name}")
                self._client = await asyncio.wait_for(self._connection.start_sftp_client(), self._login.silence)
                self._folders.clear()
            return self._client

    async def _end(self) -> None:
        await self._disconnect()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_default_executor()

    async def _disconnect(self) -> None:
        connection, self._connection, self._client = self._connection, None, None
        if connection is not None:
            connection.abort()
            await connection.wait_closed()

    def _stage(self, content: bytes | Iterator[bytes]) -> str:
        """Writes a file under a name of its own, and returns its path."""
        path = f"{STAGED}/{secrets.token_hex(16)}"
        file = self._run(lambda client: self._new(client, path))
        try:
            for part in (content,) if isinstance(content, bytes) else content:
                self._run(partial(_write, file, part))
            self._run(lambda _: _settle(file))
        except BaseException:
            self._drop(path)
            raise
        return path

    async def _new(self, client: asyncssh.SFTPClient, path: str) -> asyncssh.SFTPClientFile:
        await self._make(client, path)
        return await client.open(self._at(path), "xb", encoding=None)

    async def _make(self, client: asyncssh.SFTPClient, path: str) -> None:
        """Makes the folder of a file."""
        folder = path.rpartition("/")[0]
        if folder not in self._folders:
            await client.makedirs(self._at(folder).rstrip("/"), exist_ok=True)
            self._folders.add(folder)

    async def _replace(self, client: asyncssh.SFTPClient, staged: str, path: str) -> None:
        import asyncssh

        await self._make(client, path)
        try:
            await client.posix_rename(self._at(staged), self._at(path))
        except asyncssh.SFTPOpUnsupported:
            raise self._unfit("replace a file in one step (posix-rename@openssh.com)") from None

    def _drop(self, staged: str) -> None:
        """Removes a staged file, unless it was moved, or the connection is lost, so that it stays."""
        with suppress(Remote, Refused):
            self._run(lambda client: _find(client.remove(self._at(staged))))

    async def _newest(self, client: asyncssh.SFTPClient, path: str, limit: int) -> StoredFile | None:
        found = await self._read(client, path, limit)
        if not _is_versioned(path):
            return found
        for _ in range(FOLLOWED):
            after = await self._read(client, _successor(path, None if found is None else found.tag), limit)
            if after is None:
                return found
            found = after
        raise Remote(f"{self.name}: {path[-80:]} has too many versions", rule="repository-size")

    async def _read(self, client: asyncssh.SFTPClient, path: str, limit: int) -> StoredFile | None:
        import asyncssh

        try:
            async with client.open(self._at(path), "rb", encoding=None) as file:
                content = await _bytes(file.read(limit + 1, 0))
        except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath):
            return None
        if len(content) > limit:
            raise Remote(f"{self.name}: {path[-80:]} has more than {limit:,} bytes", rule="repository-size")
        return StoredFile(content, _tag(content))

    async def _succeed(
        self, client: asyncssh.SFTPClient, path: str, staged: str, write: tuple[str | None, bytes]
    ) -> bool:
        """Makes the successor of a version, if it has none, and brings the file up to date."""
        tag, content = write
        newest = await self._newest(client, path, _MAX_SUCCESSOR)
        if (None if newest is None else newest.tag) != tag:
            return newest is not None and newest.content == content
        if await self._read(client, _successor(path, _tag(content)), _MAX_SUCCESSOR) is not None:
            return False
        won = await self._link(client, staged, _successor(path, tag), content)
        await self._bring_up(client, path)
        return won

    async def _link(self, client: asyncssh.SFTPClient, staged: str, path: str, content: bytes) -> bool:
        """Links a staged file where none is; returns whether it did, or had done before its answer was lost."""
        import asyncssh

        await self._make(client, path)
        try:
            await client.link(self._at(staged), self._at(path))
        except asyncssh.SFTPOpUnsupported:
            raise self._unfit("make a hard link (hardlink@openssh.com)") from None
        except (asyncssh.SFTPFailure, asyncssh.SFTPFileAlreadyExists):
            there = await self._read(client, path, _MAX_SUCCESSOR)
            if there is None:
                raise self._unfit("make a hard link in this folder") from None
            return there.content == content
        return True

    async def _bring_up(self, client: asyncssh.SFTPClient, path: str) -> None:
        """Writes the newest version into the file, until none is newer; another writer may do so at the same time."""
        while True:
            newest = await self._newest(client, path, _MAX_SUCCESSOR)
            there = await self._read(client, path, _MAX_SUCCESSOR)
            if newest is None or there == newest:
                return
            staged = f"{STAGED}/{secrets.token_hex(16)}"
            file = await self._new(client, staged)
            await file.write(newest.content)
            await _settle(file)
            await self._replace(client, staged, path)

    async def _probe(self, client: asyncssh.SFTPClient, staged: str) -> None:
        await self._link(client, staged, PROBE, b"odfd")
        again = f"{staged}-again"
        import asyncssh

        try:
            await client.link(self._at(staged), self._at(PROBE))
        except (asyncssh.SFTPFailure, asyncssh.SFTPFileAlreadyExists):
            await client.link(self._at(staged), self._at(again))
            await self._replace(client, again, PROBE)
            return
        raise self._unfit("refuse a link where a file is")

    def _unfit(self, what: str) -> Refused:
        return Refused(
            f"{self.name} cannot {what}: of two concurrent pushes one would be lost silently",
            rule="repository-conditions",
            hint="a server like OpenSSH's is needed to push; pulling works",
        )


def open_sftp(name: str, place: RepositoryPlace, host_key: str, credentials: Mapping[str, str]) -> SftpFiles:
    """Returns the files of a repository, connected with the first request. Raises Refused without the client."""
    check_client("asyncssh", f"repository {name} needs", "sftp")
    from odfd.runtime.sftp import SftpLogin

    assert place.sftp is not None
    at = place.sftp
    login = SftpLogin(
        (at.host,), at.port, host_key, at.user, credentials.get("password"), credentials.get("privateKey"),
        CONNECT_SECONDS, SILENCE_SECONDS,
    )  # fmt: skip
    return SftpFiles(name, login, at.path)


async def _find(asked: Coroutine[Any, Any, T] | Awaitable[T]) -> T | None:
    import asyncssh

    try:
        return await asked
    except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath):
        return None


async def _part(file: asyncssh.SFTPClientFile, offset: int, _: asyncssh.SFTPClient) -> bytes:
    return await _bytes(file.read(CHUNK, offset))


async def _write(file: asyncssh.SFTPClientFile, part: bytes, _: asyncssh.SFTPClient) -> None:
    await file.write(part)


async def _bytes(asked: Awaitable[bytes | str]) -> bytes:
    found = await asked
    assert isinstance(found, bytes)
    return found


async def _settle(file: asyncssh.SFTPClientFile) -> None:
    """Closes a written file once it is durable, where the server can make it so (fsync@openssh.com)."""
    import asyncssh

    with suppress(asyncssh.SFTPOpUnsupported):
        await file.fsync()
    await file.close()


def _is_versioned(path: str) -> bool:
    return path.endswith(("/head", "/collection"))


def _successor(path: str, tag: str | None) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/{SUCCESSORS}/{name}-{tag or 'none'}"


def _tag(content: bytes) -> str:
    return str(Multihash.sha3_256(content))
