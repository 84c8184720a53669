"""Stores proofs of contradiction: which key contradicted itself, and from which block on a history is disputed.

What is kept is a join: of a fork the lowest place known, of a double vote one proof for each validator of a dataset,
and of what tells the same the lowest id; so any order of hearing leaves every node with the same proofs. Where a person
settled a fork, the lowest place beyond it is kept too, for that one stops again. A proof is never forgotten on its own.
Calls are synchronous, on the connection they are given. Spec: docs/spec/trust.md#forks, #room.
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
from odfd.trust.ledger.authorities import Authorities
from odfd.trust.ledger.resolutions import Resolutions
from odfd.trust.ledger.tables import ACCUSED, PARDONS, PROOFS

MAX_VOTES: Final = 80
"""Double votes kept of one dataset's epoch: all its listed validators and some more."""
MAX_PROOFS: Final = 10_000
"""Proofs kept in all. Beyond it only forks of what is known already are still taken."""


class Proofs:
    """The kept proofs, over one SQLite connection. The tables are the ledger's."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def keep(self, proof: Proof) -> bool:
        """Keep a proof that is news; whether it was."""
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
        """Lists superseded proofs: of a fork all, else those that accuse no other signer."""
        names = [name for _, name in self._same(proof)]
        if proof.kind == FORK:
            return names
        return [name for name in names if self._accused_by(name) <= set(proof.accused)]

    def known(self, name: Multihash) -> bool:
        return self._db.execute("SELECT 1 FROM trust_proofs WHERE id = ?", (name,)).fetchone() is not None

    def forked_at(self, dataset: DatasetId, epoch: int) -> int | None:
        """The first place that is disputed in this epoch and that no person settled; below it all agree."""
        settled = self._settled(dataset, epoch)
        rows = PROOFS.rows(self._db, "dataset = ? AND kind = ? AND epoch = ?", (dataset, FORK, epoch))
        return min((row[4] for row in rows if row[4] > settled), default=None)

    def parts_at(self, dataset: DatasetId, epoch: int) -> int | None:
        """The first place that was ever disputed in this epoch."""
        rows = PROOFS.rows(self._db, "dataset = ? AND kind = ? AND epoch = ?", (dataset, FORK, epoch))
        return min((row[4] for row in rows), default=None)

    def is_forked(self, dataset: DatasetId) -> bool:
        """Whether it ever was: settling it leaves that for ever."""
        return PROOFS.one(self._db, "dataset = ? AND kind = ?", (dataset, FORK)) is not None

    def has(self, dataset: DatasetId, kind: str, epoch: int) -> bool:
        """Whether a proof of this kind is kept on an epoch, or on a version of the authority."""
        return PROOFS.one(self._db, "dataset = ? AND kind = ? AND epoch = ?", (dataset, kind, epoch)) is not None

    def double_voters(self) -> frozenset[KeyDid]:
        """Validators that contradicted themselves, on whichever dataset, where no person lifted it."""
        found = frozenset(KeyDid(row[0]) for row in ACCUSED.rows(self._db, "kind = ?", (DOUBLE_VOTE,)))
        pardoned = {KeyDid(row[0]) for row in PARDONS.rows(self._db)}
        return found - {key for key in pardoned & found if not self.double_votes(key)}

    def double_votes(self, key: KeyDid) -> set[tuple[DatasetId, int]]:
        """Datasets and epochs on which a validator contradicted himself, where no person lifted it."""
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

    def _settled(self, dataset: DatasetId, epoch: int) -> int:
        """The last place up to which a person said which history to follow; -1 without one."""
        branch = Resolutions(self._db).of(dataset).branch(epoch)
        return -1 if branch is None else branch.place

    def _same(self, proof: Proof) -> list[tuple[int, Multihash]]:
        """Places and ids of those kept of its kind and epoch; of forks, on its side of what a person settled."""
        rows = self._db.execute(
            "SELECT place, id FROM trust_proofs WHERE dataset = ? AND kind = ? AND epoch = ?",
            (proof.dataset, proof.kind, proof.epoch),
        )
        found = [(place, Multihash(name)) for place, name in rows]
        if proof.index is None or proof.kind != FORK:
            return found
        settled = self._settled(proof.dataset, proof.epoch)
        return [each for each in found if (each[0] > settled) == (proof.index > settled)]

    def _accused_by(self, name: Multihash) -> set[KeyDid]:
        return {KeyDid(row[0]) for row in ACCUSED.rows(self._db, "proof = ?", (name,))}

    def accuses(self, dataset: DatasetId, kind: str, epoch: int, key: KeyDid) -> bool:
        """Whether a proof of this kind on an epoch is kept that names ``key``."""
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
    """A proof made without asking anyone: when the other tree is mine but for its last block.

    So it is when an owner restored a backup and appended again. ``tree`` is that of the ``size`` blocks that are here.
    ``None`` when the two differ elsewhere: then the other branch is needed.
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
