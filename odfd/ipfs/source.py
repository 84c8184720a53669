"""Reads a dataset from IPFS: where a name points, what was signed of it, its blocks, its objects.

Of few new blocks each is asked for from the head backwards, as they are linked; of many the whole folder of blocks is
taken as one stream into a staging folder, which stays until the mirror has them. Here blocks are only checked to be
those that were asked for; rules, tree and signatures are for whoever asked. ADR 0009.
"""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from chain.codec.blocks import MAX_BLOCK, decode_block
from chain.errors import Environment, Invalid, Refused, Remote
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.statement import HeadStatement
from chain.store.layout import BLOCKS, CHECKPOINTS, DATA, HEAD, PARTS, DirectoryChain
from chain.store.objects import disk, make_folder
from odfd.errors import sole_fault
from odfd.ipfs.tree import SIGNED_HEAD, authority_file
from p2p.ipfs import names, record
from p2p.kubo.rpc import Ipfs

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

FEW: Final = 256
"""New blocks that are asked for one by one."""
FEW_BYTES: Final = 64 << 20
MAX_AUTHORITIES: Final = 256
"""Versions (trust.md section 1)."""
MAX_STATEMENT: Final = 64 << 10
MAX_HOPS: Final = 3
"""Names that point to names: the dataset's own to that of the node which writes while its key is offline."""
_IPFS, _IPNS = "/ipfs/", "/ipns/"
_CHECK_ROOM: Final = 64 << 20
_COPY: Final = 1 << 20
_LARGER: Final = "limits.object-bytes of the settings says how large a file may be"
_WAITING: Final = 16
"""Parts of a stream that wait for the disk."""


class Edition(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset as it is under one CID."""

    root: str
    """``/ipfs/CID``"""
    head: HeadStatement | None
    """As it says, not verified; ``None``: nobody signed it."""
    statements: tuple[bytes, ...] = ()
    """Versions of the authority in their order, then the signed head."""


def place_of(source: str) -> str | None:
    """``/ipfs/CID`` or ``/ipns/NAME`` of what a person wrote; ``None``: it is no such place. Raises Invalid."""
    for scheme, root in (("ipfs://", _IPFS), ("ipns://", _IPNS)):
        for start in (scheme, root):
            if source.startswith(start):
                return root + _checked(source.removeprefix(start).rstrip("/"), source)
    return None


def home_of(dataset: DatasetId) -> str:
    """Where the owner of a dataset publishes it."""
    return _IPNS + names.name_of(dataset)


def no_ipfs() -> Refused:
    """Why nothing can be done on IPFS where the settings name no Kubo."""
    return Refused(
        "this node has no IPFS", rule="ipfs-none",
        hint="run a Kubo beside it, and set [ipfs] api = 'http://127.0.0.1:5001' in the settings",
    )  # fmt: skip


def unsigned(root: str) -> Remote:
    """A dataset without a signed head cannot be a mirror's: nobody could tell its next head from a lie."""
    return Remote(
        f"nobody signed what is under {root}", rule="ipfs-unsigned",
        hint=f"take it once, as it is: odfctl import {root.replace(_IPFS, 'ipfs://')}",
    )  # fmt: skip


class Source:
    """See the module. ``staging``: a folder for streams of blocks; ``reserve``: bytes left free on its disk."""

    def __init__(self, ipfs: Ipfs, staging: Path, reserve: int = 0) -> None:
        self._ipfs = ipfs
        self._staging = staging
        self._reserve = reserve

    async def resolve(self, place: str, now: Instant) -> str:
        """``/ipfs/CID`` that a place stands for now. Raises Remote, Invalid for a record that is not the key's own."""
        for _ in range(MAX_HOPS):
            if place.startswith(_IPFS):
                return place
            name = place.removeprefix(_IPNS)
            whose = names.dataset_of(name)
            raw = await self._ipfs.record(name)
            if raw is None:
                raise Remote(
                    f"nothing is published under ipns://{name}", rule="ipns-unknown",
                    hint="its owner publishes with: odfctl ipfs publish REF",
                )  # fmt: skip
            pointer = record.unseal(raw, whose)
            if pointer.expires < now:
                raise Remote(
                    f"what ipns://{name} pointed to has expired", rule="ipns-expired",
                    hint="its owner's node renews it once it is online again",
                )  # fmt: skip
            found = place_of(pointer.value)
            if found is None:
                raise Invalid(f"ipns://{name} points to {pointer.value[:80]!r}, which is no folder", rule="ipns-value")
            place = found
        raise Invalid(f"more than {MAX_HOPS} names point to one another, the last is {place}", rule="ipns-value")

    async def edition(self, root: str) -> Edition:
        """What is signed under a CID. Raises Remote, Invalid for a head that is none."""
        raw = await self._ipfs.cat(f"{root}/{SIGNED_HEAD}", MAX_STATEMENT)
        if raw is None:
            return Edition(root=root, head=None)
        head = statement.decode_any(envelope.unseal(raw, statement.MAX_ANY).payload)
        if not isinstance(head, HeadStatement) or head.authority > MAX_AUTHORITIES:
            raise Invalid(f"{SIGNED_HEAD} under {root} is not a signed head", rule="ipfs-tree")
        walk = [await self._statement(root, authority_file(version)) for version in range(1, head.authority + 1)]
        return Edition(root=root, head=head, statements=(*walk, raw))

    async def _statement(self, root: str, file: str) -> bytes:
        raw = await self._ipfs.cat(f"{root}/{file}", MAX_STATEMENT)
        if raw is None:
            raise Invalid(f"{root} has no {file}, which its head names", rule="ipfs-tree")
        return raw

    async def dataset_at(self, place: str, now: Instant) -> DatasetId:
        """Whose dataset is published at a place, as it says. Raises Remote, Invalid."""
        root = await self.resolve(place, now)
        edition = await self.edition(root)
        if edition.head is None:
            raise unsigned(root)
        return edition.head.dataset

    async def head_of(self, root: str) -> Multihash:
        """Raises Remote, Invalid for a folder that is not a dataset."""
        raw = await self._ipfs.cat(f"{root}/{HEAD}", MAX_STATEMENT)
        if raw is None:
            raise Invalid(f"{root} is not a dataset: it has no {HEAD}", rule="layout-dataset")
        try:
            return Multihash.parse(raw.decode().strip())
        except UnicodeDecodeError as error:
            raise Invalid(f"{HEAD} under {root} does not hold a block's hash", rule="layout-head") from error

    async def last_blocks(self, root: str, head: Multihash, count: int) -> list[bytes] | None:
        """The last ``count`` blocks, oldest first; ``None``: they are too many bytes for that."""
        found: list[bytes] = []
        wanted: Multihash | None = head
        size = 0
        while len(found) < count:
            if wanted is None:
                raise Invalid(f"the chain under {root} is shorter than its head says", rule="ipfs-tree")
            raw = await self._ipfs.cat(f"{root}/{BLOCKS}/{wanted}", MAX_BLOCK)
            if raw is None or Multihash.sha3_256(raw) != wanted:
                raise Invalid(f"{root} does not hold its block {wanted.short}", rule="ipfs-tree")
            found.append(raw)
            size += len(raw)
            if size > FEW_BYTES:
                return None
            wanted = decode_block(raw).prev_block_hash
        return found[::-1]

    async def staged(self, root: str, head: Multihash) -> DirectoryChain:
        """All blocks under a CID, in a folder here. Taken once: a folder that is whole is used again."""
        folder = self._staging / root.removeprefix(_IPFS)
        if not await trio.to_thread.run_sync((folder / HEAD).is_file):
            await self.forget_staged()
            await self._take(f"{root}/{BLOCKS}", folder, MAX_BLOCK)
            await trio.to_thread.run_sync(_write_head, folder, str(head))
        return DirectoryChain(folder)

    async def forget_staged(self) -> None:
        await trio.to_thread.run_sync(partial(shutil.rmtree, self._staging, ignore_errors=True))

    async def take_all(self, root: str, folder: Path, file_bytes: int) -> None:
        """A whole dataset into a folder, unchecked. ``file_bytes``: of the largest file that is taken."""
        head = await self.head_of(root)
        await self._take(root, folder, file_bytes)
        await trio.to_thread.run_sync(_write_head, folder, str(head))

    async def _take(self, content: str, folder: Path, file_bytes: int) -> None:
        send, receive = trio.open_memory_channel[bytes](_WAITING)
        unpack = partial(self._unpack, io.BufferedReader(_Received(receive)), folder, file_bytes)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, unpack)
                async with send, self._ipfs.archive(content) as parts:
                    async for part in parts:
                        await send.send(part)
        except BaseExceptionGroup as group:
            fault = sole_fault(group)
            if fault is None:
                raise
            raise fault from group

    def _unpack(self, stream: io.BufferedReader, folder: Path, file_bytes: int) -> None:
        """Files named by a hash, as a tar stream gives them; what they hold is checked by whoever reads them."""
        for part in PARTS:
            make_folder(folder / part)
        unchecked = _CHECK_ROOM
        try:
            with disk(folder), tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    part, name = PurePosixPath(member.name).parts[-2:] if "/" in member.name else ("", "")
                    if not member.isfile() or part not in PARTS or not _is_hash(name):
                        continue
                    if member.size > (MAX_BLOCK if part == BLOCKS else file_bytes):
                        raise Refused(f"{part}/{name} has {member.size:,} bytes", rule="object-bytes", hint=_LARGER)
                    unchecked += member.size
                    if unchecked >= _CHECK_ROOM:
                        self._check_room(folder, member.size)
                        unchecked = 0
                    content = archive.extractfile(member)
                    assert content is not None
                    with (folder / part / name).open("wb") as file:
                        shutil.copyfileobj(content, file, _COPY)
        except (tarfile.TarError, ValueError) as error:
            # ValueError: what tarfile raises for sparse files whose map is no list of numbers.
            raise Remote(
                f"the Kubo gave a folder that ends too early or is none: {error}", rule="ipfs-answer"
            ) from error

    def _check_room(self, folder: Path, needed: int) -> None:
        free = shutil.disk_usage(folder).free
        if free < self._reserve + _CHECK_ROOM + needed:
            raise Environment(
                f"the disk has {free:,} bytes free", rule="disk-reserve",
                hint=f"free some space; limits.disk-reserve-bytes keeps {self._reserve:,} of it",
            )  # fmt: skip

    async def object_place(self, roots: Sequence[str], name: Multihash) -> tuple[str, int] | None:
        """Where an object lies, and how large it is as the daemon says."""
        for root in roots:
            for folder in (DATA, CHECKPOINTS):
                content = f"{root}/{folder}/{name}"
                size = await self._ipfs.size_of(content)
                if size is not None:
                    return content, size
        return None


class _Received(io.RawIOBase):
    """What comes through a channel, as a file that is read in a worker thread."""

    def __init__(self, receive: trio.MemoryReceiveChannel[bytes]) -> None:
        self._receive = receive
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        while not self._left:
            try:
                self._left = memoryview(trio.from_thread.run(self._receive.receive))
            except trio.EndOfChannel:
                return 0
        target = memoryview(buffer).cast("B")
        size = min(len(target), len(self._left))
        target[:size] = self._left[:size]
        self._left = self._left[size:]
        return size


def _write_head(folder: Path, head: str) -> None:
    """Last: a folder with a head is whole."""
    with disk(folder):
        (folder / HEAD).write_text(head)


def _is_hash(name: str) -> bool:
    try:
        Multihash.parse(name)
    except Invalid:
        return False
    return True


def _checked(name: str, source: str) -> str:
    if not name.isalnum() or len(name) > 128:
        raise Invalid(
            f"{source[:80]!r} is not a folder on IPFS", rule="ipfs-place", hint="like ipfs://bafy… or ipns://k51qzi5u…"
        )
    return name
