"""Lists the files of a server that may fit a pattern: folder by folder, within bounds. Links are not followed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Final

import asyncssh

from chain.errors import Refused
from odfd.ingest.bucket_objects import Keys
from odfd.ingest.servers.sftp_job import MAX_DEPTH, MAX_LISTED, SFTP, RemoteFile

_NOT_IN_NAMES: Final = re.compile(r"[/\x00]")


async def listed(client: asyncssh.SFTPClient, pattern: str, silence: float) -> list[RemoteFile]:
    """Returns the files of a pattern. Raises Refused, and what the client does."""
    root = "/" if pattern.startswith("/") else ""
    keys = Keys(pattern.removeprefix("/"))
    depth = pattern.count("/") - len(root) + 1 if "**" not in pattern.split("/") else MAX_DEPTH
    found: list[RemoteFile] = []
    waiting, looked_at = [keys.folder], 0
    while waiting:
        folder = waiting.pop()
        async for name, attributes in _entries(client, root + folder or ".", silence):
            looked_at += 1
            if looked_at > MAX_LISTED:
                raise Refused(
                    f"more than {MAX_LISTED:,} entries are listed below {root + folder!r}",
                    rule=SFTP,
                    hint="narrow the folder before the first * of the path",
                )
            key = f"{folder}/{name}" if folder else name
            if attributes.type == asyncssh.FILEXFER_TYPE_DIRECTORY and key.count("/") < depth - 1:
                waiting.append(key)
            elif attributes.type == asyncssh.FILEXFER_TYPE_REGULAR:
                file = _file(key, attributes)
                found += [file] if keys.fit(file.stored()) else []
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
