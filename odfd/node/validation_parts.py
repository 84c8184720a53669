"""What runs again what others published, joined to a node: the validator, the re-check of evidence, the observer."""

from __future__ import annotations

from typing import Protocol

from chain.ids import DatasetId
from config.model import Settings
from odfd.api.transform_check import TransformCheck
from odfd.ingest.driver import Workshop as IngestShop
from odfd.ingest.refetch import observing
from odfd.ingest.settings import MayDial
from odfd.mirrors.scheduler import MirrorKeeper
from odfd.network.evidence import EvidenceFetcher
from odfd.state.directory import STAGING, Home
from odfd.transform.driver import Workshop as TransformShop
from odfd.trust.evidence.bundle_store import Shelf
from odfd.trust.judgement.suspension_review import Reviewing, contradicted
from odfd.trust.judgement.trust_evaluator import Standing
from odfd.trust.policy.policy import Policy
from odfd.trust.signing.signer_context import Post
from odfd.trust.validation import evidence_rechecker, observer, validator
from odfd.trust.validation.evidence_rechecker import Rechecking
from odfd.trust.validation.observer import Observer
from odfd.trust.validation.validator import Validator
from odfd.workers.engine import NodeEngine


class ValidationContext(Protocol):
    """What these parts need of a node; ``odfd.node.parts.NodeParts`` has it."""

    home: Home
    settings: Settings
    policy: Policy
    engine: NodeEngine
    check: TransformCheck
    standing: Standing
    shelf: Shelf
    keeper: MirrorKeeper
    reviewing: Reviewing
    validator: Validator
    evidence_fetcher: EvidenceFetcher
    ingest_shop: IngestShop
    transform_shop: TransformShop
    may_dial: MayDial

    def post(self) -> Post: ...


def validator_of(parts: ValidationContext) -> Validator:
    def share() -> float:
        """Of steps. Who promised verdicts is told that there is no engine; who did not is not."""
        if parts.policy.attest:
            return 1.0
        return 0.0 if parts.engine.why_not else parts.policy.spot_check

    settings = validator.Settings(
        shop=parts.transform_shop,
        fresh_engine=parts.engine.fresh,
        determinism=parts.check.determinism,
        wanted=lambda: parts.policy.attest,
        pause=lambda: parts.settings.policy.publish.attest_seconds,
        share=share,
        contradicted=lambda dataset: contradicted(parts.standing, dataset),
        shelf=parts.shelf,
    )
    return Validator(parts.post(), settings)


def rechecking_of(parts: ValidationContext) -> Rechecking:
    def changed(dataset: DatasetId) -> None:
        """How far it may be relied on is another, and so is what derives from it."""
        parts.keeper.poke(dataset)
        parts.reviewing.rounds.touch(dataset)

    settings = evidence_rechecker.Settings(
        shelf=parts.shelf,
        fetch=parts.evidence_fetcher.fetch,
        engine=parts.engine,
        fresh_engine=parts.engine.fresh,
        has_engine=lambda: parts.engine.why_not is None,
        staging=parts.home.folder(STAGING),
        wanted=lambda: parts.policy.recheck,
        is_free=lambda: parts.validator.busy is None,
        changed=changed,
    )
    return Rechecking(parts.post(), parts.home.chains, parts.standing, settings)


def observer_of(parts: ValidationContext) -> Observer:
    settings = observer.Settings(shop=observing(parts.ingest_shop, parts.may_dial), wanted=lambda: parts.policy.observe)
    return Observer(parts.post(), settings)
