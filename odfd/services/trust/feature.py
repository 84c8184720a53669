"""Makes what checks others' work and signs findings: validators, observers, witnesses; and shows and decides trust."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import msgspec

from chain.ids import DID_KEY, DatasetId
from chain.statements import statement
from chain.statements.checkpoint import TreeCheckpoint
from chain.statements.cosignature import Cosignature
from chain.statements.envelope import Signed
from chain.statements.proof import AUTHORITY_FORK, FORK
from chain.statements.statement import Authority, HeadStatement, PolicyStatement, decode_any
from chain.store.base import leaves_of
from chain.wording import plural
from odfd.control import wire
from odfd.ingest.refetch import confine, observing
from odfd.policy.manifest import ValidatorResourceSpec
from odfd.policy.policy import cosigns, policy_of
from odfd.resources.resource import Resource
from odfd.runtime.hanging_calls import in_loop
from odfd.runtime.subjects import about
from odfd.services.execution.feature import ExecutionFeature
from odfd.services.feature import UNLABELLED, Feature, Ground, Reading, worker
from odfd.services.judgement.effective_policy import VALIDATOR
from odfd.services.judgement.feature import JudgementFeature
from odfd.services.node_events import (
    CosignatureHeard,
    DatasetMoved,
    JournalsRecovered,
    PeersMet,
    PolicyChanged,
    ProofKept,
    SettingsChanged,
    StatementHeard,
    StatementSigned,
    VisibilityChanged,
)
from odfd.services.peers.feature import PeersFeature
from odfd.services.resources.node_types import ready_resource
from odfd.services.transfer.feature import TransferFeature
from odfd.services.trust.authority import AuthorityService
from odfd.services.trust.controllers import TrustPolicyController, ValidatorController
from odfd.services.trust.evidence import EvidenceService
from odfd.services.trust.journal_recovery import JournalRecovery
from odfd.services.trust.policies import PolicyService
from odfd.services.trust.resolutions import PendingDecisions, ResolutionService
from odfd.services.trust.service import HeadState, TrustService
from odfd.services.trust.views import proof_view
from odfd.services.trust.witness_submission import SubmissionMiss, WitnessSubmission
from odfd.services.trust.witnessing import WitnessEvents, Witnessing, WitnessRequest
from odfd.services.views.feature import ViewsFeature
from odfd.services.views.task_progress import show_block
from odfd.store.directory import STAGING
from odfd.store.ledger.cosignatures import Cosignatures
from odfd.transform.progress import Report as TransformReport
from odfd.trust.judgement.suspension_review import SuspensionReview, contradicted
from odfd.trust.signing.signer_context import SignerContext
from odfd.trust.validation.evidence_rechecker import EvidenceRechecker, RecheckerSettings
from odfd.trust.validation.observer import Observer, ObserverSettings
from odfd.trust.validation.validator import Validator, ValidatorSettings
from odfd.trust.witness.tlog_witness import TlogWitness
from odfd.trust.witness.witness import CosignRequest, Witness
from p2p.ip import Allows, is_global
from p2p.ports import Topic

_EVENT_OF: Final = {FORK: "dataset.forked", AUTHORITY_FORK: "authority.forked"}
"""The events of proofs; others suspend a key."""


class TrustFeature(Feature):
    def __init__(
        self,
        ground: Ground,
        judgement: JudgementFeature,
        execution: ExecutionFeature,
        views: ViewsFeature,
        peers: PeersFeature,
        transfer: TransferFeature,
        may_dial: Allows = is_global,
    ) -> None:
        """``may_dial`` says which addresses of sources that other nodes declared may be dialled."""
        home, context, clock = ground.home, ground.context, ground.context.clock
        self._ground, self._judgement, self._peers, self._may_dial = ground, judgement, peers, may_dial
        self._execution, self._transfer, self._since = execution, transfer, clock.now()
        self._witness = Witness(home.database, home.keys, partial(leaves_of, home.chains), clock.now)
        self.suspension_review = SuspensionReview(
            home.database, home.chains, judgement.evaluator, context.events, clock.now, transfer.scheduler.poke_all
        )
        self.validator = self._make_validator()
        self.rechecker = self._make_rechecker()
        # It fetches from sources that other nodes declare, which may name addresses inside this network.
        deps = observing(execution.ingest_deps, may_dial)
        self.observer = Observer(self._signer, ObserverSettings(deps=deps, wanted=lambda: judgement.policy.observe))
        self.witnessing = self._make_witnessing()
        self.submissions = submissions_of(ground, judgement, peers)
        self.checkpoints = self._make_receiver()
        asking = msgspec.structs.replace(self._signer, public_of=home.visibility.told_of)
        self.journal_recovery = JournalRecovery(
            asking, peers.membership, lambda: judgement.policy, lambda: ground.bus.publish(JournalsRecovered())
        )
        pending = PendingDecisions(home, judgement.evaluator)
        trust = TrustService(
            home,
            pending,
            clock,
            judgement.change_policy,
            EvidenceService(home, peers.bundles, transfer.evidence_fetcher, context.board),
            judgement.effective_policy.policy,
            HeadState(
                judgement.heads.troubles, self._show_witnesses, lambda entry: views.views.cache.dataset(entry).unheld
            ),
        )
        moved = lambda dataset: ground.bus.publish(DatasetMoved(dataset))  # noqa: E731
        self.operations = (
            trust,
            self.journal_recovery,
            PolicyService(home, peers.membership, clock, judgement.effective_policy, self._take_rules),
            ResolutionService(home, pending, transfer.scheduler, context, moved),
            AuthorityService(home, judgement.committer, clock, self._publish_signed),
        )
        self.controllers = (
            ValidatorController(trust),
            TrustPolicyController(lambda: judgement.policy, judgement.change_policy),
        )
        self.undeclared = {VALIDATOR: self._list_validators}
        self.children = (
            worker("signers", self.journal_recovery.loop.run),
            worker("validator", self.validator.loop.run),
            worker("rechecking", self.rechecker.loop.run),
            worker("observer", self.observer.run),
            worker("review", self.suspension_review.loop.run),
            worker("witness", self.witnessing.loop.run),
            worker("submissions", self.submissions.run),
        )
        self._subscribe()

    def _subscribe(self) -> None:
        bus = self._ground.bus
        review, submissions = self.suspension_review.loop, self.submissions.loop
        for loop in (self.validator.loop, review, self.rechecker.loop):
            bus.subscribe(partial(lambda loop, each: loop.touch(each.dataset), loop), StatementHeard)
        judging = (review, self.rechecker.loop, self.validator.loop, self.observer.loop, self.witnessing.loop)
        for loop in judging:
            bus.subscribe(partial(lambda loop, each: loop.touch(each.dataset), loop), DatasetMoved)
        for loop in (*judging, submissions):
            bus.subscribe(partial(lambda loop, _: loop.touch_all(), loop), PolicyChanged)
        for loop in (self.validator.loop, self.witnessing.loop):
            bus.subscribe(partial(lambda loop, _: loop.touch_all(), loop), JournalsRecovered)
        for searching in (self.witnessing.loop, self.journal_recovery.loop):
            bus.subscribe(partial(lambda loop, _: loop.poke(), searching), PeersMet)
        bus.subscribe(lambda each: submissions.touch(each.dataset), StatementSigned, VisibilityChanged, soon=True)
        bus.subscribe(self._look_at_tree, StatementHeard)
        bus.subscribe(self._tell_of_proof, ProofKept)
        bus.subscribe(self._tell_of_cosignature, CosignatureHeard)
        bus.subscribe(self._reload, SettingsChanged)

    @property
    def _signer(self) -> SignerContext:
        home, context = self._ground.home, self._ground.context
        return SignerContext(
            database=home.database,
            keys=home.keys,
            events=context.events,
            clock=context.clock,
            logger=context.logger,
            announce=lambda dataset, signed: self._peers.outbox.put(Topic.ATTEST, dataset, signed.envelope),
            name_of=home.name_of,
            public_of=home.visibility.public_of,
            own_key=self._judgement.own_key,
        )

    def _make_validator(self) -> Validator:
        ground, judgement, execution = self._ground, self._judgement, self._execution

        def share() -> float:
            """Returns the share of steps to validate: all if verdicts are promised, even without an engine."""
            if judgement.policy.attest:
                return 1.0
            return 0.0 if execution.engine.why_not else judgement.policy.spot_check

        settings = ValidatorSettings(
            deps=execution.transform_deps,
            fresh_engine=execution.engine.fresh,
            determinism=execution.check.determinism,
            wanted=lambda: judgement.policy.attest,
            pause=lambda: ground.settings.policy.publish.attest_seconds,
            share=share,
            contradicted=lambda dataset: contradicted(judgement.evaluator, dataset),
            bundles=self._peers.bundles,
            step_seconds=lambda: ground.settings.policy.validators.step_seconds,
            drop_engine=execution.engine.drop,
            showing=partial(self._show_task, "validate"),
        )
        return Validator(self._signer, settings)

    def _make_rechecker(self) -> EvidenceRechecker:
        ground, judgement, engine = self._ground, self._judgement, self._execution.engine

        def changed(dataset: DatasetId) -> None:
            """Wakes the parts that depend on how far a dataset may be relied on."""
            self._transfer.scheduler.poke(dataset)
            self.suspension_review.loop.touch(dataset)

        settings = RecheckerSettings(
            bundles=self._peers.bundles,
            fetch=self._transfer.evidence_fetcher.fetch,
            engine=engine,
            fresh_engine=engine.fresh,
            has_engine=lambda: engine.why_not is None,
            staging=ground.home.folder(STAGING),
            wanted=lambda: judgement.policy.recheck,
            is_free=lambda: self.validator.busy is None,
            changed=changed,
            showing=partial(self._show_task, "recheck"),
        )
        return EvidenceRechecker(self._signer, ground.home.chains, judgement.evaluator, settings)

    @contextmanager
    def _show_task(self, kind: str, dataset: DatasetId, number: int) -> Iterator[TransformReport]:
        """Shows a re-execution as a task of the board while it runs."""
        name = self._ground.home.name_of(dataset)
        with self._ground.context.board.showing(kind, name, about(dataset, inputs=True)) as report:
            yield partial(show_block, report, number)

    def _make_witnessing(self) -> Witnessing:
        ground, judgement, outbox = self._ground, self._judgement, self._peers.outbox
        home, context = ground.home, ground.context

        def contradict(question: CosignRequest) -> None:
            """Announces both heads if no proof joins them, so that holders of each history learn of the other."""
            for head in (question.kept, question.head):
                if head is not None:
                    outbox.put(Topic.HEADS, question.tree.dataset, head)
            tree = question.tree
            text = f"{plural(tree.size, 'block')} not shown to begin with the {question.old.size} cosigned last"
            name = home.name_of(tree.dataset)
            context.events.emit("cosignature.refused", name, text, about=about(tree.dataset), size=tree.size)

        return Witnessing(
            home.chains,
            self._witness,
            lambda: WitnessRequest(cosigns(ground.settings.policy), judgement.policy.attended),
            self._transfer.remotes.replication,
            self._transfer.holders,
            WitnessEvents(self._announce, contradict),
            context.logger,
        )

    def _make_receiver(self) -> TlogWitness:
        """Makes the receiver of checkpoints that logs submit over HTTP, and that worker threads answer."""
        home, attended = self._ground.home, lambda: self._judgement.policy.attended
        return TlogWitness(
            home.database, home.keys, self._witness, attended, self._ground.context.clock.now, self._announce
        )

    @in_loop
    def _announce(self, made: Cosignature) -> None:
        tree = made.checkpoint
        self._peers.outbox.put(Topic.HEADS, tree.dataset, made.encode())
        text = plural(tree.size, "version of its authority", "versions of its authority")
        if tree.epoch is not None:
            text = plural(tree.size, "block")
        name = self._ground.home.name_of(tree.dataset)
        self._ground.context.events.emit("cosignature.signed", name, text, about=about(tree.dataset), size=tree.size)

    def _show_witnesses(self, dataset: DatasetId, epoch: int) -> list[wire.WitnessView]:
        """Lists the witnesses that count here, and those that a dataset published here asks, cosigned or not."""
        policy, home = self._judgement.policy, self._ground.home
        groups, public = policy.witnesses.groups, {each.did: each.key.name for each in policy.public}
        with home.database.read() as connection:
            cosigned = Cosignatures(connection).of(dataset)
        made = {each.witness: each for each in cosigned if each.checkpoint.epoch == epoch}
        asked = public if home.keys.has_dataset_key(dataset) else {}
        origin = TreeCheckpoint(dataset, epoch, 0, b"").origin
        views = []
        for key in sorted({*groups, *asked}):
            last, miss = made.get(key), self.submissions.miss(origin, key)
            if last is None and not miss.why and key in asked:
                miss = SubmissionMiss("it was not asked yet")
            views.append(
                wire.WitnessView(
                    witness=str(key),
                    name=groups.get(key) or public[key],
                    counts=key in groups,
                    size=None if last is None else last.checkpoint.size,
                    at=None if last is None else statement.when(last.at),
                    trouble=miss.why,
                    log_key=miss.log_key,
                )
            )
        return views

    async def _list_validators(self) -> Sequence[Resource]:
        """Lists the validators that the settings name."""
        groups = policy_of(self._ground.settings.policy).groups
        named = [(group.name, str(key)) for group in groups for key in sorted(group.keys)]
        make = partial(ready_resource, self._ground.home.keys.node_key().did, self._since, VALIDATOR)
        return [
            make(did.removeprefix(DID_KEY), did, ValidatorResourceSpec(did=did, group=group)) for group, did in named
        ]

    @in_loop
    def _take_rules(self, signed: Signed | None) -> None:
        """Sends rules that were signed for a network to it, and judges by what is accepted now."""
        if signed is not None and isinstance(said := decode_any(signed.payload), PolicyStatement):
            self._peers.outbox.put_in([said.network], Topic.HEADS, signed.envelope)
        self._judgement.change_policy()

    def _publish_signed(self, dataset: DatasetId, signed: Signed) -> None:
        self._ground.bus.publish(StatementSigned(dataset, signed))

    def _look_at_tree(self, heard: StatementHeard) -> None:
        is_attended = heard.dataset in self._judgement.policy.attended
        if isinstance(heard.predicate, Authority) or (isinstance(heard.predicate, HeadStatement) and is_attended):
            self.witnessing.loop.touch(heard.dataset)

    def _tell_of_proof(self, kept: ProofKept) -> None:
        proof, call_soon = kept.proof, self._ground.bus.call_soon
        view = proof_view(self._ground.home.name_of(proof.dataset), proof)
        emit = partial(self._ground.context.events.emit, about=about(proof.dataset), id=view.id)
        call_soon(emit, _EVENT_OF.get(proof.kind, "validator.suspended"), view.dataset, view.message)
        if any(self._judgement.policy.group_of(key) is not None for key in proof.accused):
            call_soon(self.suspension_review.loop.touch_all)

    def _tell_of_cosignature(self, heard: CosignatureHeard) -> None:
        made, tree = heard.cosignature, heard.cosignature.checkpoint
        who = self._judgement.policy.witnesses.groups.get(made.witness, made.witness.short)
        emit = partial(self._ground.context.events.emit, about=about(tree.dataset), size=tree.size)
        name = self._ground.home.name_of(tree.dataset)
        self._ground.bus.call_soon(emit, "cosignature.heard", name, f"{who}: {tree.size}")

    def _reload(self, _: SettingsChanged) -> None:
        self.observer.deps.settings = confine(self._execution.ingest_deps.settings, self._may_dial)

    def gauges(self) -> Iterator[Reading]:
        yield "odfd_signing_journals_lost", len(self.journal_recovery.lost), UNLABELLED


def submissions_of(ground: Ground, judgement: JudgementFeature, peers: PeersFeature) -> WitnessSubmission:
    """Makes what submits heads of this node to public witnesses."""
    context = ground.context

    def take(made: Cosignature) -> None:
        peers.outbox.put(Topic.HEADS, made.checkpoint.dataset, made.encode())
        ground.bus.publish(CosignatureHeard(made))

    return WitnessSubmission(ground.home, lambda: judgement.policy.public, context.clock, take, context.logger)
