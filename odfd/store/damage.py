"""Stores known damage: which blocks and objects of which datasets were found damaged or missing.

Recorded when it is found (by a verification, or when serving), shown by ``odfctl doctor``, forgotten when a
verification finds the dataset intact. Bounded: the first places are enough for a dataset with much damage.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Final

import msgspec

from chain.ids import DatasetId
from chain.instant import Instant

ROOM: Final = "damage"
STEPS: Final = (
    """
    CREATE TABLE damage (
        dataset BLOB NOT NULL,
        sequence INTEGER NOT NULL,
        rule TEXT NOT NULL,
        message TEXT NOT NULL,
        found_at INTEGER NOT NULL,
        PRIMARY KEY (dataset, sequence, rule)
    ) STRICT, WITHOUT ROWID;
    """,
)
"""Steps that create the tables; steps are added at the end and never changed."""
MAX_OF_ONE: Final = 100
"""Most places recorded for one dataset."""


class DamagedBlock(msgspec.Struct, frozen=True):
    """One broken rule at one block: of the block itself, or of an object that it names."""

    sequence: int
    rule: str
    message: str


class Damage:
    """Stores and lists the recorded damage, over one SQLite connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def note(self, dataset: DatasetId, spots: Iterable[DamagedBlock], now: Instant) -> bool:
        """Records damage; returns whether any of it is new."""
        (count,) = self._db.execute("SELECT COUNT(*) FROM damage WHERE dataset = ?", (dataset,)).fetchone()
        before = count
        for spot in spots:
            if count >= MAX_OF_ONE:
                break
            count += self._db.execute(
                "INSERT OR IGNORE INTO damage VALUES (?, ?, ?, ?, ?)",
                (dataset, spot.sequence, spot.rule, spot.message, now),
            ).rowcount
        return bool(count > before)

    def of(self, dataset: DatasetId) -> list[DamagedBlock]:
        rows = self._db.execute(
            "SELECT sequence, rule, message FROM damage WHERE dataset = ? ORDER BY sequence", (dataset,)
        )
        return [DamagedBlock(*row) for row in rows]

    def datasets(self) -> list[DatasetId]:
        return [DatasetId(row[0]) for row in self._db.execute("SELECT DISTINCT dataset FROM damage")]

    def forget_later(self, dataset: DatasetId, size: int) -> None:
        """Drops damage of later blocks when a chain is cut to ``size`` blocks."""
        self._db.execute("DELETE FROM damage WHERE dataset = ? AND sequence >= ?", (dataset, size))

    def forget_earlier(self, dataset: DatasetId, size: int) -> None:
        """Drops damage of the first ``size`` blocks, which are intact."""
        self._db.execute("DELETE FROM damage WHERE dataset = ? AND sequence < ?", (dataset, size))

    def forget(self, dataset: DatasetId) -> None:
        self._db.execute("DELETE FROM damage WHERE dataset = ?", (dataset,))
