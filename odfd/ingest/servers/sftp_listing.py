"""Lists the files of an SFTP server that may fit a pattern: folder by folder, within bounds. Links are not followed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Final

import asyncssh

from chain.errors import Refused
from odfd.ingest.servers.remote_files import MAX_LISTED, Folders, RemoteFile
from odfd.ingest.servers.sftp_job import SFTP

_NOT_IN_NAMES: Final = re.compile(r"[/\x00]")


async def listed(client: asyncssh.SFTPClient, pattern: str, silence: float) -> list[RemoteFile]:
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
                found += [file] if folders.keys.fit(file.stored()) else []
    return found


def _file(key: str, attributes: asyncssh.SFTPAttrs) -> RemoteFile:
    if attributes.size is None or attributes.mtime is None:
        raise Refused(f"the server does not tell size and time of {key!r}", rule=SFTP, hint="list it as Url sources")
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
            raise Refused(f"the server lists {name!r}, which is no name", rule=SFTP, hint="is it the right server?")
        yield name, each.attrs
