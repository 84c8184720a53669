"""Reads one published dataset: its signed state, its blocks and its objects.

A few new blocks are fetched one by one from the head backwards, as they are linked; more of them are staged in a folder
until they are adopted. Here blocks are only checked to have the requested hash; the caller checks rules, tree and
signatures. ADR 9.

A place gives blocks and objects as a holder among peers does. What it gives is checked by the same sinks as that of
peers, so that mirrors notice no difference.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

import msgspec
import trio

from chain.codec.blocks import MAX_BLOCK, decode_block
from chain.errors import Invalid, NotFound, Remote
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements.card import Card
from chain.statements.statement import HeadStatement
from chain.statements.tree import Frontier
from chain.store.files import disk
from chain.store.layout import BLOCKS, CHECKPOINTS, DATA, HEAD, DirectoryChain
from odfd.published.signed import CARD, MAX_STATEMENT, SIGNED_HEAD, authority_file, check_card, head_in
from odfd.published.staging import StagingQuota
from p2p.pace import Pace
from p2p.ports import ChainSink, FileMissing, FilePart, ObjectSink, PeerId, RemoteFiles, TreeRoot
from p2p.web.client import pace_parts


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


BATCH: Final = 1024
"""Blocks passed to a sink at once."""
WRITE: Final = 1 << 20
"""Bytes passed to a sink at once; a place that breaks off after fewer is not used for now."""


class PublishedPlace:
    """The last observed state of a place. ``forget`` is called when it proves wrong."""

    def __init__(
        self,
        place: str,
        source: PublishedSource,
        root: str,
        edition: Edition | None,
        forget: Callable[[PeerId], object],
    ) -> None:
        self.source = source
        self.root = root
        self.edition = edition
        self.peer = PeerId(place)
        """Represents the place among peers; no peer can have this id."""
        self.answers = edition is not None
        """Whether it answered the last request; otherwise it is not listed among peers."""
        self._forget = forget

    def chain_size(self, dataset: DatasetId) -> int:
        edition = self._edition_of(dataset)
        return 0 if edition is None else edition.head.size

    async def object_size(self, name: Multihash) -> int | None:
        return await self.source.object_size(self.root, name)

    async def fetch_blocks(self, dataset: DatasetId, start: int, max_bytes: int) -> Sequence[bytes]:
        edition = self._edition_of(dataset)
        if edition is None:
            return []
        chain = await self._stage(edition, start)

        def read() -> list[bytes]:
            blocks: list[bytes] = []
            room = max_bytes
            for raw in chain.raw_blocks(start, edition.head.size):
                room -= len(raw)
                if blocks and room < 0:
                    break
                blocks.append(raw)
            return blocks

        try:
            return await trio.to_thread.run_sync(read)
        except (Invalid, NotFound) as fault:
            raise Remote(f"{as_written(self.root)}: {fault.message}", rule=fault.rule) from fault

    async def pull_chain(self, dataset: DatasetId, size: int, sink: ChainSink, pace: Pace) -> None:
        edition = self._edition_of(dataset)
        if edition is None:
            raise Remote(f"{dataset.short} is not known to be at {as_written(self.root)}", rule="no-peer")
        try:
            await self._fill(edition, size, sink, pace)
        except Invalid as fault:
            raise await self._disown(edition, fault) from fault

    async def prove_prefix(self, dataset: DatasetId, old: TreeRoot, signed: TreeRoot) -> bool:
        edition = self._edition_of(dataset)
        if edition is None:
            return False
        chain = await self._stage(edition, 0)

        def holds() -> bool:
            leaves = (Multihash.sha3_256(raw).digest for raw in chain.raw_blocks(0, signed.size))
            tree = Frontier().extend(islice(leaves, old.size))
            return tree.root == old.root and tree.extend(leaves).root == signed.root

        return await trio.to_thread.run_sync(holds)

    async def fetch_object(self, name: Multihash, size: int, sink: ObjectSink, pace: Pace) -> None:
        """Fetches an object, again after each interruption if at least ``WRITE`` bytes came since the last one."""
        while True:
            before = sink.received
            try:
                await self._fetch_rest(name, size, sink, pace)
                break
            except Remote:
                if sink.received < before + WRITE:
                    raise
        try:
            await trio.to_thread.run_sync(sink.finish)
        except Invalid as fault:
            raise Remote(f"{as_written(self.root)} sent wrong bytes: {fault.message}", rule=fault.rule) from fault

    def _edition_of(self, dataset: DatasetId) -> Edition | None:
        edition = self.edition
        return edition if edition is not None and edition.head.dataset == dataset else None

    async def _stage(self, edition: Edition, first: int) -> DirectoryChain:
        head = edition.head
        try:
            return await self.source.stage(head.dataset.multibase, edition.root, head.head, first)
        except Invalid as fault:
            raise await self._disown(edition, fault) from fault

    async def _disown(self, edition: Edition, fault: Invalid) -> Remote:
        self._forget(self.peer)
        await self.source.forget(edition.head.dataset.multibase)
        return Remote(
            f"what is published under {as_written(edition.root)} is not valid: {fault.message}", rule=fault.rule,
            hint="its owner has to publish it again, or the server sends false data",
        )  # fmt: skip

    async def _fill(self, edition: Edition, size: int, sink: ChainSink, pace: Pace) -> None:
        start, whole = sink.size, edition.head.size
        if whole - start <= self.source.few:
            few = await self.source.last_blocks(edition.root, edition.head.head, whole - start)
            if few is not None:
                pace.take(sum(map(len, few)), trio.current_time())
                await trio.to_thread.run_sync(sink.append, self.peer, start, few[: size - start])
                await trio.to_thread.run_sync(sink.finish)
                return
        chain = await self._stage(edition, start)

        def show() -> int:
            raws, count = chain.raw_blocks(start, size), 0
            while page := list(islice(raws, BATCH)):
                sink.append(self.peer, sink.size, page)
                count += sum(map(len, page))
            sink.finish()
            return count

        # The blocks came in one piece, for which later transfers have to wait.
        pace.take(await trio.to_thread.run_sync(show), trio.current_time())
        if size == whole:
            await self.source.forget(edition.head.dataset.multibase)

    async def _fetch_rest(self, name: Multihash, size: int, sink: ObjectSink, pace: Pace) -> None:
        if sink.received == size:
            return
        at = as_written(self.root)
        waiting = bytearray()
        async with (
            self.source.object_from(self.root, name, sink.received) as parts,
            aclosing(pace_parts(parts, pace)) as slowed,
        ):
            try:
                async for part in slowed:
                    # Sizes that a server states are hints (test_a_web_server_that_lies_achieves_nothing).
                    if sink.received + len(waiting) + len(part) > size:
                        raise Remote(f"{at} gives more of {name.short} than it has", rule="object-size")
                    if not waiting and len(part) >= WRITE:  # as those of buckets are: they are not copied again
                        await trio.to_thread.run_sync(sink.write, part)
                        continue
                    waiting += part
                    if len(waiting) >= WRITE:
                        await trio.to_thread.run_sync(sink.write, bytes(waiting))
                        waiting.clear()
            finally:
                with trio.CancelScope(shield=True):
                    # What came stays for the next attempt, also if this one is cancelled.
                    if sink.received + len(waiting) <= size:
                        await trio.to_thread.run_sync(sink.write, bytes(waiting))
        if sink.received < size:
            raise Remote(f"{at} ended in the middle of {name.short}", rule="object-size")
