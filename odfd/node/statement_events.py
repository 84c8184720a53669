"""Notifies the parts of a node, and people, of each new statement, proof and cosignature.

The statement store calls from worker threads; everything is acted on in the event loop. The module also lists which
datasets and keys rounds of anti-entropy may name to peers, besides those in the ledger.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from chain.ids import DatasetId
from chain.statements.card import Card
from chain.statements.cosignature import Cosignature
from chain.statements.proof import AUTHORITY_FORK, FORK, Proof
from chain.statements.statement import (
    AnyPredicate,
    Authority,
    HeadStatement,
    PolicyStatement,
)
from odfd.control.assembly import Context
from odfd.mirrors.scheduler import MirrorScheduler
from odfd.network.forks import Contradiction, ForkFinder
from odfd.network.outbox import Outbox
from odfd.network.statement_store import NewStatement
from odfd.policy.policy import Policy
from odfd.runtime.subjects import about
from odfd.services.flows.worker import FlowWorker
from odfd.services.renditions.handover_follower import HandoverFollower
from odfd.services.trust.effective_policy import EffectivePolicy
from odfd.services.trust.views import proof_view
from odfd.services.trust.witnessing import Witnessing
from odfd.services.views.views import DatasetViews
from odfd.store import mirror_specs
from odfd.store.directory import StateDirectory
from odfd.store.visibility import Visibility
from odfd.trust.admission.rules import AdmissionOutcome
from odfd.trust.admission.statement_kinds import KINDS
from odfd.trust.judgement.suspension_review import SuspensionReview
from odfd.trust.validation.evidence_rechecker import EvidenceRechecker
from odfd.trust.validation.validator import Validator
from p2p.ports import Topic


class EventContext(Protocol):
    """The parts of a node that are notified; ``odfd.node.parts.NodeParts`` has them."""

    home: StateDirectory
    context: Context
    policy: Policy
    outbox: Outbox
    forks: ForkFinder
    scheduler: MirrorScheduler
    validator: Validator
    suspension_review: SuspensionReview
    rechecker: EvidenceRechecker
    witnessing: Witnessing
    flows: FlowWorker
    handovers: HandoverFollower

    def in_loop(self, call: Callable[..., object], *args: object) -> None: ...

    def policy_changed(self) -> None: ...


class StatementEvents:
    """Receives the notifications of one node's statement store."""

    def __init__(self, parts: EventContext) -> None:
        self._parts = parts

    def heard(self, news: NewStatement) -> None:
        predicate, parts = news.predicate, self._parts
        parts.in_loop(self._act_on, news, parts.home.name_of(predicate.dataset))
        # Nobody else should know more of a dataset of ours; another writer may, or a thief of its key: look for a fork.
        if isinstance(predicate, HeadStatement) and parts.home.keys.has_dataset_key(predicate.dataset):
            parts.in_loop(parts.forks.doubt, predicate.dataset, news.sender)

    def proven(self, proof: Proof, made_here: bool) -> None:
        """Reports a proof, and gossips it once if it was made here; others spread by themselves."""
        parts = self._parts
        if made_here:
            parts.outbox.put(Topic.PROOFS, proof.dataset, proof.raw)
        view = proof_view(parts.home.name_of(proof.dataset), proof)
        kind = _EVENT_OF.get(proof.kind, "validator.suspended")
        parts.in_loop(
            partial(parts.context.events.emit, kind, view.dataset, view.message, about=about(proof.dataset), id=view.id)
        )
        if any(parts.policy.group_of(key) is not None for key in proof.accused):
            parts.in_loop(parts.suspension_review.loop.touch_all)

    def witnessed(self, made: Cosignature) -> None:
        """Reports a witness's cosignature that counts, and wakes a mirror that may have waited for it."""
        parts, tree = self._parts, made.checkpoint
        who, name = (
            parts.policy.witnesses.groups.get(made.witness, made.witness.short),
            parts.home.name_of(tree.dataset),
        )
        emit = parts.context.events.emit
        parts.in_loop(
            partial(emit, "cosignature.heard", name, f"{who}: {tree.size}", about=about(tree.dataset), size=tree.size)
        )
        parts.in_loop(parts.scheduler.poke, tree.dataset)

    def _act_on(self, news: NewStatement, name: str) -> None:
        predicate, parts = news.predicate, self._parts
        if isinstance(predicate, HeadStatement) and news.outcome is AdmissionOutcome.FORK:
            parts.context.events.emit(
                "head.refused", name, "it contradicts what the same key signed before", about=about(predicate.dataset)
            )
            if news.proof is None:
                parts.forks.put(Contradiction(predicate, news.envelope, news.sender))
            return
        if (make := KINDS[predicate.KIND].notice) is not None:
            notice = make(predicate, name)
            parts.context.events.emit(notice.kind, notice.subject, notice.message, about=notice.about, **notice.data)
        wake(parts, predicate)
        parts.scheduler.poke(predicate.dataset)
        for part in (parts.validator, parts.suspension_review, parts.rechecker, parts.flows):
            part.loop.touch(predicate.dataset)


def wake(parts: EventContext, predicate: AnyPredicate) -> None:
    """Wakes the parts that a statement of its kind concerns, besides those that each one does."""
    match predicate:
        case HeadStatement():
            if predicate.dataset in parts.policy.attended:
                parts.witnessing.loop.touch(predicate.dataset)
            if predicate.collection is not None:
                parts.handovers.loop.touch(predicate.dataset)
        case Authority():
            parts.witnessing.loop.touch(predicate.dataset)
        case PolicyStatement():
            parts.policy_changed()
        case Card(claims=claims, shards=shards) if claims is not None and shards is not None:
            parts.handovers.loop.touch(predicate.dataset)


_EVENT_OF: Final = {FORK: "dataset.forked", AUTHORITY_FORK: "authority.forked"}


class InterestContext(Protocol):
    """The parts of a node that decide its interests; ``odfd.node.parts.NodeParts`` has them."""

    home: StateDirectory
    policy: Policy
    effective_policy: EffectivePolicy
    views: DatasetViews
    visibility: Visibility


def interests_of(parts: InterestContext, connection: sqlite3.Connection) -> set[DatasetId]:
    """Returns the datasets and keys about which this node wants to hear.

    These are datasets that are held, mirrored, witnessed, or read by a public one here; listed keys of validators and
    witnesses, for proofs against them; and the keys of the networks' policies. Inputs of private datasets are left out,
    so that nobody learns that they exist. Raises Environment, Invalid.
    """
    listed = {key for group in parts.policy.groups for key in group.keys}
    keys = {*listed, *parts.policy.witnesses.groups, *parts.effective_policy.keys(connection).values()}
    mirrored = (spec.id for spec in mirror_specs.all_of(connection))
    return {
        *parts.policy.attended,
        *mirrored,
        *parts.home.chains.datasets(),
        *parts.views.readers.inputs(parts.visibility.told_of),
        *(DatasetId.from_public_key(each.public_key) for each in keys),
    }
