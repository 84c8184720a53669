"""Reads one file from an SFTP server, or the next one of a pattern, in its own process.

The server has to show the one key that the source names. Configuration, agent and keys of this machine's user are not
used. A file is read by one handle, and refused if its size or time changed meanwhile. Links are not followed.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import sys
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Final, TypeVar, cast

import asyncssh

from chain.errors import NotFound, Refused, Remote
from odfd.ingest.clients.remote_files import MAX_LISTED, SFTP, Folders, RemoteFile, SftpJob, SftpResult, next_files
from odfd.ingest.file_writer import FileWriter
from odfd.ingest.source_process import run_job, serve
from odfd.runtime.sftp import SftpLogin, connect, not_asked

_NOT_IN_NAMES: Final = re.compile(r"[/\x00]")


async def list_files(client: asyncssh.SFTPClient, pattern: str, silence: float) -> list[RemoteFile]:
    """Returns the files that fit a pattern. Raises Refused, and the client's errors."""
    folders, looked_at = Folders(pattern), 0
    found: list[RemoteFile] = []
    while folders.waiting:
        folder = folders.waiting.pop()
        async for name, attributes in _entries(client, folders.root + folder or ".", silence):
            looked_at += 1
            if looked_at > MAX_LISTED:
                raise Refused(
                    f"more than {MAX_LISTED:,} entries are listed below {folders.root + folder!r}",
                    rule=SFTP,
                    hint="narrow the folder before the first * of the path",
                )
            key = folders.below(folder, name)
            if attributes.type == asyncssh.FILEXFER_TYPE_DIRECTORY:
                folders.add(key)
            elif attributes.type == asyncssh.FILEXFER_TYPE_REGULAR:
                file = _file(key, attributes)
                found += [file] if folders.keys.fit(file.as_object()) else []
    return found


def _file(key: str, attributes: asyncssh.SFTPAttrs) -> RemoteFile:
    if attributes.size is None or attributes.mtime is None:
        raise Refused(f"the server does not report size and time of {key!r}", rule=SFTP, hint="list it as Url sources")
    return RemoteFile(key=key, size=attributes.size, modified=int(attributes.mtime))


async def _entries(
    client: asyncssh.SFTPClient, folder: str, silence: float
) -> AsyncIterator[tuple[str, asyncssh.SFTPAttrs]]:
    names = client.scandir(folder)
    while True:
        try:
            each = await asyncio.wait_for(anext(names), silence)
        except StopAsyncIteration:
            return
        name = str(each.filename)
        if name in (".", ".."):
            continue
        if _NOT_IN_NAMES.search(name):
            raise Refused(
                f"the server lists {name!r}, which is no name", rule=SFTP, hint="check that it is the right server"
            )
        yield name, each.attrs


T = TypeVar("T")
_PART: Final = 1 << 20


def answer(job: SftpJob) -> SftpResult:
    """Reads the file and writes it; a fault becomes an answer."""
    return run_job(job, lambda job: asyncio.run(_answer(job)), SftpResult, "have it served in smaller files")


async def _answer(job: SftpJob) -> SftpResult:
    try:
        connection = await connect(_login(job), SFTP, "source")
        try:
            client = await asyncio.wait_for(connection.start_sftp_client(), job.silence)
            return await _Reader(job, client).read()
        finally:
            # An orderly end would wait for a server that does not answer.
            connection.abort()
    except asyncssh.SFTPNoSuchFile:
        raise NotFound(f"there is no {job.path!r}", rule=SFTP, hint="check the URL") from None
    except asyncssh.SFTPPermissionDenied:
        raise Refused(f"the user may not read {job.path!r}", rule=SFTP, hint="ask the server's owner") from None
    except UnicodeDecodeError:
        raise Refused("a name there is no UTF-8", rule=SFTP, hint="rename that file, or narrow the path") from None
    except (asyncssh.Error, OSError, TimeoutError) as error:
        raise not_asked(error, SFTP) from None


def _login(job: SftpJob) -> SftpLogin:
    return SftpLogin(
        job.addresses, job.port, job.host_key, job.user, job.password, job.private_key, job.connect, job.silence
    )


class _Reader:
    """Reads a file over one connection that is logged in."""

    def __init__(self, job: SftpJob, client: asyncssh.SFTPClient) -> None:
        self._job, self._client = job, client

    async def read(self) -> SftpResult:
        """Reads the file, or the next one of the pattern. Raises Remote, Refused, and the client's errors."""
        job = self._job
        if job.pattern is None:
            return await self._take(job.path, None)
        files = await list_files(self._client, job.path, job.silence)
        found, behind = next_files(files, job.path, job.pattern)
        late = tuple(behind) if len(found) < 2 else ()
        if not found:
            return SftpResult(behind=late)
        root = "/" if job.path.startswith("/") else ""
        done = await self._take(root + found[0].key, found[0])
        return SftpResult(digest=done.digest, found=found[0], more=len(found) > 1, behind=late)

    async def _take(self, path: str, wanted: RemoteFile | None) -> SftpResult:
        job, digest = self._job, hashlib.sha3_256()
        async with await self._soon(self._client.open(path, "rb", encoding=None)) as file:
            before = await self._as_it_is(file, path)
            if wanted is None and before.version == job.known:
                return SftpResult()
            if wanted is not None and before.version != wanted.version:
                raise _change_fault()
            with FileWriter(Path(job.target), "the file", job.limit, job.reserve) as target:
                target.expect(before.size)
                while part := cast("bytes", await self._soon(file.read(_PART))):
                    target.write(part)
                    digest.update(part)
            if await self._as_it_is(file, path) != before or target.size != before.size:
                raise _change_fault()
        return SftpResult(digest=digest.hexdigest(), found=before)

    async def _as_it_is(self, file: asyncssh.SFTPClientFile, path: str) -> RemoteFile:
        found = await self._soon(file.stat())
        if (
            found.size is None
            or found.mtime is None
            or found.type
            not in (
                asyncssh.FILEXFER_TYPE_REGULAR,
                # SFTP 3 tells the type by the permissions alone, which a server may leave out.
                asyncssh.FILEXFER_TYPE_UNKNOWN,
            )
        ):
            raise Refused(f"{path!r} is no file, or the server does not report its size and time", rule=SFTP)
        return RemoteFile(key=path.removeprefix("/"), size=found.size, modified=int(found.mtime))

    async def _soon(self, waited: Awaitable[T]) -> T:
        return await asyncio.wait_for(waited, self._job.silence)


def _change_fault() -> Remote:
    return Remote(
        "the file changed while it was read, and no part of it was kept", rule="source-changed", hint="pull again"
    )


def main() -> int:
    """Runs the process. Returns its exit code."""
    return serve(SftpJob, answer)


if __name__ == "__main__":
    sys.exit(main())
