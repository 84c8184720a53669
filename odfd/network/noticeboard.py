"""Signed statements that others bring: admitted, recorded, and told to whoever acts on them.

Implements ``p2p.ports.Noticeboard``; called from worker threads. Cheap checks come first: size, then whether it is
known, then JSON and signature, then order. What was new is handed to ``on_news`` after it was recorded.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements import proof as proofs
from chain.statements.envelope import Signed, dataset_key
from chain.statements.proof import MAX_PROOF, Proof
from chain.statements.statement import ATTESTATION, HEAD, Attestation, HeadStatement, Predicate
from chain.statements.tree import Tree
from chain.store.base import ChainStore
from chain.store.database import Database
from odfd.trust.admission import Outcome, Verdict, admit_attestation, admit_head
from odfd.trust.ledger import Ledger
from odfd.trust.proofs import Proofs, fork_of_last_block
from p2p.ports import Judgement, PeerId, StatementRef, Topic

SEEN: Final = 65_536
"""Envelopes remembered by their hash, so that a repeated one costs one lookup."""
TOPIC_OF: Final = {HEAD: Topic.HEADS, ATTESTATION: Topic.ATTEST}


class News(msgspec.Struct, frozen=True, kw_only=True):
    """A statement that changed what is known here."""

    predicate: Predicate
    signer: KeyDid
    sid: Multihash
    outcome: Outcome
    sender: PeerId
    envelope: bytes = b""
    proof: Proof | None = None
    """Of a contradiction: what proves it, when that could be made here."""


OnProof = Callable[[Proof, bool], None]
"""Told of a proof that is new, and whether it was made here and nobody else has it yet."""


class LedgerNoticeboard:
    """See the module."""

    def __init__(
        self,
        database: Database,
        chains: ChainStore,
        clock: Callable[[], Instant],
        on_news: Callable[[News], None],
        on_proof: OnProof = lambda _proof, _made_here: None,
    ) -> None:
        self._database = database
        self._chains = chains
        self._clock = clock
        self._on_news = on_news
        self._on_proof = on_proof
        self._seen: OrderedDict[Multihash, Judgement] = OrderedDict()
        self._lock = threading.Lock()

    def judge(self, topic: Topic, envelope: bytes, sender: PeerId) -> Judgement:
        if len(envelope) > (MAX_PROOF if topic is Topic.PROOFS else statement.MAX_ANY):
            return Judgement.REJECT
        name = Multihash.sha3_256(envelope)
        with self._lock:
            if name in self._seen:
                self._seen.move_to_end(name)
                known = self._seen[name]
                return Judgement.REJECT if known is Judgement.REJECT else Judgement.IGNORE
        admit = self._admit_proof if topic is Topic.PROOFS else self._admit
        judgement = admit(topic, envelope, sender)
        with self._lock:
            self._seen[name] = judgement
            if len(self._seen) > SEEN:
                self._seen.popitem(last=False)
        return judgement

    def refs(self, datasets: Sequence[DatasetId] | None = None) -> Sequence[StatementRef]:
        with self._database.read() as connection:
            found = [*Ledger(connection).live(datasets), *Proofs(connection).refs()]
        wanted = None if datasets is None else set(datasets)
        return [StatementRef(sid, dataset) for dataset, sid in found if wanted is None or dataset in wanted]

    def envelope(self, sid: Multihash) -> tuple[Topic, bytes] | None:
        with self._database.read() as connection:
            found = Ledger(connection).envelope(sid)
            proof = Proofs(connection).body(sid) if found is None else None
        if proof is not None:
            return Topic.PROOFS, proof
        return (TOPIC_OF[found[0]], found[1]) if found else None

    def keep(self, proof: Proof) -> bool:
        """Keep a proof that was made here, and tell of it; whether it was new."""
        with self._database.write() as connection:
            is_new = self._keep(connection, proof, "")
        if is_new:
            self._on_proof(proof, True)
        return is_new

    def _admit(self, topic: Topic, raw: bytes, sender: PeerId) -> Judgement:
        try:
            signed = envelope.unseal(raw, statement.MAX_ANY)
            predicate = statement.decode(signed.payload)
        except Invalid:
            return Judgement.REJECT
        kind = HEAD if isinstance(predicate, HeadStatement) else ATTESTATION
        if TOPIC_OF[kind] is not topic:
            return Judgement.REJECT
        signer = _signer(predicate)
        now = self._clock()
        with self._database.write() as connection:
            ledger = Ledger(connection)
            if ledger.known(signed.sid):
                return Judgement.IGNORE
            verdict = self._verdict(ledger, Proofs(connection), predicate, signed, now)
            if verdict.outcome is Outcome.REJECTED:
                return Judgement.REJECT
            changes = verdict.outcome.changes
            proof = self._contradiction(ledger, predicate, signed) if verdict.outcome is Outcome.FORK else None
            if proof is not None and not self._keep(connection, proof, sender):
                proof = None
            if changes:
                live = verdict.outcome is not Outcome.FORK
                ledger.record(signed, signer, verdict.outcome.value, sender, now, live=live)
        if not changes:
            return Judgement.IGNORE
        if proof is not None:
            self._on_proof(proof, True)
        news = News(
            predicate=predicate,
            signer=signer,
            sid=signed.sid,
            outcome=verdict.outcome,
            sender=sender,
            envelope=signed.envelope,
            proof=proof,
        )
        self._on_news(news)
        return Judgement.ACCEPT

    def _admit_proof(self, _topic: Topic, raw: bytes, sender: PeerId) -> Judgement:
        try:
            proof = proofs.decode(raw)
        except Invalid as fault:
            # A later authority may be known to others: not bad bytes, only of no use here yet.
            return Judgement.IGNORE if fault.rule in ("proof-authority", "proof-kind") else Judgement.REJECT
        with self._database.write() as connection:
            is_new = self._keep(connection, proof, sender)
        if not is_new:
            return Judgement.IGNORE
        self._on_proof(proof, False)
        return Judgement.ACCEPT

    def _keep(self, connection: sqlite3.Connection, proof: Proof, sender: PeerId | str) -> bool:
        if not Proofs(connection).keep(proof):
            return False
        Ledger(connection).record_proof(proof, sender, self._clock())
        return True

    def _contradiction(self, ledger: Ledger, predicate: Predicate, signed: Signed) -> Proof | None:
        """The proof of it, when all it takes is here; what of another branch is missing must be asked for."""
        if isinstance(predicate, Attestation):
            before = ledger.statement(predicate.dataset, ATTESTATION, predicate.validator)
            try:
                return None if before is None else proofs.double_vote(before.envelope, signed.envelope)
            except Invalid:
                return None
        newest = ledger.newest_head(predicate.dataset)
        if newest is None:
            return None
        mine = (newest[0], newest[1])
        leaves = partial(self._leaves, predicate.dataset)
        return fork_of_last_block(
            mine, (predicate, signed), leaves, lambda size: self._root_at(ledger, predicate.dataset, size)
        )

    def _leaves(self, dataset: DatasetId, start: int, stop: int) -> list[bytes]:
        return [Multihash.sha3_256(raw).digest for raw in self._chains.chain(dataset).raw_blocks(start, stop)]

    def _verdict(
        self, ledger: Ledger, proofs_kept: Proofs, predicate: Predicate, signed: Signed, now: Instant
    ) -> Verdict:
        if isinstance(predicate, HeadStatement):
            newest = ledger.newest_head(predicate.dataset)
            return admit_head(
                predicate,
                signed,
                newest[0] if newest else None,
                lambda size: self._root_at(ledger, predicate.dataset, size),
                now,
                forked_at=proofs_kept.forked_at(predicate.dataset, predicate.epoch),
            )
        assert isinstance(predicate, Attestation)
        before = ledger.attestations(predicate.dataset).get(predicate.validator)
        return admit_attestation(predicate, signed, before, now)

    def _root_at(self, ledger: Ledger, dataset: DatasetId, size: int) -> bytes | None:
        """Root of my tree at ``size``: kept for the whole chain, computed from the blocks for a part of it."""
        frontier = ledger.chain(dataset).frontier
        if size == frontier.size:
            return frontier.root
        if size > frontier.size:
            return None
        return Tree(partial(self._leaves, dataset)).root(size)


def _signer(predicate: Predicate) -> KeyDid:
    """Whose statement it is, whoever else signed the envelope: admission has this key's signature checked."""
    return predicate.validator if isinstance(predicate, Attestation) else dataset_key(predicate.dataset)
