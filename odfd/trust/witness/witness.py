"""Cosigns trees of others, and never two trees of one origin unless one is a prefix of the other.

The witness compares a tree with the last one that it cosigned for the origin, stores the new one with its head in one
transaction, and journals it, before the cosignature leaves; without the stored head a split could be seen but not
proven. For a mirrored dataset its blocks show that the tree continues; for another one, ``question`` returns what peers
have to prove, and ``settle`` cosigns once they did. Spec: docs/spec/trust.md#witnesses; c2sp.org/tlog-witness.

Decides whether a witness may cosign a tree after its last cosignature of the same origin: rules of tlog-witness. All
callers share this decision and differ in how they answer ``begins``: a mirror finds the old tree in its own blocks, a
witness without a copy has peers prove it, and a log sends the proof with its request. Pure. Spec:
docs/spec/trust.md#witnesses; c2sp.org/tlog-witness.
"""

from __future__ import annotations

import enum
import sqlite3
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from chain import instant
from chain.errors import Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.statements import cosignature
from chain.statements.checkpoint import TreeCheckpoint
from chain.statements.cosignature import Cosignature
from chain.statements.statement import HeadStatement
from chain.statements.submission import Submission
from chain.statements.tree import EMPTY_ROOT, Tree, is_consistent
from chain.store.database import Database
from chain.wording import plural
from odfd.store.keys import journal_topics
from odfd.store.keys.keystore import KeyStore
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.cosignatures import Cosignatures
from odfd.store.ledger.log import CheckedChain, Ledger
from odfd.store.ledger.proofs import Proofs, is_disputed
from odfd.store.ledger.subtree_roots import Subtrees
from odfd.store.ledger.tables import COSIGNATURES, WITNESSED


class KnownTree(NamedTuple):
    """A tree that was cosigned or submitted: its size and root."""

    size: int
    root: bytes


NOTHING: Final = KnownTree(0, EMPTY_ROOT)
"""The empty tree: every tree begins with it, so the first tree of an origin needs no proof."""

Begins = Callable[[KnownTree], bool]
"""Whether the tree in question begins with this one."""


class ConsistencyResult(enum.Enum):
    """The decision on a tree."""

    COSIGN = "cosign"
    SMALLER = "smaller"
    """The tree has fewer leaves than the one that it claims to continue."""
    CONFLICT = "conflict"
    """The tree claims to continue another tree than the one cosigned last."""
    UNPROVEN = "unproven"
    """Nothing shows that the tree begins with the one cosigned last."""


def last_of(known: Collection[KnownTree]) -> KnownTree:
    """Returns the largest cosigned tree, or the empty tree."""
    return max(known, default=NOTHING)


def rule(known: Collection[KnownTree], old: int, tree: KnownTree, begins: Begins) -> ConsistencyResult:
    """Decides on a tree. ``known``: trees cosigned before, as far as recorded;
    ``old``: the size at which a proof starts."""
    if old > tree.size:
        return ConsistencyResult.SMALLER
    if old != last_of(known).size:
        return ConsistencyResult.CONFLICT
    return ConsistencyResult.COSIGN if all(begins(each) for each in known or (NOTHING,)) else ConsistencyResult.UNPROVEN


def shown_by(nodes: Sequence[bytes], old: int, tree: KnownTree) -> Begins:
    """Answers by a consistency proof. A tree smaller than ``old`` was shown to be its prefix when ``old`` was
    cosigned."""

    def begins(seen: KnownTree) -> bool:
        if not seen.size:
            return not nodes
        return seen.size < old or is_consistent(*seen, *tree, nodes)

    return begins


def proven_after(old: KnownTree) -> Begins:
    """Answers by an earlier check that the tree begins with ``old``."""
    return lambda seen: seen.size < old.size or seen == old


RENEW: Final = 2 * 86400 * instant.SECOND
"""Age at which a cosignature of an unchanged tree is renewed, since quorums require recent ones."""
AGAIN: Final = 3600 * instant.SECOND
"""Time within which a repeated submission gets the same cosignature, without a write."""

_ENVELOPE: Final = b"{"
"""The first byte of evidence that is a head; other evidence is a log's submission, kept as it came."""
LeavesOf = Callable[[DatasetId, int, int], Sequence[bytes]]


def may_follow(last: tuple[int, bytes] | None, size: int, root_at: Callable[[int], bytes]) -> bool:
    """Whether a tree begins with the one that was cosigned last (its size and root)."""
    return last is None or (last[0] <= size and root_at(last[0]) == last[1])


class CosignRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A tree to cosign once it is shown to begin with the last one."""

    tree: TreeCheckpoint
    old: KnownTree
    """The tree that must be its prefix: the one cosigned last, or the one kept by its epoch;
    the empty one needs no proof."""
    head: bytes
    """Envelope of the head that signs the new tree."""
    kept: bytes | None
    """Envelope of the head that signs ``old``, if that was cosigned; with ``head`` it proves a split."""

    @property
    def needs_proof(self) -> bool:
        return self.old not in (NOTHING, _to_known(self.tree))


class CosignDeclined(msgspec.Struct, frozen=True):
    """The submitted tree is not cosigned, with the reason."""

    ruling: ConsistencyResult
    last: int
    """Size of the tree cosigned last."""


class CosignGranted(msgspec.Struct, frozen=True):
    """The submitted tree is cosigned, now or earlier."""

    made: Cosignature
    is_new: bool = True


class Witness:
    """Cosigns with the node's key. Safe to use from any thread; one decision at a time."""

    def __init__(self, database: Database, keys: KeyStore, leaves_of: LeavesOf, clock: Callable[[], Instant]) -> None:
        self._database = database
        self._keys = keys
        self._leaves_of = leaves_of
        self._clock = clock

    def consider(self, dataset: DatasetId) -> Cosignature | None:
        """Cosigns the newest head of another's dataset whose blocks are all here, if it is new.

        Raises Refused (``trust.behind``) if the blocks here do not begin with the tree cosigned last.
        """
        if self._keys.has_dataset_key(dataset):
            return None
        with self._database.write() as connection:
            ledger = Ledger(connection)
            newest, checked = ledger.newest_head(dataset), ledger.chain(dataset)
            if newest is None or not _is_held(newest[0], checked):
                return None
            tree = TreeCheckpoint(dataset, checked.epoch, checked.frontier.size, checked.frontier.root)
            mine = Subtrees(connection).tree(dataset, checked.frontier, partial(self._leaves_of, dataset))
            return self._cosign_mine(connection, tree, mine, newest[1].envelope)

    def consider_authority(self, dataset: DatasetId) -> Cosignature | None:
        """Cosigns the log of authority versions, and never two statements of one version. Raises Refused.

        All versions come as statements, so peers need not prove anything.
        """
        if self._keys.has_dataset_key(dataset):
            return None
        with self._database.write() as connection:
            versions = Authorities(connection).versions(dataset)
            leaves = [signed.sid.digest for _, signed in versions]
            if not leaves or is_disputed(connection, dataset, Authorities(connection).rights(dataset)):
                return None
            mine = Tree(lambda start, stop: leaves[start:stop])
            tree = TreeCheckpoint(dataset, None, len(leaves), mine.root(len(leaves)))
            return self._cosign_mine(connection, tree, mine, versions[-1][1].envelope)

    def question(self, dataset: DatasetId) -> CosignRequest | None:
        """Returns the proof to request for the newest head of a dataset that is not held; ``None``: nothing is new.

        Raises Refused: ``trust.behind`` if no proof could make it follow the tree cosigned last, ``trust.forked`` if
        its epoch is known to be forked.
        """
        if self._keys.has_dataset_key(dataset):
            return None
        with self._database.read() as connection:
            newest = Ledger(connection).newest_head(dataset)
            if newest is None or is_disputed(connection, dataset, Authorities(connection).rights(dataset)):
                return None
            head, signed = newest
            tree = TreeCheckpoint(dataset, head.epoch, head.size, head.root_hash)
            _check_unforked(connection, tree)
            known = self._list_known(connection, tree) or self._base(connection, tree)
            old, row = last_of(known), WITNESSED.one(connection, "origin = ?", (tree.origin,))
            mine = _to_known(tree)
            ruling = rule(known, old.size, mine, lambda seen: seen.size < mine.size or seen == mine)
            _check_ruling(ruling, old, tree)
            if not self._has_news(connection, tree):
                return None
            kept = None if row is None or not bytes(row[4]).startswith(_ENVELOPE) else bytes(row[4])
            return CosignRequest(tree=tree, old=old, head=signed.envelope, kept=kept)

    def settle(self, asked: CosignRequest) -> Cosignature | None:
        """Cosigns a requested tree after its proof, unless another tree was cosigned meanwhile. Raises Refused."""
        tree = asked.tree
        with self._database.write() as connection:
            _check_unforked(connection, tree)
            known = self._list_known(connection, tree) or self._base(connection, tree)
            return self._cosign(connection, tree, known, asked.old.size, proven_after(asked.old), asked.head)

    def submitted(self, read: Submission, request: bytes) -> CosignGranted | CosignDeclined:
        """Cosigns a tree that a log sent, if its proof holds. Its signers were checked before. Raises Refused.

        If no head signs this tree, the request itself is kept as evidence.
        """
        tree, new = read.tree, _to_known(read.tree)
        with self._database.write() as connection:
            _check_unforked(connection, tree)
            known = self._list_known(connection, tree)
            begins = shown_by(read.proof, read.old, new)
            ruling = rule(known, read.old, new, begins)
            if ruling is not ConsistencyResult.COSIGN:
                return CosignDeclined(ruling, last_of(known).size)
            me = self._keys.node_key().did
            row = COSIGNATURES.one(connection, "origin = ? AND witness = ?", (tree.origin, me))
            last = None if row is None else cosignature.decode(row[6])
            if last is not None and last.checkpoint == tree and self._clock() < last.at + AGAIN:
                return CosignGranted(last, is_new=False)
            newest = Ledger(connection).newest_head(tree.dataset)
            is_head = newest is not None and (newest[0].epoch, newest[0].size, newest[0].root_hash) == (
                tree.epoch,
                *new,
            )
            evidence = newest[1].envelope if newest is not None and is_head else request
            return CosignGranted(self._make(connection, tree, evidence))

    def _base(self, connection: sqlite3.Connection, tree: TreeCheckpoint) -> set[KnownTree]:
        """Returns the tree that the roots keep in the tree's epoch; the epoch's first tree begins with it."""
        opened = None if not tree.epoch else Authorities(connection).rights(tree.dataset).opened(tree.epoch)
        return set() if opened is None or not opened.base.size else {KnownTree(opened.base.size, opened.base.root_hash)}

    def _cosign_mine(
        self, connection: sqlite3.Connection, tree: TreeCheckpoint, mine: Tree, evidence: bytes
    ) -> Cosignature | None:
        known = self._list_known(connection, tree)

        def begins(seen: KnownTree) -> bool:
            return may_follow(seen, tree.size, mine.root)

        return self._cosign(connection, tree, known, last_of(known).size, begins, evidence)

    def _cosign(
        self,
        connection: sqlite3.Connection,
        tree: TreeCheckpoint,
        known: Collection[KnownTree],
        old: int,
        begins: Begins,
        evidence: bytes,
    ) -> Cosignature | None:
        _check_ruling(rule(known, old, _to_known(tree), begins), last_of(known), tree)
        return self._make(connection, tree, evidence) if self._has_news(connection, tree) else None

    def _make(self, connection: sqlite3.Connection, tree: TreeCheckpoint, evidence: bytes) -> Cosignature:
        made = cosignature.cosign(self._keys.node_key(), tree, self._clock())
        WITNESSED.put(connection, tree.origin, tree.size, tree.root_hash, made.at, evidence)
        Cosignatures(connection).keep(made)
        topic, entry = journal_topics.cosigned(made)
        # Within the transaction: after a crash here the journal alone knows this tree, and binds by `_known`
        # (test_no_order_of_heads_and_crashes_makes_a_witness_stand_on_two_sides).
        self._keys.note(made.witness, topic, entry.order, entry.subject)
        return made

    def _list_known(self, connection: sqlite3.Connection, tree: TreeCheckpoint) -> set[KnownTree]:
        """Returns the trees of this origin that this node cosigned,
        including those known from its journal and from others.

        The latter matter after a restored backup.
        """
        me = self._keys.node_key().did
        row = WITNESSED.one(connection, "origin = ?", (tree.origin,))
        journalled = self._keys.last_signed(me, journal_topics.cosignature(tree))
        heard = COSIGNATURES.one(connection, "origin = ? AND witness = ?", (tree.origin, me))
        known = {KnownTree(row[1], bytes(row[2]))} if row else set()
        if journalled is not None:
            known.add(KnownTree(journalled.order[0], bytes.fromhex(journalled.subject)))
        if heard is not None:
            known.add(_to_known(cosignature.decode(heard[6]).checkpoint))
        return known

    def _has_news(self, connection: sqlite3.Connection, tree: TreeCheckpoint) -> bool:
        row = WITNESSED.one(connection, "origin = ?", (tree.origin,))
        return row is None or bool(row[1] < tree.size or self._clock() >= row[3] + RENEW)


def _to_known(tree: TreeCheckpoint) -> KnownTree:
    return KnownTree(tree.size, tree.root_hash)


def _check_ruling(ruling: ConsistencyResult, old: KnownTree, tree: TreeCheckpoint) -> None:
    """Raises Refused unless the decision allows to cosign."""
    if ruling is ConsistencyResult.COSIGN:
        return
    if ruling is ConsistencyResult.CONFLICT:
        raise Refused(
            f"another tree of {tree.origin} was cosigned meanwhile",
            rule="trust.moved",
            hint="what has to be proven now starts there; it is asked again",
        )
    raise Refused(
        f"this node cosigned {plural(old.size, 'block')} of {tree.origin}, not the beginning of these {tree.size}",
        rule="trust.behind",
        hint="no other history of it is cosigned; the head that was cosigned is kept as evidence",
    )


def _check_unforked(connection: sqlite3.Connection, tree: TreeCheckpoint) -> None:
    """Raises Refused if the tree's epoch is known to be forked."""
    forked = Proofs(connection).forked_at(tree.dataset, tree.epoch or 0)
    if forked is not None and forked < tree.size:
        raise Refused(
            f"{tree.origin} is forked at block #{forked}: two histories of it are signed",
            rule="trust.forked",
            hint="nothing beyond that is cosigned; odfctl trust show REF shows more where it is mirrored",
        )


def _is_held(head: HeadStatement, checked: CheckedChain) -> bool:
    tree = checked.frontier
    return (head.epoch, head.size, head.root_hash) == (checked.epoch, tree.size, tree.root)
