"""Stores observations: what this node and others found at the declared source of blocks of root data.

Of each observer and block the latest observation is kept, and of equal times the one with the lowest id; so any order
of arrival leaves every node with the same. Calls are synchronous, on the connection they are given; the table is the
ledger's. Spec: docs/spec/trust.md#observations.
"""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements.envelope import Signed
from chain.statements.statement import OBSERVATION, SAME, Observation
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.tables import OBSERVED

MAX_BLOCKS: Final = 65_536
"""Blocks of one dataset for which one listed observer's observations are kept: an hourly poll for seven years."""
MAX_UNLISTED_BLOCKS: Final = 256


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """One observer's finding about one block."""

    observer: KeyDid
    block: Multihash
    sequence_number: int
    at: Instant
    result: str

    @property
    def is_same(self) -> bool:
        return self.result in SAME


class Observations:
    """Stores observations, over one SQLite connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def is_news(self, observation: Observation, sid: Multihash) -> bool:
        """Whether it says more than the observation kept of this observer and block."""
        row = OBSERVED.one(
            self._db,
            "dataset = ? AND observer = ? AND block = ?",
            (observation.dataset, observation.observer, observation.head),
        )
        return row is None or (observation.issued, Multihash(row[6])) > (row[4], sid)

    def keep(self, observation: Observation, signed: Signed, outcome: str, peer: str, now: Instant) -> None:
        """Keeps an observation that is news, and appends it to the log."""
        row = (now, observation.dataset, observation.observer, OBSERVATION, signed.sid, signed.envelope, peer, outcome)
        heard = Ledger(self._db).append(row)
        OBSERVED.put(
            self._db,
            observation.dataset,
            observation.observer,
            observation.head,
            observation.sequence_number,
            observation.issued,
            observation.result,
            signed.sid,
            heard,
            signed.envelope,
        )

    def has_room(self, observation: Observation, *, listed: bool, most: int) -> bool:
        """Whether there is room for it. ``most``: observers of one dataset.

        A known observer may always replace his observation of a block.
        """
        terms = (observation.dataset, observation.observer)
        # Keys of observers cost nothing, so both their number and the blocks of each have a limit
        # (test_room_is_bounded).
        if OBSERVED.one(self._db, "dataset = ? AND observer = ? LIMIT 1", terms) is None:
            return len(self.observers(observation.dataset, most)) < most
        if OBSERVED.one(self._db, "dataset = ? AND observer = ? AND block = ?", (*terms, observation.head)) is not None:
            return True
        query = "SELECT 1 FROM trust_observed WHERE dataset = ? AND observer = ? LIMIT 1 OFFSET ?"
        last = (MAX_BLOCKS if listed else MAX_UNLISTED_BLOCKS) - 1
        return self._db.execute(query, (*terms, last)).fetchone() is None

    def observers(self, dataset: DatasetId, most: int) -> list[KeyDid]:
        """Lists at most ``most`` observers, with one lookup for each."""
        query = "SELECT observer FROM trust_observed WHERE dataset = ? AND observer > ? ORDER BY observer LIMIT 1"
        found: list[KeyDid] = []
        while len(found) < most:
            row = self._db.execute(query, (dataset, found[-1] if found else b"")).fetchone()
            if row is None:
                break
            found.append(KeyDid(row[0]))
        return found

    def at(self, dataset: DatasetId, sequence_number: int) -> list[Sighting]:
        """Lists the observations of one block number on any branch."""
        rows = OBSERVED.rows(
            self._db, "dataset = ? AND sequence = ? ORDER BY observer, block", (dataset, sequence_number)
        )
        return [
            Sighting(
                observer=KeyDid(observer),
                block=Multihash(block),
                sequence_number=sequence,
                at=Instant(at),
                result=result,
            )
            for _, observer, block, sequence, at, result, *_ in rows
        ]

    def newest(self, dataset: DatasetId) -> int | None:
        """Returns the number of the last observed block."""
        row = self._db.execute("SELECT MAX(sequence) FROM trust_observed WHERE dataset = ?", (dataset,)).fetchone()
        return None if row[0] is None else int(row[0])

    def count_of(self, dataset: DatasetId) -> int:
        """Returns a counter that grows with each observation that is kept."""
        row = self._db.execute("SELECT MAX(heard) FROM trust_observed WHERE dataset = ?", (dataset,)).fetchone()
        return int(row[0] or 0)

    def lowest_since(self, dataset: DatasetId, heard: int) -> int | None:
        """Returns the lowest block of the observations kept since the counter was ``heard``; ``None`` if none was."""
        query = "SELECT MIN(sequence) FROM trust_observed WHERE dataset = ? AND heard > ?"
        row = self._db.execute(query, (dataset, heard)).fetchone()
        return None if row[0] is None else int(row[0])
