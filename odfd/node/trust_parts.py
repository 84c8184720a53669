"""Makes the parts that check others' work, cosign others' datasets, and request cosignatures of the node's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import trio

from chain.ids import DatasetId
from chain.statements import statement
from chain.statements.checkpoint import TreeCheckpoint
from chain.statements.cosignature import Cosignature
from chain.store.base import leaves_of
from chain.wording import plural
from config.model import Settings
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.ingest.driver import IngestDependencies
from odfd.ingest.refetch import observing
from odfd.mirrors.holders import Holders
from odfd.mirrors.scheduler import MirrorScheduler
from odfd.network.evidence import EvidenceFetcher
from odfd.network.outbox import Outbox
from odfd.network.tree_proofs import TreeProofs
from odfd.policy.policy import Policy
from odfd.policy.profiles import cosigns
from odfd.runtime.subjects import about
from odfd.services.ingest.transforms import TransformCheck
from odfd.services.maintenance.engine import NodeEngine
from odfd.services.transfer.remotes import Remotes
from odfd.services.trust.witness_submission import SubmissionMiss, WitnessedLog, WitnessSubmission
from odfd.services.trust.witnessing import WitnessEvents, Witnessing, WitnessRequest
from odfd.services.views.task_progress import show_block
from odfd.store.directory import STAGING, StateDirectory
from odfd.store.ledger.cosignatures import Cosignatures
from odfd.store.visibility import Visibility
from odfd.transform.driver import TransformDependencies as TransformDependencies
from odfd.transform.progress import Report as TransformReport
from odfd.trust.evidence.bundle_store import BundleStore
from odfd.trust.judgement.suspension_review import SuspensionReview, contradicted
from odfd.trust.judgement.trust_evaluator import TrustEvaluator
from odfd.trust.signing.signer_context import SignerContext
from odfd.trust.validation import evidence_rechecker, observer, validator
from odfd.trust.validation.evidence_rechecker import EvidenceRechecker
from odfd.trust.validation.observer import Observer
from odfd.trust.validation.validator import Validator
from odfd.trust.witness.tlog_witness import TlogWitness
from odfd.trust.witness.witness import CosignRequest, Witness
from p2p.ip import Allows
from p2p.ports import Topic


class WitnessContext(Protocol):
    """The parts of a node that these parts need; ``odfd.node.parts.NodeParts`` has them."""

    home: StateDirectory
    context: Context
    policy: Policy
    outbox: Outbox
    remotes: Remotes
    holders: Holders
    visibility: Visibility
    submissions: WitnessSubmission

    def witnessed(self, made: Cosignature) -> None: ...

    @property
    def settings(self) -> Settings: ...


def _announce(parts: WitnessContext, made: Cosignature) -> None:
    tree = made.checkpoint
    parts.outbox.put(Topic.HEADS, tree.dataset, made.encode())
    text = plural(tree.size, "version of its authority", "versions of its authority")
    if tree.epoch is not None:
        text = plural(tree.size, "block")
    parts.context.events.emit(
        "cosignature.signed", parts.home.name_of(tree.dataset), text, about=about(tree.dataset), size=tree.size
    )


def _witness_of(parts: WitnessContext) -> Witness:
    home = parts.home
    return Witness(home.database, home.keys, partial(leaves_of, home.chains), parts.context.clock.now)


def checkpoint_receiver_of(parts: WitnessContext) -> TlogWitness:
    """Makes the receiver of checkpoints that logs submit, which is called from worker threads of the event loop."""
    home = parts.home

    def cosigned(made: Cosignature) -> None:
        trio.from_thread.run_sync(_announce, parts, made)

    return TlogWitness(
        home.database, home.keys, _witness_of(parts), lambda: parts.policy.attended, parts.context.clock.now, cosigned
    )


def witnessing_of(parts: WitnessContext) -> Witnessing:
    home, context = parts.home, parts.context

    def contradicted(question: CosignRequest) -> None:
        """Announces both heads if no proof joins them, so that holders of each history learn of the other."""
        for head in (question.kept, question.head):
            if head is not None:
                parts.outbox.put(Topic.HEADS, question.tree.dataset, head)
        tree = question.tree
        text = f"{plural(tree.size, 'block')} not shown to begin with the {question.old.size} cosigned last"
        context.events.emit(
            "cosignature.refused", parts.home.name_of(tree.dataset), text, about=about(tree.dataset), size=tree.size
        )

    def asked() -> WitnessRequest:
        return WitnessRequest(cosigns(parts.settings.policy), parts.policy.attended)

    witness, events = _witness_of(parts), WitnessEvents(partial(_announce, parts), contradicted)
    return Witnessing(home.chains, witness, asked, parts.remotes.replication, parts.holders, events, context.logger)


def submissions_of(parts: WitnessContext) -> WitnessSubmission:
    home, context = parts.home, parts.context

    def cosigned(made: Cosignature) -> None:
        parts.outbox.put(Topic.HEADS, made.checkpoint.dataset, made.encode())
        parts.witnessed(made)

    log = WitnessedLog(home.database, home.chains, home.keys, TreeProofs(home.database), parts.visibility.public_of)
    return WitnessSubmission(log, lambda: parts.policy.public, context.clock, cosigned, context.logger)


def witness_views(parts: WitnessContext, dataset: DatasetId, epoch: int) -> list[wire.WitnessView]:
    """Lists the witnesses that count here, and those that a dataset published here asks, cosigned or not."""
    groups, public = parts.policy.witnesses.groups, {each.did: each.key.name for each in parts.policy.public}
    with parts.home.database.read() as connection:
        made = {each.witness: each for each in Cosignatures(connection).of(dataset) if each.checkpoint.epoch == epoch}
    asked = public if parts.home.keys.has_dataset_key(dataset) else {}
    origin = TreeCheckpoint(dataset, epoch, 0, b"").origin
    views = []
    for key in sorted({*groups, *asked}):
        last, miss = made.get(key), parts.submissions.miss(origin, key)
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


class ValidationContext(Protocol):
    """The parts of a node that these parts need; ``odfd.node.parts.NodeParts`` has them."""

    home: StateDirectory
    policy: Policy
    engine: NodeEngine
    check: TransformCheck
    evaluator: TrustEvaluator
    bundles: BundleStore
    scheduler: MirrorScheduler
    suspension_review: SuspensionReview
    validator: Validator
    evidence_fetcher: EvidenceFetcher
    ingest_deps: IngestDependencies
    transform_deps: TransformDependencies
    may_dial: Allows
    context: Context

    def signer(self) -> SignerContext: ...

    @property
    def settings(self) -> Settings: ...


@contextmanager
def _showing(parts: ValidationContext, kind: str, dataset: DatasetId, number: int) -> Iterator[TransformReport]:
    """Shows a re-execution as a task of the board while it runs."""
    name = parts.signer().name_of(dataset)
    with parts.context.board.showing(kind, name, about(dataset, inputs=True)) as report:
        yield partial(show_block, report, number)


def validator_of(parts: ValidationContext) -> Validator:
    def share() -> float:
        """Returns the share of steps to validate: all if verdicts are promised, even without an engine."""
        if parts.policy.attest:
            return 1.0
        return 0.0 if parts.engine.why_not else parts.policy.spot_check

    settings = validator.ValidatorSettings(
        deps=parts.transform_deps,
        fresh_engine=parts.engine.fresh,
        determinism=parts.check.determinism,
        wanted=lambda: parts.policy.attest,
        pause=lambda: parts.settings.policy.publish.attest_seconds,
        share=share,
        contradicted=lambda dataset: contradicted(parts.evaluator, dataset),
        bundles=parts.bundles,
        step_seconds=lambda: parts.settings.policy.validators.step_seconds,
        drop_engine=parts.engine.drop,
        showing=partial(_showing, parts, "validate"),
    )
    return Validator(parts.signer(), settings)


def rechecking_of(parts: ValidationContext) -> EvidenceRechecker:
    def changed(dataset: DatasetId) -> None:
        """Wakes the parts that depend on how far a dataset may be relied on."""
        parts.scheduler.poke(dataset)
        parts.suspension_review.loop.touch(dataset)

    settings = evidence_rechecker.RecheckerSettings(
        bundles=parts.bundles,
        fetch=parts.evidence_fetcher.fetch,
        engine=parts.engine,
        fresh_engine=parts.engine.fresh,
        has_engine=lambda: parts.engine.why_not is None,
        staging=parts.home.folder(STAGING),
        wanted=lambda: parts.policy.recheck,
        is_free=lambda: parts.validator.busy is None,
        changed=changed,
        showing=partial(_showing, parts, "recheck"),
    )
    return EvidenceRechecker(parts.signer(), parts.home.chains, parts.evaluator, settings)


def observer_of(parts: ValidationContext) -> Observer:
    settings = observer.ObserverSettings(
        deps=observing(parts.ingest_deps, parts.may_dial), wanted=lambda: parts.policy.observe
    )
    return Observer(parts.signer(), settings)
