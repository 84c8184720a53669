"""Stores the cards of other nodes: in memory, within bounds, never on disk.

A card stays while its node is away, until it expires or a newer one replaces it. A card that withdraws the former one
stays too, so that the former one does not return. One card is kept for each node, for a limited number of nodes; beyond
that, the address block that brought the most loses what it brought first, so invented nodes displace no others. An
evicted card is requested again by anti-entropy. Safe to use from any thread. Spec: docs/spec/trust.md#node-cards.

``SharedCards`` keeps cards of shards that are shared with single peers: in memory, for those peers alone. A card lists
the shards of a collection, and whoever it is shared with learns them from it. It is in no ledger and is announced to
nobody: a card in the ledger is withdrawn aloud, which would tell strangers of what was never public. It is told to a
peer that may have the dataset, asks for it by its id, and passes nothing on. Safe to use from any thread. Spec:
docs/spec/collections.md#shared-shards; ADR 42.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements.card import Card
from chain.statements.envelope import Signed
from chain.statements.node_card import NodeCard, NodeClaims
from odfd.network.statement_quota import StatementQuota
from odfd.trust.admission.rules import AdmissionOutcome, admit_word
from odfd.trust.admission.statement_processor import Judged
from p2p.ports import Judgement, PeerId, StatementRef, Topic

MAX_NODE_CARDS: Final = 4096
"""Nodes with a card at most, as many as the directory of peers holds; 16 MiB of the largest envelopes."""


class _Kept(NamedTuple):
    card: NodeCard
    sid: Multihash
    envelope: bytes
    share: str
    """The address block of the peer that brought the card."""


class PeerCards:
    """The cards of other nodes that one node keeps."""

    def __init__(self, quota: StatementQuota, clock: Callable[[], Instant], most: int = MAX_NODE_CARDS) -> None:
        self._quota, self._clock, self._most = quota, clock, most
        self._lock = threading.Lock()
        self._kept: OrderedDict[KeyDid, _Kept] = OrderedDict()
        """Cards in the order in which they were brought."""
        self._nodes: dict[Multihash, KeyDid] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def judge(self, card: NodeCard, signed: Signed, sender: PeerId) -> tuple[Judgement, bool]:
        """Judges a card, and keeps a new one. Also returns whether the same bytes always get this judgement."""
        now = self._clock()
        with self._lock:
            before = self._kept.get(card.node)
        is_news = before is None or (card.issued, signed.sid) > (before.card.issued, before.sid)
        verdict = admit_word(card, signed, now, is_news=is_news and card.expires > now)
        if verdict.outcome is AdmissionOutcome.REJECTED:
            return Judgement.REJECT, verdict.lasts
        if not verdict.outcome.changes:
            return Judgement.IGNORE, False
        if before is None and not self._quota.brings_node(sender, now):
            return Judgement.IGNORE, False
        if not self._quota.takes(card, Judged(verdict, card.node, is_kept=True), sender, now):
            return Judgement.IGNORE, False
        self._keep(_Kept(card, signed.sid, signed.envelope, self._quota.share_of(sender)), now)
        return Judgement.ACCEPT, False

    def claims(self) -> dict[KeyDid, NodeClaims]:
        """Returns what nodes state about themselves, by valid cards."""
        now = self._clock()
        with self._lock:
            kept = [each.card for each in self._kept.values()]
        return {card.node: card.claims for card in kept if card.claims is not None and card.expires > now}

    def refs(self, subjects: Collection[DatasetId] | None = None) -> list[StatementRef]:
        """Lists cards of these keys, written as dataset ids; ``None`` for all. Expired cards are left out."""
        now = self._clock()
        with self._lock:
            asked = self._kept if subjects is None else dict.fromkeys(KeyDid(subject) for subject in subjects)
            found = [each for key in asked if (each := self._kept.get(key)) is not None]
        return [StatementRef(each.sid, each.card.dataset) for each in found if each.card.expires > now]

    def envelope(self, sid: Multihash) -> tuple[DatasetId, Topic, bytes] | None:
        with self._lock:
            node = self._nodes.get(sid)
            found = None if node is None else self._kept[node]
        return None if found is None else (found.card.dataset, Topic.HEADS, found.envelope)

    def _keep(self, new: _Kept, now: Instant) -> None:
        with self._lock:
            before = self._kept.get(new.card.node)
            if before is not None and (before.card.issued, before.sid) > (new.card.issued, new.sid):
                return  # another thread kept it meanwhile
            self._forget(new.card.node)
            self._kept[new.card.node] = new
            self._nodes[new.sid] = new.card.node
            if len(self._kept) > self._most:
                self._make_room(now)

    def _make_room(self, now: Instant) -> None:
        expired = [node for node, each in self._kept.items() if each.card.expires <= now]
        if not expired:
            heaviest, _ = Counter(each.share for each in self._kept.values()).most_common(1)[0]
            expired = [next(node for node, each in self._kept.items() if each.share == heaviest)]
        for node in expired:
            self._forget(node)

    def _forget(self, node: KeyDid) -> None:
        gone = self._kept.pop(node, None)
        if gone is not None:
            del self._nodes[gone.sid]


class SharedCards:
    """The cards of one node's shared shards; at most as many as it has shards."""

    def __init__(self) -> None:
        self._kept: dict[DatasetId, tuple[Card, Signed]] = {}
        self._subjects: dict[Multihash, DatasetId] = {}
        """The datasets of kept cards, by the id of the statement."""
        self._lock = threading.Lock()

    def of(self, dataset: DatasetId) -> Card | None:
        found = self._kept.get(dataset)
        return None if found is None else found[0]

    def keep(self, card: Card, signed: Signed) -> None:
        with self._lock:
            self._forget(card.dataset)
            self._kept[card.dataset] = (card, signed)
            self._subjects[signed.sid] = card.dataset

    def drop(self, dataset: DatasetId) -> None:
        with self._lock:
            self._forget(dataset)

    def _forget(self, dataset: DatasetId) -> None:
        found = self._kept.pop(dataset, None)
        if found is not None:
            del self._subjects[found[1].sid]

    def refs(self, datasets: Iterable[DatasetId]) -> list[StatementRef]:
        """Lists the cards of these datasets, whoever may have them; asks no database."""
        found = ((dataset, self._kept.get(dataset)) for dataset in dict.fromkeys(datasets))
        return [StatementRef(kept[1].sid, dataset) for dataset, kept in found if kept is not None]

    def envelope(self, sid: Multihash) -> tuple[DatasetId, bytes] | None:
        with self._lock:
            dataset = self._subjects.get(sid)
            return None if dataset is None else (dataset, self._kept[dataset][1].envelope)
