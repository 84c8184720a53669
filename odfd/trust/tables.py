"""Tables of what a person decided and of what only time tells: those of the ledger that came later, and their steps."""

from __future__ import annotations

from typing import Final

from chain.store.seals import Sealed

_RESTORE: Final = "restore the database from a backup: nothing else tells what it was"
RESOLVED: Final = Sealed("trust_resolved", ("dataset", "matter", "number", "place", "name", "at"), _RESTORE)

LATER: Final = (
    """
    CREATE TABLE trust_resolved (
        dataset BLOB NOT NULL,
        matter TEXT NOT NULL,
        number INTEGER NOT NULL,
        place INTEGER NOT NULL,
        name BLOB NOT NULL,
        at INTEGER NOT NULL,
        seal BLOB,
        PRIMARY KEY (dataset, matter, number)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX trust_accused_proof ON trust_accused (proof);
    """,
)
"""Steps after the ledger's first ones; steps are added at the end and never changed."""
