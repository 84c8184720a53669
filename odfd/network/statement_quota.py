"""Decides which statements are of interest, and limits them per signer, and for all unknown signers together.

The ledger keeps what is of interest: statements on datasets that are held or wanted, and those of this node's own keys.
All others stay in memory (``odfd.network.unheld_statements``). A signer that may speak about a dataset, as its writer
or as a validator, has a rate limit: a burst, then one statement per interval. A statement beyond it is not lost but
taken later, since peers are asked for it again. Validators, observers and witnesses that nobody listed share one limit,
however many keys they have. Half of it is divided among the address blocks of the peers that bring the statements, so
that somebody who invents keys leaves room for a newcomer whose statements another peer brings. Limits of
docs/spec/trust.md#room; in memory. Safe to use from any thread.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable
from typing import Final

from chain.ids import DatasetId, KeyDid
from chain.instant import SECOND, Instant
from chain.statements.statement import (
    AnyPredicate,
    PolicyStatement,
)
from odfd.policy.witness_quorum import Witnesses
from odfd.store.ledger.log import Ledger
from odfd.trust.admission.statement_kinds import KINDS
from odfd.trust.admission.statement_processor import Judged
from p2p.budget.buckets import Budget, FairShares, Rate
from p2p.ports import PeerId

NEW_DATASETS: Final = Rate(per_second=100 / 3600, burst=100.0)
"""Unknown datasets that one peer may introduce."""
NEW_NODES: Final = NEW_DATASETS
"""Cards of unknown nodes that one peer may introduce; separate from datasets, so that neither displaces the other."""
RENEWALS: Final = Rate(per_second=1 / 600, burst=4.0)
"""Heads of one signer that change nothing but the time of signing."""
CONTRADICTIONS: Final = Rate(per_second=1 / 600, burst=8.0)
"""Contradictions of one signer with itself, and proofs on one dataset."""
UNLISTED: Final = Rate(per_second=1 / 10, burst=256.0)
"""Statements of all unlisted validators, observers and witnesses together."""
UNLISTED_LATELY: Final = UNLISTED.burst / UNLISTED.per_second
"""Seconds for which an address block keeps its share: as long as the common limit takes to recover. A shorter time
would give an address block that pauses for it more than its share.
"""


class StatementQuota:
    """The quotas of one node's statements."""

    def __init__(
        self,
        is_listed: Callable[[KeyDid], bool] = lambda _: True,
        is_mirrored: Callable[[sqlite3.Connection, DatasetId], bool] = lambda _connection, _dataset: True,
        witnesses: Callable[[], Witnesses] = Witnesses,
        speaks_for_us: Callable[[PolicyStatement], bool] = lambda _: False,
        is_mine: Callable[[KeyDid], bool] = lambda _: False,
        interests: Callable[[sqlite3.Connection], Iterable[DatasetId]] = lambda _: (),
        share_of: Callable[[PeerId], str] = str,
    ) -> None:
        """``is_listed``: whether a validator's word counts here; ``is_mirrored``: whether a dataset is to be mirrored.

        ``speaks_for_us``: whether a policy is of the network that this node takes rules from; ``is_mine``: whether a
        key is this node's, as its own or as a dataset's; ``interests``: datasets and keys that peers are asked about
        though nothing was said of them yet; ``share_of``: the block of addresses of a peer, or the peer itself.
        """
        self._speaks_for_us = speaks_for_us
        self.witnesses = witnesses
        self.is_listed = is_listed
        self._is_mirrored = is_mirrored
        self.interests = interests
        self._is_mine = is_mine
        self._lock = threading.Lock()
        self._new = Budget[PeerId](NEW_DATASETS)
        self._new_nodes = Budget[PeerId](NEW_NODES)
        self._words = {
            kind: Budget[tuple[DatasetId, KeyDid]](row.pace) for kind, row in KINDS.items() if row.pace is not None
        }
        self._renewals = Budget[tuple[DatasetId, KeyDid]](RENEWALS)
        self._contradictions = Budget[tuple[DatasetId, KeyDid]](CONTRADICTIONS)
        self._proofs = Budget[DatasetId](CONTRADICTIONS)
        self._unlisted = FairShares(UNLISTED, lately=UNLISTED_LATELY)
        self.share_of = share_of

    def concerns(self, connection: sqlite3.Connection, dataset: DatasetId) -> bool:
        """Whether statements on a dataset are kept: it is held, wanted, or this node's own."""
        return (
            Ledger(connection).chain(dataset).frontier.size > 0
            or self._is_mirrored(connection, dataset)
            or self._is_mine(KeyDid.from_public_key(dataset.public_key))
        )

    def is_known(self, keys: tuple[KeyDid, ...]) -> bool:
        """Whether any of these keys is this node's or listed; then statements by it and proofs against it are kept."""
        return any(self._is_mine(key) or self.is_listed(key) for key in keys)

    def is_mine(self, keys: tuple[KeyDid, ...]) -> bool:
        return any(map(self._is_mine, keys))

    def has_room(self, connection: sqlite3.Connection, predicate: AnyPredicate) -> bool:
        """Whether there is room for one more statement of this kind."""
        if isinstance(predicate, PolicyStatement):
            return self._speaks_for_us(predicate)
        return KINDS[predicate.KIND].has_room(connection, predicate, self.is_listed)

    def brings_new(self, sender: PeerId, now: Instant) -> bool:
        """Whether a peer may introduce one more unknown dataset now."""
        with self._lock:
            return self._new.spend(sender, now / SECOND)

    def brings_node(self, sender: PeerId, now: Instant) -> bool:
        """Whether a peer may introduce the card of one more unknown node now."""
        with self._lock:
            return self._new_nodes.spend(sender, now / SECOND)

    def takes(self, predicate: AnyPredicate, found: Judged, sender: PeerId, now: Instant) -> bool:
        """Whether one more statement of this signer is taken now from ``sender``."""
        if found.signer is None:
            return True
        key = (predicate.dataset, found.signer)
        usual = self._renewals if found.is_renewal else self._words.get(predicate.KIND)
        paced = self._contradictions if found.contradicts else usual
        is_unlisted = KINDS[predicate.KIND].by_unlisted and not self.is_known((found.signer,))
        with self._lock:
            if paced is not None and not paced.spend(key, now / SECOND):
                return False
        return not is_unlisted or self.takes_unlisted(sender, now)

    def takes_proof(self, dataset: DatasetId, now: Instant) -> bool:
        """Whether one more proof on a dataset is kept now."""
        with self._lock:
            return self._proofs.spend(dataset, now / SECOND)

    def takes_unlisted(self, sender: PeerId, now: Instant) -> bool:
        """Whether one more statement of an unlisted signer is admitted now from ``sender``."""
        share = self.share_of(sender)
        with self._lock:
            return self._unlisted.passes(share, now / SECOND)
