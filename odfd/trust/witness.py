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
from odfd.trust import topics
from odfd.trust.authorities import Authorities
from odfd.trust.disputes import is_disputed
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


def may_follow(last: tuple[int, bytes] | None, size: int, root_at: Callable[[int], bytes]) -> bool:
    """Whether a tree begins with the one that was cosigned last (its size and root)."""
    return last is None or (last[0] <= size and root_at(last[0]) == last[1])


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
            leaves = self._leaves_of
            mine = Tree(lambda start, stop: leaves(dataset, start, stop))
            return self._cosign(connection, tree, mine, newest[1].envelope)

    def consider_authority(self, dataset: DatasetId) -> Cosignature | None:
        """The same of the log of who may write: never two versions of one number. Raises Refused."""
        if self._keys.has_dataset_key(dataset):
            return None
        with self._database.write() as connection:
            versions = Authorities(connection).versions(dataset)
            leaves = [signed.sid.digest for _, signed in versions]
            if not leaves or is_disputed(connection, dataset, Authorities(connection).rights(dataset)):
                return None
            mine = Tree(lambda start, stop: leaves[start:stop])
            tree = Checkpoint(dataset, None, len(leaves), mine.root(len(leaves)))
            return self._cosign(connection, tree, mine, versions[-1][1].envelope)

    def _cosign(
        self, connection: sqlite3.Connection, tree: Checkpoint, mine: Tree, evidence: bytes
    ) -> Cosignature | None:
        if not self._is_due(connection, tree, mine):
            return None
        made = cosignature.cosign(self._keys.node_key(), tree, self._clock())
        WITNESSED.put(connection, tree.origin, tree.size, tree.root_hash, made.at, evidence)
        Cosignatures(connection).keep(made)
        topic, entry = topics.cosigned(made)
        self._keys.note(made.witness, topic, entry.order, entry.subject)
        return made

    def _is_due(self, connection: sqlite3.Connection, tree: Checkpoint, mine: Tree) -> bool:
        """Raises Refused.

        The journal is asked too, and what others showed: they know what a database from a backup has forgotten.
        """
        me = self._keys.node_key().did
        row = WITNESSED.one(connection, "origin = ?", (tree.origin,))
        said = self._keys.last_said(me, topics.cosignature(tree))
        heard = COSIGNATURES.one(connection, "origin = ? AND witness = ?", (tree.origin, me))
        before = {(row[1], row[2])} if row else set()
        if said is not None:
            before.add((said.order[0], bytes.fromhex(said.subject)))
        if heard is not None:
            shown = cosignature.decode(heard[6]).checkpoint
            before.add((shown.size, shown.root_hash))
        for size, root in sorted(before):
            if not may_follow((size, root), tree.size, mine.root):
                raise Refused(
                    f"this node cosigned {size} blocks of {tree.origin} that are not the beginning of what is here",
                    rule="trust.behind",
                    hint="nothing is cosigned for it any more; the head that was cosigned is kept as evidence",
                )
        return row is None or bool(row[1] < tree.size or self._clock() >= row[3] + RENEW)


def _is_here(head: HeadStatement, checked: Checked) -> bool:
    tree = checked.frontier
    return (head.epoch, head.size, head.root_hash) == (checked.epoch, tree.size, tree.root)
