"""Stores the newest cosignature of each witness, by origin. The tables are the ledger's."""

from __future__ import annotations

import sqlite3
from typing import Final

from chain.ids import DatasetId
from chain.statements import cosignature
from chain.statements.cosignature import Cosignature
from odfd.store.ledger.tables import COSIGNATURES

MAX_WITNESSES: Final = 64
"""Witnesses of one dataset whose cosignatures are kept; those that count here find room beyond it."""


class Cosignatures:
    """Stores the cosignatures known to one node, over one SQLite connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def keep(self, made: Cosignature, *, listed: bool = False) -> bool:
        """Keeps a cosignature if it is news; returns whether it was. ``listed``: its witness counts here."""
        if not self.is_news(made, listed=listed):
            return False
        tree, terms = made.checkpoint, (made.checkpoint.origin, made.witness)
        COSIGNATURES.put(self._db, tree.dataset, *terms, tree.size, made.at, made.id, made.encode())
        return True

    def is_news(self, made: Cosignature, *, listed: bool = False) -> bool:
        """Whether it is newer than the known one of this witness, and there is room for it."""
        tree = made.checkpoint
        row = COSIGNATURES.one(self._db, "origin = ? AND witness = ?", (tree.origin, made.witness))
        if row is not None:
            return (tree.size, made.at) > (row[3], row[4])
        # Keys cost nothing: strangers share a limit that listed witnesses do not need
        # (test_strangers_leave_room_for_witnesses_that_count).
        return listed or self._count(tree.dataset) < MAX_WITNESSES

    def _count(self, dataset: DatasetId) -> int:
        query = "SELECT COUNT(*) FROM trust_cosignatures WHERE dataset = ?"
        return int(self._db.execute(query, (dataset,)).fetchone()[0])

    def of(self, dataset: DatasetId) -> list[Cosignature]:
        return [cosignature.decode(row[6]) for row in COSIGNATURES.rows(self._db, "dataset = ?", (dataset,))]
