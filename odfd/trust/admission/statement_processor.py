"""Processes one signed statement: judges it against known facts, records the outcome, and proves contradictions.

One ``StatementProcessor`` is made for one transaction of the ledger, over its connection. It uses SQL through the
ledger only and decides nothing itself; ``rules`` judges order and rights. Spec: docs/spec/trust.md#admission, #forks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.statements import proof as proofs
from chain.statements.card import Card
from chain.statements.envelope import Signed
from chain.statements.proof import DOUBLE_VOTE, Proof
from chain.statements.statement import (
    ATTESTATION,
    AnyPredicate,
    Attestation,
    Authority,
    HeadStatement,
    Word,
)
from chain.statements.tree import Tree
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.cards import Cards
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.proofs import Proofs, fork_of_last_block, is_disputed
from odfd.store.ledger.resolutions import Resolutions
from odfd.store.ledger.subtree_roots import Subtrees
from odfd.trust.admission.rules import (
    AdmissionContext,
    AdmissionOutcome,
    Admitted,
    admit_attestation,
    admit_authority,
    admit_card,
    admit_head,
    admit_word,
    writer_of,
)
from odfd.trust.admission.statement_kinds import KINDS, WordStore

LeavesOf = Callable[[DatasetId, int, int], Sequence[bytes]]
"""Returns the digests of blocks ``start <= n < stop`` of a chain that is here."""


CANDIDATE: Final = "candidate"
MAX_CANDIDATES: Final = 32
"""Older heads of one dataset that are kept for the case that witnesses stand behind one."""


class Judged(msgspec.Struct, frozen=True):
    """The judgement on a statement, given the state of the ledger. Computing it writes nothing."""

    verdict: Admitted
    signer: KeyDid | None = None
    """The signer; ``None`` if no signer has the right to sign it."""
    is_kept: bool = False
    """Whether processing it writes. Other statements cost only a read, whoever sends them and how often."""
    moves_upper: bool = False
    """Whether it is a head that says more times to be complete than the one before."""

    @property
    def is_renewal(self) -> bool:
        """Whether it is a head that changes nothing but the time of signing."""
        return self.verdict.outcome is AdmissionOutcome.RENEWED and not self.moves_upper

    @property
    def contradicts(self) -> bool:
        return self.verdict.outcome is AdmissionOutcome.FORK


class Processed(msgspec.Struct, frozen=True):
    """The result of processing a statement."""

    verdict: Admitted
    signer: KeyDid | None = None
    """The signer; ``None`` if no signer has the right to sign it."""
    proof: Proof | None = None
    """The proof of a contradiction, if it could be made here and is new."""
    is_kept: bool = True
    """Whether it was recorded; of a signer's contradictions in one epoch only the first is."""

    @property
    def outcome(self) -> AdmissionOutcome:
        return self.verdict.outcome


class StatementProcessor:
    """Processes one statement in one transaction: ``judge`` needs a read transaction, ``hear`` a write one."""

    def __init__(self, connection: sqlite3.Connection, leaves_of: LeavesOf, sender: str, now: Instant) -> None:
        self._db = connection
        self._ledger = Ledger(connection)
        self._authorities = Authorities(connection)
        self._proofs = Proofs(connection)
        self._leaves_of = leaves_of
        self._sender = sender
        self._now = now

    def judge(self, predicate: AnyPredicate, signed: Signed) -> Judged:
        """Judges what processing the statement would change, without writing."""
        match predicate:
            case HeadStatement():
                return self._judge_head(predicate, signed)
            case Authority():
                return self._judge_authority(predicate, signed)
            case Attestation():
                return self._judge_attestation(predicate, signed)
            case Card():
                return self._judge_card(predicate, signed)
            case _:
                return self._judge_word(predicate, signed)

    def hear(self, predicate: AnyPredicate, signed: Signed) -> Processed:
        """Judges and records the statement. One that changes nothing is not recorded,
        so that repeating it costs no space."""
        return self.keep(predicate, signed, self.judge(predicate, signed))

    def keep(self, predicate: AnyPredicate, signed: Signed, found: Judged) -> Processed:
        """Records a judgement that was made over the present state of the ledger."""
        if not found.is_kept:
            return Processed(found.verdict, found.signer, is_kept=False)
        return Processed(found.verdict, found.signer, self._keep(predicate, signed, found))

    def _keep(self, predicate: AnyPredicate, signed: Signed, found: Judged) -> Proof | None:
        match predicate:
            case HeadStatement():
                return self._keep_head(predicate, signed, found)
            case Authority():
                return self._keep_authority(predicate, signed, found)
            case Attestation():
                return self._keep_attestation(predicate, signed, found)
            case Card():
                store: WordStore = Cards(self._db)
            case _:
                store = self._store(predicate)
        store.keep(predicate, signed, found.verdict.outcome.value, self._sender, self._now)
        return None

    def hear_proof(self, proof: Proof) -> bool:
        """Keeps a proof; returns whether it was new."""
        if not self._proofs.keep(proof):
            return False
        self._ledger.record_proof(proof, self._sender, self._now)
        return True

    def _judge_authority(self, authority: Authority, signed: Signed) -> Judged:
        walk = self._authorities.walk(authority.dataset)
        verdict, _ = admit_authority(authority, signed, walk, self._now, self._seed(authority.dataset))
        if not verdict.outcome.changes:
            return Judged(verdict)
        return Judged(verdict, min(walk[authority.version - 1].roots.intersection(signed.signers)), is_kept=True)

    def _keep_authority(self, authority: Authority, signed: Signed, found: Judged) -> Proof | None:
        proof = None
        if found.contradicts:
            _, known = self._authorities.versions(authority.dataset, authority.version)[0]
            proof = self._keep_proof(
                lambda: proofs.authority_fork(known.envelope, signed.envelope, self._authorities.rights_at)
            )
        else:
            self._authorities.keep(authority, signed)
            self._ledger.close_epochs(self._authorities.rights(authority.dataset))
        if not found.contradicts or proof is not None:
            self._ledger.record_authority(authority, signed, found.verdict.outcome.value, self._sender, self._now)
        return proof

    def _judge_head(self, head: HeadStatement, signed: Signed) -> Judged:
        if self._ledger.is_settled(signed.sid):
            return _KNOWN
        newest = self._ledger.newest_head(head.dataset)
        context = self._context(head.dataset)
        verdict = admit_head(
            head,
            signed,
            newest[0] if newest else None,
            partial(self._root_at, head.dataset),
            self._now,
            forked_at=self._proofs.forked_at(head.dataset, head.epoch),
            context=context,
        )
        signer = writer_of(head, signed, context.rights)
        if verdict.outcome.changes and signer is not None:
            is_known = verdict.outcome is AdmissionOutcome.FORK and self._has_contradicted(head, signer)
            moves = newest is not None and (head.upper or 0) > (newest[0].upper or 0)
            # Of several forks of an epoch the lowest is where reach ends (trust.md#forks).
            is_kept = not is_known or self._is_proven_lower(head, signed)
            return Judged(verdict, signer, is_kept=is_kept, moves_upper=moves)
        is_older = verdict.outcome is AdmissionOutcome.OLDER and signer is not None and not context.size
        return Judged(verdict, signer, is_kept=is_older and self._is_candidate(head.dataset, signed))

    def _keep_head(self, head: HeadStatement, signed: Signed, found: Judged) -> Proof | None:
        assert found.signer is not None
        if not found.verdict.outcome.changes:
            self._ledger.record(signed, found.signer, CANDIDATE, self._sender, self._now, live=False)
            return None
        proof = None
        if found.contradicts:
            proof = self._keep_proof(lambda: self._fork(head, signed))
            if self._has_contradicted(head, found.signer):
                return proof
        self._record(signed, found.signer, found.verdict.outcome)
        return proof

    def _fork(self, head: HeadStatement, signed: Signed) -> Proof | None:
        """Returns a proof of a fork against the newest head, if the two histories differ in the last block only."""
        newest, size = self._ledger.newest_head(head.dataset), self._ledger.chain(head.dataset).frontier.size
        if newest is None:
            return None
        tree = self._tree(head.dataset)
        return fork_of_last_block(newest, (head, signed), tree, size, self._authorities.rights_at)

    def _is_proven_lower(self, head: HeadStatement, signed: Signed) -> bool:
        """Whether it proves a fork at a lower place than the known one, or beyond one that was settled."""
        proof = self._fork(head, signed)
        return proof is not None and self._proofs.is_news(proof)

    def _has_contradicted(self, new: HeadStatement, signer: KeyDid) -> bool:
        """Whether this signer has already contradicted itself in this epoch."""
        return any(head.epoch == new.epoch for head in self._ledger.contradictions(new.dataset, signer))

    def _is_candidate(self, dataset: DatasetId, signed: Signed) -> bool:
        """Whether to keep an older head that is not kept yet:
        witnesses may stand behind it and not behind the newest."""
        return not self._ledger.has(signed.sid) and len(self._ledger.outcomes(dataset, CANDIDATE)) < MAX_CANDIDATES

    def _judge_attestation(self, attestation: Attestation, signed: Signed) -> Judged:
        if self._ledger.is_settled(signed.sid):
            return _KNOWN
        before = self._ledger.attestation(attestation.dataset, attestation.validator)
        verdict = admit_attestation(attestation, signed, before, self._now)
        if not verdict.outcome.changes:
            return Judged(verdict)
        contradicts = verdict.outcome is AdmissionOutcome.FORK
        known = contradicts and self._proofs.accuses(
            attestation.dataset, DOUBLE_VOTE, attestation.epoch, attestation.validator
        )
        return Judged(verdict, attestation.validator, is_kept=not known)

    def _keep_attestation(self, attestation: Attestation, signed: Signed, found: Judged) -> Proof | None:
        proof = None
        if found.contradicts:
            earlier = self._ledger.statement(attestation.dataset, ATTESTATION, attestation.validator)
            if earlier is not None:
                proof = self._keep_proof(lambda: proofs.double_vote(earlier.envelope, signed.envelope))
        self._record(signed, attestation.validator, found.verdict.outcome)
        return proof

    def _judge_word(self, word: Word, signed: Signed) -> Judged:
        """Judges a statement of a kind that cannot contradict others:
        it is kept, by rules of its own, if it says more."""
        is_news = self._store(word).is_news(word, signed.sid)
        verdict = admit_word(word, signed, self._now, is_news=is_news)
        return Judged(verdict, word.author, is_kept=True) if verdict.outcome.changes else Judged(verdict)

    def _store(self, word: Word) -> WordStore:
        store = KINDS[word.KIND].store
        assert store is not None
        return store(self._db)

    def _judge_card(self, card: Card, signed: Signed) -> Judged:
        walk, is_news = self._authorities.walk(card.dataset), Cards(self._db).is_news(card, signed.sid)
        verdict = admit_card(card, signed, walk, self._now, is_news=is_news)
        return Judged(verdict, card.author, is_kept=True) if verdict.outcome.changes else Judged(verdict)

    def _record(self, signed: Signed, signer: KeyDid, outcome: AdmissionOutcome) -> None:
        live = outcome is not AdmissionOutcome.FORK
        self._ledger.record(signed, signer, outcome.value, self._sender, self._now, live=live)

    def _keep_proof(self, make: Callable[[], Proof | None]) -> Proof | None:
        """Keeps the proof that ``make`` returns;
        ``None`` if it is known or cannot be made from the blocks that are here.

        In the latter case the other history must be requested first.
        """
        try:
            proof = make()
        except Invalid:
            return None
        return proof if proof is not None and self.hear_proof(proof) else None

    def _context(self, dataset: DatasetId) -> AdmissionContext:
        walk = self._authorities.walk(dataset)
        checked = self._ledger.chain(dataset)
        conflict = is_disputed(self._db, dataset, walk[-1])
        chosen = Resolutions(self._db).of(dataset).places
        return AdmissionContext(walk, conflict, checked.frontier.size, checked.epoch, chosen)

    def _seed(self, dataset: DatasetId) -> bytes | None:
        """Returns the digest of the first block, if it is here."""
        held = self._ledger.chain(dataset).frontier.size > 0
        return next(iter(self._leaves_of(dataset, 0, 1)), None) if held else None

    def _root_at(self, dataset: DatasetId, size: int) -> bytes | None:
        """Returns the root of my tree at ``size``: stored for the whole chain,
        computed from blocks for a part of it."""
        frontier = self._ledger.chain(dataset).frontier
        if size == frontier.size:
            return frontier.root
        if size > frontier.size:
            return None
        return self._tree(dataset).root(size)

    def _tree(self, dataset: DatasetId) -> Tree:
        """Returns the tree of the blocks that are here."""
        known = self._ledger.chain(dataset).frontier
        return Subtrees(self._db).tree(dataset, known, partial(self._leaves_of, dataset))


_KNOWN: Final = Judged(Admitted(AdmissionOutcome.OLDER, "known"))
