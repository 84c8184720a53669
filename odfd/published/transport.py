"""Declares how places of one kind are read; ``odfd.ipfs.transport`` and ``odfd.published.web`` implement it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from chain.instant import Instant
from chain.multihash import Multihash
from p2p.ports import RemoteFiles


class Take(Protocol):
    """Reserves room before files are written. Raises Environment."""

    def __call__(self, size: int, files: int = 1, /) -> None: ...


class Transport(Protocol):
    """The interface to places. A place is a user's text, its root the current address of the files.

    All methods raise Remote, Invalid.
    """

    @property
    def files(self) -> RemoteFiles: ...

    @property
    def is_fixed(self) -> bool:
        """Whether the content under a root never changes."""

    @property
    def few(self) -> int:
        """The number of new blocks up to which single fetches cost less than ``bring_blocks``."""

    async def resolve(self, place: str, now: Instant, /) -> str: ...

    async def bring_blocks(self, root: str, head: Multihash, first: int, folder: Path, take: Take, /) -> None:
        """Fetches block files from ``head`` back to number ``first`` at least into ``folder/blocks``.

        Continues from blocks that are present. They may be torn or wrong; readers check them. ``take`` is called before
        any file is written. Also raises Environment, Refused.
        """
