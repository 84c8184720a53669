"""Declares how published files are read from ``/ipfs/CID/…`` or a URL. The caller verifies what it reads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

from chain.errors import Remote

FilePart: TypeAlias = bytes | memoryview
"""A part of a file: bytes, or a view of the memory in which a library received them."""
Content: TypeAlias = AbstractAsyncContextManager[AsyncIterator[FilePart]]
"""A context manager that yields the content of a file in parts, and gives its connection back at the end of the block.
"""


class FileMissing(Remote):
    """There is no such file."""


class RemoteFiles(Protocol):
    """Reads published files. All methods raise Remote if there is no valid answer."""

    async def size_of(self, content: str) -> int | None:
        """Returns the stated size of a file in bytes; ``None``: there is no such file."""

    async def cat(self, content: str, limit: int) -> bytes | None:
        """Reads a small file; ``None`` if there is none. Raises Remote if it has more than ``limit`` bytes."""

    def open(self, content: str, offset: int = 0) -> Content:
        """Opens a file from byte ``offset`` on. Raises FileMissing if there is no such file."""
