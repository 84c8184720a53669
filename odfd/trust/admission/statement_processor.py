"""Processes one signed statement: judges it against what is known, records the outcome, and proves contradictions.

One ``StatementProcessor`` is one transaction of the ledger: made over its connection, used once, gone. It knows SQL
through the ledger only and decides nothing itself; order and rights are judged in ``rules``.
Spec: docs/spec/trust.md#admission, #forks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import proof as proofs
from chain.statements.envelope import Signed
from chain.statements.proof import Proof
from chain.statements.statement import (
    ATTESTATION,
    AUTHORITY,
    HEAD,
    OBSERVATION,
    POLICY,
    AnyPredicate,
    Attestation,
    Authority,
    HeadStatement,
    Word,
)
from chain.statements.tree import Tree
from odfd.trust.admission.rules import (
    AdmissionContext,
    AdmissionOutcome,
    Admitted,
    admit_attestation,
    admit_authority,
    admit_head,
    admit_word,
    writer_of,
)
from odfd.trust.ledger.authorities import Authorities
from odfd.trust.ledger.disputes import is_disputed
from odfd.trust.ledger.log import Ledger
from odfd.trust.ledger.observations import Observations
from odfd.trust.ledger.proofs import Proofs, fork_of_last_block
from odfd.trust.ledger.resolutions import Resolutions
from odfd.trust.ledger.subtree_roots import Subtrees
from odfd.trust.policy.network_policies import NetworkPolicies

LeavesOf = Callable[[DatasetId, int, int], Sequence[bytes]]
"""Digests of blocks ``start <= n < stop`` of a chain that is here."""


CANDIDATE: Final = "candidate"
MAX_CANDIDATES: Final = 32
"""Of one dataset."""


class Processed(msgspec.Struct, frozen=True):
    """What became of a statement."""

    verdict: Admitted
    signer: KeyDid | None = None
    """Whose word it is; ``None`` for one that nobody had the right to say."""
    proof: Proof | None = None
    """Of a contradiction: what proves it, when that could be made here and was not known."""

    @property
    def outcome(self) -> AdmissionOutcome:
        return self.verdict.outcome


class _WordStore(Protocol):
    """Where words of a kind are kept."""

    def is_news(self, said: Any, sid: Multihash) -> bool: ...

    def keep(self, said: Any, signed: Signed, outcome: str, peer: str, now: Instant) -> None: ...


class StatementProcessor:
    """The processing of one statement in one transaction."""

    def __init__(self, connection: sqlite3.Connection, leaves_of: LeavesOf, sender: str, now: Instant) -> None:
        self._db = connection
        self._ledger = Ledger(connection)
        self._authorities = Authorities(connection)
        self._proofs = Proofs(connection)
        self._leaves_of = leaves_of
        self._sender = sender
        self._now = now

    def hear(self, said: AnyPredicate, signed: Signed) -> Processed:
        """Judge and record. What changes nothing is not recorded, so that repeating it costs no space."""
        return PROCESS[said.KIND](self, said, signed)

    def hear_proof(self, proof: Proof) -> bool:
        """Keep a proof; whether it was new."""
        if not self._proofs.keep(proof):
            return False
        self._ledger.record_proof(proof, self._sender, self._now)
        return True

    def _hear_authority(self, said: Authority, signed: Signed) -> Processed:
        walk = self._authorities.walk(said.dataset)
        verdict, rights = admit_authority(said, signed, walk, self._now, self._seed(said.dataset))
        if not verdict.outcome.changes:
            return Processed(verdict)
        proof = None
        if verdict.outcome is AdmissionOutcome.FORK:
            _, known = self._authorities.versions(said.dataset)[said.version - 1]
            make = partial(proofs.authority_fork, known.envelope, signed.envelope, self._authorities.rights_at)
            proof = self._kept(make)
        else:
            self._authorities.keep(said, signed)
            self._ledger.close_epochs(rights)
        if verdict.outcome is AdmissionOutcome.NEW or proof is not None:
            self._ledger.record_authority(said, signed, verdict.outcome.value, self._sender, self._now)
        return Processed(verdict, min(walk[said.version - 1].roots.intersection(signed.signers)), proof)

    def _hear_head(self, said: HeadStatement, signed: Signed) -> Processed:
        if self._ledger.settled(signed.sid):
            return _KNOWN
        newest = self._ledger.newest_head(said.dataset)
        context = self._context(said.dataset)
        root_at = partial(self._root_at, said.dataset)
        verdict = admit_head(
            said,
            signed,
            newest[0] if newest else None,
            root_at,
            self._now,
            forked_at=self._proofs.forked_at(said.dataset, said.epoch),
            context=context,
        )
        signer = writer_of(said, signed, context.rights)
        if not verdict.outcome.changes or signer is None:
            if verdict.outcome is AdmissionOutcome.OLDER and signer is not None and not context.size:
                self._note_candidate(said.dataset, signed, signer)
            return Processed(verdict)
        proof = None
        if verdict.outcome is AdmissionOutcome.FORK and newest is not None:
            tree, rights_at = self._tree(said.dataset), self._authorities.rights_at
            proof = self._kept(lambda: fork_of_last_block(newest, (said, signed), tree, context.size, rights_at))
        self._record(signed, signer, verdict.outcome)
        return Processed(verdict, signer, proof)

    def _note_candidate(self, dataset: DatasetId, signed: Signed, signer: KeyDid) -> None:
        """Of what is not held yet smaller heads are kept too: witnesses may stand behind one of them, and no other."""
        if not self._ledger.known(signed.sid) and len(self._ledger.outcomes(dataset, CANDIDATE)) < MAX_CANDIDATES:
            self._ledger.record(signed, signer, CANDIDATE, self._sender, self._now, live=False)

    def _hear_attestation(self, said: Attestation, signed: Signed) -> Processed:
        if self._ledger.settled(signed.sid):
            return _KNOWN
        before = self._ledger.attestation(said.dataset, said.validator)
        verdict = admit_attestation(said, signed, before, self._now)
        if not verdict.outcome.changes:
            return Processed(verdict)
        proof = None
        if verdict.outcome is AdmissionOutcome.FORK:
            earlier = self._ledger.statement(said.dataset, ATTESTATION, said.validator)
            if earlier is not None:
                proof = self._kept(lambda: proofs.double_vote(earlier.envelope, signed.envelope))
        self._record(signed, said.validator, verdict.outcome)
        return Processed(verdict, said.validator, proof)

    def _hear_word(self, said: Word, signed: Signed, store: Callable[[sqlite3.Connection], _WordStore]) -> Processed:
        """What contradicts nothing: kept, by rules of its own, where it is news."""
        kept = store(self._db)
        verdict = admit_word(said, signed, self._now, is_news=kept.is_news(said, signed.sid))
        if not verdict.outcome.changes:
            return Processed(verdict)
        kept.keep(said, signed, verdict.outcome.value, self._sender, self._now)
        return Processed(verdict, said.author)

    def _record(self, signed: Signed, signer: KeyDid, outcome: AdmissionOutcome) -> None:
        live = outcome is not AdmissionOutcome.FORK
        self._ledger.record(signed, signer, outcome.value, self._sender, self._now, live=live)

    def _kept(self, make: Callable[[], Proof | None]) -> Proof | None:
        """A proof made here, if it is new and all it takes is here; else the other branch must be asked for."""
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
        """Digest of the first block, where it is here."""
        held = self._ledger.chain(dataset).frontier.size > 0
        return next(iter(self._leaves_of(dataset, 0, 1)), None) if held else None

    def _root_at(self, dataset: DatasetId, size: int) -> bytes | None:
        """Root of my tree at ``size``: kept for the whole chain, computed from the blocks for a part of it."""
        frontier = self._ledger.chain(dataset).frontier
        if size == frontier.size:
            return frontier.root
        if size > frontier.size:
            return None
        return self._tree(dataset).root(size)

    def _tree(self, dataset: DatasetId) -> Tree:
        """Of the blocks that are here."""
        known = self._ledger.chain(dataset).frontier
        return Subtrees(self._db).tree(dataset, known, partial(self._leaves_of, dataset))


_KNOWN: Final = Processed(Admitted(AdmissionOutcome.OLDER, "known"))
PROCESS: Final[dict[str, Callable[[StatementProcessor, Any, Signed], Processed]]] = {
    HEAD: StatementProcessor._hear_head,
    AUTHORITY: StatementProcessor._hear_authority,
    ATTESTATION: StatementProcessor._hear_attestation,
    OBSERVATION: partial(StatementProcessor._hear_word, store=Observations),
    POLICY: partial(StatementProcessor._hear_word, store=NetworkPolicies),
}
"""How a statement is admitted and where it is kept, by its kind."""
