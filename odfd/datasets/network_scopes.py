"""Stores the networks that a dataset is limited to, because it was published or found only there.

A dataset without a row is not limited. A damaged row limits it too, and names no network. A change is in force for the
next question, as with marks (``visibility``). ADR 47.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Final

from chain.ids import DatasetId
from chain.instant import Instant
from chain.store.seals import Sealed

ROOM: Final = "network_scopes"
SCOPES: Final = Sealed(
    "network_scopes",
    ("dataset", "network", "at"),
    "until then it is not in that network: odfctl publish NAME --to NETWORK",
)
STEPS: Final = (
    """
    CREATE TABLE network_scopes (
        dataset BLOB NOT NULL,
        network TEXT NOT NULL,
        at INTEGER NOT NULL,
        PRIMARY KEY (dataset, network)
    ) STRICT, WITHOUT ROWID;
    """,
    SCOPES.step,
)
"""Tables, as the steps that made them; steps are added at the end and never changed."""


class NetworkScopes:
    """Reads and writes the networks that datasets are limited to, over one SQLite connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def of(self, dataset: DatasetId) -> frozenset[str] | None:
        """Returns the networks that a dataset is limited to; ``None`` if it is not limited."""
        rows = list(SCOPES.every(self._db, "dataset = ?", (dataset,)))
        return frozenset(row[1] for row, whole in rows if whole) if rows else None

    def in_order(self, dataset: DatasetId) -> list[str]:
        """Lists the networks that a dataset is limited to, in the order in which they were noted."""
        rows = SCOPES.every(self._db, "dataset = ?", (dataset,))
        return [name for _, name in sorted((row[2], row[1]) for row, whole in rows if whole)]

    def all(self) -> dict[DatasetId, frozenset[str]]:
        found: dict[DatasetId, set[str]] = {}
        for row, whole in SCOPES.every(self._db):
            found.setdefault(DatasetId(row[0]), set()).update((row[1],) if whole else ())
        return {dataset: frozenset(networks) for dataset, networks in found.items()}

    def add(self, dataset: DatasetId, networks: Iterable[str], now: Instant) -> None:
        for network in networks:
            SCOPES.put(self._db, dataset, network, now)

    def clear(self, dataset: DatasetId) -> None:
        self._db.execute("DELETE FROM network_scopes WHERE dataset = ?", (dataset,))
