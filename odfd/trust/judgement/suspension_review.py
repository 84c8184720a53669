"""Reviews validators when new verdicts arrive, and suspends groups that contradict others on equal engines.

Only datasets with news are checked again; strikes on the others are remembered. A suspension is stored and reported,
and only a person lifts it. Works while its ``loop`` runs. Spec: docs/spec/trust.md#suspension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from chain.ids import DatasetId
from chain.instant import Instant
from chain.statements.statement import ATTESTATION
from chain.store.base import ChainStore
from chain.store.database import Database
from odfd.obs.events import EventLog
from odfd.policy.policy import Policy
from odfd.runtime.reconcile_loop import KeyedReconcileLoop
from odfd.store.ledger.log import Ledger
from odfd.trust.judgement import suspension_rules
from odfd.trust.judgement.suspension_rules import Strike, SuspensionFacts
from odfd.trust.judgement.suspensions import Suspensions
from odfd.trust.judgement.trust_evaluator import TrustEvaluator

ROUND_SECONDS: Final = 3600.0
"""Seconds between rounds; short beside the grace of two days."""


class SuspensionReview:
    """Reviews the validators that one node lists."""

    def __init__(
        self,
        database: Database,
        chains: ChainStore,
        evaluator: TrustEvaluator,
        events: EventLog,
        clock: Callable[[], Instant],
        changed: Callable[[], None],
    ) -> None:
        """``changed`` is called after a group was suspended."""
        self._database = database
        self._chains = chains
        self._evaluator = evaluator
        self._events = events
        self._clock = clock
        self._changed = changed
        self.loop = KeyedReconcileLoop[DatasetId](self._round)
        """A dataset is touched by a verdict on it or another chain of it;
        all of them by another policy, or an accusation."""
        self._found: dict[DatasetId, frozenset[Strike]] = {}
        self._policy: Policy | None = None

    async def _round(self) -> float:
        out = await trio.to_thread.run_sync(self.review, self.loop.take())
        for group, reason in out.items():
            self._events.emit("validator.suspended", group, reason, group=group)
        if out:
            self._changed()
        return ROUND_SECONDS

    def review(self, touched: set[DatasetId] | None = None) -> dict[str, str]:
        """Returns the groups that are suspended from now on, each with the reason."""
        policy, now = self._evaluator.policy, self._clock()
        if touched is None or policy is not self._policy:
            self._policy, self._found = policy, {}
            touched = self._list_attested()
        for dataset in touched:
            self._found.pop(dataset, None)
            if found := suspension_rules.strikes(policy, self._evaluator.view(dataset)):
                self._found[dataset] = found
        return self._suspend(now)

    def _list_attested(self) -> set[DatasetId]:
        """Lists held datasets with attestations."""
        with self._database.read() as connection:
            attested = Ledger(connection).datasets(ATTESTATION)
        return {dataset for dataset in attested if self._chains.chain(dataset).head() is not None}

    def _suspend(self, now: Instant) -> dict[str, str]:
        found = frozenset[Strike]().union(*self._found.values())
        with self._database.write() as connection:
            sanctions = Suspensions(connection)
            since = suspension_rules.remembered(sanctions.since(), found - sanctions.pardoned(), now)
            sanctions.remember(since)
            evaluator = {strike for strike in since if now - since[strike] > suspension_rules.GRACE}
            out = suspension_rules.struck(evaluator) - sanctions.groups()
            return {
                group: sanctions.suspend(group, [each for each in evaluator if each.group == group], now)
                for group in sorted(out)
            }


def contradicted(evaluator: TrustEvaluator, dataset: DatasetId) -> list[int]:
    """Lists the steps of a dataset that an honest validator runs again."""
    view: SuspensionFacts = evaluator.view(dataset)
    return sorted(step for _, step in suspension_rules.look_again(evaluator.policy, view))
