"""Keeps cards of shards that are shared with single peers: in memory, for those peers alone.

A card lists the shards of a collection, and whoever it is shared with learns them from it. It is in no ledger and is
announced to nobody: a card in the ledger is withdrawn aloud, which would tell strangers of what was never public. It is
told to a peer that may have the dataset, asks for it by its id, and passes nothing on. Safe to use from any thread.
Spec: docs/spec/collections.md#shared-shards; ADR 76.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.card import Card
from chain.statements.envelope import Signed
from p2p.ports import StatementRef


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
        found = ((each, self._kept.get(each)) for each in dict.fromkeys(datasets))
        return [StatementRef(kept[1].sid, dataset) for dataset, kept in found if kept is not None]

    def envelope(self, sid: Multihash) -> tuple[DatasetId, bytes] | None:
        with self._lock:
            dataset = self._subjects.get(sid)
            return None if dataset is None else (dataset, self._kept[dataset][1].envelope)
