"""Reads datasets from IPFS: resolves names, and fetches blocks as one stream of their folder. ADR 9."""

from __future__ import annotations

import io
import shutil
import tarfile
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

import trio

from chain.codec.blocks import MAX_BLOCK
from chain.errors import Invalid, Refused, Remote
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.store.files import disk, make_folder
from chain.store.layout import BLOCKS, read_head
from odfd.errors import sole_faults
from odfd.published.source import Take
from p2p.ipfs import record
from p2p.kubo.rpc import IpfsDaemon
from p2p.ports import FilePart

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_HOPS: Final = 3
"""Names that point to names: the dataset's own to that of the node which writes while the dataset's key is offline."""
_IPFS, _IPNS = "/ipfs/", "/ipns/"
_COPY: Final = 1 << 20
_WAITING: Final = 16
"""Parts of a stream that wait for the disk."""


def place_of(source: str) -> str | None:
    """Parses ``/ipfs/CID`` or ``/ipns/NAME``, or a URL of both; ``None`` for other text. Raises Invalid."""
    kinds = (("ipfs://", _IPFS, record.check_cid), ("ipns://", _IPNS, record.check_key_name))
    for scheme, root, check in kinds:
        for start in (scheme, root):
            if source.startswith(start):
                name = source.removeprefix(start).rstrip("/")
                check(name)
                return root + name
    return None


def home_of(dataset: DatasetId) -> str:
    """Returns the place where the owner of a dataset publishes it."""
    return _IPNS + record.name_of(dataset)


def no_ipfs() -> Refused:
    """Returns the fault for IPFS operations if the settings name no Kubo."""
    return Refused(
        "this node has no IPFS", rule="ipfs-none",
        hint="run a Kubo beside it, and set [ipfs] api = 'http://127.0.0.1:5001' in the settings",
    )  # fmt: skip


class IpfsTransport:
    """Fetches datasets from IPFS."""

    is_fixed = True
    few = 256

    def __init__(self, ipfs: IpfsDaemon) -> None:
        self.files = ipfs

    async def resolve(self, place: str, now: Instant) -> str:
        """Resolves a place, or a folder below it, to ``/ipfs/CID``.

        Raises Remote, Invalid for a record not signed by its key.
        """
        for _ in range(MAX_HOPS):
            if place.startswith(_IPFS):
                return place
            name, _, below = place.removeprefix(_IPNS).partition("/")
            whose = record.dataset_of(name)
            raw = await self.files.record(name)
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
            place = f"{found}/{below}" if below else found
        raise Invalid(f"more than {MAX_HOPS} names point to one another, the last is {place}", rule="ipns-value")

    async def bring_blocks(self, root: str, head: Multihash, _first: int, folder: Path, take: Take) -> None:
        """Fetches all blocks, as one stream costs less than many requests. A complete folder stays unchanged."""
        if await trio.to_thread.run_sync(read_head, folder) == head:
            return
        send, receive = trio.open_memory_channel[FilePart](_WAITING)
        unpack = partial(self._unpack, io.BufferedReader(_Received(receive)), folder / BLOCKS, take)
        with sole_faults():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, unpack)
                async with send, self.files.archive(f"{root}/{BLOCKS}") as parts:
                    async for part in parts:
                        await send.send(part)

    def _unpack(self, stream: io.BufferedReader, folder: Path, take: Take) -> None:
        """Writes the files of a tar stream that are named by a hash into a folder. Raises Refused, Remote."""
        make_folder(folder)
        try:
            with disk(folder), tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    name = PurePosixPath(member.name).name
                    if not member.isfile() or not _is_hash(name):
                        continue
                    if member.size > MAX_BLOCK:
                        raise Refused(
                            f"block {name} has {member.size:,} bytes, and {MAX_BLOCK:,} are allowed", rule="block-size"
                        )
                    before = _size_of(folder / name)
                    take(member.size - (before or 0), 1 if before is None else 0)
                    content = archive.extractfile(member)
                    assert content is not None
                    with (folder / name).open("wb") as file:
                        shutil.copyfileobj(content, file, _COPY)
        except (tarfile.TarError, ValueError) as error:
            # tarfile raises ValueError for sparse files whose map is no list of numbers.
            raise Remote(f"the Kubo returned an incomplete or invalid folder: {error}", rule="ipfs-answer") from error


class _Received(io.RawIOBase):
    """The bytes of a channel, as a file that is read in a worker thread."""

    def __init__(self, receive: trio.MemoryReceiveChannel[FilePart]) -> None:
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


def _size_of(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return None


def _is_hash(name: str) -> bool:
    try:
        Multihash.parse(name)
    except Invalid:
        return False
    return True
