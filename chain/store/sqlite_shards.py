"""Reads shards of a node's own store at one moment, and moves their frontiers without blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from chain.errors import Conflict, Invalid
from chain.ids import DatasetId
from chain.store import uppers
from chain.store.base import Append, UpperMove
from chain.store.database import Database
from chain.store.shards import SEALED, Shard, View
from chain.store.sqlite import SqliteChains, snapshot_of

ATTEMPTS: Final = 32
"""Most restarts after a concurrent write; each time another writer made progress."""


class SqliteShards:
    """The shards in the node's database. Safe to use from any thread."""

    def __init__(self, database: Database, chains: SqliteChains) -> None:
        self._database = database
        self._chains = chains

    def read(self, datasets: Sequence[DatasetId]) -> Mapping[DatasetId, View]:
        with self._database.read() as connection:
            found = {
                dataset: (snapshot_of(connection, dataset), uppers.upper_of(connection, dataset))
                for dataset in datasets
            }
        return {
            each: View(Shard(None if snapshot is None else snapshot.head, upper), self._chains.chain(each).block_at)
            for each, (snapshot, upper) in found.items()
        }

    def advance(self, datasets: Sequence[DatasetId], until: int) -> None:
        """Moves the frontiers of shards to a time in whole milliseconds, all or none; one that is further stays.

        Raises Invalid for what is no time, Conflict after ATTEMPTS concurrent writes.
        """
        if not 0 <= until <= SEALED:
            raise Invalid(f"upper {until} is no time", rule="append-upper")
        for _ in range(ATTEMPTS):
            shards = {each: view.shard for each, view in self.read(datasets).items() if view.shard.upper < until}
            moves = [
                Append(dataset=each, expected=shard.head, blocks=(), upper=UpperMove(shard.upper, until))
                for each, shard in shards.items()
            ]
            try:
                return self._chains.commit(moves) if moves else None
            except Conflict:
                continue
        raise Conflict("others write to these shards without end", rule="compare-and-append", hint="try again")
