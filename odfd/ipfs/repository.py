"""Pushes datasets into a repository on IPFS: one folder of the node's Kubo, to which the node's own IPNS name points.

Only this node can sign its name, so nobody else pushes there, and pushes of this node follow one another. The name
moves last, so a reader sees the former folder until then. ADR 69.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import trio

from chain import instant
from chain.errors import Invalid, NotFound, Refused, Remote
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from chain.store.layout import HEAD
from odfd.ipfs.publishing import LIFETIME, Publication, Publisher, repository_folder
from odfd.published.signed import Signed
from odfd.repositories.manifest import IPNS
from odfd.repositories.port import ConditionalFiles, StoredFile
from odfd.repositories.push import continues
from odfd.store.keys.keystore import KeyStore
from odfd.transfer.folders import Missing, Transfer
from p2p.ipfs import record
from p2p.ipfs.record import Pointer
from p2p.kubo.rpc import IpfsDaemon

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
        self, missing: Missing, signed: Signed, place: ShelfPlace, now: Instant, sent: Callable[[int], None]
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
                hint="a name points to one place: withdraw that dataset (odfctl ipfs), or push from another node",
            )

    async def _add(
        self, missing: Missing, signed: Signed, folder: str, place: ShelfPlace, sent: Callable[[int], None]
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
