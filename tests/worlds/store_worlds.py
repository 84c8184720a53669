"""Stores under one contract, and chains to put into them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block
from chain.model.events import AddData, DatasetKind, Seed, SetInfo
from chain.multihash import Multihash
from chain.store.base import ChainStore, Head, ObjectStore
from chain.store.database import open_database
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from worlds.chains import following
from worlds.memory_store import MemoryChains, MemoryObjects


class World(NamedTuple):
    chains: ChainStore
    objects: ObjectStore


def memory(directory: Path) -> Iterator[World]:
    objects = MemoryObjects(directory)
    chains = MemoryChains(objects)
    yield World(chains, objects)
    chains.connection.close()


def sqlite(directory: Path) -> Iterator[World]:
    database = open_database(directory / "odfd.sqlite")
    objects = DiskObjects(directory / "objects", database)
    yield World(SqliteChains(database, objects), objects)
    database.close()


def dataset(number: int) -> DatasetId:
    return DatasetId.from_public_key(number.to_bytes(32, "big"))


def blocks(owner: DatasetId, count: int, after: Block | None = None, note: str = "") -> list[Block]:
    """The next blocks of a chain: a Seed, then every third a SetInfo among AddData; ``note`` makes them differ."""
    made: list[Block] = []
    last = after
    for _ in range(count):
        number = last.sequence_number + 1 if last else 0
        event: Seed | SetInfo | AddData
        if number == 0:
            event = Seed(dataset_id=owner, dataset_kind=DatasetKind.ROOT)
        elif number % 3 == 0:
            event = SetInfo(description=f"{note}{number}")
        else:
            event = AddData(new_watermark=Instant(number * 10**9 + len(note)))
        last = following(last, event, number * 10**6)
        made.append(last)
    return made


def head(block: Block | None) -> Head | None:
    return Head(block.hash, block.sequence_number) if block else None


MISSING = Multihash.sha3_256(b"nobody has this")
