"""Frontiers of shards move without blocks, never back, all or none; and commits keep what they promise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from chain.codec.blocks import encode_block
from chain.errors import Conflict, Invalid
from chain.ids import DatasetId
from chain.instant import from_millis
from chain.model.block import Block, MetadataBlock
from chain.model.events import DatasetKind, Seed, SetInfo
from chain.store.base import Append, Head
from chain.store.database import open_database
from chain.store.objects import DiskObjects
from chain.store.shards import SEALED
from chain.store.sqlite import SqliteChains
from chain.store.sqlite_shards import SqliteShards

D, K = (DatasetId.from_public_key(bytes([number]) * 32) for number in (1, 2))


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[tuple[SqliteChains, SqliteShards]]:
    database = open_database(tmp_path / "odfd.sqlite")
    chains = SqliteChains(database, DiskObjects(tmp_path / "objects", database))
    chains.commit([Append(dataset=each, expected=None, blocks=[seed(each)]) for each in (D, K)])
    yield chains, SqliteShards(database, chains)
    database.close()


def block(time: int, after: Block | None, event: Any) -> Block:
    number = 0 if after is None else after.sequence_number + 1
    before = None if after is None else after.hash
    return encode_block(
        MetadataBlock(system_time=from_millis(time), prev_block_hash=before, sequence_number=number, event=event)
    )


def seed(dataset: DatasetId) -> Block:
    return block(10, None, Seed(dataset_id=dataset, dataset_kind=DatasetKind.ROOT))


def appended(dataset: DatasetId, time: int) -> Append:
    """A second block of a chain."""
    first = seed(dataset)
    made = block(time, first, SetInfo(description="later"))
    return Append(dataset=dataset, expected=Head(first.hash, 0), blocks=[made])


def uppers(chains: SqliteChains) -> list[int]:
    return [chains.upper(each) for each in (D, K)]


def test_a_frontier_moves_and_never_back(kept: tuple[SqliteChains, SqliteShards]) -> None:
    chains, shards = kept
    assert uppers(chains) == [10, 10], "without a promise another block may have the last one's time"
    shards.advance([D], 30)
    shards.advance([D, K], 20)
    assert uppers(chains) == [30, 20]
    shards.advance([D], SEALED)
    shards.advance([D], 40)
    assert uppers(chains) == [SEALED, 20]
    for bad in (-1, SEALED + 1):
        with pytest.raises(Invalid, match="is no time"):
            shards.advance([D, K], bad)


def test_commits_keep_what_was_promised(kept: tuple[SqliteChains, SqliteShards]) -> None:
    chains, shards = kept
    shards.advance([D], 30)
    with pytest.raises(Conflict, match="complete"):
        chains.commit([appended(K, 40), appended(D, 20)])
    assert uppers(chains) == [30, 10], "none of both"
    chains.commit([appended(D, 35)])
    assert uppers(chains) == [35, 10]


def test_who_is_overtaken_between_reading_and_writing_begins_anew(
    kept: tuple[SqliteChains, SqliteShards], monkeypatch: pytest.MonkeyPatch
) -> None:
    chains, shards = kept
    read, late = shards.read, [appended(D, 20)]

    def overtaken(datasets: Sequence[DatasetId]) -> Any:
        found = read(datasets)
        if late:
            chains.commit([late.pop()])
        return found

    monkeypatch.setattr(shards, "read", overtaken)
    shards.advance([K, D], 30)
    assert uppers(chains) == [30, 30]
    head = chains.chain(D).head()
    assert head is not None
    assert head.sequence_number == 1
