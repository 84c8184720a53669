"""Accepts other writers' proposals for this node's datasets, and lets this node propose to the datasets of others.

A node may propose if its key may write the dataset by the dataset's authority. Objects that are missing here are
fetched before the blocks that name them; then compare-and-append decides, in the transaction that stores and signs.
Spec: docs/spec/collections.md#propose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

import trio

from chain.errors import Conflict, Invalid, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import objects_of
from chain.multihash import Multihash
from chain.store.database import Database
from chain.store.objects import DiskObjects
from chain.store.shards import CommitPoint, Outcome, Proposal, Reading, Shard, ShardStore, check_proposal
from chain.store.sqlite import SqliteChains
from chain.store.sqlite_shards import SqliteShards
from odfd.runtime.filesystem import check_room
from odfd.trust.keys.keystore import KeyStore
from odfd.trust.ledger.authorities import Authorities
from odfd.trust.signing.owner_commit import OwnerCommitter
from odfd.trust.signing.proposed_blocks import ProposedBlocks
from p2p.driver.proposals import Fetch
from p2p.identity import did_of_peer
from p2p.ports import PeerId

MAX_OBJECTS_BYTES: Final = 4 << 30
"""Bytes of all objects of one proposal."""
MayPropose = Callable[[PeerId, DatasetId], bool]
"""Whether a peer may append to a shard. Called in worker threads."""


class OwnedShards(SqliteShards):
    """The shards of a node's own datasets: appended blocks are checked like an author's, added to the tree, signed."""

    def __init__(self, database: Database, chains: SqliteChains, committer: OwnerCommitter) -> None:
        super().__init__(database, chains)
        self._committer = committer

    def write(self, reading: Reading, changes: Sequence[tuple[Proposal, Shard]]) -> bool:
        """Appends the changes; returns whether they were. Raises Invalid for a block that breaks a rule."""
        with_blocks = [(each, new) for each, new in changes if each.blocks]
        if not with_blocks:
            return super().write(reading, changes)
        parts = [
            ProposedBlocks(each.dataset, reading.views[each.dataset].shard, new.upper, each.blocks, each.objects)
            for each, new in changes
        ]
        try:
            self._committer.commit_proposed_now(parts)
        except Conflict:
            return False
        return True


class Authorised:
    """Decides who may propose: writers that a dataset's authority names, if the dataset's key is here."""

    def __init__(
        self,
        database: Database,
        keys: KeyStore,
        now: Callable[[], Instant],
        first_of: Callable[[DatasetId], DatasetId] = lambda dataset: dataset,
    ) -> None:
        """``first_of``: the chain whose authority counts, which is the first of several shards."""
        self._database, self._keys, self._now, self._first_of = database, keys, now, first_of

    def __call__(self, peer: PeerId, dataset: DatasetId) -> bool:
        if not self._keys.has_dataset_key(dataset):
            return False
        with self._database.read() as connection:
            rights = Authorities(connection).rights(self._first_of(dataset))
        return rights.may_write(did_of_peer(peer), self._now())


class SeveralShards(Protocol):
    """The port that checks proposals for shards that are written together. Synchronous."""

    def check_whole(self, proposals: Sequence[Proposal]) -> None:
        """Raises Refused for a part of the shards; before objects are fetched."""

    def check_rows(self, proposals: Sequence[Proposal]) -> None:
        """Raises Refused for rows in a wrong shard; the objects are here."""


class ServedCommitPoint:
    """A ``CommitPointPort`` over a store."""

    def __init__(
        self,
        store: ShardStore,
        objects: DiskObjects,
        may: MayPropose,
        reserve: int = 0,
        several: SeveralShards | None = None,
    ) -> None:
        """``several``: checks for datasets of several shards; ``None``: there are none."""
        self._point, self._objects, self._may, self._reserve = CommitPoint(store), objects, may, reserve
        self._several = several

    async def shards(self, peer: PeerId, datasets: Sequence[DatasetId]) -> Sequence[Shard]:
        """Raises Refused."""
        await trio.to_thread.run_sync(self._check, peer, datasets)
        return [await trio.to_thread.run_sync(self._point.shard, each) for each in datasets]

    async def append(self, peer: PeerId, proposals: Sequence[Proposal], fetch: Fetch) -> Sequence[Outcome]:
        """Raises Refused, Invalid, Conflict, Environment, PeerFault."""
        named = {name for each in proposals for name in (each.dataset, each.follows) if name is not None}
        await trio.to_thread.run_sync(self._check, peer, list(named))
        for each in proposals:
            check_proposal(each)
        if self._several is not None:
            await trio.to_thread.run_sync(self._several.check_whole, proposals)
        sizes = {name: size for each in proposals for block in each.blocks for name, size in objects_of(block)}
        if sum(sizes.values()) > MAX_OBJECTS_BYTES:
            raise Refused(f"objects of more than {MAX_OBJECTS_BYTES:,} bytes", rule="propose-size")
        with self._objects.holds.hold(sizes):
            for name, size in sizes.items():
                if not await trio.to_thread.run_sync(self._objects.has, name):
                    await self._bring(name, size, fetch)
            if self._several is not None:
                await trio.to_thread.run_sync(self._several.check_rows, proposals)
            return await trio.to_thread.run_sync(self._point.append, proposals)

    def _check(self, peer: PeerId, datasets: Sequence[DatasetId]) -> None:
        for each in datasets:
            if not self._may(peer, each):
                raise Refused(
                    f"{did_of_peer(peer)} may not append to {each.short} here",
                    rule="propose-writer",
                    hint="odfctl trust authority add-writer, at the node that owns it",
                )

    async def _bring(self, name: Multihash, size: int, fetch: Fetch) -> None:
        """Raises Invalid for bytes of another hash."""
        path = await trio.to_thread.run_sync(self._objects.stage)
        await trio.to_thread.run_sync(check_room, path.parent, self._reserve, size, "a proposal's object is to come")
        try:
            async with await trio.open_file(path, "wb") as file:
                async for piece in fetch(name, size):
                    await file.write(piece)
            found = await trio.to_thread.run_sync(self._objects.add_file, path)
        finally:
            await trio.to_thread.run_sync(partial(path.unlink, missing_ok=True))
        if found != name:
            raise Invalid(f"object {name.short} came as {found.short}", rule="object-hash", hint="propose it again")
