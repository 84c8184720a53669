"""Stores the peers that a private dataset is shared with, each by a user's decision until it is revoked.

A peer is named by its key, which the handshake of each of its connections proves. A damaged row counts as none. A
change is in force for the next question, as with marks (``visibility``). ADR 39.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from chain.ids import DatasetId
from chain.instant import Instant
from chain.store.seals import Sealed
from p2p.ports import PeerId

ROOM: Final = "shares"
SHARES: Final = Sealed(
    "shares", ("dataset", "peer", "at"), "until then it is not shared with that peer: odfctl share NAME --with PEER"
)
STEPS: Final = (
    """
    CREATE TABLE shares (
        dataset BLOB NOT NULL,
        peer TEXT NOT NULL,
        at INTEGER NOT NULL,
        PRIMARY KEY (dataset, peer)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX shares_of_peer ON shares (peer);
    """,
    SHARES.step,
)
"""Tables, as the steps that made them; steps are added at the end and never changed."""
MAX_PEERS: Final = 1024
"""Most peers that one dataset is shared with."""


class Shares:
    """Reads and writes the shares of datasets, over one SQLite connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def has(self, dataset: DatasetId, peer: PeerId | None) -> bool:
        """Whether the dataset is shared with a peer. ``None`` (anyone) never matches, and takes the same time."""
        row, whole = SHARES.look(self._db, "dataset = ? AND peer = ?", (dataset, peer or ""))
        return row is not None and whole

    def of_peer(self, peer: PeerId | None) -> frozenset[DatasetId]:
        found = SHARES.every(self._db, "peer = ?", (peer or "",))
        return frozenset(DatasetId(row[0]) for row, whole in found if whole)

    def peers(self, dataset: DatasetId) -> list[PeerId]:
        found = SHARES.every(self._db, "dataset = ? ORDER BY peer", (dataset,))
        return [PeerId(row[1]) for row, whole in found if whole]

    def put(self, dataset: DatasetId, peer: PeerId, now: Instant) -> None:
        SHARES.put(self._db, dataset, peer, now)

    def drop(self, dataset: DatasetId, peer: PeerId) -> bool:
        """Removes a share; returns whether there was one."""
        gone = self._db.execute("DELETE FROM shares WHERE dataset = ? AND peer = ?", (dataset, peer))
        return gone.rowcount > 0

    def clear(self, dataset: DatasetId) -> bool:
        """Removes all shares of a dataset; returns whether there was any."""
        return self._db.execute("DELETE FROM shares WHERE dataset = ?", (dataset,)).rowcount > 0
