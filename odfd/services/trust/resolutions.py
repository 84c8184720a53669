"""Carries out a person's decision on a fork, a refuted history or given-up blocks.

A decision is one entry of the ledger, with the hash of the policy and the statements that it rests on, and holds on
this node alone. If it chooses another history than the one here, the latter is given up from the place where they part,
in the same transaction, and the mirror fetches the other. Nobody else writes the dataset meanwhile.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence

import trio

from chain.errors import Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import canonical
from chain.statements.authority import Rights
from chain.statements.proof import AUTHORITY_FORK, FORK
from chain.statements.statement import HeadStatement
from chain.store.base import ChainReader, Rewrite
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.operations import DATASET_PATH, Owner, operation
from odfd.mirrors.epoch_switch import RewriteWaiting, turn_of
from odfd.mirrors.scheduler import MirrorScheduler
from odfd.runtime.subjects import about
from odfd.store.catalog import DatasetEntry
from odfd.store.directory import StateDirectory
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.history_rewrite import give_up, kept_tree
from odfd.store.ledger.live_set import hold_instead
from odfd.store.ledger.log import CheckedChain, Ledger
from odfd.store.ledger.proofs import Proofs, is_disputed
from odfd.store.ledger.resolutions import Resolutions
from odfd.trust.judgement import manual_resolution
from odfd.trust.judgement.manual_resolution import DecisionOutcome, Fork, PendingDecision, Side, Stop, Versions
from odfd.trust.judgement.trust_evaluator import TrustEvaluator


class PendingDecisions:
    """Finds the decisions that a dataset waits for. Called from worker threads."""

    def __init__(self, home: StateDirectory, evaluator: TrustEvaluator) -> None:
        self._home = home
        self.evaluator = evaluator

    def case(self, entry: DatasetEntry) -> PendingDecision:
        chain = self._home.chains.chain(entry.id)
        known, head = self.evaluator.known(entry.id), chain.head()
        with self._home.database.read() as connection:
            checked = Ledger(connection).chain(entry.id)
            fork, versions = self._fork(connection, entry.id, checked.epoch), self._versions(connection, entry.id)
            walk = Authorities(connection).walk(entry.id)
        waiting = known.head
        if waiting is None or not _gives_up(checked, waiting, walk) or known.decided.follows(waiting.epoch):
            waiting = None
        stops = self.evaluator.stops(known)
        return PendingDecision(
            dataset=entry.id,
            name=entry.name,
            size=known.size,
            head=None if head is None else head.hash,
            epoch=checked.epoch,
            number_of=lambda name: _number_of(chain, name),
            fork=fork,
            stops=[Stop(step, chain.block_at(step).hash, found.status.value) for step, found in stops],
            waiting=waiting,
            versions=versions,
            abandoned=known.decided.abandoned is not None,
        )

    def _fork(self, connection: sqlite3.Connection, dataset: DatasetId, epoch: int) -> Fork | None:
        proofs = Proofs(connection)
        index = proofs.forked_at(dataset, epoch)
        found = [each for each in proofs.of(dataset) if (each.kind, each.epoch, each.index) == (FORK, epoch, index)]
        return manual_resolution.fork_of(found[0]) if index is not None and found else None

    def _versions(self, connection: sqlite3.Connection, dataset: DatasetId) -> Versions | None:
        rights = Authorities(connection).rights(dataset)
        if not is_disputed(connection, dataset, rights):
            return None
        found = [
            each
            for each in Proofs(connection).of(dataset)
            if (each.kind, each.epoch) == (AUTHORITY_FORK, rights.version)
        ]
        return manual_resolution.versions_of(found[0], rights.sid) if found and rights.sid is not None else None


def _gives_up(checked: CheckedChain, head: HeadStatement, walk: Sequence[Rights]) -> bool:
    """Whether a head is of an epoch that a mirror does not follow unless a person says so."""
    try:
        turn_of(checked, head, walk, follow=False)
    except RewriteWaiting:
        return True
    return False


def _number_of(chain: ChainReader, name: Multihash) -> int | None:
    try:
        return chain.block_by_hash(name).sequence_number
    except NotFound:
        return None


class ResolutionService:
    """The API service for a person's decisions. ``changed`` is called for every dataset decided on."""

    def __init__(
        self,
        home: StateDirectory,
        pending_decisions: PendingDecisions,
        scheduler: MirrorScheduler,
        context: Context,
        changed: Callable[[DatasetId], None],
    ) -> None:
        self._home = home
        self._pending_decisions = pending_decisions
        self._evaluator = pending_decisions.evaluator
        self._scheduler = scheduler
        self._events = context.events
        self._clock = context.clock
        self._changed = changed

    @operation("POST", DATASET_PATH + "/trust/resolve", needs=Owner.POLICY)
    async def resolve(self, ref: str, request: wire.ResolveRequest) -> wire.Resolved:
        """Decides on a fork or another doubt about a dataset: follows a hash, or abandons.

        Refused if no decision is needed, or for a fork of an owner's own dataset.
        """
        if (request.follow is None) != request.abandon:
            raise Invalid("either follow a hash or abandon", rule="request", hint="--follow HASH, or --abandon")
        entry = await trio.to_thread.run_sync(self._home.resolve, ref)
        async with self._home.turns.of(entry.id), self._scheduler.still(entry.id):
            answer = await trio.to_thread.run_sync(self._resolve, entry, request)
        self._changed(entry.id)
        self._scheduler.poke(entry.id)
        self._events.emit("dataset.resolved", entry.name, "; ".join(answer.settles), about=about(entry.id))
        return wire.Resolved(ref=entry.name, dataset_id=str(entry.id), settles=answer.settles)

    def _resolve(self, entry: DatasetEntry, request: wire.ResolveRequest) -> DecisionOutcome:
        case, now = self._pending_decisions.case(entry), self._clock.now()
        if request.follow is None:
            reach = self._evaluator.reach(entry.id, self._evaluator.use(entry.id)).blocks
            answer = manual_resolution.abandon(case, reach, now)
        else:
            answer = manual_resolution.follow(case, _hash_of(request.follow, entry.name), now)
        self._check_ours(entry, case, answer)
        if answer.branch is not None and case.fork is not None and case.size > case.fork.index:
            self._turn(entry.id, case, answer, answer.branch, request, now)
            return answer
        with self._home.database.write() as connection:
            if answer.branch is not None:
                Ledger(connection).follow(entry.id, answer.branch.signed, now)
            if answer.version is not None:
                self._replace(connection, entry, answer)
            self._record(connection, entry.id, answer, request, now)
        return answer

    def _check_ours(self, entry: DatasetEntry, case: PendingDecision, answer: DecisionOutcome) -> None:
        """Raises Refused for an owner, who has to settle a fork by a new epoch, which everybody sees."""
        if (answer.branch or (case.fork and answer.resolutions)) and self._home.keys.has_dataset_key(entry.id):
            raise Refused(
                f"{entry.name} is published by this node: only a new epoch settles its fork for all nodes",
                rule="resolve-owner",
                hint=f"odfctl trust authority rotate {entry.name} opens one that keeps all that is here",
            )

    def _turn(
        self,
        dataset: DatasetId,
        case: PendingDecision,
        answer: DecisionOutcome,
        side: Side,
        request: wire.ResolveRequest,
        now: Instant,
    ) -> None:
        """Gives up the history that is here from the fork on, and follows the other side."""
        assert case.fork is not None
        keep = case.fork.index
        chain = self._home.chains.chain(dataset)
        head = chain.head()
        if head is None or keep < 1:
            raise Refused(
                f"the histories of {case.name} part at their first block",
                rule="resolve",
                hint="delete it here and mirror it again: odfctl mirror add --expect HASH",
            )
        with self._home.database.read() as connection:
            checked = Ledger(connection).chain(dataset)
        now_checked = CheckedChain(kept_tree(chain, keep), min(checked.data, keep), side.head.epoch)

        def together(connection: sqlite3.Connection) -> None:
            give_up(connection, dataset, keep, now_checked)
            Ledger(connection).follow(dataset, side.signed, now)
            self._record(connection, dataset, answer, request, now)

        self._home.chains.rewrite(Rewrite(dataset=dataset, expected=head, keep=keep), together)

    def _replace(self, connection: sqlite3.Connection, entry: DatasetEntry, answer: DecisionOutcome) -> None:
        """Keeps the other statement of a version; heads that rest on the one given up are given up too.

        Raises Refused.
        """
        assert answer.version is not None
        said, signed = answer.version
        authorities, ledger = Authorities(connection), Ledger(connection)
        if ledger.chain(entry.id).epoch > authorities.walk(entry.id)[said.version - 1].epoch:
            raise Refused(
                f"blocks of {entry.name} that are here belong to an epoch that only the version held here opens",
                rule="resolve",
                hint="delete it here and mirror it again: odfctl mirror add --expect HASH",
            )
        hold_instead(connection, said, signed)

    def _record(
        self, connection: sqlite3.Connection, dataset: DatasetId, answer: DecisionOutcome, request: wire.ResolveRequest,
        now: Instant,
    ) -> None:  # fmt: skip
        ledger, resolutions = Ledger(connection), Resolutions(connection)
        rests: Iterable[Multihash] = sorted(
            {
                *ledger.live(dataset),
                *(proof.id for proof in Proofs(connection).of(dataset)),
            }
        )
        if request.follow is not None:
            resolutions.take_up(dataset)
        for made in answer.resolutions:
            resolutions.keep(dataset, made)
        decision: dict[str, canonical.Json] = {
            "decision": "abandon" if request.follow is None else "follow",
            "follow": request.follow or "",
            "settles": list(answer.settles),
            "policy": str(self._evaluator.policy.digest),
            "rests": [str(rest) for rest in rests],
        }
        ledger.decide(dataset, canonical.encode(decision), now)


def _hash_of(text: str, name: str) -> Multihash:
    try:
        return Multihash.parse(text)
    except Invalid as error:
        hint = f"odfctl trust show {name} has the hashes of its versions; odfctl log {name} those of its blocks"
        raise Invalid(f"not the hash of a block: {text[:80]!r}", rule=error.rule, hint=hint) from error
