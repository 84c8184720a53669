"""Reads datasets in buckets and on SFTP servers as published files (``p2p.ports``), by ``REPOSITORY/DATASET/…``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from odfd.repositories.port import RepositoryFiles
from p2p.ports import FilePart


class PublishedFiles:
    """Reads the files of all repositories that are buckets or on SFTP servers."""

    def __init__(self, files: Callable[[str], RepositoryFiles]) -> None:
        """``files`` returns the files of a named repository."""
        self._files = files

    async def size_of(self, content: str) -> int | None:
        name, path = _part(content)
        return await trio.to_thread.run_sync(lambda: self._files(name).size(path))

    async def cat(self, content: str, limit: int) -> bytes | None:
        name, path = _part(content)
        found = await trio.to_thread.run_sync(lambda: self._files(name).get(path, limit))
        return None if found is None else found.content

    @asynccontextmanager
    async def open(self, content: str, offset: int = 0) -> AsyncIterator[AsyncIterator[FilePart]]:
        name, path = _part(content)
        parts = await trio.to_thread.run_sync(lambda: self._files(name).parts(path, offset))
        first = await trio.to_thread.run_sync(next, parts, None)

        async def each() -> AsyncIterator[FilePart]:
            part = first
            while part is not None:
                yield part
                part = await trio.to_thread.run_sync(next, parts, None)

        try:
            yield each()
        finally:
            parts.close()


def _part(content: str) -> tuple[str, str]:
    name, _, path = content.partition("/")
    return name, path
