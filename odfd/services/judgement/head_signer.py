"""Keeps the heads of this node's own datasets signed: signs those that a crash left unsigned, and renews old ones.

Works while its ``loop`` runs. A dataset that cannot be signed now (its state is from an old backup, the disk is full)
is reported and tried again; it prevents neither the signing of others nor the start of the node. A round checks the
datasets that were touched or could not be signed, and once an hour all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chain.errors import Fault
from chain.ids import DatasetId
from odfd.obs.events import EventLog
from odfd.runtime.hanging_calls import end_if_unwanted
from odfd.runtime.reconcile_loop import KeyedReconcileLoop
from odfd.runtime.subjects import about
from odfd.runtime.supervision import Logger
from odfd.store.directory import StateDirectory
from odfd.trust.signing.owner_commit import OwnerCommitter

ROUND_SECONDS: Final = 3600.0
"""Seconds between two checks of all heads; a head is signed again at a third of its life, which is days."""
RETRY_SECONDS: Final = 60.0
"""Seconds until the next try while one of them could not be signed."""
START_SECONDS: Final = 5.0
"""Seconds until the first check of all heads, so that requests right after a start do not wait for it."""


class HeadSigner:
    """Signs the heads of one node's datasets."""

    def __init__(
        self,
        home: StateDirectory,
        committer: OwnerCommitter,
        events: EventLog,
        logger: Logger,
    ) -> None:
        self._chains, self._name_of = home.chains, home.name_of
        self._committer = committer
        self._events = events
        self._logger = logger
        self.loop: KeyedReconcileLoop[DatasetId] = KeyedReconcileLoop(
            self._round, ROUND_SECONDS, start_after=START_SECONDS
        )
        self._troubles: dict[DatasetId, str] = {}
        """Troubles that were reported already."""

    def _round(self) -> float:
        touched = self.loop.take()
        for dataset in self._chains.datasets() if touched is None else sorted(touched):
            end_if_unwanted()
            self._sign(dataset)
        return RETRY_SECONDS if self._troubles else ROUND_SECONDS

    def troubles(self) -> Mapping[DatasetId, str]:
        """Returns the datasets whose heads could not be signed at the last try, with the reasons."""
        return dict(self._troubles)

    def _sign(self, dataset: DatasetId) -> None:
        try:
            self._committer.sign_unsigned(dataset)
        except Fault as fault:
            self.loop.leave(dataset)
            if self._troubles.get(dataset) == str(fault):
                return
            self._troubles[dataset] = str(fault)
            name = self._name_of(dataset)
            self._logger.error("head not signed", dataset=name, fault=str(fault), rule=fault.rule, hint=fault.hint)
            self._events.emit("head.unsigned", name, str(fault), about=about(dataset), rule=fault.rule)
        else:
            self._troubles.pop(dataset, None)
