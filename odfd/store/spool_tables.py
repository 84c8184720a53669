"""Declares the tables of pushes that wait, and the values that are told of them (``odfd.store.spool``)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from chain.errors import Conflict, Environment
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.store.seals import ROW_DAMAGED

ROOM: Final = "spool"
STEPS: Final = (
    """
    CREATE TABLE spooled (
        source TEXT NOT NULL,
        number INTEGER NOT NULL,
        records INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        at INTEGER NOT NULL,
        id TEXT,
        content BLOB NOT NULL,
        gone INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (source, number)
    ) STRICT, WITHOUT ROWID;
    CREATE UNIQUE INDEX spooled_id ON spooled (source, id) WHERE id IS NOT NULL;
    CREATE INDEX spooled_here ON spooled (source, number) WHERE NOT gone;
    CREATE TABLE spool_readers (
        source TEXT NOT NULL,
        dataset BLOB NOT NULL,
        number INTEGER NOT NULL,
        PRIMARY KEY (source, dataset)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE spool_numbers (source TEXT PRIMARY KEY, number INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE spool_drops (source TEXT PRIMARY KEY, records INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    """,
    """
    CREATE TABLE spool_bodies (
        source TEXT NOT NULL,
        number INTEGER NOT NULL,
        body BLOB NOT NULL,
        PRIMARY KEY (source, number)
    ) STRICT, WITHOUT ROWID;
    """,
)
"""The steps that make the tables; steps are added at the end and never changed."""
TABLES: Final = ("spooled", "spool_readers", "spool_numbers", "spool_drops", "spool_bodies")
PUSH_DAMAGED: Final = (
    "restore the node from a backup; or delete the Source, make it anew, and push again what is not in"
)
_BODIES: Final = "SELECT source, number, body, content FROM spool_bodies JOIN spooled USING (source, number)"
_RESTORED: Final = 10**9


class OverflowPolicy(Enum):
    """The way of a full buffer to treat new records."""

    REJECT = "Reject"
    DROP_OLDEST = "DropOldest"


class Buffer(NamedTuple):
    """The terms of a buffer: how many records may wait, and how it treats further ones."""

    most: int
    overflow: OverflowPolicy


class Spooled(msgspec.Struct, frozen=True, kw_only=True):
    """One push that waits to be taken in."""

    number: int
    path: Path
    bytes: int
    at: Instant


class Pushed(NamedTuple):
    """A body that was pushed to a Source, and its number of records."""

    source: str
    """The id of the Source."""
    data: bytes
    records: int
    buffer: Buffer | None = None
    id: str | None = None


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a push."""

    number: int
    """Number of the push: pushes of a Source are numbered from 1, in the order of arrival."""
    records: int
    bytes: int
    repeated: bool = False
    """Whether a push with this id came before."""
    durable: bool = True


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """The pushes that wait for a dataset, or all that are kept."""

    records: int = 0
    bytes: int = 0
    pushes: int = 0
    oldest: Instant | None = None
    first: int = 0
    last: int = 0
    dropped: int = 0
    """Records that a full buffer dropped before any dataset took them, since the Source exists."""


def forget_reader(connection: sqlite3.Connection, dataset: DatasetId) -> None:
    """Forgets a deleted dataset as a reader, so that it keeps no pushes waiting."""
    connection.execute("DELETE FROM spool_readers WHERE dataset = ?", (dataset,))


def skip_numbers(connection: sqlite3.Connection) -> None:
    """Skips numbers, after a restore from a backup, so that later pushes get none that was used before.

    Chains may record that they took pushes which came after the backup; new ones with the same numbers would be
    skipped.
    """
    connection.execute("UPDATE spool_numbers SET number = number + ?", (_RESTORED,))


def other_content(push_id: str | None) -> Conflict:
    """Makes the fault of an id that was used for another body."""
    hint = "give each push an id of its own"
    return Conflict(f"the push {(push_id or '')[:80]!r} came before with other content", rule="push-id", hint=hint)


def bodies_between(connection: sqlite3.Connection, source: str, first: int, last: int) -> dict[int, bytes]:
    """Returns the bodies in the database of some pushes, by number. Raises Environment for one that is damaged."""
    rows = connection.execute(f"{_BODIES} WHERE source = ? AND number BETWEEN ? AND ?", (source, first, last))
    bodies = {}
    for _, number, body, content in rows:
        if Multihash.sha3_256(body) != content:
            raise Environment(f"{_named(source, number)} is damaged on disk", rule=ROW_DAMAGED, hint=PUSH_DAMAGED)
        bodies[number] = body
    return bodies


def damaged_bodies(connection: sqlite3.Connection) -> Iterator[str]:
    """Yields the names of pushes whose bodies in the database are not what was pushed."""
    for source, number, body, content in connection.execute(_BODIES):
        if Multihash.sha3_256(body) != content:
            yield f"{_named(source, number)} of spool_bodies"


def _named(source: str, number: int) -> str:
    return f"push {number:,} to {source}"
