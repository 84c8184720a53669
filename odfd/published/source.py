"""Reads one published dataset: its signed state, its blocks and its objects.

A few new blocks are fetched one by one from the head backwards, as they are linked; more of them are staged in a folder
until they are adopted. Here blocks are only checked to have the requested hash; the caller checks rules, tree and
signatures. ADR 0009, 0012.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import trio

from chain.codec.blocks import MAX_BLOCK, decode_block
from chain.errors import Invalid, Remote
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements.card import Card
from chain.statements.statement import HeadStatement
from chain.store.files import disk
from chain.store.layout import BLOCKS, CHECKPOINTS, DATA, HEAD, DirectoryChain
from odfd.published.collection import CARD, check_card
from odfd.published.signed import MAX_STATEMENT, SIGNED_HEAD, authority_file, head_in
from odfd.published.staging import StagingQuota
from odfd.published.transport import Transport
from p2p.ports import FileMissing, FilePart

FEW_BYTES: Final = 64 << 20
STAGED: Final = 16
"""Folders of blocks kept for a continuation; the least recently used are evicted."""


class Edition(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset as last observed at its place."""

    root: str
    """``/ipfs/CID``, or a URL."""
    head: HeadStatement
    """The published head, not verified."""
    statements: tuple[bytes, ...]
    """Versions of the authority in their order, then the signed head."""
    card: bytes | None = None
    """Of the first of several shards: its signed card, which lists all."""
    lacks_card: bool = False
    """Whether it is the first of several shards, and nothing there lists them yet."""


class PublishedSource:
    """Reads one dataset in one place. ``staging``: a folder for incoming blocks."""

    def __init__(self, transport: Transport, staging: Path, room: StagingQuota) -> None:
        self._transport = transport
        self._staging = staging
        self._room = room
        self._room.add(staging)
        self._staged: dict[str, tuple[Multihash, int, DirectoryChain]] = {}
        """Staged blocks by dataset: the head, the number of the lowest block, and the chain."""
        self._coming: set[Path] = set()

    @property
    def few(self) -> int:
        return self._transport.few

    async def resolve(self, place: str, now: Instant) -> str:
        return await self._transport.resolve(place, now)

    async def edition(self, root: str, known: Edition | None = None) -> Edition:
        """Reads the signed state under a root; returns ``known`` when nothing is new.

        Raises Remote, also for an unsigned dataset, whose next head could not be distinguished from a lie. Raises
        Invalid for a malformed head.
        """
        if self._transport.is_fixed and known is not None and known.root == root:
            return known
        raw = await self._transport.files.cat(f"{root}/{SIGNED_HEAD}", MAX_STATEMENT)
        if raw is None:
            raise Remote(
                f"the dataset under {root} has no signature", rule="published-unsigned",
                hint=f"import it once, without a signature: odfctl import {as_written(root)}",
            )  # fmt: skip
        if known is not None and known.root == root and known.statements[-1] == raw and not known.lacks_card:
            return known
        head = head_in(raw, root)
        walk = [await self._statement(root, authority_file(version)) for version in range(1, head.authority + 1)]
        card, is_first = None, head.collection == head.dataset
        if is_first:
            card = await self._transport.files.cat(f"{root}/{CARD}", Card.MAX_ENVELOPE)
        if card is not None:
            check_card(card, head.dataset, root)
        lacks = is_first and card is None
        return Edition(root=root, head=head, statements=(*walk, raw), card=card, lacks_card=lacks)

    async def _statement(self, root: str, file: str) -> bytes:
        raw = await self._transport.files.cat(f"{root}/{file}", MAX_STATEMENT)
        if raw is None:
            raise Invalid(f"{root} has no {file}, which its head names", rule="published-tree")
        return raw

    async def file(self, root: str, path: str, limit: int) -> bytes | None:
        """Reads a small file under a root; ``None``: there is none. Raises Remote."""
        return await self._transport.files.cat(f"{root}/{path}", limit)

    async def dataset_at(self, place: str, now: Instant) -> DatasetId:
        """Returns the dataset published at a place, by its own statement. Raises Remote, Invalid."""
        return (await self.edition(await self.resolve(place, now))).head.dataset

    async def head_of(self, root: str) -> Multihash:
        """Returns the head of the dataset under a root. Raises Remote, Invalid for a folder that is not a dataset."""
        raw = await self._transport.files.cat(f"{root}/{HEAD}", MAX_STATEMENT)
        if raw is None:
            raise Invalid(
                f"{as_written(root)} is not a dataset: it has no {HEAD}", rule="layout-dataset",
                hint="name the folder that holds refs, blocks and data",
            )  # fmt: skip
        try:
            return Multihash.parse(raw.decode().strip())
        except (Invalid, UnicodeDecodeError) as error:
            raise Invalid(
                f"{HEAD} under {as_written(root)} does not hold a block's hash", rule="layout-head"
            ) from error

    async def last_blocks(self, root: str, head: Multihash, count: int) -> list[bytes] | None:
        """Returns the last ``count`` blocks, oldest first; ``None``: they are too large."""
        found: list[bytes] = []
        wanted: Multihash | None = head
        size = 0
        while len(found) < count:
            if wanted is None:
                raise Invalid(f"the chain under {root} is shorter than its head says", rule="published-tree")
            raw = await self._transport.files.cat(f"{root}/{BLOCKS}/{wanted}", MAX_BLOCK)
            if raw is None or Multihash.sha3_256(raw) != wanted:
                raise Invalid(f"{root} does not hold its block {wanted.short}", rule="published-tree")
            found.append(raw)
            size += len(raw)
            if size > FEW_BYTES:
                return None
            wanted = decode_block(raw).prev_block_hash
        return found[::-1]

    async def stage(
        self, key: str, root: str, head: Multihash, first: int = 0, *, is_mirrored: bool = True
    ) -> DirectoryChain:
        """Stages the blocks from ``head`` back to number ``first`` at least, in a local folder kept under ``key``.

        ``is_mirrored``: they count towards the quota of mirrors. Continues from blocks that are staged already.

        Raises Remote, Invalid, Environment.
        """
        known = self._staged.get(key)
        if known is not None and known[0] == head and known[1] <= first and self._folder(key).is_dir():
            self._room.use(self._folder(key))
            return known[2]
        folder = self._folder(key)
        await trio.to_thread.run_sync(_make_room, self._staging, self._coming | {folder}, self._room)
        self._coming.add(folder)
        try:
            take = partial(self._room.take, folder, is_mirrored=is_mirrored)
            await self._transport.bring_blocks(root, head, first, folder, take)
            await trio.to_thread.run_sync(_write_head, folder, str(head))
        finally:
            self._coming.discard(folder)
        chain = DirectoryChain(folder)
        self._staged[key] = (head, first, chain)
        return chain

    async def forget(self, key: str) -> None:
        self._staged.pop(key, None)
        await trio.to_thread.run_sync(self._room.remove, self._folder(key))

    def _folder(self, key: str) -> Path:
        return self._staging / str(Multihash.sha3_256(key.encode()))

    async def object_size(self, root: str, name: Multihash) -> int | None:
        for folder in (DATA, CHECKPOINTS):
            size = await self._transport.files.size_of(f"{root}/{folder}/{name}")
            if size is not None:
                return size
        return None

    @asynccontextmanager
    async def object_from(self, root: str, name: Multihash, offset: int) -> AsyncIterator[AsyncIterator[FilePart]]:
        """Yields the unchecked bytes of an object from ``offset`` on. Raises FileMissing."""
        try:
            async with self._open(root, (DATA, CHECKPOINTS), name, offset) as parts:
                yield parts
        except FileMissing as missing:  # the file that was asked for last is none that a person looks for
            raise FileMissing(
                f"{as_written(root)} does not hold the object {name.short}", rule=missing.rule
            ) from missing

    @asynccontextmanager
    async def _open(
        self, root: str, folders: tuple[str, ...], name: Multihash, offset: int
    ) -> AsyncIterator[AsyncIterator[FilePart]]:
        opened = False
        try:
            async with self._transport.files.open(f"{root}/{folders[0]}/{name}", offset) as parts:
                opened = True
                yield parts
            return
        except FileMissing:
            if opened or len(folders) == 1:
                raise
        async with self._open(root, folders[1:], name, offset) as parts:
            yield parts


def as_written(root: str) -> str:
    """Formats a root as users write it."""
    return root.replace("/ipfs/", "ipfs://") if root.startswith("/ipfs/") else root


def _make_room(staging: Path, kept: set[Path], room: StagingQuota) -> None:
    """Removes the oldest folders to make room for one more; those in ``kept`` stay."""
    if not staging.is_dir():
        return
    with disk(staging):
        oldest = sorted(staging.iterdir(), key=lambda each: each.stat().st_mtime)
    for folder in oldest[: max(0, len(oldest) + 1 - STAGED)]:
        if folder not in kept:
            room.remove(folder)


def _write_head(folder: Path, head: str) -> None:
    with disk(folder):
        (folder / HEAD).parent.mkdir(exist_ok=True)
        (folder / HEAD).write_text(head)
