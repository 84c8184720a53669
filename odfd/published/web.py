"""Reads datasets from web servers: fetches blocks from the head backwards, as each names the one before.

Any server of the ODF layout over HTTP will do: kamu, a gateway of IPFS, an object store, a server of files. Where
packs lie beside it, the walk finds most blocks here already. What came stays in the staging folder, so a walk that was
cut off goes on there. Simple Transfer Protocol; ADR 0012, 0013.
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
from odfd.published.transport import Take
from p2p.files import Files

TOGETHER: Final = 128
"""Blocks written in one go; that many are lost at most by a crash, or come in vain where there is no room."""
TOGETHER_BYTES: Final = 8 << 20
"""And their bytes."""
WORTH_A_PACK: Final = 8
"""Blocks that are asked for of a pack; fewer come by name."""


class WebTransport:
    """The transport of datasets on the web. ``known``: returns a local block by its name."""

    is_fixed = False
    few = 16

    def __init__(self, files: Files, known: Callable[[Multihash], bytes | None]) -> None:
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
    """Puts known blocks beside the staged ones, from ``head`` back to the first.

    Returns the first block that is nowhere here. Blocking. Raises as ``read_link`` and ``disk`` do.
    """
    walk = _Walk(head, 0, folder / BLOCKS, known, take)
    lacking = walk.lacking()
    walk.keep()
    return lacking


class _Packs:
    """Those of one dataset on a site, each asked for once; no more when there is none, or what is there is none."""

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self._root = root
        self._asked: set[int] = set()
        self._has_none = False

    async def get(self, number: int) -> list[bytes]:
        """Blocks, which may be any."""
        if self._has_none or number in self._asked:
            return []
        self._asked.add(number)
        try:
            raw = await self._files.cat(f"{self._root}/{pack_file(number)}", MAX_PACK)
            blocks = read_pack(raw or b"")
        except (Remote, Invalid):  # object stores answer so for what is not there
            blocks = []
        self._has_none = not blocks
        return blocks


class _Walk:
    """From a head backwards, through what is here and what comes."""

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
        """The next block that is nowhere here; ``None``: the walk is over. Blocks known elsewhere are put beside."""
        while (name := self._next) is not None:
            raw = self._staged(name)
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
        """Returns where the next block is packed, if enough that is asked for would be with it."""
        if self._number is None:
            return None
        wanted = self._number - 1
        number = wanted // PACK
        return number if wanted - max(self._first, number * PACK) >= WORTH_A_PACK else None

    def lay(self, blocks: Sequence[bytes]) -> None:
        """Blocks beside those that came, by their hashes; whether they are of the chain the walk will see."""
        self._waiting += [(Multihash.sha3_256(raw), raw) for raw in blocks]
        self._bytes += sum(map(len, blocks))
        self.keep()

    def take(self, name: Multihash, raw: bytes) -> bool:
        """Takes what came for ``name``. Returns whether so much waits that it should be kept. Raises Invalid."""
        if Multihash.sha3_256(raw) != name:
            raise Invalid(f"what was given for block {name.short} is another", rule="block-hash")
        self._waiting.append((name, raw))
        self._bytes += len(raw)
        self._step(raw)
        return self._is_full

    def keep(self) -> None:
        """Raises Environment."""
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

    def _staged(self, name: Multihash) -> bytes | None:
        """A torn file is fetched again."""
        file = self._folder / str(name)
        try:
            with file.open("rb") as opened:
                raw = opened.read(MAX_BLOCK + 1)
        except FileNotFoundError:
            return None
        return raw if Multihash.sha3_256(raw) == name else None

    def _step(self, raw: bytes) -> None:
        """To the block before. Raises Invalid for numbers that do not go down one by one: a walk has an end."""
        link = read_link(raw)
        if self._number is not None and link.sequence_number != self._number - 1:
            raise Invalid(
                f"block #{link.sequence_number} stands before #{self._number}", rule="sequence-number",
                place=link.hash.short,
            )  # fmt: skip
        self._number = link.sequence_number
        self._next = link.prev_block_hash if link.sequence_number > self._first else None
