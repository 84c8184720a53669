"""Declares how files of a repository are read and written: by ``Bucket``, ``SftpFiles`` and in part ``Folder``."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import NamedTuple, Protocol

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
