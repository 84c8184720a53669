"""Reads a dataset of ODF 0.18 from a folder, as kamu kept it in 2021, and verifies its chain.

A repository had ``meta/blocks``, ``meta/refs/head`` and ``data`` for each dataset; a workspace had blocks and
references in one folder. Both are read. Files of blocks, and of the rows that they wrote, are named by the block's
hash.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from chain.codec.former_blocks import MAX_BLOCK, RULE, FormerBlock, read_block
from chain.errors import Invalid, NotFound
from chain.store.files import disk

MAX_BLOCKS: Final = 100_000
_HEAD: Final = "refs/head"
_PLACES: Final = ("meta", "")
_HASH: Final = re.compile(r"[0-9a-f]{64}\s*\Z")
_MAX_REF: Final = 256


def former_head(folder: Path) -> str | None:
    """Returns the hash of the last block; ``None`` for a folder that holds no dataset of ODF 0.18."""
    found = _meta(folder)
    return None if found is None else found[1]


def _meta(folder: Path) -> tuple[Path, str] | None:
    for place in _PLACES:
        file = folder / place / _HEAD
        with disk(file):
            if not file.is_file():
                continue
            with file.open("rb") as opened:
                text = opened.read(_MAX_REF).decode("ascii", "replace")
            if _HASH.match(text):
                return folder / place, text.strip()
    return None


class FormerChain:
    """A chain of ODF 0.18 whose blocks, hashes and links were verified when it was made."""

    def __init__(self, folder: Path) -> None:
        """Walks and verifies the chain. Raises NotFound without one, or if a block is missing; Invalid. Blocking."""
        found = _meta(folder)
        if found is None:
            raise NotFound(f"{folder} holds no dataset of ODF 0.18", rule=RULE, hint="name the folder above refs/head")
        self._folder, (self._meta, self.head) = folder, found
        self.names: Sequence[str] = self._walk()

    def _walk(self) -> list[str]:
        """Returns the hashes of all blocks, the first one first, walking back from the head."""
        names: list[str] = []
        later: FormerBlock | None = None
        name: str | None = self.head
        while name is not None:
            block = self.block(name)
            if later is not None and later.system_time <= block.system_time:
                raise _to_broken(later, "is not later than the block before it")
            if len(names) == MAX_BLOCKS:
                raise Invalid(f"{self._folder} has more than {MAX_BLOCKS:,} blocks", rule=RULE)
            names.append(name)
            later, name = block, block.previous
        return names[::-1]

    def block(self, name: str) -> FormerBlock:
        """Reads and verifies a block. Raises NotFound, Invalid."""
        file = self._meta / "blocks" / name
        if not file.is_file():
            raise NotFound(f"block {name[:16]}… is missing in {self._folder}", rule=RULE, hint="is all of it there?")
        with disk(file), file.open("rb") as opened:
            raw = opened.read(MAX_BLOCK + 1)
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise Invalid(f"{file} is no text", rule=RULE) from error
        block = read_block(text, str(file))
        if block.hash != name:
            raise Invalid(f"{file} holds block {block.hash[:16]}…", rule="former-hash", hint="it was renamed")
        return block

    def blocks(self) -> Iterator[FormerBlock]:
        """Yields all blocks, the first one first."""
        return map(self.block, self.names)

    def rows(self, block: FormerBlock) -> Path:
        """Returns the file of the rows that a block wrote. Raises NotFound."""
        file = self._folder / "data" / block.hash
        if not file.is_file():
            raise NotFound(
                f"the rows of block {block.hash[:16]}… are missing: {file}",
                rule="former-data",
                hint="put the folder `data` of the dataset beside its blocks",
            )
        return file


def _to_broken(block: FormerBlock, what: str) -> Invalid:
    return Invalid(f"block {block.hash[:16]}… {what}", rule="former-chain", hint="the chain was not written by kamu")
