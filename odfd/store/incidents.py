"""Keeps what was found wrong with datasets, and how it was decided, so that people learn of it after a restart too.

Events are news, kept in memory. The ledger says what holds now: once a wrong result is corrected, it no longer tells
that there was one; these rows do. The newest ``MOST`` of each dataset are kept, until its data is deleted. Synchronous,
on the given connection.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final, NamedTuple

from chain.ids import DatasetId
from chain.instant import Instant
from chain.store.seals import Sealed

ROOM: Final = "incidents"
INCIDENTS: Final = Sealed(
    "incidents",
    ("dataset", "at", "kind", "message"),
    "it describes the past alone; odfctl trust show shows the present state",
)
STEPS: Final = (
    """
    CREATE TABLE incidents (
        dataset BLOB NOT NULL,
        at INTEGER NOT NULL,
        kind TEXT NOT NULL,
        message TEXT NOT NULL,
        seal BLOB,
        PRIMARY KEY (dataset, at, kind)
    ) STRICT, WITHOUT ROWID;
    """,
)
KINDS: Final = frozenset(
    {
        "authority.forked",
        "damage.found",
        "dataset.forked",
        "dataset.resolved",
        "dataset.rewritten",
        "evidence.rechecked",
        "head.refused",
        "head.withheld",
        "verdict.mismatch",
        "verdict.not-reproducible-here",
    }
)
"""Kinds of events that are kept as incidents."""
MOST: Final = 100
"""Most incidents of one dataset, since a peer can cause many."""
LONGEST: Final = 1000
"""Most characters of a message."""


class Incident(NamedTuple):
    dataset: DatasetId
    at: Instant
    kind: str
    message: str


def keep(connection: sqlite3.Connection, incidents: Sequence[Incident]) -> None:
    """Keeps incidents; one that is kept already is not kept twice."""
    for incident in incidents:
        INCIDENTS.put(connection, incident.dataset, incident.at, incident.kind, incident.message[:LONGEST])
    for dataset in {incident.dataset for incident in incidents}:
        connection.execute(
            "DELETE FROM incidents WHERE dataset = ?1 AND at < (SELECT min(at) FROM"
            " (SELECT at FROM incidents WHERE dataset = ?1 ORDER BY at DESC LIMIT ?2))",
            (dataset, MOST),
        )


def of(connection: sqlite3.Connection, dataset: DatasetId, most: int = MOST) -> list[Incident]:
    """Lists the incidents of a dataset, newest first. Damaged rows are left out."""
    found = INCIDENTS.every(connection, "dataset = ? ORDER BY at DESC, kind LIMIT ?", (dataset, most))
    return [Incident(DatasetId(row[0]), Instant(row[1]), row[2], row[3]) for row, whole in found if whole]


def is_here(connection: sqlite3.Connection, dataset: DatasetId) -> bool:
    """Whether this node holds blocks of the dataset; strangers' accusations of other datasets are not kept."""
    return connection.execute("SELECT 1 FROM datasets WHERE id = ?", (dataset,)).fetchone() is not None
