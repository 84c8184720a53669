"""Prunes the log: decides which entries may go, and drops them a page at a time.

| kept | what |
|---|---|
| while its dataset is known, and a year | versions of authorities, proofs, decisions, chosen heads, contradictions |
| as long as they hold | the live set, observations and policies in force, statements that a decision rests on |
| likewise | the last head of each signer, and the newest head of the blocks that are here: a proof may need it |
| the last three | attestations of a validator on a dataset |
| thirty days from the next statement of the same signer, and the last 256 | all other heads, observations, policies |

A dataset is known while it is held, or a statement about it is live. Each page is one transaction: a killed node has
dropped some, and the next collection drops the rest. Spec: docs/spec/trust.md#ledger.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from typing import Final, NamedTuple

from chain import instant
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements.statement import ATTESTATION, HEAD
from chain.store.base import Step, no_step
from chain.store.database import Database
from odfd.store.ledger.hash_links import GAP, cut
from odfd.store.ledger.kinds import TABLES
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.signed_heads import newest_within

_DAY: Final = 24 * 3600 * instant.SECOND
SUPERSEDED: Final = 30 * _DAY
AFTERLIFE: Final = 365 * _DAY
"""Time for which entries about a dataset are kept after the last statement about it."""
ATTESTATIONS: Final = 3
HEADS: Final = 256
"""Superseded statements kept of one signer on a dataset, so that frequent ones do not fill the disk."""
PAGE: Final = 500
"""Entries checked, and dropped, in one transaction, so that others may write in between."""
_PASSING: Final = frozenset(kind for each in TABLES if each.passes for kind in each.kinds)
_LASTING: Final = frozenset({"fork", "followed"})
"""Outcomes of entries that must be kept: a head that a person chose, for instance, removed all other heads."""
_SID: Final = re.compile(rb"f1620[0-9a-f]{64}")
_LIVE: Final = tuple(each.name for each in TABLES if each.passes)
_KNOWN: Final = (
    *("trust_chains", "trust_resolved", "trust_met", "trust_wanted"),
    *(each.name for each in TABLES if each.of_dataset),
)


def drop_unneeded(database: Database, is_wanted: Callable[[sqlite3.Connection, DatasetId], bool]) -> int:
    """Deletes statements about datasets that are no longer held or wanted; returns the number of datasets.

    Later statements about them stay in memory (``odfd.network.unheld_statements``).
    """
    with database.read() as connection:
        found = [each for each in Ledger(connection).not_held() if not is_wanted(connection, each)]
    for start in range(0, len(found), PAGE):
        with database.write() as connection:
            for dataset in found[start : start + PAGE]:
                if not is_wanted(connection, dataset):
                    Ledger(connection).drop_statements(dataset)
    return len(found)


def prune(database: Database, now: Instant, *, dry_run: bool = False, step: Step = no_step) -> int:
    """Drops the entries that may go; returns how many did, or would.
    Raises Environment if an entry is damaged; it stays."""
    after, count = 0, 0
    while True:
        with database.read() as connection:
            page = _Page(connection, after, now)
        if page.last is None:
            return count
        if page.due and not dry_run:
            with database.write() as connection:
                cut(connection, page.due, now)
                step("prune-cut")
            step("prune-durable")
        after, count = page.last, count + len(page.due)


class _Row(NamedTuple):
    seq: int
    at: int
    dataset: bytes
    signer: bytes
    type: str
    sid: bytes
    outcome: str


class _Page:
    """A page of entries. ``due``: those that may be dropped;
    ``last``: the last one checked, ``None`` if there are no more."""

    def __init__(self, connection: sqlite3.Connection, after: int, now: Instant) -> None:
        self._db = connection
        self._now = now
        self._gone: dict[bytes, bool] = {}
        self._rests: dict[bytes, frozenset[bytes]] = {}
        self._grounds: dict[bytes, bytes | None] = {}
        # The last entry stays, because the next one will be linked to it.
        rows = connection.execute(
            "SELECT seq, at, dataset, signer, type, sid, outcome FROM trust_ledger"
            " WHERE seq > ? AND seq < (SELECT MAX(seq) FROM trust_ledger) ORDER BY seq LIMIT ?",
            (after, PAGE),
        ).fetchall()
        found = [_Row._make(row) for row in rows]
        self.last = found[-1].seq if found else None
        self.due = [row.seq for row in found if row.type != GAP and self._may_go(row)]

    def _may_go(self, row: _Row) -> bool:
        if self._is_live(row.sid):
            return False
        if self._is_forgotten(row.dataset):
            return True
        if row.type not in _PASSING or row.outcome in _LASTING or row.sid in self._rested_on(row.dataset):
            return False
        later = self._later(row)
        if row.type == ATTESTATION:
            return len(later) >= ATTESTATIONS
        if row.type == HEAD and self._stands(row, later):
            return False
        return len(later) >= HEADS or self._now - (later[0] if later else row.at) > SUPERSEDED

    def _is_live(self, sid: bytes) -> bool:
        return any(self._has(table, "sid", sid) for table in _LIVE)

    def _is_forgotten(self, dataset: bytes) -> bool:
        """Whether a dataset is no longer known, and its last entry is long past;
        never for entries without a dataset."""
        if dataset not in self._gone:
            (last,) = self._db.execute("SELECT MAX(at) FROM trust_ledger WHERE dataset = ?", (dataset,)).fetchone()
            is_old = bool(dataset) and self._now - last > AFTERLIFE
            self._gone[dataset] = is_old and not any(self._has(table, "dataset", dataset) for table in _KNOWN)
        return self._gone[dataset]

    def _rested_on(self, dataset: bytes) -> frozenset[bytes]:
        """Returns the ids that this node's decisions rest on."""
        if dataset not in self._rests:
            # Decisions about no dataset, such as whose verdicts count, rest on statements about some.
            bodies = self._db.execute(
                "SELECT body FROM trust_ledger WHERE dataset IN (?, ?) AND type = 'decision'", (dataset, b"")
            )
            names = (found for (body,) in bodies for found in _SID.findall(body))
            self._rests[dataset] = frozenset(Multihash.parse(name.decode()) for name in names)
        return self._rests[dataset]

    def _later(self, row: _Row) -> list[int]:
        """Lists the times of the next statements of the same signer, at most as many as matter."""
        rows = self._db.execute(
            "SELECT at FROM trust_ledger WHERE dataset = ? AND type = ? AND seq > ? AND signer = ?"
            " AND outcome NOT IN ('fork', 'candidate') ORDER BY seq LIMIT ?",
            (row.dataset, row.type, row.seq, row.signer, ATTESTATIONS if row.type == ATTESTATION else HEADS),
        )
        return [at for (at,) in rows]

    def _stands(self, row: _Row, later: list[int]) -> bool:
        is_last = not later and row.outcome != "candidate"
        return is_last or row.sid == self._context(row.dataset)

    def _context(self, dataset: bytes) -> bytes | None:
        """Returns the id of the newest head that covers no more than the blocks that are here."""
        if dataset not in self._grounds:
            name = DatasetId(dataset)
            checked = Ledger(self._db).chain(name)
            size = checked.frontier.size
            self._grounds[dataset] = newest_within(self._db, name, checked.epoch, size) if size else None
        return self._grounds[dataset]

    def _has(self, table: str, column: str, value: bytes) -> bool:
        query = f"SELECT EXISTS (SELECT 1 FROM {table} WHERE {column} = ?)"  # noqa: S608
        return bool(self._db.execute(query, (value,)).fetchone()[0])
