"""Witnessing: this node cosigns trees of others, and never two of one origin of which neither begins the other.

What it cosigned last of each origin, with the head that made it do so, is compared and stored in one transaction, and
journalled, before the cosignature leaves: the head is kept because without it a split is seen and cannot be proven.
Also here: the newest cosignature known of each witness. Spec: trust.md section 3; c2sp.org/tlog-witness.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

from chain import instant
from chain.errors import Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import cosignature
from chain.statements.checkpoint import Checkpoint
from chain.statements.cosignature import Cosignature
from chain.statements.statement import HeadStatement
from chain.statements.tree import Tree
from chain.store.database import Database
from odfd.trust.keystore import KeyStore
from odfd.trust.ledger import COSIGNATURES, WITNESSED, Checked, Ledger

RENEW: Final = 2 * 86400 * instant.SECOND
"""A cosignature of a tree that stays is made anew at this age, since quorums ask for young ones."""
MAX_WITNESSES: Final = 64
"""Of one dataset; those that count here find room beyond it."""

LeavesOf = Callable[[DatasetId, int, int], Sequence[bytes]]


class Cosignatures:
    """The newest of each witness and origin, over one SQLite connection; the tables are the ledger's."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def keep(self, made: Cosignature, *, listed: bool = False) -> bool:
        """Whether it says more than what was known of this witness, and there is room for it."""
        tree, terms = made.checkpoint, (made.checkpoint.origin, made.witness)
        row = COSIGNATURES.one(self._db, "origin = ? AND witness = ?", terms)
        if row is not None and (tree.size, made.at) <= (row[3], row[4]):
            return False
        if row is None and not listed and len(self.of(tree.dataset)) >= MAX_WITNESSES:
            return False
        COSIGNATURES.put(self._db, tree.dataset, *terms, tree.size, made.at, made.id, made.encode())
        return True

    def of(self, dataset: DatasetId) -> list[Cosignature]:
        return [cosignature.decode(row[6]) for row in COSIGNATURES.rows(self._db, "dataset = ?", (dataset,))]

    def refs(self) -> list[tuple[DatasetId, Multihash]]:
        rows = self._db.execute("SELECT dataset, id FROM trust_cosignatures")
        return [(DatasetId(dataset), Multihash(name)) for dataset, name in rows]

    def body(self, name: Multihash) -> bytes | None:
        row = COSIGNATURES.one(self._db, "id = ?", (name,))
        return None if row is None else bytes(row[6])


class Witness:
    """Cosigns with the node's key. Safe to use from any thread; one decision at a time."""

    def __init__(self, database: Database, keys: KeyStore, leaves_of: LeavesOf, clock: Callable[[], Instant]) -> None:
        self._database = database
        self._keys = keys
        self._leaves_of = leaves_of
        self._clock = clock

    def consider(self, dataset: DatasetId) -> Cosignature | None:
        """Cosign the newest head of a dataset of others whose blocks are all here, when there is something new to say.

        Raises Refused (``trust.behind``) when what is here does not begin with what was cosigned.
        """
        if self._keys.has_dataset_key(dataset):
            return None
        with self._database.write() as connection:
            ledger = Ledger(connection)
            newest, checked = ledger.newest_head(dataset), ledger.chain(dataset)
            if newest is None or not _is_here(newest[0], checked):
                return None
            tree = Checkpoint(dataset, checked.epoch, checked.frontier.size, checked.frontier.root)
            if not self._is_due(connection, tree):
                return None
            made = cosignature.cosign(self._keys.node_key(), tree, self._clock())
            WITNESSED.put(connection, tree.origin, tree.size, tree.root_hash, made.at, newest[1].envelope)
            Cosignatures(connection).keep(made)
            self._keys.note(made.witness, f"cosign/{tree.origin}", (tree.size,), tree.root_hash.hex())
        return made

    def _is_due(self, connection: sqlite3.Connection, tree: Checkpoint) -> bool:
        row = WITNESSED.one(connection, "origin = ?", (tree.origin,))
        if row is None:
            return True
        _, size, root, at, _ = row
        leaves = self._leaves_of
        begins = size <= tree.size and Tree(lambda start, stop: leaves(tree.dataset, start, stop)).root(size) == root
        if not begins:
            raise Refused(
                f"this node cosigned {size} blocks of {tree.origin} that are not the beginning of what is here",
                rule="trust.behind",
                hint="nothing is cosigned for it any more; the head that was cosigned is kept as evidence",
            )
        return bool(size < tree.size or self._clock() >= at + RENEW)


def _is_here(head: HeadStatement, checked: Checked) -> bool:
    tree = checked.frontier
    return (head.epoch, head.size, head.root_hash) == (checked.epoch, tree.size, tree.root)
