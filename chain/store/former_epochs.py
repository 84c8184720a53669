"""Keeps blocks of former epochs, which a rewrite replaced and the policy keeps, apart from the chains.

They lie in the tables of chains, under names of their own: reading them is reading a chain that begins where its epoch
parted from the next one. What they name stays too, as long as they do. Functions on a connection; whoever rewrites
calls them in the transaction that moves the head. Spec: docs/spec/trust.md#epochs, #policy (``keep-epochs``).
"""

from __future__ import annotations

import sqlite3
from typing import Final

from chain.ids import DatasetId
from chain.store.base import FormerEpochs

NAME_SIZE: Final = 42
"""Bytes of a name: a dataset's id, and the number of the epoch."""
LAST: Final = b"\xff" * 8


def name_of(dataset: DatasetId, epoch: int) -> bytes:
    return bytes(dataset) + epoch.to_bytes(8, "big")


def epochs_of(connection: sqlite3.Connection, dataset: DatasetId) -> list[int]:
    """The former epochs of which blocks are kept, the oldest first."""
    rows = connection.execute(
        "SELECT id FROM datasets WHERE id > ? AND id <= ? ORDER BY id", (dataset, bytes(dataset) + LAST)
    )
    return [int.from_bytes(row[0][-8:], "big") for row in rows]


def keep_epoch(connection: sqlite3.Connection, dataset: DatasetId, keep: int, apart: FormerEpochs) -> None:
    """Moves the blocks from ``keep`` on out of the chain, whose head the caller still has to change."""
    if apart.most is not None:
        drop(connection, dataset, most=max(0, apart.most - 1))
    if apart.most == 0:
        return
    name = name_of(dataset, apart.epoch)
    # What was given up of an epoch before its last blocks were: only one end of it is kept.
    connection.execute("DELETE FROM datasets WHERE id = ?", (name,))
    (number,) = connection.execute(
        "INSERT INTO datasets (id, head_sequence, head_hash)"
        " SELECT ?1, head_sequence, head_hash FROM datasets WHERE id = ?2 RETURNING number",
        (name, dataset),
    ).fetchone()
    connection.execute(
        "UPDATE blocks SET dataset = ? WHERE dataset = (SELECT number FROM datasets WHERE id = ?) AND sequence >= ?",
        (number, dataset, keep),
    )


def drop(connection: sqlite3.Connection, dataset: DatasetId, *, most: int = 0) -> None:
    """Drops all but the newest ``most`` epochs; the next collection frees the objects that only they named."""
    known = epochs_of(connection, dataset)
    for epoch in known[: max(0, len(known) - most)]:
        connection.execute("DELETE FROM datasets WHERE id = ?", (name_of(dataset, epoch),))
