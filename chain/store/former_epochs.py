"""Keeps histories that are no longer chains: former epochs, and datasets that were deleted without their data.

A rewrite replaces the end of a chain, and the policy may keep the replaced part; a deleted dataset is set aside whole.
Both are stored in the tables of chains, under names of their own, and are read like a chain that begins where its epoch
parted from the next one. Objects that they name stay as long as they do. Functions on a connection, called within the
transaction that rewrites, deletes or adopts. Spec: docs/spec/trust.md#epochs, #policy (``keep-epochs``).
"""

from __future__ import annotations

import sqlite3
from typing import Final

from chain.errors import Refused
from chain.ids import DatasetId
from chain.store.base import FormerEpochs

NAME_SIZE: Final = 42
"""Bytes of a stored name: a dataset's id, and the number of the epoch."""
SET_ASIDE: Final = (1 << 64) - 1
"""Number in the name of a chain that is set aside. No epoch reaches it."""
LAST: Final = b"\xff" * 8


def name_of(dataset: DatasetId, epoch: int) -> bytes:
    return bytes(dataset) + epoch.to_bytes(8, "big")


def epochs_of(connection: sqlite3.Connection, dataset: DatasetId) -> list[int]:
    """Lists the former epochs of which blocks are kept, the oldest first."""
    rows = connection.execute(
        "SELECT id FROM datasets WHERE id > ? AND id < ? ORDER BY id", (dataset, bytes(dataset) + LAST)
    )
    return [int.from_bytes(row[0][-8:], "big") for row in rows]


def keep_epoch(connection: sqlite3.Connection, dataset: DatasetId, keep: int, apart: FormerEpochs) -> None:
    """Moves the blocks from ``keep`` on out of the chain, whose head the caller still has to change."""
    if apart.most is not None:
        drop(connection, dataset, most=max(0, apart.most - 1))
    if apart.most == 0:
        return
    name = name_of(dataset, apart.epoch)
    # An end of the same epoch that was dropped earlier: only one end of each epoch is kept.
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


def set_aside(connection: sqlite3.Connection, dataset: DatasetId) -> None:
    """Takes a whole chain out of the chains, at constant cost. Raises Refused if another is set aside already."""
    if is_set_aside(connection, dataset):
        raise Refused(
            f"an earlier history of {dataset.short} is kept already",
            rule="dataset-kept",
            hint=f"delete that first: odfctl delete unmanaged {dataset}, or this one with its data: --purge",
        )
    connection.execute("UPDATE datasets SET id = ? WHERE id = ?", (name_of(dataset, SET_ASIDE), dataset))


def is_set_aside(connection: sqlite3.Connection, dataset: DatasetId) -> bool:
    return bool(connection.execute("SELECT 1 FROM datasets WHERE id = ?", (name_of(dataset, SET_ASIDE),)).fetchone())


def take_back(connection: sqlite3.Connection, dataset: DatasetId) -> None:
    """Puts a chain that is set aside among the chains again. Its dataset must have no chain there."""
    connection.execute("UPDATE datasets SET id = ? WHERE id = ?", (dataset, name_of(dataset, SET_ASIDE)))


def drop_aside(connection: sqlite3.Connection, dataset: DatasetId) -> None:
    """Drops a chain that is set aside, with its former epochs; the next collection frees what only they named."""
    drop(connection, dataset)
    connection.execute("DELETE FROM datasets WHERE id = ?", (name_of(dataset, SET_ASIDE),))
