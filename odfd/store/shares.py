"""Stores the peers that a private dataset is shared with, and the networks that a dataset is limited to.

A share is a user's decision until it is revoked. A peer is named by its key, which the handshake of each of its
connections proves. A dataset is limited to networks because it was published or found only there; without a row it is
not limited. A damaged share counts as none, and a damaged network limits too, and names none. A change is in force for
the next question, as with marks (``visibility``). ADR 39, ADR 47.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Final

from chain.ids import DatasetId
from chain.instant import Instant
from chain.store.seals import Sealed
from p2p.ports import PeerId

SHARES: Final = Sealed(
    "shares", ("dataset", "peer", "at"), "until then it is not shared with that peer: odfctl share NAME --with PEER"
)
_SHARES: Final = (
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
SCOPES: Final = Sealed(
    "network_scopes",
    ("dataset", "network", "at"),
    "until then it is not in that network: odfctl publish NAME --to NETWORK",
)
_NETWORK_SCOPES: Final = (
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
MAX_PEERS: Final = 1024
"""Most peers that one dataset is shared with."""


class Shares:
    """Reads and writes the shares of datasets, over one SQLite connection."""

    ROOM: Final = "shares"
    STEPS: Final = _SHARES

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
        return SHARES.forget(self._db, dataset) > 0


class NetworkScopes:
    """Reads and writes the networks that datasets are limited to, over one SQLite connection."""

    ROOM: Final = "network_scopes"
    STEPS: Final = _NETWORK_SCOPES

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
