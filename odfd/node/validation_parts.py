"""Makes the parts of a node that check others' work: the validator, the re-check of evidence, and the observer."""

from __future__ import annotations

from typing import Protocol

from chain.ids import DatasetId
from config.model import Settings
from odfd.api.transforms.check import TransformCheck
from odfd.ingest.driver import IngestDependencies
from odfd.ingest.refetch import observing
from odfd.mirrors.scheduler import MirrorScheduler
from odfd.network.evidence import EvidenceFetcher
from odfd.state.directory import STAGING, StateDirectory
from odfd.transform.driver import TransformDependencies as TransformDependencies
from odfd.trust.evidence.bundle_store import BundleStore
from odfd.trust.judgement.suspension_review import SuspensionReview, contradicted
from odfd.trust.judgement.trust_evaluator import TrustEvaluator
from odfd.trust.policy.policy import Policy
from odfd.trust.signing.signer_context import SignerContext
from odfd.trust.validation import evidence_rechecker, observer, validator
from odfd.trust.validation.evidence_rechecker import EvidenceRechecker
from odfd.trust.validation.observer import Observer
from odfd.trust.validation.validator import Validator
from odfd.workers.engine import NodeEngine
from p2p.ip import Allows


class ValidationContext(Protocol):
    """What these parts need of a node; ``odfd.node.parts.NodeParts`` has it."""

    home: StateDirectory
    settings: Settings
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

    def signer(self) -> SignerContext: ...


def validator_of(parts: ValidationContext) -> Validator:
    def share() -> float:
        """Of steps. Who promised verdicts is told that there is no engine; who did not is not."""
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
    )
    return Validator(parts.signer(), settings)


def rechecking_of(parts: ValidationContext) -> EvidenceRechecker:
    def changed(dataset: DatasetId) -> None:
        """How far it may be relied on is another, and so is what derives from it."""
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
    )
    return EvidenceRechecker(parts.signer(), parts.home.chains, parts.evaluator, settings)


def observer_of(parts: ValidationContext) -> Observer:
    settings = observer.ObserverSettings(
        deps=observing(parts.ingest_deps, parts.may_dial), wanted=lambda: parts.policy.observe
    )
    return Observer(parts.signer(), settings)
