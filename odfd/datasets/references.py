"""Which blocks name which objects: what a collector may free, and for whose sake an object may be passed on.

Kept in the transaction that appends the blocks; what rows of their slices link to, right after it and before the
objects count as whole. An object may be named by several chains.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from typing import Final

from chain.ids import DatasetId
from chain.model.block import Block, SealedBlock, objects_of
from chain.multihash import Multihash
from odfd.datasets import holdings

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
    """
    CREATE TABLE object_links (
        object BLOB NOT NULL,
        dataset BLOB NOT NULL,
        sequence INTEGER NOT NULL,
        PRIMARY KEY (object, dataset)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX object_links_dataset ON object_links (dataset);
    """,
    holdings.STEP,
)
"""Tables, as the steps that made them; steps are added at the end and never changed.

What blocks name can be told from the blocks at any time; what rows link to, only from the slices.
"""
_TABLES: Final = ("object_references", "object_links")


def keep_references(connection: sqlite3.Connection, dataset: DatasetId, blocks: Iterable[Block | SealedBlock]) -> None:
    """The first block that names an object is kept: from there on it is needed."""
    keep_named(connection, dataset, ((name, each.sequence_number) for each in blocks for name, _ in objects_of(each)))


def keep_named(connection: sqlite3.Connection, dataset: DatasetId, named: Iterable[tuple[Multihash, int]]) -> None:
    """The same, of objects and the sequence numbers of the blocks that name them."""
    connection.executemany(
        "INSERT OR IGNORE INTO object_references (object, dataset, sequence) VALUES (?, ?, ?)",
        ((name, dataset, sequence) for name, sequence in named),
    )


def keep_links(
    connection: sqlite3.Connection, dataset: DatasetId, sequence_number: int, names: Iterable[Multihash]
) -> None:
    """What rows of a block's slice link to, as what the block itself names."""
    connection.executemany(
        "INSERT OR IGNORE INTO object_links (object, dataset, sequence) VALUES (?, ?, ?)",
        ((name, dataset, sequence_number) for name in names),
    )


def references_to(connection: sqlite3.Connection, name: Multihash) -> list[tuple[DatasetId, int]]:
    """Datasets that name an object or link to it, and the first block of each that does."""
    rows = connection.execute(
        "SELECT dataset, MIN(sequence) FROM ("
        " SELECT dataset, sequence FROM object_references WHERE object = ?1"
        " UNION ALL SELECT dataset, sequence FROM object_links WHERE object = ?1"
        ") GROUP BY dataset",
        (name,),
    )
    return [(DatasetId(dataset), sequence) for dataset, sequence in rows]


def references_hold(connection: sqlite3.Connection, dataset: DatasetId, blocks: Iterable[Block]) -> bool:
    """Whether what is kept is what these blocks, all of a chain in order, name. Bounded memory."""
    first = 0
    for block in blocks:
        for name in {name for name, _ in objects_of(block)}:
            row = connection.execute(
                "SELECT sequence FROM object_references WHERE object = ? AND dataset = ?", (name, dataset)
            ).fetchone()
            if row is None or row[0] > block.sequence_number:
                return False
            first += row[0] == block.sequence_number
    (kept,) = connection.execute("SELECT COUNT(*) FROM object_references WHERE dataset = ?", (dataset,)).fetchone()
    return bool(first == kept)


def drop_later(connection: sqlite3.Connection, dataset: DatasetId, size: int) -> None:
    """A chain goes back to ``size`` blocks: forget what only later ones name."""
    for table in _TABLES:
        connection.execute(f"DELETE FROM {table} WHERE dataset = ? AND sequence >= ?", (dataset, size))  # noqa: S608
    holdings.cut(connection, dataset, size)


def remake_references(connection: sqlite3.Connection, dataset: DatasetId, blocks: Iterable[Block]) -> None:
    """What all blocks of a chain name, in place of what was kept; what rows link to stays."""
    connection.execute("DELETE FROM object_references WHERE dataset = ?", (dataset,))
    keep_references(connection, dataset, blocks)


def move_links(connection: sqlite3.Connection, dataset: DatasetId, start: int, moved: Callable[[int], int]) -> None:
    """Blocks from ``start`` on are made anew, and none of their rows goes: what rows link to goes where they went.

    What the old blocks named themselves is forgotten. ``moved``: a block's new number.
    """
    connection.execute("DELETE FROM object_references WHERE dataset = ? AND sequence >= ?", (dataset, start))
    connection.create_function("moved", 1, moved, deterministic=True)
    connection.execute(
        "UPDATE object_links SET sequence = moved(sequence) WHERE dataset = ? AND sequence >= ?", (dataset, start)
    )


def drop_references(connection: sqlite3.Connection, dataset: DatasetId) -> list[Multihash]:
    """Forget a dataset's references; the objects that nobody names any more."""
    named: set[bytes] = set()
    for table in _TABLES:
        rows = connection.execute(f"DELETE FROM {table} WHERE dataset = ? RETURNING object", (dataset,))  # noqa: S608
        named.update(row[0] for row in rows)
    holdings.forget(connection, dataset)
    return [name for name in map(Multihash, sorted(named)) if not references_to(connection, name)]
