"""Stores which pushes a dataset has taken in, in the transaction of their blocks, so that a push counts once.

A push is identified by an id that its client gave, or that is made of its content. The answer is stored too, so that a
client that lost it gets the same one. A push is deleted with its blocks: after a reset the same may be pushed again.
The format has no place for it, so other nodes do not know it. Synchronous, on the given connection.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final

import msgspec

from chain.ids import DatasetId
from chain.store.database import Database
from chain.store.seals import Row, Sealed
from engines.contract import RowCounts

ROOM: Final = "pushes"
STEPS: Final = (
    """
    CREATE TABLE pushes (
        dataset BLOB NOT NULL,
        id TEXT NOT NULL,
        source TEXT NOT NULL,
        content BLOB NOT NULL,
        sequence INTEGER NOT NULL,
        answer BLOB NOT NULL,
        seal BLOB,
        PRIMARY KEY (dataset, id)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX pushes_block ON pushes (dataset, sequence);
    """,
    """
    ALTER TABLE pushes ADD COLUMN place INTEGER NOT NULL DEFAULT 0;
    UPDATE pushes SET place = sequence, seal = NULL;
    CREATE INDEX pushes_place ON pushes (dataset, place);
    """,
)
PUSHES: Final = Sealed(
    "pushes",
    ("dataset", "id", "source", "content", "sequence", "answer", "place"),
    "odfctl reset forgets the pushes of the blocks that it drops",
)


class PushOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a push: the blocks and records that it appended."""

    blocks: int
    records: int
    counts: RowCounts
    block: str = ""
    """Hash of the last block of its transaction, in the first shard that got one; empty for one of an earlier version.
    """


class Push(msgspec.Struct, frozen=True, kw_only=True):
    """One push into a dataset, with its answer."""

    id: str
    source: str
    """Name of the push source."""
    content: bytes
    """A hash of all that decides what it appends: files, their names, the source as it is declared, the event time."""
    answer: PushOutcome
    sequence: int = -1
    """Number of the last block that was appended for it, or of the last block then if none was."""


def keep(connection: sqlite3.Connection, dataset: DatasetId, push: Push, sequence: int) -> None:
    """Stores a push as the last one; ``sequence``: the last block of its transaction, in the first shard.

    Replaces a push of the same id. The place counts pushes, because several may have one sequence: those whose rows
    are all in other shards, and those that a handover carried over.
    """
    answer = msgspec.json.encode(push.answer)
    (place,) = connection.execute(
        "SELECT coalesce(max(place), -1) + 1 FROM pushes WHERE dataset = ?", (dataset,)
    ).fetchone()
    PUSHES.put(connection, dataset, push.id, push.source, push.content, sequence, answer, place)


def find(connection: sqlite3.Connection, dataset: DatasetId, push_id: str) -> Push | None:
    return _push(PUSHES.one(connection, "dataset = ? AND id = ?", (dataset, push_id)))


def newest(connection: sqlite3.Connection, dataset: DatasetId) -> Push | None:
    """Returns the last push that appended a block."""
    pushes = map(_push, PUSHES.rows(connection, "dataset = ? ORDER BY place DESC", (dataset,)))
    return next((push for push in pushes if push is not None and push.answer.blocks), None)


def cut(connection: sqlite3.Connection, dataset: DatasetId, size: int) -> None:
    """Deletes later pushes when the chain is cut to ``size`` blocks."""
    connection.execute("DELETE FROM pushes WHERE dataset = ? AND sequence >= ?", (dataset, size))


def move(connection: sqlite3.Connection, dataset: DatasetId, start: int, moved: Callable[[int], int]) -> None:
    """Renumbers after blocks from ``start`` on are rewritten without loss of rows. ``moved``: a block's new number."""
    for row in list(PUSHES.rows(connection, "dataset = ? AND sequence >= ? ORDER BY place", (dataset, start))):
        push = _push(row)
        assert push is not None
        keep(connection, dataset, push, moved(push.sequence))


def carry(connection: sqlite3.Connection, old: DatasetId, new: DatasetId, sequence: int, block: str) -> None:
    """Copies the pushes of ``old`` to ``new``, whose contents have them, so that each counts once in both.

    ``sequence``, ``block``: where ``new`` ends.
    """
    known = {row[1] for row in PUSHES.rows(connection, "dataset = ?", (new,))}
    for row in list(PUSHES.rows(connection, "dataset = ? ORDER BY place", (old,))):
        push = _push(row)
        if push is not None and push.id not in known:
            answer = msgspec.structs.replace(push.answer, block=block)
            keep(connection, new, msgspec.structs.replace(push, answer=answer), sequence)


def _push(row: Row | None) -> Push | None:
    if row is None:
        return None
    _, push_id, source, content, sequence, answer, _ = row
    said = msgspec.json.decode(answer, type=PushOutcome)
    return Push(id=push_id, source=source, content=content, answer=said, sequence=sequence)


class PushTable:
    """Looks up pushes over a database; implements ``odfd.ingest.push.PushLog``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, dataset: DatasetId, push_id: str) -> Push | None:
        with self._database.read() as connection:
            return find(connection, dataset, push_id)

    def newest(self, dataset: DatasetId) -> Push | None:
        with self._database.read() as connection:
            return newest(connection, dataset)
