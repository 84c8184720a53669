"""Writes to a store in a process that dies at a named step.

Every run tries to bring the store to the same end (two chains of three blocks, a large and a small object, one row of
another room), in two commits, from wherever it finds it. ``STEP`` is ``NAME:n``, the n-th time that step is reached;
``none`` runs to the end.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from chain.codec.blocks import encode_block
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block, MetadataBlock
from chain.model.events import DatasetKind, Seed, SetInfo
from chain.store.base import Append, Head
from chain.store.database import open_database
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from odfd.store.directory import StateLock

DATASETS = [DatasetId.from_public_key(bytes([n]) * 32) for n in (1, 2)]
LARGE, SMALL = b"large" * 50_000, b"small"


def chain_of(dataset: DatasetId) -> list[Block]:
    made: list[Block] = []
    for number in range(3):
        event = SetInfo(description=f"{number}") if number else Seed(dataset_id=dataset, dataset_kind=DatasetKind.ROOT)
        prev = made[-1].hash if made else None
        content = MetadataBlock(system_time=Instant(number), prev_block_hash=prev, sequence_number=number, event=event)
        made.append(encode_block(content))
    return made


def main(directory: Path, step: str) -> None:
    name, _, count = step.partition(":")
    left = int(count or 0)

    def reached(now: str) -> None:
        nonlocal left
        if now == name:
            left -= 1
            if left == 0:
                os._exit(9)

    with StateLock(directory):
        database = open_database(directory / "odfd.sqlite")
        database.migrate("notes", ["CREATE TABLE notes (size INTEGER PRIMARY KEY)"])
        objects = DiskObjects(directory / "objects", database, reached)
        write(SqliteChains(database, objects, reached), objects)
        database.close()


def write(chains: SqliteChains, objects: DiskObjects) -> None:
    staged = objects.stage()
    staged.write_bytes(LARGE)
    names = [objects.add_file(staged), objects.add_bytes(SMALL)]
    for size in (1, 3):
        appends = []
        for dataset in DATASETS:
            head = chains.chain(dataset).head()
            kept = head.size if head else 0
            if kept < size:
                blocks = chain_of(dataset)[kept:size]
                expected = Head(head.hash, head.sequence_number) if head else None
                appends.append(Append(dataset=dataset, expected=expected, blocks=blocks, objects=names))

        def note(connection: sqlite3.Connection, size: int = size) -> None:
            connection.execute("INSERT INTO notes VALUES (?)", (size,))

        if appends:
            chains.commit(appends, note)
