"""Signed statements that others bring: admitted, recorded, and told to whoever acts on them.

Implements ``p2p.ports.Noticeboard``; called from worker threads. Cheap checks come first: size, then whether it is
known, then JSON and signature, then order. What was new is handed to ``on_news`` after it was recorded.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.envelope import Signed
from chain.statements.statement import ATTESTATION, HEAD, Attestation, HeadStatement, Predicate
from chain.statements.tree import Tree
from chain.store.base import ChainStore
from chain.store.database import Database
from odfd.trust.admission import Outcome, Verdict, admit_attestation, admit_head
from odfd.trust.ledger import Ledger
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


class LedgerNoticeboard:
    """See the module."""

    def __init__(
        self,
        database: Database,
        chains: ChainStore,
        clock: Callable[[], Instant],
        on_news: Callable[[News], None],
    ) -> None:
        self._database = database
        self._chains = chains
        self._clock = clock
        self._on_news = on_news
        self._seen: OrderedDict[Multihash, Judgement] = OrderedDict()
        self._lock = threading.Lock()

    def judge(self, topic: Topic, envelope: bytes, sender: PeerId) -> Judgement:
        if len(envelope) > statement.MAX_ANY:
            return Judgement.REJECT
        name = Multihash.sha3_256(envelope)
        with self._lock:
            if name in self._seen:
                self._seen.move_to_end(name)
                known = self._seen[name]
                return Judgement.REJECT if known is Judgement.REJECT else Judgement.IGNORE
        judgement = self._admit(topic, envelope, sender)
        with self._lock:
            self._seen[name] = judgement
            if len(self._seen) > SEEN:
                self._seen.popitem(last=False)
        return judgement

    def refs(self, datasets: Sequence[DatasetId] | None = None) -> Sequence[StatementRef]:
        with self._database.read() as connection:
            return [StatementRef(sid, dataset) for dataset, sid in Ledger(connection).live(datasets)]

    def envelope(self, sid: Multihash) -> tuple[Topic, bytes] | None:
        with self._database.read() as connection:
            found = Ledger(connection).envelope(sid)
        return (TOPIC_OF[found[0]], found[1]) if found else None

    def _admit(self, topic: Topic, raw: bytes, sender: PeerId) -> Judgement:
        try:
            signed = envelope.unseal(raw, statement.MAX_ANY)
            predicate = statement.decode(signed.payload)
        except Invalid:
            return Judgement.REJECT
        kind = HEAD if isinstance(predicate, HeadStatement) else ATTESTATION
        if TOPIC_OF[kind] is not topic:
            return Judgement.REJECT
        signer = signed.signers[0]
        now = self._clock()
        with self._database.write() as connection:
            ledger = Ledger(connection)
            if ledger.known(signed.sid):
                return Judgement.IGNORE
            verdict = self._verdict(ledger, predicate, signed, now)
            if verdict.outcome is Outcome.REJECTED:
                return Judgement.REJECT
            changes = verdict.outcome.changes
            if changes or verdict.outcome is Outcome.UNKNOWN_AUTHORITY:
                live = changes and verdict.outcome is not Outcome.FORK
                ledger.record(signed, signer, verdict.outcome.value, sender, now, live=live)
        if not changes:
            return Judgement.IGNORE
        self._on_news(News(predicate=predicate, signer=signer, sid=signed.sid, outcome=verdict.outcome, sender=sender))
        return Judgement.ACCEPT

    def _verdict(self, ledger: Ledger, predicate: Predicate, signed: Signed, now: Instant) -> Verdict:
        if isinstance(predicate, HeadStatement):
            newest = ledger.newest_head(predicate.dataset)
            return admit_head(
                predicate,
                signed,
                newest[0] if newest else None,
                lambda size: self._root_at(ledger, predicate.dataset, size),
                now,
            )
        assert isinstance(predicate, Attestation)
        signer = signed.signers[0]
        return admit_attestation(predicate, signed, signer, ledger.attestations(predicate.dataset).get(signer), now)

    def _root_at(self, ledger: Ledger, dataset: DatasetId, size: int) -> bytes | None:
        """Root of my tree at ``size``: kept for the whole chain, computed from the blocks for a part of it."""
        frontier = ledger.chain(dataset).frontier
        if size == frontier.size:
            return frontier.root
        if size > frontier.size:
            return None
        chain = self._chains.chain(dataset)

        def leaves(start: int, stop: int) -> list[bytes]:
            return [Multihash.sha3_256(raw).digest for raw in chain.raw_blocks(start, stop)]

        return Tree(leaves).root(size)
