"""Publishes datasets to IPFS: adds changes since the last publication, then points the IPNS name to the result.

The Kubo daemon's own folder records the last publication: its head is written last, so an interrupted publication is
continued, and a daemon that lost everything gets everything. Added files lie among the daemon's own files (MFS), which
its collector keeps; blocks of an abandoned history go with the whole folder, which is then built anew. Nothing is sent
without a check of its hash. ADR 0009.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import trio

from chain import instant
from chain.errors import Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import SealedBlock
from chain.multihash import Multihash
from chain.state import load_state
from chain.statements.keys import SigningKey
from chain.store.layout import BLOCKS, HEAD
from chain.store.objects import sound_path
from chain.wording import plural
from odfd.published.signed import Signed, signed_state
from odfd.store.directory import StateDirectory
from odfd.transfer.object_list import NamedObjects
from odfd.verify.terms import pages_of
from p2p.ipfs import record
from p2p.ipfs.record import Pointer
from p2p.kubo.rpc import AddedFile, IpfsDaemon

HOME: Final = "/odfd"
"""Folder of published datasets in the daemon's own file system (MFS)."""
LIFETIME: Final = 7 * 86400 * instant.SECOND
"""Nanoseconds that a name resolves without a renewal of its record."""
TTL: Final = 60 * instant.SECOND
"""Nanoseconds that others may cache the target of a name."""
FILES: Final = 512
"""Files added at once, at most; and at most BYTES of them, unless one is larger."""
BYTES: Final = 32 << 20
_HEAD_LIMIT: Final = 200


def folder_of(dataset: DatasetId) -> str:
    return f"{HOME}/{dataset.multibase}"


def repository_folder(name: str) -> str:
    """Returns the folder of the repository with an IPNS name."""
    return f"{HOME}-repositories/{name}"


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset's contents on IPFS, with the counts of this publication."""

    dataset: DatasetId
    head: Multihash
    size: int
    """Number of all blocks."""
    root: str
    """CID of the folder."""
    name: str | None
    """The IPNS name that points to it, of the key that signed; ``None``: none of the dataset's keys is here."""
    blocks: int = 0
    objects: int = 0
    bytes: int = 0
    """Bytes of the objects that were added."""


class Publisher:
    """Publishes datasets of one node. The caller ensures one publication of a dataset at a time."""

    def __init__(self, ipfs: IpfsDaemon, home: StateDirectory) -> None:
        self._ipfs = ipfs
        self._database, self._chains, self._objects = home.database, home.chains, home.objects
        self._keys = home.keys

    async def publish(self, dataset: DatasetId, served: int, now: Instant) -> Publication:
        """Publishes a dataset; ``served``: blocks that the policy permits to publish.

        Raises Remote (the daemon), Refused, NotFound for an object that is not here, ObjectDamaged.
        """
        signed = await trio.to_thread.run_sync(self._goal, dataset, served)
        folder = folder_of(dataset)
        start = await self._count_published(dataset, folder, signed.size)
        done = Publication(dataset=dataset, head=signed.head, size=signed.size, root="", name=None)
        pages = self.pages(dataset, start, signed.size)
        while (page := await trio.to_thread.run_sync(next, pages, None)) is not None:
            done = await self.add(folder, page, done)
        for path, raw in (*signed.files, (HEAD, str(signed.head).encode())):
            await self._ipfs.replace(f"{folder}/{path}", raw)
        root = await self._ipfs.root_of(folder)
        if root is None:
            raise NotFound(f"{folder} was taken away from the Kubo just now", rule="ipfs-missing", hint="publish again")
        pointer = await self._point(dataset, f"/ipfs/{root}", now)
        return msgspec.structs.replace(done, root=root, name=pointer)

    async def put(self, dataset: DatasetId, raw: bytes) -> None:
        """Publishes a record of the dataset's own name that was signed elsewhere. Raises Remote."""
        await self._ipfs.put_record(record.name_of(dataset), raw)

    async def withdraw(self, dataset: DatasetId) -> None:
        """Removes the folder; the daemon's collector frees files that nothing else names. Raises Remote."""
        await self._ipfs.remove(folder_of(dataset))

    async def root(self, dataset: DatasetId) -> str | None:
        return await self._ipfs.root_of(folder_of(dataset))

    def key(self, dataset: DatasetId) -> SigningKey | None:
        """Returns the key that signs records: the dataset's, or the node's while that is offline; ``None``: neither."""
        if not self._keys.has_dataset_key(dataset):
            return None
        return self._keys.node_key() if self._keys.is_offline(dataset) else self._keys.dataset_key(dataset)

    def _goal(self, dataset: DatasetId, served: int) -> Signed:
        """Returns the newest signed state. Raises Refused if it is not here, or may not all be passed on."""
        goal = signed_state(self._database, self._chains, dataset)
        if not goal.is_here:
            raise Refused(
                f"the newest signed head of {dataset.short} is not here", rule="ipfs-behind", hint="odfctl pull"
            )
        if served < goal.size:
            raise Refused(
                f"{served} of {plural(goal.size, 'block')} of {dataset.short} may be passed on", rule="serve",
                hint="odfctl trust show tells why; policy.serve says what is needed",
            )  # fmt: skip
        return goal

    async def _count_published(self, dataset: DatasetId, folder: str, size: int) -> int:
        """Returns the number of blocks that are on IPFS already; removes the folder of another history."""
        raw = await self._ipfs.read(f"{folder}/{HEAD}", _HEAD_LIMIT)
        if raw is None:
            return 0
        number = await trio.to_thread.run_sync(self._number_of, dataset, raw)
        if number is not None and number < size:
            return number + 1
        await self._ipfs.remove(folder)
        return 0

    def _number_of(self, dataset: DatasetId, raw: bytes) -> int | None:
        try:
            head = Multihash.parse(raw.decode())
            return self._chains.chain(dataset).block_by_hash(head).sequence_number
        except (Invalid, NotFound, UnicodeDecodeError):
            return None

    def pages(self, dataset: DatasetId, start: int, stop: int) -> Iterator[list[PublishedFile]]:
        """Yields files to add, some at a time, with objects before the blocks that name them."""
        chain = self._chains.chain(dataset)
        named = NamedObjects(load_state(chain, start), self._objects)
        page: list[PublishedFile] = []
        size = 0
        for _, blocks in pages_of(chain, start, stop, FILES):
            for block in blocks:
                for file in self._files(named, block):
                    page.append(file)
                    size += file.size
                    if len(page) >= FILES or size >= BYTES:
                        yield page
                        page, size = [], 0
        if page:
            yield page

    def _files(self, named: NamedObjects, block: SealedBlock) -> Iterator[PublishedFile]:
        for folder, name, size in named.of_sealed(block):
            yield PublishedFile(folder, name, sound_path(self._objects, name), size)
        yield PublishedFile(BLOCKS, block.hash, block.raw, len(block.raw))

    async def add(self, folder: str, page: list[PublishedFile], done: Publication) -> Publication:
        """Adds files to a folder, and to ``done``. Raises Remote."""
        by_folder: dict[str, list[PublishedFile]] = {}
        for file in page:
            by_folder.setdefault(file.folder, []).append(file)
        for part, files in sorted(by_folder.items(), key=lambda item: item[0] == BLOCKS):
            await self._ipfs.add(f"{folder}/{part}", [AddedFile(str(file.name), file.content) for file in files])
        blocks = len(by_folder.get(BLOCKS, ()))
        return msgspec.structs.replace(
            done,
            blocks=done.blocks + blocks,
            objects=done.objects + len(page) - blocks,
            bytes=done.bytes + sum(file.size for file in page if file.folder != BLOCKS),
        )

    async def _point(self, dataset: DatasetId, value: str, now: Instant) -> str | None:
        key = await trio.to_thread.run_sync(self.key, dataset)
        if key is None:
            return None
        if self._keys.is_offline(dataset):
            await self._check_own_name(record.name_of(key.dataset_id))
        return await self.point(key, value, now)

    async def _check_own_name(self, name: str) -> None:
        """Raises Refused if the node's own name points to a repository, which would have no name then."""
        raw = await self._ipfs.root_of(repository_folder(name))
        if raw is not None:
            raise Refused(
                f"ipns://{name} is the name of a repository of this node",
                rule="ipns-name-taken",
                hint="the dataset's own key has to be here, or the repository has to go from the Kubo's files",
            )

    async def point(self, key: SigningKey, value: str, now: Instant) -> str:
        """Points the name of a key to ``/ipfs/CID``, and returns it. Raises Remote."""
        whose = key.dataset_id
        name = record.name_of(whose)
        raw = await self._ipfs.record(name)
        sequence = _next_sequence(raw, whose, value, now)
        pointer = Pointer(value=value, sequence=sequence, expires=Instant(now + LIFETIME), ttl=TTL)
        await self._ipfs.put_record(name, record.seal(pointer, key))
        return name


class PublishedFile(NamedTuple):
    """A block or an object that is added."""

    folder: str
    name: Multihash
    content: bytes | Path
    size: int


def _next_sequence(raw: bytes | None, whose: DatasetId, value: str, now: Instant) -> int:
    """Returns a sequence above the last record's, and above any that a node with a right clock signed and lost."""
    try:
        before = None if raw is None else record.unseal(raw, whose)
    except Invalid:
        before = None
    if before is not None and before.value == value:
        return before.sequence
    return max(0 if before is None else before.sequence + 1, now // instant.SECOND)
