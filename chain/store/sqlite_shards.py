"""Keeps shards in a node's own store: head and upper are compared and set in the commit of the blocks."""

from __future__ import annotations

from collections.abc import Sequence

from chain.errors import Conflict
from chain.ids import DatasetId
from chain.model.block import objects_of
from chain.store import uppers
from chain.store.base import Append, UpperMove
from chain.store.database import Database
from chain.store.shards import Proposal, Reading, Shard, View
from chain.store.sqlite import SqliteChains, snapshot_of


class SqliteShards:
    """A ShardStore on the node's database. Safe to use from any thread."""

    def __init__(self, database: Database, chains: SqliteChains) -> None:
        self._database = database
        self._chains = chains

    def read(self, datasets: Sequence[DatasetId]) -> Reading:
        with self._database.read() as connection:
            found = [snapshot_of(connection, each) for each in datasets]
            shards = [
                Shard(None if snapshot is None else snapshot.head, uppers.upper_of(connection, each))
                for each, snapshot in zip(datasets, found, strict=True)
            ]
        views = {
            each: View(shard, self._chains.chain(each).block_at) for each, shard in zip(datasets, shards, strict=True)
        }
        return Reading(views, None)

    def write(self, reading: Reading, changes: Sequence[tuple[Proposal, Shard]]) -> bool:
        try:
            self._chains.commit([_append(each, reading.views[each.dataset].shard, new) for each, new in changes])
        except Conflict:
            return False
        return True


def _append(proposal: Proposal, old: Shard, new: Shard) -> Append:
    named = [name for block in proposal.blocks for name, _ in objects_of(block)]
    return Append(
        dataset=proposal.dataset,
        expected=old.head,
        blocks=proposal.blocks,
        objects=list(dict.fromkeys(named)),
        upper=UpperMove(old.upper, new.upper),
    )
