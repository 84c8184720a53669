"""Evaluates trust in datasets: gathers the facts about each from ledger and chain, and computes its reach.

Reads only. Every answer is computed anew from the records, at a cost of the number of verdicts, not of blocks: between
two places where somebody's verdict changes, all steps are judged alike, so only the first of each stretch is judged.

Compares the engines that an attestation calls the pinned ones with the pins of the chain that it is about. Whether an
engine is the pinned one is not for a validator to say: it signs the digest of its engine, and the chain has the pin.
Spec: docs/spec/trust.md#pins.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Final

import msgspec

from chain import instant
from chain.errors import NotFound
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.model.block import Block
from chain.model.events import DatasetKind, ExecuteTransform, Seed, SetTransform
from chain.multihash import Multihash
from chain.statements.cosignature import Cosignature
from chain.statements.statement import Attestation, HeadStatement, Span
from chain.statements.tree import Frontier, Tree
from chain.store.base import ChainReader, ChainStore, leaves
from chain.store.database import Database
from chain.walk import newest_first
from odfd.datasets.engine_pins import PinStretch, pin_stretches
from odfd.policy.policy import Expression, Policy, holds
from odfd.policy.witness_quorum import TreeRoots, witnessed
from odfd.store.holdings import Holdings
from odfd.store.ledger.cosignatures import Cosignatures
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.observations import Observations, Sighting
from odfd.store.ledger.proofs import Proofs
from odfd.store.ledger.resolutions import Decided, Resolutions
from odfd.store.ledger.runs import Rechecks, RecordedRun, Runs, run_at, with_rechecks
from odfd.store.ledger.signed_heads import DataAvailability, makers
from odfd.store.ledger.subtree_roots import Subtrees
from odfd.trust.admission.rules import EARLY_LIMIT
from odfd.trust.judgement.observation_reach import ObservationReach, electorate, sighted
from odfd.trust.judgement.suspension_rules import ME, DatasetStatements, Machine, SuspensionFacts
from odfd.trust.judgement.suspensions import Suspensions
from odfd.trust.judgement.verdicts import (
    NOT_PINNED,
    STOPS,
    ChainExtent,
    DatasetStatus,
    Decision,
    Electors,
    GroupVerdict,
    ReachAssessment,
    VerdictKind,
    accusations,
    counts_required,
    decide,
    quorum_of,
    reach,
    value_id,
)
from odfd.trust.transform_steps import STEP, first_step

MOST_DECLARATIONS: Final = 256
"""Declarations of a transform that are compared with one span; a stranger's chain may have any number.

Blocks of the span under older ones count as not pinned.
"""
_TRANSFORMS: Final = ("SetTransform",)


def held_to_pins(chain: ChainReader, attestation: Attestation) -> Attestation:
    """Returns an attestation in which no engine is called the pinned one of blocks that pin another digest.

    Such blocks become spans of their own, with the same engine, not pinned, and that as their reason.
    """
    engines = attestation.engines
    spans: list[Span] = []
    for span in attestation.spans:
        if span.engine is None or span.engine >= len(engines) or not engines[span.engine].pinned:
            spans.append(span)
            continue
        for first, last, is_so in _by_pin(chain, span, engines[span.engine].digest):
            part = msgspec.structs.replace(span, first=first, last=last)
            other = len(engines) + span.engine
            spans.append(part if is_so else msgspec.structs.replace(part, engine=other, reason=NOT_PINNED))
    if tuple(spans) == attestation.spans:
        return attestation
    unpinned = (msgspec.structs.replace(engine, pinned=False) for engine in engines)
    return msgspec.structs.replace(attestation, spans=tuple(spans), engines=(*engines, *unpinned))


def _by_pin(chain: ChainReader, span: Span, digest: str) -> list[tuple[int, int, bool]]:
    """Divides a span into stretches, oldest first, that pin ``digest`` and that do not."""
    found: list[tuple[int, int, bool]] = []
    for first, last, is_so in _newest_pins(chain, span, digest):
        if found and found[-1][2] is is_so:
            last = found.pop()[1]
        found.append((first, last, is_so))
    if not found:
        return [(span.first, span.last, True)]  # nothing in it was made by an engine
    found[-1] = (span.first, *found[-1][1:])
    return found[::-1]


def _newest_pins(chain: ChainReader, span: Span, digest: str) -> Iterator[tuple[int, int, bool]]:
    stop = span.last + 1
    for count, block in enumerate(newest_first(chain, _TRANSFORMS, stop)):
        assert isinstance(block.event, SetTransform)
        is_told = count < MOST_DECLARATIONS
        first = max(block.sequence_number, span.first) if is_told else span.first
        yield first, stop - 1, is_told and block.event.transform.version == digest
        stop = first
        if stop == span.first:
            return


FOREVER: Final = Instant(1 << 62)
MAX_LINEAGE: Final = 64
"""Derivations upon derivations that are followed; a dataset with a longer lineage is not within reach."""


class DatasetFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All recorded facts about one dataset."""

    dataset: DatasetId
    size: int
    head: HeadStatement | None
    """The newest signed head known, whether or not its blocks are here."""
    extent: ChainExtent
    attestations: Mapping[KeyDid, Attestation]
    """Live attestations about this chain (their root is mine), by validator."""
    runs: Mapping[int, RecordedRun]
    """Own runs, and for other steps the results of re-checks of others' evidence."""
    root: bool
    quorum: int
    """The K of ``attested:K`` required for this dataset; 0: not required."""
    forked: bool = False
    """Whether a fork of it was ever proven; settling it does not change that."""
    decided: Decided = Decided()
    """A person's decisions on this dataset on this node."""
    withheld: bool = False
    """Whether more blocks were signed and no peer gave them for a day."""
    suspended: frozenset[str] = frozenset()
    """Groups whose verdicts no longer count on this node."""
    ahead: bool = False
    """Whether the newest signed head is of a time ahead of this clock: one of the two clocks is wrong."""


class TrustEvaluator:
    """Evaluates trust for one node; ``policy`` is called each time, so that a reloaded policy applies at once."""

    def __init__(
        self,
        database: Database,
        chains: ChainStore,
        policy: Callable[[], Policy],
        me: KeyDid,
        clock: Callable[[], Instant],
        purposes: Callable[[DatasetId], tuple[Expression | None, Expression | None]] = lambda _: (None, None),
        own: Callable[[DatasetId], bool] = lambda _: False,
        by_dataset: Callable[[DatasetId], Policy | None] = lambda _: None,
    ) -> None:
        """``purposes``: a dataset's own expressions for use and serve. ``own``: whether this node makes a dataset.

        ``by_dataset``: finds the policy of a dataset, where networks differ; ``None``: the one for all.
        """
        self._own = own
        self._database = database
        self._chains = chains
        self._policy = policy
        self.me = me
        self._clock = clock
        self._purposes = purposes
        self._roots = TreeRoots()
        self._sightings = ObservationReach()
        self._by_dataset = by_dataset

    def use(self, dataset: DatasetId) -> Expression:
        return self.policy_of(dataset).use_of(self._purposes(dataset)[0])

    def serve(self, dataset: DatasetId) -> Expression:
        return self.policy_of(dataset).serve_of(self._purposes(dataset)[1])

    def passes_on_unjudged(self, dataset: DatasetId) -> bool:
        """Whether new blocks are served that are only known to be signed, with their data here.

        Only if all blocks before them are served, and the dataset was never forked.
        """
        expression = self.serve(dataset)
        if not holds(expression, {"linked": 1, "chain": 1, "data": 1, "fresh": 1}):
            return False
        known = self.known(dataset)
        return not known.forked and self.reach_of(self._chains.chain(dataset), known, expression).blocks == known.size

    @property
    def policy(self) -> Policy:
        """The policy where no dataset is concerned."""
        return self._policy()

    def policy_of(self, dataset: DatasetId) -> Policy:
        """The policy by which a dataset is judged: that of the networks in which it was met."""
        return self._by_dataset(dataset) or self._policy()

    def known(self, dataset: DatasetId, within: dict[DatasetId, int] | None = None) -> DatasetFacts:
        """Gathers the facts about a dataset. ``within``: the reach of datasets already evaluated for this request."""
        within = {} if within is None else within
        # Chains of others may derive from each other in a cycle: within a cycle nothing is within reach.
        within[dataset] = 0
        policy = self.policy_of(dataset)
        chain = self._chains.chain(dataset)
        head = chain.head()
        size = head.size if head else 0
        with self._database.read() as connection:
            ledger = Ledger(connection)
            newest = ledger.newest_head(dataset)
            checked = ledger.chain(dataset)
            unseen = Holdings(connection).extent(dataset).seen
            runs = _own_runs(connection, chain, dataset, size)
            proofs = Proofs(connection)
            double_voters = proofs.double_voters()
            attestations = self._list_heard(connection, policy, chain, dataset, double_voters)
            forked_at = proofs.forked_at(dataset, checked.epoch)
            cosigned = Cosignatures(connection).of(dataset) if policy.witnesses.groups else ()
            forked, decided = proofs.is_forked(dataset), Resolutions(connection).of(dataset)
            suspended = Suspensions(connection).groups()
            lacks = newest is not None and newest[0].size > size
            withheld = lacks and DataAvailability(connection).is_withheld(dataset, size, self._clock())
            is_root = size > 0 and _is_root(chain)
            # No group confirms what a key of its own made (test_self_attestation_ignored).
            silent = _kin(policy, double_voters | makers(connection, dataset))
            observed = self._count_observed(connection, chain, dataset, silent, suspended) if is_root else None
        signed, now = newest[0] if newest else None, self._clock()
        extent = ChainExtent(
            linked=size,
            chain=min(size, signed.size) if signed else 0,
            # Of a mirror of the newest data the rest was never looked at
            # (test_reach_says_what_was_looked_at_and_no_more).
            data=0 if unseen else min(size, checked.data),
            forked_at=forked_at,
            abandoned_at=None if decided.abandoned is None else decided.abandoned.place,
            inputs=None if is_root or not size else self._inputs(chain, size, within),
            fresh=signed is not None and _is_fresh(policy, signed, now),
            witnessed=self._count_witnessed(dataset, chain, checked.frontier, size, cosigned),
            own=self._own(dataset),
            observed=observed,
        )
        return DatasetFacts(
            dataset=dataset,
            size=size,
            head=signed,
            extent=extent,
            attestations=attestations,
            runs=runs,
            root=is_root,
            quorum=quorum_of((self.use(dataset), self.serve(dataset))),
            forked=forked,
            decided=decided,
            suspended=suspended,
            withheld=withheld,
            ahead=signed is not None and _is_ahead(signed, now),
        )

    def lasts_until(self, datasets: Iterable[DatasetId]) -> Instant | None:
        """Returns the time until which no fact about these datasets changes by time alone; ``None``: unknown."""
        until, now = FOREVER, self._clock()
        for dataset in datasets:
            head, policy = self._chains.chain(dataset).head(), self.policy_of(dataset)
            with self._database.read() as connection:
                newest = Ledger(connection).newest_head(dataset)
            if newest is None:
                continue
            if _is_ahead(newest[0], self._clock()):
                until = min(until, Instant(newest[0].issued - EARLY_LIMIT))
            stale = Instant(newest[0].expires + policy.max_stale * instant.SECOND + 1)
            # A head whose blocks are missing may count as withheld, and cosignatures age.
            if policy.witnesses.groups or newest[0].size > (head.size if head else 0):
                return None
            until = min(until, stale) if now < stale else until
        return until

    def witnesses_to_spare(self, known: DatasetFacts) -> int | None:
        """Witness groups that cosign a dataset beyond those asked for; below 0 readers stop. ``None``: none are."""
        asked = self.policy_of(known.dataset).witnesses_asked
        return sum(size > 0 for size in known.extent.witnessed) - asked if asked else None

    def now(self) -> Instant:
        return self._clock()

    def reach(
        self, dataset: DatasetId, expression: Expression, within: dict[DatasetId, int] | None = None
    ) -> ReachAssessment:
        """Returns how many blocks of a dataset meet an expression."""
        return self.reach_of(self._chains.chain(dataset), self.known(dataset, within), expression)

    def reach_of(self, chain: ChainReader, known: DatasetFacts, expression: Expression) -> ReachAssessment:
        steps = list(_steps_of(chain, known))
        return reach(expression, known.extent, steps, lambda step: self.decision(known, step))

    def is_reproduced(self, known: DatasetFacts) -> bool:
        """Whether this node re-ran every step and got the same answer each time; true for chains without steps."""
        steps = _steps_of(self._chains.chain(known.dataset), known)
        return known.size > 0 and all(self.decision(known, step).reproduced for step in steps)

    def unproven(self, known: DatasetFacts) -> list[PinStretch]:
        """Returns the pins under which a step was made that nobody who counts ran again on the pinned engine.

        Newest first, each from the first such step to its last one. What this node made is proven to it.
        """
        chain = self._chains.chain(known.dataset)
        found: list[PinStretch] = []
        if known.root or known.extent.own:
            return found
        pins = list(pin_stretches(chain, known.size))
        steps = [*_steps_of(chain, known, (pin.first for pin in pins))]
        for pin in pins:
            within = (step for step in steps if pin.first <= step <= pin.last)
            first = next((step for step in within if not self._is_proven(known, step)), None)
            last = chain.last_of(STEP, pin.last + 1)
            if first is not None and last is not None:
                found.append(PinStretch(first, last.sequence_number, pin.transform))
        return found

    def _is_proven(self, known: DatasetFacts, step: int) -> bool:
        found = self.decision(known, step)
        return found.reproduced or found.attested > 0

    def decision(self, known: DatasetFacts, step: int) -> Decision:
        """Judges one transform step. A step that a person relies on against the verdicts counts as data, and no
        more."""
        found = self.verdict(known, step)
        settled = known.decided.verdict(step) if found.status in STOPS else None
        if settled is None or self._chains.chain(known.dataset).block_at(step).hash != settled:
            return found
        return Decision(DatasetStatus.DISPUTED, against=found.against)

    def verdict(self, known: DatasetFacts, step: int) -> Decision:
        """Judges a step by the rules alone, without a person's decisions."""
        run = run_at(known.runs, step)
        electors = Electors(
            policy=self.policy_of(known.dataset),
            me=self.me,
            quorum=known.quorum,
            suspended=known.suspended,
            engine=run.engine.digest if run is not None else "",
            own_reason=run.reason if run is not None else "",
        )
        return decide(electors, known.attestations, own_verdict(run), step)

    def view(self, dataset: DatasetId) -> SuspensionFacts:
        """Returns the facts about one dataset for suspension: all verdicts on its steps, mine included."""
        chain = self._chains.chain(dataset)
        head = chain.head()
        with self._database.read() as connection:
            size = head.size if head else 0
            runs = _own_runs(connection, chain, dataset, size)
            attestations = self._list_heard(connection, self.policy, chain, dataset, frozenset())
            attestations.pop(self.me, None)
            accused, sanctions = Proofs(connection).double_voters(), Suspensions(connection)
            since, pardoned = sanctions.since(), sanctions.pardoned()
        steps = list(_telling_steps(chain, size, attestations, runs, ()))
        verdicts = {step: own_verdict(run_at(runs, step)) for step in steps}
        machine = next((Machine(run.engine.digest, run.engine.platform) for run in reversed(runs.values())), None)
        statements = DatasetStatements(
            attestations=attestations,
            own={at: verdict for at, verdict in verdicts.items() if verdict is not None},
            steps=steps,
        )
        return SuspensionFacts(
            datasets={dataset: statements},
            accused=accused,
            since=since,
            pardoned=pardoned,
            own_group=self.policy.group_of(self.me) or ME,
            own_machine=machine,
        )

    def stops(self, known: DatasetFacts) -> list[tuple[int, Decision]]:
        """Lists the steps that are not relied on for anything; of each stretch judged alike only the first."""
        steps = _steps_of(self._chains.chain(known.dataset), known)
        found = [(step, self.decision(known, step)) for step in steps]
        return [(step, decision) for step, decision in found if decision.status in STOPS]

    def sighted(self, dataset: DatasetId) -> tuple[list[Sighting], int]:
        """Returns observations of the newest observed block, and how many groups found it at the source."""
        chain, policy = self._chains.chain(dataset), self.policy_of(dataset)
        head = chain.head()
        with self._database.read() as connection:
            kept = Observations(connection)
            number = kept.newest(dataset)
            if number is None or head is None or number >= head.size:
                return [], 0
            seen, block = kept.at(dataset, number), chain.block_at(number)
            silent = _kin(policy, Proofs(connection).double_voters() | makers(connection, dataset))
            who = electorate(policy, self.me, silent, Suspensions(connection).groups())
        return [each for each in seen if each.block == block.hash], sighted(who, seen, block)

    def _count_observed(
        self,
        connection: sqlite3.Connection,
        chain: ChainReader,
        dataset: DatasetId,
        silent: Callable[[KeyDid], bool],
        suspended: frozenset[str],
    ) -> Mapping[int, int]:
        asked = counts_required("observed", (self.use(dataset), self.serve(dataset)))
        if not asked:
            return {}
        who = electorate(self.policy_of(dataset), self.me, silent, suspended)
        return {count: self._sightings.reach(connection, chain, dataset, count, who) for count in asked}

    def _count_witnessed(
        self, dataset: DatasetId, chain: ChainReader, known: Frontier, size: int, cosigned: Sequence[Cosignature]
    ) -> tuple[int, ...]:
        def tree() -> Tree:
            of_chain = partial(leaves, chain)
            with self._database.read() as connection:
                return Subtrees(connection).load(dataset, known, of_chain) or Tree(of_chain)

        def roots_at(sizes: Sequence[int]) -> Mapping[int, bytes]:
            return self._roots.at(sizes, {size: chain.block_at(size - 1).hash for size in sizes}, tree)

        return witnessed(self.policy_of(dataset).witnesses, cosigned, size, roots_at, self._clock()) if cosigned else ()

    def _list_heard(
        self,
        connection: sqlite3.Connection,
        policy: Policy,
        chain: ChainReader,
        dataset: DatasetId,
        double_voters: frozenset[KeyDid],
    ) -> dict[KeyDid, Attestation]:
        """Returns the attestations about my chain, held to its pins; none of double voters, of the dataset's makers
        their accusations."""
        is_silent, is_maker = _kin(policy, double_voters), _kin(policy, makers(connection, dataset))
        said = {
            key: held_to_pins(chain, accusations(attestation) if is_maker(key) else attestation)
            for key, attestation in Ledger(connection).attestations(dataset).items()
            if not is_silent(key) and self._is_about(chain, attestation)
        }
        return {key: attestation for key, attestation in said.items() if attestation.spans}

    def _is_about(self, chain: ChainReader, attestation: Attestation) -> bool:
        """Whether an attestation is about my chain: the block that it names as its last must be at that place here.

        Links commit to all earlier blocks as a tree does, at any size and without a walk. So the root is not compared,
        and an attestation that names a false root counts on all nodes or on none.
        """
        head = chain.head()
        if head is None or not 0 < attestation.size <= head.size:
            return False
        return chain.block_at(attestation.size - 1).hash == attestation.head

    def _inputs(self, chain: ChainReader, size: int, within: dict[DatasetId, int]) -> int:
        """Returns the number of blocks before the first step that read an input beyond that input's own reach.

        Inputs that are not held here pass. Steps read on from where the step before stopped, so all steps after that
        one read beyond too.
        """

        def reads_beyond(step: Block) -> bool:
            event = step.event
            return isinstance(event, ExecuteTransform) and not self._inputs_hold(event, within)

        beyond = first_step(chain, 0, size, reads_beyond)
        return size if beyond is None else beyond.sequence_number

    def _inputs_hold(self, event: ExecuteTransform, within: dict[DatasetId, int]) -> bool:
        for input_ in event.query_inputs:
            read = input_.new_block_hash or input_.prev_block_hash
            chain = self._chains.chain(input_.dataset_id)
            if read is None or chain.head() is None:
                continue
            if input_.dataset_id not in within:
                deep = len(within) >= MAX_LINEAGE
                within[input_.dataset_id] = (
                    0 if deep else self.reach(input_.dataset_id, self.use(input_.dataset_id), within).blocks
                )
            try:
                number = chain.block_by_hash(read).sequence_number
            except NotFound:
                # Our copy of the input ends before the blocks that the step read, or belongs to another history.
                return False
            if number >= within[input_.dataset_id]:
                return False
        return True


def _own_runs(
    connection: sqlite3.Connection, chain: ChainReader, dataset: DatasetId, size: int
) -> dict[int, RecordedRun]:
    def hash_at(number: int) -> Multihash | None:
        return chain.block_at(number).hash if number < size else None

    return with_rechecks(Runs(connection).of(dataset), Rechecks(connection).of(dataset).values(), hash_at)


def _is_fresh(policy: Policy, head: HeadStatement, now: Instant) -> bool:
    return not _is_ahead(head, now) and now <= head.expires + policy.max_stale * instant.SECOND


def _is_ahead(head: HeadStatement, now: Instant) -> bool:
    """Whether a head is one that nobody would take now: this node's own, or one from when its clock was ahead."""
    return head.issued > now + EARLY_LIMIT


def _kin(policy: Policy, keys: frozenset[KeyDid]) -> Callable[[KeyDid], bool]:
    """Returns whether a key is one of these, or of the group of one."""
    groups = {policy.group_of(key) for key in keys} - {None}
    return lambda key: key in keys or policy.group_of(key) in groups


def _is_root(chain: ChainReader) -> bool:
    seed = chain.block_at(0).event
    return isinstance(seed, Seed) and seed.dataset_kind is DatasetKind.ROOT


def own_verdict(run: RecordedRun | None) -> GroupVerdict | None:
    """Converts this node's own run of a step to a verdict; none by another engine than the step pins."""
    if run is None or not run.engine.pinned:
        return None
    if run.verdict == VerdictKind.REPRODUCED.value:
        return GroupVerdict(VerdictKind.REPRODUCED)
    if run.verdict == VerdictKind.MISMATCH.value and run.actual is not None:
        return GroupVerdict(VerdictKind.MISMATCH, value_id(run.actual))
    if run.verdict == VerdictKind.NONDETERMINISTIC.value and run.reason == "nondeterministic":
        return GroupVerdict(VerdictKind.NONDETERMINISTIC)
    return None


def _steps_of(chain: ChainReader, known: DatasetFacts, more: Iterable[int] = ()) -> Iterable[int]:
    return _telling_steps(
        chain,
        known.size,
        known.attestations,
        known.runs,
        (known.extent.chain, known.extent.data, *known.extent.witnessed, *more),
    )


def _telling_steps(
    chain: ChainReader,
    size: int,
    attestations: Mapping[KeyDid, Attestation],
    runs: Mapping[int, RecordedRun],
    bounds: Iterable[int],
) -> Iterable[int]:
    """Yields the first step of each stretch in which no verdict or fact changes; facts change at ``bounds``."""
    places = {0, size, *bounds}
    for attestation in attestations.values():
        for span in attestation.spans:
            places.update((span.first, span.last + 1))
        for wrong in attestation.mismatch:
            places.update((wrong.sequence_number, wrong.sequence_number + 1))
    for run in runs.values():
        places.update((run.sequence_number if run.first is None else run.first, run.sequence_number + 1))
    for start, stop in pairwise(sorted(place for place in places if place <= size)):
        step = first_step(chain, start, stop)
        if step is not None:
            yield step.sequence_number
