"""Reads the heads of a dataset that this node has admitted, newest first, from the log, and detects withheld data.

The live set keeps only the newest head, which may belong to another history than ours, while a proof of that needs one
of ours. Data counts as withheld if a head was signed and no peer has given its blocks for too long. Every block that
arrives restarts the wait, so that a long chain on its way does not count as withheld. Nobody is accused of it: a peer
that has no blocks to give may be cut off like us. Calls are synchronous, on the connection they are given.
Spec: docs/spec/trust.md#admission.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final

from chain import instant
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.envelope import dataset_key
from chain.statements.statement import HEAD, HeadStatement
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.tables import WANTED

MAX_HEADS: Final = 1024
"""Heads that are read: years of heads, if one is signed every other day."""


def signed_heads(connection: sqlite3.Connection, dataset: DatasetId) -> Iterator[tuple[HeadStatement, bytes]]:
    """Yields each head with its envelope."""
    rows = connection.execute(
        "SELECT body FROM trust_ledger WHERE dataset = ? AND type = ? ORDER BY seq DESC LIMIT ?",
        (dataset, HEAD, MAX_HEADS),
    )
    for (body,) in rows:
        predicate = statement.decode(envelope.unseal(body, HeadStatement.MAX_ENVELOPE).payload)
        if isinstance(predicate, HeadStatement):
            yield predicate, body


def newest_within(connection: sqlite3.Connection, dataset: DatasetId, epoch: int, size: int) -> Multihash | None:
    """Returns the id of the newest admitted head of an epoch with at most ``size`` blocks."""
    rows = connection.execute(
        "SELECT body FROM trust_ledger WHERE dataset = ? AND type = ? AND outcome NOT IN ('fork', 'candidate')"
        " ORDER BY seq DESC LIMIT ?",
        (dataset, HEAD, MAX_HEADS),
    )
    for (body,) in rows:
        signed = envelope.unseal(body, HeadStatement.MAX_ENVELOPE)
        predicate = statement.decode(signed.payload)
        if isinstance(predicate, HeadStatement) and predicate.epoch == epoch and predicate.size <= size:
            return signed.sid
    return None


def publishing_keys(connection: sqlite3.Connection, dataset: DatasetId) -> frozenset[KeyDid]:
    """Returns keys of publishing nodes: the writers, and the node that the newest head names, if a writer signed it.

    The dataset's own key, which is no node's, is left out.
    """
    writers = Authorities(connection).rights(dataset).writers.keys()
    newest = Ledger(connection).newest_head(dataset)
    found = set(writers)
    # A head whose signer lost the right to write names nobody
    # (ADR 38, test_a_key_that_may_write_no_more_names_nobody).
    if newest is not None and newest[0].node is not None and not writers.isdisjoint(newest[1].signers):
        found.add(newest[0].node)
    return frozenset(found) - {dataset_key(dataset)}


def makers(connection: sqlite3.Connection, dataset: DatasetId) -> frozenset[KeyDid]:
    """Returns all keys that ever had a right to a dataset, and the nodes that the newest head of each signer names.

    By default no right names the publishing node, since the dataset's own key signs; a right that was taken away does
    not undo what was written with it.
    """
    walk = Authorities(connection).walk(dataset)
    nodes = {head.node for head in Ledger(connection).heads(dataset) if head.node is not None}
    return frozenset(nodes.union(*(rights.roots | rights.writers.keys() for rights in walk)))


PATIENCE: Final = 24 * 3600 * instant.SECOND


class DataAvailability:
    """Tracks missing blocks of signed heads, over one SQLite connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def note(self, dataset: DatasetId, now: Instant) -> bool:
        """Records an attempt to fetch signed blocks; returns whether they count as withheld now."""
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
        """Whether blocks of the dataset count as withheld, while ``size`` blocks are here."""
        row = WANTED.one(self._db, "dataset = ? AND size = ?", (dataset, size))
        return row is not None and now - row[2] > PATIENCE
