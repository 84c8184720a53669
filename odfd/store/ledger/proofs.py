"""Stores proofs of contradiction: which key contradicted itself, and from which block on a history is disputed.

Of a fork the lowest known place is kept, of double votes one proof for each validator of a dataset, and of proofs that
say the same the one with the lowest id; so any order of arrival leaves every node with the same proofs. If a person
settled a fork, the lowest place beyond it is kept too, because it stops the dataset again. No proof is ever forgotten
by itself. Calls are synchronous, on the connection they are given. Spec: docs/spec/trust.md#forks, #room.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

from chain.errors import Invalid
from chain.ids import DatasetId, KeyDid
from chain.multihash import Multihash
from chain.statements import proof as proofs
from chain.statements.authority import Rights
from chain.statements.envelope import Signed
from chain.statements.proof import AUTHORITY_FORK, DOUBLE_VOTE, FORK, Proof, RightsAt, first_rights
from chain.statements.statement import HeadStatement
from chain.statements.tree import Tree
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.resolutions import Resolutions
from odfd.store.ledger.tables import ACCUSED, PARDONS, PROOFS

MAX_VOTES: Final = 80
"""Double votes kept for one epoch of a dataset: those of all its listed validators and some more."""
MAX_PROOFS: Final = 10_000
"""Proofs kept in total. Beyond that, only proofs that replace a known one are accepted."""


class Proofs:
    """Stores proofs, over one SQLite connection. The tables are the ledger's."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def keep(self, proof: Proof) -> bool:
        """Keeps a proof that is news; returns whether it was."""
        if not self.is_news(proof):
            return False
        self._drop(self._replaced_by(proof))
        PROOFS.put(self._db, proof.dataset, proof.id, proof.epoch, proof.kind, proof.index or 0, proof.raw)
        for key in proof.accused:
            ACCUSED.put(self._db, key, proof.kind, proof.id)
        return True

    def is_news(self, proof: Proof) -> bool:
        """Whether it proves more than those kept, or the same under a lower id, and there is room for it."""
        known = self._same(proof)
        if not known:
            return self._count() < MAX_PROOFS
        if proof.kind == FORK:
            return proof.order < min(known)
        gone = self._replaced_by(proof)
        alike = [name for name in gone if self._accused_by(name) == set(proof.accused)]
        if any(name <= proof.id for name in alike):
            return False
        is_full = len(known) >= MAX_VOTES or all(self._accuses(proof, key) for key in proof.accused)
        return bool(gone) or not is_full

    def _replaced_by(self, proof: Proof) -> list[Multihash]:
        """Lists the proofs that this one supersedes: of a fork all, else those that accuse no other signer."""
        names = [name for _, name in self._same(proof)]
        if proof.kind == FORK:
            return names
        return [name for name in names if self._accused_by(name) <= set(proof.accused)]

    def contains(self, name: Multihash) -> bool:
        return self._db.execute("SELECT 1 FROM trust_proofs WHERE id = ?", (name,)).fetchone() is not None

    def forked_at(self, dataset: DatasetId, epoch: int) -> int | None:
        """Returns the first place in this epoch that is disputed and not settled by a person;
        all agree on blocks below it."""
        settled = self._settled_place(dataset, epoch)
        rows = PROOFS.rows(self._db, "dataset = ? AND kind = ? AND epoch = ?", (dataset, FORK, epoch))
        return min((row[4] for row in rows if row[4] > settled), default=None)

    def parts_at(self, dataset: DatasetId, epoch: int) -> int | None:
        """Returns the first place in this epoch that was ever disputed, settled or not."""
        rows = PROOFS.rows(self._db, "dataset = ? AND kind = ? AND epoch = ?", (dataset, FORK, epoch))
        return min((row[4] for row in rows), default=None)

    def is_forked(self, dataset: DatasetId) -> bool:
        """Whether the dataset was ever forked; settling a fork does not change that."""
        return PROOFS.one(self._db, "dataset = ? AND kind = ?", (dataset, FORK)) is not None

    def has(self, dataset: DatasetId, kind: str, epoch: int) -> bool:
        """Whether a proof of this kind is kept about an epoch, or a version of the authority."""
        return PROOFS.one(self._db, "dataset = ? AND kind = ? AND epoch = ?", (dataset, kind, epoch)) is not None

    def double_voters(self) -> frozenset[KeyDid]:
        """Returns the validators that contradicted themselves on any dataset, unless a person pardoned that."""
        found = frozenset(KeyDid(row[0]) for row in ACCUSED.rows(self._db, "kind = ?", (DOUBLE_VOTE,)))
        pardoned = {KeyDid(row[0]) for row in PARDONS.rows(self._db)}
        return found - {key for key in pardoned & found if not self.double_votes(key)}

    def double_votes(self, key: KeyDid) -> set[tuple[DatasetId, int]]:
        """Returns datasets and epochs on which a validator contradicted himself, unless a person pardoned that."""
        found = set()
        for _, _, name in ACCUSED.rows(self._db, "key = ? AND kind = ?", (key, DOUBLE_VOTE)):
            row = PROOFS.one(self._db, "id = ?", (name,))
            if row and not PARDONS.one(self._db, "key = ? AND dataset = ? AND epoch = ?", (key, row[0], row[2])):
                found.add((DatasetId(row[0]), int(row[2])))
        return found

    def of(self, dataset: DatasetId) -> list[Proof]:
        """Lists the proofs on a dataset, forks first."""
        rows = PROOFS.rows(self._db, "dataset = ? ORDER BY kind DESC, id", (dataset,))
        rights_at = Authorities(self._db).rights_at
        return [proofs.decode(row[5], rights_at) for row in rows]

    def _settled_place(self, dataset: DatasetId, epoch: int) -> int:
        """Returns the last place up to which a person chose a history; -1 if there is none."""
        branch = Resolutions(self._db).of(dataset).branch(epoch)
        return -1 if branch is None else branch.place

    def _same(self, proof: Proof) -> list[tuple[int, Multihash]]:
        """Lists places and ids of kept proofs of the same kind and epoch;
        for forks, on the same side of the settled place."""
        rows = self._db.execute(
            "SELECT place, id FROM trust_proofs WHERE dataset = ? AND kind = ? AND epoch = ?",
            (proof.dataset, proof.kind, proof.epoch),
        )
        found = [(place, Multihash(name)) for place, name in rows]
        if proof.index is None or proof.kind != FORK:
            return found
        settled = self._settled_place(proof.dataset, proof.epoch)
        return [each for each in found if (each[0] > settled) == (proof.index > settled)]

    def _accused_by(self, name: Multihash) -> set[KeyDid]:
        return {KeyDid(row[0]) for row in ACCUSED.rows(self._db, "proof = ?", (name,))}

    def accuses(self, dataset: DatasetId, kind: str, epoch: int, key: KeyDid) -> bool:
        """Whether a proof of this kind about an epoch is kept that names ``key``."""
        row = self._db.execute(
            "SELECT 1 FROM trust_accused JOIN trust_proofs ON trust_proofs.id = trust_accused.proof"
            " WHERE key = ? AND trust_accused.kind = ? AND dataset = ? AND epoch = ?",
            (key, kind, dataset, epoch),
        ).fetchone()
        return row is not None

    def _accuses(self, proof: Proof, key: KeyDid) -> bool:
        return self.accuses(proof.dataset, proof.kind, proof.epoch, key)

    def _drop(self, names: Sequence[Multihash]) -> None:
        for name in names:
            self._db.execute("DELETE FROM trust_accused WHERE proof = ?", (name,))
            self._db.execute("DELETE FROM trust_proofs WHERE id = ?", (name,))

    def _count(self) -> int:
        return int(self._db.execute("SELECT COUNT(*) FROM trust_proofs").fetchone()[0])


RootAt = Callable[[int], bytes | None]


def fork_of_last_block(
    mine: tuple[HeadStatement, Signed],
    theirs: tuple[HeadStatement, Signed],
    tree: Tree,
    size: int,
    rights_at: RightsAt = first_rights,
) -> Proof | None:
    """Makes a proof of a fork without asking anyone, if the other tree equals mine except for its last block.

    That is so if an owner restored a backup and appended again. ``tree``: that of the ``size`` blocks that are here.
    ``None`` if the two differ elsewhere; then the other history is needed.
    """
    head, signed = theirs
    if max(head.size - 1, mine[0].size) > size:
        return None
    other = tree.ending(head.size - 1, head.head.digest)
    if other.root(head.size) != head.root_hash or tree.root(mine[0].size) != mine[0].root_hash:
        return None
    try:
        return proofs.fork(mine[1].envelope, signed.envelope, tree, other, rights_at)
    except Invalid:
        return None


def is_disputed(connection: sqlite3.Connection, dataset: DatasetId, rights: Rights) -> bool:
    """Whether another statement of this version is known, and no person chose this one."""
    if not Proofs(connection).has(dataset, AUTHORITY_FORK, rights.version):
        return False
    return Resolutions(connection).of(dataset).version(rights.version) != rights.sid
