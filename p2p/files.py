"""Declares how published files are read from ``/ipfs/CID/…`` or a URL. The caller verifies what it reads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

from chain.errors import Remote

Content: TypeAlias = AbstractAsyncContextManager[AsyncIterator[bytes]]
"""What a file holds, in parts; connections are given back at the end of the block."""


class Missing(Remote):
    """There is no such file."""


class Files(Protocol):
    """Reads published files. All raise Remote when there is no valid answer."""

    async def size_of(self, content: str) -> int | None:
        """Returns the stated size of a file in bytes; ``None``: there is no such file."""

    async def cat(self, content: str, limit: int) -> bytes | None:
        """A small file, ``None`` when there is none. Raises Remote for one of more than ``limit`` bytes."""

    def open(self, content: str, offset: int = 0) -> Content:
        """A file from ``offset`` on. Raises Missing."""
