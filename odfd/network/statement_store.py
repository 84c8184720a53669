"""Takes in signed statements from peers: judges them, records them, and notifies subscribers.

Implements ``p2p.ports.StatementStore``; called from worker threads. Cheap checks come first: size, then whether the
statement is known, then JSON and signature, then order, then quotas. Judging uses a reading connection; only statements
that will be kept take the node's single writing transaction. Statements on datasets that nobody wants here stay in
memory. New ones are passed to ``on_news`` after they were recorded. A statement whose authority version is missing
waits for that version for a while; it is not remembered as seen, because its judgement may change.
"""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
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
from chain.statements.authority import Rights
from chain.statements.card import CARD, Card
from chain.statements.cosignature import Cosignature
from chain.statements.envelope import Signed
from chain.statements.node_card import NodeCard
from chain.statements.proof import AUTHORITY_FORK, DOUBLE_COSIGN, DOUBLE_VOTE, MAX_PROOF, Proof
from chain.statements.statement import (
    POLICY,
    AnyPredicate,
    Authority,
    PolicyStatement,
    Word,
)
from chain.store.base import ChainStore, leaves_of
from chain.store.database import Database
from odfd.network.peer_cards import PeerCards, SharedCards
from odfd.network.statement_quota import StatementQuota
from odfd.network.unheld_statements import EarlyStatements, UnheldFull, UnheldStatements
from odfd.store.ledger import kinds
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.cards import Cards, read
from odfd.store.ledger.cosignatures import Cosignatures
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.proofs import Proofs
from odfd.store.visibility import PublicOf, Visibility
from odfd.trust.admission.rules import EARLY_LIMIT, AdmissionOutcome
from odfd.trust.admission.statement_kinds import KINDS
from odfd.trust.admission.statement_processor import Judged, Processed, StatementProcessor
from odfd.trust.judgement import authority_fork_choice
from p2p.ports import Concern, Judgement, PeerId, StatementRef, Topic


class NetworkRules(NamedTuple):
    """Rules that depend on the network in which a statement is received or shown."""

    within: Callable[[str], PublicOf]
    """Returns ``public_of`` for a network."""
    reaches: Callable[[DatasetId, str], bool]
    """Whether a dataset was announced in a network, even if it is private now: there it may be withdrawn."""
    heard: Callable[[DatasetId, str, bool], None]
    """Called before a statement on another's dataset is judged, with the network and whether the dataset is wanted."""
    keep: Callable[[DatasetId], None]
    """Called when a dataset becomes wanted: the networks where it was mentioned are then stored."""


def network_rules(visibility: Visibility, clock: Callable[[], Instant]) -> NetworkRules:
    def reaches(dataset: DatasetId, network: str) -> bool:
        scope = visibility.scope(dataset)
        return scope is None or network in scope

    def note_mention(dataset: DatasetId, network: str, is_wanted: bool) -> None:
        visibility.note_mention(dataset, network, clock(), is_wanted=is_wanted)

    def keep(dataset: DatasetId) -> None:
        if visibility.is_divided():
            visibility.keep_heard(dataset, clock())

    return NetworkRules(visibility.within, reaches, note_mention, keep)


def is_told_in(database: Database, sid: Multihash, network: str) -> bool:
    """Whether a statement on a key is shown in a network: policies name theirs; proofs against keys go everywhere."""
    with database.read() as connection:
        found = kinds.find(connection, sid)
    if found is None or found[0] != POLICY:
        return True
    said = statement.decode_any(envelope.payload_of(found[1]))
    return isinstance(said, PolicyStatement) and said.network == network


COSIGNATURE: Final = b'{"line":'
"""The beginning of a cosignature's canonical form; no envelope begins so."""


class StatementSubject(NamedTuple):
    dataset: DatasetId
    accused: tuple[KeyDid, ...] = ()
    is_bulky: bool = False


def subject_of(topic: Topic, raw: bytes, rights_at: Callable[[DatasetId, int], Rights | None]) -> StatementSubject:
    """Returns the subject of a statement. Raises Invalid."""
    if topic is Topic.PROOFS:
        proof = proofs.decode(raw, rights_at)
        return StatementSubject(proof.dataset, proof.accused)
    if raw.startswith(COSIGNATURE):
        return StatementSubject(cosignature.decode(raw).checkpoint.dataset)
    said = statement.decode_any(envelope.payload_of(raw))
    return StatementSubject(said.dataset, is_bulky=isinstance(said, Card | NodeCard) and not said.is_withdrawal)


def is_withdrawal(found: tuple[str, bytes]) -> bool:
    """Whether a statement is a card that withdraws a former one; it is announced even if the dataset is private."""
    kind, sealed = found
    return kind == CARD and read(sealed).is_withdrawal


class NewStatement(msgspec.Struct, frozen=True, kw_only=True):
    """An admitted statement that is new here."""

    predicate: AnyPredicate
    signer: KeyDid
    sid: Multihash
    outcome: AdmissionOutcome
    sender: PeerId
    envelope: bytes = b""
    proof: Proof | None = None
    """The proof, if the statement contradicts another and the proof could be made here."""


OnProof = Callable[[Proof, bool], None]
"""Called with a new proof, and whether it was made here, so that nobody else has it."""


class Subscribers(NamedTuple):
    """Callbacks for new statements, called from worker threads."""

    news: Callable[[NewStatement], None] = lambda _: None
    proof: OnProof = lambda _proof, _made_here: None
    cosignature: Callable[[Cosignature], None] = lambda _: None
    """Called for cosignatures of witnesses that count here."""


SEEN: Final = 65_536
"""Envelopes remembered by hash, so that a repeated one costs one lookup."""
_OURSELVES: Final = PeerId("")
_AGAINST_LISTED_KEYS: Final = frozenset({DOUBLE_VOTE, DOUBLE_COSIGN})
"""Proofs against validators and witnesses, which each node lists for itself."""
_NOT_YET: Final = frozenset({AdmissionOutcome.EARLY, AdmissionOutcome.UNKNOWN_AUTHORITY})
"""Judgements that time or another statement may change."""


class _LookedAt(NamedTuple):
    """The judgement of a statement, and the state of the database that it was based on."""

    found: Judged
    writes: int
    at: Instant


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
        networks: NetworkRules | None = None,
    ) -> None:
        """``public_of``: returns the datasets whose statements are passed on.

        ``networks``: rules for several networks; ``None`` if all networks are alike.
        """
        self._public_of = public_of
        self._on_news, self._on_proof, self._on_cosignature = hearers or Subscribers()
        self._database = database
        self._leaves = partial(leaves_of, chains)
        self._clock = clock
        self._room = room or StatementQuota()
        self.unheld = UnheldStatements()
        self.peer_cards = PeerCards(self._room, clock)
        self.shared_cards = SharedCards()
        self._attended: Counter[DatasetId] = Counter()
        """Datasets that a person is importing just now."""
        self._adopting = threading.RLock()
        """Held while statements in memory are judged again, so that no reader sees a part of them."""
        self._waiting = EarlyStatements()
        self._seen: LRUCache[Multihash, Judgement] = LRUCache(SEEN)
        self._lock = threading.Lock()
        self._networks = networks
        self._network = ""
        """The network in which this view receives and shows statements; empty for none in particular."""

    def within(self, network: str) -> LedgerStatementStore:
        """Returns the store as seen in a network. All views share what is stored."""
        scoped = copy.copy(self)
        scoped._network = network
        if self._networks is not None:
            scoped._public_of = self._networks.within(network)
        return scoped

    def to(self, peer: PeerId) -> LedgerStatementStore:
        """Returns the store as seen by a peer."""
        scoped = copy.copy(self)
        scoped._public_of = lambda datasets, _=None: self._public_of(datasets, peer)
        return scoped

    @property
    def judged(self) -> int:
        """The number of statements whose judgement is cached."""
        return len(self._seen)

    def judge(self, topic: Topic, envelope: bytes, sender: PeerId) -> Judgement:
        if len(envelope) > (MAX_PROOF if topic is Topic.PROOFS else statement.MAX_ANY):
            return Judgement.REJECT
        name = Multihash.sha3_256(envelope)
        self._note_heard(topic, envelope)
        with self._lock:
            if (known := self._seen.get(name)) is not None:
                return Judgement.REJECT if known is Judgement.REJECT else Judgement.IGNORE
        judgement, final = self._way_in(topic, envelope)(topic, envelope, sender)
        if final:
            with self._lock:
                self._seen[name] = judgement
        return judgement

    def _note_heard(self, topic: Topic, envelope: bytes) -> None:
        """Notes where a dataset was mentioned before its statement is judged: until then nothing of it is passed on."""
        if self._networks is None or not self._network:
            return
        try:
            dataset = subject_of(topic, envelope, self._rights_at).dataset
        except Invalid:
            return  # it is refused
        self._networks.heard(dataset, self._network, self._is_wanted(dataset))

    def _way_in(self, topic: Topic, envelope: bytes) -> Callable[[Topic, bytes, PeerId], tuple[Judgement, bool]]:
        if topic is Topic.PROOFS:
            return self._admit_proof
        return self._admit_cosignature if envelope.startswith(COSIGNATURE) else self._admit

    def refs(self, datasets: Sequence[DatasetId] | None = None) -> Sequence[StatementRef]:
        with self._database.read() as connection:
            found = kinds.refs(connection, of_dataset=True, subjects=datasets)
            rules = kinds.refs(connection, of_dataset=False, subjects=datasets)
            against = kinds.accusing(connection, datasets or ())
            withdrawn = Cards(connection).list_withdrawn()
        unheld = [*self.unheld.refs(datasets), *self.peer_cards.refs(datasets)]
        shared = self.shared_cards.refs(
            datasets or ()
        )  # in memory: no question to the database tells that there is one
        asked = {dataset for dataset, _ in found} | {dataset for _, dataset, _ in against}
        if self._network:
            asked.update(ref.dataset for ref in unheld)
        public = self._public_of(asked.union(datasets or ()))  # of what is not here too: it takes as long
        rules += [(key, sid) for key, dataset, sid in against if dataset in public]
        kept = [
            StatementRef(sid, dataset)
            for dataset, sid in found
            if dataset in public or (withdrawn.get(dataset) == sid and self._may_take_back(dataset))
        ]
        if self._network:
            unheld = [ref for ref in unheld if ref.dataset in public]
            rules = [(key, sid) for key, sid in rules if is_told_in(self._database, sid, self._network)]
        given = [ref for ref in shared if ref.dataset in public]
        return [*kept, *given, *unheld, *(StatementRef(sid, key) for key, sid in rules)]

    def _may_take_back(self, dataset: DatasetId) -> bool:
        """Whether the withdrawal of a card may be shown here: only where the card was."""
        return self._networks is None or not self._network or self._networks.reaches(dataset, self._network)

    def interests(self) -> Sequence[DatasetId]:
        with self._lock:
            brought = {dataset for dataset, times in self._attended.items() if times}
        with self._database.read() as connection:
            kept = {dataset for dataset, _ in kinds.refs(connection, of_dataset=True)}
            rules = {key for key, _ in kinds.refs(connection, of_dataset=False)}
            kept |= set(self._room.interests(connection))
        return [*self._public_of(kept - brought), *rules]  # what a person brings may be private once it is here

    def envelope(self, sid: Multihash) -> tuple[Topic, bytes] | None:
        with self._database.read() as connection:
            dataset, found = kinds.subject_of(connection, sid), kinds.find(connection, sid)
        if found is None and (shared := self.shared_cards.envelope(sid)) is not None:
            return (Topic.HEADS, shared[1]) if self._public_of([shared[0]]) else None
        if found is None:
            unheld = self.unheld.envelope(sid) or self.peer_cards.envelope(sid)
            if unheld is None or (self._network and not self._public_of([unheld[0]])):
                return None
            return unheld[1:]
        if dataset is not None and not self._public_of([dataset]):
            is_told = is_withdrawal(found) and self._may_take_back(dataset)
            if not is_told:
                return None
        if self._network and not is_told_in(self._database, sid, self._network):
            return None
        return KINDS[found[0]].topic, found[1]

    def concern(self, topic: Topic, envelope: bytes) -> Concern:
        """Returns what a statement concerns. A private dataset counts as unwanted, to hide that it is here."""
        subject = subject_of(topic, envelope, self._rights_at)
        dataset, accused = subject.dataset, subject.accused
        keys = tuple(DatasetId.from_public_key(key.public_key) for key in accused)
        is_known = bool(accused) and self._room.is_known(accused)
        is_wanted = is_known or (not self._attended[dataset] and self._is_wanted(dataset))
        is_public = is_known or self._public_of([dataset])
        return Concern((dataset, *keys), is_wanted and bool(is_public), is_bulky=subject.is_bulky)

    def adopt(self, dataset: DatasetId) -> None:
        """Judges and keeps the statements in memory on a dataset that is wanted from now on."""
        if self._networks is not None:
            self._networks.keep(dataset)
        with self._adopting:  # also where nothing is left: another may be at it
            if self.unheld.speaks_of(dataset):
                for topic, raw in self.unheld.take(dataset):
                    self._way_in(topic, raw)(topic, raw, _OURSELVES)

    @contextmanager
    def attend(self, dataset: DatasetId) -> Iterator[None]:
        """Keeps statements on a dataset that a person is importing, for the duration of the context."""
        with self._lock:
            self._attended[dataset] += 1
        try:
            self.adopt(dataset)
            yield
        finally:
            with self._lock:
                self._attended[dataset] -= 1

    def keep(self, proof: Proof) -> bool:
        """Stores a proof made here and announces it; returns whether it was new."""
        with self._database.write() as connection:
            is_new = StatementProcessor(connection, self._leaves, "", self._clock()).hear_proof(proof)
        if is_new:
            self._on_proof(proof, True)
        return is_new

    def _admit(self, topic: Topic, raw: bytes, sender: PeerId) -> tuple[Judgement, bool]:
        """Returns the judgement, and whether the same bytes will always get it."""
        try:
            signed = envelope.unseal(raw, statement.MAX_ANY)
            predicate = statement.decode_any(signed.payload)
        except Invalid:
            return Judgement.REJECT, True
        if KINDS[predicate.KIND].topic is not topic:
            return Judgement.REJECT, True
        is_ours = isinstance(predicate, PolicyStatement) or self._room.is_mine(signed.signers)
        # Cards of others take no row and no transaction
        # (test_cards_of_nodes_without_end_stay_in_memory_and_within_bounds).
        if isinstance(predicate, NodeCard) and not is_ours:
            return self.peer_cards.judge(predicate, signed, sender)
        is_kept_here = is_ours or self._is_wanted(predicate.dataset)
        heard = (
            self._process(predicate, signed, sender)
            if is_kept_here
            else self._process_unheld(predicate, signed, sender)
        )
        if not is_kept_here and self._became_needed(predicate.dataset):
            is_kept_here, heard = True, self._process(predicate, signed, sender)
        if heard is None:
            return Judgement.IGNORE, False
        if heard.outcome is AdmissionOutcome.UNKNOWN_AUTHORITY:
            self._waiting.put(predicate.dataset, raw, sender)
        lasts = heard.verdict.lasts and is_kept_here  # what stays in memory may go and come again
        if heard.outcome is AdmissionOutcome.REJECTED:
            return Judgement.REJECT, heard.verdict.lasts
        if not heard.outcome.changes:
            return Judgement.IGNORE, lasts and heard.outcome not in _NOT_YET
        if not heard.is_kept:
            return Judgement.IGNORE, True
        if isinstance(predicate, Authority) and heard.outcome is AdmissionOutcome.NEW:
            self._try_again(self._waiting.take(predicate.dataset))
        return Judgement.ACCEPT, is_kept_here

    def _is_wanted(self, dataset: DatasetId) -> bool:
        if self._attended[dataset]:
            return True
        with self._database.read() as connection:
            return self._room.concerns(connection, dataset)

    def _became_needed(self, dataset: DatasetId) -> bool:
        """Whether a dataset became wanted while a statement on it went to memory; the statement is then stored."""
        if not self._is_wanted(dataset):
            return False
        self.adopt(dataset)
        return True

    def _process(self, predicate: AnyPredicate, signed: Signed, sender: PeerId) -> Processed | None:
        """Judges and stores a statement; ``None`` if there is no room for it now."""
        self.adopt(predicate.dataset)
        now, seen = self._clock(), self._database.writes
        with self._database.read() as connection:
            if not self._room.has_room(connection, predicate):
                return None
            found = StatementProcessor(connection, self._leaves, sender, now).judge(predicate, signed)
        if (found.verdict.outcome.changes or found.is_kept) and not self._room.takes(predicate, found, sender, now):
            return None
        if not found.is_kept:
            heard = Processed(found.verdict, found.signer, is_kept=False)
        else:
            heard = self._record(predicate, signed, sender, _LookedAt(found, seen, now))
        self._notify(predicate, signed, sender, heard)
        return heard

    def _record(self, predicate: AnyPredicate, signed: Signed, sender: PeerId, looked: _LookedAt) -> Processed:
        """Records a statement; judges it again within the transaction if the database changed since."""
        now = looked.at
        with self._database.write() as connection:
            processor = StatementProcessor(connection, self._leaves, sender, now)
            found = looked.found if self._database.writes == looked.writes else processor.judge(predicate, signed)
            heard = processor.keep(predicate, signed, found)
            if isinstance(predicate, Authority) and heard.outcome.changes:
                authority_fork_choice.settle(connection, predicate.dataset, self._room.witnesses(), now)
        return heard

    def _notify(self, predicate: AnyPredicate, signed: Signed, sender: PeerId, heard: Processed) -> None:
        if heard.proof is not None:
            self._on_proof(heard.proof, True)
        if heard.outcome.changes and heard.signer is not None:
            news = NewStatement(
                predicate=predicate,
                signer=heard.signer,
                sid=signed.sid,
                outcome=heard.outcome,
                sender=sender,
                envelope=signed.envelope,
                proof=heard.proof,
            )
            self._on_news(news)

    def _process_unheld(self, predicate: AnyPredicate, signed: Signed, sender: PeerId) -> Processed | None:
        """Judges a statement on an unneeded dataset and keeps it in memory, without notifications except to peers."""
        now, dataset = self._clock(), predicate.dataset
        if (
            isinstance(predicate, Word)
            and KINDS[predicate.KIND].by_unlisted
            and not self._room.is_known((predicate.author,))
        ):
            return None
        # Ids of datasets can be invented (test_a_peer_brings_so_many_new_datasets_an_hour).
        if not self.unheld.speaks_of(dataset) and not self._room.brings_new(sender, now):
            return None
        try:
            with self.unheld.write(dataset) as connection:
                if not self._room.has_room(connection, predicate):
                    return None
                processor = StatementProcessor(connection, _no_leaves, sender, now)
                found = processor.judge(predicate, signed)
                if (
                    found.is_kept
                    and found.verdict.outcome.changes
                    and not self._room.takes(predicate, found, sender, now)
                ):
                    return None
                heard = processor.keep(predicate, signed, found)
                if isinstance(predicate, Authority) and heard.outcome.changes:
                    authority_fork_choice.settle(connection, dataset, self._room.witnesses(), now)
        except UnheldFull:
            return None
        if heard.proof is not None:
            # Who contradicts himself on a dataset of no interest here counts no more
            # (test_a_round_over_listed_keys_brings_proofs_on_datasets_nobody_wants).
            self._keep_if_known(heard.proof, sender, now)
            self._on_proof(heard.proof, True)
        return heard

    def _keep_if_known(self, proof: Proof, sender: PeerId, now: Instant) -> None:
        """Stores a proof against keys that count here, whatever dataset it is about."""
        if self._room.is_known(proof.accused):
            with self._database.write() as connection:
                StatementProcessor(connection, self._leaves, sender, now).hear_proof(proof)

    def _try_again(self, waited: Iterable[tuple[bytes, PeerId]]) -> None:
        """Judges statements that waited for an authority version which has arrived. Some may wait for the next one."""
        for raw, sender in waited:
            self._admit(Topic.HEADS, raw, sender)

    def _admit_cosignature(self, topic: Topic, raw: bytes, sender: PeerId) -> tuple[Judgement, bool]:
        """Takes a cosignature on a dataset that is mentioned here; policy decides how many make a quorum."""
        try:
            made = cosignature.decode(raw)
        except Invalid:
            return Judgement.REJECT, True
        if topic is not Topic.HEADS:
            return Judgement.REJECT, True
        now = self._clock()
        if made.at > now + EARLY_LIMIT:
            return Judgement.IGNORE, False
        dataset, witnesses = made.checkpoint.dataset, self._room.witnesses()
        is_listed = made.witness in witnesses.groups or self._room.is_mine((made.witness,))
        # Keys are free, and all that nobody listed share one rate (test_strangers_leave_room_for_witnesses_that_count).
        if not is_listed and not self._room.takes_unlisted(sender, now):
            return Judgement.IGNORE, False
        if not self._room.is_mine((made.witness,)) and not self._is_wanted(dataset):
            kept = self._keep_unheld_cosignature(made, listed=is_listed)
            if not self._became_needed(dataset):
                return kept
        self.adopt(dataset)
        with self._database.read() as connection:
            if not Ledger(connection).speaks_of(dataset):
                return Judgement.IGNORE, False
            if not Cosignatures(connection).is_news(made, listed=is_listed):
                return Judgement.IGNORE, True
        with self._database.write() as connection:
            is_new = Cosignatures(connection).keep(made, listed=is_listed)
            if is_new and made.checkpoint.epoch is None:
                authority_fork_choice.settle(connection, dataset, witnesses, now)
        if is_new and made.witness in witnesses.groups:
            self._on_cosignature(made)
        return (Judgement.ACCEPT if is_new else Judgement.IGNORE), True

    def _keep_unheld_cosignature(self, made: Cosignature, *, listed: bool) -> tuple[Judgement, bool]:
        dataset = made.checkpoint.dataset
        if not self.unheld.speaks_of(dataset):
            return Judgement.IGNORE, False
        try:
            with self.unheld.write(dataset) as connection:
                is_new = Cosignatures(connection).keep(made, listed=listed)
        except UnheldFull:
            return Judgement.IGNORE, False
        return (Judgement.ACCEPT if is_new else Judgement.IGNORE), False

    def _rights_at(self, dataset: DatasetId, version: int) -> Rights | None:
        with self._database.read() as connection:
            found = Authorities(connection).rights_at(dataset, version)
        if found is not None or not self.unheld.speaks_of(dataset):
            return found
        with self.unheld.read() as connection:
            return Authorities(connection).rights_at(dataset, version)

    def _admit_proof(self, _topic: Topic, raw: bytes, sender: PeerId) -> tuple[Judgement, bool]:
        try:
            proof = proofs.decode(raw, self._rights_at)
        except Invalid as fault:
            # A later authority may be known to others: not bad bytes, only of no use here yet.
            later = fault.rule in ("proof-authority", "proof-kind")
            return (Judgement.IGNORE, False) if later else (Judgement.REJECT, True)
        now, is_known = self._clock(), self._room.is_known(proof.accused)
        is_wanted = self._is_wanted(proof.dataset)
        if is_wanted and not is_known and proof.kind in _AGAINST_LISTED_KEYS:
            # Of a voice that counts for nothing here: others may have listed it.
            return (Judgement.ACCEPT, True) if self._room.takes_unlisted(sender, now) else (Judgement.IGNORE, False)
        if not is_wanted and not is_known:
            unheld = self._keep_unheld_proof(proof, sender, now)
            if not self._became_needed(proof.dataset):
                return unheld
        self.adopt(proof.dataset)
        with self._database.read() as connection:
            if not Proofs(connection).is_news(proof):
                return Judgement.IGNORE, True
        if not self._room.takes_proof(proof.dataset, now):
            return Judgement.IGNORE, False
        with self._database.write() as connection:
            is_new = StatementProcessor(connection, self._leaves, sender, now).hear_proof(proof)
            if is_new and proof.kind == AUTHORITY_FORK:
                authority_fork_choice.settle(connection, proof.dataset, self._room.witnesses(), now)
        if not is_new:
            return Judgement.IGNORE, True
        self._on_proof(proof, False)
        return Judgement.ACCEPT, True

    def _keep_unheld_proof(self, proof: Proof, sender: PeerId, now: Instant) -> tuple[Judgement, bool]:
        if not self.unheld.speaks_of(proof.dataset) and not self._room.brings_new(sender, now):
            return Judgement.IGNORE, False
        if not self._room.takes_proof(proof.dataset, now):
            return Judgement.IGNORE, False
        try:
            with self.unheld.write(proof.dataset) as connection:
                is_new = StatementProcessor(connection, _no_leaves, sender, now).hear_proof(proof)
                if is_new and proof.kind == AUTHORITY_FORK:
                    authority_fork_choice.settle(connection, proof.dataset, self._room.witnesses(), now)
        except UnheldFull:
            return Judgement.IGNORE, False
        return (Judgement.ACCEPT if is_new else Judgement.IGNORE), False


def _no_leaves(_dataset: DatasetId, _start: int, _stop: int) -> Sequence[bytes]:
    """Returns the leaves of a dataset that is not here: none."""
    return ()
