"""Limits how many statements of strangers are kept: for datasets not held here, and for validators of each dataset.

Limits of docs/spec/trust.md#room, counted in the ledger's own tables and, for what a peer may bring in an hour, in
memory. Used inside the transaction that hears the statement; one thread at a time.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from chain.ids import DatasetId, KeyDid
from chain.instant import SECOND, Instant
from chain.statements.statement import AnyPredicate, PolicyStatement
from odfd.network.statement_kinds import KINDS
from odfd.trust.ledger.log import Ledger
from odfd.trust.policy.witness_quorum import Witnesses
from p2p.peers.budget import Budget, Rate
from p2p.ports import PeerId

NEW_DATASETS: Final = Rate(per_second=100 / 3600, burst=100.0)
"""Datasets never heard of that one peer may bring."""
MAX_NOT_HELD: Final = 10_000
"""Datasets without a block here of which statements are kept; those heard of least lately make room."""


class StatementQuota:
    """The quotas of one node's statements."""

    def __init__(
        self,
        is_listed: Callable[[KeyDid], bool] = lambda _: False,
        is_wished: Callable[[sqlite3.Connection, DatasetId], bool] = lambda _connection, _dataset: False,
        most: int = MAX_NOT_HELD,
        witnesses: Callable[[], Witnesses] = Witnesses,
        speaks_for_us: Callable[[PolicyStatement], bool] = lambda _: False,
    ) -> None:
        """``is_listed``: whether a validator's word counts here; ``is_wished``: whether a dataset is to be mirrored.

        ``speaks_for_us``: whether a policy is of the network that this node takes rules from.
        """
        self._speaks_for_us = speaks_for_us
        self.witnesses = witnesses
        self._is_listed = is_listed
        self._is_wished = is_wished
        self._most = most
        self._new = Budget[PeerId](NEW_DATASETS)
        self._not_held: OrderedDict[DatasetId, None] | None = None
        """Those with statements and without blocks, least lately heard of first."""

    def admits(self, connection: sqlite3.Connection, said: AnyPredicate, sender: PeerId, now: Instant) -> bool:
        """Whether there is room to hear it. A refusal may be none an hour later."""
        if isinstance(said, PolicyStatement):
            return self._speaks_for_us(said)
        ledger = Ledger(connection)
        if not ledger.speaks_of(said.dataset) and not self._is_ours(connection, said.dataset):
            return self._new.spend(sender, now / SECOND)
        return KINDS[said.KIND].has_room(connection, said, self._is_listed)

    def _is_ours(self, connection: sqlite3.Connection, dataset: DatasetId) -> bool:
        return Ledger(connection).chain(dataset).frontier.size > 0 or self._is_wished(connection, dataset)

    def took(self, connection: sqlite3.Connection, dataset: DatasetId) -> None:
        """Something of ``dataset`` was recorded: if it is not held here, others may have to go."""
        ledger = Ledger(connection)
        if self._not_held is None:
            self._not_held = OrderedDict.fromkeys(ledger.not_held())
        if self._is_ours(connection, dataset):
            self._not_held.pop(dataset, None)
            return
        self._not_held[dataset] = None
        self._not_held.move_to_end(dataset)
        while len(self._not_held) > self._most:
            ledger.forget_said(self._not_held.popitem(last=False)[0])
