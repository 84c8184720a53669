"""Makes the parts of a node that cosign others' datasets and that request cosignatures of its own."""

from __future__ import annotations

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
from odfd.datasets.visibility import Visibility
from odfd.mirrors.holders import Holders
from odfd.network.outbox import Outbox
from odfd.network.tree_proofs import TreeProofs
from odfd.state.directory import StateDirectory
from odfd.state.remotes import Remotes
from odfd.trust.ledger.cosignatures import Cosignatures
from odfd.trust.policy.policy import Policy
from odfd.trust.policy.profiles import cosigns
from odfd.trust.witness.tlog_witness import TlogWitness
from odfd.trust.witness.witness import CosignRequest, Witness
from odfd.workers.witness_submission import SubmissionMiss, WitnessedLog, WitnessSubmission
from odfd.workers.witnessing import WitnessEvents, Witnessing, WitnessRequest
from p2p.ports import Topic


class WitnessContext(Protocol):
    """What these parts need of a node; ``odfd.node.parts.NodeParts`` has it."""

    home: StateDirectory
    settings: Settings
    context: Context
    policy: Policy
    outbox: Outbox
    remotes: Remotes
    holders: Holders
    visibility: Visibility
    submissions: WitnessSubmission

    def name_of(self, dataset: DatasetId) -> str: ...

    def witnessed(self, made: Cosignature) -> None: ...


def _tell(parts: WitnessContext, made: Cosignature) -> None:
    tree = made.checkpoint
    parts.outbox.put(Topic.HEADS, tree.dataset, made.encode())
    what = "versions of its authority" if tree.epoch is None else "blocks"
    text = f"{tree.size} {what}"
    parts.context.events.emit("cosignature.signed", parts.name_of(tree.dataset), text, size=tree.size)


def _witness_of(parts: WitnessContext) -> Witness:
    home = parts.home
    return Witness(home.database, home.keys, partial(leaves_of, home.chains), parts.context.clock.now)


def checkpoint_receiver_of(parts: WitnessContext) -> TlogWitness:
    """Where logs submit checkpoints. It is asked from worker threads of the event loop."""
    home = parts.home

    def cosigned(made: Cosignature) -> None:
        trio.from_thread.run_sync(_tell, parts, made)

    rooms = (home.database, home.keys, _witness_of(parts))
    return TlogWitness(rooms, lambda: parts.policy.attended, parts.context.clock.now, cosigned)


def witnessing_of(parts: WitnessContext) -> Witnessing:
    home, context = parts.home, parts.context

    def contradicted(question: CosignRequest) -> None:
        """No proof joins two heads of one epoch: whoever holds the one history hears of the other by this."""
        for head in (question.kept, question.head):
            if head is not None:
                parts.outbox.put(Topic.HEADS, question.tree.dataset, head)
        tree = question.tree
        text = f"{plural(tree.size, 'block')} not shown to begin with the {question.old.size} cosigned last"
        context.events.emit("cosignature.refused", parts.name_of(tree.dataset), text, size=tree.size)

    def asked() -> WitnessRequest:
        return WitnessRequest(cosigns(parts.settings.policy), parts.policy.attended)

    network, told = (parts.remotes.replication, parts.holders), WitnessEvents(partial(_tell, parts), contradicted)
    return Witnessing(home.chains, _witness_of(parts), asked, network, told, context.logger)


def submissions_of(parts: WitnessContext) -> WitnessSubmission:
    home, context = parts.home, parts.context

    def cosigned(made: Cosignature) -> None:
        parts.outbox.put(Topic.HEADS, made.checkpoint.dataset, made.encode())
        parts.witnessed(made)

    log = WitnessedLog(home.database, home.chains, home.keys, TreeProofs(home.database), parts.visibility.public_of)
    return WitnessSubmission(log, lambda: parts.policy.public, context.clock, cosigned, context.logger)


def witness_views(parts: WitnessContext, dataset: DatasetId, epoch: int) -> list[wire.WitnessView]:
    """Those that count here, and of a dataset that is published here those that are asked, whatever they said."""
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
