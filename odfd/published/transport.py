"""Declares how places of one kind are read; ``odfd.ipfs.transport`` and ``odfd.published.web`` implement it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from chain.instant import Instant
from chain.multihash import Multihash
from p2p.files import Files


class Take(Protocol):
    """Asked for room before files are written. Raises Environment."""

    def __call__(self, size: int, files: int = 1, /) -> None: ...


class Transport(Protocol):
    """A way to read places.

    A place is what a person wrote, its root where the files lie now. All raise Remote, Invalid.
    """

    @property
    def files(self) -> Files: ...

    @property
    def is_fixed(self) -> bool:
        """Whether what lies under a root never changes."""

    @property
    def few(self) -> int:
        """New blocks that are asked for one by one: more cost less by ``bring_blocks``."""

    async def resolve(self, place: str, now: Instant, /) -> str: ...

    async def bring_blocks(self, root: str, head: Multihash, first: int, folder: Path, take: Take, /) -> None:
        """The block files from ``head`` back to number ``first`` at least, into ``folder/blocks``, goes on with what
        lies there. Blocks there may be torn or others; whoever reads them checks. ``take`` is asked before any of them
        is written. Also raises Environment, Refused.
        """
