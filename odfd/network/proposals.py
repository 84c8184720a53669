"""Commits to datasets of other nodes: makes blocks on the copy that is here, and proposes them to the commit point.

A node that the authority of a dataset names as a writer may ingest into it without its key. It plans on its mirror, as
the owner does on its chain. If the owner's head is another one by then, it waits for the mirror and plans again.
Nothing is written to the copy here: the blocks come back by replication, signed by the owner. Spec:
docs/spec/collections.md#proposed-ingests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import trio

from chain.errors import Conflict, Fault, Refused, Remote
from chain.ids import DatasetId
from chain.instant import Instant, to_millis
from chain.model.block import objects_of
from chain.model.events import MetadataEvent
from chain.multihash import Multihash
from chain.state import load_state
from chain.store.base import ChainStore, Head
from chain.store.database import Database
from chain.store.objects import DiskObjects
from chain.store.shards import STANDS, Gap, Outcome, Proposal, ShardSealed
from engines.contract import RowCounts
from odfd.datasets import pushes
from odfd.datasets.commit import CommitExtras
from odfd.ingest.sharded_writes import divided
from odfd.trust.signing.owner_commit import author_blocks
from p2p.driver.proposals import ReadPiece
from p2p.errors import StreamBroken, TooSlow
from p2p.ports import PeerId

Propose = Callable[[PeerId, Sequence[Proposal], ReadPiece], Awaitable[Sequence[Outcome]]]
NOT_HERE: Final = "propose-writer"
"""Rule of a node that does not have the key of the dataset, or does not know its writer yet."""


class WrittenShards(NamedTuple):
    """The chains that are written together, and the columns that decide the shard of a row."""

    chains: Sequence[DatasetId]
    by: Sequence[str] = ()


class ProposingCommitter:
    """A ``Committer`` for datasets whose commit point is at another node."""

    def __init__(
        self,
        chains: ChainStore,
        objects: DiskObjects,
        database: Database,
        shards: Callable[[DatasetId], WrittenShards],
        owners: Callable[[DatasetId], Sequence[PeerId]],
        propose: Propose,
        follow: Callable[[DatasetId, Head | None], Awaitable[None]],
    ) -> None:
        """``shards`` and ``owners`` (nodes that publish a dataset) are called in worker threads.

        ``follow`` brings the copy here up to the owner's, up to a head if it is known, or gives up after a while.
        """
        self._chains, self._objects, self._database = chains, objects, database
        self._shards, self._owners, self._propose, self._follow = shards, owners, propose, follow

    async def commit(
        self,
        dataset: DatasetId,
        expected_head: Head | None,
        events: Sequence[MetadataEvent],
        objects: Sequence[Multihash],
        system_time: Instant,
        rows: RowCounts | None = None,  # noqa: ARG002  counts are kept where the commit point is
        along: CommitExtras = CommitExtras(),  # noqa: B008  it is frozen
    ) -> Head:
        """Proposes the transaction. Raises Conflict if the owner's head or frontier is another one, Refused, Remote."""
        if along.beside is not None:
            raise Refused(
                "records that cannot be read go to a dataset of the owner's",
                rule="propose-quarantine",
                hint="ingest at the owner, or leave out onError in the manifest",
            )
        said = (dataset, expected_head, events, system_time)
        proposals = await trio.to_thread.run_sync(self._proposals, *said)
        named = {name for each in proposals for block in each.blocks for name, _ in objects_of(block)}
        with self._objects.holds.hold({*named, *objects}):
            outcomes = await self._proposed(dataset, proposals)
        if not all(isinstance(each, STANDS) for each in outcomes):
            await self._follow(dataset, None)
            raise _not_taken(dataset, outcomes)
        head = _head_after(proposals[0], outcomes[0])
        await self._follow(dataset, head)
        if along.push is not None:
            await trio.to_thread.run_sync(self._keep, dataset, along.push, head)
        return head

    async def note_rows(
        self,
        dataset: DatasetId,
        head: Head,
        rows: RowCounts,
        along: CommitExtras = CommitExtras(),  # noqa: B008
    ) -> None:
        """Does nothing: the row counts of a dataset are kept where its commit point is."""

    def _keep(self, dataset: DatasetId, push: pushes.Push, head: Head) -> None:
        with self._database.write() as connection:
            pushes.keep(connection, dataset, push, head.sequence_number)

    def _proposals(
        self, dataset: DatasetId, expected: Head | None, events: Sequence[MetadataEvent], time: Instant
    ) -> list[Proposal]:
        """Builds the part of each shard. Raises Conflict if the copy here moved, Invalid (a rule)."""
        chains, by = self._shards(dataset)
        states = [load_state(self._chains.chain(each)) for each in chains]
        if expected is None or (states[0].head, states[0].sequence_number) != (
            expected.hash,
            expected.sequence_number,
        ):
            raise Conflict(f"the copy of {dataset.short} here moved", rule="head-moved", hint="do it again")
        owns = [tuple(events)]
        if len(chains) > 1:
            owns = [own for own, _ in divided(self._objects, states, by, events)]
        end = to_millis(time) + 1
        return [
            Proposal(dataset=each, blocks=author_blocks(state, own, time), new_upper=end)
            for each, state, own in zip(chains, states, owns, strict=True)
        ]

    async def _proposed(self, dataset: DatasetId, proposals: Sequence[Proposal]) -> Sequence[Outcome]:
        """Proposes to the first owner that answers. Raises Remote, and what the last one refuses."""
        fault: Fault = Remote(
            f"no node that publishes {dataset.short} is connected",
            rule="propose-owner",
            hint="odfctl peer list; ingest when its owner can be reached",
        )
        for peer in await trio.to_thread.run_sync(self._owners, dataset):
            try:
                return await self._asked(peer, proposals)
            except Refused as refused:
                if refused.rule != NOT_HERE:
                    raise
                fault = refused
            except Remote as unreachable:
                fault = unreachable
        raise fault

    async def _asked(self, peer: PeerId, proposals: Sequence[Proposal]) -> Sequence[Outcome]:
        """Proposes, once more if the answer was lost: what was taken already is the same then."""
        try:
            return await self._propose(peer, proposals, self._objects.read)
        except (StreamBroken, TooSlow):
            return await self._propose(peer, proposals, self._objects.read)


def _not_taken(dataset: DatasetId, outcomes: Sequence[Outcome]) -> Fault:
    if any(isinstance(each, ShardSealed) for each in outcomes):
        return Refused(
            f"{dataset.short} is sealed: it takes nothing more",
            rule="shard-sealed",
            hint="its collection goes on as another rendition: odfctl describe shows which",
        )
    if any(isinstance(each, Gap) for each in outcomes):
        return Refused(
            f"{dataset.short} follows a reclocking chain, which alone says what comes next",
            rule="propose-chain",
            hint="odfctl reclock NAME --at REPOSITORY --chain ID",
        )
    return Conflict(f"others wrote to {dataset.short} meanwhile", rule="head-moved", hint="do it again")


def _head_after(proposal: Proposal, outcome: Outcome) -> Head:
    """Returns the head of the first shard after a transaction that stands."""
    if proposal.blocks:
        last = proposal.blocks[-1]
        return Head(last.hash, last.sequence_number)
    assert outcome.shard.head is not None, "a dataset that is here has a Seed"
    return outcome.shard.head
