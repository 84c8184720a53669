"""Judges blocks by the verdicts on them, and computes how far a chain may be relied on. Pure.

Truth is re-computed, by me or by enough independent others. Mismatches count together only if they have the same value:
the true answer is one, while non-determinism gives many. One group alone accuses and never refutes: however often one
machine runs a step, that machine may be broken. Spec: docs/spec/trust.md#judgement.
"""

from __future__ import annotations

import enum
import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from chain.ids import KeyDid
from chain.statements import canonical
from chain.statements.statement import Actual, Attestation, EngineUsed, Span
from odfd.policy.policy import SANDBOXES, Expression, Policy, facts_of, holds


class VerdictKind(enum.Enum):
    REPRODUCED = "reproduced"
    MISMATCH = "mismatch"
    NONDETERMINISTIC = "not-reproducible-here"


TOO_COSTLY: Final = "too-costly"
"""The reason that a validator states if it gave up a step."""
NOT_PINNED: Final = "engine-not-pinned"
"""The reason that a validator states if it has not the engine that a step pins, whatever another one gave."""


class GroupVerdict(msgspec.Struct, frozen=True):
    """One group's verdict on one block; ``value``: the id of its own result if it is a mismatch."""

    kind: VerdictKind
    value: bytes = b""


class DatasetStatus(enum.Enum):
    """The status of a block; the rows of the decision table."""

    OWN_MISMATCH = "own-mismatch"
    NONDETERMINISTIC = "nondeterministic"
    SPLIT = "split"
    REFUTED = "refuted"
    ACCUSED = "accused"
    """Like refuted, but by one group alone."""
    REPRODUCED = "reproduced"
    ATTESTED = "attested"
    DISPUTED = "disputed"
    PENDING = "pending"
    TOO_COSTLY = "too-costly"
    """Pending, and a counted validator gave it up for its cost."""
    NOT_PINNED = "engine-not-pinned"
    """Pending, and a counted validator has not the engine that it pins."""


STOPS: Final = frozenset(
    {DatasetStatus.OWN_MISMATCH, DatasetStatus.SPLIT, DatasetStatus.REFUTED, DatasetStatus.ACCUSED}
)
"""From the first block with one of these on, nothing may be relied on."""
REFUTING: Final = 2
"""Groups that must have computed the same other value before a block is called wrong, whatever f is."""


class Decision(msgspec.Struct, frozen=True):
    """The decision on a block, which says what it may be used for."""

    status: DatasetStatus
    reproduced: bool = False
    attested: int = 0
    against: int = 0
    """Groups behind the most frequent other value, me included if my run gave that value."""

    @property
    def refutes(self) -> bool:
        """Whether the block is shown to be wrong, and not only accused."""
        enough = self.against >= REFUTING
        return self.status is DatasetStatus.REFUTED or (self.status is DatasetStatus.OWN_MISMATCH and enough)


def count_votes(tolerated: int, own: GroupVerdict | None, others: Mapping[str, GroupVerdict], quorum: int) -> Decision:
    """Returns the first row of the decision table that fits.

    ``others``: verdicts by group; ``quorum``: the K of ``attested:K`` (0: none).
    """
    agree = sum(verdict.kind is VerdictKind.REPRODUCED for verdict in others.values())
    unsure = sum(verdict.kind is VerdictKind.NONDETERMINISTIC for verdict in others.values())
    values = Counter(verdict.value for verdict in others.values() if verdict.kind is VerdictKind.MISMATCH)
    if own is not None:
        agree += own.kind is VerdictKind.REPRODUCED
    top = max(values.values(), default=0)
    enough = tolerated + 1
    # Row 1 of trust.md#judgement: no number of others outweighs it (test_own_mismatch_beats_quorum).
    if own is not None and own.kind is VerdictKind.MISMATCH:
        return Decision(DatasetStatus.OWN_MISMATCH, attested=agree, against=1 + values[own.value])
    # Row 2: fewer groups than that excuse no publisher (test_excuse_needs_f_plus_one).
    if (own is not None and own.kind is VerdictKind.NONDETERMINISTIC) or unsure >= enough:
        return Decision(DatasetStatus.NONDETERMINISTIC, attested=0, against=top)
    if agree >= enough and top >= enough:
        return Decision(DatasetStatus.SPLIT, attested=agree, against=top)
    if top >= enough:
        return Decision(_denied_by(top), attested=agree, against=top)
    if own is not None:
        return Decision(DatasetStatus.REPRODUCED, reproduced=True, attested=agree, against=top)
    # Row 6: up to f groups that deny it have no veto (test_f_deniers_cannot_veto).
    if quorum and agree >= quorum:
        return Decision(DatasetStatus.ATTESTED, attested=agree, against=top)
    if values:
        return Decision(DatasetStatus.DISPUTED, attested=agree, against=top)
    return Decision(DatasetStatus.PENDING, attested=agree, against=top)


def _denied_by(groups: int) -> DatasetStatus:
    return DatasetStatus.REFUTED if groups >= REFUTING else DatasetStatus.ACCUSED


@lru_cache(maxsize=4096)
def value_id(actual: Actual) -> bytes:
    """Returns the sha3-256 of the canonical form of a re-run's result: equal results have equal ids."""
    body = msgspec.json.decode(msgspec.json.encode(actual, enc_hook=str))
    return hashlib.sha3_256(canonical.encode(body)).digest()


def verdict_on(attestation: Attestation, sequence_number: int) -> GroupVerdict | None:
    """Returns a validator's verdict on a block; none for abstentions, and what another engine gave than it pins."""
    span = _span_at(attestation, sequence_number)
    return _result(attestation, span, sequence_number) if _is_by_pin(attestation, span) else None


def result_of(attestation: Attestation, sequence_number: int) -> GroupVerdict | None:
    """Returns what a validator's re-run gave, by whichever engine; none for abstentions and opaque checkpoints."""
    return _result(attestation, _span_at(attestation, sequence_number), sequence_number)


def verdicts_of(attestation: Attestation) -> Iterator[GroupVerdict]:
    """Yields the verdicts of all spans, as ``verdict_on`` their last blocks."""
    for span in attestation.spans:
        if _is_by_pin(attestation, span) and (found := _result(attestation, span, span.last)) is not None:
            yield found


def _is_by_pin(attestation: Attestation, span: Span | None) -> bool:
    engine = None if span is None else _engine_of(attestation, span)
    return engine is not None and engine.pinned


def _result(attestation: Attestation, span: Span | None, sequence_number: int) -> GroupVerdict | None:
    # After a forged checkpoint each later false result reproduces (test_opaque_never_counts).
    if span is None or span.state == "opaque":
        return None
    if span.verdict == "reproduced":
        return GroupVerdict(VerdictKind.REPRODUCED)
    if span.verdict == "mismatch":
        return _mismatch(attestation, sequence_number)
    if span.verdict == VerdictKind.NONDETERMINISTIC.value and span.reason == "nondeterministic":
        return GroupVerdict(VerdictKind.NONDETERMINISTIC)
    return None


def accusations(attestation: Attestation) -> Attestation:
    """Returns what an attestation says against its dataset.

    Nobody attests himself, so of those who made a dataset no more counts. But this does: else a publisher would silence
    its accusers by naming their keys among its own, which needs no signature of theirs.
    """
    against = tuple(span for span in attestation.spans if span.verdict == VerdictKind.MISMATCH.value)
    return msgspec.structs.replace(attestation, spans=against)


def _mismatch(attestation: Attestation, sequence_number: int) -> GroupVerdict | None:
    """Returns the mismatch at a step; none without a strict query."""
    if attestation.determinism != "strict":
        return None
    for found in attestation.mismatch:
        if found.sequence_number == sequence_number:
            return GroupVerdict(VerdictKind.MISMATCH, value_id(found.actual))
    return None


def group_verdicts(
    policy: Policy,
    attestations: Mapping[KeyDid, Attestation],
    sequence_number: int,
    suspended: Collection[str] = (),
    of: Callable[[Attestation, int], GroupVerdict | None] = verdict_on,
) -> dict[str, GroupVerdict]:
    """Returns the verdict of each group on a step: one vote for each group. ``of`` reads that of one attestation.

    A group whose keys disagree has none, nor has a suspended one.
    """
    votes: dict[str, GroupVerdict] = {}
    silent: set[str] = set()
    for key, attestation in attestations.items():
        group = policy.group_of(key)
        if group is None or group in suspended:
            continue
        verdict = of(attestation, sequence_number)
        if verdict is None or not is_isolated(policy, attestation, sequence_number):
            continue
        if votes.setdefault(group, verdict) != verdict:
            silent.add(group)
    return {group: verdict for group, verdict in votes.items() if group not in silent}


def is_isolated(policy: Policy, attestation: Attestation, sequence_number: int) -> bool:
    """Whether a verdict was computed under at least the isolation that the policy requires."""
    if policy.min_sandbox == SANDBOXES[0]:
        return True
    engine = _engine_at(attestation, sequence_number)
    given = engine.sandbox if engine is not None else ""
    return given in SANDBOXES and SANDBOXES.index(given) >= SANDBOXES.index(policy.min_sandbox)


def _span_at(attestation: Attestation, sequence_number: int) -> Span | None:
    return next((span for span in attestation.spans if span.first <= sequence_number <= span.last), None)


def _engine_at(attestation: Attestation, sequence_number: int) -> EngineUsed | None:
    span = _span_at(attestation, sequence_number)
    return None if span is None else _engine_of(attestation, span)


def _engine_of(attestation: Attestation, span: Span) -> EngineUsed | None:
    if span.engine is None or span.engine >= len(attestation.engines):
        return None
    return attestation.engines[span.engine]


class Electors(msgspec.Struct, frozen=True, kw_only=True):
    """The groups whose verdicts on a dataset's steps count on this node, and the rules for counting."""

    policy: Policy
    me: KeyDid
    quorum: int
    """The K of ``attested:K`` required for this dataset; 0: none."""
    suspended: frozenset[str] = frozenset()
    """Groups whose verdicts do not count at present."""
    engine: str = ""
    """Digest of the engine that my own run of the step used; empty: unknown."""
    own_reason: str = ""
    """The reason why my own run of the step is no verdict; empty without one."""


def decide(
    electors: Electors, attestations: Mapping[KeyDid, Attestation], own: GroupVerdict | None, sequence_number: int
) -> Decision:
    """Judges one step: others count by group, and my own run once, as my group or as one more."""
    others = group_verdicts(electors.policy, attestations, sequence_number, electors.suspended)
    own_group = electors.policy.group_of(electors.me)
    if own_group is not None:
        others.pop(own_group, None)
    if _engines(electors, attestations, own, sequence_number) >= electors.policy.min_engines:
        found = count_votes(electors.policy.tolerated, own, others, electors.quorum)
    else:
        found = msgspec.structs.replace(count_votes(electors.policy.tolerated, own, others, 0), attested=0)
    if found.status is not DatasetStatus.PENDING:
        return found
    return msgspec.structs.replace(found, status=_pending_by(electors, attestations, sequence_number))


def _pending_by(electors: Electors, attestations: Mapping[KeyDid, Attestation], sequence_number: int) -> DatasetStatus:
    """Returns the reason for which a listed validator, or this node, has no verdict on a step, if it tells more."""
    counted = (
        each for key, each in attestations.items() if key == electors.me or electors.policy.group_of(key) is not None
    )
    spans = (_span_at(each, sequence_number) for each in counted)
    reasons = {electors.own_reason, *(span.reason for span in spans if span is not None)}
    told = (each for each in (DatasetStatus.NOT_PINNED, DatasetStatus.TOO_COSTLY) if each.value in reasons)
    return next(told, DatasetStatus.PENDING)


def _engines(
    electors: Electors,
    attestations: Mapping[KeyDid, Attestation],
    own: GroupVerdict | None,
    number: int,
) -> int:
    """Counts the different engines that gave what was published; 1 if the policy requires no more.

    Here the results of other engines than the pinned one count too: a policy that asks for several wants to know that
    an error of one engine would show. They make no verdict.
    """
    if electors.policy.min_engines <= 1:
        return 1
    results = group_verdicts(electors.policy, attestations, number, electors.suspended, result_of)
    agree = {group for group, result in results.items() if result.kind is VerdictKind.REPRODUCED}
    agree.discard(electors.policy.group_of(electors.me) or "")
    spoke = [each for key, each in attestations.items() if electors.policy.group_of(key) in agree]
    used = [engine for each in spoke if (engine := _engine_at(each, number)) is not None]
    mine = {electors.engine} if own is not None and own.kind is VerdictKind.REPRODUCED and electors.engine else set()
    return len({engine.digest for engine in used} | mine)


class ChainExtent(msgspec.Struct, frozen=True, kw_only=True):
    """How far the plain facts of a chain reach, in blocks from the first."""

    linked: int
    chain: int
    data: int
    forked_at: int | None = None
    abandoned_at: int | None = None
    """The number of blocks after which a person gave up the chain; ``None``: not abandoned."""
    inputs: int | None = None
    """Blocks whose inputs lie within their own reach; ``None``: it has no inputs."""
    fresh: bool = True
    witnessed: tuple[int, ...] = ()
    """For each witness group, the number of blocks from the first that it has cosigned."""
    own: bool = False
    """Whether this node made the steps itself, so that it needs no verdict on them."""
    observed: Mapping[int, int] | None = None
    """For the K of each ``observed:K``: the blocks from the first that so many groups observed;
    ``None``: nothing to observe."""


class ReachBound(msgspec.Struct, frozen=True):
    """The rule that limits the reach, and the block at which it does."""

    rule: str
    block: int | None = None


class ReachAssessment(msgspec.Struct, frozen=True):
    blocks: int
    why: ReachBound


def reach(
    expression: Expression, extent: ChainExtent, steps: Sequence[int], decide: Callable[[int], Decision]
) -> ReachAssessment:
    """Returns the largest r such that each block below r meets the purpose's expression.

    ``steps``: the sequence numbers of the transform steps, ascending. Only steps are judged; all other blocks have the
    facts ``reproduced``, ``attested`` and ``observed``. Costs at most one decision for each step.
    """
    stop, why = extent.linked, ReachBound("head")
    if extent.forked_at is not None and extent.forked_at < stop:
        stop, why = extent.forked_at, ReachBound("fork", extent.forked_at)
    if extent.abandoned_at is not None and extent.abandoned_at < stop:
        stop, why = extent.abandoned_at, ReachBound("abandoned", extent.abandoned_at)
    if extent.inputs is not None and extent.inputs < stop:
        stop, why = extent.inputs, ReachBound("inputs", extent.inputs)
    bounds = {**dict.fromkeys(extent.witnessed, "witnessed"), extent.data: "data", extent.chain: "chain"}
    bounds = dict.fromkeys((extent.observed or {}).values(), "observed") | bounds
    for bound in sorted(bounds):
        if bound < stop and not holds(expression, _facts(extent, bound, None)):
            stop, why = bound, ReachBound(bounds[bound], bound)
    if stop and not holds(expression, _facts(extent, 0, None)):
        return ReachAssessment(0, ReachBound("witnessed" if extent.fresh else "fresh", 0))
    for sequence_number in steps:
        if sequence_number >= stop:
            break
        decision = decide(sequence_number)
        if decision.status in STOPS or not holds(expression, _facts(extent, sequence_number, decision)):
            return ReachAssessment(sequence_number, ReachBound(decision.status.value, sequence_number))
    return ReachAssessment(stop, why)


_ALWAYS: Final = 1 << 30


def _facts(extent: ChainExtent, sequence_number: int, decision: Decision | None) -> dict[str, int]:
    return {
        "linked": int(sequence_number < extent.linked),
        "chain": int(sequence_number < extent.chain),
        "data": int(sequence_number < extent.data),
        "fresh": int(extent.fresh),
        "reproduced": 1 if decision is None else int(_is_run_here(extent, decision)),
        "attested": _ALWAYS if decision is None else decision.attested,
        "observed": _count_observed(extent, sequence_number),
        "witnessed": sum(size > sequence_number for size in extent.witnessed),
    }


def _is_run_here(extent: ChainExtent, decision: Decision) -> bool:
    """Whether this node reproduced or made the step; never if the query is not deterministic."""
    return decision.reproduced or (extent.own and decision.status is not DatasetStatus.NONDETERMINISTIC)


def _count_observed(extent: ChainExtent, sequence_number: int) -> int:
    if extent.observed is None:
        return _ALWAYS
    return max((count for count, size in extent.observed.items() if sequence_number < size), default=0)


def quorum_of(expressions: Iterable[Expression]) -> int:
    """Returns the smallest K that any purpose requires of ``attested``; 0 if none does."""
    return min(counts_required("attested", expressions), default=0)


def counts_required(name: str, expressions: Iterable[Expression]) -> frozenset[int]:
    """Returns each K that any purpose requires of a counted fact."""
    return frozenset(fact.count for expression in expressions for fact in facts_of(expression) if fact.name == name)
