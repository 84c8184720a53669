"""Stores what this node remembers of a thing and nobody declares: a folder, a quarantine, a publication, a policy.

Each is one sealed row under a kind and a key. Synchronous, on the given connection.
"""

from __future__ import annotations

import sqlite3
from typing import Final, NamedTuple

from chain.instant import Instant
from chain.store.seals import Row, Sealed

STEP: Final = """
    CREATE TABLE records (
        kind TEXT NOT NULL,
        key TEXT NOT NULL,
        body BLOB NOT NULL,
        done BLOB,
        at INTEGER NOT NULL,
        seal BLOB,
        PRIMARY KEY (kind, key)
    ) STRICT, WITHOUT ROWID;
"""
"""A step of the tables of resources."""
RECORDS: Final = Sealed("records", ("kind", "key", "body", "done", "at"), "restore the database from a backup")


class KeptRecord(NamedTuple):
    """One record. ``done``: what became of it."""

    key: str
    body: bytes
    done: bytes | None


def put(
    connection: sqlite3.Connection, kind: str, key: str, body: bytes, at: Instant, done: bytes | None = None
) -> None:
    RECORDS.put(connection, kind, key, body, done, at)


def get(connection: sqlite3.Connection, kind: str, key: str) -> KeptRecord | None:
    row = RECORDS.one(connection, "kind = ? AND key = ?", (kind, key))
    return None if row is None else _record(row)


def of_kind(connection: sqlite3.Connection, kind: str) -> list[KeptRecord]:
    """Lists the records of a kind, by key."""
    return [_record(row) for row in RECORDS.rows(connection, "kind = ? ORDER BY key", (kind,))]


def remove(connection: sqlite3.Connection, kind: str, key: str) -> None:
    connection.execute("DELETE FROM records WHERE kind = ? AND key = ?", (kind, key))


def _record(row: Row) -> KeptRecord:
    _, key, body, done, _ = row
    return KeptRecord(key, bytes(body), None if done is None else bytes(done))
