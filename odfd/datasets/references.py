"""Which blocks name which objects: what a collector may free, and for whose sake an object may be passed on.

Kept in the transaction that appends the blocks; what rows of their slices link to, right after it and before the
objects count as whole. An object may be named by several chains.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Final

from chain.ids import DatasetId
from chain.model.block import Block, SealedBlock, objects_of
from chain.multihash import Multihash

ROOM: Final = "references"
STEPS: Final = (
    """
    CREATE TABLE object_references (
        object BLOB NOT NULL,
        dataset BLOB NOT NULL,
        sequence INTEGER NOT NULL,
        PRIMARY KEY (object, dataset)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX object_references_dataset ON object_references (dataset);
    """,
)
"""Tables, as the steps that made them; steps are added at the end and never changed."""
_KEEP: Final = "INSERT OR IGNORE INTO object_references (object, dataset, sequence) VALUES (?, ?, ?)"


def keep_references(connection: sqlite3.Connection, dataset: DatasetId, blocks: Iterable[Block | SealedBlock]) -> None:
    """The first block that names an object is kept: from there on it is needed."""
    connection.executemany(
        _KEEP, ((name, dataset, one.sequence_number) for one in blocks for name, _ in objects_of(one))
    )


def keep_links(
    connection: sqlite3.Connection, dataset: DatasetId, sequence_number: int, names: Iterable[Multihash]
) -> None:
    """What rows of a block's slice link to, as what the block itself names."""
    connection.executemany(_KEEP, ((name, dataset, sequence_number) for name in names))


def references_to(connection: sqlite3.Connection, name: Multihash) -> list[tuple[DatasetId, int]]:
    """Datasets that name an object, and the first block of each that does."""
    rows = connection.execute("SELECT dataset, sequence FROM object_references WHERE object = ?", (name,))
    return [(DatasetId(dataset), sequence) for dataset, sequence in rows]


def drop_later(connection: sqlite3.Connection, dataset: DatasetId, size: int) -> None:
    """A chain goes back to ``size`` blocks: forget what only later ones name."""
    connection.execute("DELETE FROM object_references WHERE dataset = ? AND sequence >= ?", (dataset, size))


def drop_references(connection: sqlite3.Connection, dataset: DatasetId) -> list[Multihash]:
    """Forget a dataset's references; the objects that nobody names any more."""
    named = [
        Multihash(row[0])
        for row in connection.execute("SELECT object FROM object_references WHERE dataset = ?", (dataset,))
    ]
    connection.execute("DELETE FROM object_references WHERE dataset = ?", (dataset,))
    return [name for name in named if not references_to(connection, name)]
