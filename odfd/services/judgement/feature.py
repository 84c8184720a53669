"""Makes what judges and signs: the policy in force, the evaluator of trust, and the commits to this node's chains."""

from __future__ import annotations

from chain.ids import DatasetId
from chain.statements.statement import PolicyStatement
from config.model import Settings
from odfd.ingest.sharded_writes import ShardedWrites
from odfd.policy.policy import Expression, Policy
from odfd.runtime.clock import JumpWatch
from odfd.runtime.hanging_calls import in_loop
from odfd.services.feature import Feature, Ground, worker
from odfd.services.judgement.effective_policy import EffectivePolicy, purposes
from odfd.services.judgement.head_signer import HeadSigner
from odfd.services.node_events import (
    JournalsRecovered,
    PolicyChanged,
    ResourceTouched,
    StatementHeard,
    StatementSigned,
)
from odfd.store.catalog import Labels
from odfd.trust.judgement.trust_evaluator import TrustEvaluator
from odfd.trust.signing.owner_commit import OwnerCommitter


class JudgementFeature(Feature):
    def __init__(self, ground: Ground, labels: Labels) -> None:
        home, context, bus = ground.home, ground.context, ground.bus
        self._ground, self._labels = ground, labels
        self.effective_policy = EffectivePolicy(ground.in_force.settings)
        self.policy = self._read_policy()
        self._log_notes()
        self.own_key = home.keys.validator_key() if ground.settings.policy.publish.own_key else None
        """The key of this node's verdicts, if it is not the node's."""
        self.evaluator = TrustEvaluator(
            home.database,
            home.chains,
            lambda: self.policy,
            (self.own_key or home.keys.node_key()).did,
            context.clock.now,
            self._purposes,
            home.keys.has_dataset_key,
            lambda one: self.policies.for_dataset(one, home.visibility.met_in),
        )
        self.jumps = JumpWatch(context.clock)
        self.committer = OwnerCommitter(
            home.database,
            home.chains,
            home.keys,
            context.clock.now,
            lambda dataset, signed: bus.publish(StatementSigned(dataset, signed)),
            ShardedWrites(home.database, home.chains, home.objects),
            home.visibility.is_known,
            self.jumps.ahead,
        )
        self.heads = HeadSigner(home, self.committer, context.events, context.logger)
        self.children = (worker("heads", self.heads.loop.run),)
        bus.subscribe(self._hear, StatementHeard)
        bus.subscribe(lambda _: self.heads.loop.touch_all(), JournalsRecovered)

    def check(self, settings: Settings) -> None:
        """Raises Invalid for settings with an impossible policy."""
        with self._ground.home.database.read() as connection:
            self.effective_policy.policy(connection, settings)

    @in_loop
    def change_policy(self) -> None:
        """Takes over the policy that is stored and set, and tells of it."""
        self.policy = self._read_policy()
        self._log_notes()
        self._ground.bus.publish(PolicyChanged())
        for rule in self.policy.rules:
            # Its quorum may have come within reach, or gone out of it.
            self._ground.bus.publish(ResourceTouched("TrustPolicy", rule.name))
        self._ground.context.events.emit("policy.changed", message=f"use {self.policy.use}, serve {self.policy.serve}")

    def count_served(self, dataset: DatasetId) -> int:
        """Returns how many blocks of a public dataset policy passes on."""
        return self.evaluator.reach(dataset, self.evaluator.serve(dataset)).blocks

    def count_usable(self, dataset: DatasetId) -> int | None:
        """Returns how many blocks may feed a transform here; ``None`` for all, as of this node's own datasets."""
        if self._ground.home.keys.has_dataset_key(dataset):
            return None
        return self.evaluator.reach(dataset, self.evaluator.use(dataset)).blocks

    def _hear(self, heard: StatementHeard) -> None:
        if isinstance(heard.predicate, PolicyStatement):
            self.change_policy()

    def _read_policy(self) -> Policy:
        with self._ground.home.database.read() as connection:
            self.policies = self.effective_policy.policies(connection)
        return self.policies.joint

    def _log_notes(self) -> None:
        for note in self.policy.notes:
            self._ground.context.logger.info("policy", note=note)

    def _purposes(self, dataset: DatasetId) -> tuple[Expression | None, Expression | None]:
        with self._ground.home.database.read() as connection:
            return purposes(connection, dataset, self.policy, self._labels)
