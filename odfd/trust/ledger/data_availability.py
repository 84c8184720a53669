"""Detects withheld data: heads that were signed while no peer has given their blocks for too long.

Every block that comes begins the wait anew, so that a long chain on its way is not withheld. Nobody is accused of it:
who has no blocks to give may be cut off like us. Calls are synchronous, on the connection they are given. Spec:
docs/spec/trust.md#admission.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from chain import instant
from chain.ids import DatasetId
from chain.instant import Instant
from odfd.trust.ledger.log import Ledger
from odfd.trust.ledger.tables import WANTED

PATIENCE: Final = 24 * 3600 * instant.SECOND


class DataAvailability:
    """The missing blocks of signed heads, over one SQLite connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def note(self, dataset: DatasetId, now: Instant) -> bool:
        """After a try to get what is signed; whether blocks are withheld now."""
        ledger = Ledger(self._db)
        newest, size = ledger.newest_head(dataset), ledger.chain(dataset).frontier.size
        row = WANTED.one(self._db, "dataset = ?", (dataset,))
        if newest is None or newest[0].size <= size:
            if row is not None:
                self._db.execute("DELETE FROM trust_wanted WHERE dataset = ?", (dataset,))
            return False
        if row is None or row[1] != size:
            WANTED.put(self._db, dataset, size, now)
            return False
        return bool(now - row[2] > PATIENCE)

    def is_withheld(self, dataset: DatasetId, size: int, now: Instant) -> bool:
        """Whether it is known to be, while ``size`` blocks are here."""
        row = WANTED.one(self._db, "dataset = ? AND size = ?", (dataset, size))
        return row is not None and now - row[2] > PATIENCE
