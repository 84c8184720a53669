"""Publishes datasets to IPFS: adds changes since the last publication, then points the IPNS name to the result.

The Kubo daemon's own folder records the last publication: its head is written last, so an interrupted publication is
continued, and a daemon that lost everything gets everything. Added files lie among the daemon's own files (MFS), which
its collector keeps; blocks of an abandoned history go with the whole folder, which is then built anew. Nothing is sent
without a check of its hash. ADR 9.

A repository on IPFS is one folder of the node's Kubo, to which the node's own IPNS name points. Only this node can sign
its name, so nobody else pushes there, and pushes of this node follow one another. The name moves last, so a reader sees
the former folder until then. ADR 9.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import trio

from chain import instant
from chain.errors import Invalid, NotFound, Refused, Remote
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import SealedBlock
from chain.multihash import Multihash
from chain.state import load_state
from chain.statements.keys import SigningKey
from chain.store.layout import BLOCKS, HEAD
from chain.store.objects import sound_path
from chain.wording import plural
from odfd.published.signed import SignedState, signed_state
from odfd.repositories.files import ConditionalFiles, StoredFile
from odfd.repositories.manifest import IPNS
from odfd.repositories.push import continues
from odfd.store.directory import StateDirectory
from odfd.store.keys.keystore import KeyStore
from odfd.transfer.folders import Missing, Transfer
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

    def _goal(self, dataset: DatasetId, served: int) -> SignedState:
        """Returns the newest signed state. Raises Refused if it is not here, or may not all be passed on."""
        goal = signed_state(self._database, self._chains, dataset)
        if not goal.is_here:
            raise Refused(
                f"the newest signed head of {dataset.short} is not here", rule="ipfs-behind", hint="odfctl pull"
            )
        if served < goal.size:
            raise Refused(
                f"{served} of {plural(goal.size, 'block')} of {dataset.short} may be passed on", rule="serve",
                hint="odfctl trust show says why; policy.serve has the required facts",
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


RENEW: Final = 12 * 3600 * instant.SECOND
"""Age at which a record is signed again."""
_MAX_REF: Final = 256


class ShelfPlace(NamedTuple):
    """The place of a dataset in a repository: ``/ipns/NAME``, the dataset's name, and the repository's for messages."""

    root: str
    dataset: str
    repository: str


class NameRecord(NamedTuple):
    """The record that this node signed for its name; ``None``: there is none that counts."""

    expires: Instant | None
    renews: Instant | None
    """The time from which it is to be signed again, long before it expires: other nodes drop it after two days."""

    def is_due(self, now: Instant) -> bool:
        return self.renews is None or self.renews <= now


class RepositoryPublisher:
    """Pushes datasets to the repository under the node's own IPNS name, one at a time."""

    def __init__(self, ipfs: IpfsDaemon, publisher: Publisher, keys: KeyStore) -> None:
        self._ipfs, self._publisher, self._keys = ipfs, publisher, keys
        self._turn = trio.Lock()

    async def push(
        self, missing: Missing, signed: SignedState, place: ShelfPlace, now: Instant, sent: Callable[[int], None]
    ) -> Transfer:
        """Adds what the repository lacks, then points the name to it, which also renews the name's record.

        Raises Refused for the name of another key; Conflict if another history is there; Remote of the Kubo.
        """
        async with self._turn, self._point(place, now) as folder:
            return await self._add(missing, signed, f"{folder}/{place.dataset}", place, sent)

    async def read(self, place: ShelfPlace, file: str, limit: int) -> bytes | None:
        """Reads a file of a dataset as it was pushed, whether or not the name points to it yet. Raises as ``push``."""
        return await self._ipfs.read(f"{(await self._own(place))[1]}/{place.dataset}/{file}", limit)

    async def write(self, place: ShelfPlace, now: Instant, work: Callable[[ConditionalFiles], None]) -> None:
        """Lets ``work`` write files of the repository in a worker thread, then points the name to them.

        Raises as ``push``, and whatever ``work`` raises.
        """
        async with self._turn, self._point(place, now) as folder:
            await trio.to_thread.run_sync(work, _MfsFiles(place.repository, self._ipfs, folder))

    async def _own(self, place: ShelfPlace) -> tuple[SigningKey, str]:
        """Returns the key that signs for a repository, and its folder. Raises Refused for the name of another key."""
        key = await trio.to_thread.run_sync(self._keys.node_key)
        own = record.name_of(key.dataset_id)
        if place.root != IPNS + own:
            raise Refused(
                f"this node cannot sign for {place.root}",
                rule="ipns-key",
                hint=f"its own name is ipns://{own}: odfctl repo add NAME ipns://{own}",
            )
        return key, repository_folder(own)

    @asynccontextmanager
    async def _point(self, place: ShelfPlace, now: Instant) -> AsyncIterator[str]:
        """Yields the folder of a repository; afterwards the name points to what is in it."""
        key, folder = await self._own(place)
        await self._check_name(record.name_of(key.dataset_id), now)
        yield folder
        root = await self._ipfs.root_of(folder)
        if root is None:
            raise NotFound(f"{folder} was taken away from the Kubo just now", rule="ipfs-missing", hint="push again")
        await self._publisher.point(key, f"/ipfs/{root}", now)

    async def record(self, root: str) -> NameRecord | None:
        """Returns the record of the name ``/ipns/NAME``; ``None``: the name is another key's, or none of a repository
        that was pushed to. Raises Remote of the Kubo."""
        key = await trio.to_thread.run_sync(self._keys.node_key)
        own = record.name_of(key.dataset_id)
        if root != IPNS + own or await self._ipfs.root_of(repository_folder(own)) is None:
            return None
        pointer = await self._pointer(own)
        if pointer is None:
            return NameRecord(None, None)
        return NameRecord(pointer.expires, Instant(pointer.expires - LIFETIME + RENEW))

    async def renew(self, root: str, now: Instant) -> None:
        """Signs the record of the name again, if that is due; it keeps its target. Raises Remote of the Kubo."""
        async with self._turn:
            found = await self.record(root)
            if found is None or not found.is_due(now):
                return
            key = await trio.to_thread.run_sync(self._keys.node_key)
            own = record.name_of(key.dataset_id)
            pointer = await self._pointer(own)
            # A push that was interrupted has added to the folder, and not moved the name.
            target = f"/ipfs/{await self._ipfs.root_of(repository_folder(own))}" if pointer is None else pointer.value
            await self._publisher.point(key, target, now)

    async def _pointer(self, own: str) -> Pointer | None:
        raw = await self._ipfs.record(own)
        try:
            return None if raw is None else record.unseal(raw, record.dataset_of(own))
        except Invalid:
            return None

    async def _check_name(self, own: str, now: Instant) -> None:
        """Raises Refused if the node's name points to one dataset, which a key that is kept offline delegated to it."""
        raw = await self._ipfs.record(own)
        if raw is None or await self._ipfs.root_of(repository_folder(own)) is not None:
            return
        try:
            pointer = record.unseal(raw, record.dataset_of(own))
        except Invalid:
            return
        if pointer.expires > now and await self._ipfs.cat(f"{pointer.value}/{HEAD}", _MAX_REF) is not None:
            raise Refused(
                f"ipns://{own} points to a dataset whose own key is offline",
                rule="ipns-name-taken",
                hint="a name points to one folder: withdraw that dataset (odfctl ipfs), or push from another node",
            )

    async def _add(
        self, missing: Missing, signed: SignedState, folder: str, place: ShelfPlace, sent: Callable[[int], None]
    ) -> Transfer:
        dataset, head = missing.dataset, missing.head
        there = await self._ipfs.read(f"{folder}/{HEAD}", _MAX_REF)
        start = 0 if there is None else await trio.to_thread.run_sync(self._continue, missing, there, folder, place)
        done = Publication(dataset=dataset, head=head.hash, size=head.size, root="", name=None)
        pages = self._publisher.pages(dataset, start, head.size)
        while (page := await trio.to_thread.run_sync(next, pages, None)) is not None:
            done = await self._publisher.add(folder, page, done)
            sent(sum(file.size for file in page))
        if start < head.size:
            await self._ipfs.replace(f"{folder}/{HEAD}", str(head.hash).encode())
        for path, raw in signed.files if signed.is_here else ():
            await self._ipfs.replace(f"{folder}/{path}", raw)
        return Transfer(dataset=dataset, head=head.hash, blocks=done.blocks, objects=done.objects, bytes=done.bytes)

    def _continue(self, missing: Missing, there: bytes, folder: str, place: ShelfPlace) -> int:
        try:
            head = Multihash.parse(there.decode("ascii"))
        except (Invalid, UnicodeDecodeError):
            raise Remote(f"{HEAD} of {folder} in the Kubo is no hash", rule="layout-head") from None
        files = _MfsFiles(place.repository, self._ipfs, folder.rpartition("/")[0])
        return continues(missing.chain, missing.head, head, files, place.dataset)


class _MfsFiles:
    """Reads and writes files of a repository in the Kubo, from a worker thread of trio. Only this node writes there."""

    def __init__(self, name: str, ipfs: IpfsDaemon, folder: str) -> None:
        self.name, self._ipfs, self._folder = name, ipfs, folder

    def get(self, path: str, limit: int) -> StoredFile | None:
        raw = trio.from_thread.run(self._ipfs.read, f"{self._folder}/{path}", limit)
        return None if raw is None else StoredFile(raw, "")

    def put_if(self, path: str, content: bytes, _: str | None) -> bool:
        trio.from_thread.run(self._ipfs.replace, f"{self._folder}/{path}", content)
        return True

    def check_conditions(self) -> None:
        """Nobody else writes: pushes of this node follow one another."""
