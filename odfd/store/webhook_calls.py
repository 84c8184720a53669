"""Stores what targets were told about datasets, and their pending deliveries. Synchronous, on the given connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final

import msgspec

from chain.instant import Instant
from chain.store.seals import Sealed
from odfd.store.webhook_delivery import CallRecord, NotifiedDataset

ROOM: Final = "webhooks"
STEPS: Final = (
    """
    CREATE TABLE webhook_told (
        target TEXT NOT NULL,
        dataset TEXT NOT NULL,
        due INTEGER,
        record BLOB NOT NULL,
        seal BLOB,
        PRIMARY KEY (target, dataset)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX webhook_due ON webhook_told (target, due) WHERE due IS NOT NULL;
    CREATE TABLE webhook_calls (
        target TEXT NOT NULL,
        record BLOB NOT NULL,
        seal BLOB,
        PRIMARY KEY (target)
    ) STRICT, WITHOUT ROWID;
    """,
)
TABLES: Final = ("webhook_told", "webhook_calls")
_HINT: Final = "delete the WebhookTarget and apply it again"
TOLD: Final = Sealed("webhook_told", ("target", "dataset", "due", "record"), _HINT)
CALLS: Final = Sealed("webhook_calls", ("target", "record"), _HINT)
_TOLD: Final = msgspec.json.Decoder(NotifiedDataset)
_CALLS: Final = msgspec.json.Decoder(CallRecord)


def find(connection: sqlite3.Connection, target: str, dataset: str) -> NotifiedDataset | None:
    row = TOLD.one(connection, "target = ? AND dataset = ?", (target, dataset))
    return None if row is None else _TOLD.decode(row[3])


def datasets(connection: sqlite3.Connection, target: str) -> Iterator[str]:
    """Yields the datasets that a target was told about."""
    for (dataset,) in connection.execute("SELECT dataset FROM webhook_told WHERE target = ?", (target,)):
        yield dataset


def due(connection: sqlite3.Connection, target: str, now: Instant, limit: int) -> list[tuple[str, NotifiedDataset]]:
    """Lists at most ``limit`` due deliveries with their datasets, the longest due first."""
    rows = TOLD.rows(connection, "target = ? AND due <= ? ORDER BY due LIMIT ?", (target, now, limit))
    return [(row[1], _TOLD.decode(row[3])) for row in rows]


def next_due(connection: sqlite3.Connection, target: str, now: Instant) -> Instant | None:
    """Returns the next due time after ``now``; ``None`` if nothing waits."""
    question = "SELECT min(due) FROM webhook_told WHERE target = ? AND due > ?"
    (found,) = connection.execute(question, (target, now)).fetchone()
    return None if found is None else Instant(found)


def waiting(connection: sqlite3.Connection, target: str) -> int:
    question = "SELECT count(*) FROM webhook_told WHERE target = ? AND due IS NOT NULL"
    return int(connection.execute(question, (target,)).fetchone()[0])


def keep(
    connection: sqlite3.Connection, target: str, dataset: str, record: NotifiedDataset, due: Instant | None
) -> None:
    TOLD.put(connection, target, dataset, due, msgspec.json.encode(record))


def forget(connection: sqlite3.Connection, target: str, dataset: str) -> None:
    connection.execute("DELETE FROM webhook_told WHERE target = ? AND dataset = ?", (target, dataset))


def hand_on(connection: sqlite3.Connection, old: str, new: str) -> None:
    """Lets what targets were told about one dataset be about another, whose contents follow on it."""
    for target, _, due, record in list(TOLD.rows(connection, "dataset = ?", (old,))):
        forget(connection, target, old)
        TOLD.put(connection, target, new, due, record)


def hasten(connection: sqlite3.Connection, target: str, now: Instant) -> None:
    """Makes waiting deliveries due now, as after the target answered again."""
    rows = TOLD.rows(connection, "target = ? AND due > ?", (target, now))
    for _, dataset, _, record in list(rows):
        TOLD.put(connection, target, dataset, now, record)


def calls(connection: sqlite3.Connection, target: str) -> CallRecord | None:
    row = CALLS.one(connection, "target = ?", (target,))
    return None if row is None else _CALLS.decode(row[1])


def keep_calls(connection: sqlite3.Connection, target: str, record: CallRecord) -> None:
    CALLS.put(connection, target, msgspec.json.encode(record))


def remove(connection: sqlite3.Connection, target: str) -> None:
    for table in TABLES:
        connection.execute(f"DELETE FROM {table} WHERE target = ?", (target,))  # noqa: S608
