"""Takes in signed statements from peers: admits them, records them, and notifies subscribers.

Implements ``p2p.ports.StatementStore``; called from worker threads. Cheap checks come first: size, then whether it is
known, then JSON and signature, then budgets, then order. What was new is handed to ``on_news`` after it was recorded.
What cannot be judged yet, because a version of its authority is missing, waits for that version for a while; nothing
is remembered as seen whose answer may be another tomorrow.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec
from cachetools import LRUCache

from chain.errors import Invalid
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import cosignature, envelope, statement
from chain.statements import proof as proofs
from chain.statements.cosignature import Cosignature
from chain.statements.envelope import Signed
from chain.statements.proof import AUTHORITY_FORK, MAX_PROOF, Proof
from chain.statements.statement import (
    AnyPredicate,
    Authority,
)
from chain.store.base import ChainStore
from chain.store.database import Database
from chain.store.leaves import leaves_of
from odfd.datasets.visibility import PublicOf
from odfd.network.early_statements import EarlyStatements
from odfd.network.statement_kinds import KINDS
from odfd.network.statement_quota import StatementQuota
from odfd.trust.admission.rules import EARLY_LIMIT, AdmissionOutcome
from odfd.trust.admission.statement_processor import Processed, StatementProcessor
from odfd.trust.judgement import authority_fork_choice
from odfd.trust.ledger import kinds
from odfd.trust.ledger.authorities import Authorities
from odfd.trust.ledger.cosignatures import Cosignatures
from odfd.trust.ledger.log import Ledger
from p2p.ports import Judgement, PeerId, StatementRef, Topic

SEEN: Final = 65_536
"""Envelopes remembered by their hash, so that a repeated one costs one lookup."""
_COSIGNATURE: Final = b'{"line":'
"""How the canonical form of a cosignature begins, and no envelope does."""
_NOT_YET: Final = frozenset({AdmissionOutcome.EARLY, AdmissionOutcome.UNKNOWN_AUTHORITY})
"""Outcomes that time or another statement changes."""


class NewStatement(msgspec.Struct, frozen=True, kw_only=True):
    """A statement that changed what is known here."""

    predicate: AnyPredicate
    signer: KeyDid
    sid: Multihash
    outcome: AdmissionOutcome
    sender: PeerId
    envelope: bytes = b""
    proof: Proof | None = None
    """Of a contradiction: what proves it, when that could be made here."""


OnProof = Callable[[Proof, bool], None]
"""Told of a proof that is new, and whether it was made here and nobody else has it yet."""


class Subscribers(NamedTuple):
    """The callbacks that are told, from worker threads, of what is new here."""

    news: Callable[[NewStatement], None] = lambda _: None
    proof: OnProof = lambda _proof, _made_here: None
    cosignature: Callable[[Cosignature], None] = lambda _: None
    """Of witnesses that count here."""


class LedgerStatementStore:
    """The statement store over the ledger of one node."""

    def __init__(
        self,
        database: Database,
        chains: ChainStore,
        clock: Callable[[], Instant],
        public_of: PublicOf,
        hearers: Subscribers | None = None,
        room: StatementQuota | None = None,
    ) -> None:
        """``public_of``: of which datasets statements are passed on."""
        self._public_of = public_of
        self._on_news, self._on_proof, self._on_cosignature = hearers or Subscribers()
        self._database = database
        self._leaves = partial(leaves_of, chains)
        self._clock = clock
        self._room = room or StatementQuota()
        self._waiting = EarlyStatements()
        self._seen: LRUCache[Multihash, Judgement] = LRUCache(SEEN)
        self._lock = threading.Lock()

    def judge(self, topic: Topic, envelope: bytes, sender: PeerId) -> Judgement:
        if len(envelope) > (MAX_PROOF if topic is Topic.PROOFS else statement.MAX_ANY):
            return Judgement.REJECT
        name = Multihash.sha3_256(envelope)
        with self._lock:
            if (known := self._seen.get(name)) is not None:
                return Judgement.REJECT if known is Judgement.REJECT else Judgement.IGNORE
        judgement, final = self._way_in(topic, envelope)(topic, envelope, sender)
        if final:
            with self._lock:
                self._seen[name] = judgement
        return judgement

    def _way_in(self, topic: Topic, envelope: bytes) -> Callable[[Topic, bytes, PeerId], tuple[Judgement, bool]]:
        if topic is Topic.PROOFS:
            return self._admit_proof
        return self._admit_cosignature if envelope.startswith(_COSIGNATURE) else self._admit

    def refs(self, datasets: Sequence[DatasetId] | None = None) -> Sequence[StatementRef]:
        with self._database.read() as connection:
            found, rules = kinds.refs(connection, of_dataset=True), kinds.refs(connection, of_dataset=False)
        wanted = None if datasets is None else set(datasets)
        public = self._public_of({dataset for dataset, _ in found if wanted is None or dataset in wanted})
        said = [StatementRef(sid, dataset) for dataset, sid in found if dataset in public]
        return [*said, *(StatementRef(sid, key) for key, sid in rules if wanted is None or key in wanted)]

    def envelope(self, sid: Multihash) -> tuple[Topic, bytes] | None:
        with self._database.read() as connection:
            dataset = kinds.subject_of(connection, sid)
        if dataset is not None and not self._public_of([dataset]):
            return None
        with self._database.read() as connection:
            found = kinds.find(connection, sid)
        return None if found is None else (KINDS[found[0]].topic, found[1])

    def keep(self, proof: Proof) -> bool:
        """Keep a proof that was made here, and tell of it; whether it was new."""
        with self._database.write() as connection:
            is_new = StatementProcessor(connection, self._leaves, "", self._clock()).hear_proof(proof)
        if is_new:
            self._on_proof(proof, True)
        return is_new

    def _admit(self, topic: Topic, raw: bytes, sender: PeerId) -> tuple[Judgement, bool]:
        """The judgement, and whether the same bytes will get it again."""
        try:
            signed = envelope.unseal(raw, statement.MAX_ANY)
            said = statement.decode_any(signed.payload)
        except Invalid:
            return Judgement.REJECT, True
        if KINDS[said.KIND].topic is not topic:
            return Judgement.REJECT, True
        heard = self._hear(said, signed, sender)
        if heard is None:
            return Judgement.IGNORE, False
        if heard.outcome is AdmissionOutcome.UNKNOWN_AUTHORITY:
            self._waiting.put(said.dataset, raw, sender)
        if heard.outcome is AdmissionOutcome.REJECTED:
            return Judgement.REJECT, heard.verdict.lasts
        if not heard.outcome.changes:
            return Judgement.IGNORE, heard.verdict.lasts and heard.outcome not in _NOT_YET
        if isinstance(said, Authority) and heard.outcome is AdmissionOutcome.NEW:
            self._try_again(self._waiting.take(said.dataset))
        return Judgement.ACCEPT, True

    def _hear(self, said: AnyPredicate, signed: Signed, sender: PeerId) -> Processed | None:
        """``None``: there is no room for it now."""
        now = self._clock()
        with self._database.write() as connection:
            if not self._room.admits(connection, said, sender, now):
                return None
            heard = StatementProcessor(connection, self._leaves, sender, now).hear(said, signed)
            if isinstance(said, Authority) and heard.outcome.changes:
                authority_fork_choice.settle(connection, said.dataset, self._room.witnesses(), now)
            if heard.outcome.changes and said.KIND in kinds.OF_DATASET:
                self._room.took(connection, said.dataset)
        if heard.proof is not None:
            self._on_proof(heard.proof, True)
        if heard.outcome.changes and heard.signer is not None:
            news = NewStatement(
                predicate=said,
                signer=heard.signer,
                sid=signed.sid,
                outcome=heard.outcome,
                sender=sender,
                envelope=signed.envelope,
                proof=heard.proof,
            )
            self._on_news(news)
        return heard

    def _try_again(self, waited: Iterable[tuple[bytes, PeerId]]) -> None:
        """What waited for a version, now that it is here. What must wait for the next waits again."""
        for raw, sender in waited:
            self._admit(Topic.HEADS, raw, sender)

    def _admit_cosignature(self, topic: Topic, raw: bytes, _sender: PeerId) -> tuple[Judgement, bool]:
        """Those of datasets that are spoken of here; how many a quorum takes is for the policy to say."""
        try:
            made = cosignature.decode(raw)
        except Invalid:
            return Judgement.REJECT, True
        if topic is not Topic.HEADS:
            return Judgement.REJECT, True
        if made.at > self._clock() + EARLY_LIMIT:
            return Judgement.IGNORE, False
        dataset = made.checkpoint.dataset
        with self._database.write() as connection:
            if not Ledger(connection).speaks_of(dataset):
                return Judgement.IGNORE, False
            witnesses = self._room.witnesses()
            is_new = Cosignatures(connection).keep(made, listed=made.witness in witnesses.groups)
            if is_new and made.checkpoint.epoch is None:
                authority_fork_choice.settle(connection, dataset, witnesses, self._clock())
        if is_new and made.witness in witnesses.groups:
            self._on_cosignature(made)
        return (Judgement.ACCEPT if is_new else Judgement.IGNORE), True

    def _admit_proof(self, _topic: Topic, raw: bytes, sender: PeerId) -> tuple[Judgement, bool]:
        try:
            with self._database.read() as connection:
                proof = proofs.decode(raw, Authorities(connection).rights_at)
        except Invalid as fault:
            # A later authority may be known to others: not bad bytes, only of no use here yet.
            later = fault.rule in ("proof-authority", "proof-kind")
            return (Judgement.IGNORE, False) if later else (Judgement.REJECT, True)
        with self._database.write() as connection:
            now = self._clock()
            is_new = StatementProcessor(connection, self._leaves, sender, now).hear_proof(proof)
            if is_new and proof.kind == AUTHORITY_FORK:
                authority_fork_choice.settle(connection, proof.dataset, self._room.witnesses(), now)
        if not is_new:
            return Judgement.IGNORE, True
        self._on_proof(proof, False)
        return Judgement.ACCEPT, True
