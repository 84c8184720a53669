"""Reads datasets from web servers: fetches blocks from the head backwards, as each names the one before.

Any server of the ODF layout over HTTP will do: kamu, a gateway of IPFS, an object store, a server of files. If there
are packs, most blocks are fetched through them. Blocks stay in the staging folder, so an interrupted walk continues
from there. Simple Transfer Protocol; ADR 9.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import trio

from chain.codec.blocks import MAX_BLOCK, read_link
from chain.errors import Invalid, Remote
from chain.instant import Instant
from chain.multihash import Multihash
from chain.store.files import disk
from chain.store.layout import BLOCKS
from odfd.published.packs import MAX_PACK, PACK, pack_file, read_pack
from odfd.published.source import Take
from p2p.ports import RemoteFiles

TOGETHER: Final = 128
"""Blocks written at once; a crash loses at most as many, and as many are fetched in vain if there is no room."""
TOGETHER_BYTES: Final = 8 << 20
"""Bytes of blocks written at once."""
WORTH_A_PACK: Final = 8
"""Fewest blocks for which a pack is fetched; fewer are fetched by name."""


class WebTransport:
    """The transport of datasets on the web. ``known``: returns a local block by its hash."""

    is_fixed = False
    few = 16

    def __init__(self, files: RemoteFiles, known: Callable[[Multihash], bytes | None]) -> None:
        self.files = files
        self._known = known

    async def resolve(self, place: str, _now: Instant) -> str:
        return place

    async def bring_blocks(self, root: str, head: Multihash, first: int, folder: Path, take: Take) -> None:
        walk = _Walk(head, first, folder / BLOCKS, self._known, take)
        packs = _Packs(self.files, root)
        while (name := await trio.to_thread.run_sync(walk.lacking)) is not None:
            if (number := walk.pack) is not None and (blocks := await packs.get(number)):
                await trio.to_thread.run_sync(walk.lay, blocks)
                continue
            raw = await self.files.cat(f"{root}/{BLOCKS}/{name}", MAX_BLOCK)
            if raw is None:
                raise Invalid(f"{root} does not hold its block {name.short}", rule="published-tree")
            if walk.take(name, raw):
                await trio.to_thread.run_sync(walk.keep)
        await trio.to_thread.run_sync(walk.keep)


def link(head: Multihash, folder: Path, known: Callable[[Multihash], bytes | None], take: Take) -> Multihash | None:
    """Stages known blocks, from ``head`` back to the first.

    Returns the first block that is nowhere here. Blocking. Raises as ``read_link`` and ``disk`` do.
    """
    walk = _Walk(head, 0, folder / BLOCKS, known, take)
    lacking = walk.lacking()
    walk.keep()
    return lacking


class _Packs:
    """The packs of one dataset on a site, each fetched once; none after one was missing or malformed."""

    def __init__(self, files: RemoteFiles, root: str) -> None:
        self._files = files
        self._root = root
        self._asked: set[int] = set()
        self._has_none = False

    async def get(self, number: int) -> list[bytes]:
        """Returns the unchecked blocks of a pack; none if it is missing, malformed or was fetched before."""
        if self._has_none or number in self._asked:
            return []
        self._asked.add(number)
        try:
            raw = await self._files.cat(f"{self._root}/{pack_file(number)}", MAX_PACK)
            blocks = read_pack(raw or b"")
        except (Remote, Invalid):  # object stores answer like this for missing files
            blocks = []
        self._has_none = not blocks
        return blocks


class _Walk:
    """Walks from a head backwards, through local blocks and those that are fetched."""

    def __init__(
        self, head: Multihash, first: int, folder: Path, known: Callable[[Multihash], bytes | None], take: Take
    ) -> None:
        self._next: Multihash | None = head
        self._number: int | None = None
        self._first = first
        self._folder = folder
        self._known = known
        self._take = take
        self._waiting: list[tuple[Multihash, bytes]] = []
        self._bytes = 0

    def lacking(self) -> Multihash | None:
        """Returns the next block that is nowhere here; ``None`` at the end. Blocks known elsewhere are staged."""
        while (name := self._next) is not None:
            raw = self._find_staged(name)
            if raw is None and (raw := self._known(name)) is not None:
                self._waiting.append((name, raw))
                self._bytes += len(raw)
            if raw is None:
                return name
            self._step(raw)
            if self._is_full:
                self.keep()
        return None

    @property
    def pack(self) -> int | None:
        """The number of the pack of the next block, if enough of the wanted blocks are in it; else ``None``."""
        if self._number is None:
            return None
        wanted = self._number - 1
        number = wanted // PACK
        return number if wanted - max(self._first, number * PACK) >= WORTH_A_PACK else None

    def lay(self, blocks: Sequence[bytes]) -> None:
        """Stages unchecked blocks by their hashes; the walk uses those of the chain."""
        self._waiting += [(Multihash.sha3_256(raw), raw) for raw in blocks]
        self._bytes += sum(map(len, blocks))
        self.keep()

    def take(self, name: Multihash, raw: bytes) -> bool:
        """Adds the fetched block ``name``. Returns whether enough wait to be written. Raises Invalid for another."""
        if Multihash.sha3_256(raw) != name:
            raise Invalid(f"what was given for block {name.short} is another", rule="block-hash")
        self._waiting.append((name, raw))
        self._bytes += len(raw)
        self._step(raw)
        return self._is_full

    def keep(self) -> None:
        """Writes the waiting blocks. Raises Environment."""
        self._take(self._bytes, len(self._waiting))
        with disk(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            for name, raw in self._waiting:
                (self._folder / str(name)).write_bytes(raw)
        self._waiting.clear()
        self._bytes = 0

    @property
    def _is_full(self) -> bool:
        return len(self._waiting) >= TOGETHER or self._bytes >= TOGETHER_BYTES

    def _find_staged(self, name: Multihash) -> bytes | None:
        """Returns a staged block; ``None`` if it is missing or torn, and so fetched again."""
        file = self._folder / str(name)
        try:
            with file.open("rb") as opened:
                raw = opened.read(MAX_BLOCK + 1)
        except FileNotFoundError:
            return None
        return raw if Multihash.sha3_256(raw) == name else None

    def _step(self, raw: bytes) -> None:
        """Steps to the block before. Raises Invalid unless numbers go down one by one, so that a walk ends."""
        link = read_link(raw)
        if self._number is not None and link.sequence_number != self._number - 1:
            raise Invalid(
                f"block #{link.sequence_number} is before #{self._number}", rule="sequence-number",
                place=link.hash.short,
            )  # fmt: skip
        self._number = link.sequence_number
        self._next = link.prev_block_hash if link.sequence_number > self._first else None
