"""Declares how files of a repository are read and written, does so below a folder, and reads datasets from all of them.

``Folder`` reads and writes files below one folder like a bucket's, some on condition that they are unchanged. A file
exists as a whole or not at all, and is durable when the call returns. Conditions hold among all writers that use this
module (``flock``), on one machine, or as far as the file system carries locks. Blocking.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import trio

from chain.errors import Remote
from chain.multihash import Multihash
from chain.store import durable
from chain.store.files import disk, make_folder
from p2p.ports import FilePart


class StoredFile(NamedTuple):
    content: bytes
    tag: str
    """Identifies the content: any other content has another tag."""


class ConditionalFiles(Protocol):
    """Files below one place, some of which are replaced only on condition. Methods block, and raise Remote, Refused."""

    name: str
    """The repository's, for messages."""

    def get(self, path: str, limit: int) -> StoredFile | None:
        """Reads a file; ``None`` if there is none. Raises Remote for more than ``limit`` bytes."""

    def put_if(self, path: str, content: bytes, tag: str | None) -> bool:
        """Writes only over a file with this tag, or for ``None`` only if there is none; returns whether it did."""

    def check_conditions(self) -> None:
        """Raises Refused for a place where two concurrent writes of ``put_if`` may both succeed."""


class RepositoryFiles(ConditionalFiles, Protocol):
    """The files of a repository that is not a folder."""

    def size(self, path: str) -> int | None: ...

    def parts(self, path: str, offset: int) -> Generator[FilePart, None, None]:
        """Yields a file from ``offset`` on. Raises Missing."""

    def put(self, path: str, content: bytes | Iterator[bytes]) -> None:
        """Writes a file as a whole, or not at all; an exception of ``content`` is passed on."""


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


class Folder:
    """The files of a folder, which is made with the first of them."""

    def __init__(self, name: str, root: Path) -> None:
        """``name`` is used in messages."""
        self.name = name
        self._root = root

    def get(self, path: str, limit: int) -> StoredFile | None:
        """Reads a file; ``None`` if there is none. Raises Remote for more than ``limit`` bytes."""
        file = self._root / path
        with disk(file):
            try:
                with file.open("rb") as opened:
                    content = opened.read(limit + 1)
            except FileNotFoundError:
                return None
        if len(content) > limit:
            raise Remote(f"{self.name}: {path[-80:]} has more than {limit:,} bytes", rule="repository-size")
        return StoredFile(content, str(Multihash.sha3_256(content)))

    def put(self, path: str, content: bytes) -> None:
        """Writes a file as a whole, or not at all."""
        target = self._root / path
        with disk(target):
            durable.make_folder(target.parent)
            draft = target.with_name(f".staged-{secrets.token_hex(8)}")  # others may write the same file now
            with durable.writing(target, draft=draft) as opened:
                opened.write(content)

    def put_if(self, path: str, content: bytes, tag: str | None) -> bool:
        """Writes only over a file with this tag, or for ``None`` only if there is none; returns whether it did."""
        with self._alone():
            now = self.get(path, max(len(content), 1 << 20))
            if (None if now is None else now.tag) != tag:
                return False
            self.put(path, content)
        return True

    def check_conditions(self) -> None:
        """Does nothing, since this module enforces conditions itself."""

    @contextmanager
    def _alone(self) -> Iterator[None]:
        make_folder(self._root)
        with disk(self._root):
            opened = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(opened, fcntl.LOCK_EX)
                yield
            finally:
                os.close(opened)
