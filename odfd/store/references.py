"""Stores which blocks name which objects, for garbage collection and to find the datasets of an object.

References are written in the transaction that appends the blocks; links from rows of their slices right after it, and
before the objects count as whole. An object may be named by several chains.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from itertools import islice, zip_longest
from typing import Final

from chain.ids import DatasetId
from chain.model.block import Block, SealedBlock, objects_of
from chain.multihash import Multihash
from chain.store import bulk_rows
from odfd.store import holdings

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
    """
    -- As blocks lie: names come in no order, so what is found by them is kept short (as chain.store.schema does), and
    -- all else is added at the end. A million blocks that name objects are kept in a third of the time.
    ALTER TABLE object_references RENAME TO object_references_by_name;
    CREATE TABLE object_references (
        dataset BLOB NOT NULL,
        sequence INTEGER NOT NULL,
        object BLOB NOT NULL
    ) STRICT;
    INSERT INTO object_references SELECT dataset, sequence, object FROM object_references_by_name
        ORDER BY dataset, sequence;
    DROP TABLE object_references_by_name;
    CREATE INDEX object_references_block ON object_references (dataset, sequence);
    CREATE INDEX object_references_name ON object_references (substr(object, 3, 8));
    """,
    holdings.ALL_OF_IT,
)
"""Tables, as the steps that made them; steps are added at the end and never changed.

References can be made again from the blocks at any time; links from rows only from the slices.
"""
_NAMING: Final = (
    "SELECT dataset, sequence FROM object_references INDEXED BY object_references_name"
    " WHERE substr(object, 3, 8) = substr(?1, 3, 8) AND object = ?1"
)
_PAGE: Final = 20_000
"""Names that are written with one statement."""
_TABLES: Final = ("object_references", "object_links")


def keep_references(connection: sqlite3.Connection, dataset: DatasetId, blocks: Iterable[Block | SealedBlock]) -> None:
    """Stores the objects that these blocks name, once for each block."""
    keep_named(
        connection, dataset, [(name, block.sequence_number) for block in blocks for name, _ in objects_of(block)]
    )


def keep_named(connection: sqlite3.Connection, dataset: DatasetId, named: Iterable[tuple[Multihash, int]]) -> None:
    """Stores objects with the numbers of the blocks that name them, in order."""
    waiting = iter(named)
    while page := list(islice(waiting, _PAGE)):
        for width, names, numbers in bulk_rows.by_width(*zip(*page, strict=True)):
            connection.execute(
                "INSERT INTO object_references SELECT ?1, value, substr(?2, key * ?3 + 1, ?3) FROM json_each(?4)",
                (dataset, names, width, numbers),
            )


def keep_links(
    connection: sqlite3.Connection, dataset: DatasetId, sequence_number: int, names: Iterable[Multihash]
) -> None:
    """Stores the objects that rows of a block's slice link to; they count like those that the block names."""
    connection.executemany(
        "INSERT OR IGNORE INTO object_links (object, dataset, sequence) VALUES (?, ?, ?)",
        ((name, dataset, sequence_number) for name in names),
    )


def references_to(connection: sqlite3.Connection, name: Multihash) -> list[tuple[DatasetId, int]]:
    """Returns the datasets that name an object or link to it, with the first block of each that does."""
    rows = connection.execute(
        f"SELECT dataset, MIN(sequence) FROM ({_NAMING}"  # noqa: S608
        " UNION ALL SELECT dataset, sequence FROM object_links WHERE object = ?1) GROUP BY dataset",
        (name,),
    )
    return [(DatasetId(dataset), sequence) for dataset, sequence in rows]


def references_hold(connection: sqlite3.Connection, dataset: DatasetId, blocks: Iterable[Block]) -> bool:
    """Whether the stored references are exactly those of these blocks, which are a whole chain in order.

    Uses bounded memory.
    """
    kept = connection.execute(
        "SELECT sequence, object FROM object_references WHERE dataset = ? ORDER BY sequence, object", (dataset,)
    )
    named = (
        (block.sequence_number, name) for block in blocks for name in sorted(name for name, _ in objects_of(block))
    )
    return all(row == wanted for row, wanted in zip_longest(kept, named))


def drop_later(connection: sqlite3.Connection, dataset: DatasetId, size: int) -> None:
    """Deletes the references of later blocks, when a chain is cut to ``size`` blocks."""
    for table in _TABLES:
        connection.execute(f"DELETE FROM {table} WHERE dataset = ? AND sequence >= ?", (dataset, size))  # noqa: S608
    holdings.cut(connection, dataset, size)


def remake_references(connection: sqlite3.Connection, dataset: DatasetId, blocks: Iterable[Block]) -> None:
    """Replaces the references of all blocks of a chain; links from rows stay."""
    connection.execute("DELETE FROM object_references WHERE dataset = ?", (dataset,))
    keep_references(connection, dataset, blocks)


def move_links(connection: sqlite3.Connection, dataset: DatasetId, start: int, moved: Callable[[int], int]) -> None:
    """Renumbers links from rows after blocks from ``start`` on are rewritten without loss of rows.

    The references of the old blocks are deleted. ``moved``: a block's new number.
    """
    connection.execute("DELETE FROM object_references WHERE dataset = ? AND sequence >= ?", (dataset, start))
    connection.create_function("moved", 1, moved, deterministic=True)
    connection.execute(
        "UPDATE object_links SET sequence = moved(sequence) WHERE dataset = ? AND sequence >= ?", (dataset, start)
    )


def drop_references(connection: sqlite3.Connection, dataset: DatasetId) -> list[Multihash]:
    """Deletes a dataset's references; returns the objects that no block names any more."""
    named: set[bytes] = set()
    for table in _TABLES:
        rows = connection.execute(f"DELETE FROM {table} WHERE dataset = ? RETURNING object", (dataset,))  # noqa: S608
        named.update(row[0] for row in rows)
    holdings.forget(connection, dataset)
    return [name for name in map(Multihash, sorted(named)) if not references_to(connection, name)]
