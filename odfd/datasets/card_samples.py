"""Stores how many rows of each dataset its card shows, by a user's decision; without one a card shows none.

A decision lasts until another, or until the dataset is private again. A damaged row counts as none. ADR 85.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from chain.ids import DatasetId
from chain.instant import Instant
from chain.store.seals import Sealed

ROOM: Final = "card_samples"
SAMPLES: Final = Sealed(
    "card_samples", ("dataset", "rows", "at"), "until then its card shows no rows: odfctl publish NAME --sample N"
)
STEPS: Final = (
    """
    CREATE TABLE card_samples (
        dataset BLOB PRIMARY KEY,
        rows INTEGER NOT NULL,
        at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    """,
    SAMPLES.step,
)
"""Tables, as the steps that made them; steps are added at the end and never changed."""


class CardSamples:
    """Reads and writes the decisions, over one SQLite connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def of(self, dataset: DatasetId) -> int:
        """Returns the number of rows that the card of a dataset shows; 0 without a decision."""
        row, whole = SAMPLES.look(self._db, "dataset = ?", (dataset,))
        return 0 if row is None or not whole else int(row[1])

    def put(self, dataset: DatasetId, rows: int, now: Instant) -> None:
        """Stores a decision; 0: the card shows none."""
        if rows:
            SAMPLES.put(self._db, dataset, rows, now)
        else:
            self.clear(dataset)

    def clear(self, dataset: DatasetId) -> None:
        self._db.execute("DELETE FROM card_samples WHERE dataset = ?", (dataset,))
